"""The record of a run: append, resume, query."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from tuner.model.config import Config
from tuner.model.errors import SessionError
from tuner.model.kernel import Workload
from tuner.model.languages import Language, language_of
from tuner.model.trial import (
    TUNE,
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
    fastest,
)
from tuner.process.files import atomic_write
from tuner.session.events import BitsKept, Event
from tuner.session.records import (
    Baseline,
    CandidateRecord,
    Manifest,
    Record,
    SessionRecord,
    State,
    Withdrawal,
)

if TYPE_CHECKING:
    from tuner.session.store import SessionStore

# file systems take names of 255 bytes, and the kernel's own name comes before
_LONGEST_SHAPE = 150
_Event = TypeVar("_Event", bound=Event)
_Kind = TypeVar("_Kind", bound=SessionRecord)

__all__ = ["Baseline", "CandidateRecord", "Manifest", "Record", "Session", "State"]


class Session:
    """One run of `tune` in a folder: every record is on disk when the call that adds it returns.

    One process writes at a time; others may open it with `read_only` meanwhile and see it as it
    was at that moment. Close it when done. Everything that cannot be raises `SessionError`.
    """

    def __init__(self, directory: Path, store: SessionStore) -> None:
        self.directory = directory
        self._store = store
        header = store.header()
        self.manifest = header.manifest
        self.environment = header.environment
        self._state = header.state
        self._candidates: dict[str, CandidateRecord] = {}
        self._records: list[Record] = []
        # By JSON text, for as Python keys 1, 1.0 and True are one.
        self._trials: dict[tuple[str, str, str, Stage], Trial] = {}
        self._baselines: dict[Workload, Baseline] = {}
        self._results: dict[Workload, Result] = {}
        self._others: list[SessionRecord] = []
        for record in store.records():
            if problem := self._problem(record):
                raise store.damage_error(problem)
            self._add(record)
        last = self._records[-1].elapsed_s if self._records else 0.0
        # A killed run never said how long it took: it took at least until its last trial.
        self._seconds = max(header.seconds, last)
        self._origin = time.monotonic() - self._seconds

    @classmethod
    def create(
        cls, directory: Path | str, manifest: Manifest, environment: Mapping[str, str]
    ) -> Session:
        """Start a session in a folder that holds none; make it and its parents."""
        from tuner.session.store import SessionStore

        store = SessionStore.create(Path(directory), manifest, environment)
        return cls(Path(directory), store)

    @classmethod
    def open(cls, directory: Path | str, *, read_only: bool = False) -> Session:
        """Open a session to resume it, or only to read it."""
        from tuner.session.store import SessionStore

        store = SessionStore.open(Path(directory), read_only=read_only)
        try:
            return cls(Path(directory), store)
        except BaseException:
            store.close()
            raise

    def _problem(self, record: SessionRecord) -> str:
        """Say what a record that was read contradicts of those before it; "" for nothing."""
        match record:
            case Record(trial) if _trial_key(trial) in self._trials:
                return f"a trial of {trial.candidate!r} is there twice"
            case Record(Trial(candidate)) | Result(candidate=candidate):
                is_there = candidate in self._candidates
                return "" if is_there else f"there is no candidate {candidate!r}"
            case CandidateRecord(name, parent=parent):
                if name in self._candidates:
                    return f"candidate {name!r} is there twice"
                is_there = parent is None or parent in self._candidates
                return "" if is_there else f"there is no candidate {parent!r}"
            case Baseline(workload) if workload in self._baselines:
                return f"the baseline on {workload} is there twice"
            case Withdrawal(workload) if workload not in self._results:
                return f"there is no result on {workload} to take back"
        return ""

    def append(self, record: SessionRecord) -> None:
        """Append a record that needs no check; of results and peers of a workload the last counts.

        Trials, baselines and candidates have methods of their own.
        """
        self._store.append(record)
        self._add(record)

    def _add(self, record: SessionRecord) -> None:
        match record:
            case Record(trial):
                self._records.append(record)
                self._trials[_trial_key(trial)] = trial
            case CandidateRecord():
                self._candidates[record.name] = record
            case Baseline():
                self._baselines[record.workload] = record
            case Result():
                self._results[record.workload] = record
            case Withdrawal():
                del self._results[record.workload]
            case BitsKept():
                self._others.append(record)
                self._records = [
                    r._replace(trial=_judge_by_class(r.trial, record)) for r in self._records
                ]
                self._trials = {_trial_key(r.trial): r.trial for r in self._records}
            case _:
                self._others.append(record)

    def _of(self, kind: type[_Kind]) -> list[_Kind]:
        return [record for record in self._others if isinstance(record, kind)]

    def add_candidate(
        self, name: str, template_text: str, space_text: str, parent: str | None = None
    ) -> CandidateRecord:
        """Add a candidate; adding the same again changes nothing, another text is refused."""
        candidate = CandidateRecord(name, template_text, space_text, parent)
        recorded = self._candidates.get(name)
        if recorded is None:
            if parent is not None:
                self._require_candidate(parent)
            self.append(candidate)
        elif recorded != candidate:
            raise SessionError(
                f"candidate {name!r} has another template, search space or parent here",
                path=self.directory,
                remedy="undo the change to resume, or start a new session: times of two "
                "templates must not mix",
            )
        return candidate

    def candidates(self) -> tuple[CandidateRecord, ...]:
        return tuple(self._candidates.values())

    def record(self, trial: Trial) -> None:
        """Append a trial; a second one of a candidate, workload, config and stage is refused."""
        self._require_candidate(trial.candidate)
        if _trial_key(trial) in self._trials:
            raise SessionError(
                f"{trial.config} on {trial.workload} of {trial.candidate!r} is recorded already",
                path=self.directory,
                remedy="ask `Session.trial` before measuring: records are never rewritten",
            )
        self.append(Record(trial, time.monotonic() - self._origin))

    def trial(
        self, candidate: str, workload: Workload, config: Config, *, stage: Stage = "search"
    ) -> Trial | None:
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

    def fastest(
        self, candidate: str | None = None, workload: Workload | None = None, *, full: bool = False
    ) -> list[Trial]:
        """List the search's timed trials, the fastest first; `full`: not those stopped early."""
        return fastest(self.trials(candidate, workload), full=full)

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
        self.append(Baseline(workload, measurement, correctness, resources, occupancy))

    def baselines(self) -> dict[Workload, Baseline]:
        return dict(self._baselines)

    def comparisons(self) -> list[Comparison]:
        return self._of(Comparison)

    def peers(self, workload: Workload | None = None) -> list[PeerTrial]:
        last = {(trial.workload, trial.name): trial for trial in self._of(PeerTrial)}
        return [trial for trial in last.values() if workload in (None, trial.workload)]

    def energies(self, workload: Workload | None = None) -> list[Energy]:
        return [energy for energy in self._of(Energy) if workload in (None, energy.workload)]

    def checks(self) -> list[Check]:
        return self._of(Check)

    def record_event(self, event: Event) -> None:
        self.append(event)

    def events(self, kind: type[_Event], number: int | None = None) -> list[_Event]:
        """List the events of a type, `Event` for all; None selects every round."""
        return [event for event in self._of(kind) if number in (None, event.round)]

    @property
    def kept_rows(self) -> Mapping[str, str]:
        """The bits of invariant rows that were chosen, by `Workload.key`; empty where none were."""
        return {key: bits for event in self.events(BitsKept) for key, bits in event.bits.items()}

    def results(self) -> list[Result]:
        """List the results, one a workload, in the order in which workloads first had one."""
        return list(self._results.values())

    @property
    def on_cpu(self) -> bool:
        """Whether its times are a CPU's, which say nothing of a GPU's."""
        return self.environment.get("on_cpu") == "true"

    @property
    def verified_by(self) -> str:
        """Who compared the results of all winners with the reference; "" where nobody did.

        That is `TUNE`, or the command of an evaluator, which is then taken at its word.
        """
        evaluator = self.environment.get("evaluator")
        if evaluator is None:
            return TUNE
        finals = self.trials(stage="finals")
        verified = {(trial.workload, trial.variant) for trial in finals if trial.correctness}
        won = {(result.workload, result.variant) for result in self.results()}
        return evaluator if won and won <= verified else ""

    def withdraw_result(self, workload: Workload) -> None:
        self.append(Withdrawal(workload))

    @property
    def seconds(self) -> float:
        """Wall time of all runs so far, as `add_time` was told; after a kill, a lower bound."""
        return self._seconds

    def add_time(self, seconds: float) -> None:
        """Add the wall time of a run, or of the part of it since the last call."""
        self._store.update(seconds=self._seconds + seconds)
        self._seconds += seconds

    @property
    def state(self) -> State:
        """What the last run said of itself: a killed one is still `running`."""
        return self._state

    def mark(self, state: State) -> None:
        self._store.update(state=state)
        self._state = state

    def variant_path(self, workload: Workload) -> Path:
        """Name the file of the kernel tuned for a workload, there or not."""
        shape = workload.key.replace("=", "").replace(",", "-")
        if len(shape) > _LONGEST_SHAPE:
            digest = sha256(shape.encode()).hexdigest()[:12]
            shape = f"{shape[:_LONGEST_SHAPE]}-{digest}"
        return self.directory / "tuned" / f"{self.manifest.kernel}-{shape}{self.language.suffix}"

    @property
    def language(self) -> Language:
        return language_of(self.manifest.config.template)

    def write_variant(self, workload: Workload, variant: Variant, source: str) -> Path:
        """Write the kernel tuned for a workload to `tuned/`, with what it is in its first lines."""
        path = self.variant_path(workload)
        manifest, comment = self.manifest, self.language.comment
        kept = ", with the bits of the default config" if manifest.config.keep_bits else ""
        kept += ", with rows of the same bits at every size" if self.kept_rows else ""
        # The workload stands last: a value that ends in a backslash would join the next line.
        lines = [
            f"{comment} {manifest.kernel}, tuned for {workload} by tune {manifest.tuner_version} "
            f"({manifest.config.device}, {manifest.created}){kept}",
            " ".join(f"{comment} config: {variant} (for {workload})".split()),
        ]
        if manifest.config.operators and self.language.macros:
            macros = " ".join(
                f"-D{name}={value}" for name, value in manifest.config.operators.items()
            )
            lines.append(" ".join(f"// compile with: {macros} (as tuned)".split()))
        try:
            path.parent.mkdir(exist_ok=True)
            atomic_write(path, "\n".join([*lines, source]))
        except OSError as error:
            raise SessionError(
                f"cannot write the tuned kernel: {error.strerror}",
                path=path,
                remedy=f"once the cause is gone, continue with `--resume {self.directory}`",
            ) from error
        return path

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

    def __exit__(self, *failure: object) -> None:
        self.close()


def _trial_key(trial: Trial) -> tuple[str, str, str, Stage]:
    return trial.candidate, trial.workload.key, trial.config.key, trial.stage


def _judge_by_class(trial: Trial, kept: BitsKept) -> Trial:
    """See a trial as it counts since a class of bits was chosen; its record stays what it was."""
    other = trial.bits != kept.bits.get(trial.workload.key, trial.bits)
    if trial.status is not Status.CORRECT or not other:
        return trial
    reason = "gives other bits than the class that was chosen"
    return replace(trial, status=Status.OTHER_BITS, reason=reason)
