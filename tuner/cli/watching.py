"""The tools that a run's winners are watched with, as far as this machine has them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tuner.compiler.base import Compiler
    from tuner.device.base import Device
    from tuner.plan import Plan
    from tuner.verification import Watch

# On a CPU a large problem takes minutes, and most of what is found there shows in a small one.
LARGEST_HOST_BYTES = 16 << 20
HOST_SANITIZERS = ("address", "undefined")


def watches_for(
    plan: Plan, device: Device, compiler: Compiler, stack: ExitStack
) -> tuple[Watch, ...]:
    """Open the tools for a device; none for a recording. The stack closes them."""
    if device.info.recorded:
        return ()
    return _on_host(plan, stack) if device.info.on_cpu else _on_gpu(plan, device, compiler, stack)


def _on_gpu(plan: Plan, device: Device, compiler: Compiler, stack: ExitStack) -> tuple[Watch, ...]:
    from tuner.device.cuda.device import CudaDevice
    from tuner.device.cuda.sanitizer import (
        COMPILE_OPTIONS,
        KINDS,
        LARGEST_BYTES,
        ComputeSanitizer,
        find_compute_sanitizer,
    )
    from tuner.tuning import evaluator_of
    from tuner.verification import Watch

    if find_compute_sanitizer() is None or not isinstance(device, CudaDevice):
        return ()
    spec = replace(plan.spec, compile_options=(*plan.spec.compile_options, *COMPILE_OPTIONS))
    evaluator = evaluator_of(replace(plan, spec=spec), compiler, device)
    watches = []
    for kind in KINDS:
        watcher = ComputeSanitizer(kind, device.ordinal, plan.spec, plan.operators)
        stack.callback(watcher.close)
        watches.append(Watch(watcher, evaluator, LARGEST_BYTES))
    return tuple(watches)


def _on_host(plan: Plan, stack: ExitStack) -> tuple[Watch, ...]:
    from tuner.compiler.cache import Cache
    from tuner.compiler.host import HostCompiler, preload
    from tuner.compiler.host_report import sanitizer_finding
    from tuner.device.host.device import HostDevice
    from tuner.device.host.watcher import HostWatcher
    from tuner.errors import DeviceError
    from tuner.tuning import evaluator_of
    from tuner.verification import Watch

    try:
        environment = preload(HOST_SANITIZERS)
    except DeviceError:
        return ()
    compiler = HostCompiler(sanitizers=HOST_SANITIZERS, cache=Cache())
    stack.callback(compiler.close)
    device = HostDevice(
        plan.spec, plan.operators, environment=environment, finding=sanitizer_finding
    )
    watcher = HostWatcher(device)
    stack.callback(watcher.close)
    return (Watch(watcher, evaluator_of(plan, compiler, device), LARGEST_HOST_BYTES),)
