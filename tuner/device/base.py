"""The seam between the search and the hardware that runs a kernel."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Literal, Protocol

from tuner.compiler.base import Compiler, CompileRequest, CompileResult, source_key, work_groups_of
from tuner.model.config import Config
from tuner.model.errors import DeviceError
from tuner.model.expressions import Value
from tuner.model.hardware import AmdLimits, DeviceLimits, amd_limits, limits_for
from tuner.model.kernel import CALL, ChosenScratch, KernelSpec, Launch, Workload
from tuner.model.languages import OPENCL
from tuner.model.trial import Correctness, EnergyWindow, Measurement, Resources, Status

# The streaming rate is measured with a simple kernel; a better one may read a little faster.
FLOOR_SLACK = 0.15
# A reason for a time below the floor.
TOO_FAST = "faster than its memory traffic allows"
# No cache is so many times as fast as memory is for one core of a CPU, or all of a GPU.
HOT_CACHE = 64


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Which hardware answers, and in which environment it was or is being measured.

    `architecture` is the compile target (`sm_90a`); `streaming_gbps` the measured rate that the
    roofline uses. A CPU's times (`on_cpu`) say nothing of a GPU's. `own_limits` are those of
    hardware that is not NVIDIA's, whose compute capability stands for nothing. `evaluator` is the
    command of the user's that compiles and times in place of this program, "" where there is none,
    and `verifies` whether results are verified at all. So many programs run at once as `parallel`.
    Of a group, it is what each of its `members` is.
    """

    name: str
    architecture: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    l2_bytes: int
    streaming_gbps: float
    recorded: bool
    environment: Mapping[str, str] = field(default_factory=dict)
    on_cpu: bool = False
    own_limits: AmdLimits | DeviceLimits | None = None
    evaluator: str = ""
    verifies: bool = True
    parallel: int = 1
    members: int = 1

    @property
    def limits(self) -> DeviceLimits:
        return self.own_limits or limits_for(self.compute_capability)

    def is_too_fast(self, time_us: float, traffic_bytes: float, *, hot: bool) -> bool:
        """Tell whether a call cannot move so much in this time, from a cache where it is `hot`."""
        cores = self.multiprocessors if self.on_cpu else 1
        rate = self.streaming_gbps * (HOT_CACHE * cores if hot else 1)
        return rate > 0.0 and time_us < traffic_bytes / (rate * 1e3) * (1.0 - FLOOR_SLACK)


def amd_info(architecture: str) -> DeviceInfo:
    """Describe one of AMD's architectures without a GPU; raise `DeviceError` for an unknown one."""
    limits = amd_limits(architecture)
    return DeviceInfo(
        name=architecture,
        architecture=architecture,
        compute_capability=(0, 0),
        multiprocessors=limits.multiprocessors,
        l2_bytes=limits.cache_bytes,
        streaming_gbps=0.0,
        recorded=False,
        own_limits=limits,
    )


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled kernel with everything needed to run it on one workload.

    `source_key` is `compiler.base.source_key`; `lowered` maps a launch's kernel name to the
    symbol in `cubin`. `config` is what the source was rendered for, None for the baseline. `peer`
    names an installed implementation of the operator, which has no cubin and no launches
    (tuner/device/reference.py). `scratch` is what the config chose. With `tell_bits` a verdict says
    which bits it makes, for some more runs (`Correctness.bits`).
    """

    source_key: str
    workload: Workload
    launches: tuple[Launch, ...]
    cubin: bytes = b""
    lowered: Mapping[str, str] = field(default_factory=dict)
    config: Config | None = None
    peer: str = ""
    scratch: tuple[ChosenScratch, ...] = ()
    tell_bits: bool = False

    @property
    def is_call(self) -> bool:
        """Tell whether `cubin` is the text of a Python module, whose `launch` is called."""
        return any(launch.kernel == CALL for launch in self.launches)

    @property
    def text_key(self) -> str:
        """Tell the text of a module from every other one: a recording's key leaves parts out."""
        return hashlib.sha256(self.cubin).hexdigest()

    @property
    def key(self) -> str:
        """What a recording is keyed by: source, options, architecture, launches and workload."""
        launches = list(map(asdict, self.launches))
        for launch in launches:
            # What takes all arguments is keyed as it was before a launch could name its own.
            for name in ("arguments", "maps"):
                if not launch[name]:
                    del launch[name]
        # What the file declares is keyed as before a config could bring scratch along.
        sizes = [sized if sized.added else sized[:2] for sized in self.scratch]
        parts = [self.source_key, self.workload.key, launches, *([sizes] if sizes else [])]
        content = json.dumps(parts, sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:24]


def largest_scratch(programs: Sequence[Program]) -> dict[str, ChosenScratch]:
    """Take the largest of each scratch that configs choose, by its name."""
    largest: dict[str, ChosenScratch] = {}
    for sized in (sized for program in programs for sized in program.scratch):
        before = largest.get(sized.name, sized)
        largest[sized.name] = max(sized, before, key=lambda scratch: prod(scratch.shape))
    return largest


# What is said of outputs that do not repeat: in a second run, and between timed calls.
BITS_DIFFER = "gives other bits"
DIFFERS = "its output differs between timed calls on the same inputs"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the device says of one program: a status, why, and what was measured.

    `resources` are there where the device compiles, and nobody knows of them before.
    """

    status: Status
    reason: str = ""
    measurement: Measurement | None = None
    correctness: Correctness | None = None
    resources: Resources | None = None


@dataclass(frozen=True, slots=True)
class ComparisonRounds:
    """Interleaved times of several programs: `times_us[round][program]`, first the baseline.

    `isolated_us` holds, for programs launched with programmatic dependent launch, the median
    time without it, else None. `faults` says of each program what was wrong with its results
    after the rounds, "" where nothing; it is empty where they are not verified again. `noise_us`
    is what the clock itself varies by. `alone_us` are the medians without neighbours, where
    `times_us` are costs between them. `raced_us` is what an earlier race said of each program,
    None of those that did not run in it; only a recording has it. `unvaried` says that timed calls
    met the same inputs all the time.
    """

    times_us: tuple[tuple[float, ...], ...]
    paired: bool
    isolated_us: tuple[float | None, ...] = ()
    faults: tuple[str, ...] = ()
    noise_us: float = 0.0
    alone_us: tuple[float, ...] = ()
    raced_us: tuple[float | None, ...] = ()
    unvaried: bool = False


class Watcher(Protocol):
    """Run programs under a tool that watches every access. Close it when done."""

    @property
    def kind(self) -> str:
        """The tool's name, `memcheck`."""

    def watch(self, programs: Sequence[Program]) -> Sequence[Outcome]:
        """Run each once: `correct`, `incorrect` with what the tool found, `timeout` or `launch`."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Watchers:
    """A device's tools, how sources are compiled for them, and the largest arrays they take."""

    tools: tuple[Watcher, ...]
    compile_options: tuple[str, ...]
    largest_bytes: int


@dataclass(frozen=True, slots=True)
class LaunchCounts:
    """What Nsight Compute counted in one launch of `kernel`, a name as launches state it.

    `values` are under its own names, in base units; what it had no value of is left out. By the
    offset of the instruction in the kernel's code, in bytes, `samples` counts the samples of warps
    that could not issue there, and `executed` how many warps executed it.
    """

    kernel: str
    values: Mapping[str, float]
    samples: Mapping[int, int] = field(default_factory=dict)
    executed: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Counted:
    """The counts of a program's launches, in their order; none, and the reason, where it failed."""

    launches: tuple[LaunchCounts, ...] = ()
    reason: str = ""


class Counters(Protocol):
    """Count what the hardware does while a program runs. Close it when done."""

    def refusal(self) -> str:
        """Say why nothing can be counted here, "" where it can; tried once, on a kernel."""

    def count(self, program: Program, names: Sequence[str]) -> Counted:
        """Run a program on real inputs and count each of its launches once, after a warm-up.

        Where nothing can be counted the reason is the refusal's.
        """

    def close(self) -> None: ...


# What some devices can do besides; each names the methods of `Device` that then don't refuse.
Capability = Literal[
    "verify",  # `verify` gives verdicts of its own
    "verify_together",  # `verify_together`, at less cost than one by one
    "bits",  # `bits`, and digests of outputs in verdicts (`Correctness.bits`)
    "rank",  # `rank`
    "recording",  # `recording`: answers come from a file, which may hold some configs only
    "compiler",  # `compiler`: no other makes programs for it
    "resources",  # an outcome's `resources`: only the device knows them
    "callables",  # `call_compiler` and `import_ahead`, for kernels in Python
    "machine_code",  # programs are machine code of a GPU, which can be read
    "sanitizer",  # `watchers`
    "counters",  # `counters`
    "energy",  # `require_energy`, `idle_energy` and `energy`
    "members",  # it is a group of devices (tuner.device.group)
]

RankedRounds = Sequence[Sequence[float | None]]


class Recorded(Protocol):
    """The file that a device answers from."""

    @property
    def path(self) -> Path: ...

    @property
    def created(self) -> str:
        """When its measurements were made (ISO 8601)."""

    @property
    def has_bits_of_rows(self) -> bool | None:
        """Tell whether the digests that it may hold are those of invariant rows."""

    def holds(self, workload: Workload) -> bool:
        """Tell whether the file has anything on a workload."""

    def configs_of(self, workload: Workload) -> Sequence[Config] | None:
        """List the configs that were tried; None where all valid ones were."""

    def compiled(self) -> Mapping[str, CompileResult]:
        """Tell what the compiler said of each source, by its key, without machine code."""


class Device(ABC):
    """Verify and time programs. Close it when done; a crash costs one outcome, never the device.

    Ask `capabilities` what else a device can do, never for its class: a method that belongs to
    none of them raises `DeviceError`.
    """

    info: DeviceInfo
    capabilities: frozenset[Capability] = frozenset()

    @abstractmethod
    def run(
        self,
        program: Program,
        *,
        incumbent_us: float | None = None,
        full_verification: bool = False,
    ) -> Outcome:
        """Verify, then time; may stop early when clearly slower than `incumbent_us`."""

    @abstractmethod
    def verify(self, program: Program) -> Outcome:
        """Verify with every kind of input and twice for equal bits, without timing."""

    @abstractmethod
    def compare(self, programs: Sequence[Program], *, rounds: int) -> ComparisonRounds:
        """Time verified programs of one workload interleaved; the first is the baseline.

        Raises `DeviceError` where a program fails although it was verified before.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of the hardware; a second call does nothing."""

    @contextmanager
    def limiting_runs(self, seconds: float) -> Iterator[None]:
        """Allow a run so long meanwhile, on devices that can end one sooner than they do."""
        yield

    def verify_together(self, programs: Sequence[Program]) -> Sequence[Outcome]:
        """Verify programs of one workload, drawing inputs once where that is cheaper."""
        return [self.verify(program) for program in programs]

    def rank(self, programs: Sequence[Program], *, rounds: int) -> RankedRounds:
        """Tell many programs of one workload apart sooner than by comparing them in full.

        They are timed interleaved: a row (us) a round, None for what went wrong. Raises
        `DeviceError` as `compare` does.
        """
        raise self._refusal("does not rank programs")

    def bits(self, program: Program, seed: int | None = None) -> Outcome:
        """Digest what a program makes of inputs that others get too (`Correctness.bits`).

        Those that are the same in every run, or of every kind and drawn from a seed: a digest for
        each of `input_kinds`. `not_invariant` where a row's bits vary that may not.
        """
        raise self._refusal("tells no bits")

    @property
    def recording(self) -> Recorded:
        raise self._refusal("is no recording")

    def compiler(self, jobs: int | None) -> Compiler:
        """Open the device's own compiler with so many processes."""
        raise self._refusal("has no compiler of its own")

    def call_compiler(self, jobs: int | None) -> Compiler:
        """Open what calls modules in Python in so many processes, without launching anything."""
        raise self._refusal("compiles no kernels in Python")

    def import_ahead(self, program: Program) -> None:
        """Begin to import what a program needs where it will run; what fails is told by its run."""
        raise self._refusal("imports nothing ahead")

    def watchers(self) -> Watchers:
        """Open the tools that this machine has; none is no error."""
        raise self._refusal("runs under no sanitizer")

    def counters(self) -> Counters:
        """Open the hardware counters; whether they can be read is theirs to say."""
        raise self._refusal("has no counters")

    def require_energy(self) -> None:
        """Raise `DeviceError` with a remedy where the energy cannot be read here."""
        if self.info.recorded:
            why = "a recording holds times, but no energy"
        elif self.info.on_cpu:
            why = "a CPU says nothing of a GPU's energy"
        elif self.info.evaluator:
            why = f"{self.info.evaluator} says times, but no energy"
        else:
            why = f"{self.info.name} has no energy meter"
        raise DeviceError(why, remedy="use a GPU (--device cuda), or --objective time")

    def idle_energy(self, *, seconds: float) -> EnergyWindow:
        """Read the energy over at least `seconds` in which the GPU, open for use, has no work."""
        raise self._refusal("has no energy meter")

    def energy(self, program: Program, *, seconds: float) -> EnergyWindow | Outcome:
        """Read it while the GPU repeats a verified program; an `Outcome` says how that failed."""
        raise self._refusal("has no energy meter")

    def _refusal(self, why: str) -> DeviceError:
        return DeviceError(f"{self.info.name} {why}")


def device_names(limits: DeviceLimits, multiprocessors: int) -> dict[str, Value]:
    """Name the device's numbers as constraints and launches do."""
    return {
        "max_threads": limits.threads_per_block,
        "max_shared_bytes": limits.shared_bytes_per_block,
        "multiprocessors": multiprocessors,
        "warp_size": limits.threads_per_warp,
        "wave": limits.threads_per_warp,  # AMD's word for it
        "successor_waits": False,  # unless somebody has said so, it doesn't
    }


@dataclass(frozen=True)
class CompileTarget:
    """Turn sources of one kernel into requests and programs, and say what a recording calls them.

    `operators` holds the value chosen for each of the operator's macros.
    """

    spec: KernelSpec
    operators: Mapping[str, str]
    device: DeviceInfo
    _names: dict[Workload, Mapping[str, Value]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @cached_property
    def limits(self) -> DeviceLimits:
        return self.device.limits

    @cached_property
    def options(self) -> tuple[str, ...]:
        defines = tuple(f"-D{name}={value}" for name, value in self.operators.items())
        return (*self.spec.compile_options, *defines)

    def names(self, workload: Workload) -> Mapping[str, Value]:
        """Collect, once, what constraints and launches may use besides parameters."""
        if workload not in self._names:
            around = self.spec.surroundings_of(workload)
            self._names[workload] = {
                **workload.values,
                **device_names(self.limits, self.device.multiprocessors),
                "successor_waits": around is not None and around.successor_waits,
            }
        return self._names[workload]

    def request(self, source: str, launches: tuple[Launch, ...]) -> CompileRequest:
        return CompileRequest(
            source=source,
            kernels=tuple(dict.fromkeys(launch.kernel for launch in launches)),
            architecture=self.device.architecture,
            options=self.options,
            include_dirs=self._include_dirs,
            work_groups=work_groups_of(launches) if self.spec.language is OPENCL else (),
        )

    def program(
        self,
        source: str,
        workload: Workload,
        launches: tuple[Launch, ...],
        result: CompileResult,
        config: Config | None = None,
    ) -> Program:
        """Make what a device runs of a compiled source."""
        key, scratch = self._source_key(source), self.scratch(workload, config)
        code = (result.cubin, result.lowered)
        return Program(key, workload, launches, *code, config, scratch=scratch)

    def scratch(self, workload: Workload, config: Config | None) -> tuple[ChosenScratch, ...]:
        """Compute the scratch that a config chooses; the baseline takes none of it."""
        if config is None or not (sized := self.spec.sized):
            return ()
        names = {**self.names(workload), **config}
        return tuple(
            ChosenScratch(
                argument.name,
                argument.dimensions(names),
                (argument.dtype, argument.zeroed) if argument.added else None,
            )
            for argument in sized
        )

    def key(
        self,
        source: str,
        workload: Workload,
        launches: tuple[Launch, ...],
        config: Config | None = None,
    ) -> str:
        """Compute what a recording keys the program by, without compiling."""
        scratch = self.scratch(workload, config)
        return Program(self._source_key(source), workload, launches, scratch=scratch).key

    def _source_key(self, source: str) -> str:
        return source_key(source, self.options, self.device.architecture, self._include_dirs)

    @cached_property
    def _include_dirs(self) -> tuple[str, ...]:
        return tuple(map(str, self.spec.include_dirs))


def verify_all(device: Device, programs: Sequence[Program]) -> Sequence[Outcome]:
    """Verify programs, those of a workload together where the device can; outcomes in their order.

    Each workload is opened once.
    """
    outcomes: dict[int, Outcome] = {}
    for workload in dict.fromkeys(program.workload for program in programs):
        chosen = {k: one for k, one in enumerate(programs) if one.workload == workload}
        outcomes |= zip(chosen, device.verify_together([*chosen.values()]), strict=True)
    return [outcomes[index] for index in range(len(programs))]
