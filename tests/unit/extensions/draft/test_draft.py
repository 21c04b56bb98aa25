"""Drafts: valid YAML with marked blanks that, once filled, load and compile for real."""

from __future__ import annotations

import re
from pathlib import Path
from shutil import copy

import pytest

from tuner.compiler.base import CompileRequest, CompileResult
from tuner.compiler.pool import NvrtcPool
from tuner.extensions.draft.drafting import Draft, draft
from tuner.source import check_arguments, hide_host_code, parse_source, read_source
from tuner.space.blanks import blanks
from tuner.space.load import Definition, load_definition
from tuner.space.template import Template
from tuner.space.yaml import Data, parse

DATA = Path(__file__).parents[2] / "data"
# the drafts as a person would fill them in
FILLED = Path(__file__).parent / "data/filled"
NAMES = ("saxpy", "tiled_sgemm", "block_reduce", "framework_norm")


def drafted(folder: Path, name: str) -> Draft:
    path = folder / f"{name}.cu"
    copy(DATA / path.name, path)
    return draft(read_source(path), folder=folder)


def written(folder: Path, name: str) -> Definition:
    made = drafted(folder, name)
    filled = (FILLED / f"{name}.yaml").read_text(encoding="utf-8")
    rows = zip(filled.splitlines(), made.space_yaml.splitlines(), strict=True)
    assert [own for own, row in rows if own != row and "FILL_IN" not in row] == []
    files = {
        made.space_path: filled,
        made.template_path: made.template,
        made.reference_path: made.reference,
    }
    for path, text in files.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return load_definition(made.space_path)


def snippet(text: str, kernel: str | None = None) -> Draft:
    return draft(parse_source(text, Path("k.cu")), kernel)


def data(made: Draft) -> dict[str, Data]:
    return parse(made.space_yaml, made.space_path).data


@pytest.mark.parametrize("name", NAMES)
def test_a_draft_is_valid_yaml_and_every_blank_says_what_is_needed(
    tmp_path: Path, name: str
) -> None:
    made = drafted(tmp_path, name)
    assert data(made)["version"] == 1
    left = blanks(made.space_yaml)
    assert bool(left) is (name != "saxpy")
    assert all(what and "FILL_IN" not in what for _, what in left)
    rows = made.space_yaml.splitlines()
    assert [line for line, row in enumerate(rows, 1) if "FILL_IN" in row] == [n for n, _ in left]


@pytest.mark.parametrize("name", NAMES)
def test_a_filled_draft_fits_its_template_and_its_kernel_and_launches_as_the_source_does(
    tmp_path: Path, name: str
) -> None:
    definition = written(tmp_path, name)
    spec, default = definition.spec, definition.space.default
    assert blanks(spec.path.read_text()) == []
    template = Template.load(spec.template, spec.include_dirs)
    template.check(definition.space, spec)
    source = read_source(spec.source)
    check_arguments(spec, source.kernel(spec.baseline[0].kernel))
    assert default is not None
    for workload in spec.workloads:
        assert definition.space.violated(default, workload.values) is None
        (baseline,) = spec.baseline_launches(workload.values)
        (candidate,) = spec.candidate_launches({**workload.values, **default})
        assert (candidate.grid, candidate.block) == (baseline.grid, baseline.block)
        assert candidate.shared_bytes == baseline.shared_bytes
    first = template.render(default).source
    for parameter in definition.space.parameters:
        other = next(value for value in parameter.values if value != default[parameter.name])
        assert template.render({**default, parameter.name: other}).source != first


@pytest.mark.parametrize("name", NAMES)
def test_baseline_and_template_compile_to_the_same_resources(
    tmp_path: Path, compiler: NvrtcPool, name: str
) -> None:
    definition = written(tmp_path, name)
    spec, default = definition.spec, definition.space.default
    assert default is not None
    rendered = Template.load(spec.template, spec.include_dirs).render(default).source
    baseline = hide_host_code(read_source(spec.source))
    results = [
        compile_one(compiler, baseline, spec.baseline[0].kernel),
        compile_one(compiler, rendered, spec.launch[0].kernel),
    ]
    assert [result.error for result in results] == ["", ""]
    static = {next(iter(r.resources.values())).static_shared_bytes for r in results}
    assert len(static) == 1


def compile_one(compiler: NvrtcPool, source: str, kernel: str) -> CompileResult:
    return compiler.submit(CompileRequest(source, (kernel,), "sm_90a")).result(60)


def test_only_the_constants_and_the_host_code_change(tmp_path: Path) -> None:
    made = drafted(tmp_path, "tiled_sgemm")
    before = (DATA / "tiled_sgemm.cu").read_text().splitlines()
    after = made.template.splitlines()
    changed = [line for line, (a, b) in enumerate(zip(before, after, strict=False), 1) if a != b]
    assert changed == [1, 2, 3, 4, 5, 23, 34]
    assert after[2] == "#define BK @{ bk }@   /* depth of one step */"
    assert after[5] == "#define WARP_SIZE 32"
    assert (after[33], after[-1]) == ("#ifndef __CUDACC_RTC__", "#endif")


def test_constants_that_are_no_choice_are_left_out_and_said_so() -> None:
    made = snippet(
        "#define WARP_SIZE 32\n#define FULL_MASK 0xffffffff\n#define HEAD_DIM 128\n#define N 64\n"
        "#define TILE_WIDTH 16\n#define UNUSED 8\n"
        "__global__ void k(float* x) { x[threadIdx.x % WARP_SIZE] = HEAD_DIM + N + TILE_WIDTH"
        " + FULL_MASK; }\n"
    )
    assert made.parameters == ("tile_width",)
    assert "# WARP_SIZE = 32 (line 1) is left out: the hardware's warp" in made.space_yaml
    assert "# HEAD_DIM = 128 (line 3) is left out" in made.space_yaml
    assert "UNUSED" not in made.space_yaml


@pytest.mark.parametrize(
    "text",
    [
        "#ifdef BIG\n#define TILE 32\n#else\n#define TILE 16\n#endif\n"
        "__global__ void k(float* x) { x[TILE] = 1; }\n",
        "__global__ void k(float* x) { __shared__ float s[128]; s[threadIdx.x] = x[0]; }\n"
        "void f(float* x) { k<<<1, 128>>>(x); }\n",
    ],
    ids=["a constant defined twice", "a kernel written for one block size"],
)
def test_what_cannot_change_is_left_alone_and_a_parameter_is_asked_for(text: str) -> None:
    made = snippet(text)
    assert (made.parameters, "@{" in made.template) == ((), False)
    assert [what for _, what in blanks(made.space_yaml) if "what to tune" in what]


def test_constants_of_other_kernels_are_left_alone() -> None:
    text = (
        "constexpr int kTile = 8;\nconstexpr int kOtherTile = 4;\n"
        "__device__ int helper() { return kTile; }\n"
        "__global__ void a(int* x) { constexpr int kUnroll = 2; x[kUnroll] = helper(); }\n"
        "__global__ void b(int* x) { constexpr int kUnroll2 = 2; x[kUnroll2] = kOtherTile; }\n"
    )
    assert snippet(text, "a").parameters == ("tile", "unroll")
    assert snippet(text, "b").parameters == ("other_tile", "unroll2")


def test_names_that_mean_something_else_are_avoided() -> None:
    made = snippet(
        "#define MIN 4\n#define TILE_N 8\n#define MAX_THREADS 256\nconstexpr int kTileN = 8;\n"
        "__global__ void k(float* x, int tile_n, int lambda)\n"
        "{ int at = threadIdx.x / MIN + TILE_N + MAX_THREADS + kTileN; x[at] = 1; }\n"
    )
    named = ("min_value", "tile_n_2", "max_threads_value", "tile_n_3", "min_blocks")
    assert made.parameters == named
    assert data(made)["axes"] == ["tile_n", "lambda_size"]


def test_values_lie_around_the_value_in_the_source() -> None:
    made = snippet(
        "#define BLOCK_SIZE 192\n#define TILE 64\n#define USE_LDG 1\nconstexpr bool kFast = true;\n"
        "#define VEC 4\n#define STEPS 6\n"
        "__global__ void k(float* x) { x[BLOCK_SIZE + TILE + USE_LDG + kFast + VEC + STEPS] = 1; }"
    )
    assert data(made)["parameters"] == {
        "block_size": [96, 128, 192, 256, 384, 512, 768],
        "tile": [32, 64, 128],
        "use_ldg": [0, 1],
        "fast": [False, True],
        "vec": [1, 2, 4, 8, 16],
        "steps": [3, 6, 12],
    }


def test_launch_bounds_and_the_block_in_the_launch_are_one_parameter() -> None:
    made = snippet(
        "__global__ void __launch_bounds__(256, 3) k(float* x, int n)\n"
        "{ x[blockIdx.x * blockDim.x + threadIdx.x] = n; }\n"
        "void f(float* x, int n) { const int t = 256; k<<<(n + t - 1) / t, t>>>(x, n); }\n"
    )
    assert made.parameters == ("block_size", "min_blocks")
    assert "__launch_bounds__(@{ block_size }@, @{ min_blocks }@) k(" in made.template
    launch = {"kernel": "k", "grid": ["ceil_div(n, block_size)"], "block": ["block_size"]}
    assert data(made)["launch"] == [launch]


@pytest.mark.parametrize(
    ("head", "kernel", "launched", "bounds"),
    [
        (
            "constexpr int kThreads = 128;\n",
            "void k",
            "kThreads",
            "__launch_bounds__(@{ threads }@, @{ min_blocks }@) k(",
        ),
        (
            "#define TILE 16\n",
            "void k",
            "dim3(TILE, TILE)",
            "__launch_bounds__(@{ tile * tile }@, @{ min_blocks }@) k(",
        ),
        (
            "#define BLOCK 128\n",
            "void __launch_bounds__(BLOCK) k",
            "BLOCK",
            "__launch_bounds__(BLOCK, @{ min_blocks }@) k(",
        ),
    ],
)
def test_a_block_that_has_a_name_may_leave_room_for_more_blocks(
    head: str, kernel: str, launched: str, bounds: str
) -> None:
    size = head.split()[1 if head.startswith("#") else 2]
    made = snippet(
        f"{head}__global__ {kernel}(float* x, int n) {{ __shared__ float s[{size}];\n"
        f"s[threadIdx.x] = n; x[blockIdx.x * {size} + threadIdx.x] = s[0]; }}\n"
        f"void f(float* x, int n) {{ k<<<n / {size}, {launched}>>>(x, n); }}\n"
    )
    assert bounds in made.template
    assert data(made)["parameters"]["min_blocks"] == [0, 2, 4, 8]


def test_a_block_of_two_extents_is_two_parameters() -> None:
    made = snippet(
        "__global__ void k(float* x, int w, int h)\n"
        "{ x[blockDim.x * threadIdx.x + blockDim.y * threadIdx.y] = w * h; }\n"
        "void f(float* x, int w, int h) { dim3 b(16, 16);\n"
        "  k<<<dim3((w + 15) / 16, (h + b.y - 1) / 16), b>>>(x, w, h); }\n"
    )
    assert made.parameters == ("block_x", "block_y", "min_blocks")
    assert "__launch_bounds__(@{ block_x * block_y }@, @{ min_blocks }@) k(" in made.template
    assert "min_blocks * block_x * block_y <= 2048" in made.space_yaml
    assert "block_x * block_y <= 1024" in made.space_yaml


def test_a_template_argument_that_is_a_constant_stays_bound_to_it(compiler: NvrtcPool) -> None:
    made = snippet(
        "constexpr int kThreads = 128;\n"
        "template <int N, typename T, bool kAsync>\n"
        "__global__ void k(T* x) { if (!kAsync || x[0] > 0) x[threadIdx.x] = N; }\n"
        "void f(float* x) { k<kThreads, float, true><<<1, kThreads>>>(x); }\n"
    )
    assert made.parameters == ("threads", "async_value", "min_blocks")
    assert "int N = kThreads, typename T = float, bool kAsync = @{ async_value }@>" in made.template
    launches = data(made)["launch"]
    assert launches == [{"kernel": "k<>", "grid": [1], "block": ["threads"]}]
    rendered = made.template.replace("@{ threads }@", "64").replace("@{ async_value }@", "false")
    rendered = rendered.replace("@{ min_blocks }@", "4")
    assert compile_one(compiler, rendered, "k<>").error == ""


def test_values_that_the_file_instantiates_are_the_values_to_try() -> None:
    made = snippet(
        "template <int kItems> __global__ void k(float* x) { x[kItems] = 1; }\n"
        "void f(float* x, int n) { switch (n) {\n"
        "case 1: k<1><<<1, 32>>>(x); break; case 3: k<3><<<1, 32>>>(x); break;\n"
        "case 6: k<6><<<1, 32>>>(x); } }\n"
    )
    assert data(made)["parameters"] == {"items": [1, 3, 6]}


def test_roles_follow_from_const_and_from_what_is_read() -> None:
    made = snippet(
        "__global__ void k(const float* a, float* b, float* c, int* d, float* e)\n"
        "{ b[0] = a[0]; c[1] += a[1]; atomicAdd(&d[0], 1); e[idx[2]] = e[3]; }\n"
    )
    arguments = data(made)["arguments"]
    assert isinstance(arguments, list)
    roles = [item["role"] for item in arguments if isinstance(item, dict)]
    assert roles == ["input", "output", "inout", "inout", "inout"]
    assert "d: {absolute: 0}" in made.space_yaml


def test_what_a_launch_does_not_say_is_blank_with_what_the_source_says() -> None:
    kernel = "__global__ void k(float* x) { extern __shared__ float s[]; x[0] = s[0]; }\n"
    host = "void f(float* x, Plan p) { k<<<p.blocks(), 64, p.bytes()>>>(x); }"
    without, told = (
        [what for _, what in blanks(snippet(text).space_yaml)] for text in (kernel, kernel + host)
    )
    grid, shared = "blocks in x, y, z", "bytes of dynamic shared memory"
    assert [without.count(what) for what in (grid, "threads in x, y, z", shared)] == [0, 0, 2]
    assert told.count(f"{grid}; the source says p.blocks()") == 2
    assert told.count(f"{shared}; the source says p.bytes()") == 2


UNLAUNCHED = {
    # as many blocks as what they count is compared with
    "const float* x, float* y, int n": (
        "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return; y[i] = x[i];",
        ["ceil_div(n, 256)"],
        [256],
    ),
    "const float* x, float* y, int rows, int cols": (
        "int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;"
        " if (r < rows && c < cols) y[r * cols + c] = x[r * cols + c];",
        ["ceil_div(cols, 32)", "ceil_div(rows, 8)"],
        [32, 8],
    ),
    # a block for each row, of which nobody knows how many there are
    "const float* x, float* y, int cols": (
        "int row = blockIdx.x; for (int c = threadIdx.x; c < cols; c += blockDim.x)"
        " y[row * cols + c] = x[row * cols + c];",
        ["row_count"],
        [256],
    ),
    # a tile of it, of which nothing is known
    "const float* x, float* y": (
        "__shared__ float s[32][33]; int at = blockIdx.x * 32 + threadIdx.y;"
        " s[threadIdx.y][threadIdx.x] = x[at]; y[at] = s[threadIdx.x][threadIdx.y];",
        ["FILL_IN"],
        [32, 32],
    ),
}


@pytest.mark.parametrize("parameters", UNLAUNCHED)
def test_the_launch_of_a_kernel_that_nothing_launches_is_guessed_from_its_code(
    parameters: str,
) -> None:
    body, grid, block = UNLAUNCHED[parameters]
    made = snippet(f"__global__ void k({parameters}) {{ {body} }}\n")
    baseline = data(made)["baseline"]
    assert isinstance(baseline, dict)
    (launch,) = baseline["launch"]
    assert (launch["grid"], launch["block"]) == (grid, block)
    assert "guessed: nothing launches the kernel here" in made.space_yaml


def test_helpers_that_only_compute_something_are_followed() -> None:
    made = snippet(
        "#define MIN(a, b) ((a) < (b) ? (a) : (b))\n"
        "#define UP(n, by) \\\n (((n) + (by) - 1) / (by))\n"
        "static int blocks_for(long n, int t = 64) {\n const long all = (n - 1) / t + 1;\n"
        " return (std::max)(static_cast<int>(all), 1); }\n"
        "__global__ void k(float* x, int n) { x[blockIdx.x] = n; }\n"
        "void f(float* x, int n) {"
        " k<<<dim3(MIN(blocks_for(n), UINT16_MAX), UP(n, 4)), 64>>>(x, n); }\n"
    )
    grid = '["min(max(ceil_div(n, 64), 1), 65535)", "ceil_div(n, 4)"]'
    assert made.space_yaml.count(f"grid: {grid}") == 2


def test_a_constant_that_is_compared_with_the_architecture_is_no_parameter() -> None:
    made = snippet(
        "#define NEWEST 900\n#define TILE 64\n__global__ void k(float* x) {\n"
        "#if __CUDA_ARCH__ >= NEWEST\n x[TILE] = NEWEST;\n#endif\n}\n"
    )
    assert made.parameters == ("tile",)


def test_text_that_a_template_would_read_as_its_own_is_spaced_out() -> None:
    made = snippet(
        "/*# heading #*/\n//% not a statement\n/*% nor this %*/\n// mail @{me}@\n#define TILE 8\n"
        "__global__ void k(float* x) { x[TILE] = 1; }\n"
    )
    rendered = Template.from_text(made.template, Path("k.cu.j2")).render({"tile": 8}).source
    assert "heading" in rendered
    assert "not a statement" in rendered
    assert "#define TILE 8" in rendered


def test_of_several_kernels_the_one_that_is_launched_is_drafted() -> None:
    two = "__global__ void a(int n) { }\n__global__ void b(int n) { }\n"
    assert snippet(two + "void f() { b<<<1, 2>>>(3); }\n").kernel == "b"


TWO_LAUNCHES = """
__global__ void scale(float* y, const float* x, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    y[i] = 2.f * x[i];
}
void go(float* y, const float* x, int n) {
  if (n <= 1024) {
    scale<<<1, 128>>>(y, x, n);
  } else {
    scale<<<(n + 255) / 256, 256>>>(y, x, n);
  }
}
"""
CALLED = "int main() { int n = 1 << 20; float *x, *y; go(y, x, n); }"
EARLY = TWO_LAUNCHES.replace("  } else {", "    return;\n  }\n  {")
BOTH = TWO_LAUNCHES.replace("n <= 1024", "n > 0 && n <= 1024")


APART = """
__global__ void scale(float* y, const float* x, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    y[i] = 2.f * x[i];
}
void small(float* y, const float* x, int n) { scale<<<1, 128>>>(y, x, n); }
void large(float* y, const float* x, int n) { scale<<<(n + 255) / 256, 256>>>(y, x, n); }

void go(float* y, const float* x, int size) {
  if (size <= 1024) small(y, x, size); else large(y, x, size);
}
"""


@pytest.mark.parametrize("text", [TWO_LAUNCHES, EARLY, BOTH, APART])
def test_of_several_launches_the_one_that_the_sizes_lead_to_is_the_baseline(text: str) -> None:
    made = snippet(text + CALLED)
    (launch,) = parse(made.space_yaml, made.space_path).data["baseline"]["launch"]
    assert (launch["grid"], launch["block"]) == (["ceil_div(n, 256)"], [256])
    assert "launch:  # sure: line " in made.space_yaml
    small = snippet(text + CALLED.replace("1 << 20", "1000"))
    (launch,) = parse(small.space_yaml, small.space_path).data["baseline"]["launch"]
    assert (launch["grid"], launch["block"]) == ([1], [128])


def test_of_a_switch_the_case_that_is_asked_for_is_launched() -> None:
    made = snippet(
        "template <int N> __global__ void k(float* x) { x[blockIdx.x * N + threadIdx.x] = N; }\n"
        "void f(float* x, int n, int threads) {\n switch (threads) {\n"
        "  case 512: k<512><<<n, threads>>>(x); break;\n"
        "  case 256: k<256><<<n, threads>>>(x); break;\n  default: break;\n }\n}\n"
        "int main() { float* x; f(x, 4096, 256); }\n"
    )
    (launch,) = parse(made.space_yaml, made.space_path).data["baseline"]["launch"]
    assert (launch["kernel"], launch["block"]) == ("k<256>", [256])


def test_blanks_in_comments_do_not_count() -> None:
    text = (
        "# FILL_IN is a blank\na: 1  # FILL IN: was FILL_IN\nb: FILL_IN\nc: [FILL_IN]  # FILL IN: c"
    )
    assert blanks(text) == [(3, "a value for FILL_IN"), (4, "c")]


@pytest.mark.parametrize(
    ("host", "values", "block"),
    [
        ("k<<<1, std::min(n, 1024)>>>(x, n);", "[0, 64, 128, 256, 512, 1024]", "else min(n, 1024)"),
        ("dim3 b(std::min<int>(n, 512)); k<<<1, b>>>(x, n);", None, "else min(n, 512)"),
        ("k<<<1, threads>>>(x, n);", "[64, 128, 256, 512, 1024]  # threads, line 4", "block_size"),
        ("switch (threads) { case 128: case 256: case 384: k<<<1, threads>>>(x, n); }",
         "[128, 256, 384]", "block_size"),
        ("k<<<1, pick(n)>>>(x, n);", "[64, 128, 256, 512, 1024]", "block_size"),
        ("int t = 32; while (t < n && t < 512) t *= 2; dim3 b(t, 1, 1); k<<<1, b>>>(x, n);",
         "[64, 128, 256, 512, 1024]  # t, line 4; 256 is a guess", "block_size"),
        ("k<<<1, dim3(128, 1, 1)>>>(x, n);", "[32, 64, 128, 256, 512]", "block_size"),
    ],
)  # fmt: skip
def test_a_block_that_the_host_computes_or_is_handed_is_a_parameter(
    host: str, values: str | None, block: str
) -> None:
    made = snippet(
        "__global__ void k(float* x, int n)\n"
        "{ for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = 1; }\n"
        f"void f(float* x, int n, int threads)\n{{ {host} }}\n"
    )
    assert f"block_size: {values or ''}" in made.space_yaml
    assert block in str(data(made)["launch"])


def test_flags_of_what_is_computed_are_left_out_and_said_so() -> None:
    made = snippet(
        "template <bool kCausal, bool kUseSmem>\n__global__ void k(float* x)"
        " { x[threadIdx.x] = kCausal + kUseSmem; }\n"
        "void f(float* x) { k<true, true><<<1, 32>>>(x); }\n"
    )
    assert made.parameters == ("use_smem",)
    assert "# kCausal = true (line 1) is left out: it says what is computed" in made.space_yaml


@pytest.mark.parametrize("block", ["dim3 threads(256);", "dim3 threads{256, 1};"])
def test_a_grid_may_ask_the_block_for_its_extents(block: str) -> None:
    made = snippet(
        "__global__ void k(float* x, int n) {\n"
        "  const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  if (i < n) x[i] = 2.0f * x[i];\n}\n"
        f"void run(float* x, int n) {{ {block}\n"
        "  k<<<(n + threads.x - 1) / threads.x, threads>>>(x, n); }\n"
    )
    assert 'grid: ["ceil_div(n, 256)"]' in made.space_yaml
    assert "grid: [FILL_IN]" not in made.space_yaml


TENSOR_MAP = (Path(__file__).parent / "data/tensor_map.cu").read_text(encoding="utf-8")


def test_a_tensor_map_is_drafted_as_the_host_code_encodes_it() -> None:
    made = snippet(TENSOR_MAP)
    drafted = data(made)
    launch = "arguments: [out, N, K]\n{0}  maps:\n{0}    - {{of: w, box: [{1}, 64], swizzle: 128"
    for indent, rows in (("    ", "64"), ("  ", "tile_n")):
        text = launch.replace("\n{0}", f"\n{indent}").replace("{1}", rows).replace("{{", "{")
        assert f"{text}, l2_promotion: 256}}  # likely: encoded in line 15" in made.space_yaml
    arguments = drafted["arguments"]
    assert isinstance(arguments, list)
    assert arguments[0] == {"name": "w", "dtype": "bfloat16", "shape": ["N", "K"], "role": "input"}
    assert [row for row in made.space_yaml.splitlines() if "- {name: w" in row and "guessed" in row]
    assert "w" in made.reference


def test_a_tensor_map_that_nothing_encodes_is_a_blank() -> None:
    made = snippet(TENSOR_MAP.replace("cuTensorMapEncodeTiled(", "make_map("))
    told = [what for _, what in blanks(made.space_yaml)]
    assert sum("the array of the map wmap, its box and swizzle" in what for what in told) == 2


GROUPS = (Path(__file__).parent / "data/groups.cu").read_text(encoding="utf-8")


def test_what_the_host_computes_from_a_constant_follows_it() -> None:
    # no axis `per_block`, which would not follow the threads
    made = snippet(GROUPS)
    assert data(made)["axes"] == ["rows", "width", "lanes"]
    launch = data(made)["baseline"]["launch"][0]
    assert launch["grid"] == ["ceil_div(rows, 256 // lanes)"]
    assert launch["block"] == ["min(width, 256)"]


TWICE = TWO_LAUNCHES.replace("if (n <= 1024) {", "if (n <= 0) return;").replace("} else {", "")
# sources, and what the draft of each says
SAID = {
    "a helper of PyTorch for the grid is known": (
        "__global__ void k(float* x, int n) { x[blockIdx.x] = n; }\nvoid f(float* x, int n) {"
        " k<<<at::cuda::detail::GET_BLOCKS(n), CUDA_NUM_THREADS>>>(x, n); }\n",
        'grid: ["ceil_div(n, 1024)"]', "block: [1024]",
    ),
    "the limit of a block is on the whole of it": (
        "__global__ void k(float* x, int n) { x[threadIdx.x] = n; }\n"
        "void f(float* x, int n) { dim3 b(n >= 512 ? 512 : n); k<<<1, b>>>(x, n); }\n",
        '"(512 if n >= 512 else n) <= 1024"',
    ),
    "a launch that a size nobody knows decides on is a guess that names the other": (
        TWO_LAUNCHES, "launch:  # guessed: line 8, where n <= 1024; otherwise line 10",
    ),
    "a second launch under the same condition makes the first no guess": (
        TWICE.rpartition("}")[0], "launch:  # sure: line 8",
    ),
    "sizes that lead to another launch are no workloads": (
        TWO_LAUNCHES + "int main() { float *x, *y; go(y, x, 100); go(y, x, 1 << 20); }",
        "tuned: [{n: 100}]",
    ),
    "a block that is guessed says so in the launch of the source": (
        "__global__ void k(float* x, int n)\n"
        "{ for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = 1; }\n"
        "void f(float* x, int n) { k<<<1, pick(n)>>>(x, n); }\n",
        "block: [256]  # guessed: the source says pick(n)\n", "block: [block_size]\n",
    ),
    "a number of elements in the launch is the parameter": (
        "template <int VEC> __global__ void k(float* x, int n)\n"
        "{ int i = threadIdx.x; x[i * VEC] = n; }\n"
        "void f(float* x, int n) { k<4><<<n / 4 / 128, 128>>>(x, n); }\n",
        "n // vec // 128",
    ),
    "a flag of what the data is says what is computed": (
        GROUPS, "kIsCircularBuffer = true (line 4) is left out: it says what",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_a_draft_says(name: str) -> None:
    text, *said = SAID[name]
    drafted_text = snippet(text).space_yaml
    assert [one for one in said if one not in drafted_text] == []


def test_a_flag_that_goes_with_other_shared_memory_is_left_out() -> None:
    made = snippet(
        "template <bool kUseSmem>\n__global__ void k(float* x, int n) {"
        " extern __shared__ float s[]; x[threadIdx.x] = kUseSmem ? s[n] : 1; }\n"
        "void run(float* x, int n) {\n"
        "  if (n < 1024) k<true><<<1, 128, n * sizeof(float)>>>(x, n);\n"
        "  else k<false><<<1, 128, 128>>>(x, n);\n}\n"
    )
    assert "use_smem" not in made.parameters
    assert "launches with its other value ask for other shared memory" in made.space_yaml


PROBLEM = """
#define MARK_LEFT 2
#define SPECIES 19
#define HALO 1
#define CREW 64
#define EACH 4
template <int AXES> __global__ void settle(float* y, const float* x, int n, int marks) {
  const int first = (blockIdx.x * CREW + threadIdx.x) * EACH;
  for (int i = first; i < first + EACH && i < n; ++i) {
    y[i] = AXES == 3 && (marks & MARK_LEFT) ? x[i + HALO] : 0;
    for (int s = 0; s < SPECIES; ++s) y[i] += x[s * n + i];
  }
}
void f(float* y, float* x, int n) { settle<2><<<n / (CREW * EACH), CREW>>>(y, x, n, 0); }
"""


def test_numbers_of_the_problem_are_no_parameters_and_said_so() -> None:
    made = snippet(PROBLEM)
    assert made.parameters[:2] == ("crew", "each")
    for name in ("MARK_LEFT = 2", "SPECIES = 19", "HALO = 1", "AXES = 2"):
        assert re.search(rf"# {name} \(line \d+\) is left out: ", made.space_yaml)
