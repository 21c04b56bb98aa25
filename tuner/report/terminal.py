"""The results of a run for a terminal, as `--json` prints them, and every trial as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from tuner.model.expressions import Value
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Result, Trial
from tuner.report import formatting
from tuner.report.data import ReportData, fastest, is_of_cpu, roofline_of
from tuner.report.sections.bits import bits_json
from tuner.report.sections.course import course_json, device_of
from tuner.report.sections.search import protocol_of
from tuner.report.sections.summary import (
    counts_by_kind,
    mutants_json,
    roundings,
    unvaried_workloads,
)
from tuner.report.serial import pick, plain

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.console import JustifyMethod

    from tuner.report.rounds import RoundData
    from tuner.report.sections.dispatch import PeersOn

T = TypeVar("T")


# Of a config: in less room its line would break into a column of words.
CONFIG_COLUMNS = 44
# What a table of trials tells of them.
RESOURCES = ("registers", "spill_store_bytes", "serialized_wgmma", "static_shared_bytes")
KEPT, HELD_OUT = "baseline kept", "held out"


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the table; one that is not `needed` is there where the width allows it."""

    head: str
    justify: JustifyMethod
    cells: Sequence[Text | str]
    needed: bool = False

    @property
    def width(self) -> int:
        lines = (line for cell in (self.head, *map(str, self.cells)) for line in cell.split("\n"))
        return max(map(cell_len, lines)) + 1


def results_table(
    results: Sequence[Result],
    peers: Sequence[PeersOn] = (),
    *,
    width: int = 100,
    most: int | None = None,
) -> Table:
    """Lay results out, one a line: tuned workloads first, or the best, the worst and the median
    first where they are more than `most`.

    As many columns are there as fit into `width` whole, and the config where a line of it does.
    Its column holds the parameters that differ between workloads; those with one value everywhere
    are named once, below, and so are axes where names of workloads are long.
    """
    rows = _choose_rows(results, most)
    common, shared = formatting.common(results), formatting.shared_axes(r.workload for r in results)
    names = [Text(formatting.pairs(formatting.without(r.workload.values, shared))) for _, r in rows]
    configs = [_own_config(result, common) for _, result in rows]
    longest = max(map(len, configs), default=0)
    # On a screen a config has one line, and says more than most other columns.
    columns = _choose_columns(rows, names, peers, width - longest if most else width)
    left = width - sum(column.width for column in columns)
    with_config = left >= (longest if most else min(longest, CONFIG_COLUMNS))
    if most and not with_config:
        columns = _choose_columns(rows, names, peers, width)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        # Long names of workloads break between their axes, and never within one.
        if column.cells is names and column.width > formatting.MOST_WORKLOAD_CHARS + 1:
            axis = max(len(one) for name in names for one in name.plain.split(" "))
            size = max(axis, min(column.width, width // 3))
            table.add_column(column.head, min_width=axis, max_width=size, vertical="bottom")
        else:
            table.add_column(column.head, justify=column.justify, no_wrap=True)
    if with_config:
        table.add_column("config", ratio=1, overflow="fold")
    for row, config in enumerate(configs):
        cells = [column.cells[row] for column in columns]
        # Brackets are no markup. The row's times are those of the config, kept or not.
        table.add_row(*cells, *([Text(config)] if with_config else []))
    everywhere = {**shared, **(common if with_config else {})}
    if everywhere:
        table.caption = Text("everywhere: " + formatting.pairs(everywhere))
        table.caption_justify = "left"
    return table


def best_so_far(data: ReportData) -> list[tuple[Trial, float | None]]:
    """Find the fastest trial of every workload, with its speedup by the search's times, best first.

    The speedup is None where the baseline's time is not known, or all times are a CPU's.
    """
    found: list[tuple[Trial, float | None]] = []
    for workload, trials in data.by_workload().items():
        for trial in fastest(trials, 1):
            us = None if data.on_cpu else data.baseline_us(workload)
            found.append((trial, us / trial.time_us if us and trial.time_us else None))
    return sorted(found, key=lambda pair: -(pair[1] or 0.0))


def so_far_table(
    best: Sequence[tuple[Trial, float | None]], *, width: int, most: int | None
) -> Table:
    """Lay out what a search that has not ended has found, which no comparison has proved."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("best so far", overflow="fold")
    table.add_column("us", justify="right", no_wrap=True)
    table.add_column("speedup,\nnot proved", justify="right", no_wrap=True)
    rows = best[:most]
    longest = max((len(formatting.pairs(t.workload.values)) for t, _ in rows), default=0)
    with_config = width - longest - 24 >= max((len(str(t.config)) for t, _ in rows), default=0)
    if with_config:
        table.add_column("config", ratio=1)
    for trial, speedup in rows:
        us = "-" if trial.time_us is None else formatting.microseconds(trial.time_us)
        ratio = _dash(speedup, formatting.ratio)
        config = [Text(str(trial.config))] if with_config else []
        table.add_row(Text(str(trial.workload)), us, ratio, *config)
    return table


def config_lines(results: Sequence[Result]) -> list[str]:
    """Write the configs where a table has no room for them; nothing where there is none."""
    common = formatting.common(results)
    lines = [f"{result.workload}: {_own_config(result, common)}" for result in results]
    return [*lines, f"everywhere: {formatting.pairs(common)}"] if common else lines


def _own_config(result: Result, common: Mapping[str, Value]) -> str:
    return formatting.pairs(formatting.without(result.config, common)) or "-"


def _choose_rows(results: Sequence[Result], most: int | None) -> list[tuple[str, Result]]:
    """Order results, with what is special of each; the first `most` of them."""
    ordered = sorted(results, key=lambda result: result.workload.held_out)
    special: dict[Workload, str] = {}
    if most is not None and len(ordered) > most and not any(map(is_of_cpu, ordered)):
        tuned = [one for one in ordered if not one.workload.held_out] or ordered
        # Of what is too noisy to say neither a best nor a worst is known.
        judged = [result for result in tuned if not result.noisy] or tuned
        judged.sort(key=lambda one: -one.speedup)
        first = judged[0], judged[-1], judged[len(judged) // 2]
        # The median of few is one of the others, too.
        for result, place in zip(first, ("best", "worst", "median"), strict=True):
            special.setdefault(result.workload, place)
        ordered = [*dict.fromkeys((*first, *ordered))]
    rows = []
    for result in ordered[:most]:
        held_out = HELD_OUT if result.workload.held_out else ""
        kept = KEPT if result.baseline_wins and not is_of_cpu(result) else ""
        said = (special.get(result.workload, ""), held_out, kept)
        rows.append((", ".join(part for part in said if part), result))
    return rows


def _choose_columns(
    rows: Sequence[tuple[str, Result]], names: Sequence[Text], peers: Sequence[PeersOn], width: int
) -> list[_Column]:
    """Make the columns that fit, in the order in which they are read."""
    labels, results = [Text(label, style="dim") for label, _ in rows], [r for _, r in rows]
    best = {one.workload: one for one in peers if one.best is not None}
    around = any(result.surroundings for result in results)
    us, micro = "chain us" if around else "us", formatting.microseconds

    def column(
        head: str, write: Callable[[Result], Text | str], *, needed: bool = False
    ) -> _Column:
        return _Column(head, "right", [write(result) for result in results], needed)

    def alone(r: Result) -> Text:
        if r.alone_us is None or r.alone_speedup is None:
            return Text("-" if r.surroundings else "only")
        return Text(micro(r.alone_us)).append(f" {formatting.ratio(r.alone_speedup)}", style="dim")

    def timed(write: Callable[[Result], Text]) -> Callable[[Result], Text]:
        return lambda r: Text("-", style="dim") if is_of_cpu(r) else write(r)

    def ratio(r: Result) -> Text:
        styles = {"faster": "bold green", "slower": "bold red"}
        return Text(formatting.ratio(r.speedup), styles.get(formatting.significance(r), ""))

    def best_peer(r: Result) -> Text:
        on = best.get(r.workload)
        peer = on.best if on else None
        if on is None or peer is None or peer.time_us is None or peer.speedup is None:
            return Text("-")
        text = Text(f"{peer.name} {micro(peer.time_us)}")
        if on.served != on.winner:
            return text  # the ratio is to what serves, which is not in the row
        style = "" if not peer.different else "bold green" if peer.speedup > 1.0 else "bold red"
        return text.append(" ").append(formatting.ratio(peer.speedup), style=style)

    def interval(r: Result) -> Text:
        return Text(formatting.interval(r.interval), style="dim")

    columns = [_Column("", "left", labels, needed=True)] if any(label for label, _ in rows) else []
    columns.append(_Column("workload", "left", names, needed=True))
    if any(result.candidate != INITIAL for result in results):
        columns.append(column("from", lambda r: "-" if r.baseline_wins else r.candidate))
    if all(map(is_of_cpu, results)):
        verified = "verified; a GPU has to time it"
        return [*columns, column("", lambda _: Text(verified, style="dim"), needed=True)]
    columns += [
        column(f"baseline\n{us}", lambda r: micro(r.baseline_us), needed=True),
        column(f"tuned\n{us}", lambda r: micro(r.tuned_us), needed=True),
        column("speedup", timed(ratio), needed=True),
        column("95 % interval", timed(interval), needed=True),
    ]
    if best:
        columns += [column("best peer\nus, against it", best_peer)]
    columns += [column("roof-\nline", lambda r: _dash(roofline_of(r), formatting.percent))]
    if around:
        columns += [column("alone\nus", alone)]
    columns += [
        column(
            "occupancy,\nlimited by",
            lambda r: _dash(
                r.occupancy,
                lambda o: Text(formatting.percent(o.share)).append(f" {o.limiter}", style="dim"),
            ),
        ),
        column("regs", lambda r: _dash(r.resources and r.resources.registers, str)),
    ]
    left = width - sum(one.width for one in columns if one.needed)
    kept = []
    for one in columns:
        if one.needed or one.width <= left:
            kept.append(one)
            left -= 0 if one.needed else one.width
    return kept


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
    optional = {
        "bits": bits,
        **mutants_json(data),
        **course_json(data),
        "roundings": dict(zip(("winners", "baseline"), off, strict=True)) if off else None,
        "extremes": dict(declared.extremes) if declared else None,
        "constants": list(declared.constants) if declared else None,
        "unvaried": unvaried_workloads(data),
    }
    return {
        **pick(data, "kernel device recorded"),
        "protocol": protocol_of(data),
        **pick(data, "on_cpu", verified_by=data.verified_by or None),
        **pick(data, "session", seconds=round(data.seconds, 3)),
        "trials": {status.value: count for status, count in data.counts().items()},
        "checks": counts_by_kind(data),
        "surroundings": dict(data.surroundings),
        "workloads": [
            {
                **pick(result, "workload held_out=workload.held_out baseline_us tuned_us"),
                **pick(
                    None if data.on_cpu else result,
                    "speedup interval",
                    verdict=None if data.on_cpu else formatting.significance(result),
                ),
                "surroundings": result.surroundings or None,
                **pick(result, "alone_us alone_baseline_us"),
                **pick(None if data.on_cpu else result, "alone_speedup"),
                "serves": server_of(data.dispatch, result),
                "roofline": plain(roofline_of(result)),
                **pick(result, "candidate config registers=resources.registers"),
                "occupancy": None if result.occupancy is None else result.occupancy.share,
                **({"peers": peers[result.workload]} if result.workload in peers else {}),
                **({"gpu": name} if (name := device_of(data, result)) else {}),
            }
            for result in data.results
        ],
        **({"undecided": dict(data.undecided)} if data.undecided else {}),
        **({"mix": _mix_json(data)} if data.mix and data.tuned else {}),
        **({"dispatch": dispatch_json(data.dispatch)} if data.dispatch else {}),
        "rounds": [_round_json(round_data) for round_data in data.rounds],
        **energy,
        **{name: value for name, value in optional.items() if value},
    }


def _mix_json(data: ReportData) -> dict[str, object]:
    """Say how often each tuned workload of a mix comes, and what that takes before and after."""
    weights = {str(result.workload): data.mix[result.workload] for result in data.tuned}
    if data.on_cpu:
        return {"weights": weights, "baseline_us": None, "tuned_us": None, "speedup": None}
    baseline_us = sum(data.mix[result.workload] * result.baseline_us for result in data.tuned)
    speedup = data.average(data.tuned)
    return {
        "weights": weights,
        "baseline_us": formatting.round_value(baseline_us),
        "tuned_us": formatting.round_value(baseline_us / speedup),
        "speedup": formatting.round_value(speedup),
    }


def _round_json(round_data: RoundData) -> dict[str, object]:
    record = round_data.record
    return {
        **pick(round_data, "round=number", answer=record.answer or None, end=round_data.end),
        **pick(record, "candidate", base=record.base or None),
        **pick(record, "hypothesis=idea.hypothesis change=idea.change"),
        "expectations": [
            {
                **pick(moved, "metric", workload=moved.workload or None),
                # As the agent wrote it.
                "predicted": moved.predicted,
                **pick(moved, "measured=actual"),
            }
            for moved in round_data.expected
        ],
        **pick(
            round_data, "speedup over_base default_speedup=gain.default search_gain=gain.search"
        ),
        "refused": list(record.problems),
        "tokens": pick(round_data.spent, "input cached output"),
        "cost": None if round_data.spent.cost is None else round(round_data.spent.cost, 6),
    }


def _dash(value: T | None, written: Callable[[T], str | Text]) -> str | Text:
    return "-" if value is None else written(value)


def trials_frame(data: ReportData) -> DataFrame:
    """Lay the trials out, one a row in the order they ended.

    Axes and parameters are columns of their own, parameters as `config.NAME`, and an axis that
    is named as another column as `axis.NAME`; times are in microseconds, empty where a trial has
    none.
    """
    from pandas import DataFrame

    rows = []
    for trial, elapsed_s in data.records:
        head = {
            "elapsed_s": round(elapsed_s, 3),
            "stage": trial.stage,
            "candidate": trial.candidate,
        }
        measurement = trial.measurement
        rest = {
            **{f"config.{name}": value for name, value in trial.config.items()},
            "status": trial.status.value,
            "reason": trial.reason,
            "time_us": trial.time_us,
            "samples": None if measurement is None else len(measurement.times_us),
            "stopped_early": getattr(measurement, "stopped_early", None),
            **{name: getattr(trial.resources, name, None) for name in RESOURCES},
            "occupancy": getattr(trial.occupancy, "share", None),
            "limited_by": getattr(trial.occupancy, "limiter", None),
        }
        own = head.keys() | rest.keys()
        axes = {f"axis.{n}" if n in own else n: size for n, size in trial.workload.values.items()}
        rows.append({**head, **axes, **rest})
    return DataFrame(rows).convert_dtypes()
