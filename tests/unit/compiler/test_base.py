"""What of a source counts when two are told apart."""

from __future__ import annotations

import time

import pytest

from tuner.compiler.base import normalized


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("int  a; // one\n\n  int b;\n", "int a;\nint b;"),
        ("int a; /* one\ntwo */ int b;", "int a; int b;"),
        ('f("// no", "/* no */"); // yes', 'f("// no", "/* no */");'),
        ('f("a\\"// no"); // yes', 'f("a\\"// no");'),
        ("char q = '\"'; // yes", "char q = '\"';"),
        ("int a = 1'000'000; // yes", "int a = 1'000'000;"),
        ("int a; /* never\nclosed", "int a;"),
        ('x "never closed // is it\nint a; // yes', 'x "never closed // is it\nint a;'),
    ],
)
def test_comments_and_blanks_do_not_count(source: str, code: str) -> None:
    assert normalized(source) == code


@pytest.mark.parametrize("piece", ["/*", "/* *", '"', '"\\', "'", "'\\", "'\"", "//", "/"])
def test_a_hostile_source_takes_time_that_grows_with_its_length(piece: str) -> None:
    source = piece * (400_000 // len(piece))
    start = time.perf_counter()
    normalized(source)
    assert time.perf_counter() - start < 2
