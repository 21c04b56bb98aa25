"""What a report, a terminal and `--json` say of the energy: per workload, and the Pareto front."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tuner.model.energy import Account, Consumption, accounts
from tuner.model.settings import Objective
from tuner.model.trial import INITIAL, Energy, Result, Variant
from tuner.report import charts, formatting
from tuner.report.formatting import significant
from tuner.report.pages import draw
from tuner.report.serial import pick
from tuner.report.tables import Column, Field, join, list_table, tag

# Free at each side of a chart, as a share of what it spans.
PAD = 0.08
# Idle powers further apart than this are pointed out: what is subtracted is uncertain then.
IDLE_DRIFT = 0.05


@dataclass(frozen=True, slots=True)
class EnergyOf:
    """The energy of one workload; `chosen` is None where nothing was."""

    account: Account
    chosen: Variant | None

    @property
    def programs(self) -> list[Consumption]:
        return sorted(self.account.programs, key=lambda program: program.time_us)

    @property
    def front(self) -> Sequence[Consumption]:
        """Those that no other beats in both time and energy."""
        return self.account.front()

    @property
    def saving(self) -> str:
        """Compare what was chosen with the baseline; "" where it cannot be said."""
        if self.chosen is None:
            return ""
        baseline, tuned = self.account.baseline, self.account.of(self.chosen)
        saving = self.account.saving(self.chosen)
        if baseline is None or tuned is None or saving is None:
            return ""
        verdict = "no difference"
        if saving.different and saving.ratio != 1.0:
            verdict = "less energy" if saving.ratio > 1.0 else "more energy"
        return (
            f"{significant(tuned.net_mj)} mJ a call above idle, the baseline "
            f"{significant(baseline.net_mj)} mJ: {formatting.ratio(saving.ratio)} "
            f"{formatting.interval(saving.range)}, {verdict}; with idle "
            f"{formatting.ratio(baseline.gross_mj / tuned.gross_mj)}"
        )

    @property
    def drift(self) -> float | None:
        """By how much the idle power drifted, None where that is little or not known."""
        if not self.account.idle_w:
            return None
        drift = max(self.account.idle_w) / min(self.account.idle_w) - 1.0
        return drift if drift > IDLE_DRIFT else None

    @property
    def limited_by(self) -> list[str]:
        return _limits(self.programs)

    @property
    def hot(self) -> bool:
        """Whether the buffers of any window do not cover the L2."""
        return any(not window.cold for program in self.programs for window in program.windows)

    @property
    def chart(self) -> Markup:
        """Draw energy against time."""
        x = _scale([program.time_us for program in self.programs], 62, 544)
        energies = [mj for c in self.programs for mj in (*c.net_range_mj, c.net_mj)]
        y = _scale(energies, 276, 24)
        x_ticks, y_ticks = (charts.ticks(scale.low, scale.high, 5) for scale in (x, y))
        scales = {"x": x, "y": y, "x_ticks": x_ticks, "y_ticks": y_ticks}
        return draw("pareto", of=self, program_name=program_name, **scales)

    def was_chosen(self, consumption: Consumption) -> bool:
        return self.chosen is not None and consumption.variant == self.chosen


def _scale(values: Sequence[float], start: float, end: float) -> charts.Scale:
    low, high = min(values), max(values)
    pad = PAD * (high - low) or PAD * abs(high) or 1.0
    return charts.Scale(low - pad, high + pad, start, end)


def energy_parts(energies: Sequence[Energy], results: Sequence[Result]) -> list[EnergyOf]:
    """Lay out the energy of every workload that has any; `results` say what was chosen."""
    return [part for part in _parts(energies, results) if part.account.programs]


def _parts(energies: Sequence[Energy], results: Sequence[Result]) -> list[EnergyOf]:
    chosen = {result.workload: result.variant for result in results}
    found = accounts(energies).items()
    return [EnergyOf(account, chosen.get(workload)) for workload, account in found]


def energy_lines(
    energies: Sequence[Energy], results: Sequence[Result], objective: Objective
) -> list[str]:
    if objective == "time":
        return []
    return [
        f"energy         {part.account.workload}: {part.saving or 'nothing to compare'}"
        for part in _parts(energies, results)
    ]


def energy_json(energies: Sequence[Energy], results: Sequence[Result]) -> list[dict[str, object]]:
    """Make the object that `--json` prints: one entry a workload, every measured program in it."""
    return [
        {
            **pick(part.account, "workload idle_w"),
            "programs": [
                {
                    **pick(p.variant, "candidate config"),
                    **pick(p, "time_us net_mj net_range_mj gross_mj power_w edp_mj_us=edp spread"),
                    "windows": len(p.windows),
                    "cold": all(window.cold for window in p.windows),
                    "limited_by": _limits([p]),
                    "on_front": p in part.front,
                }
                for p in part.account.programs
            ],
            "energy": _json_saving(part, "energy"),
            "edp": _json_saving(part, "edp"),
        }
        for part in _parts(energies, results)
    ]


def program_name(consumption: Consumption) -> str:
    """Name a program by its config, and by its candidate where that isn't the first."""
    if consumption.variant is None:
        return "baseline"
    config = formatting.pairs(consumption.variant.config)
    return (
        config
        if consumption.variant.candidate == INITIAL
        else f"{consumption.variant.candidate}: {config}"
    )


def last_seen(consumption: Consumption) -> str:
    """Say what the GPU showed at the end of a program's last window."""
    last = consumption.windows[-1]
    seen = (
        "" if last.clock_mhz is None else f"{last.clock_mhz} MHz",
        "" if last.temperature_c is None else f"{last.temperature_c} °C",
        *last.limited_by,
    )
    return ", ".join(part for part in seen if part) or "-"


def _limits(programs: Sequence[Consumption]) -> list[str]:
    return sorted({name for program in programs for w in program.windows for name in w.limited_by})


def _json_saving(energy_of: EnergyOf, objective: Objective) -> Mapping[str, object] | None:
    saving = (
        None if energy_of.chosen is None else energy_of.account.saving(energy_of.chosen, objective)
    )
    return None if saving is None else pick(saving, "ratio range different")


def programs_table(of: EnergyOf) -> Markup:
    """Lay out the energy of every program on one workload."""

    def name(consumption: Consumption) -> str:
        marks = (
            tag("chosen") if of.was_chosen(consumption) else "",
            tag("front") if consumption in of.front else "",
        )
        return join(program_name(consumption), *marks)

    numbers: dict[str, Callable[[Consumption], str]] = {
        "Time, us": lambda consumption: formatting.microseconds(consumption.time_us),
        "Above idle, mJ": lambda consumption: significant(consumption.net_mj),
        "Range": lambda consumption: " to ".join(map(significant, consumption.net_range_mj)),
        "With idle, mJ": lambda consumption: significant(consumption.gross_mj),
        "Power, W": lambda consumption: f"{consumption.power_w:.0f}",
        "Windows": lambda consumption: f"{len(consumption.windows)}",
        "Apart": lambda consumption: (
            "-" if consumption.spread is None else formatting.percent(consumption.spread)
        ),
    }
    fields = [Field(Column(head, numeric=True), write) for head, write in numbers.items()]
    label = f"Energy of the programs on {of.account.workload}"
    return list_table(
        label, of.programs, [Field("Program", name), *fields, Field("Seen", last_seen)]
    )
