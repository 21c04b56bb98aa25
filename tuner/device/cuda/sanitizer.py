"""Watch programs with NVIDIA's compute-sanitizer: one process of the tool runs a list of them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from tuner.compiler.command import candidates, executable
from tuner.compiler.includes import UNIT_NAME
from tuner.device.base import Outcome, Program
from tuner.device.cuda.tool_process import Arenas, Ended, Job, ToolProcess, environment
from tuner.model.errors import DeviceError
from tuner.model.trial import Status

# Reports name lines of the source only where the compiler wrote them down; the code is the same.
COMPILE_OPTIONS = ("-lineinfo",)
# Larger workloads take the tools minutes: they follow every access. So may a kernel that computes
# for milliseconds, which says nothing against it.
LARGEST_BYTES = 128 << 20
START_TIMEOUT_S = 20.0
JOB_TIMEOUT_S = 5.0

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
KINDS = tuple(_OPTIONS)
# Some of them would switch the tool's work off.
_VARIABLES = "NV_COMPUTE_SANITIZER"

_PLACE = re.compile(rf"\bin \"?(?:\S*/)?{re.escape(UNIT_NAME)}:(\d+)")
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
_CORRECT = Outcome(Status.CORRECT)

# Names, addresses and sizes.
Arrays = Sequence[tuple[str, int, int]]


@dataclass(slots=True)
class Report:
    """What the tool says of what it watched, of itself, and its count, None where it gave none."""

    findings: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    errors: int | None = None


def read(text: str, kind: str, sign: str, arrays: Arrays = ()) -> Report:
    """Read the tool's output, whose lines begin with `sign`; a kernel must not know it.

    `arrays` are the names, addresses and sizes of what the program was given.
    """
    report = Report()
    for title, *details in _messages(text, sign):
        if match := _SUMMARY.match(title) or _RACE_SUMMARY.match(title):
            report.errors = int(match[1].replace(",", ""))
        of_race = _RACE in title or "hazard detected" in title
        if title.startswith(_NOTES) or (of_race and title.lower().startswith("warning")):
            continue
        placed = any(line.startswith(("at ", "by thread", "Device Frame")) for line in details)
        internal = title.startswith(("Internal", "Warning"))
        if internal or not (placed or _FOUND.match(title)):
            report.troubles.append(" ".join((title, *details)))
        else:
            report.findings.append(_describe_finding(title, details, kind, arrays))
    return report


def _messages(text: str, sign: str) -> list[list[str]]:
    """Split into messages: a title and the lines that are indented under it."""
    messages: list[list[str]] = []
    for line in text.splitlines():
        _, signed, said = line.partition(sign)
        if signed and said.startswith("  ") and messages and messages[-1]:
            messages[-1].append(said.strip())
        elif signed:
            messages.append(list(filter(None, [said.strip()])))
    return [message for message in messages if message]


def _describe_finding(title: str, details: list[str], kind: str, arrays: Arrays) -> str:
    host = (n for n, line in enumerate(details) if line.startswith(("Saved host", "Host Frame")))
    details = details[: next(host, None)]
    lines = [named for line in details if (named := _PLACE.search(line))]
    title = title.removeprefix("Error: ")
    if _RACE in title:
        return _race(title, [line for line in details if line.startswith("and ")], kind)
    parts = [line for line in details if not line.startswith(("at ", "Device Frame"))]
    if not lines:  # the place is not in the source that was compiled: quote all there is
        parts = [line.removeprefix("Device Frame:").strip() for line in details]
    text = title.rstrip(".:")
    for part in parts:  # the tool broke it into lines: a comma where no word of its own goes on
        text += f" {part}" if part.startswith(("by ", "and ", "at ", "in ")) else f", {part}"
    text = _ADDRESS.sub(lambda match: _array_at(match[0], arrays), text)
    return f"{UNIT_NAME}({lines[0][1]}): {kind}: {text}" if lines else f"{kind}: {text}"


def _race(title: str, others: list[str], kind: str) -> str:
    place = _PLACE.search(title)
    text = _POSITION.sub("", title).strip()
    report = [f"{UNIT_NAME}({place[1]}): {kind}: {text}" if place else f"{kind}: {title}"]
    for line in others:
        place = _PLACE.search(line)
        at_line = (
            f"{_POSITION.sub('', line).strip()} at line {place[1]} of {UNIT_NAME}" if place else ""
        )
        report.append(f"  {at_line or line}")
    return "\n".join(report)


def _array_at(text: str, arrays: Arrays) -> str:
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

    def __init__(self, kind: str, ordinal: int, arenas: Arenas) -> None:
        tool = find_compute_sanitizer()
        if tool is None:
            raise DeviceError(
                f"{_NAME} was not found",
                remedy="it comes with the CUDA toolkit: put its folder on PATH, or set CUDA_HOME; "
                "or pip install 'nvidia-cuda-sanitizer-api>=13.1'",
            )
        self.kind = kind
        self._tool, self._ordinal, self._arenas = tool, ordinal, arenas
        self._process = ToolProcess()

    def watch(self, programs: Sequence[Program]) -> Sequence[Outcome]:
        """Run each program once, all in one process where nothing is found.

        The tool does not say which program a finding belongs to. So a verdict against a program
        comes from a process that ran it alone, and one for it from a process that found nothing.
        """
        with self._arenas.open(), TemporaryDirectory(prefix="tuner-sanitizer-") as name:
            folder, jobs = Path(name), self._arenas.jobs(programs)
            if not jobs:
                return []
            together, ended = self._run(jobs, folder)
            if together.status is Status.CORRECT or len(jobs) == 1 or not ended.events:
                return [together] * len(jobs)
            return [*self._each_alone(jobs, folder, together, ended)]

    def close(self) -> None:
        self._process.close()

    def _each_alone(
        self, jobs: Sequence[Job], folder: Path, together: Outcome, ended: Ended
    ) -> Iterator[Outcome]:
        """Run jobs one by one; what did not end together is not tried again, nor after another."""
        ran = len(ended.events_of("done") + ended.events_of("failed"))
        slow = ran if _is_unended(together, ended) else None
        unended: Outcome | None = None
        for place, job in enumerate(jobs):
            if place == slow:
                yield together
            elif unended is not None:
                yield unended
            else:
                outcome, ended = self._run([job], folder)
                unended = outcome if _is_unended(outcome, ended) else None
                yield outcome

    def _run(self, jobs: Sequence[Job], folder: Path) -> tuple[Outcome, Ended]:
        """Return the outcome of all, and how the tool ended."""
        sign = f"tool-{secrets.token_hex(8)}"
        options = {
            "--tool": self.kind,
            "--prefix": sign,
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
            self._ordinal,
            jobs,
            folder,
            START_TIMEOUT_S + JOB_TIMEOUT_S * len(jobs),
            environment(_VARIABLES),
            written_only=self.kind == "initcheck",
        )
        arrays = ended.events_of("arrays")
        report = read(ended.said, self.kind, sign, arrays[-1]["arrays"] if arrays else ())
        return _outcome(report, ended, self.kind, len(jobs)), ended


def _is_unended(outcome: Outcome, ended: Ended) -> bool:
    return ended.timed_out and outcome.status is Status.NOT_RECORDED


def _outcome(report: Report, ended: Ended, kind: str, jobs: int) -> Outcome:
    limit = f"within {ended.timeout_s:g} s"
    if not ended.events:
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
        return Outcome(Status.NOT_RECORDED, f"{kind}: no end {limit}")
    if report.troubles:
        return Outcome(Status.NOT_RECORDED, f"{kind} gave no verdict: {'; '.join(report.troubles)}")
    for failed in ended.events_of("failed"):
        status = Status.NOT_RECORDED if failed["shortage"] else Status.LAUNCH
        return Outcome(status, f"{kind}: {failed['error']}")
    last = f"exit code {ended.exit_code} {ended.last_words}".rstrip()
    if len(ended.events_of("done")) < jobs:
        return Outcome(Status.LAUNCH, f"{kind}: the process ended before the kernel did: {last}")
    if ended.exit_code or report.errors is None:
        return Outcome(Status.NOT_RECORDED, f"{kind} gave no verdict: {last}")
    return _CORRECT
