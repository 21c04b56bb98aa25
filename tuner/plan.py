"""What a run is asked to do: all of it known before anything is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log

from tuner.kernel import KernelSpec, Workload
from tuner.space import SearchSpace
from tuner.template import Template

# The one candidate of a run without an agent: the template as its author wrote it.
CANDIDATE = "initial"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to tune and how long; `trials` is per workload, `time_s` for the whole run."""

    spec: KernelSpec
    space: SearchSpace
    template: Template
    searcher: str
    trials: int | None
    time_s: float | None
    seed: int
    workloads: tuple[Workload, ...]
    operators: Mapping[str, str]
    finalists: int = 5
    rounds: int = 40

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
