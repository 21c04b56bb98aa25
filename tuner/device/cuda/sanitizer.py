"""Watch programs with NVIDIA's compute-sanitizer: one process of the tool runs a list of them."""

from __future__ import annotations

import json
import re
import secrets
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tuner.compiler.toolkit import candidates, executable
from tuner.device.base import Outcome, Program
from tuner.device.cuda.tool_process import Ended, Job, Jobs, ToolProcess, environment, jobs_of
from tuner.model.errors import DeviceError
from tuner.model.kernel import KernelSpec
from tuner.model.trial import Status

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

# How the compiler names the source: equal to `compiler.includes.UNIT_NAME`.
UNIT = "kernel.cu"

_PLACE = re.compile(rf"\bin \"?(?:\S*/)?{re.escape(UNIT)}:(\d+)")
_POSITION = re.compile(r"\s*\bat \S.*? in \S+:\d+\S*")
_ADDRESS = re.compile(r"\b0x[0-9a-f]+\b")
_SUMMARY = re.compile(r"ERROR SUMMARY: ([\d,]+) errors?$")
_RACE_SUMMARY = re.compile(r"RACECHECK SUMMARY: .*\(([\d,]+) errors?,")
_RACE = "Race reported between"
# Said of every run, or of what the program under it tells itself: a failed call, an early end.
_NOTES = (
    "COMPUTE-SANITIZER",
    "ERROR SUMMARY",
    "RACECHECK SUMMARY",
    "Program hit",
    "Target application returned an error",
    "Error: process didn't terminate successfully",
    "Error: couldn't find exit code",
)
_FOUND = re.compile(
    r"(?:Error: )?(?:Race reported|Potential|Invalid|Uninitialized|Barrier error|Malloc/Free"
    r"|Stack overflow|Deadlock|Warpgroup)"
)


@dataclass(frozen=True, slots=True)
class Signs:
    """What lines of the tool and of the program begin with: a kernel must not know them."""

    tool: str = "========="
    program: str = "job:"


class State(Enum):
    WAITING = "waiting"
    STARTED = "started"
    DONE = "done"
    FAILED = "failed"


@dataclass(slots=True)
class JobReport:
    """One job, what was found in it and why it failed; a `shortage` may be the tool's fault."""

    state: State = State.WAITING
    error: str = ""
    shortage: bool = False
    findings: list[str] = field(default_factory=list)
    arrays: Sequence[tuple[str, int, int]] = ()


@dataclass(slots=True)
class Report:
    """One process of the tool: its jobs, what belongs to none, and the tool's own troubles.

    `ready` says that the program under the tool reached its GPU; `errors` is the tool's count,
    None where it gave none.
    """

    jobs: list[JobReport]
    stray: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    ready: bool = False
    errors: int | None = None

    @property
    def findings(self) -> list[str]:
        return [text for job in self.jobs for text in job.findings] + self.stray

    @property
    def clean(self) -> bool:
        """Whether every job ran to its end and the tool has nothing to say against any."""
        done = all(job.state is State.DONE for job in self.jobs)
        return done and self.errors == 0 and not self.findings and not self.troubles


def read(text: str, kind: str, jobs: int, signs: Signs | None = None) -> Report:
    report = Report([JobReport() for _ in range(jobs)])
    running: int | None = None
    for block in _blocks(text, signs or Signs()):
        if isinstance(block, dict):
            running = _note_event(report, block, running)
        else:
            _note_block(report, block, kind, running)
    return report


def _blocks(text: str, signs: Signs) -> Iterator[list[str] | dict[str, Any]]:
    """Split into the tool's messages, with their indented lines, and events."""
    block: list[str] = []
    meanwhile: list[dict[str, Any]] = []
    for line in [*text.splitlines(), signs.tool]:
        _, sign, event = line.partition(signs.program)
        if sign:
            # The other process may write while a message is on its way, which began before.
            meanwhile.append(json.loads(event))
        _, sign, said = line.partition(signs.tool)
        if not sign:
            continue
        if block and said.startswith("  "):
            block.append(said.strip())
            continue
        if block:
            yield block
        yield from meanwhile
        block, meanwhile = [said.strip()] if said.strip() else [], []


def _note_event(report: Report, event: dict[str, Any], running: int | None) -> int | None:
    if event["event"] == "ready":
        report.ready = True
        return None
    index: int = event["job"]
    job = report.jobs[index]
    if event["event"] == "arrays":
        job.arrays = event["arrays"]
        return running
    job.state = State(event["event"])
    job.error = event.get("error", "")
    job.shortage = event.get("shortage", False)
    # What the tool learned of a job may come a little after the job's end.
    return index


def _note_block(report: Report, block: list[str], kind: str, running: int | None) -> None:
    title, *details = block
    if match := _SUMMARY.match(title) or _RACE_SUMMARY.match(title):
        report.errors = int(match[1].replace(",", ""))
    of_race = _RACE in title or "hazard detected" in title
    if title.startswith(_NOTES) or (of_race and title.lower().startswith("warning")):
        return
    placed = any(line.startswith(("at ", "by thread", "Device Frame")) for line in details)
    internal = title.startswith(("Internal", "Warning"))
    if internal or not (placed or _FOUND.match(title)):
        report.troubles.append(" ".join(block))
        return
    arrays = () if running is None else report.jobs[running].arrays
    found = _described(title, details, kind, arrays)
    (report.stray if running is None else report.jobs[running].findings).append(found)


def _described(
    title: str, details: list[str], kind: str, arrays: Sequence[tuple[str, int, int]]
) -> str:
    host = (n for n, line in enumerate(details) if line.startswith(("Saved host", "Host Frame")))
    details = details[: next(host, None)]
    lines = [named for line in details if (named := _PLACE.search(line))]
    title = title.removeprefix("Error: ")
    if _RACE in title:
        return _race(title, [line for line in details if line.startswith("and ")], kind)
    said = [line for line in details if not line.startswith(("at ", "Device Frame"))]
    if not lines:  # the place is not in the source that was compiled: quote all there is
        said = [line.removeprefix("Device Frame:").strip() for line in details]
    text = title.rstrip(".:")
    for part in said:  # the tool broke it into lines: a comma where no word of its own goes on
        text += f" {part}" if part.startswith(("by ", "and ", "at ", "in ")) else f", {part}"
    text = _ADDRESS.sub(lambda match: _array_at(match[0], arrays), text)
    return f"{UNIT}({lines[0][1]}): {kind}: {text}" if lines else f"{kind}: {text}"


def _race(title: str, others: list[str], kind: str) -> str:
    place = _PLACE.search(title)
    text = _POSITION.sub("", title).strip()
    said = [f"{UNIT}({place[1]}): {kind}: {text}" if place else f"{kind}: {title}"]
    for line in others:
        place = _PLACE.search(line)
        at_line = f"{_POSITION.sub('', line).strip()} at line {place[1]} of {UNIT}" if place else ""
        said.append(f"  {at_line or line}")
    return "\n".join(said)


def _array_at(text: str, arrays: Sequence[tuple[str, int, int]]) -> str:
    address = int(text, 16)
    for name, start, size in arrays:
        if start <= address < start + size:
            offset = address - start
            return f"`{name}` + {offset} bytes" if offset else f"`{name}`"
    return text


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


class ComputeSanitizer:
    """Run programs of one kernel under one of the tools; see `Watcher` for the contract.

    What the tool could not decide, for reasons of its own, is `not_recorded`. Raises `DeviceError`
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
                report, ended = self._run([jobs[index] for index in group], Path(folder))
                outcome = _outcome(report, ended, self.kind)
                if outcome.status is Status.CORRECT or len(group) == 1 or not report.ready:
                    outcomes |= dict.fromkeys(group, outcome)
                else:
                    waiting += _smaller(group, report)
        return [outcomes[index] for index in range(len(programs))]

    def close(self) -> None:
        self._process.close()

    def _run(self, jobs: Sequence[Job], folder: Path) -> tuple[Report, Ended]:
        secret = secrets.token_hex(8)
        signs = Signs(f"tool-{secret}", f"job-{secret}")
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
        ended = self._process.run(
            [str(self._tool), *listed, *_OPTIONS[self.kind]],
            Jobs(self._ordinal, signs.program, tuple(jobs), self.kind == "initcheck"),
            folder,
            START_TIMEOUT_S + JOB_TIMEOUT_S * len(jobs),
            environment(_VARIABLES),
        )
        return read(ended.said, self.kind, len(jobs), signs), ended


def _smaller(group: Sequence[int], report: Report) -> list[list[int]]:
    odd = (State.STARTED, State.FAILED)
    pairs = zip(group, report.jobs, strict=True)
    suspects = [index for index, job in pairs if job.findings or job.state in odd]
    if not suspects:
        middle = len(group) // 2
        return [list(group[:middle]), list(group[middle:])]
    others = [index for index in group if index not in suspects]
    return [*([index] for index in suspects), others]


def _outcome(report: Report, ended: Ended, kind: str) -> Outcome:
    if report.clean and ended.exit_code == 0 and not ended.timed_out:
        return Outcome(Status.CORRECT)
    limit = f"within {ended.timeout_s:g} s"
    if not report.ready:
        words = "; ".join(filter(None, [*report.troubles, ended.last_words]))
        why = f": {words or f'exit code {ended.exit_code}'}"
        why = f" {limit}" if ended.timed_out else why
        return Outcome(Status.NOT_RECORDED, f"{kind} did not start{why}")
    if found := report.findings:
        others = max(report.errors or 0, len(found)) - 1
        more = f"\n(and {others} more)" if others else ""
        return Outcome(Status.INCORRECT, found[0] + more)
    if report.errors:
        return Outcome(Status.INCORRECT, f"{kind}: {report.errors} errors, which are not described")
    if ended.timed_out:
        return Outcome(Status.TIMEOUT, f"{kind}: no end {limit}")
    if report.troubles:
        return Outcome(Status.NOT_RECORDED, f"{kind} gave no verdict: {'; '.join(report.troubles)}")
    for job in report.jobs:
        if job.state is State.FAILED:
            status = Status.NOT_RECORDED if job.shortage else Status.LAUNCH
            return Outcome(status, f"{kind}: {job.error}")
    last = f"exit code {ended.exit_code} {ended.last_words}".rstrip()
    if any(job.state is not State.DONE for job in report.jobs):
        return Outcome(Status.LAUNCH, f"{kind}: the process ended before the kernel did: {last}")
    return Outcome(Status.NOT_RECORDED, f"{kind} gave no verdict: {last}")
