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
from tuner.extensions.draft.guesses import usual
from tuner.extensions.draft.host_values import read_lambda
from tuner.source.reader import parse_source

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
    "a grid that a lambda makes": (
        "constexpr int TX = 32, TY = 4;\n"
        "__global__ void k(float* y, const float* x, int w, int h) {\n"
        "  int c = blockIdx.x * TX + threadIdx.x, r = blockIdx.y * TY + threadIdx.y;\n"
        "  if (c < w && r < h) y[r * w + c] = x[r * w + c]; }\n"
        "void f(float* p, int w, int h) { auto up = [](int a, int b) { return (a + b - 1) / b; };\n"
        "  auto grid_for = [&](int a, int b) { return dim3(up(a, TX), up(b, TY)); };\n"
        "  k<<<grid_for(w, h), dim3(TX, TY)>>>(p, p, w, h); }\n",
        ['grid: ["ceil_div(w, tx)", "ceil_div(h, ty)"]'],
        ["FILL_IN]  # FILL IN: blocks"],
    ),
    "enumerators that count threads": (
        "enum Plan : int { kCrew = 128, kEach = 4 };\n"
        "template <int CREW, int EACH> __global__ void k(float* y, const float* x, int n) {\n"
        "  for (int e = 0; e < EACH; ++e) { int i = (blockIdx.x * EACH + e) * CREW + threadIdx.x;\n"
        "    if (i < n) y[i] = x[i]; } }\n"
        "void f(float* p, int n) {\n"
        "  k<kCrew, kEach><<<(n + kCrew * kEach - 1) / (kCrew * kEach), kCrew>>>(p, p, n); }\n",
        ["block: [128]", "block: [crew]", 'grid: ["ceil_div(n, crew * each)"]'],
        ["crew_2", "guessed"],
    ),
    "constants of a namespace as template arguments": (
        "namespace plan { inline constexpr int kBlock = 128; }\n"
        "template <int BLOCK> __global__ void k(float* y, const float* x, int n) {\n"
        "  int i = blockIdx.x * BLOCK + threadIdx.x; if (i < n) y[i] = x[i]; }\n"
        "void f(float* p, int n) {\n"
        "  k<plan::kBlock><<<(n + plan::kBlock - 1) / plan::kBlock, plan::kBlock>>>(p, p, n); }\n",
        ["block: [block]", 'grid: ["ceil_div(n, block)"]'],
        ["block_2"],
    ),
    "a block that a namespace has": (
        "namespace plan { const dim3 kBlock(32, 8); }\n"
        "__global__ void k(float* y, const float* x, int w, int h) {\n"
        "  int c = blockIdx.x * blockDim.x + threadIdx.x, "
        "r = blockIdx.y * blockDim.y + threadIdx.y;\n"
        "  if (c < w && r < h) y[r * w + c] = x[r * w + c]; }\n"
        "void f(float* p, int w, int h) { dim3 grid((w + plan::kBlock.x - 1) / plan::kBlock.x,\n"
        "    (h + plan::kBlock.y - 1) / plan::kBlock.y); k<<<grid, plan::kBlock>>>(p, p, w, h); "
        "}\n",
        ['grid: ["ceil_div(w, 32)", "ceil_div(h, 8)"]', "block: [block_x, block_y]"],
        [],
    ),
    "the width of a specialisation": (
        "template <class T> struct W; template <> struct W<float> { static constexpr int n = 4; "
        "};\n"
        "template <> struct W<double> { static constexpr int n = 2; };\n"
        "template <class T> __global__ void k(T* y, const T* x, int m) {\n"
        "  int i = (blockIdx.x * blockDim.x + threadIdx.x) * W<T>::n;\n"
        "  for (int e = 0; e < W<T>::n; ++e) if (i + e < m) y[i + e] = x[i + e]; }\n"
        "void f(double* p, int m) { constexpr int per = W<double>::n;\n"
        "  k<double><<<(m / per + 255) / 256, 256>>>(p, p, m); }\n",
        ['grid: ["ceil_div(m // 2, 256)"]'],
        ["m // 4"],
    ),
    "enumerators of a class that is an argument": (
        "template <int W> struct P { enum { kWarps = W, kThreads = W * 32 };\n"
        "  static constexpr int rows() { return kWarps; } };\n"
        "template <class Q> __global__ void k(float* y, const float* x, int rows, int n) {\n"
        "  int r = blockIdx.x * Q::rows() + threadIdx.x / 32;\n"
        "  if (r < rows) for (int c = threadIdx.x % 32; c < n; "
        "c += 32) y[r * n + c] = x[r * n + c]; }\n"
        "void f(float* p, int rows, int n) { using Q = P<8>;\n"
        "  k<Q><<<(rows + Q::rows() - 1) / Q::rows(), Q::kThreads>>>(p, p, rows, n); }\n",
        ["block: [256]", "block: [warps * 32]", 'grid: ["ceil_div(rows, warps)"]'],
        [],
    ),
    "a size that every call passes as 0": (
        HEAD.replace("n)", "n, int left)") + "  int i = blockIdx.x * 128 + threadIdx.x;\n"
        "  if (i < n + left) y[i] = i < left ? 0 : x[i - left]; }\n"
        "void f(float* p, int n, int left) { k<<<(n + left + 127) / 128, 128>>>(p, p, n, left); }\n"
        "int main() { float* p; int n = 100; f(p, n, 0); }\n",
        ["axes: [n]", "{name: left, dtype: int32, value: 0}", 'grid: ["ceil_div(n, 128)"]'],
        [],
    ),
    "a state that a thread hands on": (
        HEAD + "  unsigned s = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  for (int i = s; i < n; i += gridDim.x * blockDim.x) {\n"
        "    s = s * 5u + 7u; y[i] = s & 1 ? x[i] : 0; } }\n"
        "void f(float* p, int n) { k<<<16, 256>>>(p, p, n); }\n",
        ["# block_size = 256 is left out", "unroll: ["],
        ["  vec: [", "  block_size: ["],
    ),
    "a number of bins": (
        "#define LOG 6\n#define BINS (1 << LOG)\n"
        "__global__ void k(unsigned* h, const unsigned char* x, int n) {\n"
        "  __shared__ unsigned s[BINS];\n"
        "  for (int b = threadIdx.x; b < BINS; b += blockDim.x) s[b] = 0;\n  __syncthreads();\n"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  if (i < n) atomicAdd(&s[x[i] >> (8 - LOG)], 1u);\n  __syncthreads();\n"
        "  for (int b = threadIdx.x; b < BINS; b += blockDim.x) atomicAdd(&h[b], s[b]); }\n"
        "void f(unsigned* h, unsigned char* x, int n) { k<<<(n + 255) / 256, 256>>>(h, x, n); }\n",
        ["{name: h, dtype: uint32, shape: [64]", "# LOG = 6 (line 1) is left out"],
        ["  log: ["],
    ),
    "a tile that the first threads load": (
        "constexpr int T = 32, TILE_K = 16;\n"
        "__global__ void k(float* y, const float* x, int n) { __shared__ float s[TILE_K];\n"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x; float sum = 0;\n"
        "  for (int c = 0; c < n; c += TILE_K) {\n"
        "    int a = c + threadIdx.x; if (threadIdx.x < TILE_K) s[threadIdx.x] = a<n ? x[a] : 0;\n"
        "    __syncthreads(); for (int e = 0; e < TILE_K; ++e) sum += s[e]; __syncthreads(); }\n"
        "  if (i < n) y[i] = sum; }\n"
        "void f(float* p, int n) { k<<<(n + 63) / 64, 64>>>(p, p, n); }\n",
        ['- "tile_k <= block_size"'],
        [],
    ),
    "indices into a row": (
        "__global__ void k(float* y, const float* x, const int* label, int n, int classes) {\n"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;\n"
        "  const int t = label[i]; y[i] = x[i * classes + t]; }\n"
        "void f(float* y, float* x, int* l, int n, int c) { k<<<(n + 127) / 128, 128>>>(y, x, "
        "l, n, c); }\n",
        ["role: input, fill: indices(classes)}"],
        [],
    ),
    "pointers to anything": (
        "template <class T> __global__ void k(const void* in, void* out, int n) {\n"
        "  const T* src = static_cast<const T*>(in); T* dst = (T*)out;\n"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) dst[i] = src[i]; }\n"
        "void f(const void* x, void* y, int n) { k<short><<<(n + 127) / 128, 128>>>(x, y, n); }\n",
        ["{name: in, dtype: int16, shape: [n], role: input}",
         "{name: out, dtype: int16, shape: [n], role: output}"],
        [],
    ),
    "a kernel of a table by a variable": (
        "template <int M> __global__ void k(float* y, const float* x, int n) {\n"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = M ? x[i] : -x[i]; }\n"
        "static void (*const table[])(float*, const float*, int) = {k<0>, k<1>};\n"
        "void f(float* p, int n, int m) { auto one = table[m]; one<<<(n + 127) / 128, 128>>>(p, "
        "p, n); }\n",
        ['grid: ["ceil_div(n, 128)"]', "launches one of 2"],
        ["nothing launches"],
    ),
    "blocks for each multiprocessor": (
        "constexpr int kEach = 4;\n" + HEAD +
        "  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; "
        "i += gridDim.x * blockDim.x)\n"
        "    y[i] = x[i]; }\n"
        "void f(float* p, int n, int sms) { k<<<std::min((n + 255) / 256, sms * kEach), "
        "256>>>(p, p, n); }\n",
        ["  each: ["],
        [],
    ),
    "lanes of a row, which a block has many of": (
        "template <int LANES, int BLOCK> __global__ void k(float* y, const float* x, int rows, "
        "int n) {\n"
        "  int lane = threadIdx.x % LANES, r = (blockIdx.x * BLOCK + threadIdx.x) / LANES; "
        "float s = 0;\n"
        "  if (r < rows) for (int c = lane; c < n; c += LANES) s += x[r * n + c];\n"
        "  for (int o = LANES / 2; o > 0; o /= 2) s += __shfl_down_sync(~0u, s, o, LANES);\n"
        "  if (lane == 0 && r < rows) y[r] = s; }\n"
        "void f(float* y, float* x, int m, int n) { const int L = 8, B = 256, each = B / L;\n"
        "  k<L, B><<<(m + each - 1) / each, B>>>(y, x, m, n); }\n",
        ["  lanes: [", '- "(block) % (lanes) == 0"', 'grid: ["ceil_div(rows, block // lanes)"]'],
        [],
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


# and of those that are extracted first
EXTRACTED = {
    "a constant for a lambda that another function is handed": (
        "#include <type_traits>\n"
        "template <int B> __global__ void k(float* y, const float* x, int n) {\n"
        "  int i = blockIdx.x * B + threadIdx.x; if (i < n) y[i] = x[i]; }\n"
        "template <class F> void pick(int n, F&& f) { f(std::integral_constant<int, 64>{}); }\n"
        "void f(float* p, int n) { pick(n, [&](auto b) { constexpr int B = decltype(b)::value;\n"
        "  k<B><<<(n + B - 1) / B, B>>>(p, p, n); }); }\n",
        ["kernel: k<64>", "block: [64]", "block: [b]", 'grid: ["ceil_div(n, b * vec'],
        ["guessed"],
    ),
    "a kernel whose head a macro makes": (
        "#define BOUNDS __launch_bounds__(128, 2)\n"
        "#define KERNEL(name) extern \"C\" __global__ void BOUNDS name\n"
        "KERNEL(k)(float* y, const float* x, int n) {\n"
        "  int i = blockIdx.x * 128 + threadIdx.x; if (i < n) y[i] = x[i]; }\n"
        "void f(float* p, int n) { k<<<(n + 127) / 128, 128>>>(p, p, n); }\n",
        ["kernel: k\n", "block: [128]", "# __launch_bounds__, line"],
        [],
    ),
    "a launch that macros make of macros": (
        "#define LAUNCH(K, N, T, ...) K \\\n  <<<((N) + (T) - 1) / (T), T>>>(__VA_ARGS__)\n"
        "#define CASE(V, T) case V: LAUNCH((k<V, T>), n / V, T, p, p, n); break\n"
        "template <int V, int T> __global__ void k(float* y, const float* x, int n) {\n"
        "  int i = (blockIdx.x * T + threadIdx.x) * V; if (i + V > n) return;\n"
        "  for (int e = 0; e < V; ++e) y[i + e] = x[i + e]; }\n"
        "void f(float* p, int n) { const int v = n % 4 == 0 ? 4 : 1;\n"
        "  switch (v) { CASE(1, 256); CASE(4, 256); } }\n"
        "int main() { float* p; const int n = 4096; f(p, n); }\n",
        ['kernel: "k<4, 256>"', 'grid: ["ceil_div(n // 4, 256)"]', "# V = 4 is left out"],
        ["  v: ["],
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


@pytest.mark.parametrize("name", EXTRACTED)
def test_a_kind_is_extracted_and_drafted(name: str, tmp_path: Path, pool: NvrtcPool) -> None:
    text, said, unsaid = EXTRACTED[name]
    space, _ = drafted(tmp_path, pool, text)
    assert [piece for piece in said if piece not in space] == []
    assert [piece for piece in unsaid if piece in space] == []


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


def test_a_tuning_script_says_sizes_and_restrictions_by_names_and_lambdas(
    tmp_path: Path, pool: NvrtcPool
) -> None:
    (tmp_path / "tune.py").write_text(
        "from kernel_tuner import tune_kernel\n"
        "def tune(args):\n"
        "    size = (512, 64)\n"
        "    fw, unused = 5, 6\n"
        '    tune_params = {"block_size_x": [16, 32], "tile_x": [1, 2], "filter_width": [fw]}\n'
        '    asked = ["block_size_x <= 512", lambda p: p["block_size_x"] * p["tile_x"] < 64]\n'
        '    tune_kernel("k", "k.cu", size, args, tune_params, restrictions=asked,\n'
        '                grid_div_x=["block_size_x", "tile_x"])\n'
    )
    space, _ = drafted(
        tmp_path, pool,
        "__global__ void k(float* y, const float* x) {\n"
        "  int c = blockIdx.x * block_size_x * tile_x + threadIdx.x, r = blockIdx.y;\n"
        "  for (int t = 0; t < tile_x; t++) { float s = 0;\n"
        "    for (int e = 0; e < filter_width; e++) s += x[r * 516 + c + t * block_size_x + e];\n"
        "    y[r * 512 + c + t * block_size_x] = s; } }\n",
    )  # fmt: skip
    assert '- "block_size_x <= 512"' in space
    assert "- block_size_x * tile_x < 64" in space
    assert 'grid: ["ceil_div(512, block_size_x * tile_x)", 64]' in space
    assert "# filter_width = 5 (line 4) is left out" in space


def test_modes_and_flags_of_an_enumeration_are_no_parameters() -> None:
    source = parse_source(
        "enum Modes { kNone = 0, kCols = 32, kRows = 64 };\n"
        "enum Sizes { kThreads = 128, kEach = 4 };\n"
        "__global__ void k(float* y, int mode) { if (mode == kCols) y[0] = 1; }\n",
        Path("k.cu"),
    )
    assert {constant.name for constant in source.constants} == {"kThreads", "kEach"}


def test_blocks_of_one_name_in_two_namespaces_are_not_known() -> None:
    one = "namespace {0} {{ const dim3 block({1}); void f() {{ k<<<1, block>>>(); }} }}\n"
    texts = [one.format("a", "16, 16"), one.format("b", "32, 8")]
    head = "__global__ void k() {}\n"
    (alone,) = parse_source(head + texts[0], Path("k.cu")).launches
    both = parse_source(head + "".join(texts), Path("k.cu")).launches
    assert alone.block == ("16", "16")
    assert {site.block for site in both} == {("block",)}


def test_what_a_function_chooses_is_no_kernel_by_the_name_of_its_argument() -> None:
    text = "__global__ void k() {}\nvoid f(int k) { choose(k)<<<1, 32>>>(); (k)<<<1, 64>>>(); }\n"
    assert [site.block for site in parse_source(text, Path("k.cu")).launches] == [("64",)]


def test_a_lambda_without_named_parameters_is_not_read() -> None:
    assert read_lambda("[](...) { return 4; }") is None
    assert read_lambda("[](int n) { return n / 4; }") == (("n",), "n / 4")


@pytest.mark.parametrize(("name", "value"), [("rank", "0"), ("tp_rank", "0"), ("lora_rank", "1")])
def test_a_rank_is_the_first_of_several_processes_unless_it_is_a_size(
    name: str, value: str
) -> None:
    assert usual(name, "int32") == value
