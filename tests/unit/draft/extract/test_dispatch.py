"""What names in a launch stand for: dispatch macros, callers, variables on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.draft.drafting import compute
from tuner.draft.extract import Extraction, extract

KERNEL = "template <typename T, int N> __global__ void k(T* x) { x[N] = 1; }\n"


def extracted(folder: Path, host: str) -> Extraction:
    path = folder / "source.cu"
    path.write_text(KERNEL + host)
    return extract(path, folder / "unit.cu", compute)


@pytest.mark.parametrize(
    "host",
    [
        "void run(float* x) { k<float, 8><<<1, 1>>>(x); }",
        "void run(float* x) { auto f = &k<float, 8>; f<<<1, 1>>>(x); }",
        "void run(float* x) { constexpr int v = 32 / sizeof(float); k<float, v><<<1, 1>>>(x); }",
        "template <typename U, int V = 8> void go(U* x) { k<U, 8><<<1, 1>>>(x); }\n"
        "void run(float* x) { go<float>(x); }",
        "template <typename U, int V> void go(U* x) { k<U, V><<<1, 1>>>(x); }\n"
        "void run(float* x) { const int two = 2; go<float, two * 4>(x); }",
        "template <int V> struct Go { static void run(float* x) { k<float, V><<<1, 1>>>(x); } };\n"
        "void run(float* x) { Go<8>::run(x); }",
        "#define LAUNCH(V) k<float, V><<<1, 1>>>(x)\nvoid run(float* x) { LAUNCH(8); }",
        "void run(float* x) {\n#define LAUNCH(V) k<float, V><<<1, 1>>>(x)\n  LAUNCH(8);\n}",
        "#define VECS(V, ...) { constexpr int vec = V; __VA_ARGS__(); }\n"
        "void run(float* x) { VECS(8, [&] { k<float, vec><<<1, 1>>>(x); }) }",
        "using real = float;\nvoid run(real* x) { k<real, 8><<<1, 1>>>(x); }",
    ],
)  # fmt: skip
def test_an_instantiation_is_found_on_the_way_of_the_launch(tmp_path: Path, host: str) -> None:
    assert extracted(tmp_path, host + "\n").names == ("k<float, 8>",)


def test_of_several_types_bfloat16_comes_first_and_the_others_are_named(tmp_path: Path) -> None:
    host = (
        "void run(at::Tensor x) { AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, "
        'x.scalar_type(), "k", [&] { k<scalar_t, 4><<<1, 1>>>(x.data_ptr<scalar_t>()); }); }\n'
    )
    (instance,) = extracted(tmp_path, host).instances
    assert instance.name == "k<__nv_bfloat16, 4>"
    assert instance.others == ("k<float, 4>", "k<double, 4>", "k<__half, 4>")


def test_a_type_may_be_told_by_what_is_passed(tmp_path: Path) -> None:
    path = tmp_path / "source.cu"
    path.write_text(
        "template <typename T> __global__ void k(T* x) {}\n"
        "void run(at::Tensor x) { k<<<1, 1>>>(reinterpret_cast<__nv_bfloat16*>(x.data_ptr())); }\n"
    )
    assert extract(path, tmp_path / "unit.cu", compute).names == ("k<__nv_bfloat16>",)
