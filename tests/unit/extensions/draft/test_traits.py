"""A class that is a kernel's template argument: its types, its numbers, and its block."""

from __future__ import annotations

from pathlib import Path

from tuner.extensions.draft.drafting import draft
from tuner.source import parse_source

TRAITS = (Path(__file__).parent / "data/traits.cu").read_text(encoding="utf-8")


def test_its_types_and_numbers_are_those_of_the_launch() -> None:
    made = draft(parse_source(TRAITS, Path("k.cu")))
    assert "{name: x, dtype: float16, shape: [rows, cols], role: inout}" in made.space_yaml
    assert "block: [128]" in made.space_yaml


def test_its_block_is_a_parameter_in_all_that_is_computed_from_it() -> None:
    made = draft(parse_source(TRAITS, Path("k.cu")))
    assert "kThreads = @{ threads }@;" in made.template
    assert "block: [threads]" in made.space_yaml
    other = TRAITS.replace("kThreads_;", "kThreads_;\n  static constexpr int kTwo = 2 * kThreads_;")
    made = draft(parse_source(other, Path("k.cu")))
    assert "kTwo = 2 * @{ threads }@;" in made.template
