"""Profiles of what is known without counters: the machine code and the compiler's report."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, lru_cache

from tuner.analysis.base import Degree, Profile, Profiler, ProfileSubject
from tuner.analysis.metrics import DURATION, counters_for
from tuner.analysis.sass import codes, disassemble, hot_lines
from tuner.device.base import Counters, DeviceInfo, Program

# A config is profiled on one workload after another, with the same code.
_kept = lru_cache(maxsize=4)(disassemble)


def listing_of(program: Program) -> str:
    """Disassemble a program, "" where that cannot be done; the last few are kept."""
    return _kept(program.cubin)


class StaticProfiler:
    """Profile without touching a GPU; `degree` says whether the subjects were timed on one."""

    def __init__(self, device: DeviceInfo, degree: Degree) -> None:
        self._device, self._degree = device, degree

    @property
    def degree(self) -> Degree:
        return self._degree

    def profile(self, subject: ProfileSubject) -> Profile:
        """Read the machine code; `codes` stays empty where that cannot be done."""
        program, found = subject.program, Profile(subject, self._device, self._degree)
        names = dict.fromkeys(launch.kernel for launch in program.launches)
        if not names.keys() <= program.lowered.keys():
            return found
        symbols = {name: program.lowered[name] for name in names}
        return replace(found, codes=codes(listing_of(program), symbols, subject.lines))

    def close(self) -> None:
        """Nothing to do: each process ends with its call."""


class CountingProfiler:
    """Profile with counters, which it closes; without permission to read them, with times alone."""

    def __init__(self, device: DeviceInfo, counters: Counters) -> None:
        self._device, self._counters = device, counters
        self._static = StaticProfiler(device, Degree.TIMING)

    @cached_property
    def reason(self) -> str:
        """Why there are no counters here, "" where there are; found out once."""
        return self._counters.refusal()

    @property
    def degree(self) -> Degree:
        return Degree.TIMING if self.reason else Degree.COUNTERS

    def profile(self, subject: ProfileSubject) -> Profile:
        """Profile one subject; one that cannot be counted has a profile of timing, and why."""
        profile = self._static.profile(subject)
        if self.reason:
            return replace(profile, reason=self.reason)
        names = counters_for(self._device.compute_capability)
        counted = self._counters.count(subject.program, names)
        if not counted.launches:
            return replace(profile, reason=counted.reason)
        longest = max(counted.launches, key=lambda launch: launch.values.get(DURATION, 0.0))
        symbol = subject.program.lowered.get(longest.kernel, "")
        text = listing_of(subject.program)
        return replace(
            profile,
            degree=Degree.COUNTERS,
            counters=longest.values,
            launch_counters=tuple(launch.values for launch in counted.launches),
            hot_lines=hot_lines(text, symbol, longest.samples, subject.lines),
        )

    def close(self) -> None:
        self._counters.close()


def find_profiler(
    device: DeviceInfo, counters: Counters | None = None, *, timed: bool = True
) -> Profiler:
    """Make the profiler that knows most of a device; `counters` are a live GPU's.

    `timed` says that the times of its subjects were measured on that device.
    """
    if device.on_cpu or not timed:
        return StaticProfiler(device, Degree.STATIC)
    if counters is None:
        return StaticProfiler(device, Degree.TIMING)
    return CountingProfiler(device, counters)
