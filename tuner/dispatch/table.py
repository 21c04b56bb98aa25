"""The dispatch table: who serves the tuned workloads, the rule for other shapes, and its check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log

from tuner.dispatch.evidence import Compared, Evidence
from tuner.dispatch.kernels import Kernel, config_of, nearest
from tuner.dispatch.set_cover import best_set, smallest_set
from tuner.model.kernel import Workload
from tuner.model.run_config import VARIANTS_WITHIN
from tuner.model.trial import Variant

KernelOf = Callable[[Workload, Variant], Kernel | None]
Holds = Callable[[Kernel, Workload], bool]


@dataclass(frozen=True, slots=True)
class Choice:
    """How a set is chosen: the smallest within a share of each best, or the best of `most`."""

    within: float = VARIANTS_WITHIN
    most: int | None = None

    def __str__(self) -> str:
        if self.most is not None:
            return f"at most {self.most} variant{'s' * (self.most != 1)}"
        return f"within {self.within * 100:g} % of each workload's best"


@dataclass(frozen=True, slots=True)
class Entry:
    """Who serves one tuned workload; no `kernel` means the baseline, and `reason` says why.

    `compared` is what was measured of the kernel, `best` of the fastest there. `slowdown` is the
    time over the best's, as a ratio of 1 or more, None where nothing was compared.
    """

    workload: Workload
    kernel: Kernel | None = None
    compared: Compared | None = None
    best: Compared | None = None
    slowdown: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What the rule chooses on a workload that nothing was tuned on, and whether it was right.

    `nearest` is the tuned workload whose kernel it takes; `kernel` is None for the baseline.
    """

    workload: Workload
    nearest: Workload | None
    kernel: Kernel | None
    compared: Compared | None = None
    best: Compared | None = None

    @property
    def verdict(self) -> str:
        """Say what the comparison with the baseline says of the choice."""
        if self.kernel is None:
            return "baseline"
        if self.compared is None:
            return "not measured"
        if self.compared.proved:
            return "faster"
        return "slower" if self.compared.slower else "no difference"

    @property
    def refuted(self) -> bool:
        """Whether it was measured and is no faster than the baseline, which then serves here."""
        return self.verdict in ("slower", "no difference")


@dataclass(frozen=True, slots=True)
class Table:
    """Everything that a dispatch needs; `kernels[i]` is variant i + 1, and the baseline is 0.

    `points` are what the rule goes by: the tuned workloads, and the held-out ones where the rule
    was refuted.
    """

    choice: Choice
    entries: tuple[Entry, ...]
    held_out: tuple[HeldOut, ...]
    kernels: tuple[Kernel, ...]
    points: tuple[tuple[Workload, Kernel | None], ...]

    def number(self, kernel: Kernel | None) -> int:
        """Number a kernel as the exported files do; 0 is the baseline."""
        return 0 if kernel is None else self.kernels.index(kernel) + 1

    def home(self, kernel: Kernel) -> Workload:
        """Name the first workload that a kernel serves."""
        return next(entry.workload for entry in self.entries if entry.kernel == kernel)


def build(
    workloads: Sequence[Workload],
    evidence: Evidence,
    kernel_of: KernelOf,
    holds: Holds,
    choice: Choice,
) -> Table:
    """Choose who serves each workload, from what was compared with the baseline.

    A workload without a variant that is proved faster has the baseline, which is none of the
    variants. `kernel_of` renders a variant for a workload; `holds` says whether the kernel that
    it gives for one workload may run on another.
    """
    tuned = [workload for workload in workloads if not workload.held_out]
    offers = [_offers(evidence.get(workload, ()), kernel_of) for workload in tuned]
    chosen = _chosen(offers, choice)
    entries = tuple(
        _entry(workload, evidence.get(workload, ()), offer, kernel)
        for workload, offer, kernel in zip(tuned, offers, chosen, strict=True)
    )
    points = tuple((entry.workload, entry.kernel) for entry in entries)
    held_out = tuple(
        _checked(workload, points, evidence.get(workload, ()), kernel_of, holds)
        for workload in workloads
        if workload.held_out
    )
    refuted = tuple((one.workload, None) for one in held_out if one.refuted)
    kernels = tuple(dict.fromkeys(kernel for _, kernel in points if kernel is not None))
    return Table(choice, entries, held_out, kernels, (*points, *refuted))


def _offers(
    compared: Sequence[Compared], kernel_of: KernelOf
) -> Mapping[Kernel, tuple[Compared, float]]:
    """Pair every kernel that is proved faster with its slowdown against the best."""
    best = min((one.ratio for one in compared), default=1.0)
    offers = {}
    for one in compared:
        kernel = kernel_of(one.workload, one.variant) if one.proved else None
        if kernel is not None:
            offers[kernel] = one, one.ratio / best
    return offers


def _chosen(
    offers: Sequence[Mapping[Kernel, tuple[Compared, float]]], choice: Choice
) -> Sequence[Kernel | None]:
    if choice.most is not None:
        costs = [{k: log(slowdown) for k, (_, slowdown) in one.items()} for one in offers]
        # Where nothing is proved the baseline serves whatever the set, at a cost that is the same.
        baseline = [_baseline_cost(one) for one in offers]
        return best_set(costs, baseline, choice.most, config_of)
    near = [_near(one, choice.within) for one in offers]
    served = iter(smallest_set([one for one in near if one], config_of))
    return [next(served) if one else None for one in near]


def _near(offers: Mapping[Kernel, tuple[Compared, float]], within: float) -> Mapping[Kernel, float]:
    # The fastest that is proved: where the very best is not, nothing may be near enough to it.
    least = min((slowdown for _, slowdown in offers.values()), default=1.0)
    most = max(1.0 + within, least)
    return {k: log(slowdown) for k, (_, slowdown) in offers.items() if slowdown <= most}


def _baseline_cost(offers: Mapping[Kernel, tuple[Compared, float]]) -> float:
    ratios = [(one.ratio, slowdown) for one, slowdown in offers.values()]
    return log(ratios[0][1] / ratios[0][0]) if ratios else 0.0


def _entry(
    workload: Workload,
    compared: Sequence[Compared],
    offers: Mapping[Kernel, tuple[Compared, float]],
    kernel: Kernel | None,
) -> Entry:
    best = compared[0] if compared else None
    if kernel is not None:
        one, slowdown = offers[kernel]
        return Entry(workload, kernel, one, best, slowdown)
    if best is None:
        return Entry(workload, reason="nothing was compared with the baseline")
    # The baseline may be the fastest itself.
    slowdown = 1.0 / min(best.ratio, 1.0)
    if offers:
        return Entry(workload, None, None, best, slowdown, "the variants serve other workloads")
    reason = "no variant is proved faster"
    return Entry(workload, None, None, best, slowdown, reason)


def _checked(
    workload: Workload,
    points: Sequence[tuple[Workload, Kernel | None]],
    compared: Sequence[Compared],
    kernel_of: KernelOf,
    holds: Holds,
) -> HeldOut:
    found = nearest(
        points, workload.values, lambda kernel: kernel is None or holds(kernel, workload)
    )
    near, kernel = found or (None, None)
    measured = None
    if kernel is not None and kernel_of(workload, kernel.variant) == kernel:
        measured = next((one for one in compared if one.variant == kernel.variant), None)
    return HeldOut(workload, near, kernel, measured, compared[0] if compared else None)
