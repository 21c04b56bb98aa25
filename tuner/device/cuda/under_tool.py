"""Run programs in a process of their own, under one of NVIDIA's tools."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.device.base import Program
from tuner.device.cuda.watched import Job, Jobs
from tuner.device.inputs import NORMAL
from tuner.device.layout import Layout, lay_out
from tuner.device.verify.arena import HostMemory
from tuner.device.verify.verified_device import fresh_seed
from tuner.device.verify.verifier import Verifier
from tuner.model.errors import WorkerError
from tuner.model.kernel import KernelSpec, Workload

NO_LEASH = 0  # until the pipe exists
_PACKAGE_FOLDER = str(Path(__file__).resolve().parents[3])


@dataclass(frozen=True, slots=True)
class Ended:
    """What a tool and the program under it printed, and how they ended."""

    said: str
    words: str
    exit_code: int
    timed_out: bool

    @property
    def last_words(self) -> str:
        """The last line of standard error."""
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
        watched = [sys.executable, "-P", "-m", "tuner.device.cuda.watched", str(file)]
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
                process = self._process
                timed_out = _ended_late(process, timeout_s)
        self._process = None
        return Ended(
            said.read_text(errors="replace"),
            words.read_text(errors="replace"),
            process.returncode,
            timed_out,
        )

    def close(self) -> None:
        """End what runs; another thread that waits for it, or asks for more, fails."""
        self._closed = True
        process = self._process
        if process is not None:
            kill(process)


def jobs_of(
    programs: Sequence[Program], spec: KernelSpec, operators: Mapping[str, str], folder: Path
) -> list[Job]:
    """Draw the arrays of every workload into a file each, and give each program its own."""
    arenas: dict[Workload, tuple[Layout, Path]] = {}
    for program in programs:
        workload = program.workload
        if workload not in arenas:
            path = folder / f"arena-{len(arenas)}"
            arenas[workload] = draw_arena(workload, spec, operators, path), path
    places = (arenas[program.workload] for program in programs)
    return [
        Job(program, layout, str(path))
        for program, (layout, path) in zip(programs, places, strict=True)
    ]


def draw_arena(
    workload: Workload, spec: KernelSpec, operators: Mapping[str, str], path: Path
) -> Layout:
    """Write fresh inputs of a workload to a file, outputs poisoned, and say what lies where."""
    layout = lay_out(spec, workload.values)
    memory = HostMemory()
    judge = Verifier(memory, spec, operators)
    judge.open_arena(workload, layout)
    judge.prepare(workload, NORMAL, fresh_seed())
    memory.data.tofile(path)
    judge.close_arena()
    return layout


def environment(without: str) -> dict[str, str]:
    """Let the package be found, and no variable with a prefix change what the tool does."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    path = [*filter(None, [kept.get("PYTHONPATH")]), _PACKAGE_FOLDER]
    return {**kept, "PYTHONPATH": os.pathsep.join(path)}


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process with all that it started, and wait for it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _ended_late(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait, and leave nothing behind, whatever happens meanwhile."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return True
    finally:
        kill(process)
    return False
