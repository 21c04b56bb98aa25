"""Run programs under one of NVIDIA's tools, in a process of their own on inputs made before.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cuda.bindings import driver

from tuner.device.base import Program
from tuner.device.cuda.buffers import MappedArena
from tuner.device.cuda.driver import (
    CudaError,
    LaunchArguments,
    Launcher,
    LoadedProgram,
    allocate,
    call,
)
from tuner.device.inputs import NORMAL
from tuner.device.layout import Arena, Layout, Slot, lay_out
from tuner.device.verify.verified_device import fresh_seed
from tuner.device.verify.verifier import HostMemory, Verifier
from tuner.model.errors import WorkerError
from tuner.model.kernel import ChosenScratch, KernelSpec, Workload
from tuner.process.files import atomic_write
from tuner.process.tally import note_start

# The tool needs registers, shared memory and memory of its own.
SHORTAGES = ("CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")
# What a config chose, as a program has it.
Scratch = tuple[ChosenScratch, ...]
# Drawing takes some times the memory of the arrays.
DRAWN_TOGETHER = 4
_PACKAGE_FOLDER = str(Path(__file__).resolve().parents[3])
PROGRAM = "program.py"
_PROGRAM = """\
# python -P program.py {names}: call it twice on the arrays beside this file, made by `tune ncu`.
import sys
from pathlib import Path

sys.path.append({package!r})  # elsewhere `tuner` has to be installed in this version
from tuner.device.cuda.tool_process import run_saved

run_saved(Path(__file__).with_name(sys.argv[1] + ".jobs"))
"""


@dataclass(frozen=True, slots=True)
class Job:
    """A program with its arrays, which `arena`, a file or memory, holds as `layout` says."""

    program: Program
    layout: Layout
    arena: str | Arena


@dataclass(frozen=True, slots=True)
class Jobs:
    """What one process runs.

    `events` is the file in which it notes how far it is; `written_only` leaves outputs and scratch
    as they are allocated; `leash` is the inode of the pipe at whose end the process ends.
    """

    ordinal: int
    events: str
    jobs: tuple[Job, ...]
    written_only: bool
    leash: int


@dataclass(frozen=True, slots=True)
class Ended:
    """What a tool printed, what the program under it noted, and how they ended."""

    said: str
    words: str
    events: tuple[Mapping[str, Any], ...]
    exit_code: int
    timeout_s: float
    timed_out: bool

    @property
    def last_words(self) -> str:
        return self.words.strip().rpartition("\n")[2]

    def events_of(self, kind: str) -> list[Mapping[str, Any]]:
        """List the events of a kind: `ready` once, `arrays` and then `done` or `failed` a job."""
        return [event for event in self.events if event["event"] == kind]


class ToolProcess:
    """Start a tool with the program that runs jobs under it; it ends when this process does."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def run(
        self,
        tool: Sequence[str],
        ordinal: int,
        jobs: Sequence[Job],
        folder: Path,
        timeout_s: float,
        environment: Mapping[str, str],
        *,
        written_only: bool = False,
    ) -> Ended:
        """Run the tool's command line with the jobs and wait; `folder` is for its files."""
        if self._closed:
            raise WorkerError("the tool was ended")
        file, said, words, events = (folder / n for n in ("jobs", "said", "words", "events"))
        events.write_bytes(b"")
        watched = [sys.executable, "-P", "-m", "tuner.device.cuda.tool_process", str(file)]
        with said.open("wb") as output, words.open("wb") as errors:
            leash, held = os.pipe()
            with os.fdopen(leash, "rb") as theirs, os.fdopen(held, "wb"):
                inode = os.fstat(leash).st_ino
                asked = Jobs(ordinal, str(events), tuple(jobs), written_only, inode)
                file.write_bytes(pickle.dumps(asked))
                self._process = process = subprocess.Popen(  # noqa: S603 - the tool that was found
                    [*tool, *watched],
                    stdin=theirs,
                    stdout=output,
                    stderr=errors,
                    env=dict(environment),
                    start_new_session=True,
                )
                note_start(Path(tool[0]).name)
                timed_out = False
                try:
                    process.wait(timeout_s)
                except subprocess.TimeoutExpired:
                    timed_out = True
                finally:
                    _kill(process)
        self._process = None
        printed, complaints = (path.read_text(errors="replace") for path in (said, words))
        # A process that is killed may leave half of a line.
        lines = events.read_text(encoding="utf-8").splitlines(keepends=True)
        noted = tuple(json.loads(line) for line in lines if line.endswith("\n"))
        return Ended(printed, complaints, noted, process.returncode, timeout_s, timed_out)

    def close(self) -> None:
        """End what runs; another thread that waits for it, or asks for more, fails."""
        self._closed = True
        if process := self._process:
            _kill(process)


class Arenas:
    """The arrays of every workload, in a file each, drawn once for tools that run side by side.

    Whoever is `open` last takes the files away.
    """

    def __init__(self, spec: KernelSpec, operators: Mapping[str, str]) -> None:
        self._spec, self._operators = spec, dict(operators)
        self._lock, self._users = threading.Lock(), 0
        self._drawn: dict[tuple[Workload, Scratch], Future[tuple[Layout, str]]] = {}

    @contextmanager
    def open(self) -> Iterator[None]:
        with self._lock:
            if not self._users:
                self._folder = TemporaryDirectory(prefix="tuner-arenas-")
                self._threads = ThreadPoolExecutor(DRAWN_TOGETHER, thread_name_prefix="draw")
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._threads.shutdown(cancel_futures=True)
                    self._folder.cleanup()
                    self._drawn.clear()

    def jobs(self, programs: Sequence[Program]) -> list[Job]:
        """Give each program the file of its workload."""
        wanted = [(program.workload, program.scratch) for program in programs]
        with self._lock:
            for needed in dict.fromkeys(wanted):
                if needed not in self._drawn:
                    number = len(self._drawn)
                    self._drawn[needed] = self._threads.submit(self._draw, number, *needed)
        drawn = [self._drawn[needed].result() for needed in wanted]
        return [Job(program, *arena) for program, arena in zip(programs, drawn, strict=True)]

    def _draw(self, number: int, workload: Workload, scratch: Scratch) -> tuple[Layout, str]:
        path = Path(self._folder.name, f"arena-{number}")
        return draw(self._spec, self._operators, workload, scratch, path), str(path)


def draw(
    spec: KernelSpec,
    operators: Mapping[str, str],
    workload: Workload,
    scratch: Scratch,
    path: Path,
) -> Layout:
    """Write fresh inputs of a workload to a file, with outputs poisoned."""
    layout = lay_out(spec, workload.values, scratch={sized.name: sized for sized in scratch})
    memory = HostMemory()
    verifier = Verifier(memory, spec, operators)
    verifier.open_arena(workload, layout)
    verifier.prepare(workload, NORMAL, fresh_seed())
    memory.data.tofile(path)
    verifier.close_arena()
    return layout


def save_jobs(
    folder: Path, spec: KernelSpec, operators: Mapping[str, str], programs: Mapping[str, Program]
) -> None:
    """Write a program that runs each of the named ones, `python -P program.py NAME`, and inputs.

    Each is run twice: what a first call loads is there at the second. Arrays of an earlier program
    in the folder go.
    """
    layouts: dict[Scratch, tuple[Layout, str]] = {}
    for path in folder.glob("arrays-*.bin"):
        path.unlink()
    for name, program in programs.items():
        if program.scratch not in layouts:
            path = folder / f"arrays-{len(layouts)}.bin"
            layout = draw(spec, operators, program.workload, program.scratch, path)
            layouts[program.scratch] = layout, path.name
        job = Job(program, *layouts[program.scratch])
        jobs = Jobs(0, os.devnull, (job, job), False, 0)
        atomic_write(folder / f"{name}.jobs", pickle.dumps(jobs))
    text = _PROGRAM.format(names="|".join(programs), package=_PACKAGE_FOLDER)
    atomic_write(folder / PROGRAM, text)


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
    jobs: Jobs = pickle.loads(Path(path).read_bytes())  # noqa: S301 - from whoever started this
    _end_with(jobs.leash)
    with Path(jobs.events).open("a", encoding="utf-8") as file, Path(os.devnull).open("wb") as null:
        os.dup2(null.fileno(), 1)  # what a kernel prints goes nowhere

        def note(event: str, **content: object) -> None:
            file.write(f"{json.dumps({'event': event, **content})}\n")
            file.flush()

        _run_all(jobs, note)


def run_saved(file: Path) -> None:
    """Run a file of jobs, its arrays beside it, for somebody who watches; end with what fails."""
    os.chdir(file.parent)
    jobs: Jobs = pickle.loads(file.read_bytes())  # noqa: S301 - as much a program as what calls it
    failures: list[str] = []

    def note(event: str, **content: object) -> None:
        if event == "failed":
            failures.append(str(content["error"]))

    try:
        _run_all(jobs, note)
    except (CudaError, RuntimeError) as error:  # the driver is not there
        failures.append(str(error))
    if failures:
        sys.exit(f"{file.stem}: {failures[0]}")


def _run_all(jobs: Jobs, note: Callable[..., None]) -> None:
    call(driver.cuInit, 0)
    device = call(driver.cuDeviceGet, jobs.ordinal)
    call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, device))
    stream = call(driver.cuStreamCreate, 1)
    call(driver.cuMemFree, allocate(1))  # fails where the tool cannot work on this machine
    note("ready")
    for job in jobs.jobs:
        try:
            _run(job, jobs.written_only, stream, note)
        except (CudaError, MemoryError) as error:
            shortage = any(name in str(error) for name in SHORTAGES)
            note("failed", error=str(error), shortage=shortage)
            if isinstance(error, CudaError) and error.sticky:
                return
        else:
            note("done")
    call(driver.cuDevicePrimaryCtxRelease, device)


def _run(job: Job, written_only: bool, stream: Any, note: Callable[..., None]) -> None:
    placed: list[Slot] = []
    try:
        for slot in job.layout.slots:
            placed.append(replace(slot, offset=allocate(slot.size_bytes)))
        note("arrays", arrays=[(slot.name, slot.offset, slot.size_bytes) for slot in placed])
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
    pairs = [
        (source, target)
        for source, target in zip(job.layout.slots, placed, strict=True)
        if not (written_only and source in job.layout.spoiled)
    ]
    if isinstance(job.arena, Arena):
        arena = MappedArena(job.arena)
        arena.pull()
        for source, target in pairs:
            call(driver.cuMemcpyDtoD, target.offset, arena.base + source.offset, source.size_bytes)
        call(driver.cuCtxSynchronize)
        arena.close()
        return
    with Path(job.arena).open("rb") as file:
        for source, target in pairs:
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
