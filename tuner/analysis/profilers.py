"""Profiles: machine code, the compiler's report, times and, where they may be read, counters."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, lru_cache

from tuner.analysis.base import Degree, Profile, ProfileSubject
from tuner.analysis.metrics import DURATION, counters_for
from tuner.analysis.sass import codes, disassemble, hot_lines
from tuner.device.base import Counters, DeviceInfo
from tuner.model.amd import is_amd

# A config is profiled on one workload after another, with the same code.
_listing = lru_cache(maxsize=4)(disassemble)


class Profiler:
    """Learn why configs take the time they take. Close it, and with it its `counters`, when done.

    `counters` are a live GPU's: they give what it permits to read. `timed` says that the times of
    the subjects were measured on that device.
    """

    def __init__(
        self, device: DeviceInfo, counters: Counters | None = None, *, timed: bool = True
    ) -> None:
        self.device, self._counters = device, counters
        self._timed = timed and not device.on_cpu

    @cached_property
    def _refusal(self) -> str:
        return self._counters.refusal() if self._counters else ""

    @property
    def degree(self) -> Degree:
        if not self._timed:
            return Degree.STATIC
        return Degree.TIMING if self._counters is None or self._refusal else Degree.COUNTERS

    def profile(self, subject: ProfileSubject) -> Profile:
        """Profile one subject; what cannot be had is left empty, never guessed."""
        timing = Degree.TIMING if self._timed else Degree.STATIC
        found, program = Profile(subject, self.device, timing), subject.program
        names = dict.fromkeys(launch.kernel for launch in program.launches)
        known = not is_amd(self.device.architecture)  # the disassembler is NVIDIA's
        if known and names.keys() <= program.lowered.keys():
            symbols = {name: program.lowered[name] for name in names}
            found = replace(found, codes=codes(_listing(program.cubin), symbols, subject.lines))
        if self._counters is None or self.degree is not Degree.COUNTERS:
            return replace(found, reason=self._refusal if self._timed else "")
        counted = self._counters.count(program, counters_for(self.device.compute_capability))
        if not counted.launches:
            return replace(found, reason=counted.reason)
        longest = max(counted.launches, key=lambda launch: launch.values.get(DURATION, 0.0))
        symbol = program.lowered.get(longest.kernel, "")
        return replace(
            found,
            degree=Degree.COUNTERS,
            counters=longest.values,
            launch_counters=tuple(launch.values for launch in counted.launches),
            hot_lines=hot_lines(_listing(program.cubin), symbol, longest.samples, subject.lines),
        )

    def close(self) -> None:
        if self._counters is not None:
            self._counters.close()
