"""The section on the dispatch: which variant serves which shape, and what its rule is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from markupsafe import Markup

from tuner.dispatch.evidence import split
from tuner.dispatch.of_session import SessionDispatch
from tuner.dispatch.table import Choice, Entry, HeldOut, Table
from tuner.model.config import Config
from tuner.model.errors import InputError
from tuner.model.kernel import Workload
from tuner.model.statistics import Interval, geometric_mean, paired_interval, unpaired_interval
from tuner.model.trial import RESOLUTION, Comparison, PeerTrial, Result, Status, Variant
from tuner.report import charts, formatting
from tuner.report.data import ReportData
from tuner.report.formatting import interval, joined, microseconds, ratio
from tuner.session.session import Session

WANTED_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A table with the measurements that might shrink it."""

    table: Table
    wanted: tuple[tuple[Workload, Variant], ...] = ()


@dataclass(frozen=True, slots=True)
class Served:
    """One tuned workload: who serves it, and at what price against its own best."""

    workload: str
    by: str
    time: str
    speedup: str
    slowdown: str
    reason: str


@dataclass(frozen=True, slots=True)
class ChosenVariant:
    """One variant with the workloads that it serves."""

    number: int
    candidate: str
    config: Config
    serves: str


@dataclass(frozen=True, slots=True)
class Checked:
    """What the rule chooses on a held-out workload."""

    workload: str
    nearest: str
    by: str
    speedup: str
    verdict: str


def dispatch_of(session: Session) -> Dispatch | None:
    """Make the table of a session as `tune export` does; None where there is none."""
    if not session.comparisons():
        return None
    try:
        manifest = session.manifest
        choice = Choice(manifest.variants_within, manifest.max_variants)
        made = SessionDispatch(session, choice)
    except InputError:
        return None
    return Dispatch(made.table, made.wanted)


def summary(dispatch: Dispatch) -> str:
    """Say in a sentence how many variants serve how many workloads."""
    table = dispatch.table
    count, total = len(table.kernels), len(table.entries)
    served = sum(entry.kernel is not None for entry in table.entries)
    if not count:
        return f"The baseline serves all of {_workloads(total)}: no variant is proved faster."
    rest = total - served
    baseline = f", the baseline {rest}" if rest else ""
    return (
        f"{count} variant{'s' * (count != 1)} serve{'s' * (count == 1)} {served} of "
        f"{_workloads(total)}, {table.choice}{baseline}."
    )


def chosen(dispatch: Dispatch) -> Sequence[ChosenVariant]:
    """List the variants by number."""
    table = dispatch.table
    return [
        ChosenVariant(
            number,
            kernel.variant.candidate,
            kernel.variant.config,
            joined([str(one.workload) for one in table.entries if one.kernel == kernel]),
        )
        for number, kernel in enumerate(table.kernels, start=1)
    ]


def served(dispatch: Dispatch) -> Sequence[Served]:
    """List the tuned workloads."""
    return [_served(entry, dispatch.table) for entry in dispatch.table.entries]


def checked(dispatch: Dispatch) -> Sequence[Checked]:
    """List the held-out workloads."""
    return [_checked(one, dispatch.table) for one in dispatch.table.held_out]


def wanted(dispatch: Dispatch) -> tuple[Sequence[tuple[str, Config]], int]:
    """List the first measurements that might shrink the set, and count the others."""
    pairs = [(str(workload), variant.config) for workload, variant in dispatch.wanted]
    return pairs[:WANTED_SHOWN], max(len(pairs) - WANTED_SHOWN, 0)


def _served(entry: Entry, table: Table) -> Served:
    one = entry.compared
    return Served(
        workload=str(entry.workload),
        by=_by(table.number(entry.kernel)),
        time=microseconds(one.time_us) if one else "-",
        speedup=f"{ratio(one.speedup)} {interval(one.interval)}" if one else "-",
        slowdown="-" if entry.slowdown is None else f"{entry.slowdown:.3f}x",
        reason=entry.reason,
    )


def _checked(one: HeldOut, table: Table) -> Checked:
    compared = one.compared
    verdict = one.verdict + ("; the baseline serves" if one.refuted else "")
    return Checked(
        workload=str(one.workload),
        nearest=str(one.nearest) if one.nearest else "-",
        by=_by(table.number(one.kernel)),
        speedup=f"{ratio(compared.speedup)} {interval(compared.interval)}" if compared else "-",
        verdict=verdict,
    )


def _by(number: int) -> str:
    return f"v{number}" if number else "baseline"


def _workloads(count: int) -> str:
    return f"{count} tuned workload{'s' * (count != 1)}"


# 0.1 ns, and a hundredth of a per cent: far below the noise of any measurement.
DIGITS = 4
# A peer that is faster by less than this is not said to be ahead.
AS_FAST = 0.02


@dataclass(frozen=True, slots=True)
class Against:
    """One peer on one workload: its time, and what serves there against it; None if not compared.

    `speedup` is the peer's time over that of what serves, with its 95 % interval;
    `isolated_speedup` the same where what serves does not overlap the calls before and after it,
    None where it never does.
    """

    name: str
    status: Status
    reason: str = ""
    time_us: float | None = None
    speedup: float | None = None
    interval: Interval | None = None
    isolated_speedup: float | None = None

    @property
    def different(self) -> bool:
        """Whether the interval excludes 1, by more than the resolution."""
        if self.interval is None:
            return False
        low, high = self.interval
        return low > 1.0 + RESOLUTION or high < 1.0 - RESOLUTION


@dataclass(frozen=True, slots=True)
class PeersOn:
    """The peers on one workload; `served` is what the dispatch serves there, None the baseline.

    `served_us` is its time in the rounds that they shared, None where nothing was compared;
    `isolated_us` that without programmatic dependent launch, None where it isn't used.
    """

    workload: Workload
    served: Variant | None
    served_us: float | None
    paired: bool
    peers: tuple[Against, ...]
    isolated_us: float | None = None

    @property
    def best(self) -> Against | None:
        """The fastest of those that were compared."""
        timed = [one for one in self.peers if one.time_us is not None]
        return min(timed, key=lambda one: one.time_us or 0.0, default=None)


@dataclass(frozen=True, slots=True)
class Cell:
    """One peer's place in a row of the table, in words; `trouble` is why there is no time."""

    time: str = ""
    speedup: str = ""
    trouble: str = ""
    reason: str = ""
    slower: bool = False
    best: bool = False


@dataclass(frozen=True, slots=True)
class PeersRow:
    """One workload of the table."""

    workload: str
    held_out: bool
    served: str
    time: str
    isolated: str
    paired: bool
    cells: tuple[Cell, ...]


def peers_on(data: ReportData) -> tuple[PeersOn, ...]:
    """Put the peers of every workload that has a result against what serves there."""
    trials: dict[Workload, list[PeerTrial]] = {}
    for trial in data.peers:
        trials.setdefault(trial.workload, []).append(trial)
    return tuple(
        _on(data, result, trials[result.workload])
        for result in data.results
        if result.workload in trials
    )


def peers_names(found: Sequence[PeersOn]) -> tuple[str, ...]:
    """Name the peers in their order."""
    return tuple(dict.fromkeys(peer.name for one in found for peer in one.peers))


def peers_rows(found: Sequence[PeersOn], *, recorded: bool) -> list[PeersRow]:
    """Lay the table out: a row for each workload, a cell for each peer."""
    columns = peers_names(found)
    return [_row(one, columns, recorded) for one in found]


def peers_chart(found: Sequence[PeersOn]) -> Markup | None:
    """Draw what serves each workload against the best peer there; None where none was timed."""
    bars = [
        charts.Speedup(
            f"{one.workload}, {best.name}",
            best.speedup or 1.0,
            best.interval or (1.0, 1.0),
            one.workload.held_out,
            best.different,
        )
        for one in found
        if (best := one.best)
    ]
    title = "Speedup over the best peer with 95 % intervals"
    return charts.speedups(bars, title, "best peer") if bars else None


def peers_lines(found: Sequence[PeersOn], *, recorded: bool) -> list[str]:
    """Say in a line how the best peers compare, and in one for each peer what was wrong with it."""
    return [
        *(f"peers          {text}" for text in (peers_summary(found),) if text),
        *(f"               {text}" for text in peers_troubles(found, recorded=recorded)),
    ]


def peers_summary(found: Sequence[PeersOn]) -> str:
    """Compare with the best peer of each tuned workload, of all where none was tuned."""
    tuned = [one for one in found if not one.workload.held_out and one.best]
    judged = tuned or [one for one in found if one.best]
    best = [one.best.speedup for one in judged if one.best and one.best.speedup]
    if not best:
        return ""
    kind = "tuned" if tuned else "held-out"
    behind = [str(o.workload) for o, ratio in zip(judged, best, strict=True) if ratio < 1 - AS_FAST]
    mean, as_fast = formatting.ratio(geometric_mean(best)), len(best) - len(behind)
    text = (
        f"{mean}{_isolated(judged)} against the best peer of each workload (geometric mean over "
        f"{len(best)} {kind}); as fast or faster, within {formatting.percent(AS_FAST)}, on "
        f"{as_fast} of {len(best)}"
    )
    return f"{text}; behind on {formatting.joined(behind)}." if behind else f"{text}."


def _isolated(judged: Sequence[PeersOn]) -> str:
    """Where calls overlap their neighbours, say what is left when they don't."""
    best = [one.best for one in judged if one.best]
    if all(one.isolated_speedup is None for one in best):
        return ""
    mean = geometric_mean([one.isolated_speedup or one.speedup or 1.0 for one in best])
    return f" ({formatting.ratio(mean)} without overlapping the calls before and after)"


def peers_troubles(found: Sequence[PeersOn], *, recorded: bool) -> list[str]:
    """Say of each peer that was not compared everywhere what stood against it, and where."""
    groups: dict[tuple[str, Status], list[tuple[Workload, str]]] = {}
    for one in found:
        for peer in one.peers:
            if peer.status is not Status.CORRECT:
                kind = peer.name, peer.status
                groups.setdefault(kind, []).append((one.workload, peer.reason))
    lines = []
    for (name, status), where in groups.items():
        word = _word(status, recorded)
        places = formatting.joined([str(workload) for workload, _ in where])
        count = "" if len(where) == len(found) else f" on {places}"
        first = where[0][1].strip().splitlines()
        lines.append(f"{name} {word}{count}: {first[0] if first else 'no reason recorded'}")
    return lines


def peers_json(one: PeersOn) -> dict[str, dict[str, object]]:
    """Make the object that `--json` prints of a workload's peers."""
    return {peer.name: _json_of(peer, one.paired) for peer in one.peers}


def _json_of(peer: Against, paired: bool) -> dict[str, object]:
    bounds = None if peer.interval is None else [round(bound, DIGITS) for bound in peer.interval]
    return {
        "status": peer.status.value,
        "reason": peer.reason,
        "us": _rounded(peer.time_us),
        "tuned_speedup": _rounded(peer.speedup),
        "interval": bounds,
        "isolated_speedup": _rounded(peer.isolated_speedup),
        "paired": paired,
    }


def _on(data: ReportData, result: Result, trials: Sequence[PeerTrial]) -> PeersOn:
    workload = result.workload
    compared = [one for one in data.comparisons if one.workload == workload and one.peers]
    served = _served_by(data.dispatch, result)
    known = [one for one in compared if served is None or served in one.finalists]
    if not known:
        # Chosen for a shape where it was not compared, or compared before there were peers.
        served = None if result.baseline_wins else result.variant
        known = [one for one in compared if served is None or served in one.finalists]
    if not known:
        against = tuple(Against(one.name, one.status, one.reason) for one in trials)
        return PeersOn(workload, served, None, True, against)
    last, seed = known[-1], data.seed or 0
    _, reporting = split(last.rounds, len(last.finalists))
    served_us = median(row[last.column(served)] for row in reporting)
    isolated_us = last.isolated_us[last.column(served)] if last.isolated_us else None
    against = tuple(_against(last, served, trial, seed) for trial in trials)
    return PeersOn(workload, served, served_us, last.paired, against, isolated_us)


def _against(
    comparison: Comparison, served: Variant | None, trial: PeerTrial, seed: int
) -> Against:
    plain = Against(trial.name, trial.status, trial.reason)
    if trial.status is not Status.CORRECT or trial.name not in comparison.peers:
        return plain
    # The rounds that chose the winner among several would flatter it.
    _, reporting = split(comparison.rounds, len(comparison.finalists))
    peer_us = [row[comparison.column(trial.name)] for row in reporting]
    served_us = [row[comparison.column(served)] for row in reporting]
    interval = paired_interval if comparison.paired else unpaired_interval
    speedup, bounds = interval(peer_us, served_us, seed)
    time_us, isolated = median(peer_us), comparison.isolated_us
    isolated_us = isolated[comparison.column(served)] if isolated else None
    return replace(
        plain,
        time_us=time_us,
        speedup=speedup,
        interval=bounds,
        isolated_speedup=None if isolated_us is None else time_us / isolated_us,
    )


def _served_by(dispatch: Dispatch | None, result: Result) -> Variant | None:
    """Tell what the dispatch serves, or the result where there is no dispatch."""
    table = None if dispatch is None else dispatch.table
    for entry in () if table is None else table.entries:
        if entry.workload == result.workload:
            return None if entry.kernel is None else entry.kernel.variant
    for one in () if table is None else table.held_out:
        if one.workload == result.workload:
            return None if one.kernel is None or one.refuted else one.kernel.variant
    return None if result.baseline_wins else result.variant


def _row(one: PeersOn, columns: Sequence[str], recorded: bool) -> PeersRow:
    known = {peer.name: peer for peer in one.peers}
    return PeersRow(
        workload=str(one.workload),
        held_out=one.workload.held_out,
        served="baseline" if one.served is None else "tuned",
        time="-" if one.served_us is None else formatting.microseconds(one.served_us),
        isolated="" if one.isolated_us is None else formatting.microseconds(one.isolated_us),
        paired=one.paired,
        cells=tuple(_cell(known.get(name), one.best, recorded) for name in columns),
    )


def _cell(peer: Against | None, best: Against | None, recorded: bool) -> Cell:
    if peer is None:
        return Cell()
    if peer.time_us is None or peer.speedup is None or peer.interval is None:
        trouble = "-" if peer.status is Status.CORRECT else _word(peer.status, recorded)
        return Cell(trouble=trouble, reason=peer.reason)
    return Cell(
        time=formatting.microseconds(peer.time_us),
        speedup=f"{formatting.ratio(peer.speedup)} {formatting.interval(peer.interval)}",
        slower=peer.interval[1] < 1.0 - RESOLUTION,
        best=peer is best,
    )


def _word(status: Status, recorded: bool) -> str:
    if status is Status.NOT_RECORDED:
        return "not in the recording" if recorded else "not installed"
    words = {
        Status.CONSTRAINT: "not meant for this",
        Status.LAUNCH: "failed",
        Status.TIMEOUT: "timed out",
    }
    return words.get(status, status.value)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)
