"""What whole numbers hold that point nowhere: their bits, few, or what can be added."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.extensions.draft.drafting import draft
from tuner.source import parse_source

BITS = "fill: uniform(0, 4294967295)"
FEW = "fill: uniform(0, 8)"


def drafted(body: str, dtype: str = "unsigned int") -> str:
    text = (
        f"__global__ void k(int* y, const {dtype}* keys, int n, int shift) {{\n"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n  if (i >= n) return;\n"
        f"  {body}\n}}\n"
        f"void f(int* y, {dtype}* keys, int n, int s)\n"
        "{ k<<<(n + 255) / 256, 256>>>(y, keys, n, s); }\n"
    )
    space = draft(parse_source(text, Path("k.cu"))).space_yaml
    (line,) = (line for line in space.splitlines() if "name: keys" in line)
    return line


@pytest.mark.parametrize(
    ("body", "fill", "why"),
    [
        ("atomicAdd(&y[(keys[i] >> shift) & 255], 1);", BITS, "shifted in line 4"),
        ("y[i] = keys[i] & 0xF;", BITS, "masked in line 4"),
        ("int key = __ldg(keys + i);\n  atomicAdd(y + key % 64, 1);", BITS, "binned in line 5"),
        ("unsigned key = keys[i];\n  y[key / 1024] = 1;", BITS, "binned in line 5"),
        ("const unsigned* mine = keys + i;\n  y[i] = *mine >> 3;", BITS, "shifted in line 5"),
        ("const unsigned key = i < n ? keys[i] : 0;\n  y[i] = (key ^ key >> 16);", BITS, "line 5"),
        ("for (int j = 0; j < keys[i]; ++j) y[i] = j;", FEW, "a guess: counted to in line 4"),
        ("y[i] = keys[i] * 3;", "fill: uniform(0, 1000)", "multiplied in line 4"),
    ],
)  # fmt: skip
def test_what_masks_shifts_or_bins_whole_numbers_says_their_range(
    body: str, fill: str, why: str
) -> None:
    line = drafted(body)
    assert fill in line, line
    assert why in line, line


def test_numbers_that_are_only_copied_or_compared_have_their_whole_range_by_default() -> None:
    assert "fill" not in drafted("y[i] = keys[i];")
    assert "fill" not in drafted("y[i] = keys[i] > 5;")
    assert "fill" not in drafted("y[i] = keys[i] & 3;", "unsigned char")


def test_signed_numbers_have_both_signs() -> None:
    assert "fill: uniform(-2147483647, 2147483647)" in drafted("y[i] = keys[i] >> 3;", "int")
    assert "fill: uniform(-1000, 1000)" in drafted("y[i] = keys[i] + 3;", "int")
