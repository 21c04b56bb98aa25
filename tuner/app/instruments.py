"""What a run measures and checks with on its device: compiler, watching tools, meter."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from tuner.compiler.base import Compiler
    from tuner.device.base import Device
    from tuner.model.kernel import KernelSpec
    from tuner.space.plan import Plan
    from tuner.tuning.evaluator import Evaluator
    from tuner.tuning.verification import Watch


@runtime_checkable
class WatchesPlans(Protocol):
    """A family of devices whose programs are watched on a device of their own."""

    def watches(self, plan: Plan, stack: ExitStack) -> tuple[Watch, ...]:
        """Open the tools, which the stack closes; none where they are not installed."""


def compiler_for(spec: KernelSpec, device: Device, jobs: int | None, stack: ExitStack) -> Compiler:
    """Start the compiler of a kernel whose results run on a device; the stack ends it."""
    from tuner.compiler.base import AnsweringCompiler
    from tuner.device.families import family
    from tuner.device.select import open_compiler
    from tuner.model.errors import DeviceError
    from tuner.model.languages import OPENCL

    compiler: Compiler
    if "compiler" in device.capabilities:
        compiler = device.compiler(jobs)
    elif spec.language is OPENCL:  # a recording, which knows the results
        compiler = family("opencl").compiler(jobs, "")
    elif not spec.language.is_read:
        raise DeviceError(
            f"{spec.language.name} is compiled and run by no device of tune's own",
            path=spec.source,
            remedy="--device command:PROGRAM leaves that to a program (docs/evaluators.md)",
        )
    elif spec.is_callable:
        from tuner.compiler.base import PythonCompiler

        if "callables" in device.capabilities:
            compiler = device.call_compiler(jobs)
        else:
            compiler = PythonCompiler()
    else:
        compiler = open_compiler(
            jobs, on_cpu=device.info.on_cpu, architecture=device.info.architecture
        )
    if "recording" in device.capabilities and (results := device.recording.compiled()):
        version = device.info.environment.get("recorded_compiler", compiler.version)
        compiler = AnsweringCompiler(results, version, compiler)
    stack.callback(compiler.close)
    return compiler


def meter_for(plan: Plan, device: Device) -> Device | None:
    """Return the device if an objective needs its energy; raise before anything is measured."""
    if plan.config.objective == "time":
        return None
    from tuner.tuning.energy import require_time

    device.require_energy()
    require_time(plan)
    return device


def watches_for(
    plan: Plan, device: Device, compiler: Compiler, stack: ExitStack
) -> tuple[Watch, ...]:
    """Open the tools that can watch a device's programs. The stack closes them."""
    if plan.spec.is_callable:
        return ()  # the tools follow launches of our own
    if "sanitizer" not in device.capabilities:
        from tuner.device.families import family

        host = family("host") if device.info.on_cpu else None
        return host.watches(plan, stack) if isinstance(host, WatchesPlans) else ()
    from tuner.tuning.evaluator import evaluator_of
    from tuner.tuning.verification import Watch

    watchers = device.watchers()

    def evaluator(of: Plan) -> Evaluator:
        options = (*of.spec.compile_options, *watchers.compile_options)
        spec = replace(of.spec, compile_options=options)
        return evaluator_of(replace(of, spec=spec), compiler, device)

    for tool in watchers.tools:
        stack.callback(tool.close)
    return tuple(Watch(tool, evaluator, watchers.largest_bytes) for tool in watchers.tools)
