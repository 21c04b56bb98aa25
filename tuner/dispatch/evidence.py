"""What comparisons prove of the variants on each workload, and which variants nobody may trust."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from tuner.model.kernel import Workload
from tuner.model.statistics import LEAST_US, Interval, cost_us, paired_interval, unpaired_interval
from tuner.model.trial import RESOLUTION, Check, Comparison, Status, Trial, Variant, is_noisy

# One in this many rounds chooses among several finalists; the others report (tuning/finals.py).
CHOOSING_SHARE = 4

RoundTimes = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class AgainstProduction:
    """A variant against the peer that production calls, in the rounds that report.

    `ratio` is the peer's cost over the baseline's in the rounds that choose.
    """

    peer: str
    time_us: float
    speedup: float
    interval: Interval
    ratio: float


def productions(compared: Compared | None) -> str:
    """Name what serves where no variant does."""
    peer = compared.production.peer if compared and compared.production else "the baseline"
    return f"production's: {peer}"


@dataclass(frozen=True, slots=True)
class Compared:
    """A variant against the baseline on one workload.

    Times, speedup and interval are of the rounds that report. `ratio` is the variant's cost over
    the baseline's in the rounds that choose, or the winner's where a race says how far the variant
    is behind it: what the choice of a set goes by. Where a peer is what production calls,
    `production` compares with it, else it is None. `surroundings` names what the times are costs
    in, and `alone_us` and `alone_baseline_us` are those without.
    """

    workload: Workload
    variant: Variant
    time_us: float
    baseline_us: float
    speedup: float
    interval: Interval
    paired: bool
    ratio: float
    production: AgainstProduction | None = None
    surroundings: str = ""
    alone_us: float | None = None
    alone_baseline_us: float | None = None

    @property
    def proved(self) -> bool:
        """Whether it is faster than the baseline and than what production calls.

        Both beyond the interval and the resolution, and neither too noisy to say.
        """
        sides = [side for side in (self, self.production) if side is not None]
        return not self.noisy and min(side.interval[0] for side in sides) > 1.0 + RESOLUTION

    @property
    def noisy(self) -> bool:
        """Whether it is too noisy to say how it compares with these."""
        sides = [side for side in (self, self.production) if side is not None]
        return any(is_noisy(side.speedup, side.interval) for side in sides)

    @property
    def slower(self) -> bool:
        return self.interval[1] < 1.0 - RESOLUTION

    @property
    def behind(self) -> bool:
        """Whether it is slower than the baseline, or than what production calls."""
        production = self.production
        return self.slower or (production is not None and production.interval[1] < 1.0 - RESOLUTION)

    @property
    def otherwise(self) -> float:
        """What serves where no variant does, as a share of the baseline's time."""
        return self.production.ratio if self.production else 1.0


Evidence = Mapping[Workload, tuple[Compared, ...]]


def evidence(
    comparisons: Iterable[Comparison], distrusted: frozenset[Variant], seed: int
) -> Evidence:
    """Collect what the comparisons say of each workload: the winner first, then who is next.

    Of a variant that was compared twice on a workload the later comparison counts. `seed` is the
    session's, so that an interval here is the one of its results.
    """
    by_workload: dict[Workload, dict[Variant, Compared]] = {}
    for comparison in comparisons:
        of_workload = by_workload.setdefault(comparison.workload, {})
        for column, variant in enumerate(comparison.finalists, start=1):
            if variant not in distrusted:
                of_workload[variant] = compare_with_baseline(comparison, column, seed)
    return {
        workload: tuple(sorted(variants.values(), key=lambda comparison: comparison.ratio))
        for workload, variants in by_workload.items()
    }


_WRONG = frozenset({Status.INCORRECT, Status.NOT_INVARIANT})
_FAILED_IN_FINALS = frozenset({Status.LAUNCH, Status.TIMEOUT, Status.OTHER_BITS})


def find_wrong_variants(trials: Iterable[Trial], checks: Iterable[Check]) -> frozenset[Variant]:
    """Name the variants that were ever wrong, of rows too, or failed a check: they serve nowhere.

    Nor do those that in the finals, on a shape that they would serve, end in an error, take for
    ever, or have other bits than are kept.
    """
    wrong = {
        trial.variant
        for trial in trials
        if trial.status in _WRONG or (trial.status in _FAILED_IN_FINALS and trial.stage == "finals")
    }
    return frozenset(wrong | {check.variant for check in checks if check.passed is False})


def split(comparison: Comparison) -> tuple[RoundTimes, RoundTimes]:
    """Keep the rounds that choose apart from those that report.

    One finalist needs no choice, and after a race it has been made.
    """
    rounds, count = comparison.rounds, len(comparison.rounds) // CHOOSING_SHARE
    if not count or len(comparison.finalists) <= 1 or comparison.raced_us:
        return rounds, rounds
    return rounds[:count], rounds[count:]


def winner_of(comparison: Comparison) -> Variant:
    """Name the finalist that is fastest in the race before, else in the rounds that choose."""
    times_us = comparison.raced_us
    if not times_us:
        choosing, _ = split(comparison)
        times_us = tuple(_cost(choosing, k + 1) for k in range(len(comparison.finalists)))
    return comparison.finalists[min(range(len(times_us)), key=times_us.__getitem__)]


def compare_with_baseline(comparison: Comparison, column: int, seed: int) -> Compared:
    """Compare a column with the baseline's, and production's, by the rounds that report."""
    _, reporting = split(comparison)
    speedup, bounds = _over(comparison, reporting, 0, column, seed)
    production = None
    if (name := comparison.production) in comparison.peers:
        peer = comparison.column(name)
        over = _over(comparison, reporting, peer, column, seed)
        ratio = _ratio(comparison, peer)
        production = AgainstProduction(name, _cost(reporting, peer), *over, ratio)
    return Compared(
        workload=comparison.workload,
        variant=comparison.finalists[column - 1],
        time_us=_cost(reporting, column),
        baseline_us=_cost(reporting, 0),
        speedup=speedup,
        interval=bounds,
        paired=comparison.paired,
        ratio=_ratio(comparison, column),
        production=production,
        surroundings=comparison.surroundings,
        alone_us=comparison.alone_us[column] if comparison.alone_us else None,
        alone_baseline_us=comparison.alone_us[0] if comparison.alone_us else None,
    )


def find_free_program(comparison: Comparison) -> str | None:
    """Name a program whose cost between neighbours is `LEAST_US`: nothing was measured of it."""
    if not comparison.surroundings:
        return None
    finalists = (f"a finalist ({finalist.config})" for finalist in comparison.finalists)
    for column, name in enumerate(("the baseline", *finalists, *comparison.peers)):
        # A mean of equal numbers may be a little more than they are.
        if any(_cost(rounds, column) < 1.001 * LEAST_US for rounds in split(comparison)):
            return name
    return None


@dataclass(frozen=True, slots=True)
class OverWinner:
    """A finalist against the winner of its workload, in the rounds that report."""

    speedup: float
    interval: Interval

    @property
    def noisy(self) -> bool:
        return is_noisy(self.speedup, self.interval)

    @property
    def different(self) -> bool:
        low, high = self.interval
        return not self.noisy and (low > 1.0 + RESOLUTION or high < 1.0 - RESOLUTION)


def over_winner(comparison: Comparison, variant: Variant, seed: int) -> OverWinner:
    """Compare a finalist with the winner, which was chosen before: chance may put it ahead."""
    _, reporting = split(comparison)
    columns = comparison.column(winner_of(comparison)), comparison.column(variant)
    return OverWinner(*_over(comparison, reporting, *columns, seed))


def _over(
    comparison: Comparison, rounds: RoundTimes, other: int, column: int, seed: int
) -> tuple[float, Interval]:
    """Return the speedup of a column over another, with an interval that heeds the clock."""
    columns = (tuple(row[index] for row in rounds) for index in (other, column))
    speedup, bounds = _interval(comparison.paired, *columns, seed)
    if abs(_cost(rounds, other) - _cost(rounds, column)) < comparison.noise_us:
        bounds = min(bounds[0], 1.0), max(bounds[1], 1.0)
    return speedup, bounds


# The finals, the choice of the variants and the report ask for the same ones: each takes tens of
# milliseconds to draw.
@lru_cache(maxsize=4096)
def _interval(
    paired: bool, baseline_us: tuple[float, ...], candidate_us: tuple[float, ...], seed: int
) -> tuple[float, Interval]:
    interval = paired_interval if paired else unpaired_interval
    return interval(baseline_us, candidate_us, seed)


def _ratio(comparison: Comparison, column: int) -> float:
    # As the winner is chosen: rounds that report would flatter whom they choose.
    (rounds, _), raced_us = split(comparison), comparison.raced_us
    winner = comparison.column(winner_of(comparison)) if raced_us else column
    if column != winner and 0 < column <= len(raced_us):
        return _ratio(comparison, winner) * raced_us[column - 1] / raced_us[winner - 1]
    return _cost(rounds, column) / _cost(rounds, 0)


def _cost(rounds: RoundTimes, column: int) -> float:
    return cost_us([row[column] for row in rounds])
