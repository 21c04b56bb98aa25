"""What the search's trials foretell of the table: whom to compare, and what is worth trying."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log

from tuner.dispatch.kernels import VariantKernel, variant_of
from tuner.dispatch.set_cover import best_set, smallest_set
from tuner.dispatch.table import KernelOf, SessionDispatch, SetSelection
from tuner.model.kernel import Workload
from tuner.model.trial import Status, Trial, Variant
from tuner.space.plan import distance

# Times of a search are known to about this: a config that looked so much slower is no candidate.
SEARCH_NOISE = 0.03

# A variant far away in shape is hardly ever the one that saves another.
NEIGHBOURS = 2

Times = Mapping[Workload, Mapping[Variant, float]]


def assigned(
    trials: Iterable[Trial],
    baselines_us: Mapping[Workload, float],
    distrusted: frozenset[Variant],
    kernel_of: KernelOf,
    choice: SetSelection,
) -> Mapping[Workload, Variant]:
    """Choose the set by the search's times alone, so that the finals can prove or refute it.

    Workloads on which nothing looks faster than the baseline are left out.
    """
    times = timed(trials, distrusted)
    workloads = [w for w, of in times.items() if min(of.values()) < baselines_us[w]]
    costs = [_costs(w, times[w], kernel_of, _most(choice)) for w in workloads]
    rows = [(w, cost) for w, cost in zip(workloads, costs, strict=True) if cost]
    chosen = _chosen(rows, {w: baselines_us[w] / min(times[w].values()) for w, _ in rows}, choice)
    pairs = zip(rows, chosen, strict=True)
    return {workload: kernel.variant for (workload, _), kernel in pairs if kernel is not None}


def _chosen(
    rows: Sequence[tuple[Workload, Mapping[VariantKernel, float]]],
    gains: Mapping[Workload, float],
    choice: SetSelection,
) -> Sequence[VariantKernel | None]:
    costs = [cost for _, cost in rows]
    if choice.most is None:
        return smallest_set(costs, variant_of)
    return best_set(costs, [log(gains[w]) for w, _ in rows], choice.most, variant_of)


def timed(trials: Iterable[Trial], distrusted: frozenset[Variant]) -> Times:
    """Collect the full times of correct trials; one that was stopped early has only a rank."""
    times: dict[Workload, dict[Variant, float]] = {}
    for trial in trials:
        measurement = trial.measurement
        if trial.status is not Status.CORRECT or measurement is None:
            continue
        if not measurement.stopped_early and trial.variant not in distrusted:
            times.setdefault(trial.workload, {})[trial.variant] = measurement.median_us
    return times


def wanted(
    served: Mapping[Workload, Variant],
    kernel_of: KernelOf,
    tried: Callable[[Workload, Variant], bool],
    good: Callable[[Workload, Variant], bool],
) -> tuple[tuple[Workload, Variant], ...]:
    """Name the measurements that may shrink a set: one variant in the place of another.

    A variant may go if some other one is good enough, or untried, wherever it serves: these
    untried pairs are named, those of the variant that serves fewest workloads first, and of each
    only what the nearest other variant lacks. `tried` says what was measured, `good` what was
    near enough to the best.
    """
    kernels = {w: kernel_of(w, variant) for w, variant in served.items()}
    homes: dict[VariantKernel, list[Workload]] = {}
    for workload, kernel in kernels.items():
        if kernel is not None:
            homes.setdefault(kernel, []).append(workload)
    found: dict[tuple[Workload, Variant], None] = {}
    for kernel, at in sorted(homes.items(), key=lambda item: len(item[1])):
        others = sorted((o for o in homes if o != kernel), key=lambda o: _apart(homes[o], at))
        for other in others[:NEIGHBOURS]:
            lacking = _lacking(other, at, kernel_of, tried, good)
            if lacking:
                found |= dict.fromkeys((workload, other.variant) for workload in lacking)
                break
    return tuple(found)


def wanted_for(dispatch: SessionDispatch) -> tuple[tuple[Workload, Variant], ...]:
    """Name the comparisons that may shrink a table's set, by what its session has tried.

    What the search found clearly slower than it allows is not asked for again.
    """
    table, trials = dispatch.table, dispatch.trials
    times, within = timed(trials, frozenset()), table.choice.within
    failed = {
        (trial.workload, trial.variant)
        for trial in trials
        if trial.status is not Status.CORRECT
        or (trial.measurement is not None and trial.measurement.stopped_early)
    }
    compared = {
        (workload, one.variant): one.proved and one.ratio <= ones[0].ratio * (1.0 + within)
        for workload, ones in dispatch.evidence.items()
        for one in ones
    }

    def tried(workload: Workload, variant: Variant) -> bool:
        known = times.get(workload, {})
        most = 1.0 + within + SEARCH_NOISE
        slow = variant in known and known[variant] > most * min(known.values())
        return slow or (workload, variant) in failed or (workload, variant) in compared

    def good(workload: Workload, variant: Variant) -> bool:
        return compared.get((workload, variant), False)

    served = {e.workload: e.kernel.variant for e in table.entries if e.kernel is not None}
    return wanted(served, dispatch.renderer.of, tried, good)


def _most(choice: SetSelection) -> float | None:
    return None if choice.most is not None else 1.0 + choice.within


def _costs(
    workload: Workload, times: Mapping[Variant, float], kernel_of: KernelOf, most: float | None
) -> Mapping[VariantKernel, float]:
    best = min(times.values())
    costs = {}
    for variant, time_us in times.items():
        if most is None or time_us <= most * best:
            kernel = kernel_of(workload, variant)
            if kernel is not None:
                costs[kernel] = log(time_us / best)
    return costs


def _lacking(
    other: VariantKernel,
    at: Sequence[Workload],
    kernel_of: KernelOf,
    tried: Callable[[Workload, Variant], bool],
    good: Callable[[Workload, Variant], bool],
) -> list[Workload]:
    """List the workloads where `other` is untried; none where it can't serve all of them."""
    lacking = []
    for workload in at:
        if kernel_of(workload, other.variant) != other:
            return []
        if good(workload, other.variant):
            continue
        if tried(workload, other.variant):
            return []
        lacking.append(workload)
    return lacking


def _apart(some: Sequence[Workload], others: Sequence[Workload]) -> float:
    return min(distance(a, b) for a in some for b in others)
