"""The GPU's way to count roundings, run on the CPU, finds what NumPy's finds."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from host_launch import launch
from host_programs import cached_compiler

from tuner.compiler.base import CompileRequest
from tuner.device.encoding import LARGEST, encode
from tuner.device.verify import accuracy
from tuner.device.verify.accuracy import DOUBLE, SHARE_OF_BLOCK, SINGLE, measure, scale_of
from tuner.device.verify.on_gpu import ROUNDINGS, source_for
from tuner.extensions.cpu.child import LaunchEnd
from tuner.extensions.cpu.compiler import HostCompiler

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
BITS = {2: ("c_uint16", np.uint16), 4: ("c_uint32", np.uint32), 8: ("c_double", np.float64)}
ENTRY = """
extern "C" __global__ void run(const STORED* raw, const double* reference, const double* scale,
                               const double* numbers, double* worst) {
  count_roundings(raw, reference, scale, static_cast<long long>(numbers[0]),
                  static_cast<int>(numbers[1]), static_cast<int>(numbers[2]), numbers[3],
                  static_cast<int>(numbers[4]), numbers[5], numbers[6],
                  reinterpret_cast<unsigned long long*>(worst));
}
"""


@pytest.fixture(scope="module")
def compiler() -> Iterator[HostCompiler]:
    with cached_compiler() as compiler:
        yield compiler


def counted(
    compiler: HostCompiler, raw: Any, reference: Any, scale: Any, dtype: str, copied: bool
) -> list[float]:
    text = source_for(dtype).replace(
        'extern "C" __global__ void count_roundings', "__device__ void count_roundings"
    )
    result = compiler.submit(CompileRequest(text + ENTRY, ("run",), "sm_90")).result()
    assert result.ok, result.error
    name, kind = BITS[raw.dtype.itemsize]
    numbers = [raw.size, *accuracy._storing(dtype), int(copied), LARGEST[dtype], SHARE_OF_BLOCK]
    doubles = [("c_double", list(map(float, one))) for one in (reference, scale, numbers)]
    buffers = (name, raw.view(kind).tolist()), *doubles, ("c_double", [0.0, 0.0])
    done = launch(result.cubin, *buffers, grid=(2, 1, 1), block=(64, 1, 1))
    assert done.code == LaunchEnd.DONE, done.message
    return done.buffers[-1]


def of_references(
    compiler: HostCompiler, name: str, call: str, arrays: list[Any], results: int
) -> list[float]:
    body = ROUNDINGS.replace(f'extern "C" __global__ void {name}', f"__device__ void {name}")
    entry = f"""
extern "C" __global__ void run(const double* a, const double* b, double* found) {{ {call} }}
"""
    result = compiler.submit(CompileRequest(body + entry, ("run",), "sm_90")).result()
    assert result.ok, result.error
    buffers = [("c_double", one.tolist()) for one in arrays]
    out = ("c_double", [0.0] * results)
    done = launch(result.cubin, *buffers, out, grid=(2, 1, 1), block=(64, 1, 1))
    assert done.code == LaunchEnd.DONE, done.message
    return done.buffers[-1]


def references() -> tuple[Any, Any]:
    reference = np.random.default_rng(4).standard_normal(300)
    nearby = reference * (1.0 + 2.0**-20)
    reference[:9] = [0.0, np.nan, np.inf, -np.inf, 1.0, 1.0, np.inf, 1e-320, 0.0]
    nearby[:9] = [0.0, 1.0, np.inf, 1.0, np.nan, np.inf, -np.inf, 0.0, 1e-300]
    return reference, nearby


@pytest.mark.parametrize("unit", [SINGLE, DOUBLE])
def test_scales_are_numpys(compiler: HostCompiler, unit: float) -> None:
    reference, nearby = references()
    with np.errstate(all="ignore"):
        expected = scale_of(np, reference, nearby.copy(), unit)
    numbers = f"300, {unit!r}, {2.0**-126 if unit == SINGLE else 2.0**-1022!r}"
    call = f"find_scales(a, b, {numbers}, found);"
    found = of_references(compiler, "find_scales", call, [reference, nearby], 300)
    assert found == expected.tolist()


@pytest.mark.parametrize("limit", [1.0, 64.0, 2.0**14])
def test_small_elements_are_counted_as_numpy_does(compiler: HostCompiler, limit: float) -> None:
    reference, _ = references()
    scale = np.random.default_rng(5).uniform(2.0**-16, 2.0**-4, 300)
    counted = "reinterpret_cast<unsigned long long*>(found)"
    call = f"count_small(a, b, 300, {2.0**-126!r}, {limit!r}, {counted});"
    found = of_references(compiler, "count_small", call, [reference, scale], 2)
    counts = np.array(found).view(np.uint64).tolist()
    assert counts == list(accuracy._count_small(np, reference, scale, 2.0**-126, limit))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("size", [1, 63, 64, 777])
@pytest.mark.parametrize("copied", [False, True])
def test_it_finds_what_numpy_finds(
    compiler: HostCompiler, dtype: str, size: int, copied: bool
) -> None:
    rng = np.random.default_rng(size)
    reference = rng.standard_normal(size)
    scale = np.abs(reference) * 2.0**-24 + 2.0**-126
    off = reference * (1.0 + rng.standard_normal(size) * 2.0**-9)
    off[: size // 3] = reference[: size // 3]
    reference[size // 2], off[size // 2] = 0.0, 2.0**-20
    raw = encode(np, off, dtype)
    expected = measure(np, raw, reference, scale, dtype, copied=copied)
    found = counted(compiler, raw, reference, scale, dtype, copied)
    assert found == pytest.approx([expected.block, expected.element], rel=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("expected", "given"),
    [
        (np.nan, np.nan), (np.nan, 1.0), (1.0, np.nan), (np.inf, np.inf), (np.inf, 1.0),
        (1.0, -np.inf), (np.inf, -np.inf), (1e300, np.inf), (0.0, -0.0),
    ],
)  # fmt: skip
def test_numbers_that_are_none_count_alike(
    compiler: HostCompiler, dtype: str, expected: float, given: float
) -> None:
    reference, scale = np.linspace(1.0, 2.0, 70), np.full(70, 2.0**-20)
    out = reference.copy()
    reference[66], out[66] = expected, given
    with np.errstate(all="ignore"):
        raw = encode(np, out, dtype)
        right = measure(np, raw, reference, scale, dtype)
    found = counted(compiler, raw, reference, scale, dtype, copied=False)
    assert found == pytest.approx([right.block, right.element], rel=1e-12)
