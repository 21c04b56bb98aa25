"""A run's dealings with the store: asked once at the start, told at the end, never in the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tuner.device.base import DeviceInfo
from tuner.errors import ExpressionError, InputError
from tuner.evaluate import Evaluator
from tuner.kernel import Workload
from tuner.knowledge.asking import Question, Seed, seeds
from tuner.knowledge.place import find_place
from tuner.knowledge.records import PastSearch
from tuner.knowledge.remembering import searches_of, text_sha
from tuner.knowledge.store import Store, StoreError
from tuner.plan import Plan
from tuner.session import Session
from tuner.space import Config

# The kind of note, in round 0, that keeps what a search started from.
WARM = "warm"
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
            operators=plan.operators,
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
        return {w: _configs(noted.get(w.key, ())) for w in budgets}
    if knowledge is None or session.trials(plan.candidate):
        return {}
    found = knowledge.seeds(plan, evaluator, budgets)
    if any(found.values()):
        told = {w.key: [_told(seed) for seed in chosen] for w, chosen in found.items()}
        session.note(0, WARM, {"candidate": plan.candidate, "seeds": told})
    return {w: tuple(seed.config for seed in chosen) for w, chosen in found.items()}


def _validity(plan: Plan, evaluator: Evaluator, workload: Workload) -> Callable[[Config], bool]:
    names = evaluator.names(workload)

    def valid(config: Config) -> bool:
        try:
            return plan.space.violated(config, names) is None
        except ExpressionError:
            return False

    return valid


def _noted(session: Session, candidate: str) -> Mapping[str, Any] | None:
    noted = [n.content for n in session.notes(0, WARM) if n.content["candidate"] == candidate]
    return noted[-1]["seeds"] if noted else None


def _told(seed: Seed) -> dict[str, object]:
    return {"config": dict(seed.config), "device": seed.device, "workload": seed.workload}


def _configs(told: Iterable[Mapping[str, Any]]) -> tuple[Config, ...]:
    return tuple(Config.of(one["config"]) for one in told)
