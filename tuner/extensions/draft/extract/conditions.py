"""Conditions of the preprocessor: which hold in a build for CUDA, and what macro is behind one."""

from __future__ import annotations

import ast
import operator as operators
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tuner.source.reader import source_text
from tuner.source.syntax import integer, mask

# Left to the compiler: they differ between NVRTC, the CPU device and the architectures.
_OPEN = re.compile(
    r"__CUDA_ARCH\w*|__CUDACC_RTC__|__CUDA_ON_HOST__|__CUDACC_VER_\w+|__cplusplus|__has_\w+"
    r"|__cpp_\w+|NDEBUG|_MSC_VER|_WIN(?:32|64)|__GNUC__|__clang__|__linux__|__x86_64__"
)
HEADERS = tomllib.loads(Path(__file__).with_name("headers.toml").read_text(encoding="utf-8"))
PREDEFINED: Mapping[str, str] = HEADERS["predefined"]
# What builds for CUDA define: for the platform, and for types that they add to others.
PLATFORM_FLAG = re.compile(r"(?:[A-Z0-9]+_)*(?:WITH|USE|ENABLE|HAVE)_CUDA")
_TYPES_OF_BUILDS = r"(?:BF16|BFLOAT16|FP?16|HALF|FP?8(?:_E\dM\d)?|FP?4(?:_E2M1)?)"
TYPE_FLAG = re.compile(
    rf"(?:[A-Z0-9]+_)*(?:(?:WITH|USE|ENABLE|HAVE)_{_TYPES_OF_BUILDS}"
    rf"|{_TYPES_OF_BUILDS}_(?:AVAILABLE|ENABLED|SUPPORTED))"
)
_DEFINED = re.compile(r"\bdefined\s*(?:\(\s*(\w+)\s*\)|\s(\w+))")
_NUMBER = re.compile(r"\b(0[xX][\da-fA-F]+|\d+)[uUlL]*\b")
_OPERATORS: dict[type[ast.operator] | type[ast.cmpop], Callable[[int, int], int]] = {
    ast.Add: operators.add, ast.Sub: operators.sub, ast.Mult: operators.mul,
    ast.FloorDiv: operators.floordiv, ast.Mod: operators.mod,
    ast.Eq: operators.eq, ast.NotEq: operators.ne,
    ast.Lt: operators.lt, ast.LtE: operators.le, ast.Gt: operators.gt, ast.GtE: operators.ge,
}  # fmt: skip
_MAX_DEPTH = 8


def holds(condition: str, macros: Mapping[str, str | None]) -> bool | None:
    """Evaluate an #if; None where the compiler has to.

    `macros` maps what is defined to its text, or to None where that is not certain.
    """

    def replace_test(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if _OPEN.fullmatch(name) or (name in macros and macros[name] is None):
            return name
        return "1" if name in macros else "0"

    text = _DEFINED.sub(replace_test, " ".join(condition.split()))
    text = text.replace("&&", " and ").replace("||", " or ")
    text = re.sub(r"!(?!=)", " not ", text).replace("/", "//")
    try:
        value = _evaluate(text, macros, 0)
    except ArithmeticError:
        return None
    return None if value is None else bool(value)


def _evaluate(text: str, macros: Mapping[str, str | None], depth: int) -> int | None:
    plain = _NUMBER.sub(lambda match: str(integer(match[1])), text).strip()
    try:
        return _value(ast.parse(plain, mode="eval").body, macros, depth)
    except (SyntaxError, ValueError):
        return None


def _value(node: ast.expr, macros: Mapping[str, str | None], depth: int) -> int | None:
    match node:
        case ast.Constant(value=int(number)):
            return int(number)
        case ast.Name(id=name):
            if _OPEN.fullmatch(name) or depth > _MAX_DEPTH:
                return None
            if name not in macros:
                return int(name == "true")
            return _evaluate(macros[name] or "", macros, depth + 1)
        case ast.BoolOp(op=operator, values=values):
            # one that decides is enough, whatever the others are
            decides, is_open = isinstance(operator, ast.Or), False
            for value in (_value(value, macros, depth) for value in values):
                if value is not None and bool(value) == decides:
                    return int(decides)
                is_open = is_open or value is None
            return None if is_open else int(not decides)
        case ast.UnaryOp(op=operator, operand=operand):
            known = _value(operand, macros, depth)
            if known is None:
                return None
            return int(not known) if isinstance(operator, ast.Not) else -known
        case (
            ast.BinOp(left=left, op=sign, right=right)
            | ast.Compare(left=left, ops=[sign], comparators=[right])
        ) if type(sign) in _OPERATORS:
            first, second = _value(left, macros, depth), _value(right, macros, depth)
            if first is None or second is None:
                return None
            return int(_OPERATORS[type(sign)](first, second))
        case _:
            return None


DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(\w+)[ \t]*(.*)", re.DOTALL)
_SWITCH = re.compile(r"#(?:el)?if(?:def)?\s+(?:defined\s*)?\(?\s*([A-Z]\w+)\s*\)?")
_OTHERS = re.compile(r"ROCM|HIP|AMD|MUSA|SYCL|XPU|CPU|WIN|DEBUG|TEST|PROFIL")


def guard_of(name: str, dropped: Sequence[tuple[Path, int, str]]) -> str | None:
    """Find the macro that a build would define for a name to be there; None where there is none.

    `dropped` are the conditions that do not hold without it.
    """
    for path, line, condition in dropped:
        match = _SWITCH.fullmatch(condition)
        if match is None or _OTHERS.search(match[1]):
            continue
        depth, rows = 0, mask(source_text(path)).split("\n")[line:]
        for row in rows:
            directive = DIRECTIVE.match(row)
            kind = directive[1] if directive is not None else ""
            depth += kind.startswith("if") - (kind == "endif")
            if depth < 0 or (depth == 0 and kind in ("else", "elif")):
                break
            if re.search(rf"\b{re.escape(name)}\b", row):
                return match[1]
    return None
