"""Host code is guarded, device code keeps its text and its lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.source import hide_host_code, parse_source, read_source

DATA = Path(__file__).parents[1] / "data"
KERNEL = "__global__ void k(float* x)\n{\n    x[0] = 1;\n}\n"


def hidden(text: str) -> str:
    return hide_host_code(parse_source(text, Path("k.cu")))


def seen_by_nvrtc(text: str) -> str:
    kept, depth = [], 0
    for line in text.splitlines():
        if line.startswith("#ifndef __CUDACC_RTC__"):
            depth += 1
        elif line.startswith("#endif") and depth:
            depth -= 1
        elif not depth:
            kept.append(line)
    return "\n".join(kept)


def test_device_only_source_is_not_changed() -> None:
    text = (
        "#include <cuda_bf16.h>\n#include <cstdint>\n#define DEVI __device__ inline\n"
        "struct Pair { float a, b; };\nconstexpr int N = 4;\n__constant__ float table[N];\n"
        "DEVI float twice(float x) { return 2 * x; }\n" + KERNEL
    )
    assert hidden(text) == text


@pytest.mark.parametrize(
    "host",
    [
        "void f(int n) { n++; }",
        "int main()\n{\n    return 0;\n}",
        "void f(float* x) { k<<<1, 32>>>(x); }",
        "template <typename T> void f(T t) { use(t); }",
        "void k(torch::Tensor x) { k<<<1, 32>>>(x.data_ptr<float>()); }",
        "struct Op { void run(float* x) { k<<<1, 32>>>(x); } };",
        "#include <vector>\nusing List = std::vector<int>;",
        "namespace ffi = tvm::ffi;",
        "static std::mutex lock;",
        "void declared(int n);",
        "TORCH_LIBRARY(ops, m) { m.def(1); }",
        "REGISTER_KERNEL(k, 4);",
        "static int calls = 0;",
    ],
)
def test_host_code_is_guarded(host: str) -> None:
    result = hidden(f"{KERNEL}\n{host}\n\n{KERNEL.replace('k(', 'k2(')}")
    assert seen_by_nvrtc(result).split() == f"{KERNEL}{KERNEL.replace('k(', 'k2(')}".split()
    assert host in result


def test_guards_take_the_place_of_blank_lines() -> None:
    text = f"{KERNEL}\nvoid f() {{ }}\n\n{KERNEL.replace('k(', 'k2(')}"
    result = hidden(text)
    assert result.count("\n") == text.count("\n")
    assert result.splitlines()[7:] == text.splitlines()[7:]


def test_lines_inserted_are_made_up_for_before_the_next_kernel() -> None:
    text = f"{KERNEL}void f() {{\n\n\n    g();\n}}\n{KERNEL.replace('k(', 'k2(')}"
    lines = hidden(text).splitlines()
    assert lines.index("__global__ void k2(float* x)") == 9


def test_a_constexpr_function_that_the_kernel_uses_is_made_callable() -> None:
    result = hidden(
        "constexpr int half_of(int n) { return n / 2; }\n"
        "template <int N>\nconstexpr int twice() { return 2 * N; }\n"
        "__global__ void k(float* x) { x[half_of(4)] = twice<3>(); }\n"
    )
    assert "__host__ __device__ constexpr int half_of" in result
    assert "template <int N>\n__host__ __device__ constexpr int twice" in result
    assert "__CUDACC_RTC__" not in result


def test_what_nvcc_defines_without_being_asked_is_included() -> None:
    text = "#include <torch/all.h>\n\n__global__ void k(int64_t n, float* x) { x[n] = INFINITY; }\n"
    assert hidden(text).splitlines()[:5] == [
        "#include <cstdint>",
        "#include <cmath>",
        "#ifndef __CUDACC_RTC__",
        "#include <torch/all.h>",
        "#endif",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "#include <stdint.h>\n__global__ void k(int64_t n) { }\n",
        "#include <cstdint>\n__global__ void k(int64_t n) { }\n",
        f"MY_DEVICE_INLINE float one() {{ return 1; }}\n__device__ float two();\n{KERNEL}",
        f"{KERNEL}#ifndef __CUDACC_RTC__\nint main() {{ return 0; }}\n#endif\n",
        "#ifndef __CUDA_ON_HOST__\n#include <cuda/std/limits>\n#else\n#include <algorithm>\n"
        f"#endif\n{KERNEL}",
    ],
    ids=["stdint", "cstdint", "device macro", "guarded", "chosen for the CPU"],
)
def test_what_needs_no_guard_or_header_is_not_changed(text: str) -> None:
    assert hidden(text) == text


def test_host_code_beside_device_code_on_one_line_is_cut_out() -> None:
    result = hidden("__global__ void k(float* x) { x[0] = 1; } void f() { }\n")
    assert seen_by_nvrtc(result).strip() == "__global__ void k(float* x) { x[0] = 1; }"


# saxpy has one blank line before its kernel, and needs two lines there
@pytest.mark.parametrize(
    ("name", "moved"),
    [("saxpy", 1), ("tiled_sgemm", 0), ("block_reduce", 0), ("framework_norm", 0)],
)
def test_kernels_keep_their_lines_in_real_files(name: str, moved: int) -> None:
    source = read_source(DATA / f"{name}.cu")
    again = parse_source(hide_host_code(source), source.path)
    for before, after in zip(source.kernels, again.kernels, strict=True):
        assert after.line == before.line + moved
        assert [p.declaration for p in after.parameters] == [
            p.declaration for p in before.parameters
        ]
    assert hide_host_code(again) == again.text


@pytest.mark.timeout(30)
def test_a_chain_of_thousands_of_names_is_followed_in_linear_time() -> None:
    chain = "".join(f"typedef t{k} t{k + 1};\n" for k in range(15_000))
    text = f"typedef float t0;\n{chain}__global__ void k(t15000* y) {{ y[0] = 1; }}\n"
    assert hide_host_code(parse_source(text, Path("k.cu"))) == text
