"""Ways to write a launch, a struct or a build that public kernels have, each in a small source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.extensions.draft.test_inference import snippet
from tuner.compiler.cache import Cache
from tuner.compiler.pool import NvrtcPool
from tuner.extensions.draft.drafting import Asked, draft_source

HEAD = "__global__ void k(float* y, const float* x, int n) {\n"
EACH = "  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = x[i]; }\n"
GUARDED = (
    "template <bool HAS> __global__ void k(float* y, const float* x, const float* b, int n) {\n"
    "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "  if (i < n) y[i] = HAS ? x[i] + b[i] : x[i]; }\n"
    "void g(float* y, float* x, float* b, int n) { %s\n"
    "  kernel<<<(n + 255) / 256, 256>>>(y, x, b, n); }\n"
    "void f(float* y, float* x, int n) { g(y, x, nullptr, n); }\n"
)
POINTED = (
    "template <int V> __global__ void k(float* y, const float* x, int n) {\n"
    "  int i = (blockIdx.x * blockDim.x + threadIdx.x) * V;\n"
    "  for (int e = 0; e < V; e++) if (i + e < n) y[i + e] = x[i + e]; }\n"
    "void f(float* y, float* x, int n) { %s\n"
    "  kernel<<<(n + 256 * per - 1) / (256 * per), 256>>>(y, x, n); }\n"
    "int main() { int n = %s; float *x, *y; f(y, x, n); }\n"
)
SET_IN_IF = "int per = 1; auto kernel = &k<1>; if (n % 4 == 0) { kernel = &k<4>; per = 4; }"
HELPED = (
    "%s\n__global__ void k(float* y, const float* x, int w, int h) {\n"
    "  int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;\n"
    "  if (c < w && r < h) y[r * w + c] = x[r * w + c]; }\n"
    "void f(float* p, int w, int h) { int tile = 8, tiles = 4;\n"
    "  k<<<grid_of(w, h), dim3(16, 16)>>>(p, p, w, h); }\n"
)
BLANK = "grid: [FILL_IN]  # FILL IN: blocks in x, y, z; the source says grid_of(w, h)"
# sources, what lines of the drafts say, and what none says
KINDS = {
    "a null pointer that a conditional asks for": (
        GUARDED % "auto kernel = b != nullptr ? k<true> : k<false>;",
        ["kernel: k<false>", "launch:  # sure", "{name: b, dtype: int64, value: 0}"],
        [],
    ),
    "a null pointer that an if asks for": (
        GUARDED % "auto kernel = &k<false>; if (b) kernel = &k<true>;",
        ["kernel: k<false>", "launch:  # sure"],
        ["k<true>"],
    ),
    "a grid that a function makes": (
        "constexpr int TX = 32, TY = 4;\n"
        "dim3 grid_of(int w, int h) {\n"
        "  int x = (w + TX - 1) / TX; return dim3(x, (h + TY - 1) / TY); }\n"
        "__global__ void k(float* y, const float* x, int w, int h) {\n"
        "  int c = blockIdx.x * TX + threadIdx.x, r = blockIdx.y * TY + threadIdx.y;\n"
        "  if (c < w && r < h) y[r * w + c] = x[r * w + c]; }\n"
        "void f(float* p, int w, int h) { k<<<grid_of(w, h), dim3(TX, TY)>>>(p, p, w, h); }\n",
        ['grid: ["ceil_div(w, tx)", "ceil_div(h, ty)"]'],
        ["FILL_IN]  # FILL IN: blocks"],
    ),
    "a grid that a function makes of a default, by a name that another has": (
        HELPED % "dim3 grid_of(int n) { return dim3((n + 1023) / 1024, 1); }\n"
        "dim3 grid_of(int w, int h, int tile = 16) {\n"
        "  return dim3((w + tile - 1) / tile, (h + tile - 1) / tile); }",
        ['grid: ["ceil_div(w, 16)", "ceil_div(h, 16)"]'],
        [],
    ),
    "a grid that goes with the kernel that a pointer keeps": (
        POINTED % (SET_IN_IF, 1000003),
        ["kernel: k<1>\n      grid: [\"ceil_div(n, 256 * 1)\"]"],
        [" if "],
    ),
    "a grid that goes with the kernel that a pointer is set to": (
        POINTED % (SET_IN_IF, 1000000),
        ["kernel: k<4>\n      grid: [\"ceil_div(n, 256 * 4)\"]"],
        [" if "],
    ),
    "a grid that asks as the pointer does": (
        POINTED % ("auto kernel = n % 4 ? k<1> : k<4>; int per = n % 4 ? 1 : 4;", 1000000),
        ["kernel: k<4>\n      grid: [\"ceil_div(n, 256 * 4)\"]"],
        [" if "],
    ),
    "a grid that asks otherwise than the pointer does": (
        POINTED % ("auto kernel = n % 4 ? k<1> : k<4>; int per = n % 8 ? 1 : 4;", 1000000),
        ["kernel: k<4>"],
        [" if "],
    ),
    "a grid that two functions make": (
        HELPED % "dim3 grid_of(int w, int h) { return dim3((w + 15) / 16, (h + 15) / 16); }\n"
        "dim3 grid_of(long w, long h) { return dim3((w + 31) / 32, (h + 31) / 32); }",
        [BLANK],
        [],
    ),
    "a grid that a function makes in two ways": (
        HELPED % "dim3 grid_of(int w, int h) {\n"
        "  if (h > 64) { dim3 g; g.x = (w + 127) / 128; g.y = h; return g; }\n"
        "  return dim3((w + 1023) / 1024, 1); }",
        [BLANK],
        [],
    ),
    "a grid of what a function sets twice": (
        HELPED % "dim3 grid_of(int w, int h) { int tiles; if (w > 9) tiles = (w + 31) / 32;\n"
        "  else tiles = (w + 15) / 16; return dim3(tiles, (h + 15) / 16); }",
        [BLANK],
        [],
    ),
    "a grid of a parameter that a function changes": (
        HELPED % "dim3 grid_of(int w, int h) { w *= 2; return dim3((w + 15) / 16, h); }",
        [BLANK],
        [],
    ),
    "a block and a grid that a function chooses by reference": (
        HEAD + EACH + "void choose(int n, int& blocks, int& threads) {\n"
        "  threads = n > 4096 ? 256 : 64; blocks = (n + threads - 1) / threads; }\n"
        "void f(float* p, int n) { int blocks = 0, threads = 128; choose(n, blocks, threads);\n"
        "  k<<<blocks, threads>>>(p, p, n); }\n",
        ["# guessed: the source says threads"],
        ["block: [128]", "grid: [0]"],
    ),
    "a function of a class that is an argument": (
        "template <int T, int V> struct P { static constexpr int threads = T;\n"
        "  static constexpr int vec = V; static constexpr int tile() { return T * V; } };\n"
        "template <class Q> __global__ void k(float* y, const float* x, int n) {\n"
        "  int at = blockIdx.x * Q::tile() + threadIdx.x * Q::vec;\n"
        "  for (int e = 0; e < Q::vec; ++e) if (at + e < n) y[at + e] = x[at + e]; }\n"
        "void f(float* p, int n) { using A = P<256, 4>;\n"
        "  k<A><<<(n + A::tile() - 1) / A::tile(), A::threads>>>(p, p, n); }\n",
        ['grid: ["ceil_div(n, 256 * 4)"]', 'grid: ["ceil_div(n, threads * vec)"]',
         "block: [threads]"],
        [],
    ),
    "a letter for the threads of a block": (
        "template <int T> __global__ void k(float* y, const float* x, int n) {\n"
        "  int i = blockIdx.x * T + threadIdx.x; if (i < n) y[i] = x[i]; }\n"
        "#define CASE(T) case T: k<T><<<(n + T - 1) / T, T>>>(p, p, n); break;\n"
        "void f(float* p, int n, int threads) { switch (threads) { CASE(64) CASE(128) } }\n",
        ["  t: [", "block: [t]"],
        [],
    ),
    "a letter for the columns that a block has threads for": (
        "template <int D> __global__ void k(float* y, const float* x, int n) {\n"
        "  y[blockIdx.x * D + threadIdx.x] = x[blockIdx.x * D + threadIdx.x]; }\n"
        "void f(float* p, int n) { constexpr int D = 64; k<D><<<n, D>>>(p, p, n); }\n",
        ["# D = 64 (line 1) is left out"],
        ["  d: ["],
    ),
    "a letter for the row that a block has threads for": (
        "template <int D> __global__ void k(float* y, const float* x, int n) {\n"
        "  int i = blockIdx.y * n + blockIdx.x * D + threadIdx.x; __shared__ float s[D];\n"
        "  s[threadIdx.x] = x[i]; __syncthreads();\n"
        "  for (int h = D / 2; h; h /= 2) { __syncthreads();\n"
        "    if (threadIdx.x < h) s[threadIdx.x] += s[threadIdx.x + h]; }\n"
        "  __syncthreads(); y[i] = x[i] * s[0] / D; }\n"
        "void f(float* p, int m, int n) { k<128><<<dim3(n / 128, m), 128>>>(p, p, n); }\n",
        ["# D = 128 (line 1) is left out"],
        ["  d: ["],
    ),
    "a letter for what a thread takes at once": (
        "template <int N> __global__ void k(float* y, const float* x, int n) {\n"
        "  int i = (blockIdx.x * blockDim.x + threadIdx.x) * N; if (i + N > n) return;\n"
        "  for (int e = 0; e < N; ++e) y[i + e] = x[i + e]; }\n"
        "void f(float* p, int n) { constexpr int W = 4; k<W><<<n / W / 256, 256>>>(p, p, n); }\n",
        ["grid: [n // n_2 // block_size]", '- "n % (n_2 * block_size) == 0"'],
        [],
    ),
    "elements whose size is computed of constants": (
        "#define QK 32\ntypedef struct { float d; unsigned char q[QK / 2]; } cell;\n"
        "__global__ void k(float* y, const cell* x, int n) {\n"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = x[i].d * x[i].q[0]; }\n"
        "void f(float* y, cell* x, int n) { k<<<(n + 127) / 128, 128>>>(y, x, n); }\n",
        ["{name: x, dtype: uint8, shape: [n, 20], role: input}  # guessed: the bytes of cell"],
        [],
    ),
    "a row that so many threads cover": (
        "template <int ITEMS> __global__ void k(float* y, const float* x, int n) {\n"
        "  for (int e = 0; e < ITEMS; ++e) { int c = threadIdx.x + e * blockDim.x;\n"
        "    if (c < n) y[blockIdx.x * n + c] = x[blockIdx.x * n + c]; } }\n"
        "void f(float* p, int rows, int n) { const int threads = 256;\n"
        "  if (n <= threads) k<1><<<rows, threads>>>(p, p, n);\n"
        "  else if (n <= 4 * threads) k<4><<<rows, threads>>>(p, p, n); }\n",
        ['- "n <= block_size"'],
        ["not n <="],
    ),
    "a block that names its columns alone": (
        "#define BLOCK_X 64\n#define ROWS 2\n"
        "__global__ void k(float* y, const float* x, int w, int h) {\n"
        "  int c = blockIdx.x * BLOCK_X + threadIdx.x, r = blockIdx.y * ROWS + threadIdx.y;\n"
        "  for (int e = 0; e < ROWS; e++)\n"
        "    if (c < w && r + e < h) y[(r + e) * w + c] = x[(r + e) * w + c]; }\n",
        ["block: [FILL_IN]", "the source says nothing; follows block_x"],
        ["[32, 8]", "block: [block_x]", "says ,"],
    ),
    "a function by the name of a literal's end": (
        HEAD + "  int i = blockIdx.x * 128 + threadIdx.x; if (i < n) y[i] = x[i] * .5f + 1.f; }\n"
        "void f(float* p, int n) { k<<<(n + 127) / 128, 128>>>(p, p, n); }\n",
        ["sure: line 3"],
        [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_is_drafted(name: str) -> None:
    text, said, unsaid = KINDS[name]
    drafted = snippet(text).space_yaml
    assert [piece for piece in said if piece not in drafted] == []
    assert [piece for piece in unsaid if piece in drafted] == []


@pytest.fixture(scope="module")
def pool() -> Iterator[NvrtcPool]:
    with NvrtcPool(1, cache=Cache()) as compiler:
        yield compiler


def drafted(folder: Path, pool: NvrtcPool, text: str) -> tuple[str, str]:
    (folder / "k.cu").write_text(text)
    made = draft_source(folder / "k.cu", folder, Asked(run=False), compiler=lambda: pool)
    assert made.space is not None
    return made.space.read_text(), (folder / "kernels/k.cu").read_text()


def test_what_a_macro_writes_by_address_is_written(tmp_path: Path, pool: NvrtcPool) -> None:
    space, unit = drafted(
        tmp_path, pool,
        "#define FLOAT4(v) (reinterpret_cast<float4*>(&(v))[0])\n"
        "__global__ void k(float* y, float* x, int n) {\n"
        "  int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);\n"
        "  if (i < n) { float4 v = FLOAT4(x[i]); FLOAT4(y[i]) = v; } }\n"
        "void f(float* y, float* x, int n) { k<<<(n + 511) / 512, 128>>>(y, x, n); }\n",
    )  # fmt: skip
    assert "(reinterpret_cast<float4*>(&(y[i]))[0]) = v;" in unit
    assert "{name: y, dtype: float32, shape: [n], role: output}" in space
    assert "{name: x, dtype: float32, shape: [n], role: input}" in space


def test_what_a_macro_sets_or_adds_to_is_written(tmp_path: Path, pool: NvrtcPool) -> None:
    space, unit = drafted(
        tmp_path, pool,
        "#define SET(d, v) d = v\n#define ADD(d, v) atomicAdd(&(d), v)\n"
        "#define EACH(d, v) do { if ((v) != 0.f) (d)[0] += (v); } while (0)\n"
        "__global__ void k(float* y, float* s, float* t, const float* x, int n) {\n"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  if (i < n) { SET(y[i], x[i]); ADD(s[0], x[i]); EACH(t + i, x[i]); } }\n"
        "void f(float* y, float* s, float* t, float* x, int n) {\n"
        "  k<<<(n + 127) / 128, 128>>>(y, s, t, x, n); }\n",
    )  # fmt: skip
    assert "{ y[i] = x[i]; atomicAdd(&(s[0]), x[i]);" in unit
    assert "{name: y, dtype: float32, shape: [n], role: output}" in space
    for name in "st":
        assert re.search(rf"name: {name}, .*, role: inout", space)


def test_members_of_members_are_parameters(tmp_path: Path, pool: NvrtcPool) -> None:
    space, unit = drafted(
        tmp_path, pool,
        "struct Step { int row, batch; };\n"
        "struct Params { const float* x; float* y; Step from, to; int n; };\n"
        "__global__ void k(const Params p) {\n"
        "  for (int i = threadIdx.x; i < p.n; i += blockDim.x)\n"
        "    p.y[blockIdx.x * p.to.row + i] = p.x[blockIdx.x * p.from.row + i]; }\n"
        "void f(float* x, float* y, int rows, int n) {\n"
        "  Params p; p.x = x; p.y = y; p.from.row = n; p.to.row = n; p.n = n;\n"
        "  k<<<rows, 128>>>(p); }\n",
    )  # fmt: skip
    assert "int from_row" in unit
    assert "x[blockIdx.x * from_row + i]" in unit
    assert "{name: from_row, dtype: int32, value: n}" in space


def test_an_array_of_pointers_is_a_parameter_each(tmp_path: Path, pool: NvrtcPool) -> None:
    space, unit = drafted(
        tmp_path, pool,
        "struct Three { const float* at[3]; };\n"
        "__global__ void k(float* y, Three xs, int n) {\n"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  if (i < n) y[i] = xs.at[0][i] + xs.at[1][i] + xs.at[2][i]; }\n"
        "void f(float* y, float* a, float* b, float* c, int n) {\n"
        "  Three xs = {{a, b, c}}; k<<<(n + 127) / 128, 128>>>(y, xs, n); }\n",
    )  # fmt: skip
    assert "y[i] = at_0[i] + at_1[i] + at_2[i]" in unit
    for name in ("at_0", "at_1", "at_2"):
        assert f"{{name: {name}, dtype: float32, shape: [n], role: input}}" in space


def test_a_tuning_script_says_the_grid_and_what_its_parameters_keep_to(
    tmp_path: Path, pool: NvrtcPool
) -> None:
    (tmp_path / "tune.py").write_text(
        "from kernel_tuner import tune_kernel\n"
        'tune_params = {"block_size_x": [16, 32], "block_size_y": [1, 4], "tile_x": [1, 2]}\n'
        'tune_kernel("k", "k.cu", (w, h), args, tune_params,\n'
        '            grid_div_x=["block_size_x", "tile_x"],\n'
        '            restrictions=["block_size_x * block_size_y >= 64"])\n'
    )
    space, _ = drafted(
        tmp_path, pool,
        "__global__ void k(float* y, const float* x, int w, int h) {\n"
        "  int c = blockIdx.x * block_size_x * tile_x + threadIdx.x;\n"
        "  int r = blockIdx.y * block_size_y + threadIdx.y;\n"
        "  if (r < h) for (int t = 0; t < tile_x; t++) { int col = c + t * block_size_x;\n"
        "    if (col < w) y[r * w + col] = x[r * w + col]; } }\n",
    )  # fmt: skip
    assert '- "block_size_x * block_size_y >= 64"' in space
    assert "default: {block_size_x: 16, block_size_y: 4, tile_x: 1" in space
    assert 'grid: ["ceil_div(w, block_size_x * tile_x)", "ceil_div(h, block_size_y)"]' in space
    assert "block: [block_size_x, block_size_y]" in space


def test_a_script_divides_a_bound_that_is_a_product_with_a_sum(
    tmp_path: Path, pool: NvrtcPool
) -> None:
    (tmp_path / "tune.py").write_text(
        "from kernel_tuner import tune_kernel\n"
        'tune_params = {"block_size_x": [64, 128], "tile": [1, 2]}\n'
        'tune_kernel("k", "k.cu", n, args, tune_params, grid_div_x=["block_size_x", "tile"])\n'
    )
    space, _ = drafted(
        tmp_path, pool,
        "__global__ void k(float* y, const float* x, int n, int m) {\n"
        "  int i0 = blockIdx.x * block_size_x * tile + threadIdx.x;\n"
        "  for (int t = 0; t < tile; t++) { int i = i0 + t * block_size_x;\n"
        "    if (i < n * (m + 1)) y[i] = x[i]; } }\n",
    )  # fmt: skip
    assert 'grid: ["ceil_div(n * (m + 1), block_size_x * tile)"]' in space
