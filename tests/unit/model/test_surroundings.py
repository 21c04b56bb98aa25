"""What runs before and after an operator: sizes on a workload, and how it is said."""

from __future__ import annotations

from dataclasses import replace

from tuner.model.expressions import Expression
from tuner.model.surroundings import Link, LinkSpec, Neighbour, NeighbourSpec, SurroundingsSpec

GEMM = NeighbourSpec("gemm", "x", tuple(map(Expression.parse, ("T", "D", "7 * D // 2"))), line=3)
STREAM = NeighbourSpec("stream", "y", (Expression.parse("1024"),), pdl=Expression.parse("T > 4"))
DECODE = SurroundingsSpec("decode", (LinkSpec((GEMM,), (STREAM,)),), Expression.parse("T <= 64"))
AXES = {"T": 16, "D": 64}


def test_sizes_are_those_of_the_workload() -> None:
    found = DECODE.on(AXES)
    assert [one.sizes for one in found.neighbours] == [(16, 64, 224), (1024,)]
    assert str(found) == "decode: after gemm 16 x 64 x 224 at x, before stream 1024 at y"


def test_whether_a_stand_in_is_programmatic_may_depend_on_the_workload() -> None:
    assert DECODE.on(AXES).neighbours[1].pdl
    assert not DECODE.on({**AXES, "T": 4}).neighbours[1].pdl


def test_a_file_says_them_with_its_expressions() -> None:
    assert str(DECODE) == "decode: after gemm T x D x 7 * D // 2 at x, before stream 1024 at y"
    router = replace(DECODE, links=(LinkSpec((NeighbourSpec("function", function="router"),)),))
    assert str(router) == "decode: after router, before nothing"


def test_they_hold_where_their_condition_does() -> None:
    assert DECODE.holds(AXES)
    assert not DECODE.holds({**AXES, "T": 65})
    assert replace(DECODE, when=None).holds({**AXES, "T": 65})


def test_the_content_tells_all_but_the_line() -> None:
    found = DECODE.on(AXES)
    moved = replace(GEMM, line=99)
    same = replace(DECODE, links=(LinkSpec((moved,), (STREAM,)),)).on(AXES)
    assert same != found
    assert same.content == found.content
    assert DECODE.on({**AXES, "T": 8}).content != found.content


def test_a_successor_waits_where_every_place_has_one_that_is_programmatic() -> None:
    after = Neighbour("stream", sizes=(8,), pdl=True)
    found = DECODE.on(AXES)
    assert found.successor_waits
    for link in (Link(), Link(after=(replace(after, pdl=False), after))):
        assert not replace(found, links=(*found.links, link)).successor_waits
