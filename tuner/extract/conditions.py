"""Preprocessor conditions: which hold for a CUDA compiler, and which only it can decide."""

from __future__ import annotations

import ast
import operator as operators
import re
from collections.abc import Callable, Mapping

# Left to the compiler: they differ between NVRTC, the CPU device and the architectures.
_OPEN = re.compile(
    r"__CUDA_ARCH\w*|__CUDACC_RTC__|__CUDA_ON_HOST__|__CUDACC_VER_\w+|__cplusplus|__has_\w+"
    r"|__cpp_\w+|NDEBUG|_MSC_VER|_WIN(?:32|64)|__GNUC__|__clang__|__linux__|__x86_64__"
)
# __CUDACC__ is every CUDA compiler's; the headers that NVRTC comes with are of 13.
PREDEFINED = {"__CUDACC__": "1", "CUDA_VERSION": "13000", "CUDART_VERSION": "13000"}
_DEFINED = re.compile(r"\bdefined\s*(?:\(\s*(\w+)\s*\)|\s(\w+))")
_NUMBER = re.compile(r"\b(0[xX][\da-fA-F]+|\d+)[uUlL]*\b")
_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operators.add,
    ast.Sub: operators.sub,
    ast.Mult: operators.mul,
    ast.FloorDiv: operators.floordiv,
    ast.Mod: operators.mod,
}
_COMPARED: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operators.eq,
    ast.NotEq: operators.ne,
    ast.Lt: operators.lt,
    ast.LtE: operators.le,
    ast.Gt: operators.gt,
    ast.GtE: operators.ge,
}
_MAX_DEPTH = 8


class _OpenError(Exception):
    """Stop where only the compiler knows."""


def holds(condition: str, macros: Mapping[str, str | None]) -> bool | None:
    """Evaluate an #if; None where the compiler has to.

    `macros` maps what is defined to its text, or to None where that is not certain.
    """
    text = " ".join(condition.split())
    text = _DEFINED.sub(lambda match: _defined(match[1] or match[2], macros), text)
    text = _plain(text).replace("&&", " and ").replace("||", " or ")
    text = re.sub(r"!(?!=)", " not ", text).replace("/", "//")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError):
        return None
    try:
        value = _value(tree.body, macros, 0)
    except (_OpenError, ArithmeticError):
        return None
    return bool(value)


def is_open(name: str) -> bool:
    """Whether a macro is one that only the compiler knows."""
    return _OPEN.fullmatch(name) is not None


def _defined(name: str, macros: Mapping[str, str | None]) -> str:
    if is_open(name) or (name in macros and macros[name] is None):
        return name
    return "1" if name in macros else "0"


def _value(node: ast.expr, macros: Mapping[str, str | None], depth: int) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return int(value)
        case ast.Name(id=name):
            return _named(name, macros, depth)
        case ast.BoolOp(op=operator, values=values):
            return _joined(isinstance(operator, ast.And), values, macros, depth)
        case ast.UnaryOp(op=operator, operand=operand):
            value = _value(operand, macros, depth)
            return int(not value) if isinstance(operator, ast.Not) else -value
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            return int(
                _BINARY[type(sign)](_value(left, macros, depth), _value(right, macros, depth))
            )
        case ast.Compare(left=left, ops=[test], comparators=[right]) if type(test) in _COMPARED:
            compare = _COMPARED[type(test)]
            return int(compare(_value(left, macros, depth), _value(right, macros, depth)))
        case _:
            raise _OpenError


def _named(name: str, macros: Mapping[str, str | None], depth: int) -> int:
    if is_open(name) or depth > _MAX_DEPTH:
        raise _OpenError
    if name not in macros:
        return {"true": 1}.get(name, 0)
    text = macros[name]
    if text is None or not text.strip():
        raise _OpenError
    plain = _plain(text)
    try:
        return _value(ast.parse(plain, mode="eval").body, macros, depth + 1)
    except (SyntaxError, ValueError) as error:
        raise _OpenError from error


def _plain(text: str) -> str:
    return _NUMBER.sub(lambda match: str(_integer(match[1])), text).strip()


def _integer(digits: str) -> int:
    if digits[:2] in ("0x", "0X"):
        return int(digits, 16)
    return int(digits, 8 if re.fullmatch("0[0-7]+", digits) else 10)


def _joined(
    every: bool, values: list[ast.expr], macros: Mapping[str, str | None], depth: int
) -> int:
    # one that decides is enough, whatever the others are
    is_unknown = False
    for value in values:
        try:
            known = bool(_value(value, macros, depth))
        except _OpenError:
            is_unknown = True
            continue
        if known != every:
            return int(known)
    if is_unknown:
        raise _OpenError
    return int(every)
