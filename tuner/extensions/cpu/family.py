"""The CPU as a family of devices: the same source, verified in a sandbox; its times mean little."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache

from tuner.compiler.base import Compiler
from tuner.compiler.cache import Cache
from tuner.device.base import Device
from tuner.device.families import Listed
from tuner.device.select import unknown_device
from tuner.extensions.cpu.compiler import SANITIZERS, HostCompiler, preload, sanitizer_finding
from tuner.extensions.cpu.device import RUN_TIMEOUT_S, HostDevice, HostWatcher
from tuner.model.errors import DeviceError
from tuner.model.kernel import KernelSpec
from tuner.space.plan import Plan
from tuner.tuning.evaluator import Evaluator, evaluator_of
from tuner.tuning.verification import LARGEST_HOST_BYTES, Watch

SANITIZED_TIMEOUT_S = 10.0


class HostFamily:
    """`--device host`; implements `DeviceFamily` and `WatchesPlans`."""

    listed_as = ""

    def open(
        self,
        detail: str,
        spec: KernelSpec,
        operators: Mapping[str, str],
        *,
        run_timeout_s: float = RUN_TIMEOUT_S,
    ) -> Device:
        if detail:
            raise unknown_device(f"host:{detail}")
        return HostDevice(spec, operators, run_timeout_s=run_timeout_s)

    def open_sanitized(
        self, spec: KernelSpec, operators: Mapping[str, str], stack: ExitStack
    ) -> tuple[Compiler, Device]:
        """Open a device that runs sanitized programs, and their compiler; the stack closes both.

        Raises `DeviceError` where g++ came without the sanitizers.
        """
        return sanitized_host(spec, operators, preload(SANITIZERS), stack)

    def compiler(self, jobs: int | None, target: str) -> Compiler:
        return HostCompiler(jobs, cache=Cache())

    def list_here(self) -> tuple[Listed, ...]:
        return ()

    def watches(self, plan: Plan, stack: ExitStack) -> tuple[Watch, ...]:
        try:
            environment = preload(SANITIZERS)
        except DeviceError:
            return ()

        @cache
        def opened() -> tuple[Compiler, Device]:  # only when there are winners to watch
            return sanitized_host(plan.spec, plan.config.operators, environment, stack)

        def evaluator(of: Plan) -> Evaluator:
            return evaluator_of(of, *opened())

        return (Watch(HostWatcher(lambda: opened()[1]), evaluator, LARGEST_HOST_BYTES),)


HOST = HostFamily()


def sanitized_host(
    spec: KernelSpec, operators: Mapping[str, str], environment: Mapping[str, str], stack: ExitStack
) -> tuple[HostCompiler, HostDevice]:
    """Open a device with `preload(SANITIZERS)`, and its compiler; the stack closes both."""
    compiler = HostCompiler(sanitizers=SANITIZERS, cache=Cache())
    stack.callback(compiler.close)
    device = HostDevice(
        spec,
        operators,
        run_timeout_s=SANITIZED_TIMEOUT_S,
        environment=environment,
        finding=sanitizer_finding,
    )
    device.fits_all = True
    stack.callback(device.close)
    return compiler, device
