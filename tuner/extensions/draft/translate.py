"""C++ expressions of a launch as expressions of a search space, where that is possible."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache

from tuner.model.errors import ExpressionError
from tuner.model.expressions import Expression
from tuner.model.kernel import DTYPE_BYTES
from tuner.source.kernels import element_dtype, lanes_of
from tuner.source.syntax import Node, fold, listed, number, parse_tree, part, text_of, walk

# without underscores, in lower case
_CEIL_DIV = frozenset(("ceildiv", "cdiv", "divup", "divceil", "divroundup"))
_CASTS = frozenset(("int", "unsigned", "unsigned int", "size_t", "int64_t", "uint32_t", "dim3"))
# operators that Python writes in another way
_WRITTEN = {"/": "//", "&&": "and", "||": "or"}
_BINARY = re.compile(r"[-+*/%&|^<>]|[<>=!]=|<<|>>|&&|\|\|")
_UNARY = {"-": "-", "+": "+", "!": "not "}
# numbers that no file of a project defines
LIMITS = {
    "UINT16_MAX": 2**16 - 1, "INT_MAX": 2**31 - 1, "INT32_MAX": 2**31 - 1,
    "UINT32_MAX": 2**32 - 1, "UINT_MAX": 2**32 - 1,
    "CUDA_NUM_THREADS": 1024,  # PyTorch's
}  # fmt: skip
# a property of the device, the same on all that there are
_MOST_BLOCKS = re.compile(r"\bmaxGridSize\s*\[\s*([012])\s*\]$")
_MOST_THREADS = 1024
_DIM3 = re.compile(r"(?:dim3\s*)?[({]")
_MAX_DEPTH = 24


@dataclass(frozen=True, slots=True)
class Translation:
    """What a function returns, as C++ text over its `parameters` and its own `definitions`.

    `defaults` are of the last parameters.
    """

    parameters: tuple[str, ...]
    text: str
    definitions: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)


# PyTorch's
_GET_BLOCKS = Translation(("n", "threads"), "(n - 1) / threads + 1", {}, {"threads": "1024"})


@dataclass(frozen=True, slots=True)
class Scope:
    """What the names in a launch stand for.

    `values` maps C++ text to names of the search space, `definitions` C++ names to C++ text;
    `literals` are numbers that stand for a parameter, `defaults` what parameters are in the source.
    `results` are functions and macros that only compute something, `fixed` constants of the file: a
    number of theirs stands for nothing else.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    definitions: Mapping[str, str] = field(default_factory=dict)
    literals: Mapping[int, str] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, int] = field(default_factory=dict)
    results: Mapping[str, Translation] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()


class _UntranslatableError(Exception):
    pass


def translate(text: str, scope: Scope) -> str | None:
    """Write a C++ expression as one of a search space; None where a name or a form is unknown."""
    try:
        written = ast.unparse(ast.parse(_write_expression(text, scope, 0), mode="eval"))
        translated = Expression.parse(written)
        return translated.text if translated.names else str(translated.integer({}))
    except (_UntranslatableError, ExpressionError, SyntaxError):
        return None


# An index is asked for its dimensions term by term, each of them many times.
@lru_cache(maxsize=4096)
def parse_expression(text: str) -> tuple[str, Node] | None:
    """Parse a C++ expression; give the text that its nodes are of, and the outermost one."""
    source = f"auto value = {text};"
    # past the trees of whole files that are kept
    root = parse_tree.__wrapped__(source)
    declarator = next((node for node in walk(root) if node.type == "init_declarator"), None)
    value = declarator.child_by_field_name("value") if declarator is not None else None
    return None if value is None or root.has_error else (source, value)


def _write_expression(text: str, scope: Scope, depth: int) -> str:
    parsed = parse_expression(text) if depth <= _MAX_DEPTH else None
    if parsed is None:
        raise _UntranslatableError
    source, value = parsed
    return _ExpressionTranslator(source, scope, depth).expression(value)


@dataclass(frozen=True, slots=True)
class _ExpressionTranslator:
    # writes parentheses around all that has parts
    source: str
    scope: Scope
    depth: int

    def expression(self, node: Node) -> str:
        text = fold(text_of(node, self.source))
        if node.type == "field_expression":
            text = text.rpartition("::")[2]  # `sizes::kBlock.x`
        if text in self.scope.values:
            return _whole(self.scope.values[text])
        match node.type:
            case "number_literal" | "true" | "false":
                value = number(text)
                if value is None:
                    raise _UntranslatableError
                literals = {} if isinstance(value, bool) else self.scope.literals
                return literals.get(value, str(value))
            case "identifier" | "qualified_identifier":
                name = text.rsplit("::", 1)[-1]
                if name != text and text in self.scope.definitions:
                    with suppress(_UntranslatableError):
                        text = self.scope.definitions[text]
                        return _write_expression(text, self.scope, self.depth + 1)
                if name in self.scope.values:
                    return _whole(self.scope.values[name])
                if name != text and (outer := self.scope.definitions.get(f"::{name}")) is not None:
                    return _write_expression(outer, self.scope, self.depth + 1)
                if name in LIMITS and name not in self.scope.definitions:
                    return str(LIMITS[name])
                if name not in self.scope.definitions:
                    raise _UntranslatableError
                stated = self.scope.definitions[name]
                if name in self.scope.fixed and number(stated) is not None:
                    return _write_expression(stated, replace(self.scope, literals={}), self.depth)
                return _write_expression(stated, self.scope, self.depth + 1)
            case "parenthesized_expression":
                return self.expression(node.named_children[0])
            case "binary_expression":
                return self._binary(node)
            case "unary_expression":
                sign = text_of(_field(node, "operator"), self.source)
                if sign not in _UNARY:
                    raise _UntranslatableError
                return f"({_UNARY[sign]}{self.expression(_field(node, 'argument'))})"
            case "conditional_expression":
                test, body, other = (self.expression(child) for child in node.named_children[:3])
                return f"({body} if {test} else {other})"
            case "cast_expression":
                return self.expression(_field(node, "value"))
            case "sizeof_expression":
                text = text.removeprefix("sizeof").strip()
                name = text[1:-1].strip() if text.startswith("(") else text
                dtype = element_dtype(name, self.scope.types)
                if dtype is None:
                    raise _UntranslatableError
                return str(DTYPE_BYTES[dtype] * lanes_of(name, self.scope.types))
            case "field_expression" | "call_expression" if text in self.scope.definitions:
                return _write_expression(self.scope.definitions[text], self.scope, self.depth + 1)
            case "subscript_expression" if match := _MOST_BLOCKS.search(text):
                return str(2**31 - 1 if match[1] == "0" else 2**16 - 1)
            case "call_expression":
                return self._call(node)
            case "field_expression" if text.endswith("maxThreadsPerBlock"):
                return str(_MOST_THREADS)
            case "field_expression" if (extent := self._extent(text)) is not None:
                return _write_expression(extent, self.scope, self.depth + 1)
            case _:
                raise _UntranslatableError

    def _extent(self, text: str) -> str | None:
        # `block.x`, where `dim3 block(256)`
        owner, _, axis = text.partition(".")
        match = _DIM3.match(self.scope.definitions.get(owner, ""))
        if match is None or axis not in ("x", "y", "z"):
            return None
        pieces, end = listed(match.string, match.end() - 1)
        place = "xyz".index(axis)
        return (*pieces, "1", "1", "1")[place] if end else None

    def _binary(self, node: Node) -> str:
        sign = text_of(_field(node, "operator"), self.source)
        if _BINARY.fullmatch(sign) is None:
            raise _UntranslatableError
        left, right = self.expression(_field(node, "left")), self.expression(_field(node, "right"))
        if sign in "+-" and right == "0":
            return left
        if sign == "+" and right == "1":
            rounded = self._rounded_up(_field(node, "left"))
            if rounded is not None:
                return rounded
        if sign == "/":
            dividend = self._without_round_up(_field(node, "left"), right)
            if dividend is not None:
                return f"ceil_div({dividend}, {right})"
            if left.isdigit() and right.isdigit() and int(right) and int(left) % int(right) == 0:
                whole = int(left) // int(right)
                return self.scope.literals.get(whole, str(whole))
        return f"({left} {_WRITTEN.get(sign, sign)} {right})"

    def _rounded_up(self, node: Node) -> str | None:
        # the (A - 1) / B of (A - 1) / B + 1
        node = self._inside(node)
        if text_of(part(node, "operator"), self.source) != "/":
            return None
        terms = self._terms(_field(node, "left"))
        if ("-", "1") not in terms:
            return None
        terms.remove(("-", "1"))
        dividend = _sum(terms)
        by = self.expression(_field(node, "right"))
        return None if dividend is None else f"ceil_div({dividend}, {by})"

    def _inside(self, node: Node) -> Node:
        # without casts and parentheses around it
        while node.type in ("parenthesized_expression", "cast_expression"):
            node = part(node, "value") or node.named_children[0]
        return node

    def _without_round_up(self, dividend: Node, by: str) -> str | None:
        # the A of A + divisor - 1, in any order, the divisor a number or a name
        terms = self._terms(dividend)
        less_one = (int(by) if by.isdigit() else self.scope.defaults.get(by, 0)) - 1
        for index, (sign, term) in enumerate(terms):
            rest = terms[:index] + terms[index + 1 :]
            if sign == "-":
                continue
            if term.isdigit() and int(term) == less_one > 0:
                return _sum(rest)
            if ("-", "1") in rest and term == by:
                rest.remove(("-", "1"))
                return _sum(rest)
        return None

    def _terms(self, node: Node, sign: str = "+") -> list[tuple[str, str]]:
        if node.type == "parenthesized_expression":
            return self._terms(node.named_children[0], sign)
        mark = text_of(part(node, "operator"), self.source)
        if node.type == "binary_expression" and mark in ("+", "-"):
            right = sign if mark == "+" else "+-"[sign == "+"]
            left = self._terms(_field(node, "left"), sign)
            return left + self._terms(_field(node, "right"), right)
        return [(sign, self.expression(node))]

    def _call(self, node: Node) -> str:
        # `(std::max)(a, b)`, where max may be a macro
        called = fold(text_of(_field(node, "function"), self.source)).strip("() ")
        passed = _field(node, "arguments").named_children
        name = called.split("<", 1)[0].rsplit("::", 1)[-1]
        if len(passed) == 1 and (name in _CASTS or called.startswith("static_cast<")):
            return self.expression(passed[0])
        if len(passed) == 2 and name.replace("_", "").lower() in _CEIL_DIV:
            name = "ceil_div"
        elif len(passed) == 1 and name in ("ceil", "ceilf"):
            # `ceil((float)n / 256)`
            divided = self._inside(passed[0])
            if text_of(part(divided, "operator"), self.source) != "/":
                return self.expression(divided)
            left, right = (self.expression(_field(divided, side)) for side in ("left", "right"))
            return f"ceil_div({left}, {right})"
        elif len(passed) >= 2 and name.lower() in ("min", "max"):
            name = name.lower()
        elif (result := {"GET_BLOCKS": _GET_BLOCKS, **self.scope.results}.get(name)) is not None:
            return self._result(result, passed)
        else:
            raise _UntranslatableError
        return f"{name}({', '.join(self.expression(argument) for argument in passed)})"

    def _result(self, result: Translation, passed: Sequence[Node]) -> str:
        known = dict(zip(result.parameters, map(self.expression, passed), strict=False))
        for name in result.parameters[len(passed) :]:
            if name not in result.defaults:
                raise _UntranslatableError
            known[name] = _write_expression(result.defaults[name], self.scope, self.depth + 1)
        scope = replace(
            self.scope,
            values={**self.scope.values, **known},
            definitions={**self.scope.definitions, **result.definitions},
        )
        return f"({_write_expression(result.text, scope, self.depth + 1)})"


def _whole(text: str) -> str:
    return text if re.fullmatch(r"\w+", text) else f"({text})"


def _field(node: Node, name: str) -> Node:
    child = node.child_by_field_name(name)
    if child is None:
        raise _UntranslatableError
    return child


def _sum(terms: list[tuple[str, str]]) -> str | None:
    terms = [(sign, term) for sign, term in terms if term != "0"]
    if not terms or terms[0][0] == "-":
        return None
    total = terms[0][1]
    for sign, term in terms[1:]:
        total = f"({total} {sign} {term})"
    return total
