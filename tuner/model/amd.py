"""What AMD's GPUs offer a kernel: waves, vector and scalar registers, LDS."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tuner.model.errors import DeviceError
from tuner.model.expressions import ceil_div
from tuner.model.hardware import KIB, DeviceLimits
from tuner.model.kernel import Launch
from tuner.model.trial import Resources


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

    def waves_on_simd(self, resources: Resources, threads: int) -> int:
        """Count the waves of a SIMD as clang's remark on a kernel's resources does.

        `threads` is the block that the kernel was compiled for. Unlike the occupancy of a launch it
        counts no dynamic LDS, not that LDS is given in units, and not that only whole blocks come
        to a compute unit.
        """
        to_the_byte = replace(self, shared_unit_bytes=1)
        rooms = to_the_byte.rooms(resources, Launch("", (1, 1, 1), (threads, 1, 1)))
        del rooms["registers"]
        waves = min(rooms.values()) * ceil_div(threads, self.threads_per_warp)
        return min(self.waves_by_registers(resources), ceil_div(waves, self.partitions))

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
_LIMITS = {
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
AMD_TARGETS = tuple(_LIMITS)
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
    limits = _LIMITS.get(name)
    if limits is None or not all(map(_FEATURE.fullmatch, features)):
        raise DeviceError(
            f"unknown architecture {architecture!r}",
            remedy=f"known are {' '.join(AMD_TARGETS)}, also with features such as :xnack-",
        )
    return limits
