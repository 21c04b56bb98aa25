"""What remains of a constraint once axes and device limits are known, and its solver form."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Set
from dataclasses import dataclass

from tuner.errors import ExpressionError
from tuner.expressions import Expression, Value

# `**` and `<<` are absent: `Expression` bounds them.
_EXACT_OPERATORS = (
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.FloorDiv,
    ast.Div,
    ast.Mod,
    ast.BitAnd,
    ast.BitOr,
    ast.BitXor,
    ast.RShift,
)


class _UntranslatableError(Exception):
    """Say that plain Python would not compute exactly what `Expression` computes."""


def substitute(constraint: Expression, names: Mapping[str, Value]) -> Expression:
    """Replace `names` by their values and fold what no longer depends on a parameter."""
    tree = _fold(constraint.tree, names)
    free = _free_names(tree)
    return Expression(ast.unparse(tree), free, tree, constraint.path, constraint.line)


def solver_text(
    residual: Expression, solver_names: Mapping[str, str], textual: Set[str]
) -> str | None:
    """Rewrite a residual as plain Python over the solver's names; None where that is not exact.

    `textual` are the parameters that have text among their values: Python adds and repeats text
    where `Expression` refuses.
    """
    try:
        return ast.unparse(_Translator(solver_names, textual).translate(residual.tree))
    except _UntranslatableError:
        return None


def _free_names(tree: ast.expr) -> frozenset[str]:
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return frozenset(
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called
    )


def _fold(node: ast.expr, names: Mapping[str, Value]) -> ast.expr:
    match node:
        case ast.Name(id=name):
            return _literal(names[name]) if name in names else node
        case ast.Constant():
            return node
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return ast.Tuple([_fold(item, names) for item in items], ast.Load())
        case ast.Call(func=function, args=arguments):
            folded: ast.expr = ast.Call(function, [_fold(a, names) for a in arguments], [])
        case ast.BinOp(left=left, op=op, right=right):
            folded = ast.BinOp(_fold(left, names), op, _fold(right, names))
        case ast.UnaryOp(op=op, operand=operand):
            folded = ast.UnaryOp(op, _fold(operand, names))
        case ast.BoolOp(op=op, values=values):
            folded = ast.BoolOp(op, [_fold(value, names) for value in values])
        case ast.IfExp(test=test, body=body, orelse=orelse):
            folded = ast.IfExp(_fold(test, names), _fold(body, names), _fold(orelse, names))
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            folded = ast.Compare(_fold(left, names), ops, [_fold(c, names) for c in comparators])
        case _:
            return node
    return folded if _free_names(folded) else _evaluated(folded)


def _evaluated(node: ast.expr) -> ast.expr:
    # A part that fails stays as it is: a short circuit may never reach it.
    try:
        return _literal(Expression(ast.unparse(node), frozenset(), node).evaluate({}))
    except ExpressionError:
        return node


def _literal(value: Value) -> ast.expr:
    # `ast.unparse` writes Constant(-2) ** 2 as -2 ** 2, which is -(2 ** 2).
    if isinstance(value, int | float) and not isinstance(value, bool) and value < 0:
        return ast.UnaryOp(ast.USub(), ast.Constant(-value))
    return ast.Constant(value)


@dataclass(frozen=True, slots=True)
class _Translator:
    solver_names: Mapping[str, str]
    textual: Set[str]

    def translate(self, node: ast.expr) -> ast.expr:
        match node:
            case ast.Name(id=name):
                return ast.Name(self.solver_names[name], ast.Load())
            case ast.Constant(value=float() as number) if not math.isfinite(number):
                raise _UntranslatableError
            case ast.Constant():
                return node
            case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _EXACT_OPERATORS):
                if self._may_be_text(left) or self._may_be_text(right):
                    raise _UntranslatableError
                return ast.BinOp(self.translate(left), op, self.translate(right))
            case ast.UnaryOp(op=op, operand=operand):
                return ast.UnaryOp(op, self.translate(operand))
            case ast.BoolOp(op=op, values=values):
                return ast.BoolOp(op, [self.translate(value) for value in values])
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return ast.IfExp(self.translate(test), self.translate(body), self.translate(orelse))
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                others = [self.translate(comparator) for comparator in comparators]
                return ast.Compare(self.translate(left), ops, others)
            case ast.Tuple(elts=items):
                return ast.Tuple([self.translate(item) for item in items], ast.Load())
            case ast.Call(func=ast.Name(id="ceil_div"), args=[a, b]):
                negated = ast.UnaryOp(ast.USub(), self.translate(a))
                quotient = ast.BinOp(negated, ast.FloorDiv(), self.translate(b))
                return ast.UnaryOp(ast.USub(), quotient)
            case ast.Call(func=ast.Name(id="abs" | "min" | "max" as name), args=arguments):
                function = ast.Name(name, ast.Load())
                return ast.Call(function, [self.translate(a) for a in arguments], [])
            case _:
                raise _UntranslatableError

    def _may_be_text(self, node: ast.expr) -> bool:
        match node:
            case ast.Constant(value=value):
                return isinstance(value, str)
            case ast.Name(id=name):
                return name in self.textual
            case ast.IfExp(body=body, orelse=orelse):
                return self._may_be_text(body) or self._may_be_text(orelse)
            case ast.Call(args=arguments) | ast.BoolOp(values=arguments):
                return any(self._may_be_text(argument) for argument in arguments)
            case _:
                return False
