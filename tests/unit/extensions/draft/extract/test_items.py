"""Definitions at the top level, whatever macros stand before them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.extensions.draft.extract.items import SourceItem, items_of
from tuner.extensions.draft.extract.reading import read_all


def items(folder: Path, text: str) -> list[SourceItem]:
    path = folder / "source.cu"
    path.write_text(text)
    return list(items_of(read_all(path), path))


@pytest.mark.parametrize(
    ("code", "kind", "names"),
    [
        ("int f(int a) { return a; }", "function", ("f",)),
        ("KIT_DEVICE auto f(T a) -> T { return a; }", "function", ("f",)),
        ("template <class T, int (*F)(T)> __device__ T f(T a) { return a; }", "function", ("f",)),
        ("__global__ void __launch_bounds__(256, 2) k(float* x) {}", "function", ("k",)),
        ("__launch_bounds__(kThreads) __global__ void k(float* x) {}", "function", ("k",)),
        ("__global__ __cluster_dims__(2, 1, 1) void k(float* x) {}", "function", ("k",)),
        ("template <> __device__ float f<float, half>(half a) { return a; }", "function", ("f",)),
        ("template <class T> requires A<T, 4> && (B<T>) T f(T a) {}", "function", ("f",)),
        ("template <class T> std::enable_if_t<(sizeof(T) > 2), T> f(T a) {}", "function", ("f",)),
        ("template <class T> __device__ void Row<T>::load(int i) {}", "function", ("Row", "load")),
        ("__device__ V operator+(V a, V b) { return a; }", "function", ()),
        ("__device__ V& V::operator=(const V& a) { return *this; }", "function", ("V",)),
        ("void f(int a);", "function", ("f",)),
        ("struct __align__(16) A { int a; };", "class", ("A",)),
        ("template <typename T> struct alignas(sizeof(T) * 2) A { T a; };", "class", ("A",)),
        ("template <> struct A<half> final : B<half> { int f() { return 1; } };", "class", ("A",)),
        ("struct A;", "class", ("A",)),
        ("enum class Mode : int { kFast, kSlow = 2 };", "class", ("Mode", "kFast", "kSlow")),
        ("typedef struct { int a; } A;", "alias", ("A",)),
        ("struct { int a; }\ntypedef A;", "class", ("A",)),
        ("typedef float (*op_t)(float);", "alias", ("op_t",)),
        ("using A = B<int>;", "alias", ("A",)),
        ("template <typename T> using A = typename B<T>::type;", "alias", ("A",)),
        ("using std::max;", "using", ("max",)),
        ("using namespace nvcuda::wmma;", "directive", ("nvcuda::wmma",)),
        ("namespace cg = cooperative_groups;", "alias", ("cg",)),
        ("static constexpr int A = 4, B = A * 2;", "variable", ("A", "B")),
        ("inline constexpr Shape kShape{4, f(2)};", "variable", ("kShape",)),
        ("__constant__ float table[2][4] = {{1, 2}, {3}};", "variable", ("table",)),
        ("template <typename T> concept number = A<T> || B<T>;", "variable", ("number",)),
        ("template <typename T> inline constexpr bool is_a = false;", "variable", ("is_a",)),
        ("static_assert(sizeof(int) == 4);", "assertion", ()),
        ("template void f<float>(float);", "instantiation", ()),
        ("PYBIND11_MODULE(name, m) { m.def(); }", "invocation", ("PYBIND11_MODULE",)),
        ("DEFINE_OP(relu, x > 0 ? x : 0)\nint b;", "invocation", ("DEFINE_OP",)),
        ("#define A(x) \\\n  (x + 1)", "macro", ("A",)),
    ],
)  # fmt: skip
def test_a_definition_is_known_by_its_names(
    tmp_path: Path, code: str, kind: str, names: tuple[str, ...]
) -> None:
    found = items(tmp_path, f"{code}\n")[0]
    assert (found.kind, found.names) == (kind, names)


def test_namespaces_and_comments_go_with_a_definition(tmp_path: Path) -> None:
    code = (
        "// of the file\n\nnamespace a::b {\nnamespace {\n"
        "// what f does\nint f() { return 0; }\n}\n}\n"
        'extern "C" {\nint g() { return 0; }\n}\n'
    )
    first, second = items(tmp_path, code)
    assert (first.namespace, second.namespace) == (("a::b",), ())
    assert first.text == "// what f does\nint f() { return 0; }"
    assert first.line == 6


def test_a_comment_with_a_blank_line_stays_whole(tmp_path: Path) -> None:
    code = "/* of the file */\n\nint a;\n/*\nwhat f does\n\nand why */\nint f() { return 0; }\n"
    assert items(tmp_path, code)[1].text.startswith("/*\nwhat f does\n\nand why */\nint f()")


def test_members_of_something_else_are_no_names_of_their_own(tmp_path: Path) -> None:
    found = items(tmp_path, "int f(A a) { return a.size() + a->count + b; }\n")[0]
    assert found.uses() == {"int", "f", "A", "a", "return", "b"}
