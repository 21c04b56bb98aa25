"""What of a session is worth keeping: the fastest configs of every workload, and what fails."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Set

from tuner.errors import SessionError
from tuner.kernel import Workload
from tuner.knowledge.records import PastConfig, PastSearch, PastWorkload
from tuner.session import Candidate, Session
from tuner.space import Config
from tuner.trial import Status, Trial, Variant

# A new search takes up fewer; the others count where a space has changed.
BEST = 10
FAILED = 5
# They run, and then it goes wrong: nobody can tell without trying.
_FATAL = frozenset({Status.WRONG, Status.LAUNCH, Status.TIMEOUT})


def searches_of(session: Session) -> list[PastSearch]:
    """Sum up each candidate of a session that has a correct trial.

    Raises `SessionError` where the times are a CPU's, or nobody knows whose.
    """
    known = session.environment
    if known.get("on_cpu") == "true":
        raise SessionError(
            "its times are a CPU's, which say nothing of a GPU's", path=session.directory
        )
    if "device" not in known or "architecture" not in known:
        raise SessionError("it does not say what its times are of", path=session.directory)
    made = (_search(session, candidate) for candidate in session.candidates())
    return [one for one in made if any(workload.configs for workload in one.workloads)]


def text_sha(text: str) -> str:
    """Tell one template from another."""
    return hashlib.sha256(text.encode()).hexdigest()


def _search(session: Session, candidate: Candidate) -> PastSearch:
    manifest, wrong = session.manifest, _wrong(session)
    by_workload: dict[Workload, list[Trial]] = {}
    for trial in session.trials(candidate.name):
        by_workload.setdefault(trial.workload, []).append(trial)
    names = {name for trials in by_workload.values() for name in trials[0].config}
    baselines = session.baselines()
    return PastSearch(
        kernel=manifest.kernel,
        operators=dict(manifest.operators),
        device=session.environment["device"],
        architecture=session.environment["architecture"],
        candidate=candidate.name,
        template_sha=text_sha(candidate.template_text),
        parameters=tuple(sorted(names)),
        tuner_version=manifest.tuner_version,
        created=manifest.created,
        state=session.state,
        workloads=tuple(
            PastWorkload(
                workload,
                baselines[workload].measurement.median_us if workload in baselines else None,
                tuple(_configs(trials, wrong)),
            )
            for workload, trials in by_workload.items()
        ),
    )


def _configs(trials: list[Trial], wrong: Set[Variant]) -> Iterator[PastConfig]:
    timed = [
        PastConfig(trial.config, Status.CORRECT, trial.time_us)
        for trial in trials
        if _counts(trial) and trial.variant not in wrong
    ]
    yield from sorted(timed, key=lambda one: one.time_us or 0.0)[:BEST]
    if not timed:
        return
    failed: dict[Config, Status] = {
        trial.config: Status.WRONG if trial.variant in wrong else trial.status
        for trial in trials
        if trial.variant in wrong or trial.status in _FATAL
    }
    for config, status in list(failed.items())[:FAILED]:
        yield PastConfig(config, status)


def _counts(trial: Trial) -> bool:
    # The few samples of one that was stopped early rank it, and say no more.
    return (
        trial.time_us is not None
        and trial.measurement is not None
        and not trial.measurement.stopped_early
    )


def _wrong(session: Session) -> Set[Variant]:
    """Find what passed the search and failed the closer looks that come after it."""
    failed = [t.variant for t in session.trials(stage="finals") if t.status is not Status.CORRECT]
    return {*failed, *(check.variant for check in session.checks() if check.passed is False)}
