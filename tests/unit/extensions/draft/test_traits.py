"""A class that is a kernel's template argument: its types, its numbers, and its block."""

from __future__ import annotations

from pathlib import Path

from tuner.extensions.draft.drafting import draft
from tuner.source import parse_source

TRAITS = """
template <int kThreads_, int kItems_, typename in_t_>
struct ScaleTraits {
  using in_t = in_t_;
  static constexpr int kThreads = kThreads_;
  static constexpr int kItems = sizeof(in_t) == 4 ? kItems_ : 2 * kItems_;
};
template <typename Traits>
__global__ void scale(typename Traits::in_t* x, int cols) {
  using in_t = typename Traits::in_t;
  constexpr int kThreads = Traits::kThreads;
  in_t* row = reinterpret_cast<in_t*>(x) + blockIdx.x * cols;
  for (int c = threadIdx.x; c < cols; c += kThreads) row[c] = row[c] * 2;
}
void f(void* x, int rows, int cols) {
  using Traits = ScaleTraits<128, 4, __half>;
  scale<ScaleTraits<128, 4, __half>><<<rows, Traits::kThreads>>>((__half*)x, cols);
}
"""


def test_its_types_and_numbers_are_those_of_the_launch() -> None:
    made = draft(parse_source(TRAITS, Path("k.cu")))
    assert "{name: x, dtype: float16, shape: [rows, cols], role: inout}" in made.space_yaml
    assert "block: [128]" in made.space_yaml


def test_its_block_is_a_parameter_where_only_one_member_uses_it() -> None:
    made = draft(parse_source(TRAITS, Path("k.cu")))
    assert "kThreads = @{ threads }@;" in made.template
    assert "block: [threads]" in made.space_yaml
    other = TRAITS.replace("kThreads_;", "kThreads_;\n  static constexpr int kTwo = 2 * kThreads_;")
    assert "@{ threads }@" not in draft(parse_source(other, Path("k.cu"))).template
