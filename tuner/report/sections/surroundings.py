"""The section on what runs before and after the operator, and on what times alone say otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.dispatch.evidence import OverWinner, over_winner
from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, RESOLUTION
from tuner.report.data import ReportData
from tuner.report.formatting import join_names, pairs, percent, significance

# What a time alone leaves open, and where the remedy stands.
ALONE = (
    "Measured alone, cold and back to back, which is not what a call costs in a model: what wins "
    "alone has been seen to lose there. docs/surroundings.md says how to declare what runs before "
    "and after it (`surroundings:`)."
)


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A workload on which another finalist is the fastest alone.

    `gain` is the share by which it is faster alone than the winner, `around` compares with that
    in the surroundings.
    """

    workload: Workload
    config: Config
    candidate: str
    gain: float
    around: OverWinner

    @property
    def clear(self) -> bool:
        """Whether it is proved that what wins alone loses there."""
        return significance(self.around) == "slower"

    def __str__(self) -> str:
        own = "" if self.candidate == INITIAL else f"{self.candidate}: "
        there = {
            "slower": f"it is {percent(1.0 / self.around.speedup - 1.0)} slower",
            "faster": f"it is {percent(self.around.speedup - 1.0)} faster, too",
        }.get(significance(self.around), "no difference to the winner is proved")
        return (
            f"{self.workload}: alone, {own}{pairs(self.config)} would have won by "
            f"{percent(self.gain)}; in its surroundings {there}."
        )


def surroundings_lines(data: ReportData) -> list[str]:
    """Say once for each surroundings what they are and where they hold, then what was alone."""
    if data.on_cpu or data.evaluator or not data.of_cuda or not data.results:
        return []
    groups: dict[str, list[str]] = {}
    for result in data.results:
        groups.setdefault(result.surroundings, []).append(str(result.workload))
    lines = [
        f"{data.surroundings.get(name, name)} ({join_names(where, 4)})"
        for name, where in groups.items()
        if name
    ]
    if "" in groups:
        lines.append(ALONE if len(groups) == 1 else f"{join_names(groups[''], 4)}: {ALONE}")
    return lines


def disagreements(data: ReportData) -> tuple[Disagreement, ...]:
    """Find the workloads on which the fastest finalist alone is not the winner."""
    found, last = [], {one.workload: one for one in data.comparisons if one.alone_us}
    for result in data.results:
        comparison = last.get(result.workload)
        if comparison is None or result.variant not in comparison.finalists:
            continue
        alone_us, winner = comparison.alone_us, comparison.column(result.variant)
        other = min(range(1, 1 + len(comparison.finalists)), key=alone_us.__getitem__)
        gain = alone_us[winner] / alone_us[other] - 1.0
        if other != winner and gain > RESOLUTION:
            variant = comparison.finalists[other - 1]
            around = over_winner(comparison, variant, data.seed or 0)
            who = variant.config, variant.candidate
            found.append(Disagreement(result.workload, *who, gain, around))
    return tuple(found)
