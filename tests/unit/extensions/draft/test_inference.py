"""What a draft finds out by itself, in sources as people write them, and what it leaves blank."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.extensions.draft.drafting import Draft, draft
from tuner.source import parse_source, read_source
from tuner.space.blanks import blanks

DATA = Path(__file__).parents[2] / "data"
# what comes out of sources there
DRAFTS = Path(__file__).parent / "data"


def snippet(text: str) -> Draft:
    return draft(parse_source(text, Path("k.cu")))


def argument(text: str, name: str) -> str:
    rows = snippet(text).space_yaml.splitlines()
    return next(row for row in rows if row.startswith(f"  - {{name: {name},"))


def scaled(host: str, kernel: str = "if (i < n) y[i] = a * x[i];") -> str:
    return (
        f"__global__ void k(float* y, const float* x, float a, int n)\n"
        f"{{ int i = blockIdx.x * blockDim.x + threadIdx.x; {kernel} }}\n{host}\n"
    )


@pytest.mark.parametrize("path", sorted(DRAFTS.glob("*.yaml")), ids=lambda path: path.stem)
def test_all_but_sizes_that_no_host_code_gives_is_found_with_its_origin(path: Path) -> None:
    source = read_source(DATA / f"{path.stem}.cu")
    text = draft(source, folder=source.path.parent).space_yaml
    assert text == path.read_text(encoding="utf-8")
    asked = ["the sizes to tune for, one {...} each"] if path.stem == "gelu" else []
    assert [what for _, what in blanks(text)] == asked


@pytest.mark.parametrize(
    ("host", "workloads"),
    [
        ("int main() { k<<<1, 32>>>(y, x, 2.f, 1 << 20); }", "[{n: 1048576}]"),
        ("int main() { int n = 1e6; k<<<1, 32>>>(y, x, 2.f, n); }", "[{n: 1000000}]"),
        ("#define COUNT 3 * 7\nint main() { k<<<1, 32>>>(y, x, 2.f, COUNT); }", "[{n: 21}]"),
        ("int main(int c, char** v) { int n = c > 1 ? atoi(v[1]) : 4096;"
         " k<<<1, 32>>>(y, x, 2.f, n); }", "[{n: 4096}]"),
        ("void run(float* y, int rows, int cols) { int n = rows * cols;"
         " k<<<1, 32>>>(y, y, 2.f, n); }\n"
         "int main() { run(p, 4, 8); run(p, 2, 16); run(p, 4, 4); }", "[{n: 32}, {n: 16}]"),
        ("int main(int c, char** v) { k<<<1, 32>>>(y, x, 2.f, atoi(v[1])); }", "[{n: FILL_IN}]"),
        ("int main() { for (int n = 8; n < 99; n *= 2) k<<<1, 32>>>(y, x, 2.f, n); }",
         "[{n: FILL_IN}]"),
        ("void run(float* y, int n) { k<<<1, 32>>>(y, y, 2.f, n); }", "[{n: FILL_IN}]"),
    ],
)  # fmt: skip
def test_workloads_are_the_sizes_that_host_code_states(host: str, workloads: str) -> None:
    assert f"  tuned: {workloads}  #" in snippet(scaled(host)).space_yaml


@pytest.mark.parametrize(
    ("host", "shape"),
    [
        ("cudaMalloc(&p, n * sizeof(float));", "[n]"),
        ("cudaMalloc(&p, 4 * n);", "[n]"),
        ("cudaMalloc(&p, sizeof(float) * (n + 2));", "[n + 2]"),
        ("size_t bytes = n * sizeof(float); cudaMalloc(&p, bytes);", "[n]"),
        ("float* p = new float[n * 3];", "[n, 3]"),
        ("thrust::device_vector<float> d(n); p = d.data().get();", "[n]"),
        ("thrust::device_vector<float> d(n); p = thrust::raw_pointer_cast(&d[0]);", "[n]"),
        ("cudaMalloc(&p, 2 * n * sizeof(float)); cudaMalloc(&p, n * sizeof(float));", None),
        ("cudaMalloc(&p, n * sizeof(double) - 4);", None),
        ("cudaMalloc(&p, unknown);", None),
    ],
)
def test_the_memory_asked_for_gives_a_shape(host: str, shape: str | None) -> None:
    main = f"int main() {{ int n = 64; float *p; {host} k<<<1, 64>>>(p, p, 2.f, n); }}"
    row = argument(scaled(main, kernel="helper(y, x, i);"), "y")
    assert f"shape: {shape or '[FILL_IN]'}" in row
    assert ("FILL IN: the shape of y" in row) is (shape is None)
    assert ("the vector, line 3" in row) is ("vector" in host)


@pytest.mark.parametrize(
    ("kernel", "shape"),
    [
        ("if (i < n) y[i] = 0;", "[n]"),
        ("if (i >= n) return; y[i] = 0;", "[n]"),
        ("if (i < n / 4) for (int j = 0; j < 4; ++j) y[i * 4 + j] = 0;", "[n]"),
        ("if (i < n) for (int j = 0; j < 3; ++j) y[j * n + i] = 0;", "[3, n]"),
        ("if (i < n) for (int j = 0; j < n; ++j) y[(j * n + i) * 2 + 1] = 0;", "[n, 2 * n]"),
        ("y[i] = 0;", None),
        ("if (i < n) y[i + 1] = 0;", "[n + 1]"),
        ("if (i < n) { y[i + 1] = 0; y[i] = 0; }", "[n + 1]"),
        ("if (i < n - 4) for (int j = 0; j < 5; ++j) y[i + j] = 0;", "[n]"),
        ("if (i < n) { y[i] = 0; helper(y); }", "[n]"),
        ("if (i < n) { y[i] = 0; y[i * n] = 0; }", "[n, n]"),
    ],
)
def test_the_index_gives_a_shape_only_where_it_is_bounded(kernel: str, shape: str | None) -> None:
    row = argument(scaled("void f(float* p, int n) { k<<<1, 64>>>(p, p, 2.f, n); }", kernel), "y")
    assert f"shape: {shape or '[FILL_IN]'}" in row


ROWS = (
    "struct alignas(16) Lanes { float lane[4]; };\n"
    "__device__ void clear(float* row, int cols)"
    " { for (int c = threadIdx.x; c < cols; c += blockDim.x) row[c] = 0; }\n"
    "__global__ void k(float* y, int rows, int cols, int stride)\n"
    "{ const int row = blockIdx.x; %s }\n"
    "void f(float* p, int m, int n) { k<<<m, 64>>>(p, m, n, n); }\n"
)


@pytest.mark.parametrize(
    "kernel",
    [
        "float* at = y + row * cols; at[threadIdx.x] = 0;",
        "y += (int64_t)row * cols; unknown(y);",
        "clear(&y[row * cols], cols);",
        "clear(y + static_cast<size_t>(row) * stride, cols);",
        "float4* at = reinterpret_cast<float4*>(y + row * cols); at[threadIdx.x] = {};",
        "auto* at = (char*)y + row * cols * 4; ((float*)at)[threadIdx.x] = 0;",
        "y[row * cols + (threadIdx.x * 4 + 1)] = 0;",
    ],
)
def test_rows_that_are_so_far_apart_are_a_shape_whatever_runs_over_one(kernel: str) -> None:
    assert "shape: [m, cols]" in argument(ROWS % kernel, "y").replace("rows, cols", "m, cols")
    assert argument(ROWS % kernel, "y").count("FILL_IN") == 0


@pytest.mark.parametrize(
    "kernel",
    [
        "const int left = cols - i; Load(t).Load(y + i, values, left);",
        "const int left = cols - i > 8 ? 8 : cols - i; Load(t).Load(&(y[i]), values, left);",
        "store(y + i, values, min(8, cols - i));",
    ],
)
def test_what_is_left_of_an_array_says_how_long_it_is(kernel: str) -> None:
    assert "shape: [cols]" in argument(ROWS % f"int i = threadIdx.x * 8; {kernel}", "y")


@pytest.mark.parametrize(
    ("kernel", "shape"),
    [
        ("for (int i = start; i < end; i += blockDim.x) y[i] = 0;", "[m, cols]"),
        ("for (int i = start; i < end; i += blockDim.x) y[i - first] = 0;", "[cols]"),
        ("for (int i = start; i < end; i += blockDim.x) y[i - rows] = 0;", None),
    ],
)
def test_a_loop_from_a_start_to_a_start_and_a_size_runs_over_that_size(
    kernel: str, shape: str | None
) -> None:
    around = "const int first = row * cols, start = first + threadIdx.x, end = first + cols; "
    told = argument(ROWS % (around + kernel), "y").replace("rows, cols", "m, cols")
    assert f"shape: {shape or '[FILL_IN]'}" in told


def test_threads_of_a_fixed_block_are_a_dimension_where_the_index_has_their_number() -> None:
    text = (
        "__global__ void k(int* y) { y[blockIdx.x * %s + threadIdx.x] = 0; }\n"
        "void f(int* p, int blocks) { k<<<blocks, 32>>>(p); }\n"
    )
    assert "shape: [blocks, 32]" in argument(text % 32, "y")
    assert "shape: [blocks, 32]" not in argument(text % 64, "y")


def test_a_pointer_that_is_only_compared_is_not_touched() -> None:
    row = argument(ROWS % "if (y != nullptr && threadIdx.x < cols) y[threadIdx.x] = 0;", "y")
    assert "shape: [cols]" in row
    assert "guessed" not in row


def test_the_page_on_drafts_shows_what_comes_out() -> None:
    page = (Path(__file__).parents[4] / "docs" / "drafts.md").read_text(encoding="utf-8")
    code, shown = (
        page.partition(f"```{kind}\n")[2].partition("```")[0] for kind in ("cuda", "yaml")
    )
    made = draft(parse_source(code, Path("add_bias.cu")))
    rows = made.space_yaml.splitlines()
    assert [line for line in shown.splitlines() if line not in rows] == []
    assert blanks(made.space_yaml) == []


def test_a_size_that_memory_is_asked_for_by_is_no_choice() -> None:
    made = snippet(
        "#define COUNT 4096\n__global__ void k(float* x)\n"
        "{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < COUNT) x[i] = 1; }\n"
        "int main() { float* x; cudaMalloc(&x, COUNT * 4); k<<<COUNT / 64, 64>>>(x); }\n"
    )
    assert made.parameters == ("block_size", "min_blocks", "vec", "streaming", "items")
    assert "axes: [COUNT]  # fixed in the source: COUNT in line 1" in made.space_yaml
    assert "# COUNT = 4096 (line 1) is left out: it is a size of the problem" in made.space_yaml


@pytest.mark.parametrize(
    ("passed", "value"),
    [("2.5f", "2.5"), ("-1e-3f", "-0.001"), ("3", "3.0"), ("alpha", "0.25"), ("EPS", "1e-06")],
)
def test_a_scalar_has_the_value_that_it_is_passed(passed: str, value: str) -> None:
    host = (
        f"#define EPS 1e-6f\nvoid f(float* p, int n) {{ const float alpha = 0.25f; "
        f"k<<<1, 64>>>(p, p, {passed}, n); }}"
    )
    assert f"value: {value}}}  # sure: " in argument(scaled(host), "a")


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ("float {}", "0.5}  # guessed: "),
        ("bool {}", "true}  # guessed: "),
        ("float epsilon", "1e-06}  # guessed: "),
        ("double weight_decay", "0.01}  # guessed: "),
        ("Mode {}", "2}  # guessed: ADD, one of ADD, MULTIPLY"),
        ("float slope", "0.3}  # likely: the default in line 3"),
    ],
)
def test_a_number_that_only_a_caller_knows_is_guessed(declared: str, value: str) -> None:
    declared = declared.format("a")
    name = declared.split()[-1]
    text = (
        f"enum Mode {{ ADD = 2, MULTIPLY }};\n__global__ void k(float* y, {declared}, int n)"
        f" {{ y[0] = {name}; }}\nvoid f(float* p, {declared} {'= 0.3' if name == 'slope' else ''}, "
        f"int n) {{ k<<<1, 64>>>(p, {name}, n); }}"
    )
    assert f"value: {value}" in argument(text, name)


def test_of_numbers_that_only_a_caller_knows_no_two_are_equal() -> None:
    text = (
        "__global__ void k(float* y, const float* x, float a, float b, float lo, float hi, int n)\n"
        "{ int i = threadIdx.x; if (i < n) y[i] = fminf(fmaxf(a * x[i] + b, lo), hi); }\n"
        "void f(float* y, const float* x, float a, float b, float lo, float hi, int n)\n"
        "{ k<<<1, 64>>>(y, x, a, b, lo, hi, n); }\n"
    )
    for name, value in (("a", "0.5"), ("b", "0.75"), ("lo", "-0.5"), ("hi", "0.375")):
        assert f"value: {value}}}  # guessed: " in argument(text, name)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        ("float", "measured"),
        ("double", "measured"),
        ("__half", "measured"),
        ("__nv_fp8_e4m3", "{codes: 0.02}"),
        ("unsigned char", "{absolute: 0}"),
        ("Packed", "FILL_IN"),
    ],
)
def test_the_tolerance_follows_from_the_dtype(dtype: str, tolerance: str) -> None:
    text = f"__global__ void k({dtype}* y, int n) {{ int i = threadIdx.x; if (i < n) y[i] = n; }}"
    assert f"  y: {tolerance}" in snippet(text).space_yaml


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ("long s = t.dim() == 3 ? t.stride(0) : 0; k<<<rows, 64>>>(y, y, n, s);", "n"),
        ("if (t.defined()) k<<<rows, 64>>>(y, y, n, 0);"
         " else k<<<rows, 64>>>(y, y, n, t.stride(0));", "stride"),
        ("long s = 0; if (t.defined()) s = t.stride(0); k<<<rows, 64>>>(y, y, n, s);", "n"),
        ("k<<<rows, 64>>>(y, y, n, 0);", "0"),
    ],
)  # fmt: skip
def test_a_stride_of_one_branch_is_no_number(host: str, told: str) -> None:
    row = argument(
        "__global__ void k(float* y, const float* x, int n, long stride) { int i = threadIdx.x;"
        " if (i < n) y[blockIdx.x * n + i] = x[blockIdx.x * stride + i]; }\n"
        f"void f(float* y, Tensor t, int rows, int n) {{ {host} }}",
        "stride",
    )
    assert f"value: {told}}}" in row


LINEAR = (
    "__global__ void k(float* y, const float* x, const float* w, int N, int K) {{\n"
    "  for (int n = threadIdx.x; n < N; n += blockDim.x) {{ float s = 0; int k = 0;\n"
    "    while (k + 1 <= K) {{ s += x[blockIdx.x * K + k] * w[{index}]; ++k; }}\n"
    "    y[blockIdx.x * N + n] = s; }} }}\n"
    "int main() {{ int M = 8, N = 64, K = 32; float *x, *w, *y; cudaMalloc(&x, M * K * 4);\n"
    "  cudaMalloc(&w, {size} * 4); cudaMalloc(&y, M * N * 4); k<<<M, 64>>>(y, x, w, N, K); }}\n"
)


@pytest.mark.parametrize(
    ("index", "size", "shape", "told"),
    [
        ("n * K + k", "K * N", "[N, K]", "sure: cudaMalloc, line 6; indexed in line 3"),
        ("k * N + n", "N * K", "[K, N]", "sure: cudaMalloc, line 6; indexed in line 3"),
        ("n * K + k", "N * K", "[N, K]", "sure: cudaMalloc, line 6; indexed in line 3"),
        ("k + K * n", "K * N", "[N, K]", "sure: "),
        ("at(n, k)", "K * N", "[K, N]", "guessed: cudaMalloc, line 6, in its order; const"),
    ],
)
def test_an_index_that_runs_over_rows_tells_which_way_round_the_memory_is(
    index: str, size: str, shape: str, told: str
) -> None:
    row = argument(LINEAR.format(index=index, size=size), "w")
    assert f"shape: {shape}" in row
    assert f"# {told}" in row


COPY = (
    "__global__ void k(float* y, const float* x, int rows, int cols)"
    " {{ for (int c = threadIdx.x; c < cols; ++c) y[blockIdx.x * cols + c] = x[c]; }}\n"
    "int main() {{ float *x, *y; cudaMalloc(&y, {size} * 4); k<<<64, 64>>>(y, x, 64, 4096); }}\n"
)


@pytest.mark.parametrize("size", ["64 * 4096", "262144"])
def test_a_number_that_axes_always_make_is_written_as_those_axes(size: str) -> None:
    row = argument(COPY.format(size=size), "y")
    assert "shape: [rows, cols]" in row
    assert "rows * cols wherever it is launched" in row


@pytest.mark.parametrize(
    ("declared", "blank"),
    [
        ("__constant__ float taps[9];", True),
        ("__constant__ float taps[9] = {1, 2, 3};", False),
        ("__constant__ float other[9]; __device__ float taps[9];", False),
    ],
)
def test_constant_memory_that_only_host_code_fills_is_a_blank(declared: str, blank: bool) -> None:
    text = (
        f"{declared}\n__global__ void k(float* y, int n)"
        " { int i = threadIdx.x; if (i < n) y[i] = taps[i]; }\n"
        "void f(float* y, int n) { cudaMemcpyToSymbol(taps, y, 36); k<<<1, 64>>>(y, n); }\n"
    )
    left = [what for _, what in blanks(snippet(text).space_yaml)]
    told = "nothing fills taps here (__constant__ float taps[9], line 1)"
    assert any(told in what for what in left) is blank


@pytest.mark.parametrize(
    ("kernel", "role"),
    [
        ("if (i < n) y[i] = x[i];", "role: output}  # likely: indexed in line 2: y[i]; written"),
        ("if (i < n) y[i] += x[i];", "role: inout}  # likely: indexed in line 2: y[i]; read, line"),
        ("if (i < n) mystery(y, i);", "role: inout}  # FILL IN: the shape of y over the axes; "
         "guessed: handed to mystery(), line 2"),
        ("if (i < n) store4(y + i);", "output by the name of store4(), line 2"),
    ],
)  # fmt: skip
def test_a_role_says_what_it_is_from(kernel: str, role: str) -> None:
    assert role in argument(
        scaled("void f(float* p, int n) { k<<<1, 64>>>(p, p, 2.f, n); }", kernel), "y"
    )


@pytest.mark.parametrize(
    ("body", "role"),
    [
        ("y[i] = 1; y[i] /= 2;", "output"),
        ("for (int k = 0; k < n; ++k) { for (int j = 0; j < k; ++j) s += y[j]; y[k] = s; }",
         "output"),
        ("y[i] = y[i] + 1;", "inout"),
        ("s = y[i]; y[i] = s;", "inout"),
        ("for (int k = 0; k < n; ++k) { s += y[k + 1]; y[k] = s; }", "inout"),
        ("y[i] = 1; s = y[i + 1];", "inout"),
    ],
)  # fmt: skip
def test_what_reads_only_its_own_results_is_an_output(body: str, role: str) -> None:
    text = f"__global__ void k(float* y, int n) {{ float s = 0; int i = threadIdx.x; {body} }}\n"
    row = argument(f"{text}void f(float* p, int n) {{ k<<<1, 64>>>(p, n); }}", "y")
    assert f"role: {role}}}" in row


SAXPY = "__global__ void k(float* y, const float* x, float a, int n) "
SAXPY += "{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = a * x[i]; }\n"


# sources, and what a line of each draft says: of an argument, where there is its name
SAID = {
    "a shape never depends on what is tuned": (
        "#define BLOCK 128\n__global__ void k(float* part, const float* x, int n) {\n"
        "  if (threadIdx.x == 0) part[blockIdx.x] = x[0]; }\n"
        "void f(float* p, int n) { k<<<(n + BLOCK - 1) / BLOCK, BLOCK>>>(p, p, n); }\n",
        {"part": ["shape: [ceil_div(n, 128)]"],
         "": ["# BLOCK = 128 is left out: an array has an element for each block"]},
    ),
    "a null pointer is passed as zero, and an offset of zero is no size": (
        "__global__ void k(float* y, const float* bias, int from, int n)\n"
        "{ int i = threadIdx.x; if (i < n) y[i] = bias ? bias[i] : from; }\n"
        "void f(float* p, int n) { k<<<1, 64>>>(p, nullptr, 0, n); }\n",
        {"bias": ["dtype: int64, value: 0}  # sure: a null pointer, line 3"],
         "from": ["value: 0}  # sure: line 3"], "": ["axes: [n]\n"]},
    ),
    "a vector width says how far it may go": (
        "#define VEC 2\n__global__ void k(__half* y, int n)\n"
        "{ int i = threadIdx.x * VEC; if (i < n) y[i] = n; }",
        {"": ["  vec: [1, 2, 4, 8]  # VEC, line 1; at most 16"]},
    ),
    "a number beside an axis is a guess and says so": (
        "__global__ void k(float* y, int rows) { int c = threadIdx.x;\n"
        "  if (c < 96) y[blockIdx.x * 96 + c] = 1; }\n"
        "void f(float* y, int rows) { k<<<rows, 96>>>(y, rows); }\n",
        {"y": ["shape: [rows, 96]", "# guessed: ", "96 is a number in the source, no axis"]},
    ),
    "a launch with space before its arguments passes them": (
        f"{SAXPY}int main() {{ const int size = 64; const float by = 0.25f;\n"
        "k<<<1, 64>>> (\n  p, p,\n  by, size); }",
        {"a": ["value: 0.25}  # sure: passed in line 3"], "": ["tuned: [{n: 64}]"]},
    ),
    "blocks by ceil of a quotient of floats are a ceil_div": (
        f"{SAXPY}void run(float* p, int n) {{ dim3 block(64, 1);\n"
        "dim3 grid((size_t)(ceil(((float)n) / ((float)block.x))), 1);\n"
        "k<<<grid, block>>>(p, p, 1.f, n); }",
        {"": ['grid: ["ceil_div(n, 64)"]']},
    ),
    "one of an array of pointers has the memory of all": (
        SAXPY.replace("y[i] = ", "put(y, i) + ")
        + "int main() { int n = 64; float* both[2]; int at = 1;\n"
        "cudaMalloc((void**)&both[0], n * 4); cudaMalloc((void**)&both[1], n * 4);\n"
        "k<<<1, 64>>>(both[at], both[1 - at], 1.f, n); }",
        {"y": ["shape: [n]", "cudaMalloc"]},
    ),
    "an enumerator that is passed is the value": (
        "typedef enum{ PLAIN, NESTEROV = 3 } mode_t_;\n"
        "__global__ void k(float* x, mode_t_ mode) { x[0] = mode; }\n"
        "int main() { mode_t_ mode = NESTEROV; k<<<1, 1>>>(x, mode); }\n",
        {"mode": ["value: 3}  # sure: NESTEROV, one of PLAIN, NESTEROV"]},
    ),
    "a block of one row has no rows to count": (
        "__global__ void k(float* x, int cols) { int row = blockIdx.x*blockDim.y + threadIdx.y;\n"
        "x += int64_t(row)*cols; for (int c = threadIdx.x; c < cols; c += 32) x[c] = 0; }\n"
        "void run(float* x, int rows, int cols) { k<<<rows, dim3(32, 1, 1)>>>(x, cols); }\n",
        {"x": ["shape: [rows, cols]"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_a_draft_says(name: str) -> None:
    text, said = SAID[name]
    for of, pieces in said.items():
        line = argument(text, of) if of else snippet(text).space_yaml
        assert [piece for piece in pieces if piece not in line] == []


def test_a_struct_of_numbers_of_one_type_is_a_row_of_them() -> None:
    text = "typedef struct { float x, y, z; float w[3]; } Body;\n"
    text += "__global__ void k(Body* p, int n) { int i = threadIdx.x; if (i < n) p[i].x = 0; }\n"
    text += "int main() { int n = 32; Body* p; cudaMalloc(&p, n * sizeof(Body));\n"
    row = argument(text + "k<<<1, 32>>>(p, n); }", "p")
    assert "dtype: float32, shape: [n, 6]" in row
    mixed = text.replace("float w[3]", "int w[3]")
    assert "dtype: FILL_IN" in argument(mixed + "k<<<1, 32>>>(p, n); }", "p")


def test_a_block_by_a_constant_at_most_what_the_device_takes_has_one_parameter() -> None:
    text = SAXPY + "#define THREADS_MAX 256\nvoid run(float* p, int n) { cudaDeviceProp prop;\n"
    text += "int t = min(prop.maxThreadsPerBlock, THREADS_MAX);\n"
    made = snippet(text + "k<<<(n + t - 1) / t, t>>>(p, p, 1.f, n); }")
    assert "block: [256]" in made.space_yaml
    assert "block_size:" not in made.space_yaml


TAKEN_APART = """
__global__ void k(float* y, const float* x, const float* w, const float* g, const float* c,
                  int total, int depth, int width) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += blockDim.x * gridDim.x) {
    int row = i / width / depth;
    int col = (i / width) % depth;
    y[i] = x[i] * w[i % width] + g[row] * c[0] - c[3] * w[col % width];
  }
}
"""


@pytest.mark.parametrize(
    ("name", "shape", "certainty"),
    [
        ("w", "[width]", "likely"),
        ("g", "[ceil_div(total, width * depth)]", "likely"),
        # numbers one by one
        ("c", "[4]", "guessed"),
        ("y", "[total]", "likely"),
    ],
)
def test_an_index_that_takes_another_apart_runs_over_its_part(
    name: str, shape: str, certainty: str
) -> None:
    row = argument(TAKEN_APART, name)
    assert f"shape: {shape}" in row
    assert f"# {certainty}:" in row


@pytest.mark.parametrize(
    ("kernel", "role"),
    [
        ("if (i >= 1 && i < n - 1) y[i] = x[i - 1] + x[i + 1];", "inout"),
        ("if (i > 0 && i < n) y[i] = x[i - 1];", "inout"),
        ("if (i < 2 || i >= n) return; y[i] = x[i - 2];", "inout"),
        ("int at = i + 1; if (at < n) y[at] = x[i];", "inout"),
        ("if (i < n) y[i + 1] = x[i];", "inout"),
        ("if (i >= 0 && i < n) y[i] = x[i];", "output"),
        ("if (i > 0) y[i] = x[i]; else y[i] = 0;", "output"),
        ("if (i < n) { y[2 * i] = x[i]; y[2 * i + 1] = a; }", "output"),
        ("if (i < (n + 31) / 32) y[i] = x[i];", "output"),
    ],
)
def test_what_is_written_within_a_border_alone_keeps_what_it_had(kernel: str, role: str) -> None:
    row = argument(scaled("void f() { k<<<1, 32>>>(y, x, 2.f, 8); }", kernel), "y")
    assert f"role: {role}" in row
    assert ("guessed" in row) or role == "output"


def test_a_number_that_sizes_nothing_has_a_value_and_is_no_axis() -> None:
    text = (
        "__global__ void k(float* y, const float* x, int n, int lead, int how)\n"
        "{ int i = blockIdx.x * blockDim.x + threadIdx.x;"
        " if (i < n) y[i] = how ? x[i] + lead : -x[i]; }\n"
        "void f(int n, int how) { k<<<(n + 31) / 32, 32>>>(y, x, n, 0, how); }\n"
    )
    made = snippet(text).space_yaml
    assert "axes: [n]\n" in made
    assert "{name: lead, dtype: int32, value: 0}  # sure: line" in made
    assert "{name: how, dtype: int32, value: 1}  # guessed: " in made


def test_of_more_than_ten_sizes_the_last_that_nothing_follows_from_are_values() -> None:
    names = [f"m{place}" for place in range(12)]
    sums = " + ".join(f"i % {name}" for name in names)
    text = (
        f"__global__ void k(float* y, int n, {', '.join(f'int {n}' for n in names)})\n"
        "{ int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        f"  if (i < n) y[i] = {sums}; }}\n"
        f"void run(float* y, int n, int m) {{ k<<<n, 256>>>(y, n, {'m, ' * 10}5, m); }}"
    )
    assert f"axes: [n, {', '.join(names[:9])}]" in snippet(text).space_yaml
    assert argument(text, "m10") == "  - {name: m10, dtype: int32, value: 5}  # sure: line 4"
    assert "FILL IN: the value of m11; guessed: no axis" in argument(text, "m11")


def test_inputs_of_mixed_structs_are_their_bytes() -> None:
    made = draft(
        parse_source(
            "struct Box { double low[2]; float4 color; short kind; char tag; };\n"
            "__global__ void k(float* y, const Box* in, Box* out, int n) {\n"
            "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
            "  if (i < n) { y[i] = in[i].kind; out[i].kind = 1; }\n}\n"
            "void f(float* y, Box* a, Box* b, int n) { k<<<n / 32, 32>>>(y, a, b, n); }\n",
            Path("k.cu"),
        )
    )
    assert "name: in, dtype: uint8, shape: [n, 48], role: input}" in made.space_yaml
    assert "name: out, dtype: FILL_IN, shape: [n, 48]" in made.space_yaml
