"""What becomes of a kernel's arrays, in the ways that people write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.extensions.draft.array_access import Use
from tuner.extensions.draft.pointers import accesses_of
from tuner.source import parse_source

BUMP = "__device__ void bump(float* p, int i) { p[i] += 1.f; }\n"
PUT = "__device__ void put(float* p) { *p = 1.f; }\n"
ADD = "template <int N, class T> __device__ void add(T* p, int i) { p[i] += N; }\n"
VECTOR = (
    "struct Vec { float d[4]; __device__ void load(const float* p) { d[0] = p[0]; }\n"
    "  __device__ void store(float* p) const { p[0] = d[0]; } };\n"
)
ASM_STORE = """__device__ void st(float* p) {
  asm volatile("st.global.f32 [%0], %1;" :: "l"(p), "f"(1.f)); }
"""


def use(body: str, before: str = "") -> Use:
    text = f"{before}__global__ void k(float* q, int n) {{ int i = threadIdx.x; {body} }}\n"
    source = parse_source(text, Path("k.cu"))
    return Use.of(accesses_of(source, source.kernel("k"), {}))


@pytest.mark.parametrize(
    ("role", "body", "before"),
    [
        ("output", "q[i] = 1;", ""),
        ("inout", "q[i] = q[i] * 2;", ""),
        ("inout", "q[i] += 2;", ""),
        ("inout", "q[i]++;", ""),
        ("inout", "atomicAdd(&q[i], 1.f);", ""),
        ("input", "__shared__ float sum; atomicAdd(&sum, q[i]);", ""),
        ("input", "float v = __ldg(q + i);", ""),
        ("input", "float v[sizeof(*q)];  q[i] < v[0];", ""),
        ("output", "float * KIT_RESTRICT p = (float *) q; p[i] = 1;", ""),
        ("output", "__stcs(q + i, 1.f);", ""),
        ("inout", "bump(q, i);", BUMP),
        ("output", "put(q + i);", PUT),
        ("output", "put(&q[i]);", PUT),
        ("inout", "twice(q[i]);", "__device__ void twice(float& v) { v = v * 2; }\n"),
        ("input", "twice(q[i]);", "__device__ float twice(float v) { v = v * 2; return v; }\n"),
        ("input", "get(&q[i]);", "__device__ float get(const float* p) { return *p; }\n"),
        ("inout", "outer(q, i);", BUMP + "__device__ void outer(float* p, int i) { bump(p, i); }"),
        ("inout", "add<4>(q, i);", ADD),
        ("inout", "auto v = reinterpret_cast<V*>(q)[i]; *reinterpret_cast<V*>(&q[i]) = v;", ""),
        ("inout", "float4* p = reinterpret_cast<float4*>(q); float4 v = p[i]; p[i] = v;", ""),
        ("output", "float4* p = (float4*)q; p[i] = make_float4(0, 0, 0, 0);", ""),
        ("inout", "auto p = q + i; *p += 1;", ""),
        ("inout", "float* p; p = q + i; *p = *p * 2;", ""),
        ("inout", "float& r = q[i]; r += 1;", ""),
        ("input", "const float& r = q[i];", ""),
        ("inout", "for (float* p = q; p != q + n; ++p) *p = *p + 1;", ""),
        ("inout", "Vec v; v.load(q + i); v.store(q + i);", VECTOR),
        ("output", "Vec v; v.store(q + i);", VECTOR),
        ("output", "float* p = n > 3 ? q : nullptr; if (p) p[0] = 1;", ""),
        ("input", 'float v; asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(q + i));', ""),
        ("output", "st(q + i);", ASM_STORE),
        ("output", "st(q + i);", ASM_STORE.replace("float* p", "const float* p")),
        ("output", "st(q);", "__device__ void st(const float* p) { *const_cast<float*>(p) = 1; }"),
        ("output", "st(q);", "__device__ void st(const float* p) { *((float*)p) = 1; }"),
        ("inout", "auto put = [&](int j) { q[j] += 1; }; put(i);", ""),
    ],
)  # fmt: skip
def test_a_role_is_read_through_pointers_casts_references_and_functions(
    role: str, body: str, before: str
) -> None:
    found = use(body, before)
    assert found.role == role
    assert found.handed is None


@pytest.mark.parametrize("body", ["mystery(q, i);", "Params p{q, n};", "*at(q, i) = 1;"])
def test_what_is_handed_to_unknown_code_is_taken_to_be_read_and_written(body: str) -> None:
    found = use(body, "__device__ float* at(float* p, int i) { return p + i; }\n")
    assert found.role == "inout"
    assert found.handed is not None
    assert not found.assumed


def test_a_name_that_says_what_it_does_is_believed_but_told() -> None:
    found = use("load_tile(q, i);")
    assert (found.role, found.assumed) == ("input", True)


def test_functions_that_call_each_other_end() -> None:
    both = "__device__ void a(float* p, int i);\n__device__ void b(float* p, int i) { a(p, i); }\n"
    found = use("a(q, i);", f"{both}__device__ void a(float* p, int i) {{ b(p, i); p[i] = 1; }}\n")
    assert found.role == "output"
