"""What programs cost in energy: windows of a counter, idle subtracted, ranked and compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from statistics import fmean

from tuner.model.kernel import Workload
from tuner.model.settings import Objective
from tuner.model.trial import Energy, EnergyWindow, Variant

# Costs so close are a tie, and the faster wins: two windows of one program differ as much.
TIE = 0.01


@dataclass(frozen=True, slots=True)
class Consumption:
    """All windows of one program on one workload; `variant` is None for the baseline.

    `idle_w` are the powers without work, before and after. Energies are millijoules per call: a
    watt over a microsecond is a microjoule.
    """

    variant: Variant | None
    windows: tuple[EnergyWindow, ...]
    idle_w: tuple[float, ...]

    @property
    def time_us(self) -> float:
        return fmean(map(_time_us, self.windows))

    @property
    def power_w(self) -> float:
        """The mean power in the windows, idle included."""
        return fmean(window.power_w for window in self.windows)

    @property
    def net_w(self) -> float:
        return self.power_w - fmean(self.idle_w)

    @property
    def gross_mj(self) -> float:
        """The energy per call, idle included."""
        return fmean(window.power_w * _time_us(window) for window in self.windows) * 1e-3

    @property
    def net_mj(self) -> float:
        """The energy per call that the program adds to that of the idle GPU."""
        return self.gross_mj - fmean(self.idle_w) * self.time_us * 1e-3

    @property
    def net_range_mj(self) -> tuple[float, float]:
        """The least and the largest net energy, of every window with every idle power."""
        energies = [
            _net_mj(window, idle_w) for window, idle_w in product(self.windows, self.idle_w)
        ]
        return min(energies), max(energies)

    @property
    def edp(self) -> float:
        """The energy-delay product of one call."""
        return self.net_mj * self.time_us

    @property
    def spread(self) -> float | None:
        """How far the windows' gross energies lie apart, as a share; None for a single window."""
        if len(self.windows) < 2:
            return None
        energies = [window.power_w * _time_us(window) for window in self.windows]
        return (max(energies) - min(energies)) / fmean(energies)

    def cost(self, objective: Objective) -> float:
        return {"time": self.time_us, "energy": self.net_mj, "edp": self.edp}[objective]


@dataclass(frozen=True, slots=True)
class Saving:
    """How many times more the baseline costs; `range` holds all pairs of windows and idle powers.

    It is no confidence interval: it shows how far two windows of one program lie apart.
    """

    ratio: float
    range: tuple[float, float]

    @property
    def different(self) -> bool:
        return self.range[0] > 1.0 or self.range[1] < 1.0


@dataclass(frozen=True, slots=True)
class Account:
    """All energy measured on one workload."""

    workload: Workload
    idle_w: tuple[float, ...]
    baseline: Consumption | None
    variants: tuple[Consumption, ...]

    @property
    def programs(self) -> tuple[Consumption, ...]:
        return (*filter(None, (self.baseline,)), *self.variants)

    def of(self, variant: Variant | None) -> Consumption | None:
        return next((program for program in self.programs if program.variant == variant), None)

    def ranked(self, objective: Objective) -> tuple[Consumption, ...]:
        """Order the variants, the best first; of those that tie with the best, the fastest."""
        order = sorted(
            self.variants, key=lambda program: (program.cost(objective), program.time_us)
        )
        if not order:
            return ()
        best = order[0].cost(objective)
        tied = [program for program in order if program.cost(objective) <= best + abs(best) * TIE]
        return (*sorted(tied, key=lambda program: program.time_us), *order[len(tied) :])

    def front(self) -> tuple[Consumption, ...]:
        """List the programs that no other beats in both time and net energy, fastest first."""
        front: list[Consumption] = []
        for program in sorted(self.programs, key=lambda program: (program.time_us, program.net_mj)):
            if not front or program.net_mj < front[-1].net_mj:
                front.append(program)
        return tuple(front)

    def saving(self, variant: Variant, objective: Objective = "energy") -> Saving | None:
        """Compare a variant with the baseline; None where either costs nothing measurable."""
        baseline, tuned = self.baseline, self.of(variant)
        if baseline is None or tuned is None:
            return None
        ratios = [
            _cost(before, idle_w, objective) / cost
            for idle_w, before, after in product(self.idle_w, baseline.windows, tuned.windows)
            if (cost := _cost(after, idle_w, objective)) > 0.0
        ]
        pairs = len(self.idle_w) * len(baseline.windows) * len(tuned.windows)
        if tuned.cost(objective) <= 0.0 or len(ratios) < pairs or min(ratios) <= 0.0:
            return None
        ratio = baseline.cost(objective) / tuned.cost(objective)
        return Saving(ratio, (min(ratios), max(ratios)))


def accounts(energies: Iterable[Energy]) -> dict[Workload, Account]:
    """Sum windows up by workload, in the order in which workloads were first measured."""
    groups: dict[Workload, list[Energy]] = {}
    for energy in energies:
        groups.setdefault(energy.workload, []).append(energy)
    accounted = {}
    for workload, group in groups.items():
        idle_w = tuple(energy.window.power_w for energy in group if energy.kind == "idle")
        windows: dict[Variant | None, list[EnergyWindow]] = {}
        for energy in group:
            if energy.kind != "idle":
                windows.setdefault(energy.variant, []).append(energy.window)
        programs = {v: Consumption(v, tuple(own), idle_w or (0.0,)) for v, own in windows.items()}
        baseline = programs.pop(None, None)
        accounted[workload] = Account(workload, idle_w, baseline, tuple(programs.values()))
    return accounted


def _time_us(window: EnergyWindow) -> float:
    assert window.time_us is not None
    return window.time_us


def _net_mj(window: EnergyWindow, idle_w: float) -> float:
    return (window.power_w - idle_w) * _time_us(window) * 1e-3


def _cost(window: EnergyWindow, idle_w: float, objective: Objective) -> float:
    time_us, net_mj = _time_us(window), _net_mj(window, idle_w)
    return {"time": time_us, "energy": net_mj, "edp": net_mj * time_us}[objective]
