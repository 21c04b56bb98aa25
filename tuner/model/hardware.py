"""What each GPU generation offers a kernel: plain numbers by compute capability."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.model.errors import DeviceError

KIB = 1024


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
    reserved_shared_bytes: int = KIB
    shared_unit_bytes: int = 128
    barriers_per_multiprocessor: int | None = None
    cluster_blocks: int = 1
    threads_per_block: int = 1024
    threads_per_warp: int = 32
    block_dimensions: tuple[int, int, int] = (1024, 1024, 64)
    grid_dimensions: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    registers_per_thread: int = 255
    registers_per_block: int = 65536
    registers_per_multiprocessor: int = 65536
    register_unit: int = 256
    partitions: int = 4


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
        DeviceLimits(
            (9, 0), 64, 32, 228 * KIB, 227 * KIB, barriers_per_multiprocessor=64, cluster_blocks=8
        ),
        DeviceLimits(
            (10, 0), 64, 32, 228 * KIB, 227 * KIB, barriers_per_multiprocessor=64, cluster_blocks=8
        ),
        DeviceLimits(
            (10, 3), 64, 32, 228 * KIB, 227 * KIB, barriers_per_multiprocessor=32, cluster_blocks=8
        ),
        DeviceLimits(
            (11, 0), 48, 24, 228 * KIB, 227 * KIB, barriers_per_multiprocessor=24, cluster_blocks=8
        ),
        DeviceLimits(
            (12, 0), 48, 24, 100 * KIB, 99 * KIB, barriers_per_multiprocessor=24, cluster_blocks=8
        ),
        DeviceLimits(
            (12, 1), 48, 24, 100 * KIB, 99 * KIB, barriers_per_multiprocessor=24, cluster_blocks=8
        ),
    )
}
COMPUTE_CAPABILITIES = tuple(_LIMITS)
# Of the generation's best known product, for constraints that ask without a device: T4, A100,
# RTX 3090, AGX Orin, RTX 4090, H200, B200, B300, AGX Thor, RTX 5090, GB10.
MULTIPROCESSORS = {
    (7, 5): 40,
    (8, 0): 108,
    (8, 6): 82,
    (8, 7): 16,
    (8, 9): 128,
    (9, 0): 132,
    (10, 0): 148,
    (10, 3): 148,
    (11, 0): 20,
    (12, 0): 170,
    (12, 1): 48,
}


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
    suffix = "a" if major >= 9 else ""
    return f"sm_{major}{minor}{suffix}"
