"""Python kernels on a GPU: timed in graphs, and what goes wrong in one costs its trial."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from callable_project import callable_project, evaluator_of, read_project

from tuner.compiler.base import CompileResult
from tuner.device.cuda.device import CudaDevice
from tuner.model.config import Config
from tuner.model.kernel import Launch, Workload
from tuner.model.trial import Status, Trial
from tuner.tuning.evaluator import Evaluator

WORKLOAD = Workload.of({"T": 16, "D": 256})
RIGHT = Config.of({"pieces": 1, "shift": True, "method": "exp"})
WRONG = Config.of({"pieces": 2, "shift": True, "method": "exp"})
# What PyTorch would keep for itself.
ALL_MEMORY = "kept = [torch.empty(1 << 28, device='cuda') for _ in range(1 << 10)]"
HERE = "        part = x[first : first + rows] * scale\n"


@pytest.fixture(autouse=True)
def _needs_torch() -> None:
    pytest.importorskip("torch")


def opened(folder: Path) -> Evaluator:
    definition = read_project(folder)
    return evaluator_of(definition, CudaDevice(0, definition.spec, {"TEMPERATURE": "one"}))


def tried(evaluator: Evaluator, config: Config) -> Trial:
    return evaluator.finish(evaluator.start(WORKLOAD, config), stage="finals")


def test_configs_are_verified_timed_and_compared_with_the_baseline(tmp_path: Path) -> None:
    evaluator = opened(callable_project(tmp_path))
    try:
        assert evaluator.baseline(WORKLOAD).status is Status.CORRECT
        for config in (RIGHT, WRONG):
            trial = tried(evaluator, config)
            assert trial.status is Status.CORRECT, trial.reason
            assert trial.measurement is not None
            assert trial.measurement.buffer_sets > 1
        made = [evaluator.program(WORKLOAD, config) for config in (RIGHT, WRONG)]
        found = evaluator.device.compare([evaluator.baseline_program(WORKLOAD), *made], rounds=6)
        assert found.faults == ("",) * 3
    finally:
        evaluator.device.close()


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("raise ValueError('no such tile')", Status.LAUNCH),
        ("raise NotImplementedError('only one piece')", Status.CONSTRAINT),
        ("torch.cuda.synchronize()", Status.LAUNCH),  # not while a graph is captured
        ("torch.empty(1 << 50, device='cuda')", Status.RESOURCE_LIMIT),
        (ALL_MEMORY, Status.RESOURCE_LIMIT),
        ("x.sum().item()", Status.LAUNCH),
        ("import os; os._exit(7)", Status.LAUNCH),
        ("x.zero_()", Status.INCORRECT),
        ("return {'out': out.double()}", Status.INCORRECT),
    ],
)
def test_a_config_that_misbehaves_has_its_status_and_the_next_one_runs(
    tmp_path: Path, line: str, status: Status
) -> None:
    edit = (HERE, f"{HERE}        if config['pieces'] > 1:\n            {line}\n")
    evaluator = opened(callable_project(tmp_path, edit))
    try:
        trial = tried(evaluator, WRONG)
        assert trial.status is status, trial.reason
        assert tried(evaluator, RIGHT).status is Status.CORRECT
    finally:
        evaluator.device.close()


def test_who_waits_for_the_gpu_is_told_that_graphs_are_captured(tmp_path: Path) -> None:
    edit = (HERE, f"{HERE}        torch.cuda.synchronize()\n")
    evaluator = opened(callable_project(tmp_path, edit))
    try:
        trial = tried(evaluator, WRONG)
        assert trial.status is Status.LAUNCH
        assert "captured into a CUDA graph" in trial.reason
    finally:
        evaluator.device.close()


def test_configs_are_told_apart_by_the_bits_of_their_outputs(tmp_path: Path) -> None:
    in_double = Config.of({**RIGHT, "method": "double"})
    evaluator = opened(callable_project(tmp_path))
    evaluator.tells_bits = True
    try:
        known = [
            trial.correctness.bits
            for trial in (tried(evaluator, one) for one in (RIGHT, RIGHT, in_double))
            if trial.correctness
        ]
        assert known[0] == known[1] != known[2]
        model, other = (evaluator.program(WORKLOAD, one) for one in (RIGHT, in_double))
        assert "bits" in evaluator.device.capabilities
        told = [evaluator.device.bits(one, 7) for one in (model, model, other)]
        assert told[0] == told[1] != told[2]
    finally:
        evaluator.device.close()


KERNEL = """\
import triton
import triton.language as tl


@triton.jit
def copy_rows(out, x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n), at < n)


"""
TUNED = """\
import triton
import triton.language as tl


@triton.autotune([triton.Config({"BLOCK": size}) for size in SIZES], key=["n"])
@triton.jit
def copy_rows(out, x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n), at < n)


"""
LAUNCH_TUNED = "        copy_rows[lambda m: (triton.cdiv(x.numel(), m['BLOCK']),)](out, x, 4096)\n"
LAUNCH = (
    "        copy_rows[lambda m: (triton.cdiv(x.numel(), m['BLOCK']),)](out, x, 4096, BLOCK=256)\n"
)


def ahead(folder: Path) -> tuple[CompileResult, Trial]:
    """Try a config whose kernels are compiled ahead."""
    evaluator = opened(folder)
    device = evaluator.device
    assert "callables" in device.capabilities
    compiler = device.call_compiler(1)
    try:
        evaluator = replace(evaluator, compiler=compiler)
        pending = evaluator.start(WORKLOAD, RIGHT)
        assert pending.compilation is not None
        return pending.compilation.result(300), evaluator.finish(pending)
    finally:
        compiler.close()
        device.close()


def test_what_a_triton_kernel_uses_is_known_before_it_runs(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    edits = ("def launch", f"{KERNEL}def launch"), (HERE, f"{HERE}{LAUNCH}")
    result, trial = ahead(callable_project(tmp_path, *edits))
    assert result.called == (Launch("copy_rows", (16, 1, 1), (128, 1, 1)),)
    registers = result.resources["copy_rows"].registers
    assert registers is not None
    assert 8 <= registers <= 255
    assert trial.status is Status.CORRECT, trial.reason
    assert trial.occupancy is not None


def test_what_triton_cannot_compile_never_runs(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    wrong = LAUNCH.replace("BLOCK=256", "BLOCK=100")
    edits = ("def launch", f"{KERNEL}def launch"), (HERE, f"{HERE}{wrong}")
    result, trial = ahead(callable_project(tmp_path, *edits))
    assert "power of 2" in result.error
    assert trial.status is Status.COMPILE


@pytest.mark.parametrize(
    ("sizes", "called"),
    [("[512]", (Launch("copy_rows", (8, 1, 1), (128, 1, 1)),)), ("[256, 512, 1024]", ())],
)
def test_triton_s_autotuner_times_in_the_worker_alone(
    tmp_path: Path, sizes: str, called: tuple[Launch, ...]
) -> None:
    pytest.importorskip("triton")
    kernel = TUNED.replace("SIZES", sizes)
    edits = ("def launch", f"{kernel}def launch"), (HERE, f"{HERE}{LAUNCH_TUNED}")
    result, trial = ahead(callable_project(tmp_path, *edits))
    assert result.ok, result.error
    assert result.called == called
    assert trial.status is Status.CORRECT, trial.reason
