"""What a timeline holds: the work of GPUs, and what of the time between they had none."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from tuner.model.kernel import Dim3

Shape = tuple[int, ...]
# What profilers round times to.
_TICK_US = 1e-3
_UNNAMED = re.compile(r"\(anonymous namespace\)::|<unnamed>::")
_ANGLE = re.compile("([<>])")


@dataclass(frozen=True, slots=True)
class Call:
    """The PyTorch operator that a launch came from.

    `shapes`, `values` and `types` are those of its inputs, in their order: () where one is no
    tensor, "" where one is no number, truth value or list. All are empty where none were recorded.
    """

    name: str
    shapes: tuple[Shape, ...] = ()
    values: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TracedLaunch:
    """One kernel, copy or fill on a GPU. `grid` and `block` are None where it has none.

    `replayed` says that a CUDA graph launched it: then no operator did. Each `process` numbers its
    streams.
    """

    name: str
    start_us: float
    us: float
    grid: Dim3 | None = None
    block: Dim3 | None = None
    device: int = 0
    stream: int = 0
    call: Call | None = None
    replayed: bool = False
    process: object = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Trace:
    """A timeline; `gpu` and `memory_gbps` (1e9 B/s) as the profiler states them.

    `cut` launches were recorded as longer than until the next of their stream began.
    """

    path: Path
    launches: tuple[TracedLaunch, ...]
    gpu: str = ""
    memory_gbps: float | None = None
    cut: int = 0

    @classmethod
    def of(
        cls,
        path: Path,
        launches: Iterable[TracedLaunch],
        gpu: str = "",
        memory_gbps: float | None = None,
    ) -> Trace:
        """Put launches in order; each ends at the latest where the next of its stream begins.

        Left as they are recorded are those of CUDA graphs, whose branches share a stream.
        """
        ordered = sorted(launches, key=lambda launch: launch.start_us)
        cut, following = 0, dict[object, float]()
        for place in range(len(ordered) - 1, -1, -1):
            launch = ordered[place]
            if launch.replayed:
                continue
            lane = launch.process, launch.device, launch.stream
            most_us = following.get(lane, inf) - launch.start_us
            following[lane] = launch.start_us
            if launch.us > most_us:
                ordered[place] = replace(launch, us=most_us)
                cut += launch.us - most_us >= _TICK_US
        return cls(path, tuple(ordered), gpu, memory_gbps, cut)

    @property
    def kernel_us(self) -> float:
        """The sum of all launches' times."""
        return sum(launch.us for launch in self.launches)

    @property
    def span_us(self) -> float:
        """From the first launch's start to the last one's end, summed over the GPUs."""
        return sum(
            max(launch.start_us + launch.us for launch in launches)
            - min(launch.start_us for launch in launches)
            for launches in self._by_device()
        )

    @property
    def busy_us(self) -> float:
        """The time in which at least one launch ran, summed over the GPUs."""
        total_us = 0.0
        for launches in self._by_device():
            reached_us = float("-inf")
            for start_us, end_us in sorted(
                (launch.start_us, launch.start_us + launch.us) for launch in launches
            ):
                total_us += max(end_us - max(start_us, reached_us), 0.0)
                reached_us = max(reached_us, end_us)
        return total_us

    @property
    def idle_share(self) -> float:
        return 1.0 - self.busy_us / self.span_us if self.span_us else 0.0

    def _by_device(self) -> Iterable[list[TracedLaunch]]:
        groups: dict[int, list[TracedLaunch]] = {}
        for launch in self.launches:
            groups.setdefault(launch.device, []).append(launch)
        return groups.values()


def base_name(name: str) -> str:
    """Reduce a kernel's name to what both profilers write alike: no template, no parameters."""
    plain: list[str] = []
    opened: list[int] = []
    for piece in _ANGLE.split(_UNNAMED.sub("", name)):
        if piece == "<":
            opened.append(len(plain))
        if piece == ">" and opened:
            del plain[opened.pop() :]
        else:
            plain.append(piece)
    words = "".join(plain).partition("(")[0].split()
    return words[-1] if words else name
