"""The report as one HTML file: its template asks the sections for what they have to show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from tuner.report import charts, formatting
from tuner.report.data import ReportData, roofline_of
from tuner.report.pages import render_page, render_part, write_page
from tuner.report.sections import course, search
from tuner.report.tables import write_table

if TYPE_CHECKING:
    from tuner.report.sections.dispatch import PeersOn

# A plot with a line for each workload is folded where they are more.
ROWS_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Plot:
    """A chart by its name; `plot.html.j2` says what question it answers, and how it is read."""

    name: str
    chart: Markup
    folded: bool = False


def write_report(data: ReportData, path: Path) -> None:
    """Write the report of a run to `path`, replacing what was there in one step.

    Raises `OSError` where it cannot, with what was there before left as it was.
    """
    write_page(render_report(data), path)


def render_report(data: ReportData) -> str:
    """Make the report's HTML; every text from outside is escaped."""
    return render_page(
        "report.html.j2",
        ("style.css",),
        "sort.js",
        data=data,
        # Those that most runs lack are imported where they are needed.
        section=lambda name: import_module(f"tuner.report.sections.{name}"),
        **{one.__name__: one for one in (formatting.common, formatting.shared_axes, write_table)},
        **_draw(data),
    )


def render_plots(data: ReportData) -> dict[str, Markup]:
    """Draw the plots of a report by their names, each with its question and caption."""
    drawn = _draw(data)
    return {
        plot.name: render_part("plot.html.j2", plot=plot, data=data, **drawn)
        for plot in drawn["plots"]
    }


def _draw(data: ReportData) -> dict[str, Any]:
    """Draw all plots, and give what they are drawn from and takes long to work out."""
    # Which configs are fast on a CPU decides nothing.
    importance = () if data.on_cpu else search.importances(data)
    peers: tuple[PeersOn, ...] = ()
    if data.peers:
        from tuner.report.sections.dispatch import peers_on

        peers = peers_on(data)
    plots = [*_draw_plots(data, importance, peers)]
    return {"importance": importance, "peers": peers, "plots": plots}


def _draw_plots(
    data: ReportData, importance: tuple[search.CandidateImportance, ...], peers: tuple[PeersOn, ...]
) -> Iterator[Plot]:
    """Draw what answers a question; nothing of times where these are a CPU's."""
    if (spent := course.time_spent(data)) is not None:
        yield Plot("time", course.time_chart(spent))
    if data.on_cpu:
        return
    many = len(data.results) > ROWS_SHOWN
    for chart in [of.chart for of in importance if of.chart][:1]:
        yield Plot("parameters", chart)
    if (searched := search.search_chart(data)) is not None:
        yield Plot("search", searched)
    yield from _rooflines(data, many=many)
    if (occupancy := search.occupancy_chart(data)) is not None:
        yield Plot("occupancy", occupancy)
    if data.dispatch is not None:
        from tuner.report.sections.dispatch import curve_chart

        if (curve := curve_chart(data.dispatch)) is not None:
            yield Plot("variants", curve)
    if data.results:
        shared = formatting.shared_axes(result.workload for result in data.results)
        speedups = [
            charts.Speedup(
                formatting.pairs(formatting.without(r.workload.values, shared)),
                r.speedup,
                r.interval,
                r.workload.held_out,
                r.different,
            )
            for r in data.results
        ]
        yield Plot("speedup", charts.speedups(speedups), many)
    if peers:
        from tuner.report.sections.dispatch import peers_chart

        if (against := peers_chart(peers)) is not None:
            yield Plot("peers", against, many)


def _rooflines(data: ReportData, *, many: bool) -> Iterator[Plot]:
    streaming = data.streaming_gbps or 0.0
    traffic, operations = data.traffic_bytes, data.operations
    placed = [
        result
        for result in data.results
        if streaming and result.workload.key in traffic and roofline_of(result) is not None
    ]
    results = [
        one for one in placed if traffic[one.workload.key] and operations.get(one.workload.key)
    ]
    if results:
        drawn = charts.roofline(results, traffic, operations, streaming, data.compute_roof)
        yield Plot("roofline", drawn)
    if placed:
        yield Plot("throughput", charts.throughputs(placed, traffic, streaming), many)
