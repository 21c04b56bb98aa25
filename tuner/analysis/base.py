"""What a profile is: all that is known of why a compiled config takes the time it takes."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.resources import files

from tuner.device.base import DeviceInfo, Program
from tuner.model.kernel import Launch
from tuner.model.trial import Finding, Occupancy, Resources


class Degree(StrEnum):
    """How much a profile can know; the agent is told which."""

    COUNTERS = "counters"  # Nsight Compute's, besides all of the others
    TIMING = "timing"  # times on a GPU, the machine code and the compiler's report
    STATIC = "static"  # the machine code and the compiler's report alone


class Bottleneck(StrEnum):
    """What bounds a kernel: it decides which diagnoses run."""

    MEMORY = "memory"
    COMPUTE = "compute"
    LATENCY = "latency"
    LAUNCH = "launch"
    TAIL = "tail"


# What a plan may predict besides `time_us`, each with its unit and what it means.
METRICS: Mapping[str, tuple[str, str]] = {
    "registers": ("", "registers per thread"),
    "occupancy": ("", "resident warps as a share of the most a multiprocessor holds"),
    "spill_bytes": ("bytes", "spill stores and loads per thread, in the code"),
    "shared_bytes": ("bytes", "shared memory per block, static and dynamic"),
    "instructions": ("", "machine instructions in the code"),
    "dram_bytes": ("bytes", "bytes that moved between L2 and memory in one call"),
    "l2_hit_share": ("", "share of L2 sectors found there"),
    "executed_instructions": ("", "warp instructions executed in one call"),
    "sectors_per_request": ("", "32-byte sectors per global load of a warp"),
    "bank_conflicts": ("", "extra shared-memory wavefronts in one call"),
    "issue_share": ("", "share of cycles in which a scheduler issued"),
    "barrier_stall_share": ("", "share of stalled cycles spent at barriers"),
    "memory_stall_share": ("", "share of stalled cycles spent waiting for global memory"),
}


# By name, the `names` and the `opcodes` of each.
INSTRUCTION_CLASSES: Mapping[str, Mapping[str, str]] = tomllib.loads(
    files("tuner.analysis").joinpath("instruction_classes.toml").read_text("utf-8")
)
OTHER = "other"  # what has none of these classes


@dataclass(frozen=True, slots=True)
class MachineCode:
    """The machine code of one kernel, counted.

    `mix` counts instructions by class, `loop_mix` those of the innermost loops; `load_bits` and
    `store_bits` count global accesses by their width. `lines` names for a class the template's line
    that most of its instructions come from, where the compiler said so: of those that were executed
    where that was counted, else of those in innermost loops if there are any. `executed` counts by
    class what the warps of a call executed, and `executed_lines` that by line and class; both are
    empty where nothing was counted.
    """

    kernel: str
    instructions: int
    mix: Mapping[str, int]
    load_bits: Mapping[int, int] = field(default_factory=dict)
    store_bits: Mapping[int, int] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    loop_mix: Mapping[str, int] = field(default_factory=dict)
    executed: Mapping[str, int] = field(default_factory=dict)
    executed_lines: Mapping[tuple[int, str], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProfileSubject:
    """What is to be profiled: one compiled config on one workload, and what is known of it.

    `program` is compiled with line information; line i + 1 of its source came from line
    `lines[i]` of the template. `time_us` is None where nothing was timed on a GPU. `uses` says of
    each launch what it uses of the hardware; `resources` and `occupancy` are those of the launch
    numbered `main`: the one that took longest where that was counted, else the first.
    `traffic_bytes` and `operations` are what the operator needs at least, and `peak` what the
    operations are done in, "" where that is not declared. `surroundings` names what the time was
    measured in, "" for alone.
    """

    program: Program
    lines: tuple[int, ...]
    resources: Resources
    occupancy: Occupancy | None
    time_us: float | None
    traffic_bytes: int
    operations: int | None = None
    peak: str = ""
    surroundings: str = ""
    uses: tuple[tuple[Resources, Occupancy | None], ...] = ()
    main: int = 0

    @property
    def launch(self) -> Launch:
        return self.program.launches[self.main]


@dataclass(frozen=True, slots=True)
class Profile:
    """All that was learned of one subject.

    `codes` has one entry a kernel, empty where the machine code cannot be read. `counters` are
    Nsight Compute's under its own names and base units, of the launch that took longest; empty
    below the degree of counters. `launch_counters` are those of every launch, in their order.
    `hot_lines` are the template's lines with their share of the stalled samples, most first.
    `reason` says why there are no counters, "" where there are or none were asked for.
    """

    subject: ProfileSubject
    device: DeviceInfo
    degree: Degree
    codes: tuple[MachineCode, ...] = ()
    counters: Mapping[str, float] = field(default_factory=dict)
    hot_lines: tuple[tuple[int, float], ...] = ()
    launch_counters: tuple[Mapping[str, float], ...] = ()
    reason: str = ""

    def count(self, name: str) -> int:
        return sum(code.mix.get(name, 0) for code in self.codes)

    def line_of(self, name: str) -> int | None:
        return next((code.lines[name] for code in self.codes if name in code.lines), None)


@dataclass(frozen=True, slots=True)
class Rule:
    """One diagnosis: what kernels it runs for, by what bounds them, and what it finds in a profile.

    Other packages add theirs under the entry-point group `tuner.diagnosis`.
    """

    name: str
    bounds: frozenset[Bottleneck]
    find: Callable[[Profile], Finding | None]
