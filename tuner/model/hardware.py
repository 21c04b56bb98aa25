"""What each GPU generation offers a kernel: plain numbers by compute capability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.model.errors import DeviceError
from tuner.model.expressions import ceil_div
from tuner.model.trial import Occupancy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tuner.model.kernel import Launch, Limits
    from tuner.model.trial import Resources

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


def occupancy(limits: DeviceLimits, resources: Resources, launch: Launch) -> Occupancy | None:
    """Compute the resident warps of one multiprocessor as a share of the most it holds.

    None where the compiler reports no registers, without which nothing can be said.

    Assumes the largest shared-memory carve-out and ignores clusters, as NVIDIA's calculator does.
    The limiter is one of `warps`, `blocks`, `registers`, `shared memory`, `barriers`; a block that
    cannot launch at all has 0 blocks.
    """
    if resources.registers is None:
        return None
    if not 1 <= launch.threads <= limits.threads_per_block:
        return Occupancy(0.0, 0, "warps")
    warps = ceil_div(launch.threads, limits.threads_per_warp)
    bounds = {
        "warps": limits.warps_per_multiprocessor // warps,
        "blocks": limits.blocks_per_multiprocessor,
        "registers": _blocks_by_registers(limits, resources.registers, warps),
        "shared memory": _blocks_by_shared_memory(
            limits, resources.static_shared_bytes + launch.shared_bytes
        ),
        "barriers": _blocks_by_barriers(limits, resources.barriers),
    }
    limiter = min(bounds, key=lambda name: bounds[name])
    blocks = bounds[limiter]
    return Occupancy(blocks * warps / limits.warps_per_multiprocessor, blocks, limiter)


def refusal(
    limits: DeviceLimits, resources: Resources, launch: Launch, user_limits: Limits
) -> str | None:
    """Say why a compiled kernel cannot launch or breaks a declared limit; None where neither."""
    return (
        _shape_refusal(limits, launch)
        or _cluster_refusal(limits, launch)
        or _device_refusal(limits, resources, launch)
        or next(_broken_limits(limits, resources, launch, user_limits), None)
    )


def _round_up(value: int, unit: int) -> int:
    return ceil_div(value, unit) * unit


def _registers_checked(limits: DeviceLimits, registers: int, warps: int) -> int:
    # The launch check counts as if all partitions got the same number of warps.
    per_warp = _round_up(registers * limits.threads_per_warp, limits.register_unit)
    return per_warp * _round_up(warps, limits.partitions)


def _blocks_by_registers(limits: DeviceLimits, registers: int, warps: int) -> int:
    if registers == 0:
        return limits.blocks_per_multiprocessor
    if _registers_checked(limits, registers, warps) > limits.registers_per_block:
        return 0
    per_warp = _round_up(registers * limits.threads_per_warp, limits.register_unit)
    per_partition = limits.registers_per_multiprocessor // limits.partitions // per_warp
    return per_partition * limits.partitions // warps


def _blocks_by_shared_memory(limits: DeviceLimits, shared_bytes: int) -> int:
    if shared_bytes > limits.shared_bytes_per_block:
        return 0
    taken = _round_up(shared_bytes + limits.reserved_shared_bytes, limits.shared_unit_bytes)
    if taken == 0:
        return limits.blocks_per_multiprocessor
    return limits.shared_bytes_per_multiprocessor // taken


def _blocks_by_barriers(limits: DeviceLimits, barriers: int) -> int:
    if limits.barriers_per_multiprocessor is None or barriers == 0:
        return limits.blocks_per_multiprocessor
    return limits.barriers_per_multiprocessor // barriers


def _shape_refusal(limits: DeviceLimits, launch: Launch) -> str | None:
    for what, sizes, most in (
        ("grid", launch.grid, limits.grid_dimensions),
        ("block", launch.block, limits.block_dimensions),
    ):
        for axis, size, maximum in zip("xyz", sizes, most, strict=True):
            if size < 1:
                return f"{what} {_text(sizes)} is empty: {axis} is {size}"
            if size > maximum:
                return f"{what} {axis} of {size} is over the device's {maximum}"
    if launch.threads > limits.threads_per_block:
        return (
            f"block {_text(launch.block)} has {launch.threads} threads, "
            f"over the device's {limits.threads_per_block}"
        )
    if launch.shared_bytes < 0:
        return f"dynamic shared memory of {launch.shared_bytes} bytes is negative"
    return None


def _cluster_refusal(limits: DeviceLimits, launch: Launch) -> str | None:
    if launch.cluster is None or launch.cluster == (1, 1, 1):
        return None
    x, y, z = launch.cluster
    if min(x, y, z) < 1:
        return f"cluster {_text(launch.cluster)} is empty"
    if limits.cluster_blocks == 1:
        major, minor = limits.compute_capability
        return (
            f"cluster {_text(launch.cluster)}: compute capability {major}.{minor} has no clusters"
        )
    if x * y * z > limits.cluster_blocks:
        return (
            f"cluster {_text(launch.cluster)} has {x * y * z} blocks, "
            f"over the portable {limits.cluster_blocks}"
        )
    if any(g % c for g, c in zip(launch.grid, launch.cluster, strict=True)):
        return f"grid {_text(launch.grid)} is no multiple of the cluster {_text(launch.cluster)}"
    return None


def _device_refusal(limits: DeviceLimits, resources: Resources, launch: Launch) -> str | None:
    registers = resources.registers
    if registers is not None:
        if registers > limits.registers_per_thread:
            most = limits.registers_per_thread
            return f"{registers} registers a thread, over the device's {most}"
        warps = ceil_div(launch.threads, limits.threads_per_warp)
        of_block = _registers_checked(limits, registers, warps)
        if of_block > limits.registers_per_block:
            return (
                f"{launch.threads} threads of {registers} registers take {of_block} "
                f"registers, over the device's {limits.registers_per_block} a block"
            )
    if resources.static_shared_bytes + launch.shared_bytes > limits.shared_bytes_per_block:
        most = limits.shared_bytes_per_block
        return f"{_shared_text(resources, launch)}, over the device's {most} a block"
    return None


def _broken_limits(
    limits: DeviceLimits, resources: Resources, launch: Launch, allowed: Limits
) -> Iterator[str]:
    if allowed.spills == "forbid" and resources.spills:
        yield (
            f"spills {resources.spill_store_bytes} bytes of stores and "
            f"{resources.spill_load_bytes} of loads where `spills: forbid`"
        )
    registers = resources.registers
    most = allowed.max_registers
    if most is not None and registers is not None and registers > most:
        yield f"{registers} registers, over `max_registers: {allowed.max_registers}`"
    shared_bytes = resources.static_shared_bytes + launch.shared_bytes
    if allowed.max_shared_bytes is not None and shared_bytes > allowed.max_shared_bytes:
        yield (
            f"{_shared_text(resources, launch)}, "
            f"over `max_shared_bytes: {allowed.max_shared_bytes}`"
        )
    if allowed.min_occupancy is not None:
        found = occupancy(limits, resources, launch)
        if found is not None and found.share < allowed.min_occupancy:
            yield (
                f"occupancy {found.share:.1%}, limited by {found.limiter}, "
                f"under `min_occupancy: {allowed.min_occupancy}`"
            )


def _shared_text(resources: Resources, launch: Launch) -> str:
    total = resources.static_shared_bytes + launch.shared_bytes
    return (
        f"{total} bytes of shared memory ({resources.static_shared_bytes} static, "
        f"{launch.shared_bytes} dynamic)"
    )


def _text(sizes: tuple[int, int, int]) -> str:
    return " x ".join(map(str, sizes))
