"""What a searcher proposes, compiled ahead where it chooses among the compiled."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import Status, Trial
from tuner.search.base import Features
from tuner.tuning.evaluator import Pending
from tuner.tuning.executor import AHEAD, PrecompilingSearcher

W = Workload.of({"T": 1})


class Compiler:
    """Stands for an evaluator: configs from `broken` on don't compile."""

    def __init__(self, broken: int = 1000) -> None:
        self.broken = broken
        self.started: list[int] = []
        self.seen: list[int] = []

    def start(self, workload: Workload, config: Config) -> Pending:
        self.started.append(config["n"])
        return Pending(workload, config, 0.0)

    def foresee(self, pending: Pending) -> Features | Trial:
        number = pending.config["n"]
        self.seen.append(number)
        if number >= self.broken:
            return Trial("initial", W, pending.config, Status.COMPILE, "no")
        return {"registers": float(number)}


class Plain:
    """Asks for 0, 1, 2, ..."""

    def __init__(self, count: int) -> None:
        self.left = list(range(count))
        self.told: list[Trial] = []

    def ask(self, count: int) -> Sequence[Config]:
        taken, self.left = self.left[:count], self.left[count:]
        return [Config.of({"n": number}) for number in taken]

    def tell(self, trial: Trial) -> None:
        self.told.append(trial)


class Choosy:
    """Has every config compiled, two for each ask, and asks for those with few registers first."""

    def __init__(self, count: int) -> None:
        self.unlisted = list(range(count))
        self.known: dict[int, Config] = {}
        self.told: list[Trial] = []

    def shortlist(self, count: int) -> Sequence[Config]:
        taken, self.unlisted = self.unlisted[: 2 * count], self.unlisted[2 * count :]
        return [Config.of({"n": number}) for number in taken]

    def foresee(self, config: Config, features: Features) -> None:
        self.known[int(features["registers"])] = config

    def ask(self, count: int) -> Sequence[Config]:
        return [self.known.pop(number) for number in sorted(self.known)[:count]]

    def tell(self, trial: Trial) -> None:
        self.told.append(trial)


def proposed(searcher: PrecompilingSearcher) -> list[int]:
    found = []
    while (pending := searcher.next()) is not None:
        found.append(pending.config["n"])
    return found


def test_a_plain_searchers_configs_are_compiled_as_they_are_asked_for():
    compiler = Compiler()
    assert proposed(PrecompilingSearcher(Plain(5), compiler, W)) == [0, 1, 2, 3, 4]
    assert compiler.started == [0, 1, 2, 3, 4]
    assert compiler.seen == []


def test_a_shortlist_is_compiled_ahead_and_each_config_once():
    compiler = Compiler()
    searcher = PrecompilingSearcher(Choosy(60), compiler, W)
    assert sorted(proposed(searcher)) == list(range(60)), "the last ones too"
    assert sorted(compiler.started) == list(range(60))
    assert compiler.seen == list(range(60)), "in the order of the lists"


def test_no_more_than_the_bound_is_being_compiled():
    compiler = Compiler()
    searcher = PrecompilingSearcher(Choosy(500), compiler, W)
    for _ in range(50):
        searcher.next()
        assert len(compiler.started) - len(compiler.seen) <= AHEAD


def test_what_cannot_run_is_told_and_handed_over_without_being_asked_for():
    compiler, choosy = Compiler(broken=40), Choosy(60)
    searcher = PrecompilingSearcher(choosy, compiler, W)
    assert sorted(proposed(searcher)) == list(range(40))
    refused = searcher.refused()
    assert [trial.config["n"] for trial in refused] == list(range(40, 60))
    assert choosy.told == refused
    assert searcher.refused() == []


def test_features_are_kept_for_other_workloads():
    searcher = PrecompilingSearcher(Choosy(60), Compiler(), W)
    proposed(searcher)
    assert searcher.features(Config.of({"n": 7})) == {"registers": 7.0}
    assert PrecompilingSearcher(Plain(3), Compiler(), W).features(Config.of({"n": 0})) is None


def test_a_searcher_that_cannot_tell_expects_nothing_in_particular():
    searcher = PrecompilingSearcher(Plain(3), Compiler(), W)
    assert searcher.expected_gain() is None
    searcher.share(Trial("initial", W, Config.of({"n": 0}), Status.INCORRECT), None)
