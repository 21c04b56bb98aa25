"""How much faster a step is in one mode than in another, out of rounds in which both had turns."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from moe_modes import OWN, Mode


def summary(
    modes: list[Mode], times: Mapping[str, list[float]], captures: int = 1
) -> dict[str, Any]:
    """Give medians, and the speedup of each mode over the one that it is compared with."""
    return {
        "us": {name: statistics.median(some) for name, some in times.items()},
        "speedup": {
            mode.name: {
                "against": mode.against,
                **speedup(times[mode.against], times[mode.name], captures),
            }
            for mode in modes
            if mode.name != OWN
        },
        "rounds_us": {name: [round(one, 2) for one in some] for name, some in times.items()},
    }


def speedup(own_us: list[float], tuned_us: list[float], captures: int = 1) -> dict[str, Any]:
    """Return the median of the rounds' ratios, of several captures their mean, and its interval.

    The rounds took the captures in turn. Where a graph's memory lies costs or gains up to 1 % of a
    step: the interval of 95 % is a bootstrap over captures, and over the rounds of each.
    """
    import numpy

    ratios = numpy.array(own_us) / numpy.array(tuned_us)
    each = [ratios[first::captures] for first in range(captures)]
    random_ = numpy.random.default_rng(5)
    drawn = numpy.stack([numpy.median(random_.choice(one, (10_000, one.size)), 1) for one in each])
    chosen = random_.integers(captures, size=(captures, 10_000))
    means = numpy.take_along_axis(drawn, chosen, 0).mean(0)
    low, high = numpy.quantile(means, (0.025, 0.975))
    interval = [round(float(low), 4), round(float(high), 4)]
    middle = numpy.mean([numpy.median(one) for one in each])
    return {"median": round(float(middle), 4), "interval": interval}
