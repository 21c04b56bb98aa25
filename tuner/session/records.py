"""The records that only a session keeps, and how every record becomes text and comes back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tuner.model.energy import Objective
from tuner.model.kernel import Workload
from tuner.model.trial import (
    Check,
    Comparison,
    Correctness,
    Energy,
    Measurement,
    Occupancy,
    PeerTrial,
    Resources,
    Result,
    Trial,
)
from tuner.space.plan import WITHIN

if TYPE_CHECKING:
    from pydantic import TypeAdapter

State = Literal["running", "interrupted", "complete"]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a session was asked to do: all that a resumed run must find unchanged.

    `created` is a time in ISO 8601; `command` the words that started it; `trials` and `time_s`
    the budget per workload and for the whole run, None where there is no such bound. `agent` is
    who writes further candidates, "" for nobody, and `agent_options` what it was started with.
    `objective` is what the winners are chosen by; `variants_within` and `max_variants` say how
    variants are saved, and `peers` what the finals compare with besides the baseline.
    """

    kernel: str
    space_path: str
    space_text_sha: str
    template_sha: str
    source_sha: str
    device: str
    searcher: str
    trials: int | None
    time_s: float | None
    seed: int
    workloads: tuple[Workload, ...]
    operators: Mapping[str, str]
    tuner_version: str
    command: tuple[str, ...]
    created: str
    template_path: str = ""
    reference_sha: str = ""
    agent: str = ""
    rounds: int = 0
    policy: str = "greedy"
    agent_options: Mapping[str, str] = field(default_factory=dict)
    objective: Objective = "time"
    variants_within: float = WITHIN
    max_variants: int | None = None
    peers: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Write it as JSON text."""
        workloads = [{"axes": w.axes, "held_out": w.held_out} for w in self.workloads]
        return json.dumps({**asdict(self), "workloads": workloads})

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Read what `to_json` wrote."""
        content = json.loads(text)
        workloads = (
            Workload.of(dict(w["axes"]), held_out=w["held_out"]) for w in content["workloads"]
        )
        content |= {"workloads": tuple(workloads), "command": tuple(content["command"])}
        content["peers"] = tuple(content.get("peers", ()))
        return cls(**content)


@dataclass(frozen=True, slots=True)
class CandidateRecord:
    """A template and its search space as they were when the session first used them."""

    name: str
    template_text: str
    space_text: str
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened in a round with an agent; `content` holds plain JSON values."""

    round: int
    kind: str
    content: Mapping[str, Any]
    created: str


class Record(NamedTuple):
    """A trial with the seconds that the session had run when it ended, pauses left out."""

    trial: Trial
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Baseline:
    """The untouched kernel on one workload."""

    workload: Workload
    measurement: Measurement
    correctness: Correctness | None = None
    resources: Resources | None = None
    occupancy: Occupancy | None = None


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """The result of a workload is taken back: its config failed a further check."""

    workload: Workload


SessionRecord = (
    CandidateRecord
    | Record
    | Baseline
    | Comparison
    | PeerTrial
    | Energy
    | Check
    | Note
    | Result
    | Withdrawal
)
_KINDS: Mapping[str, type[SessionRecord]] = {
    "candidate": CandidateRecord,
    "trial": Record,
    "baseline": Baseline,
    "comparison": Comparison,
    "peer": PeerTrial,
    "energy": Energy,
    "check": Check,
    "note": Note,
    "result": Result,
    "withdrawal": Withdrawal,
}
_NAMES = {record: kind for kind, record in _KINDS.items()}


def to_row(record: SessionRecord) -> dict[str, str]:
    """Write a record as its kind and JSON text that keeps every bit and type."""
    kind = _NAMES[type(record)]
    return {"kind": kind, "content": json.dumps(_adapter(kind).dump_python(record))}


def from_row(kind: str, content: str) -> SessionRecord:
    """Read what `to_row` wrote; raise `ValueError` for what it cannot have written."""
    if kind not in _KINDS:
        raise ValueError(f"a record of unknown kind {kind!r}")
    return _adapter(kind).validate_json(content)


@cache
def _adapter(kind: str) -> TypeAdapter[SessionRecord]:
    from pydantic import TypeAdapter

    return TypeAdapter(_KINDS[kind])


def file_sha(path: Path) -> str:
    """Hash a file's content with SHA-256, in hexadecimal, as a manifest keeps it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
