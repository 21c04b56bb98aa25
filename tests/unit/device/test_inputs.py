"""Random inputs and the reference file that goes with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tuner.device.encoding import LARGEST, SMALLEST_NORMAL, decode, encode
from tuner.device.inputs import (
    INPUT_KINDS,
    NONFINITE,
    draw_values,
    generator,
    input_kinds_for,
)
from tuner.device.reference import load_reference
from tuner.model.errors import KernelError
from tuner.model.expressions import Expression
from tuner.model.kernel import FLOAT_DTYPES, Argument, ExtremeLimit
from tuner.space.load import load_definition

SHAPE = (100, 200)
SCALE = Path(__file__).parents[2] / "end_to_end/data/scale/search_spaces/scale.yaml"


def draw(fill: str, *, kind: str = "normal", dtype: str = "float32", seed: int = 1) -> np.ndarray:
    argument = Argument("x", dtype, fill=kind, nonfinite=fill == NONFINITE)
    return draw_values(np, generator(np, seed), argument, fill, SHAPE)


def test_equal_seeds_give_equal_inputs_and_others_do_not() -> None:
    assert np.array_equal(draw("normal"), draw("normal"))
    assert not np.array_equal(draw("normal"), draw("normal", seed=2))


@pytest.mark.parametrize(
    ("fill", "scale"), [("normal", 1.0), ("x3", 3.0), ("x0.01", 0.01), ("negated", -1.0)]
)
def test_fills_scale_the_same_numbers(fill: str, scale: float) -> None:
    np.testing.assert_allclose(draw(fill), draw("normal") * scale, rtol=1e-6)
    assert draw(fill).std() == pytest.approx(abs(scale), rel=0.05)


def test_the_fill_zeros_leaves_about_half_of_the_numbers_and_no_number_in_some_rows() -> None:
    values = draw("zeros")
    assert 0.1 < np.mean(~values.any(axis=1)) < 0.4
    assert 0.5 < np.mean(values == 0.0) < 0.75
    assert values.std() > 0.5


@pytest.mark.parametrize("dtype", sorted(FLOAT_DTYPES))
def test_extreme_values_survive_their_way_into_the_dtype(dtype: str) -> None:
    found = decode(np, encode(np, draw("extreme", dtype=dtype), dtype), dtype)
    assert np.isfinite(found).all()
    for value in (LARGEST[dtype], SMALLEST_NORMAL[dtype], SMALLEST_NORMAL[dtype] / 2, 1.0):
        assert {value, -value} <= set(found.ravel().tolist())
    zeros = found[found == 0.0]
    assert set(np.signbit(zeros).tolist()) == {True, False}
    assert len(np.unique(found)) > 50, "the numbers between are missing"


@pytest.mark.parametrize("kind", ["normal", "x3", "negated", "extreme"])
@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [("uint8", 0, 255), ("int8", -128, 127), ("uint16", 0, 65_535), ("bool", 0, 1),
     ("uint32", 0, 2**32 - 1), ("int32", -(2**31), 2**31 - 1), ("int64", -(2**43), 2**43 - 1)],
)  # fmt: skip
def test_whole_numbers_have_the_full_range_of_their_dtype(
    kind: str, dtype: str, low: int, high: int
) -> None:
    values = draw(kind, dtype=dtype)
    stored = decode(np, encode(np, values, dtype), dtype)
    assert np.array_equal(stored, values), "they fit"
    assert low <= values.min() <= values.max() <= high
    assert values.max() - values.min() > 0.9 * (high - low)
    if kind != "extreme":
        assert {*range(min(256, high + 1))} <= {int(value) & 255 for value in values.ravel()}
        assert len(np.unique(np.floor(values / (high + 1) * 8))) >= min(8, high + 1)


def test_small_whole_numbers_are_a_kind_of_their_own_and_extremes_are_the_ends() -> None:
    assert np.abs(draw("x0.01", dtype="int32")).max() < 50
    assert {*range(4)} <= {*draw("x0.01", dtype="uint8").ravel()}
    assert {-(2**31), 2**31 - 1, 0, 1, -1} <= {*draw("extreme", dtype="int32").ravel()}
    assert 0.4 < (draw("zeros", dtype="uint32") == 0).mean() < 0.6


def test_a_range_of_whole_numbers_reaches_every_bit() -> None:
    bound = tuple(Expression.parse(str(end)) for end in (0, 2**32 - 1))
    argument = Argument("x", "uint32", fill="uniform", fill_bounds=bound)
    values = encode(np, draw_values(np, generator(np, 1), argument, "normal", SHAPE), "uint32")
    assert {*range(256)} == {*(values & 255).ravel()} == {*(values >> 24).ravel()}


@pytest.mark.parametrize(
    ("kind", "low", "high"), [("uniform", 0, 1), ("zeros", 0, 0), ("ones", 1, 1)]
)
def test_an_arguments_own_fill_bounds_its_numbers(kind: str, low: float, high: float) -> None:
    values = draw("normal", kind=kind)
    assert low <= values.min() <= values.max() <= high
    assert {draw(fill, kind=kind).shape for fill in INPUT_KINDS} == {SHAPE}


def test_the_fill_nonfinite_spoils_some_rows_and_leaves_the_others() -> None:
    values = draw("nonfinite")
    spoiled = ~np.isfinite(values).all(axis=1)
    assert 0.1 < spoiled.mean() < 0.4
    assert np.isnan(values).any()
    assert {np.inf, -np.inf} <= set(values[np.isinf(values)].tolist())
    infinite_alone = np.isinf(values).any(axis=1) & ~np.isnan(values).any(axis=1)
    assert infinite_alone.any(), "a NaN in every row hides what becomes of an infinity"


def test_the_fill_nonfinite_spoils_even_a_single_row() -> None:
    argument = Argument("x", "float32", nonfinite=True)
    for seed in range(20):
        values = draw_values(np, generator(np, seed), argument, NONFINITE, (1, 64))
        assert not np.isfinite(values).all()


def test_an_unknown_fill_is_refused_with_those_that_exist() -> None:
    with pytest.raises(KernelError, match="unknown fill 'gaussian'") as caught:
        draw("normal", kind="gaussian")
    assert caught.value.remedy is not None
    assert "one of normal, uniform, zeros, ones" in caught.value.remedy


EVERY_KIND = pytest.mark.parametrize("kind", INPUT_KINDS)


def filled(fill: str, kind: str, dtype: str, *bounds: float | str) -> np.ndarray:
    parsed = tuple(Expression.parse(bound) for bound in bounds)
    argument = Argument("x", dtype, fill=fill, fill_bounds=parsed)
    values = draw_values(np, generator(np, 3), argument, kind, SHAPE, {"N": 50_000})
    return decode(np, encode(np, values, dtype), dtype)


def rises(values: np.ndarray) -> bool:
    return bool((np.diff(values, axis=-1) >= 0).all())


@EVERY_KIND
@pytest.mark.parametrize(
    ("fill", "dtypes", "bounds", "holds"),
    [
        ("positive", "float16 float32 int32", (), lambda v: v.min() > 0),
        ("sorted", "float32", (), lambda v: rises(v) and len(np.unique(v)) > 10),
        ("uniform", "float32", (-1, 2),
         lambda v: -1 <= v.min() <= v.max() <= 2 and len(np.unique(v)) > 10),
        *(("probabilities", "float32", (axis,), lambda v, axis=axis:
           v.min() >= 0 and np.allclose(v.sum(axis=axis), 1.0, rtol=1e-5, atol=0))
          for axis in (0, 1, -1)),
        ("indices", "int32", ("N // 5",), lambda v: 0 <= v.min() <= v.max() < 10_000),
        ("distinct", "int64", ("N",),
         lambda v: len(np.unique(v)) == v.size and 0 <= v.min() <= v.max() < 50_000),
        ("offsets", "int32", ("N",),
         lambda v: rises(v) and {*v[:, 0]} == {0} and {*v[:, -1]} == {50_000}),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)  # fmt: skip
def test_numbers_of_every_kind_keep_to_their_fill(
    kind: str,
    fill: str,
    dtypes: str,
    bounds: tuple[float | str, ...],
    holds: Callable[[np.ndarray], bool],
) -> None:
    for dtype in dtypes.split():
        assert holds(filled(fill, kind, dtype, *bounds)), dtype


@pytest.mark.parametrize("kind", [one for one in INPUT_KINDS if one != "x0.01"])
def test_indices_reach_far(kind: str) -> None:
    assert filled("indices", kind, "int32", "N // 5").max() > 9_000


def test_too_few_distinct_numbers_are_refused() -> None:
    with pytest.raises(KernelError, match="asks for 20000 numbers below 8"):
        filled("distinct", "normal", "int32", 8)


def test_extremes_go_as_far_as_the_file_says() -> None:
    limited = Argument("x", "float32", extreme=ExtremeLimit("squares", 1e4))
    values = draw_values(np, generator(np, 1), limited, "extreme", SHAPE)
    assert np.abs(values).max() == 1e4
    none = Argument("x", "float32", extreme=ExtremeLimit("squares"))
    values = draw_values(np, generator(np, 1), none, "extreme", SHAPE)
    assert np.abs(values).max() < 10


@pytest.mark.parametrize(
    ("limits", "extreme"),
    [((None, None), True), ((None, 1e4), True), (("none", 1e4), True), (("none", "none"), False)],
)
def test_the_kind_is_left_out_only_where_no_input_has_any(
    limits: tuple[float | str | None, ...], extreme: bool
) -> None:
    def limit(of: float | str | None) -> ExtremeLimit | None:
        return None if of is None else ExtremeLimit("why", None if of == "none" else float(of))

    spec = load_definition(SCALE).spec
    floats = tuple(Argument(f"x{i}", "float32", extreme=limit(one)) for i, one in enumerate(limits))
    whole = Argument("i", "int32", fill="normal")
    assert ("extreme" in input_kinds_for(replace(spec, arguments=(*floats, whole)))) is extreme


def written(folder: Path, text: str) -> Path:
    path = folder / "kernel.py"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_reference_file_gives_its_function_and_its_inputs_if_any(tmp_path: Path) -> None:
    text = "def reference(xp, inputs, axes): return {}\n"
    reference = load_reference(written(tmp_path, text))
    assert reference.compute(np, {}, {}) == {}
    assert reference.inputs is None
    own = load_reference(written(tmp_path, f"{text}def inputs(xp, rng, axes, fill): return {{}}\n"))
    assert own.inputs is not None
    assert own.inputs(np, generator(np, 1), {}, "normal") == {}


def test_a_reference_that_is_no_python_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "reference.txt"
    path.write_text("y = 2 x")
    with pytest.raises(KernelError, match="not a Python file"):
        load_reference(path)


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("", None, "defines no `reference` function"),
        ("reference = 3\n", None, "defines no `reference` function"),
        ("\ndef reference(inputs, axes): ...\n", 2, "takes fewer than `xp`, `inputs` and `axes`"),
        ("x = 1\ny = x / 0\n", 2, "cannot be imported: ZeroDivisionError"),
        ("import sys\n\nsys.exit()\n", 3, "cannot be imported: SystemExit"),
        ("import sys\nsys.exit(4)\n", 2, "cannot be imported: SystemExit: 4"),
        ("def reference(xp:\n", 1, "SyntaxError"),
        ("\nimport no_such_module_of_ours\n", 2, "no_such_module_of_ours"),
        ("from math import a_name_it_lacks\n", 1, "a_name_it_lacks"),
    ],
)
def test_whatever_a_reference_file_raises_is_one_error_at_its_line(
    tmp_path: Path, text: str, line: int | None, what: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(KernelError) as caught:
        load_reference(path)
    assert (caught.value.path, caught.value.line) == (path, line)
    assert what in caught.value.message
