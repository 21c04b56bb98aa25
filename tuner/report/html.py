"""The report as one HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from tuner.model.trial import Status
from tuner.report import charts, formatting
from tuner.report.data import ReportData, roofline_of
from tuner.report.pages import render_page, write_page
from tuner.report.sections import answer, bits, course, results, search, summary, surroundings
from tuner.report.tables import write_table

# A plot with a line for each workload is folded where they are more.
ROWS_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Plot:
    """A chart with its name, the question that it answers, and what its marks mean."""

    name: str
    question: str
    chart: Markup
    caption: str
    folded: bool = False


def write_report(data: ReportData, path: Path) -> None:
    """Write the report of a run to `path`, replacing what was there in one step.

    Raises `OSError` where it cannot, with what was there before left as it was.
    """
    write_page(render_report(data), path)


def render_report(data: ReportData) -> str:
    """Make the report's HTML; every text from outside is escaped."""
    rows = {
        "kernel": data.kernel,
        "device": f"{data.device} (recorded)" if data.recorded else data.device,
        "measured": data.measured_on,
        "streaming rate": f"{data.streaming_gbps:,.0f} GB/s" if data.streaming_gbps else "",
        "searcher": data.searcher,
        "seed": "" if data.seed is None else str(data.seed),
        "session": data.session,
        **data.environment,
    }
    environment = [(name, value) for name, value in rows.items() if value]
    headline, diffs, spent = (
        summary.headline(data),
        search.source_diffs(data),
        course.time_spent(data),
    )
    # Which configs are fast on a CPU decides nothing.
    importance = () if data.on_cpu else search.importances(data)
    of_some = _parts_of_some(data)
    homes_lines, bit_classes = course.homes_lines(data), bits.classes(data)
    contents = {
        "workloads": "Workloads",
        "plots": "Plots",
        "trust": "Trust",
        "peers": "Peers" if of_some["peers"] else "",
        "dispatch": "Dispatch" if data.dispatch else "",
        "energy": "Energy" if of_some["energy"] else "",
        "rounds": "Rounds" if data.rounds else "",
        "profile": "Profile" if of_some["profiled"] else "",
        "course": "Time" if spent or homes_lines else "",
        "search": "Search",
        "bits": "Bits" if bit_classes else "",
        "source": "Source",
        "environment": "Environment",
        "method": "Method",
    }
    plots = [*_plots(data, importance, spent, of_some)]
    return render_page(
        "report.html.j2",
        ("style.css",),
        "sort.js",
        data=data,
        headline=headline,
        contents=[
            (key, name) for key, name in contents.items() if name and (plots or key != "plots")
        ],
        cards=answer.cards(data, headline),
        next_steps=answer.next_steps(data),
        change=answer.winning_change(data, diffs),
        total=len(data.records),
        correct=data.counts()[Status.CORRECT],
        workload_count=len({r.workload for r in data.results} | set(data.by_workload())),
        results_table=results.results_table(data) if data.results else "",
        plots=plots,
        environment_table=write_table(
            "Environment", ("What", "Value"), environment, css="environment"
        ),
        checks_table=summary.checks_table(data),
        open_checks=summary.open_checks(data),
        open_checks_table=summary.open_checks_table(data),
        checks_shown=summary.CHECKS_SHOWN,
        verification_facts=summary.verification_facts(data),
        verification_notes=summary.verification_notes(data),
        search_lines=(
            *search.protocol_lines(data),
            *search.space_lines(data),
            *search.never_worked_lines(data),
            *search.early_end_lines(data),
            *search.undecided_lines(data),
            *search.refused_lines(data),
        ),
        bit_classes=bit_classes,
        bits_lines=bits.bits_lines(data),
        bits_shown=bits.CLASSES_SHOWN,
        importance_tables=search.importance_tables(data, importance),
        importance_unknown=search.importance_unknown(data, importance),
        rejected_table=search.rejected_table(data),
        more_rejected=len(search.rejections(data)) - search.REASONS_SHOWN,
        fastest=search.fastest_tables(data),
        source_diffs=diffs,
        spent=spent,
        time_table=course.time_table(spent) if spent else "",
        homes_lines=homes_lines,
        **_result_parts(data),
        **of_some,
    )


def plots(data: ReportData) -> list[Plot]:
    """Draw all plots of a report."""
    importance = () if data.on_cpu else search.importances(data)
    return [*_plots(data, importance, course.time_spent(data), _parts_of_some(data))]


def _result_parts(data: ReportData) -> Mapping[str, object]:
    found = data.results
    return {
        "around": any(result.surroundings for result in found),
        "surroundings_lines": surroundings.surroundings_lines(data),
        "disagreements": surroundings.disagreements(data),
        "paired": {result.paired for result in found} or {not data.recorded},
        "rounds_least": min((len(one.rounds) for one in data.comparisons), default=0),
        "isolated": any(result.isolated_us is not None for result in found),
        "common": formatting.common(found),
        "shared": formatting.shared_axes(result.workload for result in found),
        "unpaired": sum(not result.paired for result in found),
    }


def _plots(
    data: ReportData,
    importance: tuple[search.CandidateImportance, ...],
    spent: course.TimeTable | None,
    of_some: Mapping[str, object],
) -> Iterator[Plot]:
    """Draw what answers a question; nothing of times where these are a CPU's."""
    if spent is not None:
        yield Plot(
            "time",
            "Where did the time go?",
            course.time_chart(spent),
            "Seconds of all runs of this session; what took less than 1 % is left out.",
        )
    if data.on_cpu:
        return
    many = len(data.results) > ROWS_SHOWN
    shown = next((of for of in importance if of.chart), None)
    if shown is not None and shown.chart is not None:
        own = f" of {shown.name}" if data.several else ""
        yield Plot(
            "parameters",
            f"Which parameters{own} decide?",
            shown.chart,
            "Share of what decides whether a config is among the fastest (PED-ANOVA over the "
            f"correct trials), averaged over {shown.known} workload{'s' * (shown.known != 1)}. A "
            "search that "
            "had narrowed a parameter down shows it as less important than it is.",
        )
    if (searched := search.search_chart(data)) is not None:
        yield Plot(
            "search",
            "How many trials did it take?",
            searched,
            "Best time so far over the last best, by the search's own times: a line a workload, "
            "and their geometric mean."
            + " A dotted upright line marks where the search of a candidate begins."
            * data.several,
        )
    yield from _rooflines(data, many=many)
    if (occupancy := search.occupancy_chart(data)) is not None:
        yield Plot(
            "occupancy",
            "Does occupancy decide?",
            occupancy,
            "Each trial's time over the best of its workload; the filled marks are the best.",
        )
    if isinstance(curve := of_some.get("curve_chart"), Markup):
        yield Plot(
            "variants",
            "How many variants are worth it?",
            curve,
            "Speedup over the baseline that the best set of so many variants has, in the geometric "
            "mean over the tuned workloads, by what was compared.",
        )
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
        yield Plot(
            "speedup",
            "Where is it faster?",
            charts.speedups(speedups),
            "A lozenge is held out, never seen by the search; a hollow marker claims no "
            "difference: "
            "its interval includes 1, comes within 0.2 % of it or is wider than the effect; a red "
            "one is slower.",
            many,
        )
    if isinstance(peers := of_some.get("peers_chart"), Markup):
        yield Plot(
            "peers",
            "Who is faster, the best peer?",
            peers,
            "The time of the fastest peer on each workload over that of what the dispatch serves "
            "there; right of the line what is served is faster.",
            many,
        )


def _rooflines(data: ReportData, *, many: bool) -> Iterator[Plot]:
    streaming = data.streaming_gbps or 0.0
    traffic, operations = data.traffic_bytes, data.operations
    placed = [
        one
        for one in data.results
        if streaming and one.workload.key in traffic and roofline_of(one) is not None
    ]
    known = [
        one for one in placed if traffic[one.workload.key] and operations.get(one.workload.key)
    ]
    if known:
        level = "The compute roof is not measured and not drawn."
        if data.compute_roof:
            level = (
                f"The level line is the peak of {data.compute_roof[0]} by the data sheets at 1.7 "
                "GHz, where it comes below the slope."
            )
        yield Plot(
            "roofline",
            "How far from the roofline?",
            charts.roofline(known, traffic, operations, streaming, data.compute_roof),
            f"The slope is the measured streaming rate; hollow points are the baseline. {level}",
        )
    if placed:
        yield Plot(
            "throughput",
            "How much of the memory's rate?",
            charts.throughputs(placed, traffic, streaming),
            "The fewest bytes the kernel must move over its time, against the measured streaming "
            "rate; the short upright line is the baseline. The floor is the time at that rate. "
            "A small "
            "workload is bound by latency and cannot come near.",
            many,
        )


def _parts_of_some(data: ReportData) -> Mapping[str, object]:
    """Gather sections that most runs lack; what only they need is imported for them alone."""
    made: dict[str, object] = {"peers": (), "energy": (), "profiled": (), "machine_code": ()}
    if data.dispatch is not None or data.peers:
        from tuner.report.sections import dispatch

        found = dispatch.peers_on(data)
        made |= {
            "peers": found,
            "peers_summary": dispatch.peers_summary(found),
            "peers_troubles": dispatch.peers_troubles(found, recorded=data.recorded),
            "peers_table": dispatch.peers_table(found, recorded=data.recorded),
            "peers_chart": dispatch.peers_chart(found),
        }
        if data.dispatch is not None:
            table = data.dispatch.table
            made |= {
                "dispatch_summary": dispatch.dispatch_summary(data.dispatch),
                "over_winners": dispatch.over_winners(data),
                "wanted_shown": dispatch.WANTED_SHOWN,
                "variants_table": dispatch.variants_table(table),
                "served_table": dispatch.served_table(data, table),
                "held_out_table": dispatch.held_out_table(table),
                "curve_chart": dispatch.curve_chart(data.dispatch),
            }
    if data.energies:
        from tuner.report.sections import energy

        made |= {
            "energy": energy.energy_parts(data.energies, data.results),
            "programs_table": energy.programs_table,
        }
    if data.machine_code:
        from tuner.report.sections.machine_code import machine_code_tables

        made["machine_code"] = machine_code_tables(data)
    if data.rounds or data.profiles:
        from tuner.report.sections.rounds import parts

        made |= parts(data)
    return made
