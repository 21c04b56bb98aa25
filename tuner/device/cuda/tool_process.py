"""Run programs under one of NVIDIA's tools, in a process of their own on inputs from a file.

`ToolProcess` starts the tool; what the tool watches is this module as a program, `main`. That uses
the driver alone, for the tool would watch every other kernel too.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cuda.bindings import driver

from tuner.device.base import Program
from tuner.device.cuda.driver import (
    CudaError,
    LaunchArguments,
    Launcher,
    LoadedProgram,
    allocate,
    call,
)
from tuner.device.inputs import NORMAL
from tuner.device.layout import Layout, Slot, lay_out
from tuner.device.verify.verified_device import fresh_seed
from tuner.device.verify.verifier import HostMemory, Verifier
from tuner.model.errors import WorkerError
from tuner.model.kernel import KernelSpec, Workload

# The tool needs registers, shared memory and memory of its own.
SHORTAGES = ("CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")
_PACKAGE_FOLDER = str(Path(__file__).resolve().parents[3])


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
    jobs: tuple[Job, ...]
    written_only: bool = False
    leash: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """What a tool and the program under it printed, and how they ended."""

    said: str
    words: str
    exit_code: int
    timeout_s: float
    timed_out: bool

    @property
    def text(self) -> str:
        return f"{self.said}\n{self.words}"

    @property
    def last_words(self) -> str:
        return self.words.strip().rpartition("\n")[2]


class ToolProcess:
    """Start a tool with the program that runs jobs under it; it ends when this process does."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def run(
        self,
        tool: Sequence[str],
        jobs: Jobs,
        folder: Path,
        timeout_s: float,
        environment: Mapping[str, str],
    ) -> Ended:
        """Run the tool's command line with the jobs and wait; `folder` is for its files."""
        if self._closed:
            raise WorkerError("the tool was ended")
        file, said, words = folder / "jobs", folder / "said", folder / "words"
        watched = [sys.executable, "-P", "-m", "tuner.device.cuda.tool_process", str(file)]
        with said.open("wb") as output, words.open("wb") as errors:
            leash, held = os.pipe()
            with os.fdopen(leash, "rb") as theirs, os.fdopen(held, "wb"):
                file.write_bytes(pickle.dumps(replace(jobs, leash=os.fstat(leash).st_ino)))
                self._process = subprocess.Popen(  # noqa: S603 - the tool that was found
                    [*tool, *watched],
                    stdin=theirs,
                    stdout=output,
                    stderr=errors,
                    env=dict(environment),
                    start_new_session=True,
                )
                process, timed_out = self._process, False
                try:
                    process.wait(timeout_s)
                except subprocess.TimeoutExpired:
                    timed_out = True
                finally:
                    _kill(process)
        self._process = None
        output_text, error_text = (path.read_text(errors="replace") for path in (said, words))
        return Ended(output_text, error_text, process.returncode, timeout_s, timed_out)

    def close(self) -> None:
        """End what runs; another thread that waits for it, or asks for more, fails."""
        self._closed = True
        if process := self._process:
            _kill(process)


def jobs_of(
    programs: Sequence[Program], spec: KernelSpec, operators: Mapping[str, str], folder: Path
) -> list[Job]:
    """Draw the arrays of every workload into a file each, and give each program its own."""
    arenas: dict[Workload, tuple[Layout, str]] = {}
    for program in programs:
        workload = program.workload
        if workload not in arenas:
            path = folder / f"arena-{len(arenas)}"
            arenas[workload] = draw_arena(workload, spec, operators, path), str(path)
    return [Job(program, *arenas[program.workload]) for program in programs]


def draw_arena(
    workload: Workload, spec: KernelSpec, operators: Mapping[str, str], path: Path
) -> Layout:
    """Write fresh inputs of a workload to a file, with outputs poisoned."""
    layout = lay_out(spec, workload.values)
    memory = HostMemory()
    verifier = Verifier(memory, spec, operators)
    verifier.open_arena(workload, layout)
    verifier.prepare(workload, NORMAL, fresh_seed())
    memory.data.tofile(path)
    verifier.close_arena()
    return layout


def environment(without: str) -> dict[str, str]:
    """Let the package be found, and no variable with a prefix change what the tool does."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    path = [*filter(None, [kept.get("PYTHONPATH")]), _PACKAGE_FOLDER]
    return {**kept, "PYTHONPATH": os.pathsep.join(path)}


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


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
            shortage = any(name in str(error) for name in SHORTAGES)
            voice.say("failed", job=index, error=str(error), shortage=shortage)
            if isinstance(error, CudaError) and error.sticky:
                return
        else:
            voice.say("done", job=index)
    call(driver.cuDevicePrimaryCtxRelease, device)


class Voice:
    """Standard output for events alone: what a kernel prints goes nowhere."""

    def __init__(self, sign: str) -> None:
        self._sign, self._file = sign, os.dup(1)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)

    def say(self, event: str, **content: Any) -> None:
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
        arguments = LaunchArguments(replace(job.layout, slots=tuple(placed)), 0)
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

    def wait_for_the_end() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    with suppress(OSError):
        status = os.fstat(0)
        if stat.S_ISFIFO(status.st_mode) and status.st_ino == leash:
            threading.Thread(target=wait_for_the_end, daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1])
