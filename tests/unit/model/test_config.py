"""Configs and spaces: order, equality and constraints."""

from __future__ import annotations

import pytest

from tuner.model.config import Config, Parameter, SearchSpace, format_value
from tuner.model.expressions import Expression


def space(*constraints: str, values: tuple[int, ...] = (1, 2)) -> SearchSpace:
    return SearchSpace(
        (Parameter("rows", values), Parameter("keep", (False, True))),
        tuple(Expression.parse(text) for text in constraints),
    )


def test_a_config_is_a_mapping_in_the_order_it_was_made() -> None:
    config = Config.of({"rows": 2, "keep": True})
    assert list(config) == ["rows", "keep"]
    assert dict(config) == {"rows": 2, "keep": True}
    assert str(config) == "rows=2 keep=true"
    with pytest.raises(KeyError):
        config["columns"]


def test_configs_have_one_key_whatever_the_order_of_their_names() -> None:
    one, other = Config.of({"a": 1, "b": True}), Config.of([("b", True), ("a", 1)])
    assert one.key == other.key == '{"a":1,"b":true}'


def test_equal_configs_are_one_element_of_a_set() -> None:
    assert len({Config.of({"a": 1}), Config.of({"a": 1}), Config.of({"a": 2})}) == 2


def test_a_space_counts_its_combinations_and_names_its_parameters() -> None:
    assert space().size == 4
    assert space().names == ("rows", "keep")


def test_the_first_broken_constraint_is_told() -> None:
    both = space("rows <= T", "not keep or rows == 1")
    assert both.violated(Config.of({"rows": 1, "keep": True}), {"T": 1}) is None
    broken = both.violated(Config.of({"rows": 2, "keep": True}), {"T": 1})
    assert broken is not None
    assert broken.text == "rows <= T"


@pytest.mark.parametrize(("value", "text"), [(True, "true"), (8, "8"), (0.5, "0.5"), ("x", "x")])
def test_values_are_written_as_yaml_writes_them(value: bool | float | str, text: str) -> None:
    assert format_value(value) == text
