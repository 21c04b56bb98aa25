"""What a store knows, summed up for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.knowledge.records import PastSearch, PastWorkload


@dataclass(frozen=True, slots=True)
class Summary:
    """What is known of one kernel on one device.

    `speedup` is the largest over the baseline on any workload, None where no baseline is known;
    `last` is when the last run began (ISO 8601).
    """

    kernel: str
    operators: Mapping[str, str]
    device: str
    searches: int
    workloads: int
    configs: int
    speedup: float | None
    last: str


def summaries(known: Sequence[PastSearch]) -> list[Summary]:
    """Sum up each kernel, choice of operators and device, in the order of their names."""
    groups: dict[tuple[str, str, tuple[tuple[str, str], ...]], list[PastSearch]] = {}
    for search in known:
        operators = tuple(sorted(search.operators.items()))
        groups.setdefault((search.kernel, search.device, operators), []).append(search)
    return [_summary(groups[group]) for group in sorted(groups)]


def _summary(group: Sequence[PastSearch]) -> Summary:
    found = [one for search in group for one in search.workloads]
    speedups = [speedup for one in found if (speedup := _speedup(one)) is not None]
    return Summary(
        kernel=group[0].kernel,
        operators=group[0].operators,
        device=group[0].device,
        searches=len(group),
        workloads=len({one.workload.key for one in found}),
        configs=len({config.config.key for one in found for config in one.configs}),
        speedup=max(speedups, default=None),
        last=max(search.created for search in group),
    )


def _speedup(past: PastWorkload) -> float | None:
    times = [config.time_us for config in past.configs if config.time_us is not None]
    return past.baseline_us / min(times) if past.baseline_us and times else None
