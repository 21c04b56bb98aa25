"""A digest of outputs, bit for bit: equal ones put configs into one class."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np

from tuner.device.encoding import Array

# Ten million configs would have to be tried before two digests are likely to be equal by chance.
DIGEST_DIGITS = 16
CHUNK_WORDS = 1 << 20
_BLOCKS, _THREADS = 1056, 256
# Each word is mixed with its place, and all are added: in any order, so that a GPU can. The mixing
# is that of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators").
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_SOURCE = f"""
extern "C" __global__ void add_mixed(const WORD* words, long long count, unsigned long long* sum) {{
  unsigned long long found = 0;
  const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < count;
       i += stride) {{
    unsigned long long word = words[i] + (i + 1) * {_STEP:#x}ull;
    word = (word ^ word >> 30) * {_FIRST:#x}ull;
    word = (word ^ word >> 27) * {_SECOND:#x}ull;
    found += word ^ word >> 31;
  }}
  atomicAdd(sum, found);
}}
"""


def digest(xp: Any, arrays: Iterable[Array]) -> str:
    """Digest the bytes of arrays in NumPy or CuPy, which give the same; "" for no arrays.

    -0 is another number than 0 here, and so are NaN with other bits. It is no protection against
    someone who looks for two outputs with one digest.
    """
    sums = []
    for array in arrays:
        raw = array.reshape(-1)
        # As wide as they come.
        words = raw.view("u8" if raw.nbytes % 8 == 0 else "u1")
        sums.append(_sum(words) if xp is np else _sum_on_gpu(words))
    return join_digests(sums) if sums else ""


def digest_rows(xp: Any, arrays: Iterable[Array]) -> list[str]:
    """Digest the rows of arrays that have them in their first dimension, as many each."""
    sums = []
    for array in arrays:
        count, raw = len(array), xp.ascontiguousarray(array).reshape(-1)
        words = raw.view("u8" if raw.nbytes // count % 8 == 0 else "u1").reshape(count, -1)
        sums.append(_mix(xp, words, 0).sum(axis=1, dtype=xp.uint64).tolist())
    return [join_digests(of) for of in zip(*sums, strict=True)]


def join_digests(digests: Iterable[object]) -> str:
    """Make one digest of several, in their order."""
    return hashlib.sha256(repr([*digests]).encode()).hexdigest()[:DIGEST_DIGITS]


def _sum(words: Array) -> int:
    found = 0
    for start in range(0, words.size, CHUNK_WORDS):
        mixed = _mix(np, words[start : start + CHUNK_WORDS], start)
        found += int(mixed.sum(dtype=np.uint64))
    return found % (1 << 64)


def _mix(xp: Any, words: Array, start: int) -> Array:
    places = xp.arange(start + 1, start + 1 + words.shape[-1], dtype=xp.uint64)
    mixed = words.astype(xp.uint64) + places * np.uint64(_STEP)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(_FIRST)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(_SECOND)
    return mixed ^ mixed >> np.uint64(31)


def _sum_on_gpu(words: Array) -> int:
    import cupy

    found = cupy.zeros(1, cupy.uint64)
    kernel = _adder("unsigned char" if words.itemsize == 1 else "unsigned long long")
    kernel((_BLOCKS,), (_THREADS,), (words, np.int64(words.size), found))
    return int(found.get()[0])


@cache
def _adder(word: str) -> Any:
    import cupy

    return cupy.RawKernel(f"#define WORD {word}\n{_SOURCE}", "add_mixed")
