"""What a run measures and checks with on its device: compiler, profiler, watching tools, meter."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import ExitStack

    from tuner.compiler.base import Compiler
    from tuner.device.base import Device, EnergyMeter, Watchers
    from tuner.model.kernel import KernelSpec
    from tuner.space.plan import Plan
    from tuner.tuning.evaluator import Evaluator
    from tuner.tuning.profiling import Profiling
    from tuner.tuning.verification import Watch

# The profile of a kernel that runs on a CPU is that of the code for this GPU.
PROFILED_TARGET = "sm_90a"
SANITIZED_TIMEOUT_S = 10.0


def compiler_for(device: Device, jobs: int | None, stack: ExitStack) -> Compiler:
    """Start the compiler whose results run on a device; the stack ends it."""
    from tuner.compiler.cache import AnsweringCompiler, Cache
    from tuner.compiler.pool import NvrtcPool
    from tuner.device.base import FromRecording

    compiler: Compiler
    if device.info.on_cpu:
        from tuner.compiler.host import HostCompiler

        compiler = HostCompiler(jobs, cache=Cache())
    else:
        compiler = NvrtcPool(workers=jobs, cache=Cache())
    if isinstance(device, FromRecording) and (known := device.compiled()):
        version = device.info.environment.get("recorded_compiler", compiler.version)
        compiler = AnsweringCompiler(known, version, compiler)
    stack.callback(compiler.close)
    return compiler


def meter_for(plan: Plan, device: Device) -> EnergyMeter | None:
    """Find the energy meter that an objective needs; raise before anything is measured."""
    if plan.config.objective == "time":
        return None
    from tuner.device.base import open_meter
    from tuner.tuning.energy import require_time

    meter = open_meter(device)
    require_time(plan, plan.config.objective)
    return meter


def profiling_for(plan: Plan, device: Device, compiler: Compiler, stack: ExitStack) -> Profiling:
    """Open the profiler that goes deepest here."""
    from tuner.analysis.profilers import Profiler
    from tuner.app.check import UnavailableDevice, target_info
    from tuner.compiler.cache import Cache
    from tuner.compiler.pool import NvrtcPool
    from tuner.device.base import CanCount
    from tuner.tuning.evaluator import evaluator_of
    from tuner.tuning.profiling import Profiling

    profiled: Device = device
    if device.info.on_cpu:
        # On a CPU nothing can be said of a GPU's time, but all of the GPU's code.
        profiled = UnavailableDevice(target_info(PROFILED_TARGET))
        compiler = NvrtcPool(cache=Cache())
        stack.callback(compiler.close)
    timed = not device.info.on_cpu
    counters = device.counters() if isinstance(device, CanCount) else None
    profiler = Profiler(profiled.info, counters, timed=timed)
    stack.callback(profiler.close)
    evaluators = partial(evaluator_of, compiler=compiler, device=profiled)
    return Profiling(profiler, evaluators, timed=timed)


def watches_for(
    plan: Plan, device: Device, compiler: Compiler, stack: ExitStack
) -> tuple[Watch, ...]:
    """Open the tools that can watch a device's programs. The stack closes them."""
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
        spec = replace(of.spec, compile_options=options)
        return evaluator_of(replace(of, spec=spec), compiler, device)

    for tool in watchers.tools:
        stack.callback(tool.close)
    return tuple(Watch(tool, evaluator, watchers.largest_bytes) for tool in watchers.tools)


def _on_host(plan: Plan, stack: ExitStack) -> tuple[Watch, ...]:
    from tuner.agent.gate import LARGEST_HOST_BYTES
    from tuner.compiler.host import SANITIZERS, preload
    from tuner.device.cpu.device import HostWatcher
    from tuner.model.errors import DeviceError
    from tuner.tuning.evaluator import evaluator_of
    from tuner.tuning.verification import Watch

    try:
        environment = preload(SANITIZERS)
    except DeviceError:
        return ()
    compiler, device = sanitized_host(plan.spec, plan.config.operators, environment, stack)
    evaluator = partial(evaluator_of, compiler=compiler, device=device)
    return (Watch(HostWatcher(device), evaluator, LARGEST_HOST_BYTES),)


def sanitized_host(
    spec: KernelSpec,
    operators: Mapping[str, str],
    environment: Mapping[str, str],
    stack: ExitStack,
) -> tuple[Compiler, Device]:
    """Open a device with `preload(SANITIZERS)`, and its compiler; the stack closes both."""
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
