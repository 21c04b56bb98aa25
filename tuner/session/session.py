"""The record of a run: append, resume, query."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from tuner.model.config import Config
from tuner.model.errors import SessionError
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
    Stage,
    Status,
    Trial,
    Variant,
)
from tuner.session import events
from tuner.session.events import Event
from tuner.session.records import (
    Baseline,
    Candidate,
    Manifest,
    Record,
    State,
    baseline_of,
    baseline_row,
    check_of,
    check_row,
    comparison_of,
    comparison_row,
    energy_of,
    energy_row,
    measurement_of,
    measurement_row,
    peer_of,
    peer_row,
    result_of,
    result_row,
    trial_of,
    trial_row,
)

if TYPE_CHECKING:
    from tuner.session.store import Store

_Event = TypeVar("_Event", bound=Event)

__all__ = ["Baseline", "Candidate", "Manifest", "Record", "Session", "State"]


class Session:
    """One run of `tune` in a folder: every record is on disk when the call that adds it returns.

    One process writes at a time; others may open it with `read_only` meanwhile and see it as it
    was at that moment. Close it when done. Everything that cannot be raises `SessionError`.
    """

    def __init__(self, directory: Path, store: Store) -> None:
        self.directory = directory
        self._store = store
        (row,) = store.rows("session")
        self.manifest = Manifest.from_json(row["manifest"])
        self.environment: Mapping[str, str] = {
            row["name"]: row["value"] for row in store.rows("environment")
        }
        self._state: State = row["state"]
        self._load()
        last = self._records[-1].elapsed_s if self._records else 0.0
        # A killed run never said how long it took: it took at least until its last trial.
        self._seconds: float = max(row["seconds"], last)
        self._origin = time.monotonic() - self._seconds

    @classmethod
    def create(
        cls, directory: Path | str, manifest: Manifest, environment: Mapping[str, str]
    ) -> Session:
        """Start a session in a folder that holds none; make the folder and its parents."""
        from tuner.session.store import Store

        row = {"manifest": manifest.to_json(), "state": "running", "seconds": 0.0}
        place = Path(directory)
        return cls(place, Store.create(place, row, environment))

    @classmethod
    def open(cls, directory: Path | str, *, read_only: bool = False) -> Session:
        """Open a session to resume it, or only to read it."""
        from tuner.session.store import Store

        place = Path(directory)
        store = Store.open(place, read_only=read_only)
        try:
            return cls(place, store)
        except BaseException:
            store.close()
            raise

    def _load(self) -> None:
        store = self._store
        measurements = store.measurements()
        self._candidates = {
            row["name"]: Candidate(
                row["name"], row["template_text"], row["space_text"], row["parent"]
            )
            for row in store.rows("candidates")
        }
        self._records: list[Record] = []
        # By JSON text, for as Python keys 1, 1.0 and True are one.
        self._trials: dict[tuple[str, str, str, Stage], Trial] = {}
        for row in store.rows("trials"):
            found = measurements.get(row["id"])
            trial = trial_of(row, measurement_of(found) if found else None)
            self._records.append(Record(trial, row["elapsed_s"]))
            self._trials[row["candidate"], row["workload"], row["config_key"], row["stage"]] = trial
        baselines = map(baseline_of, store.rows("baselines"))
        self._baselines = {baseline.workload: baseline for baseline in baselines}
        self._comparisons = [comparison_of(row) for row in store.rows("comparisons")]
        self._peers = [peer_of(row) for row in store.rows("peers")]
        self._energies = [energy_of(row) for row in store.rows("energies")]
        self._checks = [check_of(row) for row in store.rows("checks")]
        self._events = [events.from_row(row) for row in store.rows("events")]
        results = map(result_of, store.rows("results"))
        self._results = {result.workload: result for result in results}

    def add_candidate(
        self, name: str, template_text: str, space_text: str, parent: str | None = None
    ) -> Candidate:
        """Add a candidate; adding the same again changes nothing, another text is refused."""
        candidate = Candidate(name, template_text, space_text, parent)
        known = self._candidates.get(name)
        if known is None:
            if parent is not None:
                self._require_candidate(parent)
            self._store.append("candidates", asdict(candidate))
            self._candidates[name] = candidate
        elif known != candidate:
            raise SessionError(
                f"candidate {name!r} has another template, search space or parent here",
                path=self.directory,
                remedy="undo the change to resume, or start a new session: times of two "
                "templates must not mix",
            )
        return candidate

    def candidates(self) -> tuple[Candidate, ...]:
        """List the candidates in the order they were added."""
        return tuple(self._candidates.values())

    def record(self, trial: Trial) -> None:
        """Append a trial; a second one of a candidate, workload, config and stage is refused."""
        self._require_candidate(trial.candidate)
        key = trial.candidate, trial.workload.key, trial.config.key, trial.stage
        if key in self._trials:
            raise SessionError(
                f"{trial.config} on {trial.workload} of {trial.candidate!r} is recorded already",
                path=self.directory,
                remedy="ask `Session.trial` before measuring: records are never rewritten",
            )
        elapsed_s = time.monotonic() - self._origin
        measured = trial.measurement
        self._store.append_trial(
            {**trial_row(trial), "elapsed_s": elapsed_s},
            None if measured is None else measurement_row(measured),
        )
        self._records.append(Record(trial, elapsed_s))
        self._trials[key] = trial

    def trial(
        self, candidate: str, workload: Workload, config: Config, *, stage: Stage = "search"
    ) -> Trial | None:
        """Look up a recorded trial, None where there is none."""
        return self._trials.get((candidate, workload.key, config.key, stage))

    def trials(
        self,
        candidate: str | None = None,
        workload: Workload | None = None,
        *,
        stage: Stage | None = "search",
    ) -> list[Trial]:
        """List trials in the order of recording; None selects every candidate, workload, stage."""
        return [record.trial for record in self.records(candidate, workload, stage=stage)]

    def records(
        self,
        candidate: str | None = None,
        workload: Workload | None = None,
        *,
        stage: Stage | None = "search",
    ) -> list[Record]:
        """List trials as `trials` does, each with the session's seconds when it ended."""
        return [
            record
            for record in self._records
            if candidate in (None, record.trial.candidate)
            and workload in (None, record.trial.workload)
            and stage in (None, record.trial.stage)
        ]

    def status_counts(self, workload: Workload | None = None) -> dict[Status, int]:
        """Count the search's trials by status, in the order of `Status`, without zeros."""
        counts = Counter(trial.status for trial in self.trials(workload=workload))
        return {status: counts[status] for status in Status if counts[status]}

    def record_baseline(
        self,
        workload: Workload,
        measurement: Measurement,
        correctness: Correctness | None = None,
        resources: Resources | None = None,
        occupancy: Occupancy | None = None,
    ) -> None:
        """Append the baseline's measurement on a workload; a second one is refused."""
        if workload in self._baselines:
            raise SessionError(
                f"the baseline on {workload} is recorded already",
                path=self.directory,
                remedy="ask `Session.baselines` before measuring",
            )
        baseline = Baseline(workload, measurement, correctness, resources, occupancy)
        self._store.append("baselines", baseline_row(baseline))
        self._baselines[workload] = baseline

    def baselines(self) -> dict[Workload, Baseline]:
        """Return the baseline on every workload that was measured."""
        return dict(self._baselines)

    def record_comparison(self, comparison: Comparison) -> None:
        """Append a comparison of finalists with the baseline."""
        self._store.append("comparisons", comparison_row(comparison))
        self._comparisons.append(comparison)

    def comparisons(self) -> list[Comparison]:
        """List the comparisons in the order of recording."""
        return list(self._comparisons)

    def record_peer(self, trial: PeerTrial) -> None:
        """Append what became of a peer; the last record of a name and workload counts."""
        self._store.append("peers", peer_row(trial))
        self._peers.append(trial)

    def peers(self, workload: Workload | None = None) -> list[PeerTrial]:
        """List what became of each peer; None selects every workload."""
        last = {(one.workload, one.name): one for one in self._peers}
        return [one for one in last.values() if workload in (None, one.workload)]

    def record_energy(self, energy: Energy) -> None:
        """Append a window of energy; a program may have several on a workload."""
        self._store.append("energies", energy_row(energy))
        self._energies.append(energy)

    def energies(self, workload: Workload | None = None) -> list[Energy]:
        """List the windows of energy in the order of recording; None selects every workload."""
        return [one for one in self._energies if workload in (None, one.workload)]

    def record_check(self, check: Check) -> None:
        """Append a further check of a config."""
        self._store.append("checks", check_row(check))
        self._checks.append(check)

    def checks(self) -> list[Check]:
        """List the further checks in the order of recording."""
        return list(self._checks)

    def record_event(self, event: Event) -> None:
        """Append what happened."""
        self._store.append("events", events.to_row(event))
        self._events.append(event)

    def events(self, kind: type[_Event], number: int | None = None) -> list[_Event]:
        """List the events of a type in the order of recording; None selects every round.

        `Event` itself selects every type.
        """
        return [
            event
            for event in self._events
            if isinstance(event, kind) and number in (None, event.round)
        ]

    def record_result(self, result: Result) -> None:
        """Set what is reported for a workload, in place of an earlier result."""
        self._store.replace("results", result_row(result))
        self._results[result.workload] = result

    def results(self) -> list[Result]:
        """List the results, one a workload, in the order in which workloads first had one."""
        return list(self._results.values())

    def withdraw_result(self, workload: Workload) -> None:
        """Take back the result of a workload: its config failed a further check."""
        self._store.remove("results", workload.key)
        del self._results[workload]

    @property
    def seconds(self) -> float:
        """Wall time of all runs so far, as `add_time` was told; after a kill, a lower bound."""
        return self._seconds

    def add_time(self, seconds: float) -> None:
        """Add the wall time of a run, or of the part of it since the last call."""
        self._store.set(seconds=self._seconds + seconds)
        self._seconds += seconds

    @property
    def state(self) -> State:
        """What the last run said of itself: a killed one is still `running`."""
        return self._state

    def mark(self, state: State) -> None:
        """Set the state."""
        self._store.set(state=state)
        self._state = state

    def variant_path(self, workload: Workload) -> Path:
        """Name the file of the kernel tuned for a workload, there or not."""
        shape = workload.key.replace("=", "").replace(",", "-")
        return self.directory / "tuned" / f"{self.manifest.kernel}-{shape}.cu"

    def write_variant(self, workload: Workload, variant: Variant, source: str) -> Path:
        """Write the kernel tuned for a workload to `tuned/`, with what it is in its first lines."""
        path = self.variant_path(workload)
        unfinished = path.with_suffix(".new")
        try:
            path.parent.mkdir(exist_ok=True)
            unfinished.write_text(self._header(workload, variant) + source, encoding="utf-8")
            unfinished.replace(path)
        except OSError as error:
            raise SessionError(
                f"cannot write the tuned kernel: {error.strerror}",
                path=path,
                remedy=f"once the cause is gone, continue with `--resume {self.directory}`",
            ) from error
        return path

    def _header(self, workload: Workload, variant: Variant) -> str:
        made = self.manifest
        # The workload stands last: a value that ends in a backslash would join the next line.
        config_line = f"// config: {variant} (for {workload})"
        lines = [
            f"// {made.kernel}, tuned for {workload} by tune {made.tuner_version} "
            f"({made.config.device}, {made.created})",
            " ".join(config_line.split()),
        ]
        if made.config.operators:
            macros = " ".join(f"-D{name}={value}" for name, value in made.config.operators.items())
            lines.append(" ".join(f"// compile with: {macros} (as tuned)".split()))
        return "\n".join(lines) + "\n"

    def _require_candidate(self, name: str) -> None:
        if name not in self._candidates:
            raise SessionError(
                f"no candidate named {name!r}",
                path=self.directory,
                remedy="candidates: " + (", ".join(self._candidates) or "none yet"),
            )

    def close(self) -> None:
        """Close the database and let others write; closing twice is allowed."""
        self._store.close()

    @property
    def unused(self) -> bool:
        """Whether nothing was measured or tried yet."""
        return not (self._records or self._baselines)

    def discard(self) -> None:
        """Close the session and delete its files; for one that nothing was recorded in."""
        self._store.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
