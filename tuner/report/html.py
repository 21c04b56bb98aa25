"""Pages as one HTML file each, which opens without a network and runs no script: the report."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from tuner.model.config import format_value
from tuner.model.expressions import Value
from tuner.model.trial import Status, Trial
from tuner.report import charts, formatting
from tuner.report.data import ReportData
from tuner.report.sections import search, summary


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
        data=data,
        headline=summary.headline(data),
        total=len(data.records),
        correct=data.counts()[Status.CORRECT],
        workload_count=len({r.workload for r in data.results} | set(data.by_workload())),
        environment=_environment_rows(data),
        method=_method(data),
        **_verification_parts(data),
        **_result_parts(data),
        **_search_parts(data),
        **_dispatch_parts(data),
        **_energy_parts(data),
        **_agent_parts(data),
    )


def render_page(template: str, style_sheets: Sequence[str], **values: object) -> str:
    """Render a template that extends `page.html.j2`, with its style sheets inside."""
    texts = (files("tuner.report").joinpath(name).read_text("utf-8") for name in style_sheets)
    style = "".join(texts)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    page = _environment().get_template(template)
    return page.render(style=Markup(style), policy=policy, **values)


def write_page(html: str, path: Path) -> None:
    """Write a page to `path`, replacing what was there in one step; make its folder.

    Raises `OSError` where it cannot, with what was there before left as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # surrogates, which a compiler's output may hold, have no UTF-8
    content = html.encode("utf-8", errors="replace")
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("tuner", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        us=formatting.microseconds,
        ratio=formatting.ratio,
        interval=formatting.interval,
        percent=formatting.percent,
        occupancy=formatting.occupancy,
        seconds=formatting.seconds,
        significant=formatting.significant,
        joined=formatting.joined,
        shortened=formatting.shortened,
        without=formatting.without,
        pairs=_pairs,
        value_of=_value_of,
    )
    return environment


def _pairs(config: Mapping[str, Value]) -> Markup:
    """Write a config so that a line never breaks inside `name=value`."""
    pairs = (escape(f"{name}={format_value(value)}") for name, value in config.items())
    return Markup(" ").join(Markup('<span class="pair">{}</span>').format(pair) for pair in pairs)


def _value_of(config: Mapping[str, Value], name: str) -> str:
    return format_value(config[name]) if name in config else "-"


def _verification_parts(data: ReportData) -> Mapping[str, object]:
    return {
        "checks": summary.check_rows(data),
        "open_checks": summary.open_checks(data),
        "checks_shown": summary.CHECKS_SHOWN,
        "reason_of": summary.reason_of,
        "failed": {check.variant for check in summary.failures(data)},
        "verification_facts": summary.verification_facts(data),
        "verification_notes": summary.verification_notes(data),
    }


def _result_parts(data: ReportData) -> Mapping[str, object]:
    throughputs, points = _throughputs(data), _roofline_points(data)
    streaming = data.streaming_gbps or 0.0
    speedups = [
        charts.Speedup(str(r.workload), r.speedup, r.interval, r.workload.held_out, r.different)
        for r in data.results
    ]
    return {
        "isolated": any(result.isolated_us is not None for result in data.results),
        "common": formatting.common(data.results),
        "unpaired": sum(not result.paired for result in data.results),
        "speedup_chart": charts.speedups(speedups),
        "throughput_chart": charts.throughputs(throughputs, streaming) if throughputs else None,
        "roofline_chart": charts.roofline(points, streaming) if points else None,
        "source_diffs": search.source_diffs(data),
    }


def _search_parts(data: ReportData) -> Mapping[str, object]:
    return {
        "convergence": search.convergences(data),
        "early_ends": search.early_end_lines(data),
        "importance": search.importances(data),
        "rejected": search.rejections(data),
        "reasons_shown": search.REASONS_SHOWN,
        "rejected_chart": search.rejected_chart(data),
        "fastest": search.fastest_configs(data),
        "names_of": _parameter_names,
    }


def _parameter_names(trials: Sequence[Trial]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for trial in trials for name in trial.config))


# The sections below are imported where a run has what they show: most have no agent, no energy.


def _dispatch_parts(data: ReportData) -> Mapping[str, object]:
    if data.dispatch is None and not data.peers:
        return {"peers": ()}
    from tuner.report.sections import dispatch

    found = dispatch.peers_on(data)
    return {
        "dispatch_summary": dispatch.dispatch_summary(data.dispatch) if data.dispatch else "",
        "wanted_shown": dispatch.WANTED_SHOWN,
        "peers": found,
        "peers_names": dispatch.peers_names(found),
        "peers_summary": dispatch.peers_summary(found),
        "peers_troubles": dispatch.peers_troubles(found, recorded=data.recorded),
        "peers_chart": dispatch.peers_chart(found),
    }


def _energy_parts(data: ReportData) -> Mapping[str, object]:
    if not data.energies:
        return {"energy": ()}
    from tuner.report.sections import energy

    return {
        "energy": energy.energy_parts(data.energies, data.results),
        "program_name": energy.program_name,
        "last_seen": energy.last_seen,
    }


def _agent_parts(data: ReportData) -> Mapping[str, object]:
    if not data.rounds and not data.profiles:
        return {"profiled": ()}
    from tuner.report.sections.rounds import parts

    return parts(data)


def _throughputs(data: ReportData) -> list[charts.Throughput]:
    rows = []
    for result in data.results:
        floor = data.floor_us(result.workload)
        if floor is None:
            continue
        traffic = data.traffic_bytes[result.workload.key]
        rows.append(
            charts.Throughput(
                label=str(result.workload),
                baseline_gbps=traffic / result.baseline_us / 1e3,
                tuned_gbps=traffic / result.tuned_us / 1e3,
                floor_us=floor,
                tuned_us=result.tuned_us,
                held_out=result.workload.held_out,
            )
        )
    return rows


def _roofline_points(data: ReportData) -> list[charts.RooflinePoint]:
    points = []
    for result in data.results:
        traffic = data.traffic_bytes.get(result.workload.key)
        operations = data.operations.get(result.workload.key)
        if not data.streaming_gbps or not traffic or not operations:
            continue
        points.append(
            charts.RooflinePoint(
                label=str(result.workload),
                intensity=operations / traffic,
                baseline_gflops=operations / result.baseline_us / 1e3,
                tuned_gflops=operations / result.tuned_us / 1e3,
                held_out=result.workload.held_out,
            )
        )
    return points


def _environment_rows(data: ReportData) -> list[tuple[str, str]]:
    streaming = f"{data.streaming_gbps:,.0f} GB/s" if data.streaming_gbps else ""
    first = {
        "kernel": data.kernel,
        "device": f"{data.device} (recorded)" if data.recorded else data.device,
        "measured": data.measured_on,
        "streaming rate": streaming,
        "searcher": data.searcher,
        "seed": "" if data.seed is None else str(data.seed),
        "session": data.session,
    }
    rows = {**first, **data.environment}
    return [(name, value) for name, value in rows.items() if value]


def _method(data: ReportData) -> list[str]:
    """Say how the numbers were taken."""
    if data.on_cpu:
        taken = (
            "Each time is the median of single runs on the CPU, one block after the other, by the "
            "wall clock, with the outputs spoiled before every run; nothing is done about the "
            "CPU's caches and clock. No time here says anything of a GPU."
        )
    elif "timed_by" in data.environment:
        taken = f"The times were taken by {data.environment['timed_by']}."
    else:
        taken = (
            "Each time is the median per call over replays of a CUDA graph of many launches that "
            "rotate over several sets of buffers, together at least four times the L2 cache, so "
            "that neither launch overhead nor cached inputs count."
        )
    return [
        taken,
        *_comparisons(data),
        "Where there were several finalists, the first quarter of the rounds chose one and only "
        "the rest is reported.",
        "Only configs whose outputs matched an independent float64 reference were timed, and "
        "faster is said only where the interval excludes 1.",
    ]


def _comparisons(data: ReportData) -> list[str]:
    rounds = min((len(comparison.rounds) for comparison in data.comparisons), default=0)
    times = f", at least {rounds} times each," if rounds else ""
    where = "on the same CPU" if data.on_cpu else "in one process"
    paired = (
        f"The finalists and the baseline were run alternately {where}{times} and the "
        "interval is a bootstrap over those pairs, so that a drifting clock moves both alike."
    )
    unpaired = (
        f"The finalists and the baseline come from separate measurements{times} and the interval "
        "is a bootstrap that treats them as independent."
    )
    flags = {result.paired for result in data.results} or {not data.recorded}
    return [*([paired] if True in flags else []), *([unpaired] if False in flags else [])]
