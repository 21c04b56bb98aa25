"""Which AMD GPUs there are, and where, from what Linux's driver tells of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tuner.model.errors import DeviceError

NODES = Path("/sys/class/kfd/kfd/topology/nodes")


@dataclass(frozen=True, slots=True)
class AmdGpu:
    """One GPU, or a partition of one, at a place on the bus: `location` is bus, device, function.

    In the bits above these 16 stands a partition's number.
    """

    architecture: str
    simds: int
    domain: int
    location: int


def list_gpus(nodes: Path = NODES) -> tuple[AmdGpu, ...]:
    """List what the driver shows, in its order; nothing without a driver."""
    return tuple(
        AmdGpu(
            _architecture(one["gfx_target_version"]),
            one["simd_count"],
            one.get("domain", 0),
            one.get("location_id", 0),
        )
        for one in _properties(nodes)
        if one.get("simd_count") and "gfx_target_version" in one
    )


def gpu_at(bus_id: str, nodes: Path = NODES) -> AmdGpu:
    """Return the GPU at `0000:c1:00.0`; raise `DeviceError` where the driver shows none there."""
    domain, bus, rest = bus_id.split(":")
    device, _, function = rest.partition(".")
    location = int(bus, 16) << 8 | int(device, 16) << 3 | int(function or "0", 16)
    gpus = list_gpus(nodes)
    # The runtime may tell partitions, which are all alike, apart by the function.
    for bits in (0xFFFF, 0xFFF8):
        for gpu in gpus:
            if (gpu.domain, gpu.location & bits) == (int(domain, 16), location & bits):
                return gpu
    raise DeviceError(
        f"the driver shows no GPU at {bus_id}",
        path=nodes,
        remedy="a container needs /dev/kfd, /dev/dri and /sys of the machine",
    )


def _properties(nodes: Path) -> Iterator[Mapping[str, int]]:
    for path in sorted(nodes.glob("*/properties"), key=_number):
        with suppress(OSError):  # a container may show a node and not let it be read
            pairs = (line.split() for line in path.read_text(encoding="ascii").splitlines())
            yield {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def _number(path: Path) -> int:
    return int(path.parent.name) if path.parent.name.isdecimal() else 0


def _architecture(version: int) -> str:
    """Name what the driver counts as 90402: `gfx942`."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
