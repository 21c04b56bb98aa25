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
from tuner.device.verify.accuracy import SHARE_OF_BLOCK, measure
from tuner.device.verify.on_gpu import source_for
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
