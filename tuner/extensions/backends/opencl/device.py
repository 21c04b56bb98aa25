"""The `opencl` device: kernels run by any OpenCL platform, verified as on every other device."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.compiler.base import Compiler
from tuner.compiler.cache import Cache
from tuner.device.base import Device, DeviceInfo
from tuner.device.families import Listed
from tuner.device.layout import ALIGNMENT
from tuner.device.select import unknown_device
from tuner.device.timing import SEARCH
from tuner.device.verify.shared_memory import host_verifier
from tuner.device.verify.verified_device import VerifiedDevice
from tuner.extensions.backends.copying import CopyingRunner
from tuner.extensions.backends.opencl.compiler import OpenclPool
from tuner.extensions.backends.opencl.runtime import find_device, list_devices, opencl_worker
from tuner.model.errors import DeviceError
from tuner.model.hardware import DeviceLimits
from tuner.model.kernel import KernelSpec
from tuner.process.child import Child, ChildDiedError, ChildTimeoutError

# The first run of a program may compile it for its size of work-group.
RUN_TIMEOUT_S = 20.0
# A CPU's times vary by percents with what else runs there: the finals compare what is near.
_ON_CPU = replace(
    SEARCH,
    min_replay_us=100.0,
    min_samples=3,
    max_samples=7,
    target_error=0.02,
    budget_s=0.1,
    slower_margin=0.3,
)


class OpenclDevice(VerifiedDevice):
    """Run programs of `OpenclPool` on the device of a number; times are those of that device."""

    capabilities = VerifiedDevice.capabilities | {"compiler"}

    def __init__(
        self,
        number: int,
        spec: KernelSpec,
        operators: Mapping[str, str],
        *,
        run_timeout_s: float = RUN_TIMEOUT_S,
    ) -> None:
        with ExitStack() as undo:
            # What one process has compiled another need not: one that died is soon at work again.
            self._cache = tempfile.TemporaryDirectory(prefix="tune-opencl-")
            undo.callback(self._cache.cleanup)
            try:
                opened = (number, Path(self._cache.name), spec.deterministic)
                runner = CopyingRunner(
                    *(opencl_worker, opened),
                    called="the process that runs kernels",
                    device=f"OpenCL device {number}",
                    run_timeout_s=run_timeout_s,
                )
                undo.callback(runner.close)
                facts = runner.describe()
                verifier = Child(host_verifier, (spec, dict(operators)), "tune-verifier")
            except (ChildDiedError, ChildTimeoutError) as error:
                raise DeviceError(f"the processes did not start: {error}") from error
            undo.callback(verifier.kill)
            if facts["device"].is_cpu:
                runner.policy = _ON_CPU
            self._number, self._described, self._opencl = number, facts["device"], runner
            super().__init__(device_info(facts), spec, verifier, runner)
            undo.pop_all()

    def compiler(self, jobs: int | None) -> OpenclPool:
        pool = OpenclPool(self._number, jobs, cache=Cache(), ahead=self._described.is_pocl)
        if self._described.is_cpu:
            self._opencl.pauses = pool.paused
        return pool

    def close(self) -> None:
        super().close()
        self._cache.cleanup()


def device_info(facts: Mapping[str, Any]) -> DeviceInfo:
    """Describe a device by what its worker has found out."""
    device = facts["device"]
    if (needed := facts["alignment_bytes"]) > ALIGNMENT:
        raise DeviceError(
            f"{device.title} wants arrays at multiples of {needed} bytes, and they lie at "
            f"{ALIGNMENT}"
        )
    limits = DeviceLimits(
        compute_capability=(0, 0),
        warps_per_multiprocessor=max(1, facts["max_threads"] // facts["threads_per_warp"]),
        blocks_per_multiprocessor=1,
        shared_bytes_per_multiprocessor=facts["local_bytes"],
        shared_bytes_per_block=facts["local_bytes"],
        reserved_shared_bytes=0,
        shared_unit_bytes=1,
        threads_per_block=facts["max_threads"],
        threads_per_warp=facts["threads_per_warp"],
        block_dimensions=facts["max_sizes"],
        grid_dimensions=(2**31 - 1,) * 3,
    )
    return DeviceInfo(
        name=device.title,
        architecture="opencl",
        compute_capability=limits.compute_capability,
        multiprocessors=device.compute_units,
        l2_bytes=facts["cache_bytes"],
        streaming_gbps=round(facts["streaming_gbps"], 1),
        recorded=False,
        environment={"opencl": device.version, "opencl_c": facts["c_version"]},
        own_limits=limits,
    )


class OpenclFamily:
    """`--device opencl` and `opencl:N`; implements `DeviceFamily`."""

    listed_as = "opencl"

    def open(self, detail: str, spec: KernelSpec, operators: Mapping[str, str]) -> Device:
        if detail and not detail.isdecimal():
            raise unknown_device(f"opencl:{detail}")
        number = int(detail or 0)
        find_device(number)  # for what is wrong with the installation, here and at once
        return OpenclDevice(number, spec, operators)

    def compiler(self, jobs: int | None, target: str) -> Compiler:
        return OpenclPool(0, jobs, cache=Cache())

    def list_here(self) -> list[Listed]:
        """Ask all platforms for their devices; there are none without pyopencl."""
        listed = []
        for device in list_devices():
            units, memory_gib = device.compute_units, device.memory_gib
            text = f"{device.title}, {units} compute units, {memory_gib:.0f} GiB"
            facts: dict[str, object] = {"name": device.title, "version": device.version}
            facts |= {"compute_units": units, "memory_gib": memory_gib}
            listed.append(Listed(f"opencl:{device.number}", text, facts))
        return listed


OPENCL = OpenclFamily()
