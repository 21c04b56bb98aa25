"""The records that only a session keeps, and how every record becomes a row and comes back."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from struct import pack, unpack
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.run_config import RunConfig
from tuner.model.trial import (
    INITIAL,
    Check,
    Comparison,
    Correctness,
    Energy,
    EnergyWindow,
    Measurement,
    Occupancy,
    PeerTrial,
    Resources,
    Result,
    Status,
    Trial,
    Variant,
)

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Row = dict[str, Any]
State = Literal["running", "interrupted", "complete"]

_PLAIN_RESULT_COLUMNS = (
    "baseline_us",
    "tuned_us",
    "speedup",
    "paired",
    "roofline_share",
    "baseline_wins",
    "isolated_us",
    "isolated_baseline_us",
    "candidate",
)

_PLAIN_WINDOW_COLUMNS = (
    "energy_j",
    "seconds",
    "time_us",
    "buffer_sets",
    "cold",
    "temperature_c",
    "clock_mhz",
)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a session was asked to do, and of which files: all that a resumed run finds unchanged.

    `created` is a time in ISO 8601, `command` the words that started it, and the others are hashes
    of the files at that time.
    """

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
        """Write it as JSON text."""
        return _manifests().dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Read what `to_json` wrote."""
        return _manifests().validate_json(text)


@cache
def _manifests() -> TypeAdapter[Manifest]:
    from pydantic import TypeAdapter

    return TypeAdapter(Manifest)


@dataclass(frozen=True, slots=True)
class Candidate:
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


def file_sha(path: Path) -> str:
    """Hash a file's content with SHA-256, in hexadecimal, as a manifest keeps it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def trial_row(trial: Trial) -> Row:
    """Make the row of a trial, without its measurement."""
    return {
        **_workload_columns(trial.workload),
        "candidate": trial.candidate,
        "config": config_text(trial.config),
        "config_key": trial.config.key,
        "stage": trial.stage,
        "status": str(trial.status),
        "reason": trial.reason,
        "resources": _fields_text(trial.resources),
        "occupancy": _fields_text(trial.occupancy),
        "correctness": _fields_text(trial.correctness),
        "seconds": trial.seconds,
    }


def trial_of(row: Row, measurement: Measurement | None) -> Trial:
    """Read the row of a trial."""
    return Trial(
        candidate=row["candidate"],
        workload=_workload_of(row),
        config=config_of(row["config"]),
        status=Status(row["status"]),
        reason=row["reason"],
        resources=_resources_of(row),
        occupancy=_occupancy_of(row),
        measurement=measurement,
        correctness=_correctness_of(row),
        seconds=row["seconds"],
        stage=row["stage"],
    )


def measurement_row(measurement: Measurement) -> Row:
    """Make the columns of a measurement; the samples keep every bit."""
    times = measurement.times_us
    return {
        # All 64 bits: a resumed search replays these times and must propose what it did before.
        "times_us": pack(f"<{len(times)}d", *times),
        "median_us": measurement.median_us if times else None,
        "calls_per_replay": measurement.calls_per_replay,
        "buffer_sets": measurement.buffer_sets,
        "stopped_early": measurement.stopped_early,
        "wall_ratio": measurement.wall_ratio,
    }


def measurement_of(row: Row) -> Measurement:
    """Read the columns of a measurement."""
    times = row["times_us"]
    return Measurement(
        times_us=unpack(f"<{len(times) // 8}d", times),
        calls_per_replay=row["calls_per_replay"],
        buffer_sets=row["buffer_sets"],
        stopped_early=row["stopped_early"],
        wall_ratio=row["wall_ratio"],
    )


def baseline_row(baseline: Baseline) -> Row:
    """Make the row of a baseline."""
    return {
        **_workload_columns(baseline.workload),
        **measurement_row(baseline.measurement),
        "correctness": _fields_text(baseline.correctness),
        "resources": _fields_text(baseline.resources),
        "occupancy": _fields_text(baseline.occupancy),
    }


def baseline_of(row: Row) -> Baseline:
    """Read the row of a baseline."""
    return Baseline(
        workload=_workload_of(row),
        measurement=measurement_of(row),
        correctness=_correctness_of(row),
        resources=_resources_of(row),
        occupancy=_occupancy_of(row),
    )


def check_row(check: Check) -> Row:
    """Make the row of a check."""
    return {
        **_workload_columns(check.workload),
        "kind": check.kind,
        "config": config_text(check.config),
        "passed": check.passed,
        "reason": check.reason,
        "device": check.device,
        "created": check.created,
        "candidate": check.candidate,
    }


def check_of(row: Row) -> Check:
    """Read the row of a check."""
    return Check(
        kind=row["kind"],
        workload=_workload_of(row),
        config=config_of(row["config"]),
        passed=row["passed"],
        reason=row["reason"],
        device=row["device"],
        created=row["created"],
        candidate=row["candidate"],
    )


def comparison_row(comparison: Comparison) -> Row:
    """Make the row of a comparison."""
    return {
        **_workload_columns(comparison.workload),
        "finalists": json.dumps([dict(one.config.items_) for one in comparison.finalists]),
        "candidates": json.dumps([one.candidate for one in comparison.finalists]),
        "rounds_us": json.dumps(comparison.rounds),
        "paired": comparison.paired,
        "isolated_us": json.dumps(comparison.isolated_us),
        "peers": json.dumps(comparison.peers),
    }


def comparison_of(row: Row) -> Comparison:
    """Read the row of a comparison."""
    configs = [Config.of(values) for values in json.loads(row["finalists"])]
    candidates = json.loads(row["candidates"]) or [INITIAL] * len(configs)
    return Comparison(
        workload=_workload_of(row),
        finalists=tuple(map(Variant, candidates, configs)),
        rounds=tuple(tuple(times) for times in json.loads(row["rounds_us"])),
        paired=row["paired"],
        isolated_us=tuple(json.loads(row["isolated_us"])),
        peers=tuple(json.loads(row["peers"])),
    )


def peer_row(trial: PeerTrial) -> Row:
    """Make the row of a peer."""
    return {
        **_workload_columns(trial.workload),
        "name": trial.name,
        "status": str(trial.status),
        "reason": trial.reason,
        "created": trial.created,
    }


def peer_of(row: Row) -> PeerTrial:
    """Read the row of a peer."""
    workload, status = _workload_of(row), Status(row["status"])
    return PeerTrial(workload, row["name"], status, row["reason"], row["created"])


def energy_row(energy: Energy) -> Row:
    """Make the row of a window of energy."""
    variant, window = energy.variant, energy.window
    return {
        **_workload_columns(energy.workload),
        "kind": energy.kind,
        "candidate": None if variant is None else variant.candidate,
        "config": None if variant is None else config_text(variant.config),
        **{name: getattr(window, name) for name in _PLAIN_WINDOW_COLUMNS},
        "limited_by": json.dumps(window.limited_by),
        "created": energy.created,
    }


def energy_of(row: Row) -> Energy:
    """Read the row of a window of energy."""
    plain = {name: row[name] for name in _PLAIN_WINDOW_COLUMNS}
    config = row["config"]
    return Energy(
        workload=_workload_of(row),
        kind=row["kind"],
        window=EnergyWindow(**plain, limited_by=tuple(json.loads(row["limited_by"]))),
        variant=None if config is None else Variant(row["candidate"], config_of(config)),
        created=row["created"],
    )


def result_row(result: Result) -> Row:
    """Make the row of a result."""
    low, high = result.interval
    return {
        **_workload_columns(result.workload),
        "baseline_us": result.baseline_us,
        "tuned_us": result.tuned_us,
        "speedup": result.speedup,
        "low": low,
        "high": high,
        "paired": result.paired,
        "roofline_share": result.roofline_share,
        "config": config_text(result.config),
        "resources": _fields_text(result.resources),
        "occupancy": _fields_text(result.occupancy),
        "baseline_wins": result.baseline_wins,
        "isolated_us": result.isolated_us,
        "isolated_baseline_us": result.isolated_baseline_us,
        "candidate": result.candidate,
    }


def result_of(row: Row) -> Result:
    """Read the row of a result."""
    plain = {name: row[name] for name in _PLAIN_RESULT_COLUMNS}
    return Result(
        workload=_workload_of(row),
        interval=(row["low"], row["high"]),
        config=config_of(row["config"]),
        resources=_resources_of(row),
        occupancy=_occupancy_of(row),
        **plain,
    )


def config_text(config: Config) -> str:
    """Write a config as JSON in its own order; unlike `Config.key`, which sorts."""
    return json.dumps(dict(config.items_))


def config_of(text: str) -> Config:
    """Read what `config_text` wrote."""
    return Config.of(json.loads(text))


def _workload_columns(workload: Workload) -> Row:
    return {"workload": workload.key, "held_out": workload.held_out}


def _workload_of(row: Row) -> Workload:
    axes = (axis.rsplit("=", 1) for axis in row["workload"].split(",") if axis)
    return Workload(tuple((name, int(size)) for name, size in axes), row["held_out"])


def _fields_text(record: Resources | Occupancy | Correctness | None) -> str | None:
    return None if record is None else json.dumps(asdict(record))


def _resources_of(row: Row) -> Resources | None:
    text = row["resources"]
    return None if text is None else Resources(**json.loads(text))


def _occupancy_of(row: Row) -> Occupancy | None:
    text = row["occupancy"]
    return None if text is None else Occupancy(**json.loads(text))


def _correctness_of(row: Row) -> Correctness | None:
    if row["correctness"] is None:
        return None
    fields = json.loads(row["correctness"])
    errors = tuple((name, error) for name, error in fields["errors"])
    return Correctness(**{**fields, "fills": tuple(fields["fills"]), "errors": errors})
