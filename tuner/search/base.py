"""The seams between the loop and a search method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from tuner.model.config import Config, SearchSpace
from tuner.model.expressions import Value
from tuner.model.trial import Trial
from tuner.search.pool import Pool

# What is known of a config before it runs, by name: registers, waves of blocks, instructions by
# class (tuner/analysis/static_features.py). All configs of a candidate have the same names.
Features = Mapping[str, float]


class Searcher(Protocol):
    """Propose valid configs and learn from their trials.

    Life cycle: `ask` and `tell` alternate until `ask` returns nothing. Every config is proposed
    at most once. For a seed, the same tells give the same asks: a session resumes by replaying
    them. Each config asked is told once, in the order of asking; several may be outstanding.
    """

    def ask(self, count: int) -> Sequence[Config]:
        """Propose up to `count` configs never proposed before; none when the space is exhausted."""

    def tell(self, trial: Trial) -> None:
        """Learn from a finished trial, failed ones included."""


@runtime_checkable
class StaticFeatureAware(Protocol):
    """A searcher that has more configs compiled than it asks for, and chooses among them.

    Before an `ask`, the loop takes the shortlist and has it compiled. What can't run is told as a
    trial that was never asked for; of the others the searcher is told the features, in the order
    of the lists and some asks later. Only then may it ask for one of them; configs that were on no
    list may be asked for at any time.
    """

    def shortlist(self, count: int) -> Sequence[Config]:
        """Name the configs to compile before `count` are asked for; none of them twice."""

    def foresee(self, config: Config, features: Features) -> None:
        """Learn what the compiler says of a config of the shortlist."""


@runtime_checkable
class TransferLearning(Protocol):
    """A searcher that shares its trials with other workloads' searches of the same candidate.

    Before its first `ask` it may be told trials of configs that it never proposed, those of an
    earlier run; it does not propose them.
    """

    def share(self, trial: Trial, features: Features | None = None) -> None:
        """Learn from a finished trial on another workload, with what was known before it ran."""

    def expected_gain(self) -> float | None:
        """Estimate the share of the best time that the untried configs may still save.

        Whose is largest goes on first. None before there is anything to go by.
        """


@runtime_checkable
class Strategies(Protocol):
    """A family of searchers that an extension brings, each by the name of its strategy."""

    def require(self, strategy: str) -> None:
        """Raise `InputError` for a strategy that there isn't."""

    def make(
        self,
        pool: Pool,
        space: SearchSpace,
        strategy: str,
        seed: int,
        budget: int,
        seeds: Sequence[Mapping[str, Value]] = (),
    ) -> Searcher:
        """Make the searcher of one workload, as `make_searcher` does."""
