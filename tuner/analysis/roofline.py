"""What bounds a kernel: memory, arithmetic, latency, the launch itself or its last wave."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast, get_args

from tuner.analysis.base import Bottleneck, Profile
from tuner.analysis.metrics import MEMORY_THROUGHPUT, SM_THROUGHPUT, counter
from tuner.model.hardware import Peak, operations_per_clock
from tuner.model.statistics import floor_us

# From this share of what the hardware can do on, a kernel counts as bound by it: where Nsight
# Compute's speed-of-light rules draw the line as well.
BOUND = 0.6
# Shorter calls are mostly the start and the end of a launch.
LAUNCH_US = 3.0
# A kernel that writes one number takes 0.66 us a call on an H200, 0.49 us with programmatic
# dependent launch (benchmarks/results/h200/launch_floor.json); other GPUs differ by tenths.
EMPTY_LAUNCH_US = 0.66
EMPTY_PROGRAMMATIC_US = 0.49
# Ours: a last wave that wastes less of the time is not what to change first.
TAIL_LOSS = 0.2
# Ours: as many multiprocessors may be without a block before that is what to change.
IDLE = 0.2
# The peak is known to about a factor of 2 (clocks, dual issue): a theory that is closer is none.
CLEAR = 2.0
CLOCK_GHZ = 1.7
# However near the roofline, findings stay ranked.
_LEAST_ROOM = 0.05
# Ours: from this share of what the memory does on, moving the same bytes otherwise gains nothing.
AT_FLOOR = 0.95


@dataclass(frozen=True, slots=True)
class Waves:
    """How the blocks of the main launch fill the multiprocessors, `resident` on each at a time."""

    blocks: int
    multiprocessors: int
    resident: int

    @property
    def count(self) -> float:
        """How often all multiprocessors are filled, the last time perhaps in part."""
        return self.blocks / (self.resident * self.multiprocessors)

    @property
    def lost(self) -> float:
        """The share of time that the part-filled last wave wastes if all blocks take equally long.

        0 where there is only one wave: then no block waits for another.
        """
        return 1.0 - self.count / math.ceil(self.count) if self.count > 1.0 else 0.0

    @property
    def idle(self) -> int:
        return max(self.multiprocessors - self.blocks, 0)


def waves(profile: Profile) -> Waves | None:
    """Count the waves of the main launch; None without launches or occupancy."""
    subject = profile.subject
    occupancy, launches = subject.occupancy, subject.program.launches
    if occupancy is None or occupancy.blocks < 1 or not launches:
        return None
    return Waves(math.prod(subject.launch.grid), profile.device.multiprocessors, occupancy.blocks)


def bound_of(profile: Profile) -> Bottleneck:
    """Classify a kernel by theory and time, then by counters, then by what its launch shows.

    Where theory and counters name different bounds, theory decides (as in KernelPro, arXiv
    2606.26453): what the counters see then is work that the operator does not need.
    """
    time_us, launches = profile.subject.time_us, len(profile.subject.program.launches)
    by_theory = theory(profile)
    if time_us:
        memory, compute = _traffic_us(profile), compute_us(profile) or 0.0
        if max(memory, compute) >= BOUND * time_us:
            return Bottleneck.MEMORY if memory >= compute else Bottleneck.COMPUTE
        if launches and time_us / launches < LAUNCH_US:
            return Bottleneck.LAUNCH
    moved, busy = counter(profile, MEMORY_THROUGHPUT), counter(profile, SM_THROUGHPUT)
    if moved is not None and busy is not None and max(moved, busy) >= 100 * BOUND:
        return by_theory or (Bottleneck.MEMORY if moved >= busy else Bottleneck.COMPUTE)
    if (filled := waves(profile)) is not None:
        if filled.idle >= IDLE * filled.multiprocessors:
            least_us = memory_us(profile)
            short = least_us is not None and least_us < EMPTY_LAUNCH_US
            return Bottleneck.LAUNCH if short and not time_us else Bottleneck.LATENCY
        if filled.lost >= TAIL_LOSS:
            return Bottleneck.TAIL
    return (None if time_us else by_theory) or Bottleneck.LATENCY


def memory_us(profile: Profile) -> float | None:
    rate = profile.device.streaming_gbps
    return floor_us(profile.subject.traffic_bytes, rate) if rate > 0.0 else None


def compute_us(profile: Profile) -> float | None:
    """Estimate the time (us) of the declared operations at the declared peak.

    Where none is declared, or the device has none: that of 16-bit tensor cores where the machine
    code uses them, else of FP32.
    """
    operations, device = profile.subject.operations, profile.device
    if operations is None:
        return None
    seen: Peak = "fp16" if profile.count("tensor") else "fp32"
    asked = (profile.subject.peak, seen, "fp32")
    rates = (peak_gflops(device.compute_capability, device.multiprocessors, peak) for peak in asked)
    return operations / (next(filter(None, rates)) * 1e3)


def peak_gflops(
    compute_capability: tuple[int, int], multiprocessors: int, peak: str
) -> float | None:
    """Estimate the most that a device does in a type, at 1.7 GHz; None for a type it hasn't."""
    if peak not in get_args(Peak):
        return None
    each = operations_per_clock(compute_capability, cast(Peak, peak))
    return None if each is None else each * multiprocessors * CLOCK_GHZ


def theory(profile: Profile) -> Bottleneck | None:
    """Tell which bound the operator has by its bytes and operations; None where it is open."""
    memory, compute = memory_us(profile), compute_us(profile)
    if memory is None or compute is None:
        return None
    if compute >= CLEAR * memory:
        return Bottleneck.COMPUTE
    return Bottleneck.MEMORY if memory >= CLEAR * compute else None


def room(profile: Profile) -> float:
    """Estimate which share of the time could be saved at most; 1 where nothing was timed."""
    time_us = profile.subject.time_us
    if not time_us:
        return 1.0
    least_us = max(_traffic_us(profile), compute_us(profile) or 0.0, EMPTY_PROGRAMMATIC_US)
    return max(1.0 - least_us / time_us, _LEAST_ROOM)


def is_at_floor(profile: Profile) -> bool:
    """Tell whether a call takes about as long as memory needs for the operator's bytes."""
    time_us = profile.subject.time_us
    return bool(time_us) and _traffic_us(profile) >= AT_FLOOR * (time_us or 0.0)


def _traffic_us(profile: Profile) -> float:
    # Between its neighbours it finds its inputs in the L2: no rate of the memory bounds that.
    return 0.0 if profile.subject.surroundings else memory_us(profile) or 0.0
