"""The tools that watch every access of a kernel, as far as this machine has them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tuner.agent.gate import LARGEST_HOST_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import ExitStack

    from tuner.compiler.base import Compiler
    from tuner.device.base import Device, Watchers
    from tuner.model.kernel import KernelSpec
    from tuner.space.plan import Plan
    from tuner.tuning.evaluator import Evaluator
    from tuner.tuning.verification import Watch

SANITIZED_TIMEOUT_S = 10.0


def watches_for(
    plan: Plan, device: Device, compiler: Compiler, stack: ExitStack
) -> tuple[Watch, ...]:
    """Open the tools for a device; none for a recording. The stack closes them."""
    from tuner.device.base import CanWatch

    if isinstance(device, CanWatch):
        return _by_device(plan, device, device.watchers(), compiler, stack)
    return _on_host(plan, stack) if device.info.on_cpu else ()


def _by_device(
    plan: Plan, device: Device, watchers: Watchers, compiler: Compiler, stack: ExitStack
) -> tuple[Watch, ...]:
    from tuner.tuning.evaluator import evaluator_of
    from tuner.tuning.verification import Watch

    def evaluator(of: Plan) -> Evaluator:
        options = (*of.spec.compile_options, *watchers.compile_options)
        return evaluator_of(
            replace(of, spec=replace(of.spec, compile_options=options)), compiler, device
        )

    for tool in watchers.tools:
        stack.callback(tool.close)
    return tuple(Watch(tool, evaluator, watchers.largest_bytes) for tool in watchers.tools)


def _on_host(plan: Plan, stack: ExitStack) -> tuple[Watch, ...]:
    from tuner.compiler.host import SANITIZERS, preload
    from tuner.device.cpu.device import HostWatcher
    from tuner.model.errors import DeviceError
    from tuner.tuning.evaluator import evaluator_of
    from tuner.tuning.verification import Watch

    try:
        environment = preload(SANITIZERS)
    except DeviceError:
        return ()
    compiler, device = sanitized_host(plan.spec, plan.operators, environment, stack)
    evaluator = partial(evaluator_of, compiler=compiler, device=device)
    return (Watch(HostWatcher(device), evaluator, LARGEST_HOST_BYTES),)


def sanitized_host(
    spec: KernelSpec,
    operators: Mapping[str, str],
    environment: Mapping[str, str],
    stack: ExitStack,
) -> tuple[Compiler, Device]:
    """Open a `host` device that runs sanitized code, and the compiler that makes it.

    `environment` is what `preload` says of `SANITIZERS`. The stack closes both.
    """
    from tuner.compiler.cache import Cache
    from tuner.compiler.host import SANITIZERS, HostCompiler, sanitizer_finding
    from tuner.device.cpu.device import HostDevice

    compiler = HostCompiler(sanitizers=SANITIZERS, cache=Cache())
    stack.callback(compiler.close)
    device = HostDevice(
        spec,
        operators,
        run_timeout_s=SANITIZED_TIMEOUT_S,
        environment=environment,
        finding=sanitizer_finding,
    )
    stack.callback(device.close)
    return compiler, device
