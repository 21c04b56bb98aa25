"""What GPUs offer a kernel: NVIDIA's by compute capability, AMD's by architecture."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from typing import Literal

from tuner.model.errors import DeviceError
from tuner.model.expressions import ceil_div
from tuner.model.kernel import Launch, Limits
from tuner.model.trial import Occupancy, Resources

KIB = 1024
# The largest block and grid along x, y and z, the same for every compute capability (CUDA C++
# Programming Guide, technical specifications).
CUDA_BLOCK = 1024, 1024, 64
CUDA_GRID = 2**31 - 1, 65535, 65535


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """The resources of one multiprocessor and the most that one block may use.

    `shared_bytes_per_block` is the opt-in maximum, static and dynamic together. The device takes
    `reserved_shared_bytes` more for every block and allocates in `shared_unit_bytes`. Registers
    are given to whole warps in units of `register_unit`, from `partitions` equal files.
    `barriers_per_multiprocessor` is None where barriers never limit the occupancy;
    `cluster_blocks` is the largest portable cluster, 1 where there are none.

    Sources: the CUDA C++ Programming Guide's technical specifications per compute capability,
    `cuda::arch_traits` of CCCL; the barriers follow NVIDIA's occupancy calculator.
    """

    compute_capability: tuple[int, int]
    warps_per_multiprocessor: int
    blocks_per_multiprocessor: int
    shared_bytes_per_multiprocessor: int
    shared_bytes_per_block: int
    barriers_per_multiprocessor: int | None = None
    cluster_blocks: int = 1
    reserved_shared_bytes: int = KIB
    shared_unit_bytes: int = 128
    threads_per_block: int = 1024
    threads_per_warp: int = 32
    block_dimensions: tuple[int, int, int] = CUDA_BLOCK
    grid_dimensions: tuple[int, int, int] = CUDA_GRID
    registers_per_thread: int = 255
    registers_per_block: int = 65536
    registers_per_multiprocessor: int = 65536
    register_unit: int = 256
    partitions: int = 4

    def rooms(self, resources: Resources, launch: Launch) -> dict[str, int]:
        """Count the blocks of a launch that each resource of a multiprocessor has room for."""
        registers = resources.registers or 0
        warps = ceil_div(launch.threads, self.threads_per_warp)
        most = self.blocks_per_multiprocessor
        rooms = {
            "warps": self.warps_per_multiprocessor // warps,
            "blocks": most,
            "registers": most if registers == 0 else self._blocks_by_registers(registers, warps),
            "shared memory": self.blocks_by_shared_memory(resources, launch),
            "barriers": most,
        }
        if self.barriers_per_multiprocessor is not None and resources.barriers:
            rooms["barriers"] = self.barriers_per_multiprocessor // resources.barriers
        return rooms

    def _blocks_by_registers(self, registers: int, warps: int) -> int:
        if _registers_of_block(self, registers, warps) > self.registers_per_block:
            return 0
        of_partition = self.registers_per_multiprocessor // self.partitions
        of_warp = _round_up(registers * self.threads_per_warp, self.register_unit)
        return of_partition // of_warp * self.partitions // warps

    def blocks_by_shared_memory(self, resources: Resources, launch: Launch) -> int:
        shared_bytes = resources.static_shared_bytes + launch.shared_bytes
        if shared_bytes > self.shared_bytes_per_block:
            return 0
        taken = _round_up(shared_bytes + self.reserved_shared_bytes, self.shared_unit_bytes)
        if not taken:
            return self.blocks_per_multiprocessor
        return self.shared_bytes_per_multiprocessor // taken

    def refusals(self, resources: Resources, launch: Launch) -> Iterator[str]:
        """Yield why a block of a launch gets no registers."""
        registers = resources.registers
        if registers is None:
            return
        if registers > self.registers_per_thread:
            yield f"{registers} registers a thread, over the device's {self.registers_per_thread}"
        warps = ceil_div(launch.threads, self.threads_per_warp)
        taken = _registers_of_block(self, registers, warps)
        if taken > self.registers_per_block:
            yield (
                f"{launch.threads} threads of {registers} registers take {taken} "
                f"registers, over the device's {self.registers_per_block} a block"
            )

    def own_features(self, resources: Resources) -> dict[str, float]:
        """Tell a searcher what only this kind of hardware has; the same names for every kernel."""
        return {}


_LIMITS = {
    limits.compute_capability: limits
    for limits in (
        DeviceLimits(
            (7, 5), 32, 16, 64 * KIB, 64 * KIB, reserved_shared_bytes=0, shared_unit_bytes=256
        ),
        DeviceLimits((8, 0), 64, 32, 164 * KIB, 163 * KIB),
        DeviceLimits((8, 6), 48, 16, 100 * KIB, 99 * KIB),
        DeviceLimits((8, 7), 48, 16, 164 * KIB, 163 * KIB),
        DeviceLimits((8, 9), 48, 24, 100 * KIB, 99 * KIB),
        DeviceLimits((9, 0), 64, 32, 228 * KIB, 227 * KIB, 64, 8),
        DeviceLimits((10, 0), 64, 32, 228 * KIB, 227 * KIB, 64, 8),
        DeviceLimits((10, 3), 64, 32, 228 * KIB, 227 * KIB, 32, 8),
        DeviceLimits((11, 0), 48, 24, 228 * KIB, 227 * KIB, 24, 8),
        DeviceLimits((12, 0), 48, 24, 100 * KIB, 99 * KIB, 24, 8),
        DeviceLimits((12, 1), 48, 24, 100 * KIB, 99 * KIB, 24, 8),
    )
}
COMPUTE_CAPABILITIES = tuple(_LIMITS)
Peak = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "int8"]
# Dense operations (two for a multiply-add) of 16-bit floats a clock and multiprocessor: the data
# sheets' rate over multiprocessors and boost clock, of T4, A100, A40, AGX Orin, L40S, H100 SXM,
# B200, B300, Thor, RTX PRO 6000 and GB10. GeForce has half of it where it sums in float32.
_TENSOR_FP16 = dict(
    zip(
        COMPUTE_CAPABILITIES,
        (1024, 2048, 1024, 2048, 1024, 4096, 8192, 8192, 8192, 1024, 1024),
        strict=True,
    )
)
# What the other types do in the time of one of 16 bits, and from which generation on.
_TENSOR_TYPES: dict[Peak, tuple[float, tuple[int, int]]] = {
    "fp16": (1.0, (7, 5)),
    "bf16": (1.0, (8, 0)),
    "tf32": (0.5, (8, 0)),
    "int8": (2.0, (7, 5)),
    "fp8": (2.0, (8, 9)),
}
# FP32 results a clock and multiprocessor: CUDA C++ Programming Guide, arithmetic throughput.
_FP32_LANES = {(7, 5): 64, (8, 0): 64}
_FP32_LANES_SINCE = 128
# Of the generation's best known product, for constraints that ask without a device: T4, A100,
# RTX 3090, AGX Orin, RTX 4090, H200, B200, B300, AGX Thor, RTX 5090, GB10.
MULTIPROCESSORS = dict(
    zip(COMPUTE_CAPABILITIES, (40, 108, 82, 16, 128, 132, 148, 148, 20, 170, 48), strict=True)
)


def limits_for(compute_capability: tuple[int, int]) -> DeviceLimits:
    """Look up the limits of a compute capability; raise `DeviceError` for an unknown one."""
    limits = _LIMITS.get(compute_capability)
    if limits is None:
        known = ", ".join(f"{major}.{minor}" for major, minor in COMPUTE_CAPABILITIES)
        major, minor = compute_capability
        raise DeviceError(
            f"compute capability {major}.{minor} is not known", remedy=f"known are {known}"
        )
    return limits


def architecture_for(compute_capability: tuple[int, int]) -> str:
    """Name the compile target: `sm_90a`, and `sm_89` where there is no `a` variant.

    The `a` variants (from 9.0 on) give the instructions that only this generation has.
    """
    limits_for(compute_capability)
    major, minor = compute_capability
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def operations_per_clock(compute_capability: tuple[int, int], peak: Peak) -> float | None:
    """Look up the dense operations a clock and multiprocessor; None for a type it lacks."""
    if peak == "fp32":
        return 2.0 * _FP32_LANES.get(compute_capability, _FP32_LANES_SINCE)
    factor, since = _TENSOR_TYPES[peak]
    if compute_capability < since or compute_capability not in _TENSOR_FP16:
        return None
    return factor * _TENSOR_FP16[compute_capability]


def occupancy(limits: DeviceLimits, resources: Resources, launch: Launch) -> Occupancy | None:
    """Compute the resident warps of one multiprocessor as a share of the most it holds.

    None where the compiler reports no registers, and on hardware of which nobody has said how many
    warps it holds (0). Assumes the largest shared-memory carve-out and
    ignores clusters, as NVIDIA's calculator does. The limiter is one of `warps`, `blocks`,
    `registers`, `shared memory`, `barriers`; a block that cannot launch at all has 0 blocks.
    """
    if resources.registers is None or not limits.warps_per_multiprocessor:
        return None
    if not 1 <= launch.threads <= limits.threads_per_block:
        return Occupancy(0.0, 0, "warps")
    warps = ceil_div(launch.threads, limits.threads_per_warp)
    rooms = limits.rooms(resources, launch)
    limiter = min(rooms, key=lambda name: rooms[name])
    blocks = rooms[limiter]
    return Occupancy(blocks * warps / limits.warps_per_multiprocessor, blocks, limiter)


def _round_up(value: int, unit: int) -> int:
    return ceil_div(value, unit) * unit


def _registers_of_block(limits: DeviceLimits, registers: int, warps: int) -> int:
    # The launch check counts as if all partitions got the same number of warps.
    of_warp = _round_up(registers * limits.threads_per_warp, limits.register_unit)
    return of_warp * _round_up(warps, limits.partitions)


def refusal(
    limits: DeviceLimits, resources: Resources, launch: Launch, user_limits: Limits
) -> str | None:
    """Say why a compiled kernel cannot launch or breaks a declared limit; None where neither."""
    by_device = _refuse_by_device(limits, resources, launch)
    return next(chain(by_device, _refuse_by_user(limits, resources, launch, user_limits)), None)


def _refuse_by_device(limits: DeviceLimits, resources: Resources, launch: Launch) -> Iterator[str]:
    for what, sizes, most in (
        ("grid", launch.grid, limits.grid_dimensions),
        ("block", launch.block, limits.block_dimensions),
    ):
        for axis, size, maximum in zip("xyz", sizes, most, strict=True):
            if size < 1:
                yield f"{what} {_text(sizes)} is empty: {axis} is {size}"
            if size > maximum:
                yield f"{what} {axis} of {size} is over the device's {maximum}"
    if launch.threads > limits.threads_per_block:
        yield (
            f"block {_text(launch.block)} has {launch.threads} threads, "
            f"over the device's {limits.threads_per_block}"
        )
    if launch.shared_bytes < 0:
        yield f"dynamic shared memory of {launch.shared_bytes} bytes is negative"
    sizes = launch.cluster or (1, 1, 1)
    cluster, blocks = f"cluster {_text(sizes)}", prod(sizes)
    if min(sizes) < 1:
        yield f"{cluster} is empty"
    elif sizes == (1, 1, 1):
        pass
    elif limits.cluster_blocks == 1:
        major, minor = limits.compute_capability
        yield f"{cluster}: compute capability {major}.{minor} has no clusters"
    elif blocks > limits.cluster_blocks:
        yield f"{cluster} has {blocks} blocks, over the portable {limits.cluster_blocks}"
    elif not launch.clusters_divide_grid:
        yield f"grid {_text(launch.grid)} is no multiple of the {cluster}"
    yield from limits.refusals(resources, launch)
    most_bytes = limits.shared_bytes_per_block
    if resources.static_shared_bytes + launch.shared_bytes > most_bytes:
        yield f"{_shared_text(resources, launch)}, over the device's {most_bytes} a block"
    if resources.max_threads is not None and launch.threads > resources.max_threads:
        yield (
            f"block {_text(launch.block)} has {launch.threads} threads, "
            f"over the {resources.max_threads} that the compiled kernel can have"
        )


def _refuse_by_user(
    limits: DeviceLimits, resources: Resources, launch: Launch, allowed: Limits
) -> Iterator[str]:
    if allowed.spills == "forbid" and resources.spill_bytes:
        yield (
            f"spills {resources.spill_store_bytes} bytes of stores and "
            f"{resources.spill_load_bytes} of loads where `spills: forbid`"
        )
    if allowed.serialized_wgmma == "forbid" and resources.serialized_wgmma:
        yield (
            f"wgmma is serialized ({resources.serialized_wgmma}) where `serialized_wgmma: forbid`"
        )
    registers, most = resources.registers, allowed.max_registers
    if most is not None and registers is not None and registers > most:
        yield f"{registers} registers, over `max_registers: {most}`"
    most = allowed.max_shared_bytes
    if most is not None and resources.static_shared_bytes + launch.shared_bytes > most:
        yield f"{_shared_text(resources, launch)}, over `max_shared_bytes: {most}`"
    found = occupancy(limits, resources, launch)
    least = allowed.min_occupancy
    if least is not None and found is not None and found.share < least:
        yield (
            f"occupancy {found.share:.1%}, limited by {found.limiter}, "
            f"under `min_occupancy: {least}`"
        )


def _shared_text(resources: Resources, launch: Launch) -> str:
    static, dynamic = resources.static_shared_bytes, launch.shared_bytes
    return f"{static + dynamic} bytes of shared memory ({static} static, {dynamic} dynamic)"


def _text(sizes: tuple[int, int, int]) -> str:
    return " x ".join(map(str, sizes))


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdLimits(DeviceLimits):
    """The resources of one compute unit, here `multiprocessor`, whose waves are `warps`.

    On a SIMD, of which there are `partitions`, live up to `waves_per_simd` waves, each of which
    takes its lanes' vector registers of `vector_registers`, in units of `register_unit` a lane;
    from gfx90a on the accumulation registers are among them. `limited_by_scalars` says that a
    wave's scalar registers take from a file of the SIMD's, too. `cache_bytes` is the largest cache
    between the compute units and memory, `multiprocessors` those of the best known product.

    Sources: LLVM's "User Guide for AMDGPU Backend" (registers by processor, LDS, waves), the
    instruction set manuals of CDNA 2, 3 and 4 and of RDNA 3, and AMD's data sheets of MI210,
    MI300X, MI355X and RX 7900 XTX; of grids `maxGridSize` in ROCm's clr, hip_device.cpp.
    """

    architecture: str
    multiprocessors: int
    cache_bytes: int
    grid_dimensions: tuple[int, int, int] = (2**31 - 1, 65536, 65536)
    waves_per_simd: int = 8
    vector_registers: int = 512
    limited_by_scalars: bool = True
    since_clang: int = 17

    def rooms(self, resources: Resources, launch: Launch) -> dict[str, int]:
        """Count the blocks of a launch that each resource of a compute unit has room for."""
        waves = ceil_div(launch.threads, self.threads_per_warp)
        barriers = self.barriers_per_multiprocessor
        return {
            "warps": self.warps_per_multiprocessor // waves,
            "registers": self.waves_by_registers(resources) * self.partitions // waves,
            "shared memory": self.blocks_by_shared_memory(resources, launch),
            # a wave alone needs no barrier
            "barriers": barriers if barriers and waves > 1 else self.blocks_per_multiprocessor,
        }

    def waves_by_registers(self, resources: Resources) -> int:
        """Count the waves of a SIMD that get vector and scalar registers."""
        taken = ceil_div(max(resources.registers or 0, 1), self.register_unit) * self.register_unit
        waves = min(self.waves_per_simd, self.vector_registers // taken)
        if not self.limited_by_scalars:
            return waves
        return min(waves, 8 if resources.scalar_registers <= _SCALARS_OF_EIGHT_WAVES else 7)

    def refusals(self, resources: Resources, launch: Launch) -> Iterator[str]:
        """Yield why the hardware takes no block of a launch."""
        if resources.registers is None:
            return
        waves = ceil_div(launch.threads, self.threads_per_warp)
        held = self.waves_by_registers(resources) * self.partitions
        if waves > held:
            yield (
                f"{waves} waves of {resources.registers} vector registers a lane, and a compute "
                f"unit holds {held}"
            )

    def own_features(self, resources: Resources) -> dict[str, float]:
        return {
            "scalar_registers": resources.scalar_registers,
            "accumulation_registers": resources.accumulation_registers,
        }


# LLVM's occupancy by scalar registers, for what came after gfx7 and before gfx10.
_SCALARS_OF_EIGHT_WAVES = 100


_CDNA = AmdLimits(
    *((0, 0), 32, 32, 64 * KIB, 64 * KIB),
    barriers_per_multiprocessor=16,
    reserved_shared_bytes=0,
    shared_unit_bytes=512,
    threads_per_warp=64,
    block_dimensions=(1024, 1024, 1024),
    registers_per_thread=512,
    register_unit=8,
    architecture="gfx90a",
    multiprocessors=104,
    cache_bytes=8 << 20,
)
_AMD_LIMITS = {
    limits.architecture: limits
    for limits in (
        _CDNA,
        replace(_CDNA, architecture="gfx942", multiprocessors=304, cache_bytes=256 << 20),
        replace(
            _CDNA,
            architecture="gfx950",
            multiprocessors=256,
            cache_bytes=256 << 20,
            shared_bytes_per_multiprocessor=160 * KIB,
            shared_bytes_per_block=160 * KIB,
            shared_unit_bytes=1280,
            since_clang=20,
        ),
        # A pair of compute units shares four SIMDs and its LDS: that pair is what is meant here.
        AmdLimits(
            *((0, 0), 64, 64, 128 * KIB, 64 * KIB),
            barriers_per_multiprocessor=32,
            reserved_shared_bytes=0,
            shared_unit_bytes=1024,
            block_dimensions=(1024, 1024, 1024),
            registers_per_thread=256,
            register_unit=24,
            architecture="gfx1100",
            multiprocessors=48,
            cache_bytes=96 << 20,
            waves_per_simd=16,
            vector_registers=1536,
            limited_by_scalars=False,
        ),
    )
}
AMD_TARGETS = tuple(_AMD_LIMITS)
_FEATURE = re.compile(r"(?:sramecc|xnack)[+-]")
# What a kernel in HIP is compiled for where no GPU and no target is named.
DEFAULT_TARGET = "gfx942"
# Where ROCm is unless the environment's ROCM_PATH says otherwise.
ROCM = "/opt/rocm"


def is_amd(architecture: str) -> bool:
    """Tell AMD's architectures, `gfx942`, from NVIDIA's, `sm_90a`."""
    return architecture.startswith("gfx")


def amd_limits(architecture: str) -> AmdLimits:
    """Look up an architecture, which may come with features (`gfx942:xnack-`).

    Raises `DeviceError` for an unknown one.
    """
    name, *features = architecture.split(":")
    limits = _AMD_LIMITS.get(name)
    if limits is None or not all(map(_FEATURE.fullmatch, features)):
        raise DeviceError(
            f"unknown architecture {architecture!r}",
            remedy=f"known are {' '.join(AMD_TARGETS)}, also with features such as :xnack-",
        )
    return limits
