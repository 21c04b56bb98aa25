"""Expressions as C++: the same value for the same names, with Python's division and powers."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from importlib.resources import files

from tuner.model.errors import ExpressionError
from tuner.model.expressions import Expression
from tuner.model.kernel import DEVICE_NAMES
from tuner.source.syntax import mask


@dataclass(frozen=True, slots=True)
class CppCode:
    """C++ text that may stand wherever an operand may: of a whole number, or of a truth value."""

    text: str
    is_bool: bool = False

    @property
    def truth(self) -> str:
        return self.text if self.is_bool else f"({self.text} != 0)"

    @property
    def whole(self) -> str:
        return f"std::int64_t{{{self.text}}}" if self.is_bool else self.text


# Functions of the header (expressions.h.j2) for what C++ computes otherwise than Python.
_INTEGER_CALLS: Mapping[type[ast.operator], str] = {
    ast.FloorDiv: "floor_div",
    ast.Mod: "floor_mod",
    ast.LShift: "shift_left",
    ast.RShift: "shift_right",
    ast.Add: "sum",
    ast.Sub: "difference",
    ast.Mult: "product",
}
_BIT_SIGNS: Mapping[type[ast.operator], str] = {ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^"}
_REAL_SIGNS: Mapping[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
_COMPARED: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_LARGEST = 2**63 - 1


def value(expression: Expression, names: Mapping[str, str]) -> CppCode:
    """Translate an expression whose parameters are substituted; `names` are C++'s for the rest.

    The names hold whole numbers. Where Python would fail on the values, or a number is over 64
    bits, the C++ throws. Raises `ExpressionError` for what has no equal in C++.
    """
    try:
        return _CppTranslator(names).value(expression.tree)
    except ExpressionError as error:
        raise ExpressionError(
            f"`{expression.text}` has no equal in C++: {error.message}",
            path=expression.path,
            line=expression.line,
            remedy="write it without that: of a shape C++ computes whole numbers of 64 bits and "
            "conditions, and floats for scalars alone",
        ) from error


def truth(expression: Expression, names: Mapping[str, str]) -> str:
    """Translate a condition as `value` does; the text is a bool, `true` where it always holds."""
    return value(expression, names).truth


def integer(expression: Expression, names: Mapping[str, str]) -> str:
    """Translate a size as `value` does."""
    return value(expression, names).text


def real(expression: Expression, names: Mapping[str, str]) -> str:
    """Translate what a scalar of floats is: as `value` does, or with `/` and powers as doubles."""
    try:
        return value(expression, names).text
    except ExpressionError:
        if (text := _real(expression.tree, names)) is None:
            raise
        return text


def _real(node: ast.expr, names: Mapping[str, str]) -> str | None:
    match node:
        case ast.Constant(value=int() | float() as number):
            return repr(float(number))
        case ast.Name(id=name):
            return f"static_cast<double>({names[name]})"
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            text = _real(operand, names)
            return None if text is None else f"(-{text})"
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _real(left, names), _real(right, names)
            if a is None or b is None:
                return None
            if type(op) in _REAL_SIGNS:
                return f"real({a} {_REAL_SIGNS[type(op)]} {b})"
            called = {ast.Div: "quotient", ast.Pow: "real_power"}.get(type(op))
            return None if called is None else f"{called}({a}, {b})"
        case ast.IfExp(test=test, body=body, orelse=orelse):
            asked = _CppTranslator(names).value(test).truth
            if asked in ("true", "false"):
                return _real(body if asked == "true" else orelse, names)
            a, b = _real(body, names), _real(orelse, names)
            return None if a is None or b is None else f"({asked} ? {a} : {b})"
    return None


@dataclass(frozen=True, slots=True)
class _CppTranslator:
    names: Mapping[str, str]

    def value(self, node: ast.expr) -> CppCode:
        match node:
            case ast.Constant(value=bool() as flag):
                return CppCode(str(flag).lower(), is_bool=True)
            case ast.Constant(value=int() as number):
                if abs(number) > _LARGEST:
                    raise ExpressionError(f"{number} has over 64 bits")
                return CppCode(str(number) if abs(number) < 2**31 else f"{number}LL")
            case ast.Name(id=name):
                return CppCode(self.names[name])
            case ast.BinOp(left=left, op=op, right=right):
                return _binary(self.value(left), op, self.value(right), right)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return CppCode(f"!{self.value(operand).truth}", is_bool=True)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return CppCode(f"(+{self.value(operand).text})")
            case ast.UnaryOp(operand=operand):
                return CppCode(f"difference(0, {self.value(operand).text})")
            case ast.BoolOp(op=op, values=values):
                return self._either(isinstance(op, ast.Or), values)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                asked = self.value(test).truth
                if asked in ("true", "false"):
                    return self.value(body if asked == "true" else orelse)
                return _choose(asked, self.value(body), self.value(orelse))
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                return self._compare_all(left, ops, comparators)
            case ast.Call(func=ast.Name(id=name), args=arguments):
                texts = ", ".join(self.value(argument).whole for argument in arguments)
                if name in ("ceil_div", "abs"):
                    return CppCode(f"{'magnitude' if name == 'abs' else name}({texts})")
                return CppCode(f"std::{name}<std::int64_t>({{{texts}}})")
            case ast.Constant(value=str()):
                raise ExpressionError("a text that depends on the shape")
            case _:
                raise ExpressionError(f"`{ast.unparse(node)}`")

    def _either(self, is_or: bool, values: list[ast.expr]) -> CppCode:
        """Python returns the operand that decides, not a truth value.

        Left out are operands that are constant: those that pass it on, and all after one that ends.
        """
        ends, passes = str(is_or).lower(), str(not is_or).lower()
        kept: list[CppCode] = []
        for number, node in enumerate(values, start=1):
            code = self.value(node)
            if code.text != passes or number == len(values):
                kept.append(code)
            if code.text == ends:
                break

        def join(last: CppCode, code: CppCode) -> CppCode:
            if code.is_bool and last.is_bool:
                return CppCode(f"({code.text} {'||' if is_or else '&&'} {last.text})", is_bool=True)
            test = code.text if code.is_bool else f"{code.text} != 0"
            return _choose(test, code, last) if is_or else _choose(test, last, code)

        return reduce(join, reversed(kept))

    def _compare_all(
        self, left: ast.expr, ops: list[ast.cmpop], comparators: list[ast.expr]
    ) -> CppCode:
        parts, a = [], self.value(left)
        for op, comparator in zip(ops, comparators, strict=True):
            if isinstance(comparator, ast.Tuple | ast.List):
                among = [f"same({a.text}, {self.value(item).text})" for item in comparator.elts]
                found = f"({' || '.join(among)})" if among else "false"
                parts.append(f"!{found}" if isinstance(op, ast.NotIn) else found)
                break
            b = self.value(comparator)
            first, second = (a.text, b.text) if a.is_bool and b.is_bool else (a.whole, b.whole)
            parts.append(f"{first} {_COMPARED[type(op)]} {second}")
            a = b
        return CppCode(f"({' && '.join(parts)})", is_bool=True)


def _choose(test: str, a: CppCode, b: CppCode) -> CppCode:
    if a.is_bool and b.is_bool:
        return CppCode(f"({test} ? {a.text} : {b.text})", is_bool=True)
    return CppCode(f"({test} ? {a.whole} : {b.whole})")


def _binary(a: CppCode, op: ast.operator, b: CppCode, exponent: ast.expr) -> CppCode:
    if isinstance(op, ast.Pow):
        # 2 ** 3 is a whole number and 2 ** -3 is not.
        if isinstance(exponent, ast.Constant) and isinstance(exponent.value, int):
            return CppCode(f"power({a.text}, {b.text})")
        raise ExpressionError("a power whose exponent depends on the shape, or is below zero")
    if sign := _BIT_SIGNS.get(type(op)):
        if a.is_bool and b.is_bool:
            # The bits of two bools are an int in C++.
            return CppCode(f"(({a.text} {sign} {b.text}) != 0)", is_bool=True)
        return CppCode(f"({a.whole} {sign} {b.whole})")
    if called := _INTEGER_CALLS.get(type(op)):
        return CppCode(f"{called}({a.text}, {b.text})")
    raise ExpressionError("a division that is not `//`")


SCALAR_TYPES: Mapping[str, str] = {
    "bool": "bool",
    "int8": "std::int8_t",
    "uint8": "std::uint8_t",
    "int16": "std::int16_t",
    "uint16": "std::uint16_t",
    "int32": "std::int32_t",
    "uint32": "std::uint32_t",
    "int64": "std::int64_t",
    "uint64": "std::uint64_t",
    "float32": "float",
    "float64": "double",
}
# Declared in the header without their definitions: a pointer needs no more, and who has only
# addresses includes no header of CUDA's for them.
FORWARD_DECLARED: Mapping[str, str] = {
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float8_e4m3": "__nv_fp8_e4m3",
    "float8_e5m2": "__nv_fp8_e5m2",
}
ARRAY_TYPES: Mapping[str, str] = {**SCALAR_TYPES, **FORWARD_DECLARED}

_RESERVED = tomllib.loads(
    files("tuner.extensions.export").joinpath("reserved.toml").read_text("utf-8")
)
# What the header's own code is written with.
_OWN = frozenset(_RESERVED["own"].split())
_KEYWORDS = frozenset(_RESERVED["keywords"].split())
_TAKEN = {*_KEYWORDS, *_OWN, *DEVICE_NAMES}


def hidden_by(macros: Collection[str], names: Collection[str]) -> tuple[str, ...]:
    """Name the macros of a source that would change the code of a launch with these parameters."""
    return tuple(sorted({*macros} & {*_OWN, "tune_launch", "tune_launched", *names}))


def cpp_name(name: str) -> str:
    """Return the name of an axis or an array as a parameter in C++: with a `_` where it must be."""
    return f"{name}_" if name in _TAKEN else name


def unusable_name(function: str, parameters: Sequence[str]) -> tuple[str, str] | None:
    """Say which name a function in C++ cannot have and what would be right; None where all may."""
    if function in _KEYWORDS:
        return f"`{function}` cannot be a function in C++", "give `kernel` another name"
    twice = next((name for name in parameters if parameters.count(name) > 1), None)
    if twice is None:
        return None
    return f"two parameters would be `{twice}` in C++", "rename the argument or the axis"


_LINKAGE = re.compile(r'\bextern(\s+)"C(?:\+\+)?"(\s*\{)?')
_INCLUDE = re.compile(r"[ \t]*#[ \t]*include\b")
_OPENS = re.compile(r"[ \t]*#[ \t]*if")
_CLOSES = re.compile(r"[ \t]*#[ \t]*endif\b")
_TURNS = re.compile(r"[ \t]*#[ \t]*el(?:se|if)")
# The tuner compiled without these parts: with nvcc they are left out as well.
_HOST_PART = re.compile(
    r"[ \t]*#[ \t]*(?:ifndef[ \t]+__CUDACC_RTC__"
    r"|if[ \t]+!\s*defined[ \t]*\(?[ \t]*__CUDACC_RTC__[ \t]*\)?)[ \t]*$"
)


def in_namespace(source: str, name: str) -> str:
    """Put a source into a namespace, its includes outside, without C linkage and host parts."""
    lines = _without_host_parts(_without_linkage(source)).split("\n")
    codes = mask("\n".join(lines)).split("\n")
    start = _first_code(codes)
    opened, closed = f"namespace {name} {{", f"}}  // namespace {name}"
    made = [*lines[:start], opened]
    depth = 0
    for line, code in zip(lines[start:], codes[start:], strict=True):
        if depth == 0 and _INCLUDE.match(code):
            made += [closed, line, opened]
        else:
            made.append(line)
            # A directive may hold half of a pair.
            depth += 0 if code.lstrip().startswith("#") else code.count("{") - code.count("}")
    return "\n".join([*made, closed])


def _without_linkage(source: str) -> str:
    masked = mask(source)

    def plain(match: re.Match[str]) -> str:
        if not masked.startswith("extern", match.start()):
            return match[0]
        # The block's brackets stay.
        return "inline namespace c_linkage" + match[2] if match[2] else ""

    return _LINKAGE.sub(plain, source)


def _without_host_parts(source: str) -> str:
    lines = source.split("\n")
    codes = mask(source).split("\n")
    for at, code in enumerate(codes):
        if _HOST_PART.match(code) and not _turns(codes, at):
            lines[at] = f"#if 0  // {lines[at].strip()}"
    return "\n".join(lines)


def _turns(codes: list[str], start: int) -> bool:
    """Whether the conditional that opens on a line has another branch."""
    depth = 0
    for code in codes[start:]:
        if _OPENS.match(code):
            depth += 1
        elif _CLOSES.match(code):
            depth -= 1
            if depth == 0:
                return False
        elif depth == 1 and _TURNS.match(code):
            return True
    return False


def _first_code(codes: list[str]) -> int:
    """Find the line before which there are only comments and whole directives."""
    depth, safe, continued = 0, 0, False
    for at, code in enumerate(codes):
        text = code.strip()
        if not (continued or not text or text.startswith("#")):
            break
        if _OPENS.match(code):
            depth += 1
        elif _CLOSES.match(code):
            depth -= 1
        continued = text.endswith("\\")
        if depth == 0 and not continued:
            safe = at + 1
    return safe
