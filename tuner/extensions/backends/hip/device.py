"""The `hip` device: a worker process for one AMD GPU, verified and timed by the same protocol.

It was written without an AMD GPU: tests run it against a stand-in of the HIP runtime, and its name
says so wherever a result is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from tuner.compiler.base import Compiler
from tuner.compiler.cache import Cache
from tuner.device.base import Device, DeviceInfo
from tuner.device.families import Listed
from tuner.device.select import unknown_device
from tuner.device.verify.restarting_worker import lock_gpu
from tuner.device.verify.shared_memory import host_verifier
from tuner.device.verify.verified_device import VerifiedDevice
from tuner.extensions.backends.copying import CallFailedError, CopyingRunner
from tuner.extensions.backends.hip.compiler import HipCompiler
from tuner.extensions.backends.hip.driver import NODES, hip_worker, list_gpus
from tuner.model.errors import DeviceError
from tuner.model.hardware import AMD_TARGETS, amd_limits
from tuner.model.kernel import KernelSpec
from tuner.process.child import Child, ChildDiedError, ChildTimeoutError

RUN_TIMEOUT_S = 10.0
UNTRIED = "not run on AMD hardware yet"


class HipDevice(VerifiedDevice):
    """Run programs on one AMD GPU; raise `DeviceError` where there is none or it is in use.

    `nodes` is where Linux's driver describes its GPUs.
    """

    def __init__(
        self,
        ordinal: int,
        spec: KernelSpec,
        operators: Mapping[str, str],
        *,
        nodes: Path = NODES,
    ) -> None:
        with ExitStack() as undo:
            runner = CopyingRunner(
                *(hip_worker, (ordinal, spec.deterministic, nodes)),
                called="the worker process",
                device="the AMD GPU",
                run_timeout_s=RUN_TIMEOUT_S,
            )
            undo.callback(runner.close)
            try:
                place = runner.ask_runtime("bus_id").replace(":", "-")
                self._lock = lock_gpu(f"amd-{place}", f"AMD GPU {ordinal}", "--device hip:N")
                undo.callback(self._lock.release)
                facts = runner.describe()
                verifier = Child(host_verifier, (spec, dict(operators)), "tune-verifier")
                undo.callback(verifier.kill)
            except (ChildDiedError, ChildTimeoutError, MemoryError) as error:
                raise DeviceError(f"the GPU's processes did not start: {error}") from error
            except CallFailedError as error:
                raise DeviceError(error.message, remedy=error.remedy) from error
            info = DeviceInfo(
                name=f"{facts['name']} (through HIP, {UNTRIED})",
                architecture=facts["architecture"],
                compute_capability=(0, 0),
                multiprocessors=facts["multiprocessors"],
                l2_bytes=facts["cache_bytes"],
                streaming_gbps=round(facts["streaming_gbps"], 1),
                recorded=False,
                environment={"hip_runtime": facts["runtime"], "hip_device": UNTRIED},
                own_limits=amd_limits(facts["architecture"]),
            )
            super().__init__(info, spec, verifier, runner)
            undo.pop_all()

    def close(self) -> None:
        super().close()
        self._lock.release()


class HipFamily:
    """`--device hip` and `hip:N`; implements `DeviceFamily`."""

    listed_as = "amd"

    def open(self, detail: str, spec: KernelSpec, operators: Mapping[str, str]) -> Device:
        if detail and not detail.isdecimal():
            raise unknown_device(f"hip:{detail}")
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
