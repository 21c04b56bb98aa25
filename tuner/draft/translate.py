"""C++ expressions of a launch as expressions of a search space, where that is possible."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner.model.errors import ExpressionError
from tuner.model.expressions import Expression
from tuner.model.kernel import DTYPE_BYTES
from tuner.source.arguments import dtype_of
from tuner.source.syntax import Node, fold, number, parse_tree, text_of, walk

# without underscores, in lower case
_CEIL_DIV = frozenset(("ceildiv", "cdiv", "divup", "divceil", "divroundup"))
_CASTS = frozenset(("int", "unsigned", "unsigned int", "size_t", "int64_t", "uint32_t", "dim3"))
_BINARY: dict[str, ast.operator] = {
    "+": ast.Add(),
    "-": ast.Sub(),
    "*": ast.Mult(),
    "/": ast.FloorDiv(),
    "%": ast.Mod(),
    "<<": ast.LShift(),
    ">>": ast.RShift(),
    "&": ast.BitAnd(),
    "|": ast.BitOr(),
    "^": ast.BitXor(),
}
_COMPARE: dict[str, ast.cmpop] = {
    "==": ast.Eq(),
    "!=": ast.NotEq(),
    "<": ast.Lt(),
    "<=": ast.LtE(),
    ">": ast.Gt(),
    ">=": ast.GtE(),
}
_UNARY: dict[str, ast.unaryop] = {"-": ast.USub(), "+": ast.UAdd(), "!": ast.Not()}
_MAX_DEPTH = 24


@dataclass(frozen=True, slots=True)
class Scope:
    """What the names in a launch stand for.

    `values` maps C++ text to names of the search space; `definitions` maps C++ names to C++ text;
    `literals` are numbers that stand for a parameter, `defaults` what parameters are in the source;
    `types` resolves types inside `sizeof`.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    definitions: Mapping[str, str] = field(default_factory=dict)
    literals: Mapping[int, str] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, int] = field(default_factory=dict)


class _UntranslatableError(Exception):
    """Stop at something that has no meaning in a search space."""


def translate(text: str, scope: Scope) -> str | None:
    """Write a C++ expression as one of a search space; None where a name or a form is unknown."""
    try:
        translated = Expression.parse(ast.unparse(_parsed(text, scope, 0)))
        return translated.text if translated.names else str(translated.integer({}))
    except (_UntranslatableError, ExpressionError):
        return None


def _parsed(text: str, scope: Scope, depth: int) -> ast.expr:
    if depth > _MAX_DEPTH:
        raise _UntranslatableError
    source = f"auto value = {text};"
    root = parse_tree(source)
    declarator = next((node for node in walk(root) if node.type == "init_declarator"), None)
    value = declarator.child_by_field_name("value") if declarator is not None else None
    if value is None or root.has_error:
        raise _UntranslatableError
    return _Translator(source, scope, depth).expression(value)


@dataclass(frozen=True, slots=True)
class _Translator:
    source: str
    scope: Scope
    depth: int

    def expression(self, node: Node) -> ast.expr:
        text = fold(text_of(node, self.source))
        if text in self.scope.values:
            return ast.parse(self.scope.values[text], mode="eval").body
        match node.type:
            case "number_literal" | "true" | "false":
                return self._literal(text)
            case "identifier":
                return self._name(text)
            case "qualified_identifier":
                return self._name(text.rsplit("::", 1)[-1])
            case "parenthesized_expression":
                return self.expression(node.named_children[0])
            case "binary_expression":
                return self._binary(node)
            case "unary_expression":
                return self._unary(node)
            case "conditional_expression":
                test, body, other = (self.expression(child) for child in node.named_children[:3])
                return ast.IfExp(test, body, other)
            case "cast_expression":
                return self.expression(_field(node, "value"))
            case "sizeof_expression":
                return self._sizeof(node)
            case "call_expression":
                return self._call(node)
            case _:
                raise _UntranslatableError

    def _literal(self, text: str) -> ast.expr:
        value = number(text)
        if value is None:
            raise _UntranslatableError
        if not isinstance(value, bool) and value in self.scope.literals:
            return ast.Name(self.scope.literals[value])
        return ast.Constant(value)

    def _name(self, name: str) -> ast.expr:
        if name in self.scope.values:
            return ast.parse(self.scope.values[name], mode="eval").body
        if name not in self.scope.definitions:
            raise _UntranslatableError
        return _parsed(self.scope.definitions[name], self.scope, self.depth + 1)

    def _binary(self, node: Node) -> ast.expr:
        sign = text_of(_field(node, "operator"), self.source)
        left_node, right_node = _field(node, "left"), _field(node, "right")
        left, right = self.expression(left_node), self.expression(right_node)
        if sign == "/":
            dividend = self._without_round_up(left_node, right_node)
            if dividend is not None:
                return _call("ceil_div", dividend, right)
        if sign in _BINARY:
            return ast.BinOp(left, _BINARY[sign], right)
        if sign in _COMPARE:
            return ast.Compare(left, [_COMPARE[sign]], [right])
        if sign in ("&&", "||"):
            return ast.BoolOp(ast.And() if sign == "&&" else ast.Or(), [left, right])
        raise _UntranslatableError

    def _without_round_up(self, dividend: Node, divisor: Node) -> ast.expr | None:
        # the A of A + divisor - 1, in any order, the divisor a number or a name
        terms = self._terms(dividend)
        by = self.expression(divisor)
        less_one = self._number(by) - 1
        for index, (sign, term) in enumerate(terms):
            rest = terms[:index] + terms[index + 1 :]
            if sign < 0:
                continue
            if isinstance(term, ast.Constant) and term.value == less_one > 0:
                return _sum(rest)
            ones = [i for i, (s, t) in enumerate(rest) if s < 0 and _is_one(t)]
            if ones and ast.dump(term) == ast.dump(by):
                return _sum(rest[: ones[0]] + rest[ones[0] + 1 :])
        return None

    def _number(self, node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        return self.scope.defaults.get(ast.unparse(node), 0)

    def _terms(self, node: Node, sign: int = 1) -> list[tuple[int, ast.expr]]:
        if node.type == "parenthesized_expression":
            return self._terms(node.named_children[0], sign)
        operator = node.child_by_field_name("operator")
        mark = text_of(operator, self.source) if operator is not None else ""
        if node.type == "binary_expression" and mark in ("+", "-"):
            right = -sign if mark == "-" else sign
            return self._terms(_field(node, "left"), sign) + self._terms(
                _field(node, "right"), right
            )
        return [(sign, self.expression(node))]

    def _unary(self, node: Node) -> ast.expr:
        sign = text_of(_field(node, "operator"), self.source)
        if sign not in _UNARY:
            raise _UntranslatableError
        return ast.UnaryOp(_UNARY[sign], self.expression(_field(node, "argument")))

    def _sizeof(self, node: Node) -> ast.expr:
        text = fold(text_of(node, self.source))[len("sizeof") :].strip()
        name = text[1:-1].strip() if text.startswith("(") else text
        dtype = dtype_of(name, self.scope.types)
        if dtype is None:
            raise _UntranslatableError
        return ast.Constant(DTYPE_BYTES[dtype])

    def _call(self, node: Node) -> ast.expr:
        called = fold(text_of(_field(node, "function"), self.source))
        passed = _field(node, "arguments").named_children
        name = called.split("<", 1)[0].rsplit("::", 1)[-1]
        if len(passed) == 1 and (name in _CASTS or called.startswith("static_cast<")):
            return self.expression(passed[0])
        if len(passed) == 2 and name.replace("_", "").lower() in _CEIL_DIV:
            return _call("ceil_div", *(self.expression(argument) for argument in passed))
        if len(passed) >= 2 and name in ("min", "max"):
            return _call(name, *(self.expression(argument) for argument in passed))
        raise _UntranslatableError


def _field(node: Node, name: str) -> Node:
    child = node.child_by_field_name(name)
    if child is None:
        raise _UntranslatableError
    return child


def _call(name: str, *arguments: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(name), list(arguments), [])


def _sum(terms: list[tuple[int, ast.expr]]) -> ast.expr | None:
    if not terms or terms[0][0] < 0:
        return None
    total = terms[0][1]
    for sign, term in terms[1:]:
        total = ast.BinOp(total, ast.Add() if sign > 0 else ast.Sub(), term)
    return total


def _is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1
