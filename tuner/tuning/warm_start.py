"""A run's dealings with the store: asked once at the start, told at the end, never in the way."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tuner.device.base import DeviceInfo
from tuner.model.config import Config, SearchSpace
from tuner.model.errors import ExpressionError, InputError, SessionError
from tuner.model.expressions import Value
from tuner.model.kernel import Workload
from tuner.model.trial import Status, fastest
from tuner.session.events import WarmSeed, WarmStarted
from tuner.session.session import Session
from tuner.space.plan import Plan, distance
from tuner.tuning.evaluator import Evaluator
from tuner.tuning.verification import BITS

if TYPE_CHECKING:
    # Where it is used: SQLAlchemy takes a quarter of a second, and many runs have no store.
    from tuner.session.knowledge import KnowledgeStore, PastConfig, PastSearch, PastWorkload

# Trials that old knowledge may cost a workload (benchmarks/warm_start.py).
MOST_SEEDS = 5
# Nor may it cost more than this share of them.
MOST_SHARE = 0.1
# What is kept of each workload: a new search takes up fewer; the others count where a space has
# changed.
BEST = 10
FAILED = 5
# They run, and then it goes wrong: nobody can tell without trying.
_FATAL = frozenset({Status.INCORRECT, Status.LAUNCH, Status.TIMEOUT})


@dataclass(frozen=True, slots=True)
class WarmStartQuery:
    """What is to be searched, and on what; `architecture` is the compile target, `sm_90a`."""

    space: SearchSpace
    operators: Mapping[str, str]
    device: str
    architecture: str
    template_sha: str


@dataclass(frozen=True, slots=True, order=True)
class _Source:
    """Where configs are known from, ordered by how far that is from what is asked."""

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
        hardware = self.other_device or self.other_architecture
        kernel = self.other_operators or self.other_parameters or self.other_template
        return not (hardware or kernel or self.distance)


# The last that is known of each config: its time by the baseline's, None where it failed.
_Known = dict[Config, float | None]


def seeds(
    searches: Sequence[PastSearch],
    query: WarmStartQuery,
    workload: Workload,
    *,
    limit: int,
    valid: Callable[[Config], bool],
) -> tuple[WarmSeed, ...]:
    """Choose at most `limit` configs for a workload, the most promising first.

    `known` is of one kernel, oldest first: the newest run has the last word. A config that has a
    parameter or a value which the space lacks is passed over; a parameter that is new takes the
    default's value.
    """
    sources: dict[_Source, _Known] = {}
    for search in searches:
        for past in search.workloads:
            if past.workload.values.keys() == workload.values.keys():
                source = _Source(
                    other_device=search.device != query.device,
                    other_architecture=search.architecture != query.architecture,
                    other_operators=dict(search.operators) != dict(query.operators),
                    other_parameters=set(search.parameters) != set(query.space.names),
                    distance=distance(workload, past.workload),
                    other_template=search.template_sha != query.template_sha,
                    device=search.device,
                    workload=past.workload.key,
                )
                sources.setdefault(source, {}).update(_relative_times(past, query.space))
    same = [found for source, found in sources.items() if source.same]
    failed = {config for found in same for config, time in found.items() if time is None}
    chosen: dict[Config, WarmSeed] = {}
    for source, config in _taking_turns(sources):
        if len(chosen) >= limit:
            break
        if config not in chosen and config not in failed and valid(config):
            chosen[config] = WarmSeed(dict(config), source.device, source.workload)
    return tuple(chosen.values())


def fit_config(config: Mapping[str, Value], space: SearchSpace) -> Config | None:
    """Write a config of an earlier space as one of this; None where that can't be."""
    given = {**(space.default or {}), **config}
    if set(given) != set(space.names):
        return None
    found = {
        parameter.name: value
        for parameter in space.parameters
        for value in parameter.values
        # To Python `true` and 1 are equal.
        if value == given[parameter.name]
        and isinstance(value, bool) == isinstance(given[parameter.name], bool)
    }
    return Config.of(found) if len(found) == len(space.parameters) else None


def _relative_times(past: PastWorkload, space: SearchSpace) -> _Known:
    timed = [past_config.time_us for past_config in past.configs if past_config.time_us is not None]
    # The baseline is the same in all runs; the clocks of two need not be.
    unit_us = past.baseline_us or min(timed, default=1.0)
    known = (
        (fit_config(past_config.config, space), past_config.time_us) for past_config in past.configs
    )
    return {
        config: None if time_us is None else time_us / unit_us
        for config, time_us in known
        if config is not None
    }


def _taking_turns(sources: Mapping[_Source, _Known]) -> Iterator[tuple[_Source, Config]]:
    """Yield the nearest source's best, then its second and the next source's best, and so on."""
    ranked = []
    for source in sorted(sources):
        timed = [(time, config) for config, time in sources[source].items() if time]
        timed.sort(key=lambda pair: pair[0])
        ranked.append((source, [config for _, config in timed]))
    longest = max((len(configs) for _, configs in ranked), default=0)
    for diagonal in range(len(ranked) + longest):
        for number, (source, configs) in enumerate(ranked[: diagonal + 1]):
            if diagonal - number < len(configs):
                yield source, configs[diagonal - number]


def searches_of(session: Session) -> list[PastSearch]:
    """Sum up candidates with a correct trial; raise `SessionError` for times of no known GPU."""
    known, path = session.environment, session.directory
    if known.get("on_cpu") == "true":
        raise SessionError("its times are a CPU's, which say nothing of a GPU's", path=path)
    if "device" not in known or "architecture" not in known:
        raise SessionError("it does not say what its times are of", path=path)
    from tuner.session.knowledge import PastSearch, PastWorkload

    manifest, searches = session.manifest, []
    baselines = {w: baseline.measurement.median_us for w, baseline in session.baselines().items()}
    for candidate in session.candidates():
        trials = session.trials(candidate.name)
        search = PastSearch(
            kernel=manifest.kernel,
            operators=dict(manifest.config.operators),
            device=known["device"],
            architecture=known["architecture"],
            candidate=candidate.name,
            template_sha=_text_sha(candidate.template_text),
            parameters=tuple(sorted({name for trial in trials for name in trial.config})),
            tuner_version=manifest.tuner_version,
            created=manifest.created,
            state=session.state,
            workloads=tuple(
                PastWorkload(w, baselines.get(w), _remembered_configs(session, candidate.name, w))
                for w in dict.fromkeys(trial.workload for trial in trials)
            ),
        )
        if any(workload.configs for workload in search.workloads):
            searches.append(search)
    return searches


def _remembered_configs(
    session: Session, candidate: str, workload: Workload
) -> tuple[PastConfig, ...]:
    from tuner.session.knowledge import PastConfig

    trials = session.trials(candidate, workload)
    finals, checks = session.trials(stage="finals"), session.checks()
    # What passed the search and failed the closer looks that come after it. Other bits are a fault
    # only for who asks to keep them, and what finds no room on another workload is right on this.
    wrong = {trial.variant for trial in finals if trial.status in _FATAL}
    wrong |= {check.variant for check in checks if check.passed is False and check.kind != BITS}
    timed = fastest((trial for trial in trials if trial.variant not in wrong), full=True)
    if not timed:
        return ()
    failed = {
        trial.config: Status.INCORRECT if trial.variant in wrong else trial.status
        for trial in trials
        if trial.variant in wrong or trial.status in _FATAL
    }
    best = [PastConfig(trial.config, Status.CORRECT, trial.time_us) for trial in timed[:BEST]]
    return (*best, *[PastConfig(*one) for one in list(failed.items())[:FAILED]])


def _text_sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class Knowledge:
    """What past runs know, for one run; `warn` is told of a store that fails, and at last of what
    it was not given."""

    def __init__(
        self, store: KnowledgeStore, info: DeviceInfo, warn: Callable[[str], None]
    ) -> None:
        self._store, self._info, self._warn = store, info, warn
        self._failed = False

    def check(self) -> None:
        """Try the store; raise `InputError` where it was named and cannot be right.

        One that nobody named may be for reading only.
        """
        from tuner.session.database import ReadOnlyError, StoreError

        is_named = self._store.location.explicit
        try:
            self._store.check()
            if is_named:
                self._store.check_writing()
        except InputError as error:
            is_passing = isinstance(error, StoreError) and not isinstance(error, ReadOnlyError)
            if is_named and not is_passing:
                raise
            self._fail(error)

    def seeds(
        self, plan: Plan, evaluator: Evaluator, budgets: Mapping[Workload, int]
    ) -> Mapping[Workload, tuple[WarmSeed, ...]]:
        """Choose what a search of a plan's candidate may try first on every workload."""
        searches: list[PastSearch] = []
        if not self._failed:
            try:
                searches = self._store.searches(plan.spec.name)
            except InputError as error:
                self._fail(error)
        query = WarmStartQuery(
            space=plan.space,
            operators=plan.config.operators,
            device=self._info.name,
            architecture=self._info.architecture,
            template_sha=_text_sha(plan.template.text),
        )

        def valid(names: Mapping[str, Value], config: Config) -> bool:
            try:
                return plan.space.violated(config, names) is None
            except ExpressionError:
                return False

        chosen = {}
        for workload, budget in budgets.items():
            limit = min(MOST_SEEDS, int(budget * MOST_SHARE))
            may_run = partial(valid, evaluator.names(workload))
            chosen[workload] = seeds(searches, query, workload, limit=limit, valid=may_run)
        return chosen

    def keep(self, session: Session) -> int:
        """Add what a session found; return how many searches were new to the store.

        A store that failed before is tried again: what the run found has taken hours.
        """
        try:
            searches = searches_of(session)
            return self._store.add(searches) if searches else 0
        except InputError as error:
            self._warn(
                f"what this run found is not in the store of past runs: {_words(error)}; later "
                f"`tune knowledge add {shlex.quote(str(session.directory))}` adds it"
            )
        return 0

    def _fail(self, error: InputError) -> None:
        self._failed = True
        self._warn(f"the store of past runs is not used: {_words(error)}")


def _words(error: InputError) -> str:
    return f"{error.message} ({error.remedy})" if error.remedy else error.message


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
    if info.on_cpu and option is not None:
        warn("--store is not used: times of a CPU say nothing of a GPU's")
    if info.on_cpu or (info.recorded and option is None):
        return None
    from tuner.session.database import find_store
    from tuner.session.knowledge import KnowledgeStore

    location = find_store(option, environment)
    if location is None:
        return None
    store = KnowledgeStore(location, instead="use --store none")
    knowledge = Knowledge(store, info, warn)
    knowledge.check()
    return knowledge


def warm_seeds(
    knowledge: Knowledge | None,
    plan: Plan,
    session: Session,
    evaluator: Evaluator,
    budgets: Mapping[Workload, int],
) -> Mapping[Workload, tuple[Config, ...]]:
    """Say what a search tries first; a session asks once and notes it, for resumed runs."""
    noted = [
        event.seeds for event in session.events(WarmStarted) if event.candidate == plan.candidate
    ]
    if not noted:
        if knowledge is None or session.trials(plan.candidate):
            return {}
        found = knowledge.seeds(plan, evaluator, budgets)
        noted = [{workload.key: chosen for workload, chosen in found.items()}]
        if any(found.values()):
            session.record_event(WarmStarted(0, plan.candidate, noted[-1]))
    told = noted[-1]
    return {w: tuple(Config.of(seed.config) for seed in told.get(w.key, ())) for w in budgets}
