"""The results of a run for a terminal, and as the object that `--json` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from tuner.expressions import Value
from tuner.kernel import Workload
from tuner.report import wording
from tuner.report.data import ReportData
from tuner.report.trust import counts_by_kind
from tuner.trial import Occupancy, Result

# 0.1 ns, and a hundredth of a per cent: far below the noise of any measurement.
DIGITS = 4


def results_table(results: Sequence[Result]) -> Table:
    """Lay the results out for 100 columns, tuned workloads first; 80 will do.

    The config column holds the parameters that differ between workloads; those with one value
    everywhere are named once, below.
    """
    common = wording.common(results)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("workload", no_wrap=True)
    table.add_column("baseline\nus", justify="right", no_wrap=True)
    table.add_column("tuned\nus", justify="right", no_wrap=True)
    table.add_column("speedup\n95 % interval", no_wrap=True)
    table.add_column("roof-\nline", justify="right", no_wrap=True)
    table.add_column("regs", justify="right", no_wrap=True)
    table.add_column("occupancy\nlimited by", no_wrap=True)
    table.add_column("config", ratio=1, min_width=10, overflow="fold")
    for result in sorted(results, key=lambda result: result.workload.held_out):
        table.add_row(*_cells(result, common))
    if common:
        table.caption = Text("everywhere: " + wording.pairs(common))
        table.caption_justify = "left"
    return table


def json_of(data: ReportData) -> dict[str, object]:
    """Make the object that `--json` prints; every status is counted, those at 0 too."""
    return {
        "kernel": data.kernel,
        "device": data.device,
        "recorded": data.recorded,
        "on_cpu": data.on_cpu,
        "session": data.session,
        "seconds": round(data.seconds, 3),
        "trials": {status.value: count for status, count in data.counts().items()},
        "checks": counts_by_kind(data),
        "workloads": [_json_result(result) for result in data.results],
    }


def _cells(result: Result, common: Mapping[str, Value]) -> tuple[str | Text, ...]:
    registers = None if result.resources is None else result.resources.registers
    own = wording.without(result.config, common)
    config = "baseline" if result.baseline_wins else wording.pairs(own) or "-"
    return (
        _workload(result.workload),
        wording.microseconds(result.baseline_us),
        wording.microseconds(result.tuned_us),
        _speedup(result),
        "-" if _of_cpu(result) else wording.percent(result.roofline_share),
        "-" if registers is None else str(registers),
        _occupancy(result.occupancy),
        Text(config),  # not str: brackets in a value are no markup
    )


def _of_cpu(result: Result) -> bool:
    """Whether it was compiled for a CPU, which is nowhere near the roofline of its memory."""
    return result.resources is not None and result.resources.registers is None


def _workload(workload: Workload) -> Text:
    text = Text(str(workload))
    return text.append("\nheld out", style="dim") if workload.held_out else text


def _speedup(result: Result) -> Text:
    label = wording.significance(result)
    style = {"faster": "bold green", "slower": "bold red"}.get(label, "")
    text = Text(wording.ratio(result.speedup), style=style)
    return text.append(f"\n{wording.interval(result.interval)}", style="dim")


def _occupancy(occupancy: Occupancy | None) -> Text:
    if occupancy is None:
        return Text("-")
    return Text(wording.percent(occupancy.share)).append(f"\n{occupancy.limiter}", style="dim")


def _json_result(result: Result) -> dict[str, object]:
    return {
        "workload": result.workload.values,
        "held_out": result.workload.held_out,
        "baseline_us": round(result.baseline_us, DIGITS),
        "tuned_us": round(result.tuned_us, DIGITS),
        "speedup": round(result.speedup, DIGITS),
        "interval": [round(bound, DIGITS) for bound in result.interval],
        "roofline": None if _of_cpu(result) else round(result.roofline_share, DIGITS),
        "config": dict(result.config),
        "registers": None if result.resources is None else result.resources.registers,
        "occupancy": None if result.occupancy is None else result.occupancy.share,
    }
