"""Expressions as C++: g++ must compute what `Expression.evaluate` does, or throw where it fails."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from pathlib import Path

import kept
import pytest

from tuner.extensions.export.cpp import integer, real, truth, value
from tuner.extensions.export.sources import template
from tuner.model.errors import ExpressionError
from tuner.model.expressions import Expression, substitute

NAMES = {"T": "T", "D": "D", "multiprocessors": "multiprocessors"}
SHAPES = [
    (1, 8, 132),
    (16, 11008, 132),
    (3, 4097, 1),
    (8192, 14336, 132),
    (2**31 - 1, 2**31 - 1, 7),
]
WRITTEN = [
    "ceil_div(T * D * 2, 16 * 256)",
    "(T - 20) // 7",
    "(T - 20) % 7",
    "(T - 20) // -7",
    "(20 - T) % -7",
    "T // (D - 8)",
    "T * D * 4 if T * D * 4 <= 232448 else 0",
    "multiprocessors * 2 if T > 128 else min(T, 4)",
    "T in (1, 2, 16)",
    "T not in (1, 2, 16) and D % 8 == 0",
    "1 <= T <= 128 < D",
    "not T % 2",
    "T % 2 or D",
    "T > 1 and D",
    "(T > 1) + (D > 9000)",
    "(T > 1) ^ (D > 9000)",
    "T & 7 | 16",
    "T << 3",
    "T >> 2",
    "T << D",
    "T ** 2",
    "max(T, 100, D // 3)",
    "abs(T - 100)",
    "-T + D",
    "-(T > 1)",
    "T == 16 or 1 // (T - 1)",
    "D * T * T * T",
    "T in ()",
    "True == T",
    "ceil_div(T, 0)",
    "3 * 10 ** 12 + T",
]


def made_up(rng: random.Random, depth: int = 3) -> str:
    """Write a random expression that mostly has a value."""
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(["T", "D", "multiprocessors", "1", "2", "8", "128", "True", "-3"])
    a, b, c = (made_up(rng, depth - 1) for _ in range(3))
    return rng.choice(
        [
            f"({a} + {b})",
            f"({a} - {b})",
            f"({a} * {b})",
            f"({a} // {b})",
            f"({a} % {b})",
            f"min({a}, {b})",
            f"max({a}, {b}, {c})",
            f"ceil_div({a}, {b})",
            f"({a} if {b} else {c})",
            f"({a} < {b} <= {c})",
            f"({a} and {b})",
            f"({a} or {b})",
            f"(not {a})",
            f"abs({a})",
            f"({a} in ({b}, {c}))",
            f"({a}) ** 2",
        ]
    )


def expected(expression: Expression, shape: tuple[int, int, int]) -> str:
    try:
        result = expression.evaluate(dict(zip(NAMES, shape, strict=True)))
    except ExpressionError:
        return "none"
    if isinstance(result, float):
        return float(result).hex()
    return str(int(result)) if abs(result) < 2**63 else "none"


def computed(codes: list[str], folder: Path) -> list[list[str]]:
    """Compile all and run them on every shape."""
    functions = "\n".join(
        f"static void f{i}(std::int64_t T, std::int64_t D, std::int64_t multiprocessors) "
        f"{{ (void)T; (void)D; (void)multiprocessors; print({code}); }}"
        for i, code in enumerate(codes)
    )
    table = ", ".join(f"f{i}" for i in range(len(codes)))
    shapes = ", ".join("{" + ", ".join(map(str, shape)) + "}" for shape in SHAPES)
    parts = {
        "EXPRESSIONS": template("expressions.h.j2").render(),
        "FUNCTIONS": functions,
        "TABLE": table,
        "SHAPES": shapes,
    }
    main = (Path(__file__).parent / "data" / "expressions.cpp").read_text("utf-8")
    (folder / "main.cpp").write_text(re.sub("[A-Z]{5,}", lambda name: parts[name[0]], main))
    kept.build(["g++", "-std=c++17", "-w", "-O0", "main.cpp", "-o", "main"], folder)
    out = subprocess.run([folder / "main"], check=True, capture_output=True, text=True).stdout
    lines, width = out.split(), len(SHAPES)
    return [lines[i : i + width] for i in range(0, len(lines), width)]


def as_written(text: str) -> str:
    """Bring a float to Python's spelling."""
    return float.fromhex(text).hex() if text.startswith(("0x", "-0x")) else text


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("seed", [None, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_it_computes_what_python_does(tmp_path: Path, seed: int | None) -> None:
    rng = random.Random(seed)  # noqa: S311
    texts = WRITTEN if seed is None else [made_up(rng) for _ in range(150)]
    expressions, codes = [], []
    for text in texts:
        folded = substitute(Expression.parse(text), {})
        try:
            code = value(folded, NAMES)
        except ExpressionError:
            continue
        expressions.append(Expression.parse(text))
        codes.append(f"{'bool' if code.is_bool else 'std::int64_t'}({code.text})")
    assert len(codes) > 0.6 * len(texts)
    for expression, found in zip(expressions, computed(codes, tmp_path), strict=True):
        for shape, text in zip(SHAPES, found, strict=True):
            wanted = expected(expression, shape)
            # Beyond 64 bits C++ gives up.
            assert text in (wanted, "none"), (expression.text, shape, wanted, text)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_scalar_of_floats_may_be_a_quotient_or_a_power_of_the_shape(tmp_path: Path) -> None:
    texts = ["T / 8", "1 / (T * D)", "D ** -0.5", "2.0 * T - 0.5", "-T / (D - 8)"]
    texts += ["1 / D if T > 3 else 0.5", "(1.0 if 'a' == 'a' else 2.0) / D"]
    folded = [substitute(Expression.parse(text), {}) for text in texts]
    codes = [f"double({real(one, NAMES)})" for one in folded]
    for text, found in zip(texts, computed(codes, tmp_path), strict=True):
        for shape, computed_text in zip(SHAPES, found, strict=True):
            wanted = expected(Expression.parse(text), shape)
            assert wanted == as_written(computed_text), (text, shape, wanted, computed_text)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("T", "T"),
        ("T if 'rows' == 'rows' else D", "T"),
        ("True or T * D > 5", "true"),
        ("False or T > 5", "(T > 5)"),
        ("5000000000", "5000000000LL"),
        ("not T > 1", "!(T > 1)"),
    ],
)
def test_what_is_constant_is_gone(text: str, code: str) -> None:
    assert value(substitute(Expression.parse(text), {}), NAMES).text == code


def test_a_condition_is_a_bool_and_a_size_is_whole() -> None:
    assert truth(Expression.parse("T % 2"), NAMES) == "(floor_mod(T, 2) != 0)"
    with pytest.raises(ExpressionError, match="a division that is not `//`"):
        integer(Expression.parse("T / 2"), NAMES)


@pytest.mark.parametrize(
    "text", ["('a' if T > 1 else 'b') == 'a'", "2 ** T", "T > 0.5", "2 ** -3 * T", "2 ** 64 + T"]
)
def test_what_has_no_equal_says_so(text: str) -> None:
    with pytest.raises(ExpressionError, match="has no equal in C\\+\\+"):
        value(substitute(Expression.parse(text), {}), NAMES)
