"""Searchers by the names that `--searcher` takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tuner.model.errors import InputError
from tuner.search.random import ExhaustiveSearcher, RandomSearcher

if TYPE_CHECKING:
    from pathlib import Path

    from tuner.model.config import SearchSpace
    from tuner.model.expressions import Value
    from tuner.search.base import Searcher
    from tuner.search.pool import Pool

NAMES = ("auto", "exhaustive", "random", "optuna", "classifier", "kernel_tuner:<strategy>")
# Below this many valid configs `auto` tries them all.
EXHAUSTIVE_BELOW = 200
DEFAULT_BUDGET = 100


def make_searcher(
    name: str,
    pool: Pool,
    space: SearchSpace,
    *,
    seed: int,
    budget: int,
    seeds: Sequence[Mapping[str, Value]] = (),
    axes: Mapping[str, int] | None = None,
    journal: Path | None = None,
    study_name: str = "tune",
) -> Searcher:
    """Make the searcher called `name`; `budget` is the number of trials it may plan for.

    `seeds` are proposed first. `axes` are the workload's, by which `auto` learns from others.
    `journal` and `study_name` say where Optuna keeps its study.
    """
    match resolve(name, len(pool), budget).split(":", 1):
        case ["exhaustive"]:
            return ExhaustiveSearcher(pool, seeds)
        case ["random"]:
            return RandomSearcher(pool, seed, seeds)
        case ["optuna"]:
            from tuner.search.optuna import OptunaSearcher

            return OptunaSearcher(pool, space, seed, seeds, journal=journal, study_name=study_name)
        case ["auto" | "classifier" as strategies]:
            from tuner.search.auto.portfolio import SHARES, AutoSearcher

            return AutoSearcher(
                pool,
                space,
                seed,
                budget,
                seeds,
                axes=axes,
                strategies=tuple(SHARES) if strategies == "auto" else (strategies,),
                journal=journal,
                study_name=study_name,
            )
        case ["kernel_tuner", strategy]:
            from tuner.search.kernel_tuner import KernelTunerSearcher

            return KernelTunerSearcher(pool, space, strategy, seed, budget, seeds)
        case _:
            raise InputError(
                f"unknown searcher {name!r}", remedy=f"known searchers: {', '.join(NAMES)}"
            )


def default_budget(name: str, pool_size: int) -> int:
    """Say how many trials a search takes unless told otherwise: all, or 100 of more."""
    if resolve(name, pool_size) == "exhaustive":
        return pool_size
    return min(DEFAULT_BUDGET, pool_size)


def preload(name: str, pool_size: int) -> None:
    """Import what the searcher of this name needs: a second or two, in which others may work."""
    match resolve(name, pool_size):
        case "auto" | "classifier":
            import sklearn.ensemble  # noqa: F401

            import tuner.search.auto.portfolio
        case "optuna":
            import tuner.search.optuna  # noqa: F401


def learns_from_others(name: str, pool_size: int, trials: int | None = None) -> bool:
    """Tell whether the searcher of this name has a use for trials on other workloads.

    `trials` is how many it may take, None where nobody has said.
    """
    return resolve(name, pool_size, trials) in ("auto", "classifier")


def resolve(name: str, pool_size: int, trials: int | None = None) -> str:
    """Replace `auto` by the searcher it stands for: few configs are all tried, if they may be."""
    if name != "auto":
        return name
    few = pool_size < EXHAUSTIVE_BELOW and (trials is None or trials >= pool_size)
    return "exhaustive" if few else "auto"
