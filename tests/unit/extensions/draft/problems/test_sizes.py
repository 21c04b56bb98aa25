"""Shapes as expressions, from a function that gives them for any sizes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tuner.extensions.draft.problems.axes import shapes_over, small_sizes

Sizes = Mapping[str, int]
BASE = {"N": 8, "H": 32, "W": 48, "k": 3}


@pytest.mark.parametrize(
    ("extent", "text"),
    [
        (lambda s: s["H"], "H"),
        (lambda s: 7, "7"),
        (lambda s: 2 * s["H"], "2 * H"),
        (lambda s: 2 * s["H"] - 1, "2 * H - 1"),
        (lambda s: s["H"] - 2, "H - 2"),
        (lambda s: s["H"] // 4, "H // 4"),
        (lambda s: (s["H"] - 1) // 2 + 1, "(H + 1) // 2"),
        (lambda s: s["H"] * s["W"], "H * W"),
        (lambda s: s["N"] * s["H"] * s["W"] * 3, "N * H * W * 3"),
        (lambda s: s["H"] + s["W"] + 1, "H + W + 1"),
    ],
)
@pytest.mark.parametrize("near", [BASE, {**BASE, "H": 12, "W": 7}])
def test_an_extent_is_found_as_an_expression(extent: object, text: str, near: Sizes) -> None:
    axes, texts = shapes_over(
        ["N", "H", "W"],
        BASE,
        lambda s: (s["N"], s["H"], s["W"], extent(s)),  # type: ignore[operator]
        near,
    )
    assert axes == ["N", "H", "W"]
    assert texts == ["N", "H", "W", text]


def test_a_filter_width_gives_way_to_what_sizes_the_input() -> None:
    axes, texts = shapes_over(
        ["H", "k"], BASE, lambda s: (s["H"], s["k"], (s["H"] - s["k"]) // 2 + 1), BASE
    )
    assert axes == ["H"]
    assert texts == ["H", "3", "(H - 1) // 2"]


def test_a_size_that_may_not_change_is_no_axis() -> None:
    axes, texts = shapes_over(
        ["H", "k"], BASE, lambda s: (s["H"], s["k"]) if s["k"] == 3 else None, BASE
    )
    assert (axes, texts) == (["H"], ["H", "3"])


def test_what_is_nowhere_an_extent_itself_is_a_setting() -> None:
    axes, texts = shapes_over(["H", "k"], BASE, lambda s: (s["H"], s["H"] + s["k"]), BASE)
    assert (axes, texts) == (["H"], ["H", "H + 3"])


def test_what_holds_near_and_not_at_the_sizes_themselves_is_not_said() -> None:
    near = {**BASE, "H": 9}
    assert shapes_over(["H"], BASE, lambda s: (s["H"], min(s["H"], 30)), near) == ([], [])


def test_small_sizes_differ_from_axis_to_axis_and_are_taken() -> None:
    def extents(sizes: Sizes) -> tuple[int, ...] | None:
        return (sizes["N"], sizes["H"], sizes["W"]) if sizes["H"] % 16 == 0 else None

    found = small_sizes(["N", "H", "W"], BASE, extents, start=0)
    assert found is not None
    assert found["H"] % 16 == 0
    assert len({found["N"], found["H"], found["W"]}) == 3
    assert found["W"] < 48


def test_a_recurrence_is_never_tried_with_many_steps_and_else_small() -> None:
    base = {"steps": 512, "width": 256, "layers": 6}
    tried: list[Sizes] = []

    def extents(sizes: Sizes) -> tuple[int, ...] | None:
        tried.append(sizes)
        return (sizes["steps"], sizes["width"]) if sizes["layers"] == 6 else None

    assert small_sizes([*base], base, extents, 0) == {"steps": 5, "width": 7, "layers": 6}
    assert [sizes for sizes in tried if sizes["steps"] == 512] == [base]
