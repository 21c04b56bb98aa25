"""Python kernels are called ahead in processes where Triton compiles and launches nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from callable_project import callable_project, evaluator_of, read_project

from tuner.compiler.base import CompileRequest, CompileResult, PythonCompiler
from tuner.device.cuda import prepare
from tuner.device.cuda.prepare import (
    CallCompiler,
    Prepared,
    Preparer,
    Watched,
    compile_without_launches,
)
from tuner.model.kernel import CALL, PYTHON_OPTION, KernelSpec, Launch, Workload
from tuner.model.trial import Resources, Status, Trial, most

pytest.importorskip("torch")
WORKLOAD = Workload.of({"T": 16, "D": 256})
BEFORE = "        torch.softmax("
RUN = """\
        from triton.runtime.jit import JITFunction
        JITFunction().run(1, grid=(1,), warmup=False)
"""
LAUNCHES = """\
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.jit import JITFunction
        rows = JITFunction("rows", warps=8, registers=200, words=3, shared=100)
        rows.run(64, grid=lambda given: (given["n"] // 4, 2), warmup=False)
        rows.run(64, grid=lambda given: (given["n"] // 4, 2), warmup=False)
        JITFunction("rows", shared=4096).run(0, grid=lambda given: (given["n"],), warmup=False)
        from triton.runtime.autotuner import Config
        several = Config(), Config(warps=2), Config(warps=8)
        Autotuner(JITFunction("tuned", shared=1 << 20), *several).run(grid=(1,), warmup=False)
        last = JITFunction("last", warps=1, shared=1 << 20, fits=False)
        last.run(grid=lambda given: 1 / 0, warmup=False)
"""
FAIL = """\
        from triton import CompilationError
        raise CompilationError('no such type')
"""
FAIL_INSIDE = """\
        from triton.runtime.jit import JITFunction
        JITFunction(raises=RuntimeError('PassManager::run failed')).run(1, grid=(1,), warmup=False)
"""
FALL_BACK = """\
        from triton.runtime.jit import JITFunction
        try:
            JITFunction(raises=RuntimeError('no such tile')).run(1, grid=(1,), warmup=False)
        except RuntimeError:
            JITFunction("other").run(1, grid=(1,), warmup=False)
"""
ONE_CONFIG = """\
        from triton.runtime.autotuner import Autotuner, Config
        from triton.runtime.jit import JITFunction
        Autotuner(JITFunction("tuned", shared=64), Config(warps=8)).run(grid=(3,), warmup=False)
"""
NONE_FITS = """\
        from triton.runtime.autotuner import Autotuner, Config
        from triton.runtime.jit import JITFunction
        error = type("OutOfResources", (Exception,), {})("shared memory")
        Autotuner(JITFunction(raises=error), Config(), Config()).run(grid=(3,), warmup=False)
"""


class CompiledKernel:
    """As much of Triton's as is asked: some numbers are there once it is loaded."""

    def __init__(self, name: str, warps: int, registers: int, words: int, shared: int, fits: bool):
        self.name, self._loaded = name, (registers, words, fits)
        self.metadata = SimpleNamespace(num_warps=warps, shared=shared)
        self.n_regs: int | None = None

    @property
    def run(self) -> None:
        registers, words, fits = self._loaded
        if not fits:
            raise RuntimeError("out of resource: shared memory")
        self.n_regs, self.n_spills = registers, words


class JITFunction:
    """As much of Triton's as is replaced."""

    seen: list[bool] = []
    arg_names = ("n",)

    def __init__(
        self,
        name: str = "one",
        *,
        warps: int = 4,
        registers: int = 32,
        words: int = 0,
        shared: int = 0,
        fits: bool = True,
        raises: Exception | None = None,
    ) -> None:
        self._made = name, warps, registers, words, shared, fits
        self._raises = raises

    def run(
        self, *_: object, grid: object, warmup: bool, num_warps: int | None = None
    ) -> CompiledKernel:
        self.seen.append(warmup)
        if self._raises is not None:
            raise self._raises
        name, warps, *others = self._made
        return CompiledKernel(name, num_warps or warps, *others)


class Config:
    """As much of Triton's as is asked."""

    pre_hook = None

    def __init__(self, warps: int = 4) -> None:
        self._warps = warps

    def all_kwargs(self) -> dict[str, int]:
        return {"num_warps": self._warps}


class Autotuner:
    """As much of Triton's as is asked: what times its configs is never called."""

    arg_names = ("n",)

    def __init__(self, function: JITFunction, *configs: Config) -> None:
        self.fn, self.configs = function, configs

    def prune_configs(self, named: dict[str, Any]) -> tuple[Config, ...]:
        assert "grid" in named
        return self.configs

    def run(self, **named: Any) -> None:
        raise AssertionError("it would launch and time each config")


class CompilationError(Exception):
    """Triton's, by the name of its module."""

    __module__ = "triton.compiler.errors"


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[JITFunction]]:
    names = ("triton", "triton.runtime", "triton.runtime.jit", "triton.runtime.autotuner")
    for name in names:
        module: Any = ModuleType(name)
        module.JITFunction, module.CompilationError = JITFunction, CompilationError
        module.Autotuner, module.Config = Autotuner, Config
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(prepare, "find_spec", lambda _: object())
    JITFunction.seen.clear()
    yield JITFunction


def source_of(spec: KernelSpec, folder: Path) -> str:
    definition = read_project(folder)
    made = evaluator_of(definition, _NoDevice())  # type: ignore[arg-type]
    return made.baseline_request(WORKLOAD).source


class _NoDevice:
    from tuner.app.check import target_info

    info = target_info("sm_90a")


def prepared(folder: Path) -> Prepared:
    spec = read_project(folder).spec
    return Preparer(spec, "cpu").prepare(source_of(spec, folder))


@contextmanager
def compiler_of(folder: Path, jobs: int = 1) -> Iterator[tuple[CallCompiler, CompileRequest]]:
    """Open a compiler of a project, with the request for its baseline."""
    spec = read_project(folder).spec
    with closing(CallCompiler(spec, "cpu", jobs=jobs)) as compiler:
        yield compiler, request(source_of(spec, folder))


def test_what_would_be_launched_is_compiled(triton: type[JITFunction], tmp_path: Path) -> None:
    assert prepared(callable_project(tmp_path, (BEFORE, RUN + BEFORE))).error == ""
    assert triton.seen == [True]
    triton().run(grid=(1,), warmup=False)
    assert triton.seen == [True, False]


@pytest.mark.parametrize(
    ("call", "said"), [(FAIL, "no such type"), (FAIL_INSIDE, "PassManager::run failed")]
)
def test_an_error_of_its_compiler_is_told_with_the_line(
    triton: type[JITFunction], tmp_path: Path, call: str, said: str
) -> None:
    folder = callable_project(tmp_path, (BEFORE, call + BEFORE))
    text = (folder / "kernels/row_softmax.py").read_text()
    line = text[: text.index(said)].count("\n") + 1
    error = prepared(folder).error
    assert f"({line}): error: {said}" in error


LAST = Launch("last", (1, 1, 1), (32, 1, 1)), Resources(None, 0, 0, 1 << 20)
ROWS = Launch("rows", (16, 2, 1), (256, 1, 1)), Resources(200, 12, 12, 100)
WIDE = Launch("rows", (1, 1, 1), (128, 1, 1)), Resources(32, 0, 0, 4096)


@pytest.mark.parametrize(
    ("call", "error", "called"),
    [
        (FALL_BACK, "", ((Launch("other", (1, 1, 1), (128, 1, 1)), Resources(32, 0, 0, 0)),)),
        (ONE_CONFIG, "", ((Launch("tuned", (3, 1, 1), (256, 1, 1)), Resources(32, 0, 0, 64)),)),
        (NONE_FITS, "error: shared memory", ()),
        (LAUNCHES, "", (ROWS, ROWS, WIDE, LAST)),
    ],
    ids=[
        "what the kernel makes good itself is no error",
        "of a single config the autotuner leaves no choice",
        "configs that do not fit are passed over unless none does",
        "those that the autotuner tries are not known",
    ],
)
def test_what_its_kernels_use_is_known_where_triton_knows_it(
    triton: type[JITFunction], tmp_path: Path, call: str, error: str, called: tuple[object, ...]
) -> None:
    found = prepared(callable_project(tmp_path, (BEFORE, call + BEFORE)))
    assert found.error.endswith(error) if error else found.error == ""
    assert found.called == called
    assert call != NONE_FITS or triton.seen == [True, True]


def test_memory_of_the_gpu_is_given_back_and_a_broken_context_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[str] = []

    def lost() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        set_device=lambda device: said.append(f"on {device}"),
        synchronize=lambda: said.append("waited"),
        empty_cache=lambda: said.append("given back"),
        mem_get_info=lambda: (1 << 33, 1 << 34),
    )
    torch = sys.modules["torch"]
    fake = SimpleNamespace(cuda=cuda, zeros=lambda size, **_: torch.zeros(size), float32=None)
    monkeypatch.setitem(sys.modules, "torch", fake)
    folder = callable_project(tmp_path, (BEFORE, f"        return\n{BEFORE}"))
    spec = read_project(folder).spec
    preparer = Preparer(spec, "cuda:1")
    assert preparer.prepare(source_of(spec, folder)) == Prepared()
    assert said == ["on cuda:1", "waited", "given back"]
    cuda.synchronize = lost
    monkeypatch.setattr(prepare.os, "_exit", lambda code: said.append(f"left with {code}"))
    preparer.prepare(source_of(spec, folder))
    assert said[-1] == "left with 1"


def test_who_would_take_what_others_need_waits_until_it_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited_s: list[float] = []
    monkeypatch.setattr(prepare.time, "sleep", waited_s.append)
    left = [(20, 100), (24, 100), (25, 100)]
    gpu = SimpleNamespace(mem_get_info=lambda: left.pop(0))
    prepare.wait_for_room(gpu, 10)
    assert (left, len(waited_s)) == ([], 2)


def test_nobody_waits_for_what_is_not_given_back_or_for_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock_s = [0.0]

    def sleep(seconds: float) -> None:
        clock_s[0] += seconds

    monkeypatch.setattr(prepare.time, "sleep", sleep)
    monkeypatch.setattr(prepare.time, "monotonic", lambda: clock_s[0])
    held = SimpleNamespace(mem_get_info=lambda: (200, 10_000))
    prepare.wait_for_room(held, 40)
    assert clock_s[0] == 0.0
    prepare.wait_for_room(held, 100)
    assert clock_s[0] == pytest.approx(prepare.UNCHANGED_S, abs=0.1)
    busy = SimpleNamespace(mem_get_info=lambda: (int(clock_s[0]), 10_000))
    prepare.wait_for_room(busy, 100)
    assert clock_s[0] == pytest.approx(prepare.UNCHANGED_S + prepare.ROOM_S, abs=0.2)


@pytest.mark.parametrize("line", ["raise ValueError('x')", "import not_there", "1 / 0"])
def test_what_else_goes_wrong_is_for_the_worker_to_tell(tmp_path: Path, line: str) -> None:
    assert prepared(callable_project(tmp_path, (BEFORE, f"        {line}\n{BEFORE}"))) == Prepared()


def test_without_triton_nothing_is_replaced() -> None:
    with compile_without_launches(Watched()):
        pass


GENUINE = """\
import triton
import triton.language as tl


@triton.jit
def copy(out, x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n), at < n)


SEVERAL = [triton.Config({"BLOCK": size}) for size in (128, 256)]
one_config = triton.autotune([triton.Config({"BLOCK": 512}, num_warps=2)], key=["n"])(copy)
several = triton.autotune(SEVERAL, key=["n"])(copy)


"""
GENUINE_LAUNCHES = """\
        grid = lambda chosen: (triton.cdiv(4096, chosen["BLOCK"]),)
        copy[grid](out, x, 4096, BLOCK=1024)
        several[grid](out, x, 4096)
        one_config[grid](out, x, 4096)
"""


@pytest.fixture
def hopper_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Triton as installed, for a GPU that is not there."""
    pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    there = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
    )
    monkeypatch.setattr(driver, "_active", there)


@pytest.mark.usefixtures("hopper_alone")
def test_genuine_triton_compiles_and_launches_nothing(tmp_path: Path) -> None:
    folder = callable_project(
        tmp_path / "project",
        ("def launch", f"{GENUINE}def launch"),
        (BEFORE, GENUINE_LAUNCHES + BEFORE),
    )
    found = prepared(folder)
    assert found.error == ""
    known = [(launch.kernel, launch.grid, launch.block) for launch, _ in found.called]
    assert known == [("copy", (4, 1, 1), (128, 1, 1)), ("copy", (8, 1, 1), (64, 1, 1))]
    assert len([*(tmp_path / "cache").rglob("copy.cubin")]) == 4


@pytest.mark.usefixtures("hopper_alone")
def test_what_genuine_triton_cannot_compile_is_told_with_the_line(tmp_path: Path) -> None:
    wrong = GENUINE_LAUNCHES.replace("BLOCK=1024", "BLOCK=1000")
    folder = callable_project(
        tmp_path / "project", ("def launch", f"{GENUINE}def launch"), (BEFORE, wrong + BEFORE)
    )
    text = (folder / "kernels/row_softmax.py").read_text()
    line = text[: text.index("BLOCK=1000")].count("\n") + 1
    error = prepared(folder).error
    assert f"({line}): error: " in error
    assert "power of 2" in error


def test_what_its_kernels_use_is_in_the_result_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(prepare, "_prepare_source", lambda *_: Prepared("", (ROWS, ROWS, WIDE)))
    with compiler_of(callable_project(tmp_path)) as (compiler, asked):
        result = compiler.submit(asked).result(60)
    assert [launch.kernel for launch in result.called] == ["rows", "rows#1"]
    assert result.resources == {
        "rows": ROWS[1],
        "rows#1": WIDE[1],
        CALL: Resources(200, 12, 12, 4096),
    }


def test_what_was_compiled_is_known_and_what_told_nothing_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers = [Prepared(), Prepared("", (ROWS,))]
    monkeypatch.setattr(prepare, "_prepare_source", lambda *_: answers.pop(0))
    with compiler_of(callable_project(tmp_path)) as (compiler, asked):
        first, second, third = (compiler.submit(asked).result(60) for _ in range(3))
    assert not first.called
    assert [launch.kernel for launch in second.called] == ["rows"]
    assert third == second


class Known(PythonCompiler):
    """Says of every module that it launches two kernels."""

    def submit(self, request: CompileRequest) -> Future[CompileResult]:
        small = Launch("small", (4, 1, 1), (128, 1, 1))
        large = Launch("large", (264, 1, 1), (256, 1, 1))
        used = {"small": Resources(80, 8, 8, 1024), "large": Resources(128, 0, 0, 98_304)}
        found = super().submit(request).result()
        future: Future[CompileResult] = Future()
        resources = {**used, CALL: most(used.values())}
        future.set_result(replace(found, called=(small, large), resources=resources))
        return future


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ("{max_registers: 100}", "large: 128 registers, over `max_registers: 100`"),
        ("{spills: forbid}", "small: spills 8 bytes of stores and 8 of loads"),
        ("{max_shared_bytes: 65536}", "large: 98304 bytes of shared memory"),
        ("{min_occupancy: 0.3}", "large: occupancy 25.0%, limited by registers"),
    ],
)
def test_limits_hold_for_each_of_its_kernels_and_name_it(
    tmp_path: Path, limits: str, reason: str
) -> None:
    folder = callable_project(tmp_path, space=("parameters:", f"limits: {limits}\nparameters:"))
    definition = read_project(folder)
    evaluator = replace(evaluator_of(definition, _NoDevice()), compiler=Known())  # type: ignore[arg-type]
    default = definition.space.default
    assert default is not None
    trial = evaluator.finish(evaluator.start(WORKLOAD, default))
    assert trial.status is Status.RESOURCE_LIMIT
    assert trial.reason.startswith(reason)
    assert trial.resources == Resources(128, 8, 8, 98_304), "the most of each"


def test_a_search_knows_what_its_kernels_use_before_they_run(tmp_path: Path) -> None:
    definition = read_project(callable_project(tmp_path))
    evaluator = replace(evaluator_of(definition, _NoDevice()), compiler=Known())  # type: ignore[arg-type]
    default = definition.space.default
    assert default is not None
    pending = evaluator.start(WORKLOAD, default)
    seen = evaluator.foresee(pending)
    assert not isinstance(seen, Trial)
    assert (seen["launches"], seen["blocks"], seen["warps"]) == (2, 268, 4 * 4 + 264 * 8)
    assert seen["registers"] == pytest.approx((80 * 16 + 128 * 2112) / 2128)
    ((resources, occupancy),) = evaluator.uses(pending)
    assert resources == Resources(128, 8, 8, 98_304)
    assert occupancy is not None
    assert (occupancy.share, occupancy.limiter) == (0.25, "registers")


def request(source: str) -> CompileRequest:
    return CompileRequest(source, (CALL,), "sm_90a", (PYTHON_OPTION,))


def test_a_process_that_dies_costs_nothing_and_a_mistake_has_its_line(tmp_path: Path) -> None:
    edit = (BEFORE, f"        import os; os._exit(3)\n{BEFORE}")
    with compiler_of(callable_project(tmp_path, edit)) as (compiler, asked):
        assert compiler.submit(asked).result(60).ok
        wrong = compiler.submit(request("x = = 1\n")).result(60)
        assert "(1): error: invalid syntax" in wrong.error


def test_all_processes_import_at_once_what_the_first_module_needs(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    calls.mkdir()
    mark = f"        import os; open(f'{calls}/{{os.getpid()}}', 'w').close()\n"
    # No process is free for another's module before all have called it.
    wait = f"        import time\n        while len(os.listdir('{calls}')) < 3: time.sleep(0.01)\n"
    folder = callable_project(tmp_path / "project", (BEFORE, f"{mark}{wait}{BEFORE}"))
    with compiler_of(folder, jobs=3) as (compiler, asked):
        assert compiler.submit(asked).result(60).ok
    assert len(list(calls.iterdir())) == 3
