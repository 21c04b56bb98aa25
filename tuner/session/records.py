"""The records that only a session keeps, and how every record becomes text and comes back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from tuner.model.bounds import FileName, Printable, Seconds
from tuner.model.kernel import KernelSpec, Workload
from tuner.model.settings import RunConfig
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
from tuner.process.files import read_regular
from tuner.session.events import EVENTS, Event, Said

if TYPE_CHECKING:
    from pydantic import TypeAdapter

State = Literal["running", "interrupted", "complete"]
_T = TypeVar("_T")
# Of an entry of a transcript: what is text where it is there, and what was used.
_TEXTS = ("model", "text", "template", "space", "problem", "error", "finish_reason", "reasoning")
_USAGE = {"input_tokens", "cached_tokens", "output_tokens"}


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a session was asked to do, of files with these hashes; `created` is in ISO 8601.

    `headers_sha` is of all that template and source include from the folders of the kernel.
    """

    kernel: FileName
    config: RunConfig
    space_sha: str
    template_sha: str
    source_sha: str
    reference_sha: str
    tuner_version: str
    command: tuple[str, ...]
    created: str
    headers_sha: str = ""

    def list_changes(self, spec: KernelSpec, *, kernel_only: bool = False) -> list[str]:
        """List what of a kernel is not as it was: the search space, the source and all else.

        Raises `OSError` for a file that cannot be read.
        """
        files = {spec.path: self.space_sha, spec.source: self.source_sha}
        if kernel_only:
            return [str(path) for path, sha in files.items() if sha and file_sha(path) != sha]
        files |= {spec.template: self.template_sha, spec.reference: self.reference_sha}
        changed = [str(path) for path, sha in files.items() if file_sha(path) != sha]
        # Sessions of earlier versions don't say.
        if self.headers_sha not in ("", headers_sha(spec)):
            folders = ", ".join(map(str, spec.include_dirs)) or "<tune/...>"
            changed.append(f"what they include from {folders}")
        return changed


@dataclass(frozen=True, slots=True)
class SessionHeader:
    """What a session says of itself."""

    manifest: Manifest
    environment: Mapping[Printable, Printable]
    state: State
    seconds: Seconds

    def to_row(self) -> tuple[str, str, State, float]:
        manifest = adapter_of(Manifest).dump_json(self.manifest).decode()
        return manifest, json.dumps(dict(self.environment)), self.state, self.seconds

    @classmethod
    def from_row(
        cls, manifest: object, environment: object, state: object, seconds: object
    ) -> SessionHeader:
        """Read what `to_row` wrote; raise `ValueError` for what it cannot have written."""
        if not (isinstance(manifest, str) and isinstance(environment, str)):
            raise ValueError("a manifest or an environment is no text")
        from pydantic_core import from_json

        content = {
            "manifest": _validate(adapter_of(Manifest), manifest, "the manifest"),
            "environment": from_json(environment),  # which bounds its depth
            "state": state,
            "seconds": seconds,
        }
        header: SessionHeader = _validate(adapter_of(SessionHeader), content, "the header")
        for name, value in asdict(header.manifest.config).items():
            if isinstance(value, int | float) and not abs(value) < 1 << 63:
                raise ValueError(f"{name} of the manifest's config is {value}")
        rate = header.environment.get("streaming_gbps", "0")
        try:
            is_rate = 0.0 <= float(rate) < inf
        except ValueError:
            is_rate = False
        if not is_rate:
            raise ValueError(f"streaming_gbps is {rate!r}")
        return header


@cache
def adapter_of(kind: type[_T]) -> TypeAdapter[_T]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _validate(adapter: TypeAdapter[_T], content: str | Mapping[str, object], what: str) -> _T:
    from pydantic import ValidationError

    try:
        if isinstance(content, str):
            return adapter.validate_json(content)
        return adapter.validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        where = f" at {place}: {str(first['input'])[:40]!r}" if place else ""
        why = "no such name" if first["type"] == "predicate_failed" else first["msg"]
        raise ValueError(f"{what} is none{where}: {why}") from error


@dataclass(frozen=True, slots=True)
class CandidateRecord:
    """A template and its search space as they were when the session first used them."""

    name: FileName
    template_text: str
    space_text: str
    parent: str | None = None


class Record(NamedTuple):
    """A trial with the seconds that the session had run when it ended, pauses left out."""

    trial: Trial
    elapsed_s: Seconds


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
    return {"kind": kind, "content": json.dumps(_record_adapter(kind).dump_python(record))}


def from_row(kind: object, content: object) -> SessionRecord:
    """Read what `to_row` wrote; raise `ValueError` for what no run can have recorded."""
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"a record of unknown kind {kind!r}")
    if not isinstance(content, str):
        raise ValueError(f"a record of kind {kind!r} is no text")
    record = _validate(_record_adapter(kind), content, f"a record of kind {kind!r}")
    if isinstance(record, Comparison) and not _has_all_times(record):
        problem = f"a comparison on {record.workload} has not a time for each program and round"
        raise ValueError(problem)
    if isinstance(record, Said) and not _is_entry(record.entry):
        raise ValueError(f"an entry of a transcript is {str(record.entry)[:60]!r}")
    return record


@cache
def _record_adapter(kind: str) -> TypeAdapter[SessionRecord]:
    from pydantic import TypeAdapter

    return TypeAdapter(_KINDS[kind])


def headers_sha(spec: KernelSpec) -> str:
    """Hash all that template and source include from the folders of the kernel."""
    from tuner.compiler.includes import header_digest

    texts = (read_regular(path).decode(errors="replace") for path in (spec.template, spec.source))
    return header_digest("\n".join(texts), spec.include_dirs)


def _has_all_times(comparison: Comparison) -> bool:
    columns = 1 + len(comparison.finalists) + len(comparison.peers)
    return (
        all(len(row) == columns for row in comparison.rounds)
        and bool(comparison.rounds or not comparison.finalists)
        and len(comparison.isolated_us) in (0, columns)
        and len(comparison.alone_us) in (0, columns)
        and len(comparison.raced_us) in (0, len(comparison.finalists))
        and comparison.production in ("", *comparison.peers)
    )


def _is_entry(entry: Mapping[str, Any]) -> bool:
    usage = entry.get("usage")
    counted = usage is None or (
        isinstance(usage, dict)
        and usage.keys() <= _USAGE
        and all(isinstance(count, int) and count >= 0 for count in usage.values())
    )
    return (
        counted
        and isinstance(entry.get("type"), str)
        and all(isinstance(entry.get(name) or "", str) for name in _TEXTS)
        and isinstance(entry.get("cost") or 0.0, int | float)
        and (entry["type"] not in ("message", "reply") or _is_message(entry.get("message")))
    )


def _is_message(message: object) -> bool:
    match message:
        case {"role": str(), "content": str() | None, **more}:
            calls = more.get("tool_calls") or []
            return isinstance(calls, list) and all(map(_is_call, calls))
    return False


def _is_call(call: object) -> bool:
    match call:
        case {"id": str(), "function": {"name": str(), "arguments": str() | None}}:
            return True
    return False


def file_sha(path: Path) -> str:
    return hashlib.sha256(read_regular(path)).hexdigest()
