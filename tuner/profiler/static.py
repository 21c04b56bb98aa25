"""Profiles of what is known without counters: the machine code and the compiler's report."""

from __future__ import annotations

from functools import lru_cache

from tuner.device.base import DeviceInfo, Program
from tuner.profiler.base import Code, Degree, Profile, Subject
from tuner.profiler.nvdisasm import disassemble
from tuner.profiler.sass import codes

# A config is profiled on one workload after another, with the same code.
_kept = lru_cache(maxsize=4)(disassemble)


class StaticProfiler:
    """Profile without touching a GPU; `degree` says whether the subjects were timed on one.

    Implements `Profiler`.
    """

    def __init__(self, device: DeviceInfo, degree: Degree) -> None:
        self._device, self._degree = device, degree

    @property
    def degree(self) -> Degree:
        """How much it can know here."""
        return self._degree

    def profile(self, subject: Subject) -> Profile:
        """Read the machine code; `codes` stays empty where that cannot be done."""
        return Profile(subject, self._device, self._degree, codes=_codes(subject))

    def close(self) -> None:
        """Nothing to do: each process ends with its call."""


def listing_of(program: Program) -> str:
    """Disassemble a program, "" where that cannot be done; the last few are kept."""
    return _kept(program.cubin)


def _codes(subject: Subject) -> tuple[Code, ...]:
    program = subject.program
    names = dict.fromkeys(launch.kernel for launch in program.launches)
    if not names.keys() <= program.lowered.keys():
        return ()
    symbols = {name: program.lowered[name] for name in names}
    return codes(listing_of(program), symbols, subject.lines)
