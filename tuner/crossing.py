"""What won on workloads near by, for those that have not tried it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from tuner.kernel import Workload
from tuner.plan import distance
from tuner.search.pool import Pool
from tuner.space import Config
from tuner.trial import Trial

# Of the trials of a search of several workloads, so many of each are kept for this.
CROSSED = 3


def crossings(
    told: Sequence[Trial], pools: Mapping[Workload, Pool]
) -> Iterator[tuple[Workload, Config]]:
    """Name up to `CROSSED` valid, untried configs for each workload of `pools`.

    First the best two of the nearest other workload, then the best one of each that is farther.
    """
    tried = {(trial.workload, trial.config) for trial in told}
    ranked: dict[Workload, list[Config]] = {}
    timed = (trial for trial in told if trial.time_us is not None)
    for trial in sorted(timed, key=lambda trial: trial.time_us or 0.0):
        ranked.setdefault(trial.workload, []).append(trial.config)
    for own, pool in pools.items():
        near = sorted((w for w in ranked if w != own), key=lambda other: distance(own, other))
        wanted = [config for other in near[:1] for config in ranked[other][:2]]
        wanted += [ranked[other][0] for other in near[1:]]
        untried = (c for c in dict.fromkeys(wanted) if c in pool and (own, c) not in tried)
        yield from ((own, config) for config in islice(untried, CROSSED))
