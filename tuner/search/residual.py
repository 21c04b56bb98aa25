"""What remains of a constraint once axes and device limits are known."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from tuner.errors import ExpressionError
from tuner.expressions import Expression, Value, free_names
from tuner.space import format_value


def substitute(constraint: Expression, names: Mapping[str, Value]) -> Expression:
    """Replace `names` by their values and fold what no longer depends on a parameter."""
    tree = _fold(constraint.tree, names)
    free = free_names(tree)
    return Expression(ast.unparse(tree), free, tree, constraint.path, constraint.line)


def is_known(residual: Expression) -> bool:
    """Whether an expression without names has a value, or only fails."""
    try:
        residual.evaluate({})
    except ExpressionError:
        return False
    return True


def failure_of(
    constraint: Expression, outer: Mapping[str, Value], config: Mapping[str, Value]
) -> ExpressionError:
    """Say why a constraint cannot be evaluated for a config, with the values that it uses."""
    names = {**outer, **config}
    used = " ".join(f"{n}={format_value(names[n])}" for n in names if n in constraint.names)
    try:
        constraint.evaluate(names)
    except ExpressionError as error:
        return ExpressionError(
            f"{error.message}, for {used}" if used else error.message,
            path=error.path,
            line=error.line,
            remedy="guard it, as in `b == 0 or a % b == 0`, or leave the value out",
        )
    raise AssertionError(f"`{constraint.text}` failed and now does not")


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
    return folded if free_names(folded) else _evaluated(folded)


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
