"""What a report, a terminal and `--json` say of the energy: per workload, and the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.etree.ElementTree import Element

from markupsafe import Markup

from tuner.model.energy import Account, Consumption, Objective, Saving, accounts
from tuner.model.trial import INITIAL, Energy, Result, Variant
from tuner.report import charts, formatting

WIDTH = 560
PAD = 0.08


@dataclass(frozen=True, slots=True)
class Point:
    """One program: microseconds and net millijoules per call, with the range of its windows."""

    label: str
    time_us: float
    net_mj: float
    range_mj: tuple[float, float]
    baseline: bool = False
    on_front: bool = False
    chosen: bool = False


def pareto(label: str, points: Sequence[Point]) -> Markup:
    """Draw energy against time: the baseline hollow, the chosen a diamond, the front a line."""
    width, height, left, right, top, bottom = WIDTH, 320, 62, 16, 24, 44
    x = _scale([point.time_us for point in points], left, width - right)
    energies = [bound for point in points for bound in (*point.range_mj, point.net_mj)]
    y = _scale(energies, height - bottom, top)
    front = sorted((p for p in points if p.on_front), key=lambda point: point.time_us)
    summary = f"Energy against time for {label}: {len(points)} programs, {len(front)} on the front"
    root = charts.canvas(width, height, summary, "small")
    charts.axes(root, x, y, charts.ticks(x.low, x.high, 5), charts.ticks(y.low, y.high, 5))
    middle = ((left + width - right) / 2, height - 6)
    charts.text(root, middle, "time per call, us", "axis", "middle")
    charts.text(root, (4, top - 10), "energy per call above idle, mJ", "axis")
    for one, following in pairwise(front):
        start, end = (x(one.time_us), y(one.net_mj)), (x(following.time_us), y(following.net_mj))
        # In steps: between two programs there is none that would do what a slope promises.
        charts.line(root, start, (end[0], start[1]), "roof")
        charts.line(root, (end[0], start[1]), end, "roof")
    for point in points:
        _draw(root, point, x(point.time_us), y)
    return charts.markup(root)


def _draw(root: Element, point: Point, at: float, y: charts.Scale) -> None:
    low, high = point.range_mj
    charts.line(root, (at, y(low)), (at, y(high)), "whisker")
    middle = y(point.net_mj)
    if point.baseline:
        marker = charts.circle(root, at, middle, 5, "hollow")
        anchor, shift = ("end", -8) if at > WIDTH / 2 else ("start", 8)
        charts.text(root, (at + shift, middle - 7), "baseline", "axis", anchor)
    elif point.chosen:
        marker = charts.diamond(root, at, middle, 6.5, "marker held")
    else:
        marker = charts.circle(root, at, middle, 4, "marker" if point.on_front else "marker unsure")
    written = f"{formatting.microseconds(point.time_us)} us, {millijoules(point.net_mj)} mJ"
    charts.tooltip(marker, f"{point.label}: {written}")


def millijoules(value: float) -> str:
    """Write an energy with three or four significant digits, without a unit."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _scale(values: Sequence[float], start: float, end: float) -> charts.Scale:
    low, high = min(values), max(values)
    pad = PAD * (high - low) or PAD * abs(high) or 1.0
    return charts.Scale(low - pad, high + pad, start, end)


# Idle powers further apart than this are pointed out: what is subtracted is uncertain then.
IDLE_DRIFT = 0.05
# Of a watt, a millijoule or a ratio: far below the noise of any window.
DIGITS = 4


@dataclass(frozen=True, slots=True)
class EnergyRow:
    """One program of the table, in words."""

    name: str
    time: str
    net: str
    net_range: str
    gross: str
    power: str
    windows: int
    spread: str
    on_front: bool
    chosen: bool
    seen: str


@dataclass(frozen=True, slots=True)
class EnergyOf:
    """The energy of one workload; `saving` is "" where nothing was chosen or can be said."""

    label: str
    idle: str
    drift: str
    saving: str
    limited: str
    hot: bool
    rows: tuple[EnergyRow, ...]
    chart: Markup


def energy_parts(energies: Sequence[Energy], results: Sequence[Result]) -> tuple[EnergyOf, ...]:
    """Lay out the energy of every workload that has any; `results` say what was chosen."""
    chosen = {result.workload: result.variant for result in results}
    return tuple(
        _part(account, chosen.get(workload))
        for workload, account in accounts(energies).items()
        if account.programs
    )


def energy_lines(
    energies: Sequence[Energy], results: Sequence[Result], objective: Objective
) -> list[str]:
    """Say in one line a workload what the chosen config saves."""
    if objective == "time":
        return []
    chosen = {result.workload: result.variant for result in results}
    lines = []
    for workload, account in accounts(energies).items():
        variant = chosen.get(workload)
        text = "" if variant is None else _saving(account, variant)
        lines.append(f"energy         {workload}: {text or 'nothing to compare'}")
    return lines


def energy_json(energies: Sequence[Energy], results: Sequence[Result]) -> list[dict[str, object]]:
    """Make the object that `--json` prints: one entry a workload, every measured program in it."""
    chosen = {result.workload: result.variant for result in results}
    found: list[dict[str, object]] = []
    for workload, account in accounts(energies).items():
        variant = chosen.get(workload)
        front = account.front()
        programs = [_json_program(one, one in front, one.variant) for one in account.programs]
        found.append(
            {
                "workload": workload.values,
                "idle_w": [_rounded(power) for power in account.idle_w],
                "programs": programs,
                "energy": _json_saving(account, variant, "energy"),
                "edp": _json_saving(account, variant, "edp"),
            }
        )
    return found


def _part(account: Account, chosen: Variant | None) -> EnergyOf:
    front = account.front()
    ordered = sorted(account.programs, key=lambda one: one.time_us)
    limits = {name for one in ordered for window in one.windows for name in window.limited_by}
    return EnergyOf(
        label=str(account.workload),
        idle=", ".join(f"{power:.1f} W" for power in account.idle_w),
        drift=_drift(account.idle_w),
        saving="" if chosen is None else _saving(account, chosen),
        limited=", ".join(sorted(limits)),
        hot=any(not window.cold for one in ordered for window in one.windows),
        rows=tuple(_row(one, one in front, _is(one, chosen)) for one in ordered),
        chart=pareto(
            str(account.workload), [_point(one, one in front, _is(one, chosen)) for one in ordered]
        ),
    )


def _drift(idle_w: Sequence[float]) -> str:
    if len(idle_w) < 2:
        return ""
    drift = max(idle_w) / min(idle_w) - 1.0
    return formatting.percent(drift) if drift > IDLE_DRIFT else ""


def _saving(account: Account, variant: Variant) -> str:
    """Compare what was chosen with the baseline, in words."""
    baseline, tuned = account.baseline, account.of(variant)
    saving = account.saving(variant)
    if baseline is None or tuned is None or saving is None:
        return ""
    less = saving.different and saving.ratio > 1.0
    more = saving.different and saving.ratio < 1.0
    verdict = "less energy" if less else "more energy" if more else "no difference"
    text = (
        f"{millijoules(tuned.net_mj)} mJ a call above idle, the baseline "
        f"{millijoules(baseline.net_mj)} mJ: {formatting.ratio(saving.ratio)} "
        f"{formatting.interval(saving.range)}, {verdict}"
    )
    gross = baseline.gross_mj / tuned.gross_mj
    return f"{text}; with idle {formatting.ratio(gross)}"


def _is(one: Consumption, chosen: Variant | None) -> bool:
    return chosen is not None and one.variant == chosen


def _name(one: Consumption) -> str:
    if one.variant is None:
        return "baseline"
    config = formatting.pairs(one.variant.config)
    return config if one.variant.candidate == INITIAL else f"{one.variant.candidate}: {config}"


def _point(one: Consumption, on_front: bool, chosen: bool) -> Point:
    range_mj = one.net_range_mj
    baseline = one.variant is None
    return Point(_name(one), one.time_us, one.net_mj, range_mj, baseline, on_front, chosen)


def _row(one: Consumption, on_front: bool, chosen: bool) -> EnergyRow:
    low, high = one.net_range_mj
    last = one.windows[-1]
    seen = (
        "" if last.clock_mhz is None else f"{last.clock_mhz} MHz",
        "" if last.temperature_c is None else f"{last.temperature_c} °C",
        *last.limited_by,
    )
    return EnergyRow(
        name=_name(one),
        time=formatting.microseconds(one.time_us),
        net=millijoules(one.net_mj),
        net_range=f"{millijoules(low)} to {millijoules(high)}",
        gross=millijoules(one.gross_mj),
        power=f"{one.power_w:.0f}",
        windows=len(one.windows),
        spread="-" if one.spread is None else formatting.percent(one.spread),
        on_front=on_front,
        chosen=chosen,
        seen=", ".join(part for part in seen if part) or "-",
    )


def _json_program(one: Consumption, on_front: bool, variant: Variant | None) -> dict[str, object]:
    return {
        "candidate": None if variant is None else variant.candidate,
        "config": None if variant is None else dict(variant.config),
        "time_us": _rounded(one.time_us),
        "net_mj": _rounded(one.net_mj),
        "net_range_mj": [_rounded(bound) for bound in one.net_range_mj],
        "gross_mj": _rounded(one.gross_mj),
        "power_w": _rounded(one.power_w),
        "edp_mj_us": _rounded(one.edp),
        "windows": len(one.windows),
        "spread": None if one.spread is None else _rounded(one.spread),
        "cold": all(window.cold for window in one.windows),
        "limited_by": sorted({name for window in one.windows for name in window.limited_by}),
        "on_front": on_front,
    }


def _json_saving(
    account: Account, variant: Variant | None, objective: Objective
) -> Mapping[str, object] | None:
    saving: Saving | None = None if variant is None else account.saving(variant, objective)
    if saving is None:
        return None
    bounds = [_rounded(bound) for bound in saving.range]
    return {"ratio": _rounded(saving.ratio), "range": bounds, "different": saving.different}


def _rounded(value: float) -> float:
    return round(value, DIGITS)
