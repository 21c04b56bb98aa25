"""Arbitrary and nearly valid text: loaded, or refused with our own error, file and line."""

from __future__ import annotations

import re
from pathlib import Path

from fuzz_targets import TARGETS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
SPACE = (ROOT / "search_spaces/sglang/silu_and_mul.yaml").read_text(encoding="utf-8")
SPACE = re.sub(r"(?m)^(source|reference|template): .*/\w+", r"\1: k", SPACE)
TEMPLATE = (ROOT / "templates/sglang/silu_and_mul.cu.j2").read_text(encoding="utf-8")[:2500]


def bounded(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=2000,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def words(name: str) -> list[str]:
    """Read the words that the fuzzer uses for a target."""
    text = (Path(__file__).parent / f"dictionaries/{name}.dict").read_text(encoding="utf-8")
    return [
        bytes(line[1:-1], "ascii").decode("unicode_escape").encode("latin-1").decode()
        for line in text.splitlines()
    ]


def pieces(name: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(words(name)) | st.text(max_size=3), max_size=40).map("".join)


def edited(text: str, name: str) -> st.SearchStrategy[str]:
    edit = st.tuples(st.integers(0, len(text)), st.integers(0, 8), pieces(name))
    return edit.map(lambda e: text[: e[0]] + e[2][:60] + text[e[0] + e[1] :])


@bounded(120)
@given(st.binary() | pieces("space").map(str.encode) | edited(SPACE, "space").map(str.encode))
def test_any_search_space_loads_or_is_refused_with_its_line(data: bytes) -> None:
    TARGETS["space"](data)


names = st.sampled_from(
    ["T", "K", "flag", "share", "layout", "2", "0", "1.5", "'a'", "1e300", "-1"]
)
expressions = st.recursive(
    names,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/%|^&<>"), inner).map(" ".join),
        st.tuples(inner, st.sampled_from(["**", "<<", ">>", "//", "==", "and", "or"]), inner).map(
            lambda parts: f"({' '.join(parts)})"
        ),
        st.tuples(inner, inner).map(lambda pair: f"max({pair[0]}, {pair[1]})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
        st.tuples(inner, inner).map(lambda pair: f"{pair[0]} in ({pair[1]},)"),
    ),
    max_leaves=30,
)


@bounded(500)
@given(expressions.map(str.encode) | pieces("expression").map(str.encode) | st.binary())
def test_any_expression_gives_a_value_or_is_refused_with_its_line(data: bytes) -> None:
    TARGETS["expression"](data)


@bounded(120)
@given(
    st.binary() | pieces("template").map(str.encode) | edited(TEMPLATE, "template").map(str.encode)
)
def test_any_template_renders_or_is_refused_with_its_line(data: bytes) -> None:
    TARGETS["template"](data)


@bounded(300)
@given(st.binary() | pieces("include").map(str.encode))
def test_any_source_is_looked_through_for_includes(data: bytes) -> None:
    TARGETS["include"](data)
