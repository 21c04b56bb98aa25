"""The table of results: a row a workload, a column for each parameter that varies."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from markupsafe import Markup

from tuner.model.config import format_value
from tuner.model.trial import Result
from tuner.report import formatting
from tuner.report.data import ReportData, roofline_of
from tuner.report.pages import write_pairs
from tuner.report.sections.course import device_of
from tuner.report.sections.summary import failures
from tuner.report.tables import Cell, Column, Field, join, list_table, soft, tag

# Above so many columns the table is set closer, to fit on a screen of 1,280 px.
MANY_COLUMNS = 16


def results_table(data: ReportData, *, sorts: bool = True) -> Markup:
    """Lay out every result; what the run cannot say has no column."""
    results = data.results
    shared = formatting.shared_axes(result.workload for result in results)
    around = any(result.surroundings for result in results)
    there = " there" if around else ""

    def name(result: Result) -> str:
        held_out = tag("held out") if result.workload.held_out else ""
        return join(write_pairs(formatting.without(result.workload.values, shared)), held_out)

    fields: list[Field[Result]] = [
        _number(f"Baseline us{there}", lambda r: r.baseline_us, formatting.microseconds),
        _number(f"Tuned us{there}", lambda r: r.tuned_us, formatting.microseconds),
    ]
    if data.on_cpu:
        fields = [Field(Column("Result"), lambda _: "verified, not timed for a GPU")]
    else:
        wrong = {check.variant for check in failures(data)}
        fields.append(
            Field(
                Column(f"Speedup{there}, 95 % interval", css="speedup"),
                lambda r: _speedup(r, failed=r.variant in wrong, around=around),
            )
        )
        if around:
            fields.append(_pair("Alone and cold us", lambda r: (r.alone_us, r.alone_speedup)))
        fields += _rates(data)
        if any(result.isolated_us is not None for result in results):
            fields.append(_pair("Isolated us", lambda r: (r.isolated_us, r.isolated_speedup)))
        fields += [
            _number("Registers", lambda r: r.resources.registers if r.resources else None, str),
            Field(
                Column("Occupancy (limiter)", css="occupancy"),
                lambda r: Cell(formatting.occupancy(o := r.occupancy), o.share if o else None),
            ),
        ]
    if data.named:
        fields.append(Field(Column("Candidate"), lambda r: r.candidate))
    if data.homes:
        fields.append(Field(Column("Timed on"), lambda r: device_of(data, r)))

    def value_of(parameter: str) -> Field[Result]:
        def cell(result: Result) -> Cell:
            value = result.config.get(parameter, "-")
            number = None if isinstance(value, str) else float(value)
            return Cell(format_value(value), number, "value")

        return Field(Column(parameter), cell)

    fields += map(value_of, formatting.varying(result.config for result in results))
    css = "results dense" if len(fields) >= MANY_COLUMNS else "results"
    fields = [Field("Workload", name), *fields]
    return list_table("Results per workload", results, fields, css=css, sorts=sorts)


def _number(
    head: str, number_of: Callable[[Result], float | None], write: Callable[[float], str]
) -> Field[Result]:
    def cell(result: Result) -> Cell:
        number = number_of(result)
        return Cell("-") if number is None else Cell(write(number), number)

    return Field(Column(head, numeric=True), cell)


def _pair(
    head: str, pair_of: Callable[[Result], tuple[float | None, float | None]]
) -> Field[Result]:
    def cell(result: Result) -> Cell:
        us, speedup = pair_of(result)
        if us is None or speedup is None:
            return Cell("-")
        return Cell(join(formatting.microseconds(us), soft(formatting.ratio(speedup))), us)

    return Field(Column(head, css="pair"), cell)


def _rates(data: ReportData) -> list[Field[Result]]:
    """Make the columns of what a kernel reaches, by the time that no neighbour disturbs."""

    def rate(head: str, amounts: Mapping[str, int], unit: float, form: str) -> list[Field[Result]]:
        def reached(result: Result) -> float | None:
            amount = amounts.get(result.workload.key)
            if not amount or (result.surroundings and result.alone_us is None):
                return None
            return amount / (result.alone_us or result.tuned_us) / unit

        return [_number(head, reached, form.format)] if amounts else []

    return [
        *rate("TFLOP/s", data.operations, 1e6, "{:.3g}"),
        *rate("GB/s", data.traffic_bytes, 1e3, "{:,.0f}"),
        _number("Roofline", roofline_of, formatting.percent),
    ]


def _speedup(result: Result, *, failed: bool, around: bool) -> Cell:
    verdict = formatting.significance(result)
    tags = [
        tag("failed a check", bad=True) if failed else "",
        tag(verdict, bad=verdict == "slower") if not failed and verdict != "faster" else "",
        tag("baseline kept") if result.baseline_wins else "",
        tag("unpaired") if not result.paired else "",
        tag("alone") if around and not result.surroundings else "",
    ]
    told = Markup('<span class="speed">{}</span>').format(formatting.ratio(result.speedup))
    interval = soft(formatting.interval(result.interval))
    css = {"faster": "faster", "slower": "slower"}.get(verdict, "")
    return Cell(join(told, interval, *tags), result.speedup, css)
