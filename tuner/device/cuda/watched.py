"""The program that compute-sanitizer watches: it runs each job once and tells how it went.

It uses the driver alone, for the tool would watch every other kernel too.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import signal
import stat
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cuda.bindings import driver

from tuner.device.base import Program
from tuner.device.cuda.driver import Arguments, CudaError, Launcher, LoadedProgram, allocate, call
from tuner.device.layout import Layout, Slot

# The tool needs registers, shared memory and memory of its own.
SHORTAGES = ("CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")


@dataclass(frozen=True, slots=True)
class Job:
    """A program with its arrays: `arena` is a file that holds all of them as `layout` says."""

    program: Program
    layout: Layout
    arena: str


@dataclass(frozen=True, slots=True)
class Jobs:
    """What one process runs.

    `sign` begins each line that it prints; `written_only` leaves outputs and scratch as they are
    allocated; `leash` is the inode of the pipe at whose end the process ends.
    """

    ordinal: int
    sign: str
    written_only: bool
    leash: int
    jobs: tuple[Job, ...]


def main(path: str) -> None:
    """Run the jobs of a file, in order, until one of them breaks the context."""
    content = Path(path).read_bytes()
    jobs: Jobs = pickle.loads(content)  # noqa: S301 - from the process that started this one
    voice = Voice(jobs.sign)
    _end_with(jobs.leash)
    call(driver.cuInit, 0)
    device = call(driver.cuDeviceGet, jobs.ordinal)
    call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, device))
    stream = call(driver.cuStreamCreate, 1)
    call(driver.cuMemFree, allocate(1))  # fails where the tool cannot work on this machine
    voice.say("ready")
    for index, job in enumerate(jobs.jobs):
        voice.say("started", job=index)
        try:
            _run(index, job, jobs.written_only, stream, voice)
        except (CudaError, MemoryError) as error:
            text = str(error)
            shortage = any(name in text for name in SHORTAGES)
            voice.say("failed", job=index, error=text, shortage=shortage)
            if isinstance(error, CudaError) and error.sticky:
                return
        else:
            voice.say("done", job=index)
    call(driver.cuDevicePrimaryCtxRelease, device)


class Voice:
    """Standard output for events alone: what a kernel prints goes nowhere."""

    def __init__(self, sign: str) -> None:
        self._sign = sign
        self._file = os.dup(1)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)

    def say(self, event: str, **content: Any) -> None:
        """Write one line at once."""
        line = f"{self._sign} {json.dumps({'event': event, **content})}\n"
        os.write(self._file, line.encode())


def _run(index: int, job: Job, written_only: bool, stream: Any, voice: Voice) -> None:
    placed: list[Slot] = []
    try:
        for slot in job.layout.slots:
            placed.append(replace(slot, offset=allocate(slot.size_bytes)))
        voice.say("arrays", job=index, arrays=[(s.name, s.offset, s.size_bytes) for s in placed])
        _fill(job, placed, written_only)
        program = job.program
        loaded = LoadedProgram(program.cubin, program.lowered, program.launches)
        # Arrays that lie apart are one layout that starts at address 0.
        arguments = Arguments(replace(job.layout, slots=tuple(placed)), 0)
        Launcher(loaded, program.launches, stream, isolated=True).issue(arguments)
        call(driver.cuStreamSynchronize, stream)
        loaded.unload()
    finally:
        for slot in placed:
            driver.cuMemFree(slot.offset)


def _fill(job: Job, placed: list[Slot], written_only: bool) -> None:
    with Path(job.arena).open("rb") as file:
        for source, target in zip(job.layout.slots, placed, strict=True):
            if written_only and source.role in ("output", "scratch"):
                continue
            file.seek(source.offset)
            content = (ctypes.c_char * source.size_bytes)()
            file.readinto(content)
            address = ctypes.addressof(content)
            call(driver.cuMemcpyHtoD, target.offset, address, source.size_bytes)
    # It may return before the copy ends, and our stream does not wait for the default one.
    call(driver.cuCtxSynchronize)


def _end_with(leash: int) -> None:
    """End when whoever started the tool is gone: its end of the pipe closes with it."""
    with suppress(OSError):
        status = os.fstat(0)
        if stat.S_ISFIFO(status.st_mode) and status.st_ino == leash:
            threading.Thread(target=_wait_for_the_end, daemon=True).start()


def _wait_for_the_end() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
