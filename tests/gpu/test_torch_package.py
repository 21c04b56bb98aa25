"""A package for PyTorch on a GPU: right under graphs, compilation, streams and threads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from operator_sessions import choices, write_operator_session

from tuner.compiler.pool import NvrtcPool
from tuner.extensions.export.packages import export_package
from tuner.extensions.export.winners import winners_of

torch = pytest.importorskip("torch")
NAMES = ("rmsnorm", "silu_and_mul")
PACKAGE = "tuned_gpu_test"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two operators, their default configs on a workload each, on whatever GPU this is."""
    folder = tmp_path_factory.mktemp("torch")
    sessions = [write_operator_session(folder / n, n, choices(n)[0]) for n in NAMES]
    with NvrtcPool() as compiler:
        winners = [winners_of(one, None, None) for one in sessions]
        export_package(winners, folder / "out", compiler, PACKAGE)
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


def served(package: Any, kernel: str) -> tuple[int, int]:
    """Rows and width that a kernel of ours is for; elsewhere it is the fallback's."""
    return next(sizes for sizes, number in package.OPERATORS[kernel].table.points if number)


def inputs(package: Any, fewer_rows: int = 0, device: str = "cuda") -> tuple[Any, Any]:
    rows, wide = served(package, "silu_and_mul")
    rows -= fewer_rows
    x = torch.randn(rows, 2 * wide, dtype=torch.bfloat16, device=device)
    return torch.empty(rows, wide, dtype=torch.bfloat16, device=device), x


def activated(x: Any) -> Any:
    gate, up = x.float().chunk(2, dim=1)
    return torch.nn.functional.silu(gate) * up


def right(out: Any, x: Any) -> bool:
    return bool(torch.allclose(out.float(), activated(x), rtol=1e-2, atol=1e-3))


def test_a_call_computes_what_the_operator_is(package: Any) -> None:
    out, x = inputs(package)
    package.silu_and_mul(out, x)
    assert right(out, x)
    rows, wide = served(package, "rmsnorm")
    x, w = (torch.randn(*s, wide, dtype=torch.bfloat16, device="cuda") for s in ((rows,), ()))
    out = torch.empty_like(x)
    for eps in (1e-6, 0.5):
        package.rmsnorm(out, x, w, eps=eps)
        expected = torch.nn.functional.rms_norm(x.float(), (wide,), w.float(), eps)
        torch.testing.assert_close(out.float(), expected, rtol=2e-2, atol=1e-2)


def test_a_graph_captures_it_at_its_first_call_too(package: Any) -> None:
    out, x = inputs(package, fewer_rows=33)
    operator = package.OPERATORS["silu_and_mul"]
    operator._forget()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        package.silu_and_mul(out, x)
    x.normal_()
    graph.replay()
    torch.cuda.synchronize()
    assert right(out, x)


def test_it_runs_on_the_current_stream(package: Any) -> None:
    out, x = inputs(package)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        x.normal_()
        package.silu_and_mul(out, x)
    stream.synchronize()
    assert right(out, x)


def test_it_is_part_of_a_compiled_graph(package: Any) -> None:
    def step(x: Any) -> Any:
        out = torch.empty(x.shape[0], x.shape[1] // 2, dtype=x.dtype, device=x.device)
        package.silu_and_mul(out, x * 2)
        return out + 1

    _, x = inputs(package)
    found = torch.compile(step, fullgraph=True)(x)
    torch.testing.assert_close(found, step(x))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_arrays_may_be_on_a_device_that_is_not_the_current_one(package: Any) -> None:
    out, x = inputs(package, device="cuda:1")
    assert torch.cuda.current_device() == 0
    package.silu_and_mul(out, x)
    torch.cuda.synchronize(1)
    assert right(out, x)
    assert torch.cuda.current_device() == 0


FORKED = """
import os, sys
sys.path.insert(0, sys.argv[1])
import torch, {package} as package
operator = package.OPERATORS["silu_and_mul"]
rows, wide = next(sizes for sizes, number in operator.table.points if number)
for _ in range(2):
    if os.fork() == 0:
        operator.devices.add(torch.cuda.get_device_name())
        x = torch.ones(rows, 2 * wide, dtype=torch.bfloat16, device="cuda")
        out = torch.empty(rows, wide, dtype=torch.bfloat16, device="cuda")
        package.silu_and_mul(out, x)
        os._exit(0 if abs(out.float().mean().item() - 0.7311) < 2e-3 else 3)
    assert os.wait()[1] == 0
"""


def test_children_of_a_process_that_imported_it_may_call_it(package: Any) -> None:
    folder = Path(package.__file__).parents[1]
    words = [sys.executable, "-c", FORKED.format(package=PACKAGE), str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_threads_share_an_operator(package: Any) -> None:
    def work(_: int) -> bool:
        with torch.cuda.stream(torch.cuda.Stream()):
            out, x = inputs(package)
            for _ in range(200):
                package.silu_and_mul(out, x)
            torch.cuda.current_stream().synchronize()
            return right(out, x)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_what_is_not_aligned_goes_to_the_fallback(package: Any) -> None:
    operator = package.OPERATORS["silu_and_mul"]
    out, aligned = inputs(package)
    store = torch.empty(aligned.numel() + 1, dtype=torch.bfloat16, device="cuda")
    x = store[1:].view_as(aligned).copy_(aligned)
    with pytest.raises(RuntimeError, match="multiple of 16 bytes"):
        package.silu_and_mul(out, x)
    operator.fallback = lambda out, x: out.copy_(activated(x))
    try:
        package.silu_and_mul(out, x)
    finally:
        operator.fallback = None
    assert right(out, x)
