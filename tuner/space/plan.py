"""What a run is asked to do: all of it known before anything is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log

from tuner.model.config import SearchSpace
from tuner.model.energy import Objective
from tuner.model.kernel import KernelSpec, Workload
from tuner.model.trial import INITIAL
from tuner.space.template import Template

# How much slower than its own best a workload may be served, for the sake of fewer variants.
WITHIN = 0.02


@dataclass(frozen=True, slots=True)
class Plan:
    """What to tune and how long, with one candidate's template, space and launches.

    `trials` is per workload and candidate, `time_s` for the whole run. `rounds` is how often an
    agent may write another candidate, and `policy` chooses the one that it builds on.
    `objective` is what the winners are chosen by; the search itself goes by time. The set of
    variants is the smallest within `variants_within` of each best, or the best `max_variants`.
    `surveyed` configs are measured on each workload whatever the search tries (tuner/survey.py).
    `peers` names what the finals compare with besides the baseline.
    """

    spec: KernelSpec
    space: SearchSpace
    template: Template
    searcher: str
    trials: int | None
    time_s: float | None
    seed: int
    workloads: tuple[Workload, ...]
    operators: Mapping[str, str]
    candidate: str = INITIAL
    finalists: int = 5
    comparison_rounds: int = 40
    rounds: int = 0
    policy: str = "greedy"
    objective: Objective = "time"
    variants_within: float = WITHIN
    max_variants: int | None = None
    surveyed: int | None = None
    peers: tuple[str, ...] = ()

    @property
    def tuned(self) -> tuple[Workload, ...]:
        """The workloads to search."""
        return tuple(workload for workload in self.workloads if not workload.held_out)

    @property
    def held_out(self) -> tuple[Workload, ...]:
        """The workloads that are only compared, with what won on the nearest tuned one."""
        return tuple(workload for workload in self.workloads if workload.held_out)


def distance(a: Workload, b: Workload) -> float:
    """Measure how far apart two workloads are: by how many times larger, not by how much."""
    other = b.values
    return sum((log(value) - log(other[name])) ** 2 for name, value in a.axes)
