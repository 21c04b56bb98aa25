"""Generic lambdas, structs of which little is used, packs: what a unit makes of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.extensions.draft.extract.deduction import with_values
from tuner.extensions.draft.extract.extraction import Extraction, extract
from tuner.model.errors import KernelError

DATA = Path(__file__).parent / "data/frameworks"


def written(folder: Path, text: str) -> Extraction:
    (folder / "source.cu").write_text(text)
    return extract(folder / "source.cu", folder / "unit.cu")


LAMBDA = (DATA / "lambda.cu").read_text(encoding="utf-8")


def test_what_is_handed_to_a_generic_lambda_is_a_template_argument(tmp_path: Path) -> None:
    instance = written(tmp_path, LAMBDA).instances[0]
    assert (instance.name, instance.others) == ("filter<true, 5>", ("filter<true, 7>",))
    assert not instance.guessed


@pytest.mark.parametrize(
    "text", ["decltype(4)::value", "std::decay_t<decltype(4)>::value", "4.value", "4()"]
)
def test_the_value_of_a_constant_is_the_constant(text: str) -> None:
    assert with_values(text) == "4"


PARAMS = (DATA / "params.cu").read_text(encoding="utf-8")


def test_members_that_nothing_names_are_no_parameters(tmp_path: Path) -> None:
    made = written(tmp_path, PARAMS)
    (opened,) = made.opened
    assert opened.unused == {"bias", "bias_step"}
    # the grid depends on the batch
    parameters = [p.name for p in made.source.kernel("shift").parameters]
    assert parameters == ["batch", "size", "out", "in"]
    assert made.source.launches[0].arguments == ("p.batch", "p.size", "p.out", "p.in")


def test_an_array_in_a_struct_is_a_number_for_each_element(tmp_path: Path) -> None:
    source = """
struct Corners { float at[2]; };
__global__ void shift(float* y, const float* x, const Corners by, int n) {
  int i = threadIdx.x;
  if (i < n) y[i] = x[i] * by.at[0] + by.at[1];
}
void run(float* y, const float* x, Corners by, int n) { shift<<<1, 128>>>(y, x, by, n); }
"""
    made = written(tmp_path, source)
    declared = [p.declaration for p in made.source.kernel("shift").parameters]
    assert declared == ["float* y", "const float* x", "float at_0", "float at_1", "int n"]
    assert "y[i] = x[i] * at_0 + at_1;" in made.unit


def test_a_pack_is_refused_with_what_to_do(tmp_path: Path) -> None:
    source = """
template <typename F, typename... Rest>
__global__ void each(float* x, F f, Rest... rest) { f(x, rest...); }
template <typename F, typename... Rest>
void apply(float* x, F f, Rest... rest) { each<<<1, 32>>>(x, f, rest...); }
"""
    with pytest.raises(KernelError, match=r"takes a pack, `typename\.\.\. Rest`") as told:
        written(tmp_path, source)
    assert told.value.remedy is not None
    assert "one tensor" in told.value.remedy


def test_a_constexpr_function_that_a_class_asks_is_for_both_sides(tmp_path: Path) -> None:
    source = """
constexpr int larger(int a, int b) { return a > b ? a : b; }
template <int kThreads>
struct Traits { static constexpr int kSize = larger(kThreads, 64); };
template <typename Ktraits>
__global__ void fill(float* x) { if (threadIdx.x < Ktraits::kSize) x[threadIdx.x] = 1; }
void run(float* x) { fill<Traits<128>><<<1, 128>>>(x); }
"""
    assert "__host__ __device__ constexpr int larger" in written(tmp_path, source).unit
