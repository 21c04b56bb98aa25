"""How long to measure, what timed calls meet, and which results are judged, by lot."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, inf
from statistics import fmean, median
from typing import Generic, TypeVar

from tuner.device.layout import Patch
from tuner.model.statistics import clearly_slower, enough

# A graph of more nodes costs more to build than it gains in precision.
MAX_CALLS = 4096
# A replay of calls that no GPU of today ends sooner, or streams more bytes for in a microsecond,
# has a set for each; a search shares them, whose replays are shorter.
REPLAY_US, FASTEST_US, FASTEST_BYTES_US = 300.0, 1.0, 8e6
# For a replay of fewer calls: so much takes long enough.
MOST_BYTES = 2 << 30
# A call so long is timed alone: of 10 ms an H200's launch is 0.05 %, and what its L2 of 60 MB saves
# where it is warm 0.13 %. Configs of a GRU took 450 ms, 29 of them in each replay.
LONG_CALL_US = 10e3
# Of differences of chains: a sample takes milliseconds, and most configs are clearly slower.
FEWEST_LINKS = 8
CHAIN_BYTES = 1 << 30
CHAIN_MIN_SAMPLES = 4
CHAIN_MARGIN = 0.05
# Event time that is far below the wall time of the same replays means that work went elsewhere
# (another stream, say). The allowance covers the launch and the wait, which events leave out.
WALL_RATIO = 1.5
WALL_ALLOWANCE_S = 300e-6
# A busy CPU delays single batches; work that leaks to another stream delays all of them.
SECOND_LOOKS = 20
FIRST_SAMPLES = 3
# Of a comparison: each ends with a verdict on what was timed last.
STRETCHES = 3
# Where inputs decide how much there is to do, what they decide does not average out in more rounds
# on the same ones. What one config of a fused MoE layer takes of another's time varies by 0.5 %
# with the experts that tokens go to, and by as much from round to round, and new inputs take as
# long as two rounds (benchmarks/results/h200/fused_moe_again.json): so each draw gets so many.
ROUNDS_OF_A_DRAW = (1, 2, 3)
# One in so many of those draws is judged: that takes the reference's time twice.
DRAWS_OF_A_VERDICT = 4
# So many results of a program are judged, each as likely the last as the first: one that is wrong
# from the fifth of 17 calls on gets away with it once in 2,000 times. On a GPU, where a trial takes
# as long as judging a few of them, only so many: finals look at some of hundreds of replays again.
JUDGED, JUDGED_ON_GPU = 4, 2
# One call in so many meets again what a result is kept of, to see whether its bits repeat.
REPEATED = 3
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TimingPolicy:
    """When a measurement is good enough; times in seconds unless the name says otherwise.

    A replay has fewer than `min_calls` where so many take longer than `long_replay_us`, and one
    where that takes `LONG_CALL_US`.
    `l2_multiple` is how many times the L2 the buffers of a replay cover where `max_sets` of them
    do; each is used once. The warm-up ends when two batches agree to `steady_share`, between
    `warm_up_s` and `warm_up_most_s`. A GPU at its limit of power needs `settle_s` of load until its
    clocks are those that it keeps; samples over `settle_share` slower than earlier ones show it.
    Until then a search drops its samples, and draws of a comparison begin. `slower_margin` ends
    the measurement of a config that is slower than the incumbent by more than that share. `links`
    is how many calls stand in a chain with their neighbours, `chain_samples` and `chain_error` are
    what is asked of its differences.
    """

    min_calls: int = 20
    min_replay_us: float = REPLAY_US
    long_replay_us: float = inf
    l2_multiple: float = 4.0
    max_sets: int = 384
    warm_up_s: float = 1e-3
    warm_up_most_s: float = 20e-3
    steady_share: float = 0.005
    settle_s: float = 0.0
    settle_share: float = 0.01
    min_samples: int = 8
    max_samples: int = 40
    target_error: float = 0.003
    budget_s: float = 0.2
    slower_margin: float = 0.3
    links: int = 32
    chain_samples: int = 16
    chain_error: float = 0.01


# A search ranks, and comparisons of its best decide: it asks for less. Clocks drift by 1.5 %.
# Times of replays of 150 us scatter by 0.19 %, of 300 by 0.14 (96 configs of silu_and_mul on an
# H200, benchmarks/replay_length.py). Chains scatter by little more than the root of their length: a
# short one serves as well for the many configs that are told to be slower after a few samples.
# 20 calls of a config that takes 5 ms would be more than the whole budget in each replay.
# A GPU at its limit of power has its first 50 ms of load at clocks that it does not keep: from
# 1,024 tokens on an MoE layer on an H200 took 3 to 5 % longer in the fifth sample than in the
# first, and up to 12 % longer in the finals. 100 ms are twice that.
SETTLE_S = 0.1
SEARCH = TimingPolicy(
    min_replay_us=150.0,
    long_replay_us=8e3,
    settle_s=SETTLE_S,
    min_samples=5,
    target_error=0.01,
    slower_margin=0.1,
    links=20,
)
# Of comparisons, whose rounds somebody else counts: 40 of a GRU in 1.6 ms beside three peers in 9,
# each 20 times in a replay, took 25 s.
FINALS = TimingPolicy(
    max_sets=MAX_CALLS, long_replay_us=40e3, warm_up_s=30e-3, warm_up_most_s=0.2, settle_s=SETTLE_S
)
# For what stands in a second column: a graph of thousands of a peer's calls takes seconds to build.
ASIDE = replace(FINALS, max_sets=SEARCH.max_sets)


@dataclass(frozen=True, slots=True)
class Rotation:
    """How many buffer sets there are; a replay uses at least the `fewest`, each once.

    `chain`: each is used between its neighbours.
    """

    sets: int
    fewest: int
    chain: bool = False


def rotation(
    policy: TimingPolicy, footprint_bytes: int, set_bytes: int, l2_bytes: int, free_bytes: int
) -> Rotation:
    """Choose a set for each call of a replay, inside half of the free memory.

    A call touches at least `footprint_bytes` of a set, which takes `set_bytes`. A second call on a
    set would find its result there, or of arrays that are written in place no longer its inputs.
    So a replay has fewer calls where memory is scarce, and one where it takes long enough.
    """
    fewest = 2 if footprint_bytes < MOST_BYTES else 1
    cold = max(ceil(policy.l2_multiple * l2_bytes / footprint_bytes), fewest)
    fastest_us = max(FASTEST_US, footprint_bytes / FASTEST_BYTES_US)
    usual = min(policy.min_calls, ceil(MOST_BYTES / footprint_bytes))
    wanted = max(cold, usual, ceil(REPLAY_US / fastest_us))
    affordable = max(1, free_bytes // 2 // set_bytes)
    sets = min(wanted, affordable, policy.max_sets)
    return Rotation(sets, min(cold, sets))


def between_neighbours(policy: TimingPolicy) -> TimingPolicy:
    """Ask less of differences of chains, each of which takes many times as long as its operator."""
    return replace(
        policy,
        settle_s=0.0,  # they vary by more than the clocks
        min_samples=min(policy.min_samples, CHAIN_MIN_SAMPLES),
        max_samples=min(policy.max_samples, policy.chain_samples),
        target_error=policy.chain_error,
        slower_margin=CHAIN_MARGIN,
    )


def chain_rotation(
    policy: TimingPolicy, footprint_bytes: int, set_bytes: int, free_bytes: int
) -> Rotation:
    """Choose the places of a chain's calls: each is used once, so that none is in the L2.

    Large arrays take few: their calls are long beside what a chain varies by.
    """
    affordable = max(1, free_bytes // 2 // set_bytes)
    wanted = max(FEWEST_LINKS, CHAIN_BYTES // footprint_bytes)
    sets = min(policy.links, wanted, affordable)
    return Rotation(sets, sets, chain=True)


def calls_per_replay(policy: TimingPolicy, chosen: Rotation, expected_us: float) -> int:
    """Choose how many of the sets make one replay long enough to time."""
    if expected_us >= LONG_CALL_US and not chosen.chain:
        return 1
    fitting = int(min(policy.long_replay_us / expected_us, policy.min_calls))
    wanted = max(fitting, chosen.fewest, ceil(policy.min_replay_us / expected_us))
    return min(wanted, chosen.sets)


def should_stop(
    policy: TimingPolicy, times_us: Sequence[float], seconds: float, incumbent_us: float | None
) -> bool:
    """Tell whether to stop sampling: precise enough, out of budget, or hopeless."""
    if len(times_us) >= policy.max_samples or seconds >= policy.budget_s:
        return True
    return hopeless(policy, times_us, incumbent_us) or enough(
        times_us, policy.target_error, policy.min_samples
    )


def take_samples(
    policy: TimingPolicy,
    take: Callable[[int], tuple[Sequence[float], float]],
    incumbent_us: float | None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[list[float], float]:
    """Take samples until they are enough; give them, and the least ratio of wall to event time.

    `take` replays so many times, and gives the time of a call in each (us) and all events' seconds.
    """
    times_us: list[float] = []
    ratios: list[float] = []
    started = clock()
    while (
        not times_us  # none may be left when the time is over
        or not should_stop(policy, times_us, clock() - started, incumbent_us)
        or (suspicious(ratios) and len(ratios) < SECOND_LOOKS)
    ):
        wanted = max(2, policy.min_samples - len(times_us)) if times_us else FIRST_SAMPLES
        began = clock()
        sample, event_s = take(wanted)
        ratios.append(wall_ratio(event_s, clock() - began))
        times_us += sample
        unsettled = slowing(policy, times_us, clock() - started)
        if unsettled and not hopeless(policy, times_us, incumbent_us):
            times_us.clear()
    return times_us, min(ratios)


def slowing(policy: TimingPolicy, times_us: Sequence[float], seconds: float) -> bool:
    """Tell whether the clocks go down, so that what was timed so far says too little."""
    least_us = median(times_us[:FIRST_SAMPLES]) * (1.0 + policy.settle_share)
    return seconds < policy.settle_s and times_us[-1] > least_us


def hopeless(policy: TimingPolicy, times_us: Sequence[float], incumbent_us: float | None) -> bool:
    return incumbent_us is not None and clearly_slower(times_us, incumbent_us, policy.slower_margin)


def suspicious(ratios: Sequence[float]) -> bool:
    """Tell whether wall time exceeded event time in every batch so far."""
    return bool(ratios) and min(ratios) > WALL_RATIO


def steady(policy: TimingPolicy, batches_us: Sequence[float], seconds: float) -> bool:
    """Tell whether the warm-up may end: two batches in a row agree, or its time is over."""
    if seconds >= policy.warm_up_most_s:
        return True
    if seconds < policy.warm_up_s or len(batches_us) < 2:
        return False
    before, last = batches_us[-2:]
    return abs(last / before - 1.0) <= policy.steady_share


def clocks_fell(policy: TimingPolicy, times_us: Sequence[float], programs: int) -> bool:
    """Tell whether replays of so many programs in turn, from rest on, brought the clocks down.

    What began in the first half of the time to settle is compared with what the same program takes
    in the end.
    """
    last_us = {place % programs: us for place, us in enumerate(times_us)}
    began_us, ratios = 0.0, list[float]()
    for place, us in enumerate(times_us):
        if began_us > policy.settle_s / 2 * 1e6:
            break
        ratios.append(last_us[place % programs] / us)
        began_us += us
    return median(ratios) > 1.0 + policy.settle_share


def wall_ratio(event_s: float, wall_s: float) -> float:
    """Compare wall time with event time of the same replays; above `WALL_RATIO` is an error."""
    return max(0.0, wall_s - WALL_ALLOWANCE_S) / event_s


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rounds on the same inputs, and whether what was timed last is judged."""

    rounds: int
    judged: bool = True


def stretches_of(rounds: int) -> Sequence[Stretch]:
    """Cut rounds at random places, which nobody can foresee."""
    cuts = secrets.SystemRandom().sample(range(1, rounds), min(STRETCHES, rounds) - 1)
    return [Stretch(end - start) for start, end in pairwise((0, *sorted(cuts), rounds))]


def draws(count: int) -> Sequence[Stretch]:
    """Say of so many draws how many rounds each gets and which are judged: nobody foresees it."""
    most = min(max(STRETCHES, count // DRAWS_OF_A_VERDICT), count)
    judged = secrets.SystemRandom().sample(range(count), most)
    return [Stretch(secrets.choice(ROUNDS_OF_A_DRAW), k in judged) for k in range(count)]


def draws_in(rounds: int) -> Sequence[Stretch]:
    """Say the same of the draws for about so many rounds in all."""
    return draws(ceil(rounds / fmean(ROUNDS_OF_A_DRAW)))


@dataclass(frozen=True, slots=True)
class Judging:
    """What a call meets whose result counts, and where it is kept; None: its bits are compared."""

    variant: int
    place: int | None


class SampledCalls(Generic[_T]):
    """Plan the calls of one program: which of them are judged, and on what.

    Those meet other variants than all before them, as long as there are any: where two calls differ
    cannot be learnt from those that came earlier.
    """

    def __init__(self, patch: Patch, judged: int = JUDGED) -> None:
        self._judged = judged
        self._variants = _shuffle_numbers(len(patch.changes))
        self._seen = 0
        # By its place, each kept result with its variant.
        self.kept: dict[int, tuple[int, _T]] = {}

    def plan(self) -> Judging | None:
        """Choose what the next call is for; None where its result counts for nothing."""
        if self.kept and secrets.randbelow(REPEATED) == 0:
            variant, _ = secrets.choice([*self.kept.values()])
            return Judging(variant, None)
        self._seen += 1
        # Several may be planned before the first of them is kept.
        place = self._seen - 1 if self._seen <= self._judged else secrets.randbelow(self._seen)
        return Judging(self.draw(), place) if place < self._judged else None

    def draw(self) -> int:
        """Choose a variant that no call has met, as long as there are any."""
        return next(self._variants)

    def known(self, variant: int) -> tuple[int, _T] | None:
        """Return where a result on a variant is kept, and the result."""
        found = ((place, result) for place, (one, result) in self.kept.items() if one == variant)
        return next(found, None)


def _shuffle_numbers(changes: int) -> Iterator[int]:
    """Yield the numbers of all changes in a random order, again and again; 0 where none is."""
    numbers = [*range(1, changes + 1)] or [0]
    while True:
        secrets.SystemRandom().shuffle(numbers)
        yield from numbers
