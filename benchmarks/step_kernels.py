"""What the kernels of a step take, by kind."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from environment import ROOT

# Which kernels are of which operator or kind: `tune timeline` reads the same.
KERNELS = ROOT / "tuner/extensions/engines/timeline/operators.yaml"
NAMES, LONGEST_NAME = 24, 120  # of kernels in a result
Kernel = tuple[str, float]  # its name, and microseconds


def profiled(call: Callable[[], Any], *, times: int) -> list[Kernel]:
    """Profile so many calls; one before them, that is not counted."""
    import torch
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiling

    call()
    torch.cuda.synchronize()
    with profiling(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(times):
            call()
        torch.cuda.synchronize()
    cuda = torch.autograd.DeviceType.CUDA
    kernels = [one for one in profiler.events() if one.device_type == cuda]
    return [(one.name, one.time_range.elapsed_us()) for one in kernels]


def shares(kernels: Iterable[Kernel], tuned: Mapping[str, str], times: int) -> dict[str, Any]:
    """Sum up the kernels of so many calls by kind, the longest first: count, us and share."""
    us: dict[str, float] = defaultdict(float)
    names: dict[str, float] = defaultdict(float)
    counts: Counter[str] = Counter()
    for name, taken in kernels:
        kind = kind_of(name, tuned)
        us[kind] += taken / times
        names[name[:LONGEST_NAME]] += taken / times
        counts[kind] += 1
    total = sum(us.values())
    return {
        "us": round(total, 1),
        "kinds": {
            kind: {"count": counts[kind] / times, "us": round(one, 2), "share": one / total}
            for kind, one in longest_first(us)
        },
        "names": {name: round(one, 2) for name, one in longest_first(names)[:NAMES]},
    }


def longest_first(us: Mapping[str, float]) -> list[tuple[str, float]]:
    """Sort names by their microseconds."""
    return sorted(us.items(), key=lambda item: -item[1])


def kind_of(kernel: str, tuned: Mapping[str, str]) -> str:
    """Say what a kernel does: an operator, after `tuned` where it is the plugin's, or a kind."""
    if kernel in tuned:
        return f"tuned {tuned[kernel]}"
    for pattern, kind in kernel_table():
        if pattern.search(kernel):
            return kind
    return "other"


@cache
def kernel_table() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Read which names are of which operator or kind."""
    import yaml

    rows = yaml.safe_load(KERNELS.read_text(encoding="utf-8"))["kernels"]
    named = ((row["kernel"], row.get("operator") or row.get("kind")) for row in rows)
    return tuple((re.compile(pattern), kind) for pattern, kind in named if kind)
