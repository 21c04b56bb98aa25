"""Watch programs with NVIDIA's compute-sanitizer: one process of the tool runs a list of them."""

from __future__ import annotations

import importlib.util
import os
import pickle
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tuner.device.arena_memory import HostMemory
from tuner.device.base import Outcome, Program
from tuner.device.cuda.sanitizer_report import Report, Signs, State, read
from tuner.device.cuda.watched import Job, Jobs
from tuner.device.inputs import NORMAL
from tuner.device.judge import Judge
from tuner.device.judging import fresh_seed
from tuner.device.layout import Layout, lay_out
from tuner.errors import DeviceError
from tuner.kernel import KernelSpec, Workload
from tuner.trial import Status

KINDS = ("memcheck", "racecheck", "synccheck", "initcheck")
# Reports name lines of the source only where the compiler wrote them down; the code is the same.
COMPILE_OPTIONS = ("-lineinfo",)
# Larger workloads take the tools minutes: they follow every access.
LARGEST_BYTES = 128 << 20
START_TIMEOUT_S = 60.0
JOB_TIMEOUT_S = 10.0

_NAME = "compute-sanitizer"
_FOUND_SOMETHING = 97
_OPTIONS = {
    # The bindings ask the driver for functions that an older one lacks: no fault of a kernel's.
    # With padding, whatever lies past the end of an array isn't the beginning of another.
    "memcheck": ("--report-api-errors", "no", "--padding", "4096"),
    # Warnings are about threads of one warp that count on running together.
    "racecheck": ("--racecheck-report", "analysis", "--racecheck-detect-level", "error"),
    "synccheck": (),
    "initcheck": (),
}
_PACKAGE_FOLDER = str(Path(__file__).resolve().parents[3])


def find_compute_sanitizer() -> Path | None:
    """Find the tool: on PATH, in the CUDA that the environment or /usr/local names, or pip's."""
    return next((path for path in _candidates() if _works(path)), None)


def _candidates() -> Iterator[Path]:
    if on_path := shutil.which(_NAME):
        yield Path(on_path)
    named = (os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH"))
    folders = [Path(folder) for folder in named if folder]
    folders += sorted(Path("/usr/local").glob("cuda*"), key=_version, reverse=True)
    installed = importlib.util.find_spec("nvidia")
    for place in (installed.submodule_search_locations if installed else None) or ():
        folders += sorted(Path(place).glob("cu[0-9]*"), key=_version, reverse=True)
    for folder in folders:
        yield folder / "bin" / _NAME
        yield folder / _NAME / _NAME


def _version(folder: Path) -> tuple[int, ...]:
    """`cuda-13.0` before `cuda-12.9`; `cuda` alone is the system's choice and comes first."""
    if folder.name == "cuda":
        return (1 << 30,)
    return tuple(map(int, re.findall(r"\d+", folder.name)))


def _works(path: Path) -> bool:
    """Tell a whole installation: pip's of CUDA 13.0 lacks the program that starts the watched."""
    if not path.is_file() or not os.access(path, os.X_OK):
        return False
    folder = path.resolve().parent
    lone = folder.name == "bin" and (folder / "libsanitizer-collection.so").is_file()
    return not lone or (folder / "TreeLauncherSubreaper").is_file()


@dataclass(frozen=True, slots=True)
class Run:
    """One process of the tool: what it reported and how it ended."""

    report: Report
    exit_code: int
    timeout_s: float
    timed_out: bool
    last_words: str

    @property
    def clean(self) -> bool:
        """Whether nothing at all is wrong with any job."""
        return self.report.clean and self.exit_code == 0 and not self.timed_out


class ComputeSanitizer:
    """Run programs of one kernel under one of the tools; see `Watcher` for the contract.

    What the tool could not decide, for reasons of its own, is `missing`. Raises `DeviceError`
    where it is not installed.
    """

    def __init__(
        self, kind: str, ordinal: int, spec: KernelSpec, operators: Mapping[str, str]
    ) -> None:
        found = find_compute_sanitizer()
        if found is None:
            raise DeviceError(
                f"{_NAME} was not found",
                remedy="it comes with the CUDA toolkit: put its folder on PATH, or set CUDA_HOME; "
                "or pip install 'nvidia-cuda-sanitizer-api>=13.1'",
            )
        if kind not in KINDS:
            raise DeviceError(f"{_NAME} has no tool {kind!r}", remedy=f"tools: {', '.join(KINDS)}")
        self.kind = kind
        self._tool, self._ordinal = found, ordinal
        self._spec, self._operators = spec, dict(operators)
        self._process: subprocess.Popen[bytes] | None = None

    def watch(self, programs: Sequence[Program]) -> Sequence[Outcome]:
        """Run each program once, all in one process where nothing is found.

        The tool does not say which program a finding belongs to. So a verdict against a program
        comes from a process that ran it alone, and one for it from a process that found nothing.
        """
        outcomes: dict[int, Outcome] = {}
        with TemporaryDirectory(prefix="tuner-sanitizer-") as folder:
            jobs = self._jobs(programs, Path(folder))
            waiting = deque([list(range(len(jobs)))])
            while waiting:
                group = waiting.popleft()
                if not group:
                    continue
                run = self._run([jobs[index] for index in group], Path(folder))
                if run.clean or len(group) == 1 or not run.report.ready:
                    outcomes |= {index: _outcome(run, self.kind) for index in group}
                else:
                    waiting += _smaller(group, run.report)
        return [outcomes[index] for index in range(len(programs))]

    def close(self) -> None:
        """End what runs."""
        if self._process is not None:
            _kill(self._process)

    def _jobs(self, programs: Sequence[Program], folder: Path) -> list[Job]:
        """Write the arrays of every workload to a file each."""
        arenas: dict[Workload, tuple[Layout, Path]] = {}
        for program in programs:
            workload = program.workload
            if workload not in arenas:
                layout = lay_out(self._spec, workload.values)
                path = folder / f"arena-{len(arenas)}"
                self._draw(workload, layout, path)
                arenas[workload] = layout, path
        places = (arenas[program.workload] for program in programs)
        return [
            Job(program, layout, str(path))
            for program, (layout, path) in zip(programs, places, strict=True)
        ]

    def _draw(self, workload: Workload, layout: Layout, path: Path) -> None:
        memory = HostMemory()
        judge = Judge(memory, self._spec, self._operators)
        judge.open_arena(workload, layout)
        judge.prepare(workload, NORMAL, fresh_seed())
        memory.data.tofile(path)
        judge.close_arena()

    def _run(self, jobs: Sequence[Job], folder: Path) -> Run:
        """Run jobs in one process of the tool and read what came of it."""
        secret = secrets.token_hex(8)
        signs = Signs(f"tool-{secret}", f"job-{secret}")
        file, said, words = folder / "jobs", folder / "said", folder / "words"
        timeout_s = START_TIMEOUT_S + JOB_TIMEOUT_S * len(jobs)
        with said.open("wb") as output, words.open("wb") as errors:
            leash, held = os.pipe()
            with os.fdopen(leash, "rb") as theirs, os.fdopen(held, "wb"):
                inode = os.fstat(leash).st_ino
                written_only = self.kind == "initcheck"
                request = Jobs(self._ordinal, signs.program, written_only, inode, tuple(jobs))
                file.write_bytes(pickle.dumps(request))
                self._process = subprocess.Popen(  # noqa: S603 - the tool that was found
                    self._command(signs, file),
                    stdin=theirs,
                    stdout=output,
                    stderr=errors,
                    env=_environment(),
                    start_new_session=True,
                )
                timed_out = _ended_late(self._process, timeout_s)
        exit_code, self._process = self._process.returncode, None
        text = said.read_text(errors="replace")
        last_words = words.read_text(errors="replace").strip().rpartition("\n")[2]
        report = read(text, self.kind, len(jobs), signs)
        return Run(report, exit_code, timeout_s, timed_out, last_words)

    def _command(self, signs: Signs, jobs: Path) -> list[str]:
        watched = [sys.executable, "-P", "-m", "tuner.device.cuda.watched", str(jobs)]
        options = {
            "--tool": self.kind,
            "--prefix": signs.tool,
            "--demangle": "simple",
            "--show-backtrace": "device",
            "--print-limit": "20",
            "--launch-timeout": f"{START_TIMEOUT_S:.0f}",
            "--target-processes": "application-only",
            "--error-exitcode": str(_FOUND_SOMETHING),
        }
        listed = [text for option in options.items() for text in option]
        return [str(self._tool), *listed, *_OPTIONS[self.kind], *watched]


def _environment() -> dict[str, str]:
    """Let the package be found, and no variable switch the tool's work off."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("NV_COMPUTE_SANITIZER")}
    path = [*filter(None, [kept.get("PYTHONPATH")]), _PACKAGE_FOLDER]
    return {**kept, "PYTHONPATH": os.pathsep.join(path)}


def _ended_late(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait, and leave nothing behind, whatever happens meanwhile."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return True
    finally:
        _kill(process)
    return False


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _smaller(group: Sequence[int], report: Report) -> list[list[int]]:
    """Divide jobs of which one is suspect: each that looks so alone, the others together."""
    pairs = list(zip(group, report.jobs, strict=True))
    odd = (State.STARTED, State.FAILED)
    suspects = [index for index, job in pairs if job.findings or job.state in odd]
    if not suspects:
        middle = len(group) // 2
        return [list(group[:middle]), list(group[middle:])]
    others = [index for index in group if index not in suspects]
    return [*([index] for index in suspects), others]


def _outcome(run: Run, kind: str) -> Outcome:
    """Judge by a process that ran one program, or by one in which nothing went wrong."""
    report = run.report
    if run.clean:
        return Outcome(Status.CORRECT)
    if not report.ready:
        return Outcome(Status.MISSING, _without_start(run, kind))
    if report.findings:
        return Outcome(Status.WRONG, _with_count(report))
    if report.errors:
        return Outcome(Status.WRONG, f"{kind}: {report.errors} errors, which are not described")
    if run.timed_out:
        return Outcome(Status.TIMEOUT, f"{kind}: no end within {run.timeout_s:g} s")
    if report.troubles:
        return Outcome(Status.MISSING, f"{kind} gave no verdict: {'; '.join(report.troubles)}")
    (job,) = report.jobs
    if job.state is State.FAILED:
        status = Status.MISSING if job.shortage else Status.LAUNCH
        return Outcome(status, f"{kind}: {job.error}")
    ended = f"exit code {run.exit_code} {run.last_words}".rstrip()
    if job.state is not State.DONE:
        return Outcome(Status.LAUNCH, f"{kind}: the process ended before the kernel did: {ended}")
    return Outcome(Status.MISSING, f"{kind} gave no verdict: {ended}")


def _without_start(run: Run, kind: str) -> str:
    if run.timed_out:
        return f"{kind} did not start within {run.timeout_s:g} s"
    words = "; ".join([*run.report.troubles, *filter(None, [run.last_words])])
    return f"{kind} did not start: {words or f'exit code {run.exit_code}'}"


def _with_count(report: Report) -> str:
    """Give the first finding and how many more there are."""
    first = report.findings[0]
    others = max(report.errors or 0, len(report.findings)) - 1
    return f"{first}\n(and {others} more)" if others else first
