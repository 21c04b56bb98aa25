"""What a report, a terminal and `--json` say of the energy: per workload, and the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tuner.model.energy import Account, Consumption, Objective, accounts
from tuner.model.trial import INITIAL, Energy, Result, Variant
from tuner.report import charts, formatting
from tuner.report.formatting import rounded, rounded_all, significant
from tuner.report.pages import draw

# Free at each side of a chart, as a share of what it spans.
PAD = 0.08
# Idle powers further apart than this are pointed out: what is subtracted is uncertain then.
IDLE_DRIFT = 0.05


@dataclass(frozen=True, slots=True)
class EnergyOf:
    """The energy of one workload; `saving` is "" where nothing was chosen or can be said.

    `programs` are ordered by their time; `front` are those that no other beats in both.
    """

    account: Account
    chosen: Variant | None
    programs: tuple[Consumption, ...]
    front: tuple[Consumption, ...]
    saving: str

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
        return any(not window.cold for one in self.programs for window in one.windows)

    @property
    def chart(self) -> Markup:
        """Draw energy against time."""
        x = _scale([one.time_us for one in self.programs], 62, 544)
        energies = [mj for one in self.programs for mj in (*one.net_range_mj, one.net_mj)]
        y = _scale(energies, 276, 24)
        x_ticks, y_ticks = (charts.ticks(scale.low, scale.high, 5) for scale in (x, y))
        scales = {"x": x, "y": y, "x_ticks": x_ticks, "y_ticks": y_ticks}
        return draw("pareto", of=self, program_name=program_name, **scales)

    def was_chosen(self, one: Consumption) -> bool:
        return self.chosen is not None and one.variant == self.chosen


def _scale(values: Sequence[float], start: float, end: float) -> charts.Scale:
    low, high = min(values), max(values)
    pad = PAD * (high - low) or PAD * abs(high) or 1.0
    return charts.Scale(low - pad, high + pad, start, end)


def energy_parts(energies: Sequence[Energy], results: Sequence[Result]) -> tuple[EnergyOf, ...]:
    """Lay out the energy of every workload that has any; `results` say what was chosen."""
    chosen = {result.workload: result.variant for result in results}
    return tuple(
        EnergyOf(
            account,
            chosen.get(workload),
            programs=tuple(sorted(account.programs, key=lambda one: one.time_us)),
            front=tuple(account.front()),
            saving=_saving(account, chosen.get(workload)),
        )
        for workload, account in accounts(energies).items()
        if account.programs
    )


def energy_lines(
    energies: Sequence[Energy], results: Sequence[Result], objective: Objective
) -> list[str]:
    if objective == "time":
        return []
    chosen = {result.workload: result.variant for result in results}
    return [
        f"energy         {workload}: "
        f"{_saving(account, chosen.get(workload)) or 'nothing to compare'}"
        for workload, account in accounts(energies).items()
    ]


def energy_json(energies: Sequence[Energy], results: Sequence[Result]) -> list[dict[str, object]]:
    """Make the object that `--json` prints: one entry a workload, every measured program in it."""
    chosen = {result.workload: result.variant for result in results}
    return [
        {
            "workload": workload.values,
            "idle_w": rounded_all(account.idle_w),
            "programs": [_json_program(one, one in account.front()) for one in account.programs],
            "energy": _json_saving(account, chosen.get(workload), "energy"),
            "edp": _json_saving(account, chosen.get(workload), "edp"),
        }
        for workload, account in accounts(energies).items()
    ]


def program_name(one: Consumption) -> str:
    """Name a program by its config, and by its candidate where that isn't the first."""
    if one.variant is None:
        return "baseline"
    config = formatting.pairs(one.variant.config)
    return config if one.variant.candidate == INITIAL else f"{one.variant.candidate}: {config}"


def last_seen(one: Consumption) -> str:
    """Say what the GPU showed at the end of a program's last window."""
    last = one.windows[-1]
    seen = (
        "" if last.clock_mhz is None else f"{last.clock_mhz} MHz",
        "" if last.temperature_c is None else f"{last.temperature_c} °C",
        *last.limited_by,
    )
    return ", ".join(part for part in seen if part) or "-"


def _limits(programs: Sequence[Consumption]) -> list[str]:
    return sorted({name for one in programs for w in one.windows for name in w.limited_by})


def _saving(account: Account, variant: Variant | None) -> str:
    if variant is None:
        return ""
    baseline, tuned, saving = account.baseline, account.of(variant), account.saving(variant)
    if baseline is None or tuned is None or saving is None:
        return ""
    less = saving.different and saving.ratio > 1.0
    more = saving.different and saving.ratio < 1.0
    verdict = "less energy" if less else "more energy" if more else "no difference"
    return (
        f"{significant(tuned.net_mj)} mJ a call above idle, the baseline "
        f"{significant(baseline.net_mj)} mJ: {formatting.ratio(saving.ratio)} "
        f"{formatting.interval(saving.range)}, {verdict}; with idle "
        f"{formatting.ratio(baseline.gross_mj / tuned.gross_mj)}"
    )


def _json_program(one: Consumption, on_front: bool) -> dict[str, object]:
    return {
        "candidate": None if one.variant is None else one.variant.candidate,
        "config": None if one.variant is None else dict(one.variant.config),
        "time_us": rounded(one.time_us),
        "net_mj": rounded(one.net_mj),
        "net_range_mj": rounded_all(one.net_range_mj),
        "gross_mj": rounded(one.gross_mj),
        "power_w": rounded(one.power_w),
        "edp_mj_us": rounded(one.edp),
        "windows": len(one.windows),
        "spread": rounded(one.spread),
        "cold": all(window.cold for window in one.windows),
        "limited_by": _limits([one]),
        "on_front": on_front,
    }


def _json_saving(
    account: Account, variant: Variant | None, objective: Objective
) -> Mapping[str, object] | None:
    saving = None if variant is None else account.saving(variant, objective)
    if saving is None:
        return None
    return {
        "ratio": rounded(saving.ratio),
        "range": rounded_all(saving.range),
        "different": saving.different,
    }
