"""Watch programs with NVIDIA's compute-sanitizer: one process of the tool runs a list of them."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tuner.device.base import Outcome, Program
from tuner.device.cuda.sanitizer_report import Report, Signs, State, read
from tuner.device.cuda.under_tool import NO_LEASH, ToolProcess, environment, jobs_of
from tuner.device.cuda.watched import Job, Jobs
from tuner.errors import DeviceError
from tuner.kernel import KernelSpec
from tuner.toolkit import candidates, executable
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
# Some of them would switch the tool's work off.
_VARIABLES = "NV_COMPUTE_SANITIZER"


def find_compute_sanitizer() -> Path | None:
    """Find the tool: on PATH, in the CUDA that the environment or /usr/local names, or pip's."""
    return next((path for path in candidates(_NAME) if _works(path)), None)


def _works(path: Path) -> bool:
    """Tell a whole installation: pip's of CUDA 13.0 lacks the program that starts the watched."""
    if not executable(path):
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
        self._process = ToolProcess()

    def watch(self, programs: Sequence[Program]) -> Sequence[Outcome]:
        """Run each program once, all in one process where nothing is found.

        The tool does not say which program a finding belongs to. So a verdict against a program
        comes from a process that ran it alone, and one for it from a process that found nothing.
        """
        outcomes: dict[int, Outcome] = {}
        with TemporaryDirectory(prefix="tuner-sanitizer-") as folder:
            jobs = jobs_of(programs, self._spec, self._operators, Path(folder))
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
        self._process.close()

    def _run(self, jobs: Sequence[Job], folder: Path) -> Run:
        """Run jobs in one process of the tool and read what came of it."""
        secret = secrets.token_hex(8)
        signs = Signs(f"tool-{secret}", f"job-{secret}")
        timeout_s = START_TIMEOUT_S + JOB_TIMEOUT_S * len(jobs)
        written_only = self.kind == "initcheck"
        request = Jobs(self._ordinal, signs.program, written_only, NO_LEASH, tuple(jobs))
        ended = self._process.run(
            self._command(signs), request, folder, timeout_s, environment(_VARIABLES)
        )
        report = read(ended.said, self.kind, len(jobs), signs)
        return Run(report, ended.exit_code, timeout_s, ended.timed_out, ended.last_words)

    def _command(self, signs: Signs) -> list[str]:
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
        return [str(self._tool), *listed, *_OPTIONS[self.kind]]


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
