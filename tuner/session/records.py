"""The records that only a session keeps, and how every record becomes text and comes back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from tuner.model.kernel import Workload
from tuner.model.run_config import RunConfig
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
from tuner.session.events import EVENTS, Event

if TYPE_CHECKING:
    from pydantic import TypeAdapter

State = Literal["running", "interrupted", "complete"]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a session was asked to do, of files with these hashes; `created` is in ISO 8601."""

    kernel: str
    config: RunConfig
    space_sha: str
    template_sha: str
    source_sha: str
    reference_sha: str
    tuner_version: str
    command: tuple[str, ...]
    created: str

    def to_json(self) -> str:
        return _manifests().dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        return _manifests().validate_json(text)


@cache
def _manifests() -> TypeAdapter[Manifest]:
    from pydantic import TypeAdapter

    return TypeAdapter(Manifest)


@dataclass(frozen=True, slots=True)
class CandidateRecord:
    """A template and its search space as they were when the session first used them."""

    name: str
    template_text: str
    space_text: str
    parent: str | None = None


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


_Measured = Record | Baseline | Comparison | PeerTrial | Energy | Check | Result
SessionRecord = _Measured | CandidateRecord | Event | Withdrawal
_KINDS: Mapping[str, type[SessionRecord]] = {
    "candidate": CandidateRecord,
    "trial": Record,
    "baseline": Baseline,
    "comparison": Comparison,
    "peer": PeerTrial,
    "energy": Energy,
    "check": Check,
    "result": Result,
    "withdrawal": Withdrawal,
    **{f"event: {kind}": event for kind, event in EVENTS.items()},
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
    return hashlib.sha256(path.read_bytes()).hexdigest()
