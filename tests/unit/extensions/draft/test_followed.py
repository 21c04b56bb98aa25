"""Numbers of a launch that follow the parameter they come from, or the parameter is left out."""

from __future__ import annotations

import pytest

from tests.unit.extensions.draft.test_inference import snippet

HEAD = "__global__ void k(float* y, const float* x, int n, int d) {\n"
# kernels with launches, and what lines of the drafts say, and what none says
FOLLOWED = {
    "rows of the block that the launch writes as a number": (
        "template <int ROWS> __global__ void k(float* y, const float* x, int n, int d) {\n"
        "  int row = blockIdx.x * ROWS + threadIdx.y; float s = 0; if (row >= n) return;\n"
        "  for (int c = threadIdx.x; c < d; c += 32) s += x[row * d + c];\n"
        "  if (threadIdx.x == 0) y[row] = s; }\n"
        "void f(float* p, int n, int d) { k<4><<<(n + 3) / 4, dim3(32, 4)>>>(p, p, n, d); }\n",
        ["block: [32, rows]", 'grid: ["ceil_div(n, rows)"]'],
        [],
    ),
    "members of a class, several in one declaration": (
        "struct S { static constexpr int BM = 32, TM = 4; };\n"
        "template <class S> __global__ void k(float* y, const float* x, int n, int d) {\n"
        "  int r = blockIdx.x * S::BM + threadIdx.x % (S::BM / S::TM) * S::TM;\n"
        "  for (int i = 0; i < S::TM; ++i) if (r + i < n) y[r + i] = x[r + i]; }\n"
        "void f(float* p, int n, int d) {\n"
        "  k<S><<<(n + S::BM - 1) / S::BM, S::BM / S::TM>>>(p, p, n, d); }\n",
        ["bm % tm == 0", 'grid: ["ceil_div(n, bm)"]', "block: [bm // tm]"],
        [],
    ),
    "a block that is all that counts the threads of the grid": (
        HEAD + "  int t = blockIdx.x * blockDim.x + threadIdx.x; float s = 0;\n"
        "  for (int i = 0; i < n; ++i) s += x[i] * t; atomicAdd(y, s); }\n"
        "void f(float* p, int n, int d, int blocks) { k<<<blocks, 256>>>(p, p, n, d); }\n",
        ["# block_size = 256 is left out: the grid of the launch may come from it"],
        ["  block_size: ["],
    ),
    "what each block leaves": (
        "template <int BLOCK, int EACH_ITEMS>\n" + HEAD
        + "  int i = (blockIdx.x * BLOCK + threadIdx.x) * EACH_ITEMS; float s = 0;\n"
        "  for (int k = 0; k < EACH_ITEMS; ++k) if (i + k < n) s += x[i + k];\n"
        "  if (s > 0) y[blockIdx.x] = s; }\n"
        "void f(float* p, int n, int d) {\n"
        "  k<128, 4><<<(n + 128 * 4 - 1) / (128 * 4), 128>>>(p, p, n, d); }\n",
        ["shape: [ceil_div(n, 128 * 4)]", '- "block * each_items == 512"'],
        [],
    ),
    "what each block leaves of a number that only a caller knows": (
        "#define TILE 4\n__global__ void k(float* y, const float* x, int n, int per) {\n"
        "  int i = (blockIdx.x * per) * TILE + threadIdx.x; float s = 0;\n"
        "  for (int k = i; k < n && k < i + per * TILE; ++k) s += x[k];\n"
        "  if (threadIdx.x == 0) y[blockIdx.x] = s; }\n"
        "void f(float* p, int n, int per) {\n"
        "  k<<<(n + per * TILE - 1) / (per * TILE), 256>>>(p, p, n, per); }\n",
        [],
        [],
    ),
    "what each block leaves of a loop over the grid": (
        "#define WARPS 4\n" + HEAD
        + "  float s = 0; for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n;\n"
        "    i += gridDim.x * blockDim.x) s += x[i];\n"
        "  s = __reduce_add_sync(~0u, s);\n"
        "  if (threadIdx.x % 32 == 0) atomicAdd(y + blockIdx.x, s); }\n"
        "void f(float* p, int n, int d) { k<<<240, WARPS * 32>>>(p, p, n, d); }\n",
        ["# WARPS = 4 is left out: what a block takes of the whole shows in what it leaves"],
        ["  warps: [", "  vec: ["],
    ),
    "a size that host code computes of another": (
        HEAD + "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  if (i / 32 < d) y[blockIdx.y * d + i / 32] = x[blockIdx.y * n + i]; }\n"
        "void f(float* p, int rows, int n) { int words = (n + 31) / 32;\n"
        "  k<<<dim3((n + 255) / 256, rows), 256>>>(p, p, n, words); }\n",
        ["axes: [n, rows]", "value: ceil_div(n, 32)}  # likely: words = (n + 31) / 32, where"],
        [],
    ),
    "lanes that are no warp": (
        "template <int LANES> __global__ void k(float* y, const float* x, int n, int d) {\n"
        "  int row = (blockIdx.x * blockDim.x + threadIdx.x) / LANES; float s = 0;\n"
        "  if (row >= n) return;\n"
        "  for (int c = threadIdx.x % LANES; c < d; c += LANES) s += x[row * d + c];\n"
        "  for (int o = LANES / 2; o; o /= 2) s += __shfl_down_sync(~0u, s, o, LANES);\n"
        "  if (threadIdx.x % LANES == 0) y[row] = s; }\n"
        "void f(float* p, int n, int d) { constexpr int lanes = 8;\n"
        "  k<lanes><<<(n * lanes + 127) / 128, 128>>>(p, p, n, d); }\n",
        ["lanes: [2, 4, 8, 16, 32]", "(block_size) % (lanes) == 0",
         'grid: ["ceil_div(n * lanes, block_size)"]'],
        [],
    ),
    "a width by which threads step, with a class for some": (
        "template <int N> struct Pack { static_assert(N % 2 == 0, \"pairs\"); float e[N]; };\n"
        "constexpr int kWidth = 4;\n" + HEAD
        + "  for (int c = threadIdx.x * kWidth; c < d; c += blockDim.x * kWidth) {\n"
        "    Pack<kWidth> p; p.e[0] = x[c];\n"
        "    for (int k = 0; k < kWidth; ++k) y[c + k] = p.e[k] * x[c + k]; } }\n"
        "void f(float* p, int n, int d) { k<<<1, 128>>>(p, p, n, d); }\n",
        ["width: [2, 4, 8, 16]", '- "d % width == 0"', "shape: [d], role: output"],
        [],
    ),
    "a border that a macro's index leaves": (
        "#define W 64\n#define H 48\n#define HALO 1\n#define AT(r, c) ((r) * W + (c))\n"
        "__global__ void k(float* y, const float* x) {\n"
        "  const int c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 16 + threadIdx.y;\n"
        "  if (c < HALO || c >= W - HALO || r < HALO || r >= H - HALO) return;\n"
        "  y[AT(r, c)] = x[AT(r, c + 1)] + x[AT(r - 1, c)]; }\n"
        "int main() { float *x, *y; cudaMalloc(&x, W * H * 4); cudaMalloc(&y, W * H * 4);\n"
        "  k<<<dim3(W / 16, H / 16), dim3(16, 16)>>>(y, x); }\n",
        ["axes: [W, H]  #", "shape: [H, W], role: inout"],
        [],
    ),
    "what is clamped to the inside": (
        HEAD + "  int r = blockIdx.x, c = threadIdx.x; if (c >= d) return;\n"
        "  int q = min(max(r - 1, 0), n - 1), p = max(min(c + 1, d - 1), 0);\n"
        "  y[r * d + c] = x[q * d + p]; }\n"
        "void f(float* p, int n, int d) { k<<<n, 128>>>(p, p, n, d); }\n",
        ["{name: x, dtype: float32, shape: [n, d]"],
        [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLLOWED)
def test_a_draft_follows(name: str) -> None:
    text, said, unsaid = FOLLOWED[name]
    drafted = snippet(text).space_yaml
    assert [piece for piece in said if piece not in drafted] == []
    assert [piece for piece in unsaid if piece in drafted] == []
