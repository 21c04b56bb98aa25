"""AMD's GPUs as a family of devices."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.compiler.base import Compiler
from tuner.compiler.cache import Cache
from tuner.device.base import Device
from tuner.device.families import Listed
from tuner.device.select import unknown_device
from tuner.extensions.backends.hip.compiler import HipCompiler
from tuner.extensions.backends.hip.topology import NODES, list_gpus
from tuner.model.amd import AMD_TARGETS
from tuner.model.kernel import KernelSpec


class HipFamily:
    """`--device hip` and `hip:N`; implements `DeviceFamily`."""

    listed_as = "amd"

    def open(self, detail: str, spec: KernelSpec, operators: Mapping[str, str]) -> Device:
        if detail and not detail.isdecimal():
            raise unknown_device(f"hip:{detail}")
        from tuner.extensions.backends.hip.device import HipDevice

        return HipDevice(int(detail or 0), spec, operators)

    def compiler(self, jobs: int | None, target: str) -> Compiler:
        return HipCompiler(target, jobs, cache=Cache())

    def list_here(self) -> list[Listed]:
        """Ask Linux for AMD's GPUs, of which the HIP runtime may show fewer."""
        listed = []
        for number, gpu in enumerate(list_gpus(NODES)):
            known = gpu.architecture in AMD_TARGETS
            problem = "" if known else f"not supported: known are {' '.join(AMD_TARGETS)}"
            what = problem or "not run on AMD hardware yet"
            text = f"AMD {gpu.architecture}, {gpu.simds} SIMDs; {what}"
            facts = {"architecture": gpu.architecture, "simds": gpu.simds, "problem": problem}
            listed.append(Listed(f"hip:{number}", text, facts))
        return listed


HIP = HipFamily()
