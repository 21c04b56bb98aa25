"""Medians, intervals and the rules for when to stop measuring and what may be claimed."""

from __future__ import annotations

import math
from statistics import quantiles
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Interval = tuple[float, float]
# Which way of measuring a number is of; raised, with a line in CHANGELOG, when timing, surroundings
# or finals change. 1: until 2026-11-29; what follows a peer that returns its result read the output
# that nobody wrote. 2: it reads what was returned.
PROTOCOL = 2
LEVEL = 0.95
# Of a program's rounds, on each side, that its cost leaves out.
TRIMMED = 0.2
# A cost between neighbours is a difference, and may come out below zero by noise; a time may not.
LEAST_US = 1e-3
# Two standard errors are such an interval.
SURE = 2.0
# Below so many rounds no difference can be claimed: if nothing differed, all of n would agree with
# probability `2 * 0.5**n` (sign test).
FEWEST_ROUNDS = 6


def relative_standard_error(times_us: Sequence[float]) -> float | None:
    """Estimate the standard error of the median as a share of the median; None below 2 samples.

    `1.25 * IQR / (1.35 * sqrt(n))`, after McGill, Tukey and Larsen, Variations of Box Plots
    (The American Statistician 32, 1978): one slow replay in twenty does not move it.
    """
    times: list[float] = _positive(times_us).tolist()
    if len(times) < 2:
        return None
    # Not NumPy's: its first call imports masked arrays, for longer than it takes to time a config.
    low, middle, high = quantiles(times, n=4, method="inclusive")
    return 1.25 * (high - low) / (1.35 * math.sqrt(len(times)) * middle)


def enough(times_us: Sequence[float], target: float, minimum: int) -> bool:
    """Tell whether `minimum` samples are there and the median is known to within `target`."""
    if len(times_us) < max(minimum, 2):
        return False
    error = relative_standard_error(times_us)
    return error is not None and error <= target


def clearly_slower(
    times_us: Sequence[float], incumbent_us: float, margin: float, minimum: int = 3
) -> bool:
    """Tell whether a config is hopeless: even its fastest sample is over the incumbent's median.

    `min(times) > incumbent * (1 + margin)`, from `minimum` samples on. The margin has to exceed
    the drift of the clocks between the two measurements (1.5 % is usual).
    """
    return len(times_us) >= minimum and min(times_us) > incumbent_us * (1.0 + margin)


def cost_us(times_us: Sequence[float]) -> float:
    """Average a program's rounds without their extremes: what every table and ratio calls its cost.

    The mean without `TRIMMED` of the least and of the largest: one slow replay in ten moves it as
    little as a median, and it scatters less.
    """
    return float(_costs(_positive(times_us)))


def paired_interval(
    baseline_us: Sequence[float], candidate_us: Sequence[float], seed: int, resamples: int = 10_000
) -> tuple[float, Interval]:
    """Compare two programs timed in the same rounds: the speedup and its bootstrap interval.

    The speedup is the ratio of the two costs (`cost_us`), never an average of the rounds' ratios: a
    cost in surroundings is a difference that comes near 0 in some rounds, where its ratio explodes.
    Whole rounds are drawn, so that what both share in a round, such as memory throttled for a
    while, cancels. Constant samples give an interval of width zero. With fewer rounds than a sign
    test needs (`FEWEST_ROUNDS`) the interval is stretched to contain 1.
    """
    baseline, candidate = _positive(baseline_us), _positive(candidate_us)
    if baseline.size != candidate.size:
        raise ValueError(f"{baseline.size} and {candidate.size} samples are not pairs")
    drawn = np.random.default_rng(seed).integers(0, baseline.size, (resamples, baseline.size))
    speedup = float(_costs(baseline) / _costs(candidate))
    return speedup, _bounds(
        _costs(baseline[drawn]) / _costs(candidate[drawn]), speedup, len(drawn[0])
    )


def unpaired_interval(
    baseline_us: Sequence[float], candidate_us: Sequence[float], seed: int, resamples: int = 10_000
) -> tuple[float, Interval]:
    """Compare two programs timed apart from each other, each side drawn on its own.

    Says as much as `paired_interval` only where the clocks were equal: it cannot see a drift
    between the two measurements, and must be labelled unpaired wherever it is shown.
    """
    baseline, candidate = _positive(baseline_us), _positive(candidate_us)
    rng = np.random.default_rng(seed)
    above, below = (
        _costs(side[rng.integers(0, side.size, (resamples, side.size))])
        for side in (baseline, candidate)
    )
    speedup = float(_costs(baseline) / _costs(candidate))
    return speedup, _bounds(above / below, speedup, min(baseline.size, candidate.size))


def trimmed_mean(samples: Floats, share: float) -> tuple[Floats, Floats]:
    """Average columns without this share of the least and of the largest; give standard errors too.

    An error is that of the winsorized deviation (Tukey and McLaughlin, Less vulnerable confidence
    and significance procedures, Sankhya A 25, 1963), infinite for a single row.
    """
    count = len(samples)
    cut = int(share * count)
    ordered = np.sort(samples, axis=0)
    means: Floats = ordered[cut : count - cut].mean(axis=0)
    if count == 1:
        return means, np.full(means.shape, np.inf)
    winsorized = np.clip(ordered, ordered[cut], ordered[count - 1 - cut])
    return means, winsorized.std(axis=0, ddof=1) / ((1.0 - 2.0 * share) * math.sqrt(count))


def floor_us(traffic_bytes: float, streaming_gbps: float) -> float:
    """Compute the time that moving the bytes takes at the measured streaming rate (1e9 B/s)."""
    if not streaming_gbps > 0.0:
        raise ValueError(f"streaming rate of {streaming_gbps} GB/s")
    return traffic_bytes / (streaming_gbps * 1e3)


def roofline_share(traffic_bytes: float, time_us: float, streaming_gbps: float) -> float:
    """Compute which share of the streaming rate a kernel reaches; 1 is the roofline."""
    if not time_us > 0.0:
        raise ValueError(f"time of {time_us} us")
    return floor_us(traffic_bytes, streaming_gbps) / time_us


def geometric_mean(values: Iterable[float]) -> float:
    """Average ratios such as speedups; raise `ValueError` for none or for one that is not > 0."""
    return float(np.exp(np.log(_positive(tuple(values))).mean()))


def average_speedup(speedups: Collection[float], before: Collection[float] = ()) -> float:
    """Average speedups geometrically; where `before` has what each took, say it of their sum."""
    if not before:
        return geometric_mean(speedups)
    return sum(before) / sum(us / ratio for us, ratio in zip(before, speedups, strict=True))


def _positive(values: Sequence[float]) -> Floats:
    samples = np.asarray(values, dtype=np.float64)
    if samples.size == 0:
        raise ValueError("no samples")
    if not np.all((samples > 0.0) & np.isfinite(samples)):
        raise ValueError("a sample that is not a positive number")
    return samples


def _costs(times_us: Floats) -> Floats:
    count = times_us.shape[-1]
    cut = int(TRIMMED * count)
    means: Floats = np.sort(times_us, axis=-1)[..., cut : count - cut].mean(axis=-1)
    return means


def _bounds(ratios: Floats, speedup: float, samples: int) -> Interval:
    tail = (1.0 - LEVEL) / 2.0
    low, high = (float(bound) for bound in np.quantile(ratios, (tail, 1.0 - tail)))
    low, high = min(low, speedup), max(high, speedup)
    return (min(low, 1.0), max(high, 1.0)) if samples < FEWEST_ROUNDS else (low, high)
