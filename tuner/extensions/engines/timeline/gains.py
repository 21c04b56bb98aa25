"""What the best that sessions know of would give to a step, and what it gave."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot
from pathlib import Path

from tuner.device.recorded.known_gpus import known_gpu
from tuner.dispatch.evidence import evidence, find_wrong_variants, split
from tuner.extensions.engines.timeline.operators import Label
from tuner.extensions.engines.timeline.table import Best, Row
from tuner.extensions.engines.timeline.trace import Trace
from tuner.model.errors import InputError
from tuner.model.kernel import Workload
from tuner.model.statistics import cost_us, paired_interval, unpaired_interval
from tuner.session.session import Session
from tuner.session.store import DATABASE
from tuner.space.choices import chosen_operators
from tuner.space.load import Definition

# Choices of how a kernel is tuned: a step has its own.
_HOW = frozenset({"ROUTING", "CONFIGS"})


@dataclass(frozen=True, slots=True)
class KnownBest:
    """A session's best, and what it is of."""

    operator: str
    choices: Mapping[str, str]
    workload: Workload
    best: Best


@dataclass(frozen=True, slots=True)
class Gain:
    """A share of a time that is saved, and the bounds of its interval."""

    share: float
    low: float
    high: float

    def times(self, factor: float) -> Gain:
        return Gain(self.share * factor, self.low * factor, self.high * factor)


def known_bests(
    folders: Iterable[Path], gpu: str, spaces: Mapping[str, Definition]
) -> tuple[KnownBest, ...]:
    """Collect the best of each workload from sessions, or folders of them, on this GPU.

    Where rows keep their bits, as `spaces` or a session says, no peer counts: nobody has asked
    whether it keeps them. Raises `InputError` where a folder has none.
    """
    bests: list[KnownBest] = []
    for folder in folders:
        count = len(bests)
        for database in sorted(folder.rglob(DATABASE)):
            with Session.open(database.parent, read_only=True) as session:
                device = session.environment.get("device", "")
                if device == gpu or (known_gpu(gpu) and known_gpu(device) == known_gpu(gpu)):
                    space = spaces.get(session.manifest.kernel)
                    invariant = session.manifest.config.invariant
                    keeps_rows = invariant or bool(space and space.spec.invariant)
                    bests += _bests_in(session, keeps_rows=keeps_rows)
        if len(bests) == count:
            raise InputError(
                f"no session in it compared anything on {gpu or 'the GPU of the trace'}",
                path=folder,
                remedy="name the folder of a finished session, or one that such lie in",
            )
    return tuple(bests)


def _bests_in(session: Session, *, keeps_rows: bool) -> Iterator[KnownBest]:
    config, seed = session.manifest.config, session.manifest.config.seed
    wrong = find_wrong_variants(session.trials(stage=None), session.checks())
    comparisons = {comparison.workload: comparison for comparison in session.comparisons()}
    for workload, ours in evidence(comparisons.values(), wrong, seed).items():
        comparison = comparisons[workload]
        _, rounds = split(comparison)
        production = (
            comparison.column(comparison.production)
            if comparison.production in comparison.peers
            else 0
        )
        interval = paired_interval if comparison.paired else unpaired_interval
        bests = []
        if ours:
            side = ours[0].production or ours[0]
            bests.append(Best("config", ours[0].time_us, side.speedup, side.interval))
        for peer in () if keeps_rows else comparison.peers:
            if (at := comparison.column(peer)) != production:
                today_us, peer_us = (
                    tuple(row[place] for row in rounds) for place in (production, at)
                )
                bests.append(Best(peer, cost_us(peer_us), *interval(today_us, peer_us, seed)))
        if bests:
            best = max(bests, key=lambda found: found.speedup)
            yield KnownBest(session.manifest.kernel, config.operators, workload, best)


def best_for(
    label: Label, bests: Iterable[KnownBest], spaces: Mapping[str, Definition]
) -> Best | None:
    """Find what is the fastest for an operator with these choices and this workload."""

    def complete(choices: Mapping[str, str]) -> dict[str, str]:
        space = spaces.get(label.operator)
        every = chosen_operators(space.spec, choices) if space else choices
        return {name: value for name, value in every.items() if name not in _HOW}

    if label.workload is None:
        return None
    wanted, own = label.workload.values, complete(dict(label.choices))
    fitting = (
        known_best.best
        for known_best in bests
        if known_best.operator == label.operator
        and known_best.workload.values == wanted
        and complete(known_best.choices) == own
    )
    return max(fitting, key=lambda best: best.speedup, default=None)


def predicted_gain(row: Row) -> Gain | None:
    """Say what share of all kernel time the best for a row would save, nothing where it loses.

    Nor is there anything where a kernel of ours ran. Elsewhere what ran need not be what the best
    was compared with: more than to the best's own time is never saved.
    """
    if row.best is None or row.label.engine == "tune":
        return None
    values = (row.best.speedup, *row.best.interval)
    most = 1.0 - row.best.us / row.per_call_us if row.us else 0.0
    share, low, high = (row.share * max(0.0, min(1.0 - 1.0 / value, most)) for value in values)
    return Gain(share, low, high)


def step_gain(rows: Iterable[Row], trace: Trace) -> Gain | None:
    """Add up what the rows' bests would save of the step; errors are independent of each other.

    What runs beside other work saves the step less, by the share of all that does.
    """
    gains = [gain for row in rows if (gain := predicted_gain(row)) is not None]
    if not gains or not trace.span_us:
        return None
    share = sum(gain.share for gain in gains)
    low = share - hypot(*(gain.share - gain.low for gain in gains))
    high = share + hypot(*(gain.high - gain.share for gain in gains))
    return Gain(share, low, high).times(trace.busy_us / trace.span_us)


def _place(row: Row) -> object:
    label = row.label
    return (label.operator, label.workload) if label.operator else row.name


def with_after(rows: Sequence[Row], after: Sequence[Row]) -> tuple[Row, ...]:
    """Set beside each row how long a call takes in a trace of afterwards, whoever's it is."""
    taken = {_place(row): row for row in reversed(after)}
    found = ((row, taken.get(_place(row))) for row in rows)
    return tuple(
        replace(row, after_us=later.per_call_us if later else None) for row, later in found
    )


def measured_gain(
    rows: Sequence[Row], trace: Trace, after: Sequence[Row], later: Trace
) -> float | None:
    """Say what share of a step was saved: of one, as traces may have several.

    How many more there are afterwards the calls of what takes longest say; None where it has none.
    """
    calls = {_place(row): row.calls for row in reversed(after)}
    common = (row for row in rows if _place(row) in calls)
    steps = next((calls[_place(row)] / row.calls for row in common), None)
    return None if steps is None else 1.0 - later.span_us / steps / trace.span_us
