"""The section on bits: which configs make the same outputs, and what it costs to keep them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import comb, expm1, inf, log1p
from statistics import fmean

from tuner.dispatch.evidence import find_wrong_variants
from tuner.model.config import Config
from tuner.model.expressions import Value
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Status, Trial
from tuner.report.data import ReportData, stopped_early
from tuner.report.formatting import round_value
from tuner.report.serial import pick, pick_each
from tuner.tuning.verification import BITS

CLASSES_SHOWN = 5
_RIGHT = frozenset({Status.CORRECT, Status.OTHER_BITS})


@dataclass(frozen=True, slots=True)
class BitClass:
    """Configs of one workload with equal bits; those of the fully timed fastest one, if any.

    `is_default` and `is_baseline` say whose bits they are besides, `is_chosen` that they are kept
    for rows that are invariant.
    """

    bits: str
    configs: int
    best_us: float | None
    best_config: Config | None
    is_default: bool
    is_baseline: bool
    is_chosen: bool = False

    @property
    def name(self) -> str:
        told = {"the default's": self.is_default, "the baseline's": self.is_baseline}
        whose = ["the chosen one"] * self.is_chosen + [name for name, its in told.items() if its]
        return " and ".join(whose) or "another"


@dataclass(frozen=True, slots=True)
class WorkloadClasses:
    """The classes on one workload: the one that is kept first, then the fastest.

    It is the default's, or the chosen one of invariant `rows`. What is right and has varying rows
    is of no class: the best of that takes `varying_us`.
    """

    workload: Workload
    classes: tuple[BitClass, ...]
    rows: bool = False
    varying_us: float | None = None
    weight: float = 1.0

    @property
    def configs(self) -> int:
        return sum(bit_class.configs for bit_class in self.classes)

    @property
    def kept(self) -> BitClass | None:
        kept = (c for c in self.classes if (c.is_chosen if self.rows else c.is_default))
        return next(kept, None)

    @property
    def least_us(self) -> float:
        """The best time of any class; infinite where none was timed."""
        known = (self.varying_us, *(bit_class.best_us for bit_class in self.classes))
        return min((time_us for time_us in known if time_us is not None), default=inf)

    @property
    def cost(self) -> float | None:
        """How much slower the class that is kept is at its best than any; None where not known."""
        if self.kept is None or self.kept.best_us is None:
            return None
        return self.kept.best_us / self.least_us - 1.0


@dataclass(frozen=True, slots=True)
class Separation:
    """Pairs of trials that differ in one parameter alone, and how many of them in their bits."""

    name: str
    pairs: int
    differing: int


def classes(data: ReportData) -> tuple[WorkloadClasses, ...]:
    """Group the right trials of every workload by their bits; none where nobody looked."""
    found = []
    wrong = find_wrong_variants(data.finals, (check for check in data.checks if check.kind != BITS))
    wrong |= {one.variant for one in data.trials if one.status is Status.NOT_INVARIANT}
    for workload, trials in data.by_workload().items():
        groups: dict[str, list[Trial]] = {}
        for trial in _keep_right(trials):
            if trial.variant not in wrong:
                groups.setdefault(trial.bits, []).append(trial)
        first = _first(data)
        default = {
            bits
            for bits, ones in groups.items()
            if any(one.candidate == first and one.config == data.default for one in ones)
        }
        made = []
        for bits, ones in groups.items():
            full = [one for one in ones if not stopped_early(one)]
            times = {one.variant: one.measurement.median_us for one in full if one.measurement}
            best = min(times, key=lambda variant: times[variant], default=None)
            made.append(
                BitClass(
                    bits,
                    len({one.variant for one in ones}),
                    None if best is None else times[best],
                    None if best is None else best.config,
                    bits in default,
                    ones[0].digest == data.baseline_bits.get(workload.key),
                    bits == data.kept_rows.get(workload.key),
                )
            )
        varying = (one for one in trials if one.status is Status.NOT_INVARIANT)
        times_us = (one.measurement.median_us for one in varying if one.measurement)
        weight = data.weights.get(workload.key, 1.0)
        rows, varying_us = bool(data.kept_rows), min(times_us, default=None)
        of = WorkloadClasses(workload, tuple(made), rows, varying_us, weight)
        made.sort(key=lambda c: (c is not of.kept, c.best_us or inf, -c.configs))
        if made:
            found.append(replace(of, classes=tuple(made)))
    return tuple(found)


def separations(trials: Iterable[Trial]) -> tuple[Separation, ...]:
    """Compare the bits of trials that differ in one parameter alone, for every parameter.

    That is what was seen, no more: a parameter without such pairs may decide as well.
    """
    known = _keep_right(trials)
    names = dict.fromkeys(name for trial in known for name in trial.config)
    found = []
    for name in names:
        groups: dict[tuple[Workload, str, frozenset[tuple[str, Value]]], Counter[str]] = {}
        for trial in known:
            rest = frozenset(pair for pair in trial.config.items_ if pair[0] != name)
            counts = groups.setdefault((trial.workload, trial.candidate, rest), Counter())
            counts[trial.digest] += 1
        pairs = sum(comb(counts.total(), 2) for counts in groups.values())
        equal = sum(comb(count, 2) for counts in groups.values() for count in counts.values())
        found.append(Separation(name, pairs, pairs - equal))
    return tuple(found)


def bits_lines(data: ReportData) -> tuple[str, ...]:
    """Say how many classes there are, what the kept one costs, and which parameters decide."""
    lines, found_classes = [], classes(data)
    cost = rows_cost(found_classes, mix=bool(data.mix))
    if cost is not None and data.kept_rows and not data.on_cpu:
        most = max(found_classes, key=lambda on: on.cost or 0.0)
        worst = f"; most on {most.workload}: {most.cost:.1%}" if most.cost else ""
        lines.append(f"what reproducibility costs here: {cost:.1%}{worst}")
    varying = [trial for trial in data.trials if trial.status is Status.NOT_INVARIANT]
    if varying:
        configs = len({trial.variant for trial in varying})
        first = f"{varying[0].variant}, on {varying[0].workload}: {varying[0].reason}"
        lines.append(f"of {configs} configs rows are not invariant, so of {first}")
    own = "the chosen class" if data.kept_rows else "the default's"
    for on in found_classes:
        count = len(on.classes)
        said = [f"{on.configs} configs in {count} class{'es' * (count != 1)}"]
        if on.kept is not None:
            said.append(f"{on.kept.configs} in {own}")
            if on.kept.is_baseline:
                said[-1] += ", which is the baseline's too"
            elif on.workload.key in data.baseline_bits:
                said[-1] += ", the baseline has other bits"
        elif data.kept_rows:
            said.append(f"none in {own}: that of the nearest size serves")
        if on.cost is not None and not data.on_cpu:
            slower = f"its best is {on.cost:.1%} slower than the best of all"
            said.append(slower if on.cost else "the fastest of all is one of them")
        lines.append(f"{on.workload}: {'; '.join(said)}")
    trials = [trial for trial in _keep_right(data.trials) if trial.candidate == _first(data)]
    found = separations(trials)
    differ = [separation.name for separation in found if separation.differing]
    same = [f"{s.name} ({s.pairs})" for s in found if s.pairs and not s.differing]
    unknown = [separation.name for separation in found if not separation.pairs]
    if not (differ or same):
        return tuple(lines)
    parts = [f"bits differ with {', '.join(differ)}"] if differ else []
    # What a class is named by besides its digest.
    by = {part.partition("=")[0] for trial in trials for part in trial.bits.split(", ")[1:]}
    if by and (more := [name for name in differ if name not in by]):
        parts.append(f"`by` of the search space does not name {', '.join(more)}")
    parts += [f"with {', '.join(same)} no pair of trials differs"] if same else []
    parts += [f"of {', '.join(unknown)} nothing was seen"] if unknown else []
    seen = f"of {len(trials)} trials, where one parameter alone differs: "
    return (*lines, seen + "; ".join(parts))


def rows_cost(found: Iterable[WorkloadClasses], *, mix: bool) -> float | None:
    """Give the geometric mean over sizes of what the kept class costs; None where not known.

    Of a mix what its time in all does.
    """
    known = [(on, on.cost) for on in found if on.cost is not None]
    if not known:
        return None
    if mix:
        return fmean((cost for _, cost in known), [on.weight * on.least_us for on, _ in known])
    return expm1(fmean((log1p(cost) for _, cost in known), [on.weight for on, _ in known]))


def bits_json(data: ReportData) -> dict[str, object]:
    """Make what `--json` says of bits; nothing where nobody looked."""
    found = classes(data)
    if not found:
        return {}
    trials = (trial for trial in data.trials if trial.candidate == _first(data))
    cost = rows_cost(found, mix=bool(data.mix))
    return {
        "kept": data.keep_bits,
        "rows_kept": bool(data.kept_rows),
        "cost": None if data.on_cpu or not data.kept_rows else round_value(cost),
        "workloads": [
            {
                **pick(on, "workload"),
                "classes": pick_each(
                    on.classes,
                    "bits configs best_us best_config default=is_default baseline=is_baseline "
                    "chosen=is_chosen",
                ),
                "cost": None if data.on_cpu else round_value(on.cost),
            }
            for on in found
        ],
        "parameters": {
            separation.name: pick(separation, "pairs differing")
            for separation in separations(trials)
        },
    }


def _keep_right(trials: Iterable[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.status in _RIGHT and trial.bits]


def _first(data: ReportData) -> str:
    """Name the first candidate: names of parameters may mean another thing in a later one."""
    return next((candidate.name for candidate in data.candidates), INITIAL)
