"""OpenCL's platforms as a family of devices."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.compiler.base import Compiler
from tuner.compiler.cache import Cache
from tuner.device.base import Device
from tuner.device.families import Listed
from tuner.device.select import unknown_device
from tuner.extensions.backends.opencl.devices import find_device, list_devices
from tuner.model.kernel import KernelSpec


class OpenclFamily:
    """`--device opencl` and `opencl:N`; implements `DeviceFamily`."""

    listed_as = "opencl"

    def open(self, detail: str, spec: KernelSpec, operators: Mapping[str, str]) -> Device:
        if detail and not detail.isdecimal():
            raise unknown_device(f"opencl:{detail}")
        number = int(detail or 0)
        find_device(number)  # for what is wrong with the installation, here and at once
        from tuner.extensions.backends.opencl.device import OpenclDevice

        return OpenclDevice(number, spec, operators)

    def compiler(self, jobs: int | None, target: str) -> Compiler:
        from tuner.extensions.backends.opencl.compiler import OpenclPool

        return OpenclPool(0, jobs, cache=Cache())

    def list_here(self) -> list[Listed]:
        """Ask all platforms for their devices; there are none without pyopencl."""
        listed = []
        for one in list_devices():
            units, memory_gib = one.compute_units, one.memory_gib
            text = f"{one.title}, {units} compute units, {memory_gib:.0f} GiB"
            facts: dict[str, object] = {"name": one.title, "version": one.version}
            facts |= {"compute_units": units, "memory_gib": memory_gib}
            listed.append(Listed(f"opencl:{one.number}", text, facts))
        return listed


OPENCL = OpenclFamily()
