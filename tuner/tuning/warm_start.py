"""A run's dealings with the store: asked once at the start, told at the end, never in the way."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass

from tuner.device.base import DeviceInfo
from tuner.model.config import Config, Parameter, SearchSpace
from tuner.model.errors import ExpressionError, InputError, SessionError
from tuner.model.expressions import Value
from tuner.model.kernel import Workload
from tuner.model.trial import Status, Trial, Variant
from tuner.session.events import WarmSeed, WarmStarted
from tuner.session.knowledge import (
    PastConfig,
    PastSearch,
    PastWorkload,
    Store,
    StoreError,
    find_place,
)
from tuner.session.session import Candidate, Session
from tuner.space.plan import Plan, distance
from tuner.tuning.evaluator import Evaluator


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be searched, and on what; `architecture` is the compile target, `sm_90a`."""

    space: SearchSpace
    operators: Mapping[str, str]
    device: str
    architecture: str
    template_sha: str


@dataclass(frozen=True, slots=True)
class Seed:
    """A config to try, and the device and the workload that it was good on."""

    config: Config
    device: str
    workload: str


@dataclass(frozen=True, slots=True, order=True)
class _Kinship:
    """How near something known is to what is asked: the smaller, the nearer."""

    other_device: bool
    other_architecture: bool
    other_operators: bool
    other_parameters: bool
    distance: float
    other_template: bool
    device: str
    workload: str

    @property
    def same(self) -> bool:
        """Whether it is the very thing that is asked for."""
        hardware = self.other_device or self.other_architecture
        kernel = self.other_operators or self.other_parameters or self.other_template
        return not (hardware or kernel or self.distance)


@dataclass(frozen=True, slots=True)
class _Known:
    """The last that is known of a config; `relative` is its time by the baseline's, 0 if failed."""

    status: Status
    relative: float


_Groups = dict[_Kinship, dict[Config, _Known]]


def seeds(
    known: Sequence[PastSearch],
    question: Question,
    workload: Workload,
    *,
    limit: int,
    valid: Callable[[Config], bool],
) -> tuple[Seed, ...]:
    """Choose at most `limit` configs for a workload, the most promising first.

    `known` is of one kernel, oldest first. A config that has a parameter or a value which the
    space lacks is passed over; a parameter that is new takes the default's value.
    """
    groups = _groups(known, question, workload)
    failed = {
        config
        for kinship, found in groups.items()
        for config, one in found.items()
        if kinship.same and one.status is not Status.CORRECT
    }
    chosen: dict[Config, Seed] = {}
    for kinship, config in _taking_turns(groups):
        if len(chosen) >= limit:
            break
        if config not in chosen and config not in failed and valid(config):
            chosen[config] = Seed(config, kinship.device, kinship.workload)
    return tuple(chosen.values())


def fitted(config: Mapping[str, Value], space: SearchSpace) -> Config | None:
    """Write a config of an earlier space as one of this; None where that can't be."""
    values = {**(space.default or {}), **config}
    if set(values) != set(space.names):
        return None
    found = {p.name: _own(values[p.name], p) for p in space.parameters}
    chosen = {name: value for name, value in found.items() if value is not None}
    return Config.of(chosen) if len(chosen) == len(found) else None


def _own(given: Value, parameter: Parameter) -> Value | None:
    for value in parameter.values:
        # To Python `true` and 1 are equal.
        if value == given and isinstance(value, bool) == isinstance(given, bool):
            return value
    return None


def _groups(known: Sequence[PastSearch], question: Question, workload: Workload) -> _Groups:
    """Put together what is known of the same shape and device; the newest run has the last word."""
    groups: _Groups = {}
    axes = {name for name, _ in workload.axes}
    for search in known:
        for past in search.workloads:
            if {name for name, _ in past.workload.axes} == axes:
                group = groups.setdefault(_kinship(search, past, question, workload), {})
                group.update(_asked_configs(past, question.space))
    return groups


def _asked_configs(past: PastWorkload, space: SearchSpace) -> Iterator[tuple[Config, _Known]]:
    timed = [one.time_us for one in past.configs if one.time_us is not None]
    # The baseline is the same in all runs; the clocks of two need not be.
    unit_us = past.baseline_us or min(timed, default=1.0)
    for one in past.configs:
        config = fitted(one.config, space)
        if config is not None:
            yield config, _Known(one.status, (one.time_us or 0.0) / unit_us)


def _kinship(
    search: PastSearch, past: PastWorkload, question: Question, workload: Workload
) -> _Kinship:
    return _Kinship(
        other_device=search.device != question.device,
        other_architecture=search.architecture != question.architecture,
        other_operators=dict(search.operators) != dict(question.operators),
        other_parameters=set(search.parameters) != set(question.space.names),
        distance=distance(workload, past.workload),
        other_template=search.template_sha != question.template_sha,
        device=search.device,
        workload=past.workload.key,
    )


def _taking_turns(groups: _Groups) -> Iterator[tuple[_Kinship, Config]]:
    """Yield the nearest group's best, then its second and the next group's best, and so on."""
    ranked = [(kinship, _fastest(groups[kinship])) for kinship in sorted(groups)]
    longest = max((len(configs) for _, configs in ranked), default=0)
    for diagonal in range(len(ranked) + longest):
        for number, (kinship, configs) in enumerate(ranked[: diagonal + 1]):
            if diagonal - number < len(configs):
                yield kinship, configs[diagonal - number]


def _fastest(found: Mapping[Config, _Known]) -> list[Config]:
    timed = [(one.relative, config) for config, one in found.items() if one.relative]
    return [config for _, config in sorted(timed, key=lambda pair: pair[0])]


# A new search takes up fewer; the others count where a space has changed.
BEST = 10
FAILED = 5
# They run, and then it goes wrong: nobody can tell without trying.
_FATAL = frozenset({Status.INCORRECT, Status.LAUNCH, Status.TIMEOUT})


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
        operators=dict(manifest.config.operators),
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
                tuple(_remembered_configs(trials, wrong)),
            )
            for workload, trials in by_workload.items()
        ),
    )


def _remembered_configs(trials: list[Trial], wrong: Set[Variant]) -> Iterator[PastConfig]:
    timed = [
        PastConfig(trial.config, Status.CORRECT, trial.time_us)
        for trial in trials
        if _counts(trial) and trial.variant not in wrong
    ]
    yield from sorted(timed, key=lambda one: one.time_us or 0.0)[:BEST]
    if not timed:
        return
    failed: dict[Config, Status] = {
        trial.config: Status.INCORRECT if trial.variant in wrong else trial.status
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


# The kind of note, in round 0, that keeps what a search started from.

# Trials that old knowledge may cost a workload (benchmarks/warm_start.py).
MOST_SEEDS = 5
# Nor may it cost more than this share of them.
MOST_SHARE = 0.1


class Knowledge:
    """What past runs know, for one run on one device.

    A store that fails costs a warning, told to `warn` once; the run goes on without it.
    """

    def __init__(self, store: Store, info: DeviceInfo, warn: Callable[[str], None]) -> None:
        self._store, self._info, self._warn = store, info, warn
        self._failed = False

    def check(self) -> None:
        """Try the store; raise `InputError` where it was named and cannot be right."""
        try:
            self._store.check()
        except InputError as error:
            if self._store.place.explicit and not isinstance(error, StoreError):
                raise
            self._fail(error)

    def seeds(
        self, plan: Plan, evaluator: Evaluator, budgets: Mapping[Workload, int]
    ) -> Mapping[Workload, tuple[Seed, ...]]:
        """Choose what a search of a plan's candidate may try first on every workload."""
        known: list[PastSearch] = []
        with self._spared():
            known = [] if self._failed else self._store.searches(plan.spec.name)
        question = Question(
            space=plan.space,
            operators=plan.config.operators,
            device=self._info.name,
            architecture=self._info.architecture,
            template_sha=text_sha(plan.template.text),
        )
        return {
            workload: seeds(
                known,
                question,
                workload,
                limit=min(MOST_SEEDS, int(budget * MOST_SHARE)),
                valid=_validity(plan, evaluator, workload),
            )
            for workload, budget in budgets.items()
        }

    def keep(self, session: Session) -> int:
        """Add what a session found; return how many searches were new to the store."""
        with self._spared():
            found = searches_of(session)
            if found and not self._failed:
                return self._store.add(found)
        return 0

    @contextmanager
    def _spared(self) -> Iterator[None]:
        try:
            yield
        except InputError as error:
            self._fail(error)

    def _fail(self, error: InputError) -> None:
        self._failed = True
        remedy = f" ({error.remedy})" if error.remedy else ""
        self._warn(f"the store of past runs is not used: {error.message}{remedy}")


def open_knowledge(
    option: str | None,
    environment: Mapping[str, str],
    info: DeviceInfo,
    warn: Callable[[str], None],
) -> Knowledge | None:
    """Open the store that `--store` or the environment names; None where a run has none.

    A recording has one only where the option names it: what it answers must not depend on earlier
    runs. A CPU has none. Raises `InputError` where the option cannot be right.
    """
    if info.on_cpu:
        if option is not None:
            warn("--store is not used: times of a CPU say nothing of a GPU's")
        return None
    if info.recorded and option is None:
        return None
    place = find_place(option, environment)
    if place is None:
        return None
    knowledge = Knowledge(Store(place), info, warn)
    knowledge.check()
    return knowledge


def warm_seeds(
    knowledge: Knowledge | None,
    plan: Plan,
    session: Session,
    evaluator: Evaluator,
    budgets: Mapping[Workload, int],
) -> Mapping[Workload, tuple[Config, ...]]:
    """Say what the search of a plan's candidate tries first, beside the space's default.

    A session asks once for a candidate: what it was told is in its notes, and a resumed run starts
    the same, whatever the store says by then.
    """
    if (noted := _noted(session, plan.candidate)) is not None:
        return {w: tuple(Config.of(seed.config) for seed in noted.get(w.key, ())) for w in budgets}
    if knowledge is None or session.trials(plan.candidate):
        return {}
    found = knowledge.seeds(plan, evaluator, budgets)
    if any(found.values()):
        told = {w.key: tuple(map(_told, chosen)) for w, chosen in found.items()}
        session.record_event(WarmStarted(0, plan.candidate, told))
    return {w: tuple(seed.config for seed in chosen) for w, chosen in found.items()}


def _validity(plan: Plan, evaluator: Evaluator, workload: Workload) -> Callable[[Config], bool]:
    names = evaluator.names(workload)

    def valid(config: Config) -> bool:
        try:
            return plan.space.violated(config, names) is None
        except ExpressionError:
            return False

    return valid


def _noted(session: Session, candidate: str) -> Mapping[str, tuple[WarmSeed, ...]] | None:
    noted = [one for one in session.events(WarmStarted) if one.candidate == candidate]
    return noted[-1].seeds if noted else None


def _told(seed: Seed) -> WarmSeed:
    return WarmSeed(dict(seed.config), seed.device, seed.workload)
