"""Tiles that kernel and launch write as bare numbers: parameters where all of it follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.extensions.draft.drafting import Draft, draft
from tuner.source import parse_source
from tuner.space.yaml import parse

TURN = """
__global__ void turn(float* y, const float* x, int w, int h) {
  __shared__ float t[32][33];
  int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
  for (int k = 0; k < 32; k += 8) t[threadIdx.y + k][threadIdx.x] = x[(r + k) * w + c];
  __syncthreads();
  for (int k = 0; k < 32; k += 8) y[(r + k) * w + c] = t[threadIdx.x][threadIdx.y + k];
}
void f(float* y, const float* x, int w, int h) {
  turn<<<dim3(w / 32, (h + 31) / 32), dim3(32, 8)>>>(y, x, w, h);
}
"""
SUMS = """
__global__ void sums(float* y, const float* x, int n) {
  __shared__ float s[256];
  const int i = blockIdx.x * 256 + threadIdx.x;
  s[threadIdx.x] = i < n ? x[i] : 0;
  __syncthreads();
  for (int k = 128; k > 0; k >>= 1) {
    if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k];
    __syncthreads();
  }
  if (threadIdx.x == 255) atomicAdd(y, s[0]);
}
void f(float* y, const float* x, int n) { sums<<<(n + 255) / 256, 256>>>(y, x, n); }
"""
ROWS = """
__global__ void rows(float* y, const float* x, int n, int d) {
  const int row = blockIdx.x * 4 + threadIdx.x / 32;
  float s = 0;
  for (int i = threadIdx.x % 32; i < d; i += 32) s += x[row * d + i];
  for (int o = 16; o; o /= 2) s += __shfl_xor_sync(~0u, s, o);
  y[row] = s;
}
void f(float* y, const float* x, int n, int d) { rows<<<n / 4, 128>>>(y, x, n, d); }
"""


def drafted(text: str) -> Draft:
    return draft(parse_source(text, Path("k.cu")))


@pytest.mark.parametrize(
    ("text", "grid", "block"),
    [
        (TURN, ["w // tile", "ceil_div(h, tile)"], ["tile", "rows"]),
        (SUMS, ["ceil_div(n, block_size)"], ["block_size"]),
        (ROWS, ["n // warps"], ["warps * 32"]),
    ],
)
def test_kernel_and_launch_follow_a_tile_that_is_a_bare_number(
    text: str, grid: list[str], block: list[str]
) -> None:
    made = drafted(text)
    found = parse(made.space_yaml, made.space_path).data["launch"][0]
    assert (found["grid"], found["block"]) == (grid, block)


def test_numbers_that_come_from_it_follow_too() -> None:
    made = drafted(SUMS).template
    assert "k = (@{ block_size }@ / 2); k > 0" in made
    assert "== (@{ block_size }@ - 1)" in made
    assert "t[@{ tile }@][@{ tile }@ + 1]" in drafted(TURN).template


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        # of several elements a thread, a shared array of another size, a mask, a size of its own
        (SUMS, "blockIdx.x * 256", "blockIdx.x * 512"),
        (SUMS, "s[256]", "s[1024]"),
        (SUMS, "x[i] : 0", "fmaxf(x[i], 256) : 0"),
        (ROWS, "x[row * d + i]", "x[row * d + 4 - i]"),
    ],
)
def test_a_number_that_may_mean_something_else_is_no_parameter(
    text: str, old: str, new: str
) -> None:
    made = drafted(text.replace(old, new))
    assert not {"block_size", "tile", "warps"} & {*made.parameters}
