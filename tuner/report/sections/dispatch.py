"""The sections on the variant that serves each shape: the dispatch, and the peers against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tuner.dispatch.evidence import Compared, OverWinner, over_winner, productions, split, winner_of
from tuner.dispatch.kernels import VariantKernel
from tuner.dispatch.table import DispatchTable, Entry, HeldOut
from tuner.model.kernel import Workload
from tuner.model.statistics import (
    Interval,
    average_speedup,
    cost_us,
    paired_interval,
    unpaired_interval,
)
from tuner.model.trial import INITIAL, RESOLUTION, PeerTrial, Result, Status, Variant
from tuner.report import charts
from tuner.report.data import Dispatch, ReportData
from tuner.report.formatting import interval, join_names, microseconds, percent, ratio, significance
from tuner.report.pages import write_pairs
from tuner.report.serial import pick
from tuner.report.tables import Column, Field, join, list_table, soft, tag

WANTED_SHOWN = 8
# A peer that is faster by less than this is not said to be ahead.
AS_FAST = 0.02


def dispatch_summary(dispatch: Dispatch) -> str:
    table = dispatch.table
    count, total = len(table.kernels), len(table.entries)
    workloads = f"{total} tuned workload{'s' * (total != 1)}"
    served = sum(entry.kernel is not None for entry in table.entries)
    if not count:
        return f"Production's serves all of {workloads}: no winner is proved faster."
    rest = total - served
    others = f", production's {rest}" if rest else ""
    return (
        f"{count} variant{'s' * (count != 1)} serve{'s' * (count == 1)} {served} of "
        f"{workloads}, {table.choice}{others}."
    )


def curve_chart(dispatch: Dispatch) -> Markup | None:
    """Draw what few variants gain over the baseline, up to all; None where there is no choice."""
    *fewer, every = dispatch.curve or (None,)
    if every is None or not fewer:
        return None
    bars = [
        charts.Bar(
            f"{point.variants} variant{'s' * (point.variants != 1)}{', chosen' * point.chosen}",
            point.speedup,
            f"{ratio(point.speedup)}, {percent(point.speedup / every.speedup)} of all",
        )
        for point in dispatch.curve
    ]
    return charts.bars("What few variants gain over the baseline", bars)


def dispatch_json(dispatch: Dispatch) -> dict[str, object]:
    """Make what `--json` says of the set, and of what fewer variants would gain."""
    curve = [pick(point, "variants speedup chosen") for point in dispatch.curve]
    table = dispatch.table
    return {"variants": len(table.kernels), "choice": str(table.choice), "curve": curve}


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
    def faster(self) -> bool:
        """Whether the whole interval says that the peer is faster, by more than the resolution."""
        return self.interval is not None and self.interval[1] < 1.0 - RESOLUTION

    @property
    def different(self) -> bool:
        return self.faster or (self.interval is not None and self.interval[0] > 1.0 + RESOLUTION)

    def trouble(self, *, recorded: bool) -> str:
        """Say briefly why a peer was not compared, or on which inputs it is wrong."""
        if self.status is Status.CORRECT and self.reason:
            return "timed, though not within the tolerance on all inputs"
        if self.status is Status.NOT_RECORDED:
            return "not in the recording" if recorded else "not installed"
        words = {
            Status.CORRECT: "-",
            Status.CONSTRAINT: "not meant for this",
            Status.LAUNCH: "failed",
            Status.TIMEOUT: "timed out",
        }
        return words.get(self.status, self.status.value)


@dataclass(frozen=True, slots=True)
class PeersOn:
    """The peers on one workload; `served` is what the dispatch serves there, None the baseline.

    It is a peer's name where production calls that and no variant is faster, and `winner` is the
    config of the workload's result. `served_us` is its time in the rounds that they shared, None
    where nothing was compared; `isolated_us` that without programmatic dependent launch, None where
    it isn't used. In a mix it has a `weight`.
    """

    workload: Workload
    winner: Variant
    served: Variant | str | None
    served_us: float | None
    paired: bool
    peers: tuple[Against, ...]
    isolated_us: float | None = None
    weight: float | None = None

    @property
    def server(self) -> str:
        if isinstance(self.served, Variant):
            return "tuned" if self.served == self.winner else "tuned, in the winner's place"
        return f"production's: {self.served or 'the baseline'}"

    @property
    def best(self) -> Against | None:
        """The fastest of those that were compared."""
        timed = [peer for peer in self.peers if peer.time_us is not None]
        return min(timed, key=lambda peer: peer.time_us or 0.0, default=None)

    def named(self, name: str) -> Against | None:
        return next((peer for peer in self.peers if peer.name == name), None)


def server_of(dispatch: Dispatch | None, result: Result) -> str | None:
    """Name the variant that serves a result's workload; None without a dispatch."""
    found = dispatch.table.serving(result.workload) if dispatch else None
    if found is None:
        return None
    return "tuned" if found[0] is not None else productions(found[1])


def over_winners(data: ReportData) -> dict[Workload, OverWinner]:
    """Compare what the dispatch serves with the winner, on workloads where these differ."""
    last = {one.workload: one for one in data.comparisons}
    return {
        entry.workload: over_winner(comparison, entry.kernel.variant, data.seed or 0)
        for entry in (data.dispatch.table.entries if data.dispatch else ())
        if entry.kernel is not None
        and (comparison := last[entry.workload])
        and entry.kernel.variant != winner_of(comparison)
    }


def peers_on(data: ReportData) -> tuple[PeersOn, ...]:
    """Put the peers of every workload that has a result against what serves there."""
    trials: dict[Workload, list[PeerTrial]] = {}
    for trial in data.peers:
        trials.setdefault(trial.workload, []).append(trial)
    return tuple(_on(data, r, trials[r.workload]) for r in data.results if r.workload in trials)


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
    told = [f"               {text}" for text in peers_troubles(found, recorded=recorded)]
    summary = peers_summary(found)
    return [f"peers          {summary}", *told] if summary else told


def best_peers(found: Sequence[PeersOn]) -> list[tuple[Workload, Against]]:
    """List the best peer of each tuned workload, of all where none was tuned."""
    compared = [(one.workload, one.best) for one in found if one.best and one.best.speedup]
    return [pair for pair in compared if not pair[0].held_out] or compared


def over_best_peers(found: Sequence[PeersOn], *, isolated: bool = False) -> float | None:
    """Average the speedups over the best peers; None where none was compared."""
    judged, weights = best_peers(found), {one.workload: one.weight for one in found}
    speedups = [(isolated and best.isolated_speedup) or best.speedup or 1.0 for _, best in judged]
    before = [weight * (best.time_us or 0.0) for w, best in judged if (weight := weights[w])]
    return average_speedup(speedups, before) if judged else None


def peers_summary(found: Sequence[PeersOn]) -> str:
    """Compare with the best peer of each tuned workload, of all where none was tuned."""
    judged, mean = best_peers(found), over_best_peers(found)
    if mean is None:
        return ""
    behind = [str(workload) for workload, best in judged if (best.speedup or 1.0) < 1 - AS_FAST]
    isolated = ""
    if any(best.isolated_speedup is not None for _, best in judged):
        alone = over_best_peers(found, isolated=True) or mean
        isolated = f" ({ratio(alone)} without overlapping the calls before and after)"
    count, kind = len(judged), "held-out" if judged[0][0].held_out else "tuned"
    over = "time in all of a mix of" if found[0].weight else "geometric mean over"
    text = (
        f"{ratio(mean)} as fast{isolated} as the best peer of each workload "
        f"({over} {count} {kind}); as fast or faster, within {percent(AS_FAST)}, on "
        f"{count - len(behind)} of {count}"
    )
    return f"{text}; behind on {join_names(behind)}." if behind else f"{text}."


def peers_troubles(found: Sequence[PeersOn], *, recorded: bool) -> list[str]:
    """Say of each peer that was not compared everywhere, or is not always right, why and where."""
    groups: dict[tuple[str, Status], list[tuple[Workload, Against]]] = {}
    for one in found:
        for peer in one.peers:
            if peer.status is not Status.CORRECT or peer.reason:
                groups.setdefault((peer.name, peer.status), []).append((one.workload, peer))
    lines = []
    for where in groups.values():
        first = where[0][1]
        places = join_names([str(workload) for workload, _ in where])
        on = "" if len(where) == len(found) else f" on {places}"
        reason = first.reason.strip().splitlines() or ["no reason recorded"]
        lines.append(f"{first.name} {first.trouble(recorded=recorded)}{on}: {reason[0]}")
    return lines


def peers_json(one: PeersOn) -> dict[str, dict[str, object]]:
    return {
        peer.name: {
            "status": peer.status.value,
            **pick(peer, "reason us=time_us tuned_speedup=speedup interval isolated_speedup"),
            "paired": one.paired,
        }
        for peer in one.peers
    }


def _on(data: ReportData, result: Result, trials: Sequence[PeerTrial]) -> PeersOn:
    workload, weight = result.workload, data.mix.get(result.workload)
    compared = [c for c in data.comparisons if c.workload == workload and c.peers]
    # A variant may be chosen for a shape where it was not compared, or before there were peers.
    own = None if result.baseline_wins else result.variant
    serving = data.dispatch.table.serving(workload) if data.dispatch else None
    dispatched: Variant | str | None = own if serving is None else serving[0]
    if serving and not serving[0] and serving[1] and serving[1].production:
        dispatched = serving[1].production.peer
    for served in (dispatched, own):
        comparisons = [c for c in compared if served in (None, *c.finalists, *c.peers)]
        if comparisons:
            break
    else:
        against = tuple(
            Against(peer_trial.name, peer_trial.status, peer_trial.reason) for peer_trial in trials
        )
        return PeersOn(workload, result.variant, served, None, True, against, None, weight)
    last = comparisons[-1]
    # The rounds that chose the winner among several would flatter it.
    _, rounds = split(last)
    served_us = [row[last.column(served)] for row in rounds]
    isolated_us = last.isolated_us[last.column(served)] if last.isolated_us else None
    interval_of = paired_interval if last.paired else unpaired_interval
    found = []
    for trial in trials:
        one = Against(trial.name, trial.status, trial.reason)
        if trial.status is Status.CORRECT and trial.name in last.peers:
            peer_us = [row[last.column(trial.name)] for row in rounds]
            speedup, bounds = interval_of(peer_us, served_us, data.seed or 0)
            time_us = cost_us(peer_us)
            isolated = None if isolated_us is None else time_us / isolated_us
            one = Against(one.name, one.status, one.reason, time_us, speedup, bounds, isolated)
        found.append(one)
    against, time_us = tuple(found), cost_us(served_us)
    return PeersOn(
        workload, result.variant, served, time_us, last.paired, against, isolated_us, weight
    )


def variants_table(table: DispatchTable) -> Markup:
    """Lay out what each variant is and what it serves; nothing where none serves."""

    def config(kernel: VariantKernel) -> Markup:
        own = "" if kernel.variant.candidate == INITIAL else f"{kernel.variant.candidate}:"
        return join(own, write_pairs(kernel.variant.config))

    fields: list[Field[VariantKernel]] = [
        Field("Variant", lambda kernel: f"v{table.number(kernel)}"),
        Field(Column("Config", css="config"), config),
        Field(
            "Serves",
            lambda kernel: join_names(
                [str(e.workload) for e in table.entries if e.kernel == kernel]
            ),
        ),
    ]
    return list_table("The variants of the dispatch", table.kernels, fields)


def served_table(data: ReportData, table: DispatchTable) -> Markup:
    """Lay out who serves each tuned workload."""
    over = over_winners(data)

    def against_winner(entry: Entry) -> str:
        if entry.kernel is None:
            return entry.reason
        if (winner := over.get(entry.workload)) is None:
            return "the winner"
        return join(ratio(winner.speedup), interval(winner.interval), tag(significance(winner)))

    fields: list[Field[Entry]] = [
        Field("Workload", lambda entry: str(entry.workload)),
        Field("Served by", lambda entry: _server(table, entry.kernel, entry.best)),
        Field("Speedup over the winner, 95 % interval", against_winner),
    ]
    return list_table("Who serves each tuned workload", table.entries, fields)


def held_out_table(table: DispatchTable) -> Markup:
    """Lay out what the rule chooses on workloads that nothing was tuned on; else nothing."""

    def speedup(held_out: HeldOut) -> str:
        known = held_out.compared
        return "-" if known is None else f"{ratio(known.speedup)} {interval(known.interval)}"

    fields: list[Field[HeldOut]] = [
        Field("Held out", lambda held_out: str(held_out.workload)),
        Field("Nearest", lambda held_out: str(held_out.nearest or "-")),
        Field("Rule", lambda held_out: _server(table, held_out.kernel, held_out.best)),
        Field("Speedup, 95 % interval", speedup),
        Field(
            "Verdict",
            lambda held_out: (
                held_out.verdict + f"; {productions(held_out.best)} serves" * held_out.refuted
            ),
        ),
    ]
    return list_table("The rule on held-out workloads", table.held_out, fields)


def _server(table: DispatchTable, kernel: VariantKernel | None, best: Compared | None) -> str:
    return f"v{table.number(kernel)}" if table.number(kernel) else productions(best)


def peers_table(found: Sequence[PeersOn], *, recorded: bool) -> Markup:
    """Lay out every peer's time on every workload, and what serves there over it."""

    def workload(one: PeersOn) -> Markup:
        held_out = tag("held out") if one.workload.held_out else ""
        return join(str(one.workload), held_out, "" if one.paired else tag("unpaired"))

    def served(one: PeersOn) -> str:
        isolated = one.isolated_us
        also = "" if isolated is None else soft(f"isolated {microseconds(isolated)}")
        return "-" if one.served_us is None else join(microseconds(one.served_us), also)

    def peer(name: str) -> Field[PeersOn]:
        def cell(one: PeersOn) -> Markup:
            against = one.named(name)
            if not (against and against.interval and against.time_us and against.speedup):
                return soft(against.trouble(recorded=recorded) if against else "")
            return join(
                microseconds(against.time_us),
                soft(f"{ratio(against.speedup)} {interval(against.interval)}"),
                tag("best") if against is one.best else "",
                tag("faster", bad=True) if against.faster else "",
                tag("not right on all inputs") if against.reason else "",
            )

        return Field(f"{name}, us", cell)

    fields: list[Field[PeersOn]] = [
        Field("Workload", workload),
        Field("Served by", lambda one: one.server),
        Field(Column("us", numeric=True), served),
        *map(peer, dict.fromkeys(peer.name for one in found for peer in one.peers)),
    ]
    return list_table("Peers per workload", found, fields)
