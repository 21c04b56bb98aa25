"""Reading CUDA source, from plain files to what a syntax tree trips over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.model.errors import KernelError
from tuner.source import parse_source, read_source
from tuner.source.facts import SourceFile

DATA = Path(__file__).parents[1] / "data"
PATH = Path("k.cu")


def parse(text: str) -> SourceFile:
    return parse_source(text, PATH)


def test_a_plain_kernel_and_its_launch_are_read() -> None:
    source = read_source(DATA / "saxpy.cu")
    (kernel,), (site,) = source.kernels, source.launches
    assert (kernel.name, kernel.line) == ("saxpy", 6)
    assert [(p.name, p.dtype, p.pointers, p.const) for p in kernel.parameters] == [
        ("n", "int32", 0, False),
        ("a", "float32", 0, False),
        ("x", "float32", 1, True),
        ("y", "float32", 1, False),
    ]

    assert (site.kernel, site.grid, site.block) == ("saxpy", ("(n + 255) / 256",), ("256",))
    assert (site.shared, site.line) == ("0", 22)
    assert site.arguments == ("n", "2.0f", "x", "y")


def test_a_kernel_in_framework_style_is_read_whole() -> None:
    source = read_source(DATA / "framework_norm.cu")
    (kernel,) = source.kernels
    assert kernel.qualified_name == "ops::norm::scale_rows_kernel"
    assert [(t.name, t.kind, t.default) for t in kernel.template] == [
        ("scalar_t", "typename", None),
        ("kAddResidual", "bool", None),
    ]
    assert kernel.bounds is not None
    assert (kernel.bounds.max_threads, kernel.bounds.min_blocks) == ("kMaxThreads", "1")
    dtypes = [p.dtype for p in kernel.parameters]
    assert dtypes == [None, None, None, "bfloat16", "int64", "float32"]
    names = [p.name for p in source.kernel("ops::norm::scale_rows_kernel<x>").parameters]
    assert names == ["out", "in", "residual", "weight", "hidden", "eps"]
    assert {c.name: c.number for c in source.constants if c.number is not None} == {
        "kWarpSize": 32,
        "kVecSize": 8,
        "kMaxThreads": 1024,
        "kUseCacheHint": True,
    }
    (site,) = source.launches
    assert site.kernel == "norm::scale_rows_kernel"
    assert site.template_arguments == ("scalar_t", "false")
    assert site.grid == ("tokens",)


def test_shared_arrays_hide_no_kernel() -> None:
    source = read_source(DATA / "block_reduce.cu")
    assert [kernel.name for kernel in source.kernels] == ["row_sum"]
    assert [(unroll.line, unroll.factor) for unroll in source.unrolls] == [(13, None)]


@pytest.mark.parametrize(
    "head",
    [
        "__global__ void __launch_bounds__(256, 2) k(int n)",
        "__global__ __launch_bounds__(256, 2) void k(int n)",
        "__launch_bounds__(256, 2) __global__ void k(int n)",
        "static __global__ void\n__launch_bounds__(256,\n  2)\nk(int n)",
        'extern "C" __global__ void __launch_bounds__(256, 2, 1) k(int n)',
        "__global__ __cluster_dims__(2, 1, 1) void __launch_bounds__(256, 2) k(int n)",
    ],
)
def test_launch_bounds_are_found_wherever_they_stand(head: str) -> None:
    (kernel,) = parse(f"{head} {{ }}").kernels
    assert kernel.name == "k"
    assert kernel.bounds is not None
    assert (kernel.bounds.max_threads, kernel.bounds.min_blocks) == ("256", "2")


@pytest.mark.parametrize(
    ("parameter", "read"),
    [
        ("const float* __restrict__ x", ("x", "float", 1, True, "float32")),
        ("float const *const __restrict__ x", ("x", "float", 1, True, "float32")),
        ("float x[]", ("x", "float", 1, False, "float32")),
        ("const float* const* x", ("x", "float", 2, True, "float32")),
        ("unsigned", ("", "unsigned", 0, False, "uint32")),
        ("const unsigned long long n = 0", ("n", "unsigned long long", 0, True, "uint64")),
        ("std::int64_t n", ("n", "std::int64_t", 0, False, "int64")),
        ("const __grid_constant__ CUtensorMap m", ("m", "CUtensorMap", 0, True, None)),
        ("Array<float*, 4> a", ("a", "Array<float*, 4>", 0, False, None)),
        ("c10::BFloat16* y", ("y", "c10::BFloat16", 1, False, "bfloat16")),
        ("__nv_fp8_e4m3 *q", ("q", "__nv_fp8_e4m3", 1, False, "float8_e4m3")),
        ("[[maybe_unused]] int n", ("n", "int", 0, False, "int32")),
        ("typename T::value* v", ("v", "T::value", 1, False, None)),
    ],
)
def test_parameters_are_read_in_every_spelling(
    parameter: str, read: tuple[str, str, int, bool, str | None]
) -> None:
    (kernel,) = parse(f"__global__ void k({parameter}) {{ }}").kernels
    (p,) = kernel.parameters
    assert (p.name, p.c_type, p.pointers, p.const, p.dtype) == read
    assert kernel.parameters_known


@pytest.mark.parametrize(
    ("parameters", "known"),
    [
        *((empty, True) for empty in ("", "void", " ")),
        *(("COMMON_ARGS", False), ("int n, COMMON_ARGS", False), ("Ts... values", False)),
        ("int n\n#ifdef X\n, int m\n#endif\n", False),
    ],
)
def test_a_list_is_known_unless_it_has_macros_packs_or_conditionals(
    parameters: str, known: bool
) -> None:
    (kernel,) = parse(f"template <typename... Ts> __global__ void k({parameters}) {{ }}").kernels
    assert kernel.parameters_known is known
    assert not known or kernel.parameters == ()


def test_aliases_resolve_and_ambiguous_or_hidden_ones_do_not() -> None:
    source = parse(
        "using bf16 = __nv_bfloat16;\ntypedef bf16 element;\n#define INDEX long long\n"
        "#ifdef HALF\nusing real = half;\n#else\nusing real = float;\n#endif\n"
        "template <class bf16> __global__ void k(element* a, INDEX n, real* b, bf16* c) { }\n"
    )
    assert [p.dtype for p in source.kernels[0].parameters][1:] == ["int64", None, None]
    (kernel,) = parse("using T = half;\ntypedef T E;\n__global__ void k(E* x) { }").kernels
    assert kernel.parameters[0].dtype == "float16"


def test_template_parameters_have_kinds_and_defaults() -> None:
    (kernel,) = parse(
        "template <typename T, int V = 4, bool B = (2 > 1), class U = Pair<int, 3>,"
        " T (*Op)(const T&)>\n__global__ void k(T* x) { }"
    ).kernels
    assert [(t.name, t.kind, t.default) for t in kernel.template] == [
        ("T", "typename", None),
        ("V", "int", "4"),
        ("B", "bool", "(2 > 1)"),
        ("U", "class", "Pair<int, 3>"),
        ("Op", "T (*)(const T&)", None),
    ]


def test_constants_of_every_kind_are_read_with_their_numbers() -> None:
    source = parse(
        "#define N 256 // threads\n#define FLAG\n#define F(x) (x)\n#define HALF_N (N / 2)\n"
        "constexpr int A = 1 << 4, B = 3;\nstatic constexpr unsigned C = 0x20u;\n"
        "const int D{7};\nconstexpr float E = 1.5f;\nstruct S { static constexpr int V = 8; };\n"
        "__global__ void k() { constexpr int L = 4 * 8; int plain = 5; }\n"
    )
    assert [(c.name, c.number, c.line) for c in source.constants] == [
        ("N", 256, 1),
        ("HALF_N", None, 4),
        ("A", 16, 5),
        ("B", 3, 5),
        ("C", 32, 6),
        ("D", 7, 7),
        ("E", None, 8),
        ("V", 8, 9),
        ("L", 32, 10),
    ]
    for constant in source.constants:
        assert source.text[slice(*constant.span)] == constant.value


def test_offsets_hold_after_characters_outside_ascii() -> None:
    source = parse("// größe: Ω ☃ 𝕏\n#define N 256\n__global__ void k(int n) { }\n")
    assert source.text[slice(*source.constants[0].span)] == "256"
    assert source.text[slice(*source.kernels[0].span)] == "__global__ void k(int n) { }"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('// __global__ void a() { }\n/* k<<<1, 2>>>(); */\n'
         'const char* text = "__global__ void b() { }";\n__global__ void k() { }\n', 4),
        ('#define KERNEL extern "C" __global__\nKERNEL void k(float* x) { }', 2),
        ("struct { int a\n\n__global__ void k(float* x) { x[0] = 1; }\n}}}} )\n", 3),
        ("__global__ void k(int n);\n__global__ void k(int n) { }\n", 2),
    ],
    ids=["comments and strings", "macro", "broken code", "prototype"],
)  # fmt: skip
def test_only_the_kernel_is_found_whatever_is_around_it(text: str, line: int) -> None:
    source = parse(text)
    assert [(kernel.name, kernel.line) for kernel in source.kernels] == [("k", line)]
    assert source.launches == ()


LAUNCHES = {
    "dim3 variables": "dim3 const block(32, 4);\ndim3 grid{(n + 3) / 4};\nk<<<grid, block>>>(n);",
    "two of one declaration": "dim3 grid((n + 3) / 4), block(32, 4);\nk<<<grid, block>>>(n);",
    "dim3 values": "auto grid = dim3((n + 3) / 4); k<<<grid, dim3(32, 4)>>>(n);",
    "members": "dim3 grid, block;\ngrid.x = (n + 3) / 4;\nblock.x = 32; block.y = 4;\n"
    "k <<< grid, block >>> (n);",
    "a config": "cudaLaunchConfig_t c = {};\nc.gridDim = (n + 3) / 4;\nc.blockDim = dim3(32, 4);\n"
    "cudaLaunchKernelEx(&c, k, n);",
    "a whole config": "cudaLaunchConfig_t c{(n + 3) / 4, dim3(32, 4), 0, s};\n"
    "cudaLaunchKernelEx(&c, k, n);",
    "a pointer": "auto f = &k;\nvoid* args[] = {&n};\n"
    "cudaLaunchKernel((const void*)f, dim3((n + 3) / 4), dim3(32, 4), args, 0, s);",
    "a macro": "#define RUN(n) \\\n  k \\\n  <<<(n + 3) / 4, dim3(32, 4)>>>(n)\n",
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_launches_are_read_in_every_form(name: str) -> None:
    source = parse(f"__global__ void k(int n) {{ }}\nvoid f(int n) {{\n{LAUNCHES[name]}\n}}\n")
    (site,) = source.launches
    assert (site.kernel, site.grid, site.block) == ("k", ("(n + 3) / 4",), ("32", "4"))


@pytest.mark.parametrize(
    ("functions", "found"),
    [
        ("void f(int n) { int t = 128; if (n > 9) t = 256; k<<<n, t>>>(n); }", [("n", "t")]),
        ("void f(int n) { int t = 1; k<<<n, t>>>(n); } void g() { int t = 5; k<<<n, t>>>(n); }",
         [("n", "1"), ("n", "5")]),
        ("void f() { int rows = 9; dim3 g(3); k<<<rows, 1>>>(1); }", [("rows", "1")]),
        ("void f() { int rows = 9; dim3 g(3); k<<<g, 1>>>(1); }", [("3", "1")]),
    ],
    ids=["assigned twice", "same function", "named number", "dim3"],
)  # fmt: skip
def test_a_launch_variable_stands_for_its_one_value(
    functions: str, found: list[tuple[str, str]]
) -> None:
    sites = parse(f"__global__ void k(int n) {{ }}\n{functions}\n").launches
    assert [(*site.grid, *site.block) for site in sites] == found


def test_template_arguments_of_a_launch_may_nest() -> None:
    source = parse(
        "template <class A, int N> __global__ void k(int n) { }\n"
        "void f() { ns::k<Pair<int, Box<float>>, 4><<<1, 32>>>(3); }\n"
    )
    (site,) = source.launches
    assert (site.kernel, site.template_arguments) == ("ns::k", ("Pair<int, Box<float>>", "4"))


def test_an_unknown_kernel_is_named_with_those_there_are() -> None:
    message = r"saxpy\.cu: no __global__ function named 'saxpi'"
    with pytest.raises(KernelError, match=message) as info:
        read_source(DATA / "saxpy.cu").kernel("saxpi")
    assert info.value.remedy == "did you mean 'saxpy'? kernels in it: saxpy"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"\x7fELF\0\0", "is a binary file"),
        (b"int main() { }\n", "has no __global__ function"),
        (b"// __global__ only here\n", "has no __global__ function"),
        (b"__global__ void k(int n);\n", "no kernel with a body"),
        (b"#define K(name) __global__ void name##_k() { }\nK(a)\n", "no kernel with a body"),
        (b"// caf\xe9\n__global__ void k() { }\n", "is not UTF-8: byte 0xe9"),
    ],
)
def test_a_file_without_a_kernel_is_one_clear_error(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "k.cu"
    path.write_bytes(content)
    with pytest.raises(KernelError, match=message) as info:
        read_source(path)
    assert info.value.path == path
    assert info.value.remedy


@pytest.mark.parametrize("name", ["missing.cu", "."])
def test_a_path_that_cannot_be_read_is_one_clear_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(KernelError, match=r"no such file|cannot be read: is a directory"):
        read_source(tmp_path / name)


def test_a_byte_order_mark_and_windows_line_ends_are_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_bytes(b"\xef\xbb\xbf#define N 4\r\n__global__ void k(int n)\r\n{\r\n}\r\n")
    source = read_source(path)
    assert (source.constants[0].number, source.kernels[0].line) == (4, 2)


HELPED = """\
template <typename T, int N> __global__ void k(const T* x, int n) {}
template <typename T>
struct Scale {
  static constexpr auto kernel = k<T, 8>;
  static void run(Tensor x) {
    const auto rows = x.size(0);
    LaunchKernel(rows, kThreads, x.device(), 1024).enable_pdl(true)(kernel, x.data(), rows);
  }
};
"""


def test_a_launch_through_a_helper_object_is_read() -> None:
    (site,) = parse(HELPED).launches
    assert (site.kernel, site.template_arguments) == ("k", ("T", "8"))
    # only the framework knows what rows are, so that they keep their name
    assert (site.grid, site.block, site.shared) == (("rows",), ("kThreads",), "1024")
    assert site.arguments == ("x.data()", "rows")


def test_template_arguments_are_none_of_cuda_launch_kernel_ex() -> None:
    text = (
        "template <typename T, int N> __global__ void k(T* x, int n) {}\n"
        "void run(float* x) { cudaLaunchKernelEx(&config, k<float, 8>, x, 1 < 2); }\n"
    )
    (site,) = parse(text).launches
    assert (site.template_arguments, site.arguments) == (("float", "8"), ("x", "1 < 2"))


def test_what_follows_inline_ptx_and_messages_keeps_its_namespace_and_shape() -> None:
    source = parse(
        """\
namespace ops { namespace quant {
template <typename T> struct Packed { static_assert(sizeof(T) == 2, "of two bytes"); };
__device__ __forceinline__ int rounded(float x) {
  int y;
#if __CUDA_ARCH__ >= 700
  asm volatile("cvt.rni.s32.f32 %0, %1;" : "=r"(y) : "f"(x));
#else
  y = static_cast<int>(x);
#endif
  return y;
}
__global__ void __launch_bounds__(64)
    to_int_kernel(const float* x, int* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = rounded(x[i]);
}
}  // namespace quant
}  // namespace ops
"""
    )
    assert [kernel.qualified_name for kernel in source.kernels] == ["ops::quant::to_int_kernel"]


def test_the_code_of_a_kernel_has_one_order() -> None:
    names = ["delta", "alpha", "gamma", "beta"]
    called = "".join(f"__device__ float {name}() {{ return 1.0f; }}\n" for name in names)
    text = f"{called}__global__ void k(float* x) {{ x[0] = {'() + '.join(names)}(); }}\n"
    source = parse_source(text, Path("k.cu"))
    spans = {text[slice(*d.span)]: d.name for d in source.definitions}
    reached = [spans[text[start:end]] for start, end in source.reachable([source.kernel("k")])]
    assert reached == ["k", *reversed(names)]


def test_a_file_of_thousands_of_launches_is_refused() -> None:
    calls = "".join(f"case {k}: k<<<{k + 1}, 32>>>(y); break;\n" for k in range(1001))
    text = (
        f"__global__ void k(float* y) {{}}\nvoid f(float* y, int n) {{ switch (n) {{ {calls} }} }}"
    )
    with pytest.raises(KernelError, match="has 1,001 launches: at most 1,000 are read"):
        parse_source(text, Path("k.cu"))
