"""The `hip` device: a worker process for one AMD GPU, verified and timed by the same protocol.

It was written without an AMD GPU: tests run it against a stand-in of the HIP runtime, and its name
says so wherever a result is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from tuner.device.base import DeviceInfo
from tuner.device.verify.shared_memory import host_verifier
from tuner.device.verify.verified_device import VerifiedDevice
from tuner.extensions.backends.copying import CallFailedError, CopyingRunner
from tuner.extensions.backends.hip.driver import hip_worker
from tuner.extensions.backends.hip.topology import NODES
from tuner.model.amd import amd_limits
from tuner.model.errors import DeviceError
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
                self._lock = _lock(ordinal, runner.ask_runtime("bus_id"))
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


def _lock(ordinal: int, bus_id: str) -> FileLock:
    folder = user_cache_path("kernel-tune", ensure_exists=True)
    lock = FileLock(folder / f"amd-{bus_id.replace(':', '-')}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise DeviceError(
            f"AMD GPU {ordinal} is in use by another `tune`",
            remedy="wait for it, or choose another GPU with --device hip:N; two runs on one GPU "
            "would spoil each other's times",
        ) from error
    return lock
