"""The OpenCL devices of this machine, numbered over all platforms."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.model.errors import DeviceError

INSTALL = (
    "pip install -e '.[opencl]' in the checkout brings PoCL, which is one for every CPU (Debian: "
    "pocl-opencl-icd); a GPU's comes with its driver"
)
# Whose compiler waits with the machine code until it knows the size of a work-group.
POCL = "Portable Computing Language"


@dataclass(frozen=True, slots=True)
class OpenclDescription:
    """One device as its platform describes it; `--device opencl:NUMBER` names it."""

    number: int
    name: str
    platform: str
    version: str
    compute_units: int
    memory_gib: float
    is_cpu: bool

    @property
    def title(self) -> str:
        return f"{self.name.removeprefix('pthread-')} ({self.platform})"

    @property
    def is_pocl(self) -> bool:
        return self.platform.startswith(POCL)


def list_devices() -> tuple[OpenclDescription, ...]:
    """List them in the platforms' order; none where pyopencl or every platform is missing."""
    return tuple(_describe_device(number, one) for number, one in enumerate(_handles()))


def find_device(number: int) -> tuple[OpenclDescription, Any]:
    """Look a device up, with pyopencl's object for it; raise `DeviceError` where there is none."""
    if importlib.util.find_spec("pyopencl") is None:
        raise DeviceError("pyopencl is not installed, which kernels in OpenCL need", remedy=INSTALL)
    handles = _handles()
    if not handles:
        raise DeviceError("no OpenCL platform was found", remedy=INSTALL)
    if number >= len(handles):
        known = "the only one is 0" if len(handles) == 1 else f"there are 0 to {len(handles) - 1}"
        raise DeviceError(f"there is no OpenCL device {number}", remedy=f"{known}: `tune devices`")
    return _describe_device(number, handles[number]), handles[number]


def keep_private(cache_dir: Path) -> None:
    """Keep what OpenCL caches in this process in a folder of its own; before it is imported.

    Otherwise times and results could depend on what the user has compiled before.
    """
    os.environ |= {"POCL_CACHE_DIR": str(cache_dir), "PYOPENCL_NO_CACHE": "1"}


def _handles() -> list[Any]:
    try:
        import pyopencl
    except ImportError:
        return []
    try:
        platforms = pyopencl.get_platforms()
    except pyopencl.LogicError:  # so the loader says that there is no platform
        return []
    found: list[Any] = []
    for platform in platforms:
        try:
            found += platform.get_devices()
        except pyopencl.Error:  # a driver without its hardware
            continue
    return found


def _describe_device(number: int, device: Any) -> OpenclDescription:
    import pyopencl

    platform = device.platform
    return OpenclDescription(
        number=number,
        name=" ".join(device.name.split()),
        platform=platform.name.strip(),
        version=f"{platform.version.strip()}, driver {device.driver_version.strip()}",
        compute_units=device.max_compute_units,
        memory_gib=device.global_mem_size / 2**30,
        is_cpu=bool(device.type & pyopencl.device_type.CPU),
    )
