"""Functions, calls and allocations in host code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.extensions.draft.host_code import (
    Allocation,
    allocations_in,
    calls_in,
    conditions_of,
    functions_in,
)
from tuner.source import parse_source
from tuner.source.accesses import find_assignments
from tuner.source.facts import SourceFile

KERNEL = "__global__ void k(float* x) { x[0] = 1; }\n"


def host(text: str) -> SourceFile:
    return parse_source(f"{KERNEL}{text}\n", Path("k.cu"))


def allocations(body: str) -> list[Allocation]:
    source = host(f"int main() {{\n{body}\nlast(); }}")
    (_, main) = functions_in(source.masked)
    end = source.masked.index("last()")
    return list(
        allocations_in(source, main.span, find_assignments(source.masked, (main.span,), end))
    )


def test_functions_have_the_names_of_their_parameters() -> None:
    source = host("template <typename T>\nstatic void run(const T* in, float* /*out*/, int n) { }")
    found = {f.name: tuple(p.name for p in f.parameters) for f in functions_in(source.masked)}
    assert found == {"k": ("x",), "run": ("in", "", "n")}


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ("k<<<1, 2>>>(x);", []),
        ("if (n > 1) k<<<1, 2>>>(x);", [("n > 1", True)]),
        ("if (n > 1 && m) { k<<<1, 2>>>(x); }", [("n > 1", True), ("m", True)]),
        ("if (n > 1) ; else k<<<1, 2>>>(x);", [("n > 1", False)]),
        ("if (a) ; else if (b) k<<<1, 2>>>(x);", [("b", True), ("a", False)]),
        ("if (!n) return; k<<<1, 2>>>(x);", [("!n", False)]),
        ("if (!n) { throw n; } { k<<<1, 2>>>(x); }", [("!n", False)]),
        ("if (a) { f(); } if (b) return; else f(); k<<<1, 2>>>(x);", []),
        ("k<<<1, 2>>>(x); if (a) return;", []),
        ("switch (n) { case 1: f(); break; case 2: k<<<1, 2>>>(x); }", [("(n) == (2)", True)]),
        ("switch (n) { case 1: { f(); break; } case 2: { k<<<1, 2>>>(x); } }",
         [("(n) == (2)", True)]),
        ("switch (n) { case 1: case 2: k<<<1, 2>>>(x); break; default: f(); }",
         [("(n) == (1) || (n) == (2)", True)]),
        ("switch (n) { case 1: f(); return; case 2: f(); break; default: k<<<1, 2>>>(x); }",
         [("(n) == (1)", False), ("(n) == (2)", False)]),
        ("switch (n) { case 1: return; case 2: f(); default: k<<<1, 2>>>(x); }",
         [("(n) == (1)", False)]),
    ],
)  # fmt: skip
def test_what_has_to_hold_on_the_way_to_a_launch(body: str, asked: list[tuple[str, bool]]) -> None:
    source = host(f"void run(float* x, int n) {{ {body} }}")
    found = conditions_of(source.masked, source.launches[0].at)
    assert [(one.text, one.holds) for one in found] == asked


def test_calls_have_their_arguments_and_launches_are_none() -> None:
    source = host("void f(float* x) {\n k<<<1, 2>>>(x);\n ns::run<float>(x, (1, 2), 1 << 20);\n}")
    (call,) = calls_in(source.masked)
    assert (call.name, call.arguments, call.line) == ("run", ("x", "(1, 2)", "1 << 20"), 4)


@pytest.mark.parametrize(
    ("body", "target", "size", "in_bytes"),
    [
        ("cudaMalloc(&d, n * sizeof(float));", "d", "n * sizeof(float)", True),
        ("CHECK(cudaMalloc((void**)&d, bytes));", "d", "bytes", True),
        ("cudaMalloc(reinterpret_cast<void**>(&p.d), 4 * n);", "p.d", "4 * n", True),
        ("cudaMallocManaged(&d, f(a, b) * 4, cudaMemAttachGlobal);", "d", "f(a, b) * 4", True),
        ("cudaMallocAsync(&d, bytes, stream);", "d", "bytes", True),
        ("float* d = (float*)malloc(n * 4);", "d", "n * 4", True),
        ("float* d = static_cast<float*>(std::malloc(n));", "d", "n", True),
        ("float* d = (float*)calloc(n, sizeof(float));", "d", "(n) * sizeof(float)", True),
        ("float* d = new float[n * 2];", "d", "n * 2", False),
        ("std::vector<float> d(n, 1.0f);", "d", "n", False),
        ("thrust::device_vector<unsigned int> d(rows * cols);", "d", "rows * cols", False),
        ("std::vector<float> d{};", None, "", False),
        ("std::vector<float> d{1, 2, 3};", None, "", False),
    ],
)
def test_allocations_are_found(body: str, target: str | None, size: str, in_bytes: bool) -> None:
    found = allocations(body)
    if target is None:
        assert not [a for a in found if a.size]
    else:
        assert [(a.target, a.size, a.in_bytes, a.line) for a in found] == [
            (target, size, in_bytes, 3)
        ]


@pytest.mark.parametrize(
    ("body", "known"),
    [
        ("int n = 4;", {"n": "4"}),
        ("int n = 4, m = n;", {"n": "4", "m": "n"}),
        ("int n = 4; n = 5;", {}),
        ("int n = 4; ++n;", {}),
        ("int n = 4; n *= 2;", {}),
        ("for (int n = 4; n < 9; n <<= 1) f();", {}),
        ("int n = 4; scanf(fmt, &n);", {}),
        ("float* d = nullptr; cudaMalloc((void**)&d, 4);", {}),
        ("int n = 4; int m = a & n;", {"n": "4", "m": "a & n"}),
        ("if (a) { dim3 b(32); f(b); } else { int n = 2; } dim3 b(64); int n = 4;",
         {"b": "(64)", "n": "4"}),
        ("int n; if (a) { n = 2; } else { n = 4; }", {}),
    ],
)  # fmt: skip
def test_a_variable_has_a_value_where_it_keeps_it(body: str, known: dict[str, str]) -> None:
    source = host(f"int main() {{ {body} last(); }}")
    (_, main) = functions_in(source.masked)
    found = find_assignments(source.masked, (main.span,), source.masked.index("last()"))
    assert {name: value.text for name, value in found.items()} == known


def test_a_launch_helper_may_take_its_config_in_a_struct() -> None:
    source = host(
        "struct Plan {\n dim3 blocks;\n dim3 threads = dim3(1);\n"
        " size_t bytes;\n cudaStream_t stream;\n"
        " Plan(const dim3& b, const dim3& t, size_t n, cudaStream_t s)\n"
        "  : blocks(b), threads(t), bytes(n), stream(s) {}\n};\n"
        "template <typename K, typename... Args>\n"
        "void start(K kernel, const Plan& plan, Args&&... args) {\n"
        " kernel<<<plan.blocks, plan.threads, plan.bytes, plan.stream>>>(args...);\n}\n"
        "void f(float* x, int n, cudaStream_t s) {\n const dim3 blocks((n + 255) / 256, 2);\n"
        " const Plan plan = Plan{blocks, 256, 0, s};\n start(k, plan, x);\n}\n"
        "void g(float* x, int n, cudaStream_t s) { start(k, {n, 128, 64, s}, x); }"
    )
    _, first, second = source.launches
    assert (first.grid, first.block, first.shared) == (("(n + 255) / 256", "2"), ("256",), "0")
    assert (second.grid, second.block, second.shared) == (("n",), ("128",), "64")


def test_an_extent_that_is_assigned_again_is_what_it_is_then() -> None:
    source = host(
        "void f(float* x, int n) {\n dim3 grid(n);\n grid.y = 3;\n dim3 block(min(n, 1024));\n"
        " block.x = 32 * ((block.x + 31) / 32);\n k<<<grid, block>>>(x);\n}"
    )
    (site,) = source.launches
    assert site.grid == ("n", "3")
    assert site.block == ("32 * (((min(n, 1024)) + 31) / 32)",)


def test_what_is_handed_by_reference_has_no_one_value() -> None:
    source = host(
        "void pick(int& a, float*& p, const int& b, float* const& q, int c) { a = 2; p = q; }\n"
        "int main() { int a = 1, b = 1, c = 1; float* p = nullptr;\n"
        "  float* q = nullptr; if (a & c) { use(&x); } pick(a, p, b, q, c); last(); }"
    )
    main = functions_in(source.masked)[-1].span
    end = source.masked.index("last()")
    assert {*find_assignments(source.masked, (main,), end)} == {"b", "c", "q"}
