"""Chains of an operator between its neighbours: costs, stand-ins, and neighbours at fault."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from tuner.app.plan import new_plan
from tuner.compiler.pool import NvrtcPool
from tuner.device.base import Device, Program
from tuner.device.cuda.device import CudaDevice
from tuner.model.config import Config
from tuner.model.errors import KernelError
from tuner.model.expressions import Expression
from tuner.model.kernel import KernelSpec, Workload
from tuner.model.surroundings import LinkSpec, NeighbourSpec, SurroundingsSpec
from tuner.model.trial import Status
from tuner.space.plan import Plan
from tuner.space.surroundings import chosen
from tuner.tuning.evaluator import Evaluator, evaluator_of

ROOT = Path(__file__).parents[2]
KERNEL = ROOT / "kernels/sglang/fused_add_rmsnorm.cu"
CONFIGS = 30
ROUNDS = 32
HIDDEN = 4096


@pytest.fixture(scope="module")
def plan() -> Plan:
    """The operator whose configs fare differently alone and in a model."""
    return new_plan(KERNEL, {})


@contextmanager
def opened(plan: Plan, compiler: NvrtcPool, spec: KernelSpec) -> Iterator[tuple[Device, Evaluator]]:
    device = CudaDevice(0, spec, plan.config.operators)
    try:
        yield device, evaluator_of(replace(plan, spec=spec), compiler, device)
    finally:
        device.close()


def sampled(plan: Plan, evaluator: Evaluator, workload: Workload, count: int) -> list[Config]:
    """The suggestions, and valid configs at random, the same ones every time."""
    rng, names = random.Random(5), evaluator.names(workload)  # noqa: S311 - any sample will do
    tried = [config for config in (plan.space.default, *plan.space.suggestions) if config]
    found = [one for one in tried if plan.space.violated(one, names) is None]
    for _ in range(100_000):
        config = Config.of({p.name: rng.choice(p.values) for p in plan.space.parameters})
        if len(found) == count:
            break
        if plan.space.violated(config, names) is None and config not in found:
            found.append(config)
    return found


def programs(plan: Plan, evaluator: Evaluator, workload: Workload, count: int) -> list[Program]:
    pending = [evaluator.start(workload, c) for c in sampled(plan, evaluator, workload, count)]
    ready = map(evaluator.ready, pending)
    return [evaluator.baseline_program(workload), *(p for p in ready if isinstance(p, Program))]


def costs_us(device: Device, everything: Sequence[Program], rounds: int) -> list[float]:
    """Compare half of them at a time: graphs of real products take memory."""
    found: list[float] = []
    half = len(everything) // 2
    for some in (everything[:half], everything[half:]):
        rows = device.compare(some, rounds=rounds)
        assert not any(rows.faults)
        found += [median(column) for column in zip(*rows.times_us, strict=True)]
    return found


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    ranks = [np.argsort(np.argsort(values)) for values in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])


@pytest.mark.parametrize("tokens", [1, 16])
def test_stand_ins_rank_configs_as_the_products_of_a_model_do(
    plan: Plan, compiler: NvrtcPool, tokens: int
) -> None:
    found: dict[str, list[float]] = {}
    workload = Workload.of({"T": tokens, "H": HIDDEN})
    for name in ("decode", "stand_in"):
        spec = chosen(plan.spec, name)
        with opened(plan, compiler, spec) as (device, evaluator):
            everything = programs(plan, evaluator, workload, CONFIGS)
            found[name] = costs_us(device, everything, ROUNDS)
    assert rank_correlation(found["decode"], found["stand_in"]) > 0.9


def test_a_comparison_has_costs_and_times_alone(plan: Plan, compiler: NvrtcPool) -> None:
    workload = Workload.of({"T": 64, "H": HIDDEN})
    with opened(plan, compiler, plan.spec) as (device, evaluator):
        everything = programs(plan, evaluator, workload, 3)
        rounds = device.compare(everything, rounds=8)
        trial = device.run(everything[0])
    assert len(rounds.alone_us) == len(everything)
    assert min(rounds.alone_us) > 1.0
    assert trial.status is Status.CORRECT
    assert trial.measurement is not None
    assert 1.0 < trial.measurement.median_us < 6.0


NEIGHBOURS = """

def spoil(arrays, axes, **operator):
    arrays["x"][0] += 1


def beyond(arrays, axes, **operator):
    import cupy
    x = arrays["x"]
    memory = cupy.cuda.UnownedMemory(x.data.ptr + x.nbytes, 64, None)
    cupy.ndarray((64,), "uint8", cupy.cuda.MemoryPointer(memory, 0)).fill(7)


def broken(arrays, axes, **operator):
    raise ValueError("no such weights")


def harmless(arrays, axes, **operator):
    arrays["x"] + 1


neighbours = {"spoil": spoil, "beyond": beyond, "broken": broken, "harmless": harmless}
"""


def with_function(plan: Plan, folder: Path, name: str) -> KernelSpec:
    reference = folder / "reference.py"
    reference.write_text(plan.spec.reference.read_text() + NEIGHBOURS)
    before = NeighbourSpec("function", "x", (), name, line=7)
    around = SurroundingsSpec("mine", (LinkSpec((before,)),))
    return replace(plan.spec, reference=reference, surroundings=(around,))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("spoil", "changes `x` at byte"),
        ("beyond", "writes out of bounds"),
        ("broken", "no such weights"),
        ("missing", "no neighbour named 'missing'"),
    ],
)
def test_a_neighbour_at_fault_is_named_with_its_line(
    plan: Plan, compiler: NvrtcPool, tmp_path: Path, name: str, said: str
) -> None:
    with opened(plan, compiler, with_function(plan, tmp_path, name)) as (device, evaluator):
        program = evaluator.baseline_program(Workload.of({"T": 4, "H": 1024}))
        with pytest.raises(KernelError, match=said) as raised:
            device.run(program)
        assert raised.value.remedy


def test_a_function_of_the_reference_file_is_a_neighbour(
    plan: Plan, compiler: NvrtcPool, tmp_path: Path
) -> None:
    with opened(plan, compiler, with_function(plan, tmp_path, "harmless")) as (device, evaluator):
        outcome = device.run(evaluator.baseline_program(Workload.of({"T": 4, "H": 1024})))
    assert outcome.status is Status.CORRECT


def test_surroundings_that_need_more_memory_than_there_is_are_one_error(
    plan: Plan, compiler: NvrtcPool
) -> None:
    size = Expression.parse(1 << 40)
    around = SurroundingsSpec("huge", (LinkSpec((NeighbourSpec("stream", "", (size,)),)),))
    spec = replace(plan.spec, surroundings=(around,))
    with opened(plan, compiler, spec) as (device, evaluator):
        program = evaluator.baseline_program(Workload.of({"T": 4, "H": 1024}))
        with pytest.raises(Exception, match="not enough memory") as raised:
            device.run(program)
    assert "not enough memory" in str(raised.value)
