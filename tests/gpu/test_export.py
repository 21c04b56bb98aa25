"""An exported folder, built by nvcc and run on a GPU, computes what the reference does."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dispatch_sample import COMPARISONS, ENVIRONMENT, write_project, write_session

from tuner.dispatch.table import SetSelection
from tuner.extensions.export.dispatch import export_dispatch
from tuner.model.hardware import architecture_for

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parent / "data"
# nvcc's own time, on a machine that may have few cores.
BUILD_S = 300
pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")


@pytest.fixture
def built(capability: tuple[int, int]) -> Callable[[Path, str], ctypes.CDLL]:
    """Build a folder and a small caller as one shared library, and load it."""

    def build(folder: Path, caller: str) -> ctypes.CDLL:
        command = ["nvcc", "-std=c++17", "-O2", f"-arch={architecture_for(capability)}"]
        command += ["-shared", "-Xcompiler", "-fPIC,-Wall", f"-I{folder}", "-o", "library.so"]
        sources = [*map(str, sorted(folder.glob("variants/*.cu"))), str(DATA / caller)]
        subprocess.run([*command, *sources], cwd=folder, check=True, timeout=BUILD_S)
        return ctypes.CDLL(str(folder / "library.so"))

    return build


def numbers(cupy: Any, *shape: int) -> tuple[Any, Any]:
    """Draw bf16 numbers: their bits, and what they are in float64."""
    bits = cupy.random.default_rng(1).standard_normal(shape, dtype=cupy.float32).view(cupy.uint32)
    kept = bits & cupy.uint32(0xFFFF0000)
    return (kept >> 16).astype(cupy.uint16), kept.view(cupy.float32).astype(cupy.float64)


def address(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.data.ptr)


def size(number: int) -> ctypes.c_longlong:
    return ctypes.c_longlong(number)


@pytest.mark.timeout(600)
def test_every_kind_of_launch_runs(
    built: Callable[[Path, str], ctypes.CDLL], tmp_path: Path, capability: tuple[int, int]
) -> None:
    """Two launches, one of them on a condition; clusters, much shared memory, scratch, PDL."""
    import cupy

    if capability < (9, 0):
        pytest.skip("no clusters below 9.0")
    environment = {**ENVIRONMENT, "architecture": architecture_for(capability)}
    space = write_project(tmp_path / "project")
    # Within 0 %: variant 2 is compiled for one width and launched programmatically.
    session = write_session(tmp_path / "session", space, COMPARISONS, environment=environment)
    export_dispatch(session, tmp_path / "out", SetSelection(within=0.0), None)
    library = built(tmp_path / "out", "call_blend.cpp")
    library.scratch.restype = ctypes.c_longlong
    served = set()
    for tokens, width in [
        (1, 4096),
        (64, 4096),
        (1024, 4096),
        (500, 8192),
        (2, 192),
        (3, 97),
        (3, 99),
    ]:
        shape = size(tokens), size(width)
        bits, x = numbers(cupy, tokens, width)
        out = cupy.full((tokens, width), cupy.nan, dtype=cupy.float32)
        partial = cupy.full(library.scratch(*shape), 255, dtype=cupy.uint8)
        eps = 1e-6 if width == 97 else 0.5
        arrays = address(out), address(bits), address(partial)
        assert library.launch(*arrays, *shape, ctypes.c_float(eps)) == 0
        cupy.cuda.runtime.deviceSynchronize()
        served.add(library.variant(*shape))
        expected = 2.0 * x + (0.0 if width % 2 == 0 else eps)
        assert cupy.allclose(out, expected, rtol=1e-6, atol=1e-9), (tokens, width)
    assert served == {0, 1, 2, 3}
    assert library.launch(None, None, None, size(0), size(4096), ctypes.c_float(0.0)) != 0


@pytest.mark.timeout(600)
def test_a_recorded_session_of_this_project_serves_every_shape(
    built: Callable[[Path, str], ctypes.CDLL], tmp_path: Path, capability: tuple[int, int]
) -> None:
    import cupy

    if capability != (9, 0):
        pytest.skip("the recording is of an H200")
    session = tmp_path / "session"
    kernel = ROOT / "kernels/sglang/silu_and_mul.cu"
    command = [sys.executable, "-m", "tuner", str(kernel), "--device", "recorded", "--trials", "40"]
    subprocess.run([*command, "--session", str(session)], cwd=ROOT, check=True)
    table = export_dispatch(session, tmp_path / "out", SetSelection(), None).table
    library = built(tmp_path / "out", "call_silu_and_mul.cpp")
    tuned = [(e.workload.values, table.number(e.kernel)) for e in table.entries]
    others = [({"T": t, "D": d}, None) for t in (1, 7, 300) for d in (8, 4096, 4112, 14336)]
    for axes, number in [*tuned, *others]:
        tokens, width = axes["T"], axes["D"]
        bits, x = numbers(cupy, tokens, 2 * width)
        out = cupy.full((tokens, width), 0x7FC0, dtype=cupy.uint16)
        assert library.launch(address(out), address(bits), size(tokens), size(width)) == 0
        cupy.cuda.runtime.deviceSynchronize()
        if number is not None:
            assert library.variant(size(tokens), size(width)) == number
        gate, up = x[:, :width], x[:, width:]
        expected = gate / (1.0 + cupy.exp(-gate)) * up
        found = (out.astype(cupy.uint32) << 16).view(cupy.float32)
        assert cupy.allclose(found, expected, rtol=4e-3, atol=1e-6), axes
