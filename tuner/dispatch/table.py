"""Which variant serves which workload: the table, and what the search foretells of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, log, log1p
from operator import attrgetter
from pathlib import Path

from tuner.dispatch.evidence import Compared, evidence, find_wrong_variants
from tuner.dispatch.kernels import (
    Applicability,
    VariantKernel,
    VariantRenderer,
    device_numbers,
    nearest,
)
from tuner.dispatch.set_cover import best_set, fewest_set, smallest_set
from tuner.model.expressions import Value
from tuner.model.kernel import Argument, Workload
from tuner.model.settings import FEWER_WITHIN
from tuner.model.statistics import average_speedup
from tuner.model.trial import NOISY, Status, Trial, Variant
from tuner.session.session import Session
from tuner.space.plan import distance

# Times of a search are known to about this: a config that looked so much slower is no candidate.
SEARCH_NOISE = 0.03
# A variant that is slower than the best by more is not compared for the sake of the set.
NEAR_ENOUGH = 0.02
# Sizes of sets that a reader compares, besides the chosen one and all.
CURVE = (1, 2, 3, 5)
# A variant far away in shape is hardly ever the one that saves another.
NEIGHBOURS = 2
# What it costs, as a logarithm, to have production's where only variants may serve.
_NEVER = 1e3

KernelOf = Callable[[Workload, Variant], VariantKernel | None]
Points = Sequence[tuple[Workload, VariantKernel | None]]
# What may serve a workload, with its slowdown over the winner by what chose that.
Offers = Mapping[VariantKernel, tuple[Compared, float]]


@dataclass(frozen=True, slots=True)
class SetSelection:
    """How a set is chosen: the smallest within a share of each best, or the best of `most`.

    Where neither is said, the fewest that are within `FEWER_WITHIN` of all in the geometric mean,
    or in the time of a mix.
    """

    within: float | None = None
    most: int | None = None

    @property
    def most_slowdown(self) -> float:
        """How many times its best's time a workload may take."""
        return inf if self.most is not None or self.within is None else 1.0 + self.within

    def __str__(self) -> str:
        if self.most is not None:
            return f"at most {self.most} variant{'s' * (self.most != 1)}"
        if self.within is None:
            return f"the fewest within {FEWER_WITHIN * 100:g} % of all"
        return f"within {self.within * 100:g} % of each workload's winner"


@dataclass(frozen=True, slots=True)
class Entry:
    """Who serves one tuned workload, None for production's; `best` is who wins there."""

    workload: Workload
    kernel: VariantKernel | None = None
    compared: Compared | None = None
    best: Compared | None = None
    reason: str = ""

    @property
    def slowdown(self) -> float | None:
        """Its time over the winner's; production's loses nothing where it is the faster."""
        if self.best is None:
            return None
        if self.compared is not None:
            return self.compared.time_us / self.best.time_us
        served_us = _production_us(self.best)
        return served_us / min(served_us, self.best.time_us)

    @property
    def speedup(self) -> float:
        """What serves here over the baseline."""
        if self.compared is not None:
            return self.compared.speedup
        return self.best.baseline_us / _production_us(self.best) if self.best else 1.0


def _production_us(compared: Compared) -> float:
    return compared.production.time_us if compared.production else compared.baseline_us


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """What the best set of so many variants gains over the baseline, on average or of a mix."""

    variants: int
    speedup: float
    chosen: bool


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What the rule chooses on a workload not tuned on; no `kernel` means production's."""

    workload: Workload
    nearest: Workload | None
    kernel: VariantKernel | None
    compared: Compared | None = None
    best: Compared | None = None
    # Whether it serves however slow it is, for its bits.
    kept: bool = False

    @property
    def verdict(self) -> str:
        if self.kernel is None:
            return "baseline"
        if self.compared is None:
            return "not measured"
        if self.compared.proved:
            return "faster"
        if self.compared.noisy:
            return NOISY
        return "slower" if self.compared.behind else "no difference"

    @property
    def refuted(self) -> bool:
        """Whether it was measured and is not proved faster: production's then serves here."""
        return not self.kept and self.verdict in ("slower", "no difference", NOISY)


@dataclass(frozen=True, slots=True)
class DispatchTable:
    """Everything that a dispatch needs; `kernels[i]` is variant i + 1, and the baseline is 0.

    `points` are what the rule goes by: the tuned workloads, and the held-out ones where the rule
    was refuted. Where bits of rows are kept, production's, which may have others, serves no point.
    """

    choice: SetSelection
    entries: tuple[Entry, ...]
    held_out: tuple[HeldOut, ...]
    kernels: tuple[VariantKernel, ...]
    points: Points
    keeps_rows: bool = False

    def serving(self, workload: Workload) -> tuple[Variant | None, Compared | None] | None:
        """Return who serves a workload, None for production's, and the best that was compared.

        Return None where the table does not say.
        """
        for entry in self.entries:
            if entry.workload == workload:
                return None if entry.kernel is None else entry.kernel.variant, entry.best
        for held_out in self.held_out:
            if held_out.workload == workload:
                if held_out.kernel is None or held_out.refuted:
                    return None, held_out.best
                return held_out.kernel.variant, held_out.best
        return None

    def best_on(self, workload: Workload) -> Compared | None:
        """Return the best that was compared on a workload, None where the table does not say."""
        served = self.serving(workload)
        return served[1] if served else None

    def number(self, kernel: VariantKernel | None) -> int:
        return 0 if kernel is None else self.kernels.index(kernel) + 1


def slowdown_cost(share: float | None) -> Callable[[float], float]:
    """Say what a slowdown over the best costs where sums of costs are compared.

    Its logarithm for the geometric mean, or the time more in a mix of which the workload's best has
    `share`, 1 for an average workload.
    """
    return log if share is None else lambda slowdown: share * (slowdown - 1.0)


def _shares(best_us: Mapping[Workload, float], weights: Mapping[Workload, float]) -> list[float]:
    """Divide a mix's time among its workloads, 1 for an average one."""
    took_us = [weights[workload] * us for workload, us in best_us.items()]
    return [us * len(took_us) / sum(took_us) for us in took_us]


def _choose_kernels(
    costs: Sequence[Mapping[VariantKernel, float]], otherwise: Sequence[float], choice: SetSelection
) -> Sequence[VariantKernel | None]:
    """Choose a kernel a workload, None for the baseline, whose cost is `otherwise`."""
    kind = attrgetter("variant")
    if choice.most is not None:
        return best_set(costs, otherwise, choice.most, kind)
    if choice.within is None:
        return fewest_set(costs, otherwise, len(costs) * log1p(FEWER_WITHIN), kind)
    served = iter(smallest_set([row for row in costs if row], kind))
    return [next(served) if row else None for row in costs]


class SessionDispatch:
    """A session's table with what it was made from; raises `InputError` for what can't be read."""

    def __init__(
        self,
        session: Session,
        choice: SetSelection,
        device: Mapping[str, Value] | None = None,
        workloads: Sequence[Workload] | None = None,
    ) -> None:
        config = session.manifest.config
        numbers = device_numbers(session.environment) if device is None else device
        self.renderer = VariantRenderer(session.candidates(), config.operators, numbers)
        self.trials = session.trials(stage=None)
        self._workloads = config.workloads if workloads is None else workloads
        self._keeps_rows, self._weights = bool(session.kept_rows), config.weights
        self._static_bytes = {
            trial.variant: trial.resources.static_shared_bytes
            for trial in self.trials
            if trial.resources is not None
        }
        self._applicability: dict[VariantKernel, Applicability] = {}
        # The first workload that each was rendered for.
        self._homes: dict[VariantKernel, Workload] = {}
        out = find_wrong_variants(self.trials, session.checks())
        self.evidence = evidence(session.comparisons(), out, config.seed)
        # Choose who serves each workload, from what was compared with the baseline.
        # A workload whose winner is not proved faster has production's, which is none of the
        # variants: another that seems to be was not chosen to be tested. Not where bits of rows are
        # kept: production's are its own.
        tuned = [workload for workload in self._workloads if not workload.held_out]
        self._offered = [(workload, self._offers(workload)) for workload in tuned]
        entries = self._entries(choice)
        points = tuple((entry.workload, entry.kernel) for entry in entries)
        if self._keeps_rows:
            points = tuple(point for point in points if point[1] is not None)
            entries = tuple(self._serve(entry, points) for entry in entries)
        held_out = tuple(self._choose_held_out(w, points) for w in self._workloads if w.held_out)
        refuted = tuple((held.workload, None) for held in held_out if held.refuted)
        kernels = tuple(dict.fromkeys(kernel for _, kernel in points if kernel is not None))
        points, kept = (*points, *refuted), self._keeps_rows
        self.table = DispatchTable(choice, entries, held_out, kernels, points, kept)

    def _entries(self, choice: SetSelection) -> tuple[Entry, ...]:
        cost_of = self._costs()
        costs = [
            {
                kernel: cost(slowdown)
                for kernel, (_, slowdown) in offer.items()
                if slowdown <= choice.most_slowdown
            }
            for cost, (_, offer) in zip(cost_of, self._offered, strict=True)
        ]
        # Where nothing is proved production's serves whatever the set, at a cost that is the same.
        otherwise = [
            next((cost(c.otherwise * slowdown / c.ratio) for c, slowdown in offer.values()), 0.0)
            for cost, (_, offer) in zip(cost_of, self._offered, strict=True)
        ]
        if self._keeps_rows:
            otherwise = [_NEVER] * len(otherwise)
        chosen = _choose_kernels(costs, otherwise, choice)
        return tuple(self._entry(*o, k) for o, k in zip(self._offered, chosen, strict=True))

    def _costs(self) -> list[Callable[[float], float]]:
        """Say for each workload what a slowdown there costs."""
        best = {workload: self.evidence.get(workload, ())[:1] for workload, _ in self._offered}
        if not (self._weights and any(best.values())):
            return [log] * len(best)
        # Of what nothing was compared on the baseline serves whatever is chosen.
        best_us = {w: one[0].ratio * one[0].baseline_us if one else 0.0 for w, one in best.items()}
        return [slowdown_cost(share) for share in _shares(best_us, self._weights)]

    def _average(self, entries: Sequence[Entry]) -> float:
        if not (weights := self._weights):
            return average_speedup([entry.speedup for entry in entries])
        known = [(e.speedup, weights[e.workload] * e.best.baseline_us) for e in entries if e.best]
        if not known:
            return 1.0
        speedups, before = zip(*known, strict=True)
        return average_speedup(speedups, before)

    def curve(self) -> tuple[CurvePoint, ...]:
        """Say what few variants gain, and all; nothing where no variant serves anything."""
        chosen = len(self.table.kernels)
        every = self._entries(SetSelection(within=0.0))
        kernels = {entry.kernel for entry in every if entry.kernel is not None}
        sets = {len(kernels): every, chosen: self.table.entries}
        fewer = (n for n in CURVE if n < max(sets) and n not in sets)
        sets |= {n: self._entries(SetSelection(most=n)) for n in fewer}
        return tuple(CurvePoint(n, self._average(sets[n]), n == chosen) for n in sorted(sets) if n)

    @property
    def added_scratch(self) -> Sequence[Argument]:
        """The scratch that the templates of its variants brought along, each name once."""
        found: dict[str, Argument] = {}
        for candidate in dict.fromkeys(kernel.variant.candidate for kernel in self.table.kernels):
            arguments = self.renderer.definition(candidate).spec.arguments
            found.update({argument.name: argument for argument in arguments if argument.added})
        return tuple(found.values())

    def applicability(self, kernel: VariantKernel) -> Applicability:
        if kernel not in self._applicability:
            home = self._homes[kernel]
            reach = self.renderer.applicability(kernel, home, self._workloads)
            names, most = self.renderer.names(home), self._static_bytes.get(kernel.variant, 0)
            # The most of its kernels is known, and that each was launched with what it asks for.
            launched = (spec.resolve(names) for spec in reach.launches)
            static_bytes = tuple(
                min(most, int(names["max_shared_bytes"]) - launch.shared_bytes) if launch else most
                for launch in launched
            )
            self._applicability[kernel] = replace(reach, static_bytes=static_bytes)
        return self._applicability[kernel]

    def _offers(self, workload: Workload) -> Offers:
        compared = self.evidence.get(workload, ())
        offered = [one for one in compared if one.proved or self._keeps_rows]
        if compared[:1] != tuple(offered[:1]):
            return {}
        kernels = (self._kernel_of(workload, one.variant) for one in offered)
        return {
            kernel: (comparison, comparison.ratio / compared[0].ratio)
            for kernel, comparison in zip(kernels, offered, strict=True)
            if kernel is not None
        }

    def _entry(self, workload: Workload, offers: Offers, kernel: VariantKernel | None) -> Entry:
        best = next(iter(self.evidence.get(workload, ())), None)
        if best is None:
            return Entry(workload, reason="nothing was compared with the baseline")
        if kernel is not None:
            return Entry(workload, kernel, offers[kernel][0], best)
        reason = (
            "the variants serve other workloads" if offers else "the winner is not proved faster"
        )
        return Entry(workload, None, None, best, reason)

    def _serve(self, entry: Entry, points: Points) -> Entry:
        """Have a workload without a variant of its own served as one in between is."""
        if entry.kernel is not None:
            return entry
        _, kernel = self._nearest(entry.workload, points)
        return replace(entry, kernel=kernel, reason="the nearest one's, for the bits of its rows")

    def _nearest(
        self, workload: Workload, points: Points
    ) -> tuple[Workload | None, VariantKernel | None]:
        names = self.renderer.names(workload)
        found = nearest(
            points,
            workload.values,
            lambda kernel: kernel is None or self.applicability(kernel).holds(names),
        )
        return found or (None, None)

    def _choose_held_out(self, workload: Workload, points: Points) -> HeldOut:
        compared = self.evidence.get(workload, ())
        near, kernel = self._nearest(workload, points)
        measured = None
        if kernel is not None and self._kernel_of(workload, kernel.variant) == kernel:
            measured = next(
                (variant for variant in compared if variant.variant == kernel.variant), None
            )
        best = compared[0] if compared else None
        return HeldOut(workload, near, kernel, measured, best, self._keeps_rows)

    def _kernel_of(self, workload: Workload, variant: Variant) -> VariantKernel | None:
        kernel = self.renderer.of(workload, variant)
        if kernel is not None:
            self._homes.setdefault(kernel, workload)
        return kernel


def assign_variants(
    trials: Iterable[Trial],
    baselines_us: Mapping[Workload, float],
    distrusted: frozenset[Variant],
    kernel_of: KernelOf,
    choice: SetSelection,
    weights: Mapping[Workload, float] | None = None,
) -> Mapping[Workload, Variant]:
    """Choose the set by the search's times, for workloads on which one beats the baseline.

    A mix has `weights`.
    """
    times = collect_times(trials, distrusted)
    workloads = [w for w, of in times.items() if min(of.values()) < baselines_us[w]]
    best_us = {w: min(times[w].values()) for w in workloads}
    shares = _shares(best_us, weights) if weights else [None] * len(workloads)
    cost_of = dict(zip(workloads, map(slowdown_cost, shares), strict=True))
    costs: list[Mapping[VariantKernel, float]] = []
    for workload, best in best_us.items():
        most_us = choice.most_slowdown * best
        near = ((v, time_us) for v, time_us in times[workload].items() if time_us <= most_us)
        cost = cost_of[workload]
        costs_of = ((kernel_of(workload, v), cost(time_us / best)) for v, time_us in near)
        costs.append({kernel: cost for kernel, cost in costs_of if kernel is not None})
    gains = [cost_of[w](baselines_us[w] / best_us[w]) for w in workloads]
    pairs = zip(workloads, _choose_kernels(costs, gains, choice), strict=True)
    return {workload: kernel.variant for workload, kernel in pairs if kernel is not None}


def collect_times(
    trials: Iterable[Trial], distrusted: frozenset[Variant]
) -> Mapping[Workload, Mapping[Variant, float]]:
    """Collect the full times of correct trials; one that was stopped early has only a rank."""
    times: dict[Workload, dict[Variant, float]] = {}
    for trial in trials:
        measurement = trial.measurement if trial.status is Status.CORRECT else None
        if (
            measurement is not None
            and not measurement.stopped_early
            and trial.variant not in distrusted
        ):
            times.setdefault(trial.workload, {})[trial.variant] = measurement.median_us
    return times


def wanted_for(dispatch: SessionDispatch) -> tuple[tuple[Workload, Variant], ...]:
    """Name the comparisons that may shrink a table's set; what was clearly slow is left out."""
    trials, within = dispatch.trials, dispatch.table.choice.within
    within = NEAR_ENOUGH if within is None else within
    times = collect_times(trials, frozenset())
    failed = {
        (trial.workload, trial.variant)
        for trial in trials
        if trial.status is not Status.CORRECT
        or (trial.measurement is not None and trial.measurement.stopped_early)
    }
    compared = {
        (workload, comparison.variant): comparison.proved
        and comparison.ratio <= ones[0].ratio * (1.0 + within)
        for workload, ones in dispatch.evidence.items()
        for comparison in ones
    }

    def good(workload: Workload, variant: Variant) -> bool | None:
        if (workload, variant) in compared:
            return compared[workload, variant]
        times_there = times.get(workload, {})
        most = 1.0 + within + SEARCH_NOISE
        slow = variant in times_there and times_there[variant] > most * min(times_there.values())
        return False if slow or (workload, variant) in failed else None

    served = {e.workload: e.kernel.variant for e in dispatch.table.entries if e.kernel is not None}
    return list_replacements(served, dispatch.renderer.of, good)


def list_replacements(
    served: Mapping[Workload, Variant],
    kernel_of: KernelOf,
    good: Callable[[Workload, Variant], bool | None],
) -> tuple[tuple[Workload, Variant], ...]:
    """Name the measurements that may shrink a set: one variant in the place of another.

    A variant may go if some other one is good enough, or untried, wherever it serves: these
    untried pairs are named, those of the variant that serves fewest workloads first, and of each
    only what the nearest other variant lacks. `good` says whether it was measured to be near
    enough to the best, None where it was not measured.
    """
    homes: dict[VariantKernel, list[Workload]] = {}
    for workload, variant in served.items():
        kernel = kernel_of(workload, variant)
        if kernel is not None:
            homes.setdefault(kernel, []).append(workload)

    def apart(first: VariantKernel, second: VariantKernel) -> float:
        return min(distance(a, b) for a in homes[first] for b in homes[second])

    pairs: dict[tuple[Workload, Variant], None] = {}
    for kernel, at in sorted(homes.items(), key=lambda item: len(item[1])):
        others = sorted((o for o in homes if o != kernel), key=lambda o: apart(o, kernel))
        for other in others[:NEIGHBOURS]:
            verdicts = {w: good(w, other.variant) for w in at}
            serves = all(kernel_of(w, other.variant) == other for w in at)
            lacking = [w for w in at if verdicts[w] is None]
            if lacking and serves and False not in verdicts.values():
                pairs |= dict.fromkeys((workload, other.variant) for workload in lacking)
                break
    return tuple(pairs)


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote, and of which dispatch; `incomplete` are workloads without a variant."""

    folder: Path
    table: DispatchTable
    files: tuple[str, ...]
    incomplete: tuple[str, ...]
