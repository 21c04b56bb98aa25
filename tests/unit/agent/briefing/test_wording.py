"""Texts that quote, cut and count do so exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.agent.briefing.formatting import clipped, fenced, numbered, one_line, size


@given(st.text(alphabet="`end 0123\n~"))
def test_no_text_ends_its_own_quotation(text):
    head, _, opening, *body, closing, end = fenced(text, "cuda", "A text").split("\n")
    fence = opening.removesuffix("cuda")
    assert closing == fence
    assert set(fence) == {"`"}
    assert "\n".join(body) == text.removesuffix("\n")
    assert all(fence not in line and line != end for line in body)
    assert end in head


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a\nb\n", "1| a\n2| b"),
        ("a\r\nb", "1| a\n2| b"),
        ("a\fb\u2028c\n", "1| a\fb\u2028c"),  # one line to Jinja and to a compiler
        ("\n\n", "1| \n2| "),
    ],
)
def test_lines_are_numbered_as_the_template_counts_them(text, lines):
    assert numbered(text) == lines


def test_what_fits_is_not_cut():
    assert clipped("a\nb\n", 4, "more") == "a\nb\n"


def test_a_cut_keeps_whole_lines_and_counts_the_others():
    assert clipped("aa\nbb\ncc\n", 6, "more") == "aa\nbb\n[cut here: 1 of 3 lines left out; more]"


def test_a_text_becomes_one_line_of_bounded_length():
    assert one_line(" a\n\tb ") == "a b"
    assert one_line("word " * 100, 20) == "word word word wo..."


@pytest.mark.parametrize(
    ("count", "text"),
    [(12, "12 bytes"), (2_100_000, "2.1 MB"), (705_000_000, "705 MB"), (3 * 10**12, "3e+03 GB")],
)
def test_sizes_have_three_digits(count, text):
    assert size(count) == text
