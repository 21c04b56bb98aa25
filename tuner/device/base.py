"""The seam between the search and the hardware that runs a kernel."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol, runtime_checkable

from tuner.model.config import Config
from tuner.model.errors import DeviceError
from tuner.model.kernel import Launch, Workload
from tuner.model.trial import Correctness, EnergyWindow, Measurement, Status


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Which hardware answers, and in which environment it was or is being measured.

    `architecture` is the compile target (`sm_90a`); `recorded` tells a recording from a live GPU,
    and `on_cpu` a CPU, whose times say nothing of a GPU's. `streaming_gbps` is the measured
    streaming rate that the roofline uses.
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


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled kernel with everything needed to run it on one workload.

    `source_key` is `compiler.base.source_key`; `lowered` maps a launch's kernel name to the
    symbol in `cubin`. `config` is what the source was rendered for, None for the baseline. `peer`
    names an installed implementation of the operator (tuner/device/peers.py), which has no cubin
    and no launches.
    """

    source_key: str
    workload: Workload
    launches: tuple[Launch, ...]
    cubin: bytes = b""
    lowered: Mapping[str, str] = field(default_factory=dict)
    config: Config | None = None
    peer: str = ""

    @property
    def key(self) -> str:
        """What a recording is keyed by: source, options, architecture, launches and workload."""
        launches = list(map(asdict, self.launches))
        content = json.dumps([self.source_key, self.workload.key, launches], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the device says of one program: a status, why, and what was measured."""

    status: Status
    reason: str = ""
    measurement: Measurement | None = None
    correctness: Correctness | None = None


@dataclass(frozen=True, slots=True)
class Rounds:
    """Interleaved times of several programs: `times_us[round][program]`, first the baseline.

    `isolated_us` holds, for programs launched with programmatic dependent launch, the median
    time without it, else None. `faults` says of each program what was wrong with its results
    after the rounds, "" where nothing; it is empty where they are not judged again.
    """

    times_us: tuple[tuple[float, ...], ...]
    paired: bool
    isolated_us: tuple[float | None, ...] = ()
    faults: tuple[str, ...] = ()


class Device(Protocol):
    """Verify and time programs. Close it when done; a crash costs one outcome, never the device."""

    @property
    def info(self) -> DeviceInfo:
        """The hardware and its environment."""
        ...

    def run(
        self, program: Program, *, incumbent_us: float | None = None, thorough: bool = False
    ) -> Outcome:
        """Verify, then time; may stop early when clearly slower than `incumbent_us`.

        `thorough` verifies with every fill and twice for equal bits: for baselines and finalists.
        """
        ...

    def verify(self, program: Program) -> Outcome:
        """Verify with every fill and twice for equal bits, without timing."""
        ...

    def compare(self, programs: Sequence[Program], *, rounds: int) -> Rounds:
        """Time verified programs of one workload interleaved; the first is the baseline.

        Raises `DeviceError` where a program fails although it was verified before.
        """
        ...

    def close(self) -> None:
        """Release the hardware and end the processes."""
        ...


@runtime_checkable
class Partial(Protocol):
    """A device that has answers for some configs only; some devices are."""

    def configs_of(self, workload: Workload) -> Sequence[Config] | None:
        """List the configs it has answers for; None where it may have one for any."""
        ...


class Watcher(Protocol):
    """Run programs under a tool that watches every access. Close it when done."""

    @property
    def kind(self) -> str:
        """The tool's name, `memcheck`."""
        ...

    def watch(self, programs: Sequence[Program]) -> Sequence[Outcome]:
        """Run each once: `correct`, `incorrect` with what the tool found, `timeout` or `launch`."""
        ...

    def close(self) -> None:
        """End the processes."""
        ...


@runtime_checkable
class EnergyMeter(Protocol):
    """Tell what verified programs cost in energy; some devices can."""

    def require_energy(self) -> None:
        """Raise `DeviceError` with a remedy where the energy cannot be read here."""
        ...

    def idle_energy(self, *, seconds: float) -> EnergyWindow:
        """Read the energy over at least `seconds` in which the GPU, open for use, has no work."""
        ...

    def energy(self, program: Program, *, seconds: float) -> EnergyWindow | Outcome:
        """Read the energy over at least `seconds` in which the GPU repeats a verified program.

        Where it fails, or its results are wrong afterwards, that comes back.
        """
        ...


_INSTEAD = "use a GPU (--device cuda), or --objective time"


def open_meter(device: Device) -> EnergyMeter:
    """Return the device's energy meter; raise `DeviceError` where it has none or cannot read it."""
    if device.info.recorded:
        raise DeviceError("a recording holds times, but no energy", remedy=_INSTEAD)
    if device.info.on_cpu:
        raise DeviceError("a CPU says nothing of a GPU's energy", remedy=_INSTEAD)
    if not isinstance(device, EnergyMeter):
        raise DeviceError(f"{device.info.name} has no energy meter", remedy=_INSTEAD)
    device.require_energy()
    return device


@dataclass(frozen=True, slots=True)
class LaunchCounts:
    """What Nsight Compute counted in one launch of `kernel`, a name as launches state it.

    `values` are under its own names, in base units; what it had no value of is left out.
    `samples` counts the samples of warps that could not issue, by the offset of the instruction
    in the kernel's code, in bytes.
    """

    kernel: str
    values: Mapping[str, float]
    samples: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Counted:
    """The counts of a program's launches, in their order; none, and the reason, where it failed."""

    launches: tuple[LaunchCounts, ...] = ()
    reason: str = ""


class Counters(Protocol):
    """Count what the hardware does while a program runs. Close it when done."""

    def refusal(self) -> str:
        """Say why nothing can be counted here, "" where it can; tried once, on a kernel."""
        ...

    def count(self, program: Program, names: Sequence[str]) -> Counted:
        """Run a program on real inputs and count each of its launches once, after a warm-up."""
        ...

    def close(self) -> None:
        """End the processes."""
        ...
