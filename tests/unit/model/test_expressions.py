"""Expressions mean what Python means, and nothing outside the whitelist passes."""

from __future__ import annotations

import ast
import pickle
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from tuner.model.errors import ExpressionError
from tuner.model.expressions import FUNCTIONS, Expression, Value, ceil_div, substitute

NAMES: dict[str, Value] = {"a": 7, "b": -3, "c": 0, "flag": True, "off": False}
MISTAKES = YAML(typ="safe").load(Path(__file__).with_name("expressions.yaml"))
BINARY = ["+", "-", "*", "//", "%", "&", "|", "^", "/"]
COMPARE = ["==", "!=", "<", "<=", ">", ">="]

leaves = st.one_of(
    st.sampled_from(sorted(NAMES)), st.integers(0, 100).map(str), st.sampled_from(["True", "False"])
)


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def joined(form: str, *parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.tuples(*parts).map(lambda texts: form.format(*texts))

    compare, function = st.sampled_from(COMPARE), st.sampled_from(["min", "max", "ceil_div"])
    return st.one_of(
        joined("({} {} {})", inner, st.sampled_from([*BINARY, *COMPARE, "and", "or"]), inner),
        joined("({} {} {} {} {})", inner, compare, inner, compare, inner),
        joined("({} if {} else {})", inner, inner, inner),
        joined("({}{})", st.sampled_from(["-", "+", "not "]), inner),
        joined("{}({}, {})", function, inner, inner),
        joined("({} {} ({}, {}))", inner, st.sampled_from(["in", "not in"]), inner, inner),
        joined("({} {} {})", inner, st.sampled_from(["<<", ">>", "**"]), st.integers(0, 6)),
    )


@settings(deadline=None)
@given(st.recursive(leaves, larger, max_leaves=8))
def test_an_expression_evaluates_as_python_evaluates_it(text: str) -> None:
    expression = Expression.parse(text)
    try:
        expected = eval(text, {"__builtins__": {}, **FUNCTIONS, **NAMES})  # noqa: S307
    except (ArithmeticError, TypeError, ValueError):
        with pytest.raises(ExpressionError):
            expression.evaluate(NAMES)
        return
    try:
        value = expression.evaluate(NAMES)
    except ExpressionError as error:
        assert "too large" in error.message
        return
    assert value == expected
    assert type(value) is type(expected)


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_text_parses_or_is_refused_with_a_remedy(text: str) -> None:
    try:
        Expression.parse(text)
    except ExpressionError as error:
        assert error.remedy


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *MISTAKES["refused"],
        ("-" * 80 + "a", "nested too deeply"),
        ("1" + " + 1" * 1000, "characters, over 2000"),
        ("9" * 1900, "over 2048 bits"),
    ],
)
def test_what_is_outside_the_whitelist_is_refused_with_its_place(text: str, found: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        Expression.parse(text, path=Path("space.yaml"), line=12)
    assert found in caught.value.message
    assert str(caught.value).startswith("space.yaml:12: ")
    assert "ceil_div" in str(caught.value.remedy)


@pytest.mark.parametrize(("text", "found"), MISTAKES["uncomputable"])
def test_what_cannot_be_computed_says_why_and_where(text: str, found: str) -> None:
    expression = Expression.parse(text, path=Path("space.yaml"), line=3)
    with pytest.raises(ExpressionError) as caught:
        expression.integer(NAMES)
    assert found in str(caught.value)
    assert f"space.yaml:3: `{text}`: " in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"), [("8 / 2", 4), ("2.0 * 3", 6), ("a + flag", 8), ("'x' == 'x'", 1)]
)
def test_a_size_is_a_whole_number(text: str, value: int) -> None:
    size = Expression.parse(text).integer(NAMES)
    assert size == value
    assert type(size) is int


def test_a_function_is_not_a_free_name_and_a_name_is() -> None:
    assert Expression.parse("max(T, ceil_div(K, 8)) in (1, block)").names == {"T", "K", "block"}


def test_a_derived_name_in_two_places_is_one_part_whatever_is_substituted() -> None:
    made = Expression.parse("a * a < n").define({"a": Expression.parse("x + (y + z)")})
    folded = substitute(made, {"n": 50, "z": 2})
    for tree in (made.tree, folded.tree):
        assert isinstance(tree, ast.Compare)
        assert isinstance(tree.left, ast.BinOp)
        assert tree.left.left is tree.left.right
    assert folded.text == "(x + (y + 2)) * (x + (y + 2)) < 50"
    assert [folded.evaluate({"x": x, "y": 1}) for x in (4, 5)] == [True, False]
    assert made.text == "a * a < n"


@pytest.mark.parametrize(
    ("derived", "text"),
    [
        ("M == N", "(c or t) == t"),
        ("M > N", "(not t) != t"),
        ("M if M > N else 1", "(split if deep else t) <= t"),
        ("T * 2 if T > 1 else 0", "(1 if T > 4 else t) if t else 3"),
    ],
)
def test_the_text_of_what_stands_in_two_places_has_its_parentheses(derived: str, text: str) -> None:
    made = Expression.parse(text).define({"t": Expression.parse(derived)})
    again = Expression.parse(substitute(made, {"unused": 1}).text)
    names = sorted(made.names)
    assert again.names == made.names
    for values in product(range(3), repeat=len(names)):
        known = dict(zip(names, values, strict=True))
        assert again.evaluate(known) == made.evaluate(known)


def test_an_undefined_name_is_told_with_those_that_are_known() -> None:
    expression = Expression.parse("blok > 1", path=Path("s.yaml"), line=4)
    with pytest.raises(ExpressionError) as caught:
        expression.require({"block", "T"})
    assert str(caught.value) == (
        "s.yaml:4: `blok > 1`: undefined name 'blok'\n  known names: T, block"
    )


def test_the_booleans_of_yaml_are_told_in_pythons_words() -> None:
    with pytest.raises(ExpressionError, match="the booleans are True and False"):
        Expression.parse("flag == true").require({"flag"})


def test_lines_of_a_block_are_one_expression() -> None:
    assert Expression.parse("a +\n  1\n").evaluate(NAMES) == 8


def test_an_expression_survives_a_process_boundary() -> None:
    expression = Expression.parse("a * 2 if flag else 0")
    assert pickle.loads(pickle.dumps(expression)).evaluate(NAMES) == 14  # noqa: S301


@settings(deadline=None)
@given(st.integers(-1000, 1000), st.integers(1, 50))
def test_ceil_div_is_the_smallest_count_that_covers(a: int, b: int) -> None:
    assert (ceil_div(a, b) - 1) * b < a <= ceil_div(a, b) * b
