"""Compiling ahead what a Python kernel compiles at its first call: Triton's kernels, in parallel.

Triton keeps what it compiled in a folder that all processes of a user share. A module is called in
processes beside the worker, where Triton compiles and launches nothing: the worker then finds it,
and what its kernels use of the hardware is known before they run.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tuner.compiler.base import CompileRequest, CompileResult, PythonCompiler
from tuner.compiler.includes import UNIT_NAME
from tuner.device.callables import compile_in_place, execute_module, forget, place_of
from tuner.device.encoding import torch_name
from tuner.device.reference import line_in
from tuner.model.errors import WorkerError
from tuner.model.kernel import CALL, Dim3, KernelSpec, Launch
from tuner.model.trial import Resources, most
from tuner.process.child import Child
from tuner.process.pool import AHEAD, ProcessPool, settle

# Importing an engine takes 10 s, compiling a kernel 1 to 10.
PREPARE_S = 180.0
# Of the GPU's memory, what is left to those who verify and time, and how long one waits for that:
# 16 processes with the weights of a large layer each would take more than all of it. What nobody
# gives back for the time of a call is theirs already; and who needs little does not wait.
LEFT_SHARE = 0.15
ROOM_S = 60.0
UNCHANGED_S = 10.0
SMALL_SHARE = 0.005
_WARP_THREADS = 32
# What Triton counts in `n_spills`.
_SPILL_BYTES = 4
# What Triton's autotuner takes for a config that does not fit, and goes on.
_PASSED_OVER = frozenset({"OutOfResources", "CompileTimeAssertionFailure", "PTXASError"})
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
            lambda: Child(Preparer, (spec, device), "tune-prepare", wait=False),
            most,
            lambda reason: WorkerError(f"no process can be started to compile ahead: {reason}"),
        )
        # Processes that have imported nothing yet, until the first module comes.
        self._cold = min(most, AHEAD)
        # What modules launch, by their source: finals ask for what the search has compiled.
        self._known: dict[str, CompileResult] = {}

    def submit(self, request: CompileRequest) -> Future[CompileResult]:
        result = super().submit(request).result()
        result = self._known.get(request.source, result)
        future: Future[CompileResult] = Future()
        if not result.ok or request.source in self._known:
            future.set_result(result)
            return future
        asked = self._pool.submit(partial(_prepare_source, request.source))
        asked.add_done_callback(partial(self._answer, future, result, request.source))
        future.add_done_callback(partial(_cancel_too, asked))
        # Have each of the other processes call the first module, all at once. Baselines are asked
        # for one by one, and each would wait for another process to import an engine, which takes
        # 20 s.
        others, self._cold = self._cold - 1, 0
        for _ in range(others):
            self._pool.submit(partial(_prepare_source, request.source))
        return future

    def _answer(
        self,
        future: Future[CompileResult],
        result: CompileResult,
        source: str,
        asked: Future[Prepared],
    ) -> None:
        if asked.cancelled():
            future.cancel()
            return
        # A process that died or hung: the worker's own call says what of.
        prepared = Prepared() if asked.exception() is not None else asked.result()
        if prepared.error:
            settle(future, CompileResult(error=prepared.error))
            return
        with_launches = _add_launches(result, prepared.called)
        if prepared.called:
            self._known[source] = with_launches
        settle(future, with_launches)

    def close(self) -> None:
        self._pool.close()


def _cancel_too(asked: Future[Prepared], answer: Future[CompileResult]) -> None:
    """Leave undone what nobody waits for any more: whoever comes next would wait for it."""
    if answer.cancelled():
        asked.cancel()


class Preparer:
    """Call modules of one kernel on zeros, with every launch of Triton's left out."""

    def __init__(self, spec: KernelSpec, device: str) -> None:
        self._spec, self._device = spec, device
        compile_in_place()

    def prepare(self, source: str) -> Prepared:
        """Return what Triton would launch, or its error; nothing where anything else went wrong.

        Whatever that is, the worker meets it as well, and it is told there.
        """
        key = hashlib.sha256(source.encode()).hexdigest()
        module = None
        watched = Watched()
        try:
            module = execute_module(source, key, self._spec.source)
            with compile_without_launches(watched):
                self._call(module)
        except Exception as error:  # noqa: BLE001 - told by the worker
            return Prepared(watched.text_of(error, key), tuple(watched.called))
        finally:
            if module is not None:
                forget(key, module)
            self._give_back()
        return Prepared("", tuple(watched.called))

    def _call(self, module: Any) -> None:
        # Of its own: the tensors are gone when the GPU's memory is given back.
        config = None if module.CONFIG is None else dict(module.CONFIG)
        if self._device.startswith("cuda"):
            # Libraries launch on the current device, whichever the tensors are on.
            import_module("torch").cuda.set_device(self._device)
        tensors = self._zeros({**module.AXES, **module.OPERATORS, **(config or {})})
        module.launch(config, tensors, dict(module.AXES), **module.OPERATORS)

    def _zeros(self, names: dict[str, Any]) -> dict[str, Any]:
        torch: Any = import_module("torch")
        if self._device.startswith("cuda"):
            wait_for_room(torch.cuda, sum(a.size_bytes(names) for a in self._spec.arguments))
        return {
            argument.name: torch.zeros(
                argument.dimensions(names),
                dtype=getattr(torch, torch_name(argument.dtype)),
                device=self._device,
            )
            for argument in self._spec.arguments
            if not argument.is_scalar
        }

    def _give_back(self) -> None:
        """Free the GPU's memory, which PyTorch would keep: the worker's comparisons need it.

        What went on without a kernel's results may have broken the context: another process then
        takes the next module.
        """
        torch: Any = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except Exception:  # noqa: BLE001 - whatever it says, nothing will work here any more
            os._exit(1)


def wait_for_room(gpu: Any, needed_bytes: int) -> None:
    """Wait until others have given back enough memory, or give none back any more.

    After `ROOM_S` at the latest whoever asks for it will be told.
    """
    began_s = changed_s = time.monotonic()
    before_bytes: int | None = None
    while time.monotonic() < min(began_s + ROOM_S, changed_s + UNCHANGED_S):
        free_bytes, total_bytes = gpu.mem_get_info()
        left_bytes = free_bytes - needed_bytes
        if left_bytes >= LEFT_SHARE * total_bytes or needed_bytes <= SMALL_SHARE * total_bytes:
            return
        if free_bytes != before_bytes:
            before_bytes, changed_s = free_bytes, time.monotonic()
        time.sleep(0.05)


@dataclass(slots=True)
class Watched:
    """What Triton compiled in a call, and what it raised meanwhile."""

    called: list[tuple[Launch, Resources]] = field(default_factory=list)
    raised: list[Exception] = field(default_factory=list)
    # Its autotuner tries several configs: which of them it takes nobody knows yet.
    choosing: bool = False

    def text_of(self, error: Exception, key: str) -> str:
        """Say what Triton raised, with the module's line; "" where it is not Triton's."""
        of_run = any(error is r for r in self.raised) and not isinstance(error, MemoryError)
        if not of_run and not type(error).__module__.startswith("triton.compiler"):
            return ""
        text = str(error) or type(error).__name__
        return f"{UNIT_NAME}({line_in(Path(place_of(key)), error) or 1}): error: {text}"

    def watch_launch(self, launch: Callable[..., Any]) -> Callable[..., Any]:
        """Stand for Triton's own `run` of a kernel."""

        def run(kernel: Any, *given: Any, **named: Any) -> Any:
            try:
                compiled = launch(kernel, *given, **{**named, "warmup": True})
            except Exception as error:
                self.raised.append(error)
                raise
            if compiled is not None and not self.choosing:
                self.called.append(_describe_use(compiled, _grid(kernel, given, named)))
            return compiled

        return run

    def watch_autotuner(self, tuner: Any, *given: Any, **named: Any) -> Any:
        """Stand for the `run` of Triton's autotuner: compile what it would try, time nothing."""
        tuner.nargs = dict(zip(tuner.arg_names, given, strict=False))
        configs = tuner.prune_configs(named) if len(tuner.configs) > 1 else tuner.configs
        self.choosing = len(configs) > 1
        compiled, failed = None, None
        try:
            for config in configs:
                chosen = config.all_kwargs()
                if config.pre_hook is not None:
                    config.pre_hook({**tuner.nargs, **named, **chosen})
                try:
                    compiled = tuner.fn.run(*given, **named, **chosen)
                except Exception as error:
                    if type(error).__name__ not in _PASSED_OVER:
                        raise
                    failed = error
        finally:
            self.choosing, tuner.nargs = False, None
        if compiled is None and failed is not None:
            raise failed
        return compiled


@contextmanager
def compile_without_launches(watched: Watched) -> Iterator[None]:
    """Let Triton compile where it would launch; without Triton there is nothing to do."""
    if find_spec("triton") is None:
        yield
        return
    function: Any = import_module("triton.runtime.jit").JITFunction
    tuner: Any = import_module("triton.runtime.autotuner").Autotuner
    launch, tune = function.run, tuner.run

    def run_autotuner(of: Any, *given: Any, **named: Any) -> Any:
        return watched.watch_autotuner(of, *given, **named)

    function.run, tuner.run = watched.watch_launch(launch), run_autotuner
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


def _describe_use(kernel: Any, grid: Dim3) -> tuple[Launch, Resources]:
    """Say what a kernel of Triton's uses; what only the driver knows, where it can be loaded."""
    about = kernel.metadata
    with suppress(Exception):
        # Triton loads a kernel when it is asked for what launches it. One that uses too much cannot
        # be loaded: what it uses is known all the same.
        kernel.run  # noqa: B018
    registers, spilled = (getattr(kernel, name, None) for name in ("n_regs", "n_spills"))
    spill_bytes = (spilled or 0) * _SPILL_BYTES
    # A cluster's blocks share one place of Triton's grid.
    x, y, z = grid
    blocks = x * getattr(about, "num_ctas", 1), y, z
    launch = Launch(kernel.name, blocks, (about.num_warps * _WARP_THREADS, 1, 1))
    # Each word that is spilled is stored and loaded at least once.
    return launch, Resources(registers, spill_bytes, spill_bytes, about.shared)


def _prepare_source(source: str, child: Child) -> Prepared:
    prepared: Prepared = child.call("prepare", source, timeout_s=PREPARE_S)
    return prepared


def _add_launches(
    result: CompileResult, called: Sequence[tuple[Launch, Resources]]
) -> CompileResult:
    if not called:
        return result
    # The same kernel may be launched twice, compiled for other sizes: those are numbered.
    counts: Counter[str] = Counter()
    launches, resources = [], dict[str, Resources]()
    for launch, used in dict.fromkeys(called):
        place = counts[launch.kernel]
        counts[launch.kernel] += 1
        name = f"{launch.kernel}#{place}" if place else launch.kernel
        launches.append(replace(launch, kernel=name))
        resources[name] = used
    total = {**resources, CALL: most(resources.values())}
    return replace(result, called=tuple(launches), resources=total)
