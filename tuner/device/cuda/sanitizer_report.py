"""What compute-sanitizer and the program under it printed, read job by job."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

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
    """What the tool's lines and the watched program's lines begin with.

    A kernel that knew them could print what looks like a verdict.
    """

    tool: str = "========="
    program: str = "job:"


class State(Enum):
    """How far a job came."""

    WAITING = "waiting"
    STARTED = "started"
    DONE = "done"
    FAILED = "failed"


@dataclass(slots=True)
class JobReport:
    """One job: what was found while it ran, and why it failed if it did.

    `shortage` says that memory or registers did not suffice, of which the tool takes its share.
    """

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
        """Everything that was found, in the order of the jobs."""
        return [text for job in self.jobs for text in job.findings] + self.stray

    @property
    def clean(self) -> bool:
        """Whether every job ran to its end and the tool has nothing to say against any."""
        done = all(job.state is State.DONE for job in self.jobs)
        return done and self.errors == 0 and not self.findings and not self.troubles


def findings(text: str, kind: str, jobs: int, signs: Signs | None = None) -> list[list[str]]:
    """List what was found while each job ran, each as `kernel.cu(LINE): KIND: what`."""
    return [job.findings for job in read(text, kind, jobs, signs).jobs]


def read(text: str, kind: str, jobs: int, signs: Signs | None = None) -> Report:
    """Read a whole output of `jobs` jobs under the tool `kind`."""
    report = Report([JobReport() for _ in range(jobs)])
    running: int | None = None
    for block in _blocks(text, signs or Signs()):
        if isinstance(block, dict):
            running = _note_event(report, block, running)
        else:
            _note_block(report, block, kind, running)
    return report


def _blocks(text: str, signs: Signs) -> Iterator[list[str] | dict[str, Any]]:
    """Split into the tool's messages (a line and the indented ones below it) and events."""
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
    title = block[0]
    if match := _SUMMARY.match(title) or _RACE_SUMMARY.match(title):
        report.errors = int(match[1].replace(",", ""))
    if title.startswith(_NOTES) or _is_warning_of_race(title):
        return
    if not _is_finding(block):
        report.troubles.append(" ".join(block))
        return
    arrays = () if running is None else report.jobs[running].arrays
    found = _described(block, kind, {name: (start, size) for name, start, size in arrays})
    (report.stray if running is None else report.jobs[running].findings).append(found)


def _is_warning_of_race(title: str) -> bool:
    """Tell threads of one warp that rely on running together, which may be meant so."""
    return title.lower().startswith("warning") and (_RACE in title or "hazard detected" in title)


def _is_finding(block: list[str]) -> bool:
    if block[0].startswith(("Internal", "Warning")):
        return False
    placed = any(line.startswith(("at ", "by thread", "Device Frame")) for line in block[1:])
    return placed or _FOUND.match(block[0]) is not None


def _described(block: list[str], kind: str, arrays: Mapping[str, tuple[int, int]]) -> str:
    details = _without_host(block[1:])
    lines = [named for line in details if (named := _PLACE.search(line))]
    if _RACE in block[0]:
        return _race(block[0], details, kind)
    said = [line for line in details if not line.startswith(("at ", "Device Frame"))]
    if not lines:  # the place is not in the source that was compiled: quote all there is
        said = [line.removeprefix("Device Frame:").strip() for line in details]
    what = block[0].removeprefix("Error: ").rstrip(".:")
    text = _with_names(_sentence([what, *said]), arrays)
    return f"{UNIT}({lines[0][1]}): {kind}: {text}" if lines else f"{kind}: {text}"


def _sentence(parts: list[str]) -> str:
    """Join what the tool broke into lines: a comma where no word of its own goes on."""
    text = parts[0]
    for part in parts[1:]:
        text += f" {part}" if part.startswith(("by ", "and ", "at ", "in ")) else f", {part}"
    return text


def _race(title: str, details: list[str], kind: str) -> str:
    first, *others = [
        title.removeprefix("Error: "),
        *(line for line in details if line.startswith("and ")),
    ]
    place = _PLACE.search(first)
    text = _POSITION.sub("", first).strip()
    head = f"{UNIT}({place[1]}): {kind}: {text}" if place else f"{kind}: {first}"
    return "\n".join([head, *map(_other_side, others)])


def _other_side(line: str) -> str:
    """End with the place, in the form in which compilers name a second one."""
    place = _PLACE.search(line)
    if place is None:
        return f"  {line}"
    return f"  {_POSITION.sub('', line).strip()} at line {place[1]} of {UNIT}"


def _without_host(details: list[str]) -> list[str]:
    for index, line in enumerate(details):
        if line.startswith(("Saved host", "Host Frame")):
            return details[:index]
    return details


def _with_names(text: str, arrays: Mapping[str, tuple[int, int]]) -> str:
    """Write addresses inside an array as its name and an offset."""

    def named(match: re.Match[str]) -> str:
        address = int(match[0], 16)
        for name, (start, size) in arrays.items():
            if start <= address < start + size:
                offset = address - start
                return f"`{name}` + {offset} bytes" if offset else f"`{name}`"
        return match[0]

    return _ADDRESS.sub(named, text)
