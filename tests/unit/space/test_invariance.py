"""`invariant`: which axis counts rows, and what cannot have rows that are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.model.errors import SpaceError
from tuner.model.kernel import Invariance, KernelSpec, Workload
from tuner.space.launches import require_rows
from tuner.space.load import read_definition
from tuner.space.yaml import parse

SPACE = """version: 1
kernel: project
source: project.cu
reference: project.py
template: project.cu.j2
axes: [T, K]
arguments:
  - {name: y, dtype: float32, shape: [T, K], role: output}
  - {name: s, dtype: float32, shape: [K / 8, T], role: output}
  - {name: n, dtype: int32, shape: [K], role: output}
  - {name: x, dtype: float32, shape: [T, K]}
  - {name: w, dtype: float32, shape: [K]}
workloads: {tuned: [{T: 4, K: 64}, {T: 9, K: 64}, {T: 9, K: 128}]}
min_bytes: 1
baseline: {launch: [{kernel: project, grid: [1], block: [1]}]}
parameters: {block: [32]}
launch: [{kernel: project, grid: [1], block: [block]}]
invariant: {T: [y, s]}
"""


def load(text: str) -> KernelSpec:
    return read_definition(parse(text, Path("project.yaml")), {}).spec


def test_rows_are_found_in_the_dimension_that_is_the_axis() -> None:
    spec = load(SPACE)
    rows = spec.invariant
    assert rows == Invariance("T", ("y", "s"), 18)
    found = {one.name: rows.dimension(one) for one in spec.arguments}
    assert found == {"y": 0, "s": 1, "n": None, "x": 0, "w": None}
    first, second, third = spec.tuned
    assert spec.problem_of(first) == spec.problem_of(second) == Workload.of({"K": 64})
    assert spec.problem_of(third) == Workload.of({"K": 128})
    assert rows.sized(first, 33) == Workload.of({"T": 33, "K": 64})
    assert load(SPACE.replace("invariant: {T: [y, s]}\n", "")).problem_of(first) == first


MISTAKES = {
    "no axis": ("{T: [y, s]}", "{M: [y]}", "`M` is not an axis", "the axes are T, K", 18),
    "two axes": ("{T: [y, s]}", "{T: [y], K: [n]}", "has the axes T, K", "the one axis", 18),
    "parameters alone": ("{T: [y, s]}", "{by: [block]}", "`by` is not an axis", "are T, K", 18),
    "nothing": ("{T: [y, s]}", "{T: []}", "`T` has no outputs", "y, s, n", 18),
    "input": ("{T: [y, s]}", "{T: [x]}", "`x` is not an output", "outputs: y, s, n", 18),
    "without rows": (
        "{T: [y, s]}",
        "{T: [y, n]}",
        "`n` [K] has no rows of `T`",
        "leave it out",
        18,
    ),
    "no batch": ("{T: [y, s]}", "{K: [y]}", "`K` is no batch: `y` [T, K]", "an output: T", 18),
    "varying": (
        "shape: [T, K], role: output}",
        "shape: [T, K], role: output, deterministic: false}",
        "the bits of `y` may differ from call to call (`deterministic: false`)",
        "leave it out of `invariant`",
        18,
    ),
    "offsets": (
        "- {name: w, dtype: float32, shape: [K]}",
        "- {name: w, dtype: int32, shape: [T + 1]}",
        "`T` is no batch of `w` [T + 1]: no row can be found",
        "one dimension of it may be `T`",
        12,
    ),
    "pairs": (
        "- {name: w, dtype: float32, shape: [K]}",
        "- {name: w, dtype: float32, shape: [T, T]}",
        "`T` is no batch of `w` [T, T]",
        "nothing else may depend on that",
        12,
    ),
    "places": (
        "- {name: w, dtype: float32, shape: [K]}",
        "- {name: w, dtype: int32, shape: [K], fill: indices(T)}",
        "`T` is no batch of `w` [K]: its fill `indices` points at rows",
        "nothing else may depend on that",
        12,
    ),
}


def test_rows_are_asked_for_where_a_file_says_where_they_lie() -> None:
    spec = load(SPACE.replace("invariant:", "rows:"))
    assert (spec.rows, spec.invariant) == (Invariance("T", ("y", "s"), 18), None)
    asked = require_rows(spec, ["block"])
    assert asked.invariant == spec.rows == load(SPACE).invariant
    with pytest.raises(SpaceError, match="--invariant: project says of no output that it has rows"):
        require_rows(load(SPACE.replace("invariant: {T: [y, s]}\n", "")), ["block"])
    with pytest.raises(SpaceError, match="`rows` beside `invariant`") as raised:
        load(SPACE + "rows: {T: [y]}\n")
    assert raised.value.line == 19


def test_parameters_that_decide_bits_are_part_of_a_class_of_bits() -> None:
    rows = load(SPACE.replace("[y, s]}", "[y, s], by: [block]}")).invariant
    assert rows == Invariance("T", ("y", "s"), 18, ("block",))
    assert rows.class_of("1f", {"block": 32, "stages": 2}) == "1f, block=32"
    assert rows.class_of("", {"block": 32}) == "", "nobody looked"


def test_a_template_without_them_is_told_so_where_rows_are_asked_for() -> None:
    spec = load(SPACE.replace("invariant: {T: [y, s]}", "rows: {T: [y, s], by: [split]}"))
    said = "bits of rows are decided by `split`, which is no parameter"
    with pytest.raises(SpaceError, match=said) as raised:
        require_rows(spec, ["block"])
    assert (raised.value.line, raised.value.exit_code) == (18, 2)
    assert raised.value.remedy == "have one of this name that decides them; there are: block"
    with pytest.raises(SpaceError, match=said):
        load(SPACE.replace("[y, s]}", "[y, s], by: [split]}"))


@pytest.mark.parametrize(
    ("shape", "dimension", "pads"),
    [
        ("[8 * T]", 0, False),
        ("[T * K]", 0, False),
        ("[K * K, T]", 1, False),
        ("[K // 32, 4 * ceil_div(T, 4)]", 1, True),
        ("[\"T if SCALES == 'row' else K\", 4]", 0, False),
    ],
)
def test_rows_are_found_where_each_has_several_elements_and_where_they_are_padded(
    shape: str, dimension: int, pads: bool
) -> None:
    text = SPACE.replace("shape: [K]}", f"shape: {shape}}}")
    spec = load(f"{text}operator: {{SCALES: [row]}}\n")
    assert spec.invariant is not None
    argument = spec.argument("w")
    assert spec.invariant.dimension(argument) == dimension
    assert spec.invariant.pads(argument.shape[dimension]) is pads


def test_sizes_of_weights_count_no_rows_however_large() -> None:
    spec = load(SPACE.replace("shape: [K]}", "shape: [2 * K * K]}"))
    assert spec.invariant is not None
    assert spec.invariant.dimension(spec.argument("w")) is None


def test_every_choice_of_the_operator_has_to_have_the_rows() -> None:
    text = SPACE.replace("[K / 8, T]", "[\"T if SCALES == 'row' else K\"]")
    with pytest.raises(SpaceError, match="has no rows of `T`"):
        load(f"{text}operator: {{SCALES: [row, column]}}\n")


def test_the_sizes_of_a_problem_have_weights() -> None:
    text = SPACE.replace("{T: 9, K: 128}]}", "{T: 9, K: 128}], weight: 4 if T < 8 else 1}")
    assert [load(text).weight_of(one) for one in load(text).tuned] == [4.0, 1.0, 1.0]
    assert load(SPACE).weight_of(load(SPACE).tuned[0]) == 1.0
    with pytest.raises(SpaceError, match="the weight of T=4 K=64 is 0") as raised:
        load(text.replace("4 if T < 8", "0 if T < 8"))
    assert raised.value.line == 13


@pytest.mark.parametrize("name", MISTAKES)
def test_what_cannot_hold_is_told_with_its_line_and_a_remedy(name: str) -> None:
    old, new, message, remedy, line = MISTAKES[name]
    assert old in SPACE
    with pytest.raises(SpaceError) as raised:
        load(SPACE.replace(old, new))
    assert message in raised.value.message
    assert remedy in str(raised.value.remedy)
    assert (raised.value.path, raised.value.line) == (Path("project.yaml"), line)
    assert raised.value.exit_code == 2
