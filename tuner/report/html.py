"""The report as one HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tuner.model.trial import Status, Trial
from tuner.report import charts, formatting
from tuner.report.data import ReportData, roofline_of
from tuner.report.pages import render_page, write_page
from tuner.report.sections import bits, course, search, summary, surroundings


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
    return render_page(
        "report.html.j2",
        ("style.css",),
        data=data,
        headline=summary.headline(data),
        total=len(data.records),
        correct=data.counts()[Status.CORRECT],
        workload_count=len({r.workload for r in data.results} | set(data.by_workload())),
        environment=[(name, value) for name, value in rows.items() if value],
        checks=summary.check_rows(data),
        open_checks=summary.open_checks(data),
        checks_shown=summary.CHECKS_SHOWN,
        reason_of=summary.reason_of,
        failed={check.variant for check in summary.failures(data)},
        verification_facts=summary.verification_facts(data),
        verification_notes=summary.verification_notes(data),
        convergence=search.convergences(data),
        search_lines=(
            *search.protocol_lines(data),
            *search.space_lines(data),
            *search.never_worked_lines(data),
            *search.early_end_lines(data),
            *search.undecided_lines(data),
        ),
        bit_classes=bits.classes(data),
        bits_lines=bits.bits_lines(data),
        bits_shown=bits.CLASSES_SHOWN,
        importance=search.importances(data),
        rejected=search.rejections(data),
        reasons_shown=search.REASONS_SHOWN,
        rejected_chart=search.rejected_chart(data),
        fastest=search.fastest_configs(data),
        names_of=_parameter_names,
        source_diffs=search.source_diffs(data),
        spent=course.time_spent(data),
        homes_lines=course.homes_lines(data),
        device_of=course.device_of,
        **_result_parts(data),
        **_parts_of_some(data),
    )


def _result_parts(data: ReportData) -> Mapping[str, object]:
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
    shared = formatting.shared_axes(result.workload for result in data.results)
    named = {r.workload: formatting.without(r.workload.values, shared) for r in data.results}
    speedups = [
        charts.Speedup(
            formatting.pairs(named[r.workload]),
            r.speedup,
            r.interval,
            r.workload.held_out,
            r.different,
        )
        for r in data.results
    ]
    return {
        "around": any(result.surroundings for result in data.results),
        "surroundings_lines": surroundings.surroundings_lines(data),
        "disagreements": surroundings.disagreements(data),
        "surroundings_chart": surroundings.surroundings_chart(data),
        "paired": {result.paired for result in data.results} or {not data.recorded},
        "rounds_least": min((len(one.rounds) for one in data.comparisons), default=0),
        "isolated": any(result.isolated_us is not None for result in data.results),
        "roofline_of": roofline_of,
        "common": formatting.common(data.results),
        "shared": shared,
        "unpaired": sum(not result.paired for result in data.results),
        "speedup_chart": None if data.on_cpu else charts.speedups(speedups),
        "throughput_chart": charts.throughputs(placed, traffic, streaming) if placed else None,
        "roofline_chart": charts.roofline(known, traffic, operations, streaming, data.compute_roof)
        if known
        else None,
    }


def _parameter_names(trials: Sequence[Trial]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for trial in trials for name in trial.config))


def _parts_of_some(data: ReportData) -> Mapping[str, object]:
    """Gather sections that most runs lack; what only they need is imported for them alone."""
    made: dict[str, object] = {"peers": (), "energy": (), "profiled": ()}
    if data.dispatch is not None or data.peers:
        from tuner.dispatch.evidence import productions
        from tuner.report.sections import dispatch

        found = dispatch.peers_on(data)
        made |= {
            "dispatch_summary": dispatch.dispatch_summary(data.dispatch) if data.dispatch else "",
            "curve_chart": dispatch.curve_chart(data.dispatch) if data.dispatch else None,
            "over_winners": dispatch.over_winners(data),
            "wanted_shown": dispatch.WANTED_SHOWN,
            "productions": productions,
            "peers": found,
            "peers_names": dispatch.peers_names(found),
            "peers_summary": dispatch.peers_summary(found),
            "peers_troubles": dispatch.peers_troubles(found, recorded=data.recorded),
            "peers_chart": dispatch.peers_chart(found),
        }
    if data.energies:
        from tuner.report.sections import energy

        made |= {
            "energy": energy.energy_parts(data.energies, data.results),
            "program_name": energy.program_name,
            "last_seen": energy.last_seen,
        }
    if data.rounds or data.profiles:
        from tuner.report.sections.rounds import parts

        made |= parts(data)
    return made
