"""What a run tunes: its config, and one candidate's kernel, space and template, read."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from tuner.model.config import SearchSpace
from tuner.model.kernel import KernelSpec, Workload
from tuner.model.settings import RunConfig
from tuner.model.trial import INITIAL
from tuner.space.template import Template


@dataclass(frozen=True, slots=True)
class Plan:
    """What to tune and how long, with one candidate's template, space and launches."""

    config: RunConfig
    spec: KernelSpec
    space: SearchSpace
    template: Template
    candidate: str = INITIAL

    @property
    def tuned(self) -> tuple[Workload, ...]:
        return tuple(workload for workload in self.config.workloads if not workload.held_out)

    @property
    def held_out(self) -> tuple[Workload, ...]:
        """The workloads that are only compared, with what won on the nearest tuned one."""
        return tuple(workload for workload in self.config.workloads if workload.held_out)


def distance(a: Workload, b: Workload) -> float:
    """Measure how far apart two workloads are: by how many times larger, not by how much."""
    other = b.values
    return sum((log(value) - log(other[name])) ** 2 for name, value in a.axes)
