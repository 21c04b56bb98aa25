"""Profiles with Nsight Compute's counters, where they can be read."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from tuner.device.base import DeviceInfo
from tuner.profiler.base import Counters, Degree, LaunchCounts, Profile, Profiler, Subject
from tuner.profiler.metrics import DURATION, counters_for
from tuner.profiler.sass import hot_lines
from tuner.profiler.static import StaticProfiler, listing_of


class CountingProfiler:
    """Profile with counters; without permission to read them, with times alone.

    Implements `Profiler`. Closes the counters it was given.
    """

    def __init__(self, device: DeviceInfo, counters: Counters) -> None:
        self._device, self._counters = device, counters
        self._static = StaticProfiler(device, Degree.TIMING)

    @cached_property
    def reason(self) -> str:
        """Why there are no counters here, "" where there are; found out once."""
        return self._counters.refusal()

    @property
    def degree(self) -> Degree:
        """How much it can know here."""
        return Degree.TIMING if self.reason else Degree.COUNTERS

    def profile(self, subject: Subject) -> Profile:
        """Profile one subject; one that cannot be counted has a profile of timing, and why."""
        profile = self._static.profile(subject)
        if self.reason:
            return replace(profile, reason=self.reason)
        names = counters_for(self._device.compute_capability)
        counted = self._counters.count(subject.program, names)
        if not counted.launches:
            return replace(profile, reason=counted.reason)
        longest = max(counted.launches, key=lambda launch: launch.values.get(DURATION, 0.0))
        return replace(
            profile,
            degree=Degree.COUNTERS,
            counters=longest.values,
            launch_counters=tuple(launch.values for launch in counted.launches),
            hot_lines=_hot_lines(subject, longest),
        )

    def close(self) -> None:
        """End the processes."""
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


def _hot_lines(subject: Subject, launch: LaunchCounts) -> tuple[tuple[int, float], ...]:
    symbol = subject.program.lowered.get(launch.kernel, "")
    return hot_lines(listing_of(subject.program), symbol, launch.samples, subject.lines)
