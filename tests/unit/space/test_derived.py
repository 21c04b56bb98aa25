"""Derived names: written out wherever they stand, and refused where they mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.model.errors import InputError, TemplateError
from tuner.space.load import Definition, load_definition
from tuner.space.template import Template

SPACE = """\
version: 1
kernel: scale
source: scale.cu
reference: scale.py
template: scale.cu.j2
axes: [T, K]
operator: {{KIND: [narrow, wide]}}
arguments:
  - {{name: y, dtype: float32, shape: [T, K], role: output}}
workloads: {{tuned: [{{T: 8, K: 512}}]}}
min_bytes: T * K * 4
baseline: {{launch: [{{kernel: scale, grid: [T], block: [32]}}]}}
parameters:
  lanes: [0, 8, 16, 32]
  rows: [1, 2, 4]
derived:
{derived}
constraints:
{constraints}
launch: [{{kernel: scale, grid: ["ceil_div(T, rows)"], block: [{block}]}}]
tolerance: {{y: {{absolute: 0}}}}
"""
DERIVED = "  threads: lanes * rows\n  pieces: ceil_div(K, threads)"
CONSTRAINTS = "  - threads >= 16\n  - threads < 16 or pieces <= 16"


@pytest.fixture
def load(tmp_path: Path):
    def read(
        derived: str = DERIVED, constraints: str = CONSTRAINTS, block: str = "threads"
    ) -> Definition:
        for name in ("scale.cu", "scale.py", "scale.cu.j2"):
            (tmp_path / name).write_text("")
        path = tmp_path / "scale.yaml"
        path.write_text(SPACE.format(derived=derived, constraints=constraints, block=block))
        return load_definition(path)

    return read


def test_a_derived_name_stands_for_its_expression(load):
    definition = load()
    pieces = definition.space.constraints[1]
    assert pieces.text == "threads < 16 or pieces <= 16", "errors quote what is written"
    assert pieces.names == {"K", "lanes", "rows"}
    assert pieces.evaluate({"K": 512, "lanes": 32, "rows": 1})
    assert not pieces.evaluate({"K": 512, "lanes": 16, "rows": 1})
    (launch,) = definition.spec.candidate_launches({"T": 8, "K": 512, "lanes": 32, "rows": 2})
    assert launch.block == (64, 1, 1)


def test_it_is_computed_only_where_it_is_needed(load):
    guarded = load().space.constraints[1]
    assert guarded.evaluate({"K": 512, "lanes": 0, "rows": 1}), "pieces would divide by 0"


def test_it_is_one_operand_wherever_it_stands(load):
    (double,) = load("  sum: lanes + rows", "  - 2 * sum == 10", "32").space.constraints
    assert double.evaluate({"lanes": 4, "rows": 1})


def test_the_operators_choice_is_known_in_it(load):
    definition = load("  width: 4 if KIND == 'wide' else 1", "  - lanes >= width", "32")
    assert definition.space.constraints[0].evaluate({"lanes": 1})
    assert not definition.chosen({"KIND": "wide"}).space.constraints[0].evaluate({"lanes": 1})


@pytest.mark.parametrize(
    ("derived", "told", "remedy"),
    [
        ("  threads: lanes * row", "undefined name 'row'", "known names: K, KIND, T"),
        ("  rows: lanes * 2", "`rows` is a derived name and was a parameter", "another name"),
        ("  T: lanes * 2", "`T` is a derived name and was an axis", "another name"),
        ("  min: lanes * 2", "`min` cannot be a derived name", "another name"),
        ("  warp_size: 32", "`warp_size` cannot be a derived name: it is a number", "another"),
        ("  8x: lanes * 2", "`8x` is not a name", "letters"),
        ("  threads: [lanes]", "`derived.threads` is a list", "names, each with an expression"),
        ("  threads: threads * 2", "`threads` is derived from itself", "circle"),
        ("  a: b + 1\n  threads: a\n  b: threads", "`a` is derived from itself", "circle"),
        ("  threads: a\n  a: lanes", "`threads` is derived from `a`, which stands fur", "move `a`"),
        ("  threads: lanes *", "is not an expression", "+ - *"),
    ],
)
def test_a_mistake_is_told_with_its_line(load, derived: str, told: str, remedy: str):
    with pytest.raises(InputError) as caught:
        load(derived)
    assert told in str(caught.value)
    assert remedy in str(caught.value)
    assert caught.value.line == 17


def test_names_that_double_again_and_again_are_refused(load):
    doubled = "\n".join(f"  d{i + 1}: d{i} + d{i}" for i in range(30))
    with pytest.raises(InputError, match=r"`d\d+ \+ d\d+`: has over 4000 parts"):
        load(f"  d0: lanes\n{doubled}")


def test_names_on_names_are_not_nested_without_end(load):
    nested = "\n".join(f"  d{i + 1}: abs(d{i})" for i in range(99))
    with pytest.raises(InputError, match="nested too deeply"):
        load(f"  d0: lanes\n{nested}")


def template(definition: Definition, text: str) -> Template:
    made = Template.from_text(text, definition.spec.template)
    made.check(definition.space, definition.spec)
    return made


def test_a_template_may_use_derived_names(load):
    definition = load()
    made = template(definition, "int threads = @{ threads }@, pieces = @{ pieces }@;\n")
    source = made.render({"K": 512, "lanes": 32, "rows": 2}, definition.space.derived).source
    assert source == "int threads = 64, pieces = 8;\n"


def test_a_parameter_is_used_where_a_derived_name_is(load):
    definition = load("  threads: lanes * rows", "  - threads > 1", "32")
    template(definition, "@{ threads }@")
    with pytest.raises(TemplateError, match="the parameter `lanes` changes nothing"):
        template(definition, "@{ rows }@")


def test_a_number_of_the_device_is_not_written_into_a_source(load):
    definition = load("  waves: ceil_div(T, multiprocessors)", "  - waves > 0", "lanes")
    with pytest.raises(TemplateError, match="`waves` depends on `multiprocessors`"):
        template(definition, "@{ waves }@ @{ lanes }@")


def test_a_derived_name_that_nothing_uses_is_refused(load):
    definition = load(f"{DERIVED}\n  idle: lanes + 1")
    with pytest.raises(TemplateError, match="the derived name `idle` changes nothing") as caught:
        template(definition, "")
    assert caught.value.line == 19


def test_a_template_sets_no_derived_name(load):
    with pytest.raises(TemplateError, match="`threads` is declared"):
        template(load(), "//% set threads = 1\n@{ threads }@")
