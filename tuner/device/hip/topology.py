"""Which AMD GPU is at a place on the bus, from what Linux's driver tells of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from tuner.model.errors import DeviceError

NODES = Path("/sys/class/kfd/kfd/topology/nodes")


def gpu_at(bus_id: str, nodes: Path = NODES) -> tuple[str, int]:
    """Return the architecture and the number of SIMDs of the GPU at `0000:c1:00.0`.

    Raises `DeviceError` where the driver shows none there.
    """
    domain, bus, rest = bus_id.split(":")
    device, _, function = rest.partition(".")
    location = int(bus, 16) << 8 | int(device, 16) << 3 | int(function or "0", 16)
    gpus = [one for one in _properties(nodes) if one.get("simd_count")]
    # Of a GPU in partitions, all alike, the number of each stands in the upper bits of its place,
    # and the runtime may tell them apart by the function.
    for bits in (0xFFFF, 0xFFF8):
        for gpu in gpus:
            found = gpu.get("domain", 0), gpu.get("location_id", 0) & bits
            if found == (int(domain, 16), location & bits):
                return _architecture(gpu["gfx_target_version"]), gpu["simd_count"]
    raise DeviceError(
        f"the driver shows no GPU at {bus_id}",
        path=nodes,
        remedy="a container needs /dev/kfd, /dev/dri and /sys of the machine",
    )


def _properties(nodes: Path) -> Iterator[Mapping[str, int]]:
    for path in sorted(nodes.glob("*/properties")):
        with suppress(OSError):  # a container may show a node and not let it be read
            pairs = (line.split() for line in path.read_text(encoding="ascii").splitlines())
            yield {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def _architecture(version: int) -> str:
    """Name what the driver counts as 90402: `gfx942`."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
