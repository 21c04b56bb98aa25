"""Where a kernel touches its arrays, and what bounds the index there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.extensions.draft.array_access import Access
from tuner.extensions.draft.pointers import accesses_of
from tuner.source import parse_source

ARRAYS = "const float* x, float* y, int n, int m"


def accesses(body: str) -> tuple[Access, ...]:
    source = parse_source(f"__global__ void k({ARRAYS})\n{{\n{body}\n}}\n", Path("k.cu"))
    return accesses_of(source, source.kernels[0], {})


def only(body: str) -> Access:
    (found,) = accesses(body)
    return found


@pytest.mark.parametrize(
    ("body", "index"),
    [
        ("y[i] = 0;", "i"),
        ("*y = 0;", "0"),
        ("*(y + i) = 0;", "i"),
        ("float v = __ldg(&x[i]);", "i"),
        ("atomicAdd(y, 1.f);", "0"),
        ("const float* row = x + i * m; float v = row[3];", "(i * m) + (3)"),
        ("const float* row = &x[i]; float v = row[j];", "(i) + (j)"),
        ("float* a = y + i; float* b = a + j; b[k] = 0;", "((i) + (j)) + (k)"),
        ("y += i * m; y[j] = 0;", "(i * m) + (j)"),
    ],
)
def test_an_index_is_followed_through_pointers(body: str, index: str) -> None:
    assert only(body).index == index


@pytest.mark.parametrize(
    "body", ["helper(y);", "helper(&y[i]);", "for (int i = 0; i < n; ++i) { y += m; y[0] = 1; }"]
)
def test_what_is_handed_on_or_moved_in_a_loop_is_not_exact(body: str) -> None:
    assert not only(body).exact


@pytest.mark.parametrize(
    ("body", "reads", "writes"),
    [
        ("y[i] = 0;", False, True),
        ("y[i] += 1;", True, True),
        ("y[i]++;", True, True),
        ("float v = y[i];", True, False),
        ("std::swap(y[i], v);", True, True),
        ("atomicMax(&y[i], 1);", True, True),
        ("__stcs(y + i, 2.f);", False, True),
        ("float v = __ldcs(&y[i]);", True, False),
    ],
)
def test_reading_and_writing_are_told_apart(body: str, reads: bool, writes: bool) -> None:
    found = only(body)
    assert (found.reads, found.writes) == (reads, writes)


@pytest.mark.parametrize(
    ("body", "bounds"),
    [
        ("if (i < n) y[i] = 0;", [("i", "n")]),
        ("if (i <= n) y[i] = 0;", [("i", "(n) + 1")]),
        ("if (i < n && j < m) y[i] = 0;", [("i", "n"), ("j", "m")]),
        ("if (i < n || j < m) y[i] = 0;", []),
        ("if (i >= n) return; y[i] = 0;", [("i", "n")]),
        ("if (i >= n || (j + 1) >= m) { return; } y[i] = 0;", [("i", "n"), ("j+1", "m")]),
        ("if (i >= n) { f(); } else { y[i] = 0; }", [("i", "n")]),
        ("for (int i = t; i < n; i += 2) y[i] = 0;", [("i", "n")]),
        ("for (;i < n;) if (i < m) y[i] = 0;", [("i", "m"), ("i", "n")]),
        ("y[i] = 0; if (i >= n) return;", []),
    ],
)
def test_the_conditions_that_hold_bound_an_index(body: str, bounds: list[tuple[str, str]]) -> None:
    assert [(bound.what, bound.limit) for bound in only(body).bounds] == bounds


def test_every_access_has_its_line() -> None:
    assert [a.line for a in accesses("y[0] = 1;\n\ny[1] = x[2];")] == [3, 5, 5]


def test_functions_that_call_one_another_many_times_are_read_in_time() -> None:
    text = "__device__ void f8(float* p, int n) { p[n] += 1; }\n"
    for k in range(7, -1, -1):
        calls = " ".join(f"f{k + 1}(p + {n} * n, n);" for n in range(4))
        text += f"__device__ void f{k}(float* p, int n) {{ {calls} }}\n"
    source = parse_source(f"{text}__global__ void k(float* x, int n) {{ f0(x, n); }}", Path("k.cu"))
    assert 0 < len(accesses_of(source, source.kernels[0], {})) < 1000
