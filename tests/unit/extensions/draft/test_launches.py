"""The launch of a draft follows what it comes from; what may not follow is no parameter."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tuner.compiler.pool import NvrtcPool
from tuner.extensions.draft.drafting import Asked, Draft, draft, draft_source
from tuner.source import parse_source, read_source
from tuner.space.yaml import parse

SCALE = """
__global__ void scale(float* y, const float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 3 * x[i];
}
"""
WALK = """
__global__ void walk(float* y, const float* x, int n) {
  extern __shared__ float part[];
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    y[i] = x[i] + 1;
}
"""
TALL = WALK.replace("gridDim.x *", "gridDim.x * blockDim.y *")
LUMP = "template <class T> struct Lump { static constexpr int count = 8 / sizeof(T); };\n"
WARPS = """
template <int Warps> __global__ void halves(float* y, const float* x, int n) {
  __shared__ float part[Warps];
  part[threadIdx.x / 32] = x[blockIdx.x * n + threadIdx.x];
  __syncthreads();
  for (int w = 0; w < Warps; ++w) y[blockIdx.x] += part[w];
}
"""
PEEL = """
#define PEEL 16
#define LAYERS 4
__global__ void peel(float* y, const float* x, int w, int h) {
  const int c = blockIdx.x * PEEL + threadIdx.x, r = blockIdx.y * PEEL + threadIdx.y;
  for (int k = 0; k < PEEL; k += LAYERS) y[(r + k) * w + c] = x[(r + k) * w + c];
}
__global__ void other(float* y, const float* x, int w, int h) { y[0] = x[0]; }
"""


def drafted(text: str, host: str, kernel: str | None = None) -> Draft:
    code = f"{text}void f(float* y, float* x, int n, int w, int h) {{ {host} }}\n"
    return draft(parse_source(code, Path("k.cu")), kernel)


def launch_of(made: Draft) -> dict[str, object]:
    return parse(made.space_yaml, made.space_path).data["launch"][0]


FEW = "#define FEW 4\n"
HELD = SCALE.replace("void scale", "void __cluster_dims__(FEW, 1, 1) __launch_bounds__(128) scale")
ASKS = """cudaLaunchConfig_t c; c.gridDim = dim3(n / 128); c.blockDim = dim3(128);
  cudaLaunchAttribute a[1]; a[0].id = cudaLaunchAttributeClusterDimension; {}
  c.attrs = a; c.numAttrs = 1; cudaLaunchKernelEx(&c, scale, y, x, n);"""
PAIR = "a[0].val.clusterDim.x = FEW; a[0].val.clusterDim.y = 1; a[0].val.clusterDim.z = 1;"
NOWHERE = ASKS.format("a[0].val.clusterDim.x = ask();")


TWICE = {"grid": ["ceil_div(n // (block_size * 2), vec * items)"], "block": ["block_size"]}
TEAM = "dim3 team(64, 2); int bytes = team.y > 1 ? team.y * sizeof(float) : 0;"
TEAMS = SCALE.replace("if (i", "__shared__ float s[TEAMS]; s[0] = 0; if (i")
TILES = "template <int TILE>" + WALK.replace("blockDim.x +", "TILE +")
RANK = SCALE.replace("blockIdx.x * blockDim.x + threadIdx.x", "cg::this_grid().thread_rank()")
SIZES = """struct Sizes {
  static constexpr unsigned long all[] = {sizeof(float), 8};
  static constexpr const char *name = title<T>();
};
"""


@pytest.mark.parametrize(
    ("text", "host", "launch"),
    [
        (f"{LUMP}using lump = Lump<float>;\n{WALK}",
         "walk<<<n / (128 * lump::count), 128>>>(y, x, n);", TWICE),
        (LUMP + WALK, "walk<<<n / (128 * Lump<float>::count), 128>>>(y, x, n);", TWICE),
        (TALL, f"{TEAM} walk<<<64, team, bytes>>>(y, x, n);",
         {"block": ["block_x", "block_y"], "shared_memory": "block_y * 4 if block_y > 1 else 0"}),
        (WALK, "walk<<<64, 256, 256 * 4>>>(y, x, n);", {"shared_memory": "block_size * 4"}),
        (FEW + HELD, "scale<<<n / 128, 128>>>(y, x, n);", {"cluster": ["few"]}),
        (HELD.replace("FEW", "2"), "scale<<<n / 128, 128>>>(y, x, n);", {"cluster": [2]}),
        (SCALE, "scale<<<n / 128, 128>>>(y, x, n);", {"cluster": None}),
        (FEW + SCALE, ASKS.format(PAIR), {"cluster": [4]}),
        (SCALE, ASKS.format("a[0].val.clusterDim = {1, 2, 1};"), {"cluster": [1, 2]}),
        (SCALE, NOWHERE, {"cluster": ["FILL_IN"]}),
        (f"#define TEAMS 4\n#define CREW (TEAMS * 32)\n{TEAMS}",
         "scale<<<(n + CREW - 1) / CREW, CREW>>>(y, x, n);", {"block": ["teams * 32"]}),
        (WALK, "const int blocks = 256; walk<<<blocks, 256>>>(y, x, n);",
         {"grid": ["ceil_div(256, vec * items)"], "block": ["block_size"]}),
        (RANK, "scale<<<(n + 127) / 128, 128>>>(y, x, n);", {"block": ["block_size"]}),
        ("enum { kCrew = 192 };\n" + SCALE.replace("blockDim.x", "kCrew"),
         "scale<<<(n + kCrew - 1) / kCrew, kCrew>>>(y, x, n);", {"block": ["crew"]}),
        (f"int crew = 192;\n{WALK}", "walk<<<64, crew>>>(y, x, n);", {"block": ["block_size"]}),
        (TILES, "walk<512><<<n / 512, 64, 512 * sizeof(float)>>>(y, x, n);",
         {"grid": ["n // tile"], "block": ["block_size"], "shared_memory": "tile * 4"}),
        (WARPS, "halves<4><<<n, 128>>>(y, x, n);", {"block": ["warps * 32"]}),
        (WARPS, "halves<4><<<n, 4 * 32>>>(y, x, n);", {"block": ["warps * 32"]}),
        (SIZES + SCALE, "scale<<<n / 64, 64>>>(y, x, n);", {"block": ["block_size"]}),
    ],
)  # fmt: skip
def test_a_launch_follows_what_its_numbers_come_from(
    text: str, host: str, launch: dict[str, object]
) -> None:
    found = launch_of(drafted(text, host))
    assert {key: found.get(key) for key in launch} == launch


def test_a_block_is_no_parameter_where_a_bare_number_of_bytes_may_come_from_it() -> None:
    made = drafted(WALK, "walk<<<64, 256, 1024>>>(y, x, n);")
    assert "block_size" not in made.parameters
    said = "block_size = 256 is left out: the shared memory of the launch may come from it"
    assert said in made.space_yaml


def test_a_block_with_a_limit_may_be_chosen_by_a_parameter() -> None:
    host = "const int warps = min((n + 63) / 64, 32); walk<<<64, warps * 32>>>(y, x, n);"
    whole = "min(ceil_div(n, 64), 32) * 32"
    found = launch_of(drafted(WALK, host))
    assert found["block"] == [f"block_size if block_size else {whole}"]


@pytest.mark.parametrize("mark", ["__host__ __device__ constexpr", "ON_BOTH"])
def test_a_launch_follows_a_function_for_both_sides_that_no_kernel_calls(
    tmp_path: Path, compiler: NvrtcPool, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    monkeypatch.chdir(tmp_path)
    both = "#define ON_BOTH __host__ __device__\n"
    shares = f"template <class N> {mark} N shares(N a, N b) {{ return (a + b - 1) / b; }}\n"
    host = "void f(float* y, float* x, int n) { scale<<<shares(n, 64), 64>>>(y, x, n); }\n"
    path = Path("k.cu")
    path.write_text(both + shares + SCALE + host)
    made = draft_source(path, Path(), Asked(), compiler=lambda: compiler)
    assert made.space is not None
    assert "ceil_div(n, block_size" in made.space.read_text()


def test_sizes_in_the_kernel_that_are_the_blocks_follow_it() -> None:
    own = "__shared__ float s[96]; using Sum = cub::BlockReduce<float, 96>; const int i"
    made = drafted(SCALE.replace("const int i", own), "scale<<<n / 96, 96>>>(y, x, n);")
    for text in ("s[@{ block_size }@]", "<float, @{ block_size }@>", "__launch_bounds__(@{ block"):
        assert text in made.template


def test_a_number_of_rows_is_no_parameter_where_the_grid_has_it_as_a_number() -> None:
    text = (
        "template <int ROWS> __global__ void rows(float* y, const float* x, int n) {\n"
        "  const int first = ROWS * (int)blockIdx.x;\n"
        "  for (int r = 0; r < ROWS; ++r) y[first + r] = x[first + r];\n}\n"
    )
    made = drafted(text, "rows<8><<<n / 8, 32>>>(y, x, n);")
    assert launch_of(made)["grid"] == ["n // 8"]
    assert "ROWS = 8 is left out: the grid of the launch may come from it" in made.space_yaml


@pytest.mark.parametrize(
    "host",
    [
        "void (*which)(float*, const float*, int, int) = &peel;",
        "void (*which)(float*, const float*, int, int); which = peel;",
        "auto which = h > w ? &other : &peel;",
    ],
)
def test_a_launch_through_a_pointer_is_one_of_each_kernel_that_it_points_to(host: str) -> None:
    config = "dim3 grid(w / PEEL, h / PEEL), block(PEEL, LAYERS);"
    made = drafted(PEEL, f"{host} {config} which<<<grid, block>>>(y, x, w, h);", "peel")
    assert launch_of(made)["grid"] == ["w // peel", "h // peel"]
    assert launch_of(made)["block"] == ["peel", "layers"]


def test_launches_are_seen_with_blanks_in_their_brackets(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(SCALE + "void f(float* y, int n) { scale << <n / 64, 64 >> > (y, y, n); }")
    assert launch_of(draft(read_source(path)))["block"] == ["block_size"]
    path.write_text(SCALE + "typedef P<P<P<int> > > deep; bool f(int a) { return a << 2 < 3; }")
    assert read_source(path).text == path.read_text()


def test_alternatives_of_an_if_are_those_of_the_build(
    tmp_path: Path, compiler: NvrtcPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("k.cu")
    head = "#ifdef BUILD_CREW\n#define CREW BUILD_CREW\n#else\n#define CREW 96\n#endif\n"
    host = "void f(float* y, float* x, int n) { scale<<<(n + CREW - 1) / CREW, CREW>>>(y, x, n); }"
    path.write_text(head + SCALE.replace("blockDim.x", "CREW") + host)
    for defined, default in ((), "96"), (("BUILD_CREW=64",), "64"):
        asked = Asked(defined=defined)
        made = draft_source(path, Path(), asked, compiler=lambda: compiler, force=True)
        assert made.space is not None
        assert re.search(rf"default: {{(build_)?crew: {default}", made.space.read_text())


ROW_SUMS = """
__global__ void sums(float* y, const float* x, int n) {
  float s = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) s += x[blockIdx.x * n + i];
  atomicAdd(&y[blockIdx.x], s);
}
"""
PACKS = """
#define TILE 1024
#define CREW 256
#define EACH 4
__global__ void packs(float* y, const float* x, int n) {
  const int base = blockIdx.x * TILE + threadIdx.x;
#pragma unroll
  for (int k = 0; k < EACH; ++k) if (base + k * CREW < n) y[base + k * CREW] = x[base + k * CREW];
}
"""


@pytest.mark.parametrize(
    ("host", "block"),
    [
        ("int t = 512; if (n < 1024) t = 128;", "128 if n < 1024 else 512"),
        ("int t; if (n < 1024) { t = 128; } else t = 512;", "128 if n < 1024 else 512"),
        ("int t = 1024; if (t > n) t = n;", "min(1024, n)"),
        ("int t = n; t = (t + 31) / 32 * 32; if (t > 512) t = 512;",
         "min(ceil_div(n, 32) * 32, 512)"),
    ],
)  # fmt: skip
def test_a_variable_that_several_lines_set_is_one_expression(host: str, block: str) -> None:
    made = drafted(ROW_SUMS, f"{host} sums<<<w, t>>>(y, x, n);")
    baseline = parse(made.space_yaml, made.space_path).data["baseline"]["launch"][0]
    assert baseline["block"] == [block]


@pytest.mark.parametrize(
    "host", ["int t = 32; while (t < n) t *= 2;", "int t = 32; pick(&t);", "int t = 64; t++;"]
)
def test_a_variable_that_a_loop_or_another_function_sets_is_a_guess(host: str) -> None:
    made = drafted(ROW_SUMS, f"{host} sums<<<w, t>>>(y, x, n);")
    assert "guessed: the source says t" in made.space_yaml


def test_a_block_that_a_condition_chooses_may_be_chosen_by_a_parameter() -> None:
    made = drafted(ROW_SUMS, "int t = 512; if (n < 1024) t = 128; sums<<<w, t>>>(y, x, n);")
    assert launch_of(made)["block"] == ["block_size if block_size else 128 if n < 1024 else 512"]
    assert made.default["block_size"] == 0
    assert "__launch_bounds__(@{ (block_size if block_size else 1024) }@" in made.template


@pytest.mark.parametrize(
    ("text", "host", "constraint"),
    [
        (PACKS, "packs<<<(n + TILE - 1) / TILE, CREW>>>(y, x, n);", "tile == crew * each"),
        (f"#define CREW 64\n{ROW_SUMS.replace('blockDim.x', 'CREW')}",
         "if (n <= 8 * CREW) sums<<<w, CREW>>>(y, x, n);", "n <= 8 * crew"),
        (PACKS.replace("const int", "static_assert(CREW * EACH == TILE, \"\"); const int"),
         "packs<<<(n + TILE - 1) / TILE, CREW>>>(y, x, n);", "crew * each == tile"),
        ("#define CREW 512\n" + ROW_SUMS.replace(
            "float s", "using Sum = cub::BlockReduce<float, CREW>; float s"),
         "int t = CREW; if (n < 999) t = 128; sums<<<w, t>>>(y, x, n);",
         "(block_size if block_size else 128 if n < 999 else crew) <= crew"),
    ],
)  # fmt: skip
def test_what_the_source_asks_of_its_constants_is_a_constraint(
    text: str, host: str, constraint: str
) -> None:
    made = drafted(text, host)
    assert constraint in parse(made.space_yaml, made.space_path).data["constraints"]


def test_a_null_pointer_chooses_the_instance_that_it_chooses_in_the_source() -> None:
    kernel = ROW_SUMS.replace("__global__", "template <bool Shifted> __global__")
    host = "if (x != nullptr) sums<true><<<n, 64>>>(y, x, n); else sums<false><<<n, 64>>>(y, x, n);"
    code = f"{kernel}void f(float* y, float* x, int n) {{ {host} }}\n"
    made = draft(parse_source(code + "void g(float* y, int n) { f(y, nullptr, n); }", Path("k.cu")))
    assert made.launched == "sums<false>"


def test_what_is_computed_from_a_guessed_block_follows_it() -> None:
    host = "const int crew = pick(n); walk<<<n / crew, crew, crew / 32 * sizeof(float)>>>(y, x, n);"
    found = launch_of(drafted(WALK, host))
    assert found["shared_memory"] == "block_size // 32 * 4"
    assert found["grid"] == ["ceil_div(n // block_size, vec * items)"]


@pytest.mark.parametrize(
    ("host", "kept", "left"),
    [
        ("switch ((n + 63) / 64) { case 4: spans<4><<<w, 64>>>(y, x, n); }", "each", ""),
        ("switch (pick(n)) { case 4: spans<4><<<w, 64>>>(y, x, n); }", "", "kEach = 4 is left out"),
        ("void (*all[])(float*, const float*, int) = {&spans<2>, spans<4>};\n"
         "all[w]<<<w, 64>>>(y, x, n);", "", "takes one of several"),
    ],
)  # fmt: skip
def test_a_templates_number_follows_the_condition_that_chooses_it(
    host: str, kept: str, left: str
) -> None:
    text = ROW_SUMS.replace("__global__", "template <int kEach> __global__").replace(
        "sums", "spans"
    )
    text = text.replace("float s", "for (int k = 0; k < kEach; ++k) y[k * blockDim.x] = 0; float s")
    made = drafted(text, host)
    assert ("each" in made.parameters) is bool(kept)
    assert left in made.space_yaml
    if kept:
        assert "ceil_div(n, 64) <= each" in made.space_yaml.replace("block_size", "64")


def test_a_width_is_no_parameter_where_what_moves_it_has_its_own() -> None:
    text = SCALE.replace("y[i] = 3 * x[i]", "((float4*)y)[i] = ((const float4*)x)[i]")
    text = "#define VEC 4\n" + text.replace("if (i < n)", "if (i < n / VEC)")
    made = drafted(text, "scale<<<(n / VEC + 63) / 64, 64>>>(y, x, n);")
    assert "VEC = 4 (line 1) is left out: what moves it has a width of its own" in made.space_yaml
