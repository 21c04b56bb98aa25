"""What was learned: trials, their measurements, resource usage and verdicts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from statistics import median
from typing import Annotated, Literal

from annotated_types import Gt, Lt, MinLen

from tuner.model.bounds import Count, Finite, Int64, Microseconds, Ratio
from tuner.model.config import Config
from tuner.model.kernel import Workload

# `search`: checked with few kinds of input, and timed; `finals`: with all and twice, often untimed.
Stage = Literal["search", "finals"]
# A smaller difference is not claimed, however narrow the interval: where code and graphs happen to
# lie in memory makes as much (benchmarks/same_kernel.py compares kernels with themselves).
RESOLUTION = 0.002
# Of an interval that is wider than this and than the effect that it bounds nothing can be said.
NARROW = 0.04


NOISY = "too noisy to say"


def is_noisy(speedup: float, interval: tuple[float, float]) -> bool:
    """Tell whether an interval is too wide to call its programs different, or equally fast."""
    low, high = interval
    return high - low > max(NARROW, abs(speedup - 1.0))


# What a window of energy was taken of: the untouched GPU, the baseline or a tuned config.
EnergyKind = Literal["idle", "baseline", "variant"]
# The candidate that a run begins with: the template as its author wrote it.
INITIAL = "initial"
# Who verified a session's winners, where it was this program itself.
TUNE = "tune"


class Status(StrEnum):
    """How a trial ended; only `correct` trials have a time to be chosen by."""

    CORRECT = "correct"
    CONSTRAINT = "constraint"
    COMPILE = "compile"
    RESOURCE_LIMIT = "resource_limit"
    LAUNCH = "launch"
    INCORRECT = "incorrect"
    TIMEOUT = "timeout"
    OTHER_BITS = "other_bits"  # right, but other bits are kept: the default config's, or a class's
    NOT_INVARIANT = "not_invariant"  # right, but a row's bits depend on how many rows there are
    NOT_RECORDED = "not_recorded"  # no answer in the recording, or it needs what is not here


# What no limit foretold.
BROKEN = frozenset({Status.COMPILE, Status.LAUNCH, Status.INCORRECT, Status.TIMEOUT})
# How a reason begins for which a config was not tried at all.
LEFT_OUT = "left out: "


@dataclass(frozen=True, slots=True)
class Resources:
    """What the compiler reports for one kernel, per thread or per block.

    `registers` is None where the kernel is compiled for a CPU, which has other ones.
    `serialized_wgmma` is the reason that ptxas gives for making warpgroup multiplies wait for each
    other, "" where they may overlap. `max_threads` is the largest block that the compiled kernel
    can have, None where only the device sets a limit. Of AMD's GPUs, `registers` are a lane's
    vector registers with the `accumulation_registers` among them, and `scalar_registers` those of a
    wave.
    """

    registers: Count | None
    spill_store_bytes: Count = 0
    spill_load_bytes: Count = 0
    static_shared_bytes: Count = 0
    stack_bytes: Count = 0
    barriers: Count = 0
    serialized_wgmma: str = ""
    scalar_registers: Count = 0
    accumulation_registers: Count = 0
    max_threads: Count | None = None

    @property
    def spill_bytes(self) -> int:
        return self.spill_store_bytes + self.spill_load_bytes


def most(used: Iterable[Resources]) -> Resources:
    """Take the most of each that any of some kernels uses."""
    known = list(used)
    registers = (resources.registers for resources in known if resources.registers is not None)
    return Resources(
        registers=max(registers, default=None),
        spill_store_bytes=max(resources.spill_store_bytes for resources in known),
        spill_load_bytes=max(resources.spill_load_bytes for resources in known),
        static_shared_bytes=max(resources.static_shared_bytes for resources in known),
        stack_bytes=max(resources.stack_bytes for resources in known),
        barriers=max(resources.barriers for resources in known),
        serialized_wgmma=next((o.serialized_wgmma for o in known if o.serialized_wgmma), ""),
    )


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Resident warps on a multiprocessor as a share of the most it holds; what limits them."""

    share: Finite
    blocks: Count
    limiter: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """Raw times of one trial: microseconds per operator call, one per replay.

    `stopped_early` marks a config that was clearly slower than the incumbent: its few samples
    rank it and are never reported as a result.
    """

    times_us: Annotated[tuple[Microseconds, ...], MinLen(1)]
    calls_per_replay: Count
    buffer_sets: Count
    stopped_early: bool = False
    wall_ratio: Finite | None = None

    @property
    def median_us(self) -> float:
        return median(self.times_us)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How far an output is from its reference, in roundings of its inputs (`verify.accuracy`).

    `block` is the largest mean over neighbours, `element` the largest of single elements.
    """

    block: float = 0.0
    element: float = 0.0

    def joined(self, other: Accuracy) -> Accuracy:
        return Accuracy(max(self.block, other.block), max(self.element, other.element))


@dataclass(frozen=True, slots=True)
class Correctness:
    """The verdict of one verification, with the worst error seen per output.

    `errors` are in units of the tolerance: above 1 fails. `bits` is a digest of all outputs that
    are to be deterministic, for inputs that every config of a workload gets alike
    (`inputs.same_seed`), or of rows that it gets at every size where they are to be invariant:
    configs with equal ones are of one class, whose name also has the parameters that are said to
    decide it (`Invariance.by`). "" where nobody looked.
    `accuracy` is of outputs whose tolerance is measured.
    """

    passed: bool
    input_kinds: tuple[str, ...] = ()
    errors: tuple[tuple[str, float], ...] = ()
    reason: str = ""
    bits: str = ""
    accuracy: tuple[tuple[str, Accuracy], ...] = ()

    @property
    def digest(self) -> str:
        """The bits as they were seen."""
        return self.bits.partition(",")[0]


@dataclass(frozen=True, slots=True)
class Variant:
    """One config of one candidate: a kernel of its own."""

    candidate: str
    config: Config

    def __str__(self) -> str:
        return str(self.config) if self.candidate == INITIAL else f"{self.candidate}: {self.config}"


@dataclass(frozen=True, slots=True)
class Trial:
    """One config of one candidate tried on one workload, with all that was learned."""

    candidate: str
    workload: Workload
    config: Config
    status: Status
    reason: str = ""
    resources: Resources | None = None
    occupancy: Occupancy | None = None
    measurement: Measurement | None = None
    correctness: Correctness | None = None
    seconds: Finite = 0.0
    stage: Stage = "search"

    @property
    def variant(self) -> Variant:
        return Variant(self.candidate, self.config)

    @property
    def bits(self) -> str:
        """The class of its bits, "" where nobody looked."""
        return self.correctness.bits if self.correctness else ""

    @property
    def digest(self) -> str:
        return self.correctness.digest if self.correctness else ""

    @property
    def time_us(self) -> float | None:
        if self.status is not Status.CORRECT or self.measurement is None:
            return None
        return self.measurement.median_us


def fastest(trials: Iterable[Trial], *, full: bool = False) -> list[Trial]:
    """List the timed trials, the fastest first; equally fast ones stay in their order.

    `full` leaves out those that were stopped early: their few samples rank them, no more.
    """
    timed = [
        trial
        for trial in trials
        if trial.time_us is not None
        and not (full and trial.measurement and trial.measurement.stopped_early)
    ]
    return sorted(timed, key=lambda trial: trial.time_us or 0.0)


@dataclass(frozen=True, slots=True)
class Check:
    """One further check of a config that may win.

    `kind` is `verify` (every kind of input, twice), `edge_cases` (the same on an edge case),
    `compare` (once more after the final comparison), `machine_code` (what programmatic launches do
    before their wait), `bits` (those that are kept, on every kind of input) or a tool's name, such
    as `memcheck`. `passed` is None where it could not be
    run, and `reason` says why. `device` is what it was run on, `created` when (ISO 8601).
    """

    kind: str
    workload: Workload
    config: Config
    passed: bool | None
    reason: str = ""
    device: str = ""
    created: str = ""
    candidate: str = INITIAL

    @property
    def variant(self) -> Variant:
        return Variant(self.candidate, self.config)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Finalists against the baseline on one workload, interleaved: `rounds[r][k]` in microseconds.

    Column 0 is the baseline, column k the k-th finalist; the columns of `peers` come last. `paired`
    is False where the columns were not measured in the same rounds, so that only an unpaired
    interval is honest. A difference of less than `noise_us` is the clock's. Where `surroundings`
    are named the rounds hold costs between these neighbours, and `alone_us` the times without.
    `production` names the peer that production calls today, "" where that is the baseline. Where a
    race before these rounds chose among the finalists, `raced_us` is what it says each takes.
    `candidates` are those that there were, whose configs could have come so far. Where timed calls
    were `unvaried`, they met the same inputs all the time.
    """

    workload: Workload
    finalists: tuple[Variant, ...]
    rounds: tuple[tuple[Microseconds, ...], ...]
    paired: bool = True
    isolated_us: tuple[Microseconds | None, ...] = ()
    peers: tuple[str, ...] = ()
    noise_us: Finite = 0.0
    surroundings: str = ""
    alone_us: tuple[Microseconds, ...] = ()
    production: str = ""
    raced_us: tuple[Microseconds, ...] = ()
    candidates: tuple[str, ...] = ()
    unvaried: bool = False

    def column(self, program: Variant | str | None) -> int:
        return (None, *self.finalists, *self.peers).index(program)


@dataclass(frozen=True, slots=True)
class PeerTrial:
    """What became of a peer on one workload: `correct` ones are compared, others say why not.

    A peer is another implementation of the operator that is installed. `not_recorded` is one that
    isn't, or that a recording does not hold, `constraint` one that is not meant for this operator
    or shape. `created` is when it was verified (ISO 8601).
    """

    workload: Workload
    name: str
    status: Status
    reason: str = ""
    created: str = ""


@dataclass(frozen=True, slots=True)
class EnergyWindow:
    """What the GPU's energy counter said between two of its ticks, and what ran meanwhile.

    `time_us` is the time per call while the GPU repeated one program without a pause, None where
    nothing ran. `cold` says that no call found its arrays in the L2. `clock_mhz` is the median
    clock of the multiprocessors; `limited_by` names what held the clocks back. What the driver
    does not tell is None.
    """

    energy_j: Finite
    seconds: Annotated[float, Gt(0.0), Lt(inf)]
    time_us: Microseconds | None = None
    buffer_sets: Count = 0
    cold: bool = True
    temperature_c: Int64 | None = None
    clock_mhz: Count | None = None
    limited_by: tuple[str, ...] = ()

    @property
    def power_w(self) -> float:
        return self.energy_j / self.seconds

    @property
    def calls(self) -> float:
        return 0.0 if self.time_us is None else self.seconds * 1e6 / self.time_us


@dataclass(frozen=True, slots=True)
class Energy:
    """One window of energy on one workload; `variant` is what ran where `kind` is `variant`.

    `created` is when it ended (ISO 8601).
    """

    workload: Workload
    kind: EnergyKind
    window: EnergyWindow
    variant: Variant | None = None
    created: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """What is reported for one workload: the tuned config against the baseline.

    Where `surroundings` are named the times are costs between these neighbours, and `alone_us`
    and `alone_baseline_us` the times without them.
    """

    workload: Workload
    baseline_us: Microseconds
    tuned_us: Microseconds
    speedup: Ratio
    interval: tuple[Ratio, Ratio]
    paired: bool
    roofline_share: Finite
    config: Config
    resources: Resources | None
    occupancy: Occupancy | None
    baseline_wins: bool = False
    isolated_us: Microseconds | None = None
    isolated_baseline_us: Microseconds | None = None
    candidate: str = INITIAL
    surroundings: str = ""
    alone_us: Microseconds | None = None
    alone_baseline_us: Microseconds | None = None

    @property
    def variant(self) -> Variant:
        return Variant(self.candidate, self.config)

    @property
    def different(self) -> bool:
        low, high = self.interval
        return not self.noisy and (low > 1.0 + RESOLUTION or high < 1.0 - RESOLUTION)

    @property
    def noisy(self) -> bool:
        """Whether the interval is too wide to say anything."""
        return is_noisy(self.speedup, self.interval)

    @property
    def isolated_speedup(self) -> float | None:
        """The speedup without programmatic dependent launch, None where it isn't used."""
        if self.isolated_us is None:
            return None
        return (self.isolated_baseline_us or self.baseline_us) / self.isolated_us

    @property
    def alone_speedup(self) -> float | None:
        """The speedup without neighbours, None where it was measured without them anyway."""
        if self.alone_us is None or self.alone_baseline_us is None:
            return None
        return self.alone_baseline_us / self.alone_us


# More are not read: an agent does worse with a table of counters than with none at all
# (KernelPro, arXiv 2606.26453, table 8).
MOST = 6


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth knowing of a candidate.

    `topic` names the rule that found it, `edge`. `text` is a sentence that states `value`, which
    is in `unit`; `advice` says what to change. `weight` from 0 to 1 says how much time may lie
    there. `line` is a line of the template, `parameter` what the advice is about, "" where it is
    about none.
    """

    topic: str
    text: str
    advice: str
    value: Finite
    unit: str = ""
    weight: Finite = 0.0
    line: Count | None = None
    parameter: str = ""


def rank_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Keep the weightiest findings, the weightiest first; equals stay in their order."""
    return tuple(sorted(findings, key=lambda finding: -finding.weight)[:MOST])
