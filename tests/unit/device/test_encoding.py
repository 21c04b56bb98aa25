"""How numbers are stored: rounded as the formats say, on the CPU and by what a GPU runs for it."""

from __future__ import annotations

import ctypes
import shutil

import kept
import ml_dtypes
import numpy as np
import pytest

from tuner.device.encoding import (
    CPU_PIECE,
    FORMATS,
    GPU_ENCODERS,
    LARGEST,
    SMALLEST_NORMAL,
    code_distance,
    decode,
    encode,
    storage_dtype,
)
from tuner.model.kernel import FLOAT_DTYPES

# What CUDA has and C++ has not, and an array's worth of calls.
AROUND = """
#include <cmath>
#define __device__
using std::isnan, std::signbit, std::ilogb, std::ldexp, std::rint, std::fabs, std::fmin;
ENCODERS
template <class T> void fill(const T* values, unsigned char* codes, long count, int exponent_bits,
                             int mantissa_bits, double largest) {
  for (long i = 0; i < count; ++i)
    codes[i] = fp8_of(values[i], exponent_bits, mantissa_bits, largest);
}
extern "C" void fp8_of_float32(const float* values, unsigned char* codes, long count, int e, int m,
                               double largest) { fill(values, codes, count, e, m, largest); }
extern "C" void fp8_of_float64(const double* values, unsigned char* codes, long count, int e, int m,
                               double largest) { fill(values, codes, count, e, m, largest); }
extern "C" void bfloat16_of_float32(const unsigned* bits, unsigned short* codes, long count) {
  for (long i = 0; i < count; ++i) codes[i] = bfloat16_of(bits[i]);
}
"""

THEIRS = {
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}
NAMES = list(THEIRS)


def all_codes(dtype: str) -> np.ndarray:
    storage = storage_dtype(dtype)
    return np.arange(2 ** (8 * storage.itemsize)).astype(storage)


def our_values(codes: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return decode(np, codes, dtype)


@pytest.mark.parametrize("dtype", NAMES)
def test_every_code_has_the_value_that_others_give_it_and_comes_back(dtype: str) -> None:
    codes = all_codes(dtype)
    values = our_values(codes, dtype)
    with np.errstate(invalid="ignore"):
        theirs = codes.view(THEIRS[dtype]).astype(np.float64)
    np.testing.assert_array_equal(values, theirs)
    numbers = ~np.isnan(theirs)
    np.testing.assert_array_equal(np.signbit(values[numbers]), np.signbit(theirs[numbers]))
    kept = np.isfinite(values) | (np.isinf(values) & (dtype == "bfloat16"))
    np.testing.assert_array_equal(encode(np, values[kept], dtype), codes[kept])
    special = np.array([np.nan, -np.nan, 1.0, 0.0, -0.0])
    back = our_values(encode(np, special, dtype), dtype)
    assert np.isnan(back).tolist() == [True, True, False, False, False]
    assert np.signbit(back[3:]).tolist() == [False, True]


@pytest.mark.parametrize("dtype", NAMES)
def test_random_numbers_round_as_others_round_them(dtype: str) -> None:
    bits = np.random.default_rng(1).integers(0, 2**32, 400_000, dtype=np.uint32)
    values = bits.view(np.float32)
    inside = values[np.abs(values) <= LARGEST[dtype]]  # false for NaN too
    spread = np.random.default_rng(2).standard_normal(100_000).astype(np.float32) * 100
    for numbers in (inside, spread[np.abs(spread) <= LARGEST[dtype]]):
        theirs = numbers.astype(THEIRS[dtype]).view(storage_dtype(dtype))
        np.testing.assert_array_equal(encode(np, numbers, dtype), theirs)


@pytest.mark.parametrize("dtype", NAMES)
def test_halfway_numbers_round_to_the_even_code(dtype: str) -> None:
    positive = all_codes(dtype)[: 2 ** (8 * storage_dtype(dtype).itemsize - 1)]
    values = our_values(positive, dtype)
    codes = positive[:-1][np.isfinite(values[:-1]) & np.isfinite(values[1:])].astype(np.int64)
    middles = (values[codes] + values[codes + 1]) / 2
    even = np.where(codes % 2 == 0, codes, codes + 1)
    sign = 1 << (8 * storage_dtype(dtype).itemsize - 1)
    np.testing.assert_array_equal(encode(np, middles, dtype), even)
    np.testing.assert_array_equal(encode(np, -middles, dtype), even | sign)


@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e5m2"])
@pytest.mark.parametrize("value", [1e4 * 57344.0, np.inf, 1e300])
def test_fp8_saturates(dtype: str, value: float) -> None:
    found = decode(np, encode(np, np.array([value, -value]), dtype), dtype)
    assert found.tolist() == [LARGEST[dtype], -LARGEST[dtype]]


def test_bfloat16_overflows_to_infinity() -> None:
    stored = encode(np, np.array([3.4e38, -3.4e38, np.inf], np.float32), "bfloat16")
    assert decode(np, stored, "bfloat16").tolist() == [np.inf, -np.inf, np.inf]


@pytest.mark.parametrize("dtype", NAMES)
def test_the_ends_of_the_range_are_those_of_others(dtype: str) -> None:
    theirs = ml_dtypes.finfo(THEIRS[dtype])
    assert LARGEST[dtype] == float(theirs.max)
    assert SMALLEST_NORMAL[dtype] == float(theirs.smallest_normal)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_ends_of_numpys_own_types_are_numpys(dtype: str) -> None:
    assert LARGEST[dtype] == float(np.finfo(dtype).max)
    assert SMALLEST_NORMAL[dtype] == float(np.finfo(dtype).smallest_normal)
    stored = encode(np, np.array([LARGEST[dtype], SMALLEST_NORMAL[dtype]]), dtype)
    assert stored.dtype == dtype
    assert decode(np, stored, dtype).tolist() == [LARGEST[dtype], SMALLEST_NORMAL[dtype]]


def test_integers_round_to_even_and_keep_their_type() -> None:
    stored = encode(np, np.array([0.5, 1.5, 2.5, -0.5, -1.5, 126.7]), "int8")
    assert stored.dtype == np.int8
    assert stored.tolist() == [0, 2, 2, 0, -2, 127]
    assert decode(np, stored, "int8").tolist() == [0, 2, 2, 0, -2, 127]
    assert encode(np, np.array([0.0, 1.0]), "bool").tolist() == [False, True]


@pytest.mark.parametrize("dtype", [*NAMES, "float16", "float32"])
def test_neighbours_are_one_code_apart_across_zero_too(dtype: str) -> None:
    a, b = (encode(np, np.array(ends), dtype) for ends in ([1.0, 0.0, 1.0], [1.0, -0.0, -1.0]))
    one = int(a.view(f"u{a.itemsize}")[0])
    assert code_distance(np, a, b, dtype).tolist() == [0, 0, 2 * one]
    small = encode(np, np.array([SMALLEST_NORMAL[dtype]]), dtype)
    following = (small.view(f"u{small.itemsize}") + 1).view(small.dtype)
    assert code_distance(np, small, following, dtype).tolist() == [1]


def test_integers_are_as_far_apart_as_they_differ() -> None:
    a, b = np.array([-128, 5], np.int8), np.array([127, 5], np.int8)
    assert code_distance(np, a, b, "int8").tolist() == [255, 0]


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("needs g++")
    folder = tmp_path_factory.mktemp("encoders")
    source, library = folder / "encoders.cpp", folder / "encoders.so"
    source.write_text(AROUND.replace("ENCODERS", GPU_ENCODERS))
    flags = ["-std=c++17", "-O2", "-shared", "-fPIC", "-Wall", "-Werror"]
    kept.build([compiler, *flags, source, "-o", library], folder)
    return ctypes.CDLL(str(library))


def hard_numbers(dtype: str, given: str) -> np.ndarray:
    """Give every code's number, what lies between two and right beside, and what is no number."""
    codes = all_codes(dtype)
    numbers = our_values(codes, dtype)
    numbers = np.unique(numbers[np.isfinite(numbers)])
    middles = (numbers[:-1] + numbers[1:]) / 2
    rng = np.random.default_rng(4)
    spread = rng.standard_normal(100_000) * LARGEST[dtype] ** rng.uniform(-1, 1, 100_000)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-45, LARGEST[dtype] * 1.1]
    with np.errstate(over="ignore"):
        values = np.concatenate([numbers, middles, spread, special]).astype(given)
        around = [np.nextafter(values, np.array(end, given)) for end in (-np.inf, np.inf)]
    return np.concatenate([values, *around])


def address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@pytest.mark.parametrize("given", ["float32", "float64"])
@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e5m2"])
def test_what_a_gpu_runs_gives_the_same_fp8(encoders: ctypes.CDLL, dtype: str, given: str) -> None:
    values = hard_numbers(dtype, given)
    codes = np.empty(values.size, np.uint8)
    function = getattr(encoders, f"fp8_of_{given}")
    arrays = address(values), address(codes), ctypes.c_long(values.size)
    function(*arrays, *FORMATS[dtype], ctypes.c_double(LARGEST[dtype]))
    np.testing.assert_array_equal(codes, encode(np, values, dtype))


def test_what_a_gpu_runs_gives_the_same_bfloat16(encoders: ctypes.CDLL) -> None:
    values = hard_numbers("bfloat16", "float32")
    codes = np.empty(values.size, np.uint16)
    arrays = address(values), address(codes), ctypes.c_long(values.size)
    encoders.bfloat16_of_float32(*arrays)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(codes, encode(np, values, "bfloat16"))


@pytest.mark.parametrize("dtype", sorted(FLOAT_DTYPES))
def test_pieces_are_converted_as_the_whole(dtype: str) -> None:
    values = np.random.default_rng(5).standard_normal((3, CPU_PIECE - 1))
    rows = np.stack([encode(np, row, dtype) for row in values])
    np.testing.assert_array_equal(encode(np, values, dtype), rows)
    np.testing.assert_array_equal(
        decode(np, rows, dtype), np.stack([decode(np, row, dtype) for row in rows])
    )
