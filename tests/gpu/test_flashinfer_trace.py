"""A trace set on a GPU: solutions against definitions, as FlashInfer-Bench judges them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import bench_packages
import pytest
from operator_sessions import choices, write_operator_session

from tuner.compiler.pool import NvrtcPool
from tuner.extensions.export.packages import export_package
from tuner.extensions.export.winners import winners_of

torch = pytest.importorskip("torch")


def listed(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("name", ["rmsnorm", "fused_add_rmsnorm", "silu_and_mul", "topk_softmax"])
def test_a_solution_gives_what_its_definition_says(
    name: str, tmp_path: Path, compiler: NvrtcPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(bench_packages.packages())
    from flashinfer_bench import BenchmarkConfig, TraceSet
    from flashinfer_bench.bench.utils import compute_error_stats, gen_inputs
    from flashinfer_bench.compile import BuilderRegistry

    variables = bench_packages.toolkit(tmp_path / "lib", os.environ)
    for variable, value in {**variables, "FIB_CACHE_PATH": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(variable, value)
    session = write_operator_session(tmp_path / "session", name, choices(name)[0])
    winners = [winners_of(session, None, None)]
    export_package(winners, tmp_path / "out", compiler, "unused", "flashinfer-trace")
    traces, builders = TraceSet.from_path(str(tmp_path / "out")), BuilderRegistry.get_instance()
    definition = next(iter(traces.definitions.values()))
    solution = builders.build(definition, traces.solutions[definition.name][0])
    reference = builders.build_reference(definition)
    for one in traces.workloads[definition.name]:
        inputs = gen_inputs(definition, one.workload, "cuda:0")
        before = [tensor.clone() for tensor in inputs]
        found, expected = solution.call_value_returning(*inputs), reference(*inputs)
        for out, right in zip(listed(found), listed(expected), strict=True):
            assert out.dtype is right.dtype
            _, _, exceeds, _ = compute_error_stats(out, right, BenchmarkConfig())
            assert not exceeds
        for tensor, old in zip(inputs, before, strict=True):
            assert torch.equal(tensor, old), "inputs stay as they are"
