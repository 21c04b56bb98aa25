"""Tensor maps on a GPU: each config's own, of each buffer, and what an exported package encodes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from operator_sessions import write_session_of

from tuner.compiler.pool import NvrtcPool
from tuner.device.base import Program
from tuner.device.cuda.device import CudaDevice
from tuner.device.cuda.sanitizer import COMPILE_OPTIONS, ComputeSanitizer, find_compute_sanitizer
from tuner.device.cuda.tool_process import Arenas
from tuner.extensions.export.packages import export_package
from tuner.extensions.export.winners import winners_of
from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.tensor_maps import TensorMapSpec
from tuner.model.trial import INITIAL, Status
from tuner.space.load import load_definition
from tuner.space.template import Template
from tuner.tuning.evaluator import Candidate, Evaluator

SPACE = Path(__file__).parents[1] / "support" / "tiled_gemm" / "tiled_gemm.yaml"
WORKLOAD = Workload.of({"M": 17, "N": 100, "K": 192})
PACKAGE = "tuned_maps_test"


@pytest.fixture(scope="module", autouse=True)
def _needs_tensor_maps(capability: tuple[int, int]) -> None:
    if capability != (9, 0):
        pytest.skip("wgmma is of 9.0 alone")


@pytest.fixture(scope="module")
def evaluator(compiler: NvrtcPool) -> Iterator[Evaluator]:
    definition = load_definition(SPACE)
    device = CudaDevice(0, definition.spec, {})
    candidate = Candidate(INITIAL, definition.space, Template.load(definition.spec.template))
    yield Evaluator(definition.spec, candidate, {}, compiler, device)
    device.close()


def program(one: Evaluator, depth: int = 64, view: str = "flat", splits: int = 1) -> Program:
    config = Config.of({"depth": depth, "view": view, "splits": splits})
    return one.program(WORKLOAD, config)


@pytest.mark.parametrize("depth", [32, 64])
@pytest.mark.parametrize("view", ["flat", "folded"])
def test_each_config_is_right_and_timed_with_maps_of_every_buffer(
    evaluator: Evaluator, depth: int, view: str
) -> None:
    for splits in (1, 2):
        made = program(evaluator, depth, view, splits)
        outcome = evaluator.device.run(made, full_verification=True)
        assert outcome.status is Status.CORRECT, outcome.reason
        assert outcome.measurement is not None
        assert outcome.measurement.buffer_sets > 1


def test_configs_with_other_maps_are_compared(evaluator: Evaluator) -> None:
    made = [program(evaluator, *one) for one in ((32, "flat", 2), (64, "folded", 1))]
    programs = [evaluator.baseline_program(WORKLOAD), *made]
    assert evaluator.device.compare(programs, rounds=6).faults == ("",) * 3


@pytest.mark.parametrize(
    "wrong", [{"swizzle": 0}, {"strides": (192,), "shape": (50, 192)}, {"of": "x"}]
)
def test_a_wrong_map_gives_wrong_results(evaluator: Evaluator, wrong: dict[str, Any]) -> None:
    made = program(evaluator)
    first, *others = made.launches
    *kept, weights = first.maps
    launch = replace(first, maps=(*kept, replace(weights, **wrong)))
    outcome = evaluator.device.verify(replace(made, launches=(launch, *others)))
    assert outcome.status is Status.INCORRECT, outcome.reason


def test_what_the_driver_refuses_is_no_end_of_the_worker(evaluator: Evaluator) -> None:
    made = program(evaluator)
    first, *others = made.launches
    launch = replace(first, maps=tuple(replace(one, box=(512, 64)) for one in first.maps))
    outcome = evaluator.device.verify(replace(made, launches=(launch, *others)))
    assert outcome.status is Status.LAUNCH
    assert "cuTensorMapEncodeTiled" in outcome.reason
    assert evaluator.device.verify(made).status is Status.CORRECT


def test_the_tuner_refuses_what_the_driver_does(evaluator: Evaluator) -> None:
    """The rules that configs are judged by are the driver's own."""
    from tuner.device.cuda.driver import CudaError, encode_tensor_map

    spec: TensorMapSpec = evaluator.spec.launch[0].maps[2]
    names = {**WORKLOAD.values, "depth": 64}
    assert spec.refusal(names) is None
    right = spec.resolve(names)
    wrong: list[dict[str, Any]] = [
        {"swizzle": 64},
        {"box": (257, 64)},
        {"box": (64, 4)},
        {"strides": (392,)},
        {"shape": (0, 192)},
    ]
    import cupy

    room = cupy.zeros(1 << 20, cupy.uint8)
    encode_tensor_map(right, room.data.ptr)
    for one in wrong:
        with pytest.raises(CudaError):
            encode_tensor_map(replace(right, **one), room.data.ptr)


def test_a_sanitizer_runs_it_with_maps(evaluator: Evaluator, compiler: NvrtcPool) -> None:
    if find_compute_sanitizer() is None:
        pytest.skip("compute-sanitizer is not installed")
    spec = replace(evaluator.spec, compile_options=COMPILE_OPTIONS)
    watched = Evaluator(spec, evaluator.candidate, {}, compiler, evaluator.device)
    watcher = ComputeSanitizer("memcheck", 0, Arenas(spec, {}))
    (outcome,) = watcher.watch([program(watched)])
    watcher.close()
    if "Device not supported" in outcome.reason:
        pytest.skip(outcome.reason)
    assert outcome.status is Status.CORRECT, outcome.reason


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory, compiler: NvrtcPool) -> Iterator[Any]:
    torch = pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("maps")
    session = write_session_of(folder / "session", SPACE, {})
    export_package([winners_of(session, None, None)], folder / "out", compiler, PACKAGE)
    sys.path.insert(0, str(folder / "out"))
    try:
        found = import_module(PACKAGE)
        for one in found.OPERATORS.values():
            one.devices.add(torch.cuda.get_device_name())
        yield found
    finally:
        sys.path.remove(str(folder / "out"))
        for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
            del sys.modules[name]


def arrays(m: int, n: int, k: int) -> tuple[Any, Any, Any]:
    import torch

    x, w = (torch.randn(rows, k, dtype=torch.bfloat16, device="cuda") for rows in (m, n))
    return torch.full((m, n), torch.nan, device="cuda"), x, w


def right(c: Any, x: Any, w: Any) -> bool:
    import torch

    return torch.allclose(c.double(), x.double() @ w.double().T, rtol=1e-3, atol=1e-3)


def test_an_exported_package_encodes_maps_of_what_it_is_given(package: Any) -> None:
    operator = package.OPERATORS["tiled_gemm"]
    made = [arrays(5, 128, 128) for _ in range(3)] + [arrays(33, 260, 72)]
    for one in made + made:
        one[0].fill_(float("nan"))
        package.tiled_gemm(*one)
        assert right(*one)
    assert operator.calls[1] == len(made) * 2


def test_a_graph_keeps_the_maps_of_its_own_arrays(package: Any) -> None:
    import torch

    first, other = arrays(5, 128, 128), arrays(5, 128, 128)
    package.tiled_gemm(*first)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        package.tiled_gemm(*first)
    package.tiled_gemm(*other)
    first[1].copy_(torch.randn_like(first[1]))
    first[0].fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert right(*first)
    assert right(*other)


def test_shapes_that_have_no_map_go_to_the_fallback(package: Any) -> None:
    operator = package.OPERATORS["tiled_gemm"]
    with pytest.raises(RuntimeError, match="nothing is proved faster"):
        operator(*arrays(5, 128, 132 + 1))
