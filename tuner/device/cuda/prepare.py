"""Compiling ahead what a Python kernel compiles at its first call: Triton's kernels, in parallel.

Triton keeps what it compiled in a folder that all processes of a user share. A module is called in
processes beside the worker, where Triton compiles and launches nothing: the worker then finds it,
and what its kernels use of the hardware is known before they run.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tuner.compiler.base import CompileRequest, CompileResult
from tuner.compiler.includes import UNIT_NAME
from tuner.compiler.python import PythonCompiler
from tuner.device.callables import executed, forget
from tuner.model.errors import WorkerError
from tuner.model.kernel import CALL, Dim3, KernelSpec, Launch
from tuner.model.trial import Resources, most
from tuner.process.child import Child
from tuner.process.pool import ProcessPool

# Importing an engine takes 10 s, compiling a kernel 1 to 10.
PREPARE_S = 180.0
_TORCH_DTYPES = {"float8_e4m3": "float8_e4m3fn"}
_WARP_THREADS = 32
# What Triton counts in `n_spills`.
_SPILL_BYTES = 4
# A launch whose grid nobody could tell.
_NO_GRID: Dim3 = (1, 1, 1)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a call said: Triton's error, or the launches that it would have made."""

    error: str = ""
    called: tuple[tuple[Launch, Resources], ...] = ()


class CallCompiler(PythonCompiler):
    """As `PythonCompiler`; what Triton compiles at a first call is compiled before it answers."""

    def __init__(self, spec: KernelSpec, device: str, jobs: int | None) -> None:
        most = jobs or len(os.sched_getaffinity(0))
        self._pool = ProcessPool(
            lambda: Child(Preparer, (spec, device), "tune-prepare", wait=False), most, _cannot_start
        )

    def submit(self, request: CompileRequest) -> Future[CompileResult]:
        found = super().submit(request).result()
        future: Future[CompileResult] = Future()
        if not found.ok:
            future.set_result(found)
            return future
        asked = self._pool.submit(partial(_prepared, request.source))
        asked.add_done_callback(partial(_answer, future, found))
        return future

    def close(self) -> None:
        self._pool.close()


class Preparer:
    """Call modules of one kernel on zeros, with every launch of Triton's left out."""

    def __init__(self, spec: KernelSpec, device: str) -> None:
        self._spec, self._device = spec, device

    def prepare(self, source: str) -> Prepared:
        """Return what Triton would launch, or its error; nothing where anything else went wrong.

        Whatever that is, the worker meets it as well, and it is told there.
        """
        key = hashlib.sha256(source.encode()).hexdigest()
        module = None
        called: list[tuple[Launch, Resources]] = []
        try:
            module = executed(source, key, self._spec.source)
            config = None if module.CONFIG is None else dict(module.CONFIG)
            with nothing_launched(lambda *compiled: called.append(_used(*compiled))):
                tensors = self._zeros({**module.AXES, **module.OPERATORS})
                module.launch(config, tensors, dict(module.AXES), **module.OPERATORS)
        except Exception as error:  # noqa: BLE001 - told by the worker
            return Prepared(str(error) if _is_triton_s(error) else "", tuple(called))
        finally:
            if module is not None:
                forget(key, module)
        return Prepared("", tuple(called))

    def _zeros(self, names: dict[str, Any]) -> dict[str, Any]:
        torch: Any = import_module("torch")
        return {
            one.name: torch.zeros(
                one.dimensions(names),
                dtype=getattr(torch, _TORCH_DTYPES.get(one.dtype, one.dtype)),
                device=self._device,
            )
            for one in self._spec.arguments
            if not one.is_scalar
        }


@contextmanager
def nothing_launched(seen: Callable[[Any, Dim3], None]) -> Iterator[None]:
    """Let Triton compile where it would launch; without Triton there is nothing to do.

    `seen` is called with each compiled kernel and the grid that it would have been launched with,
    but not for those that Triton's autotuner tries: which of them it takes nobody knows yet.
    """
    if find_spec("triton") is None:
        yield
        return
    function: Any = import_module("triton.runtime.jit").JITFunction
    tuner: Any = import_module("triton.runtime.autotuner").Autotuner
    launch, tune = function.run, tuner.run
    tuning = False

    def compiled(self: Any, *given: Any, **named: Any) -> Any:
        kernel = launch(self, *given, **{**named, "warmup": True})
        if kernel is not None and not tuning:
            seen(kernel, _grid(self, given, named))
        return kernel

    def tuned(self: Any, *given: Any, **named: Any) -> Any:
        nonlocal tuning
        tuning = True
        try:
            return tune(self, *given, **named)
        finally:
            tuning = False

    function.run, tuner.run = compiled, tuned
    try:
        yield
    finally:
        function.run, tuner.run = launch, tune


def _grid(function: Any, given: Sequence[Any], named: Mapping[str, Any]) -> Dim3:
    grid = named.get("grid")
    try:
        if callable(grid):
            grid = grid({**dict(zip(function.arg_names, given, strict=False)), **named})
        # What a grid of numbers in the arrays comes to is not known before: here they are zeros.
        x, y, z = (*(max(1, int(size)) for size in grid or ()), 1, 1, 1)[:3]
    except Exception:  # noqa: BLE001 - code of the user's, which may need what is not there yet
        return _NO_GRID
    return x, y, z


def _used(kernel: Any, grid: Dim3) -> tuple[Launch, Resources]:
    """Say what a kernel of Triton's uses; what only the driver knows, where it can be loaded."""
    about = kernel.metadata
    with suppress(Exception):
        # Triton loads a kernel when it is asked for what launches it. One that uses too much cannot
        # be loaded: what it uses is known all the same.
        kernel.run  # noqa: B018
    registers, spilled = (getattr(kernel, name, None) for name in ("n_regs", "n_spills"))
    spill_bytes = (spilled or 0) * _SPILL_BYTES
    launch = Launch(kernel.name, grid, (about.num_warps * _WARP_THREADS, 1, 1))
    # Each word that is spilled is stored and loaded at least once.
    return launch, Resources(registers, spill_bytes, spill_bytes, about.shared)


def _prepared(source: str, child: Child) -> Prepared:
    prepared: Prepared = child.call("prepare", source, timeout_s=PREPARE_S)
    return prepared


def _answer(future: Future[CompileResult], found: CompileResult, asked: Future[Prepared]) -> None:
    if asked.cancelled():
        future.cancel()
        return
    # A process that died or hung: the worker's own call says what of.
    said = Prepared() if asked.exception() is not None else asked.result()
    if said.error:
        future.set_result(CompileResult(error=f"{UNIT_NAME}(1): error: {said.error}"))
    else:
        future.set_result(_with_called(found, said.called))


def _with_called(found: CompileResult, called: Sequence[tuple[Launch, Resources]]) -> CompileResult:
    if not called:
        return found
    # The same kernel may be launched twice, compiled for other sizes.
    named = {
        f"{launch.kernel}#{place}" if place else launch.kernel: (launch, used)
        for place, (launch, used) in _numbered(called)
    }
    resources = {name: used for name, (_, used) in named.items()}
    return replace(
        found,
        called=tuple(replace(launch, kernel=name) for name, (launch, _) in named.items()),
        resources={**resources, CALL: most(resources.values())},
    )


def _numbered(
    called: Sequence[tuple[Launch, Resources]],
) -> Iterator[tuple[int, tuple[Launch, Resources]]]:
    """Leave out what repeats, and number the others of one name from 0."""
    counts: dict[str, int] = {}
    for launch, used in dict.fromkeys(called):
        yield counts.get(launch.kernel, 0), (launch, used)
        counts[launch.kernel] = counts.get(launch.kernel, 0) + 1


def _is_triton_s(error: Exception) -> bool:
    return type(error).__module__.startswith("triton.compiler")


def _cannot_start(reason: Exception) -> WorkerError:
    return WorkerError(f"no process can be started to compile ahead: {reason}")
