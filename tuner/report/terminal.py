"""The results of a run for a terminal, as `--json` prints them, and every trial as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from rich.table import Table
from rich.text import Text

from tuner.model.expressions import Value
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Occupancy, Result
from tuner.report import formatting
from tuner.report.data import ReportData, is_of_cpu, roofline_of
from tuner.report.formatting import round_value, rounded_all
from tuner.report.sections.bits import bits_json
from tuner.report.sections.course import course_json, device_of
from tuner.report.sections.search import protocol_of
from tuner.report.sections.summary import (
    counts_by_kind,
    mutants_json,
    roundings,
    unvaried_workloads,
)

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.console import JustifyMethod

    from tuner.report.sections.dispatch import PeersOn

T = TypeVar("T")


def results_table(results: Sequence[Result], peers: Sequence[PeersOn] = ()) -> Table:
    """Lay the results out for 100 columns, tuned workloads first; 80 will do.

    The config column holds the parameters that differ between workloads; those with one value
    everywhere are named once, below, and so are axes where names of workloads are long. The
    candidate is a column where it isn't always the first, the best peer where one was compared.
    """
    best = {one.workload: one for one in peers if one.best is not None}
    common = formatting.common(results)
    shared = formatting.shared_axes(result.workload for result in results)
    around = any(result.surroundings for result in results)
    us = "chain us" if around else "us"
    columns: list[tuple[str, JustifyMethod, Callable[[Result], str | Text]]] = [
        ("workload", "left", lambda one: _workload(one.workload, shared)),
        (f"baseline\n{us}", "right", lambda one: formatting.microseconds(one.baseline_us)),
        (f"tuned\n{us}", "right", lambda one: formatting.microseconds(one.tuned_us)),
        ("speedup\n95 % interval", "left", _speedup),
    ]
    if around:
        columns += [("alone\nus", "right", _alone)]
    if best:
        columns += [
            ("best peer\nus, against it", "left", lambda r: _best_peer(best.get(r.workload)))
        ]
    columns += [
        ("roof-\nline", "right", lambda r: _dash(roofline_of(r), formatting.percent)),
        ("regs", "right", lambda r: _dash(r.resources and r.resources.registers, str)),
        ("occupancy\nlimited by", "left", lambda one: _dash(one.occupancy, _occupancy)),
    ]
    if any(result.candidate != INITIAL for result in results):
        columns += [("from", "left", lambda one: "-" if one.baseline_wins else one.candidate)]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for header, justify, _ in columns:
        table.add_column(header, justify=justify, no_wrap=True)
    # Let long names of workloads break between their axes, and never within one.
    column = table.columns[0]
    named = [formatting.without(result.workload.values, shared) for result in results]
    if any(len(formatting.pairs(one)) > formatting.MOST_WORKLOAD_CHARS for one in named):
        longest = max(len(formatting.pairs({axis: n})) for one in named for axis, n in one.items())
        column.no_wrap, column.min_width = False, longest
        column.max_width = max(longest, formatting.MOST_WORKLOAD_CHARS)
    table.add_column("config", ratio=1, min_width=10, overflow="fold")
    for result in sorted(results, key=lambda result: result.workload.held_out):
        own = formatting.pairs(formatting.without(result.config, common)) or "-"
        # Brackets are no markup. The row's times are those of the config, kept or not.
        config = Text(f"baseline kept, not {own}" if result.baseline_wins else own)
        table.add_row(*(cell(result) for _, _, cell in columns), config)
    if common or shared:
        table.caption = Text("everywhere: " + formatting.pairs({**shared, **common}))
        table.caption_justify = "left"
    return table


def json_of(data: ReportData) -> dict[str, object]:
    """Make the object that `--json` prints; every status is counted, those at 0 too."""
    from tuner.report.sections.dispatch import dispatch_json, peers_json, peers_on, server_of

    peers: dict[Workload, dict[str, dict[str, object]]] = {}
    if data.peers:
        peers = {one.workload: peers_json(one) for one in peers_on(data)}
    energy: dict[str, object] = {}
    if data.energies:
        # A run by time measures none.
        from tuner.report.sections.energy import energy_json

        measured = energy_json(data.energies, data.results)
        energy = {"objective": data.objective, "energy": measured}
    declared, bits, off = data.declared, bits_json(data), roundings(data)
    return {
        "kernel": data.kernel,
        "device": data.device,
        "recorded": data.recorded,
        "protocol": protocol_of(data),
        "on_cpu": data.on_cpu,
        "verified_by": data.verified_by or None,
        "session": data.session,
        "seconds": round(data.seconds, 3),
        "trials": {status.value: count for status, count in data.counts().items()},
        "checks": counts_by_kind(data),
        "surroundings": dict(data.surroundings),
        "workloads": [
            {
                "workload": one.workload.values,
                "held_out": one.workload.held_out,
                "baseline_us": round_value(one.baseline_us),
                "tuned_us": round_value(one.tuned_us),
                "speedup": None if data.on_cpu else round_value(one.speedup),
                "interval": None if data.on_cpu else rounded_all(one.interval),
                "verdict": None if data.on_cpu else formatting.significance(one),
                "surroundings": one.surroundings or None,
                "alone_us": round_value(one.alone_us),
                "alone_baseline_us": round_value(one.alone_baseline_us),
                "alone_speedup": None if data.on_cpu else round_value(one.alone_speedup),
                "serves": server_of(data.dispatch, one),
                "roofline": round_value(roofline_of(one)),
                "candidate": one.candidate,
                "config": dict(one.config),
                "registers": None if one.resources is None else one.resources.registers,
                "occupancy": None if one.occupancy is None else one.occupancy.share,
                **({"peers": peers[one.workload]} if one.workload in peers else {}),
                **({"gpu": name} if (name := device_of(data, one)) else {}),
            }
            for one in data.results
        ],
        **({"undecided": dict(data.undecided)} if data.undecided else {}),
        **({"dispatch": dispatch_json(data.dispatch)} if data.dispatch else {}),
        "rounds": [
            {
                "round": one.number,
                "answer": one.record.answer or None,
                "end": one.end,
                "base": one.record.base or None,
                "candidate": one.record.candidate,
                "hypothesis": one.record.idea.hypothesis if one.record.idea else None,
                "change": one.record.idea.change if one.record.idea else None,
                "expectations": [
                    {
                        "metric": moved.metric,
                        "workload": moved.workload or None,
                        "predicted": moved.predicted,
                        "measured": round_value(moved.actual),
                    }
                    for moved in one.expected
                ],
                "speedup": round_value(one.speedup),
                "over_base": round_value(one.over_base),
                "default_speedup": round_value(one.gain.default if one.gain else None),
                "search_gain": round_value(one.gain.search if one.gain else None),
                "refused": list(one.record.problems),
                "tokens": {
                    "input": one.spent.input,
                    "cached": one.spent.cached,
                    "output": one.spent.output,
                },
                "cost": None if one.spent.cost is None else round(one.spent.cost, 6),
            }
            for one in data.rounds
        ],
        **energy,
        **({"bits": bits} if bits else {}),
        **mutants_json(data),
        **course_json(data),
        **({"roundings": dict(zip(("winners", "baseline"), off, strict=True))} if off else {}),
        **({"extremes": dict(declared.extremes)} if declared and declared.extremes else {}),
        **({"constants": list(declared.constants)} if declared and declared.constants else {}),
        **({"unvaried": same} if (same := unvaried_workloads(data)) else {}),
    }


def _dash(value: T | None, written: Callable[[T], str | Text]) -> str | Text:
    return "-" if value is None else written(value)


def _best_peer(peers: PeersOn | None) -> Text:
    best = peers.best if peers else None
    if peers is None or best is None or best.time_us is None or best.speedup is None:
        return Text("-")
    text = Text(f"{best.name}\n{formatting.microseconds(best.time_us)}")
    if peers.served != peers.winner:
        return text  # the ratio is to what serves, which is not in the row
    style = "" if not best.different else "bold green" if best.speedup > 1.0 else "bold red"
    return text.append(" ").append(formatting.ratio(best.speedup), style=style)


def _alone(result: Result) -> Text:
    if result.alone_us is None or result.alone_speedup is None:
        return Text("-" if result.surroundings else "only")
    us, speedup = formatting.microseconds(result.alone_us), formatting.ratio(result.alone_speedup)
    return Text(us).append(f"\n{speedup}", style="dim")


def _workload(workload: Workload, shared: Mapping[str, Value]) -> Text:
    text = Text(formatting.pairs(formatting.without(workload.values, shared)))
    return text.append("\nheld out", style="dim") if workload.held_out else text


def _speedup(result: Result) -> Text:
    if is_of_cpu(result):
        return Text("verified, not\ntimed for a\nGPU", style="dim")
    label = formatting.significance(result)
    style = {"faster": "bold green", "slower": "bold red"}.get(label, "")
    text = Text(formatting.ratio(result.speedup), style=style)
    return text.append(f"\n{formatting.interval(result.interval)}", style="dim")


def _occupancy(occupancy: Occupancy) -> Text:
    return Text(formatting.percent(occupancy.share)).append(f"\n{occupancy.limiter}", style="dim")


def trials_frame(data: ReportData) -> DataFrame:
    """Lay the trials out, one a row in the order they ended.

    Axes and parameters are columns of their own, parameters as `config.NAME`, and an axis that
    is named as another column as `axis.NAME`; times are in microseconds, empty where a trial has
    none.
    """
    from pandas import DataFrame

    rows = []
    for trial, elapsed_s in data.records:
        resources, occupancy, measurement = trial.resources, trial.occupancy, trial.measurement
        head = {
            "elapsed_s": round(elapsed_s, 3),
            "stage": trial.stage,
            "candidate": trial.candidate,
        }
        rest = {
            **{f"config.{name}": value for name, value in trial.config.items()},
            "status": trial.status.value,
            "reason": trial.reason,
            "time_us": trial.time_us,
            "samples": None if measurement is None else len(measurement.times_us),
            "stopped_early": None if measurement is None else measurement.stopped_early,
            "registers": None if resources is None else resources.registers,
            "spill_store_bytes": None if resources is None else resources.spill_store_bytes,
            "serialized_wgmma": None if resources is None else resources.serialized_wgmma,
            "static_shared_bytes": None if resources is None else resources.static_shared_bytes,
            "occupancy": None if occupancy is None else occupancy.share,
            "limited_by": None if occupancy is None else occupancy.limiter,
        }
        own = head.keys() | rest.keys()
        axes = {f"axis.{n}" if n in own else n: size for n, size in trial.workload.values.items()}
        rows.append({**head, **axes, **rest})
    return DataFrame(rows).convert_dtypes()
