"""Constraints, shapes and grids: a whitelisted part of Python's syntax, never `eval`."""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, fields, is_dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TypeVar, cast

from tuner.model.errors import ExpressionError

Value = bool | int | float | str

MAX_LENGTH = 2000
MAX_DEPTH = 60
# No size needs more; the bound keeps `9**9**9` from filling the memory.
MAX_EXPONENT = 64
MAX_BITS = 2048
# Of an expression with its derived names written out: names of names grow without bound.
MAX_PARTS = 4000
SYNTAX = (
    "an expression has names, numbers, strings, + - * / // % ** << >> & | ^, comparisons, "
    "`in (...)`, and, or, not, `a if c else b`, and calls to abs, ceil_div, max, min"
)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def power(base: int | float, exponent: int | float) -> Value:
    """Raise to a power that fits a size; raise `ExpressionError` for a larger one."""
    if abs(exponent) > MAX_EXPONENT or abs(base) > 2**32:
        raise ExpressionError(f"{base} ** {exponent} is too large")
    raised: Value | complex = base**exponent
    if isinstance(raised, complex):
        raise ExpressionError(f"{base} ** {exponent} is not a real number")
    return raised


def _shift_left(value: int, count: int) -> int:
    if count > MAX_EXPONENT:
        raise ExpressionError(f"{value} << {count} is too large")
    return value << count


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "abs": abs,
    "ceil_div": ceil_div,
    "max": max,
    "min": min,
}
_BINARY: dict[type[ast.operator], Callable[..., Value]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: power,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: _shift_left,
    ast.RShift: operator.rshift,
}
_UNARY: dict[type[ast.unaryop], Callable[..., Value]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}
_COMPARE: dict[type[ast.cmpop], Callable[..., bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}


@dataclass(frozen=True, slots=True)
class Expression:
    """Hold one checked expression, with the place it was written at for later errors.

    Create it with `parse`. `names` are the free names it needs; `evaluate` never runs Python code.
    """

    text: str
    names: frozenset[str]
    tree: ast.expr = field(repr=False, compare=False, hash=False)
    path: Path | None = field(default=None, compare=False, hash=False)
    line: int | None = field(default=None, compare=False, hash=False)
    # Before any name got a value.
    unbound: ast.expr | None = field(default=None, repr=False, compare=False, hash=False)

    @classmethod
    def parse(
        cls, text: str | float, *, path: Path | None = None, line: int | None = None
    ) -> Expression:
        """Check `text` against the whitelist; raise `ExpressionError` with its place otherwise."""
        # A folded or literal block of YAML keeps its line ends, which end a Python expression.
        source = " ".join(str(text).strip().splitlines())
        try:
            if not source:
                raise ExpressionError("nothing is written here")
            if len(source) > MAX_LENGTH:
                raise ExpressionError(f"expression of {len(source)} characters, over {MAX_LENGTH}")
            # `1if x else 2` is a warning on standard error now, and an error in a later Python.
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                tree = ast.parse(source, mode="eval").body
            _check(tree, 0)
        except (ExpressionError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            message = f": {error.message if isinstance(error, ExpressionError) else error}"
            if isinstance(error, SyntaxError):
                message = f" is not an expression: {error.msg}"
            raise ExpressionError(
                f"`{source[:200]}`{message}", path=path, line=line, remedy=SYNTAX
            ) from error
        return cls(source, free_names(tree), tree, path, line)

    def bind(self, values: Mapping[str, Value]) -> Expression:
        """Give some names their values for good; what was bound before is bound anew."""
        if self.unbound is None and not self.names & values.keys():
            return self
        unbound = self.unbound or self.tree
        tree = _Folded(values).of(unbound)
        return replace(self, names=free_names(tree), tree=tree, unbound=unbound)

    def define(self, definitions: Mapping[str, Expression]) -> Expression:
        """Put definitions in the place of their names; raise `ExpressionError` for too much."""
        if not self.names & definitions.keys():
            return self
        trees = {name: expression.tree for name, expression in definitions.items()}
        sizes = {name: sum(1 for _ in ast.walk(trees[name])) for name in self.names & trees.keys()}
        found = (sizes.get(n.id, 1) if isinstance(n, ast.Name) else 1 for n in ast.walk(self.tree))
        if sum(found) > MAX_PARTS:
            raise self._error(f"has over {MAX_PARTS} parts with its derived names written out")
        tree = _Defined(trees).of(self.tree)
        try:
            _check(tree, 0)
        except ExpressionError as error:
            raise self._error(f"with its derived names written out: {error.message}") from error
        return replace(self, names=free_names(tree), tree=tree)

    def evaluate(self, names: Mapping[str, Value]) -> Value:
        """Compute the value for `names`; raise `ExpressionError` where it cannot."""
        try:
            return _evaluate(self.tree, names)
        except KeyError as error:
            raise self._error(
                f"undefined name {error}", f"known names: {', '.join(sorted(names))}"
            ) from error
        except ExpressionError as error:
            raise self._error(error.message) from error
        except (ArithmeticError, TypeError, ValueError) as error:
            raise self._error(str(error)) from error

    def integer(self, names: Mapping[str, Value]) -> int:
        """Compute a value that must be a whole number (a size, a grid, a byte count)."""
        value = self.evaluate(names)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int):
            raise self._error(f"gives {value!r}", "a whole number is needed here; `//` divides")
        return int(value)

    def require(self, known: frozenset[str] | set[str]) -> None:
        """Raise `ExpressionError` if the expression uses a name outside `known`."""
        unknown = sorted(self.names - known)
        if not unknown:
            return
        remedy = f"known names: {', '.join(sorted(known))}"
        if {"true", "false"} & set(unknown):
            remedy = f"in an expression the booleans are True and False; {remedy}"
        raise self._error(f"undefined name {', '.join(map(repr, unknown))}", remedy)

    def _error(self, message: str, remedy: str | None = None) -> ExpressionError:
        return ExpressionError(
            f"`{self.text}`: {message}", path=self.path, line=self.line, remedy=remedy
        )


_Held = TypeVar("_Held")


def map_expressions(value: _Held, change: Callable[[Expression], Expression]) -> _Held:
    """Change every expression in a value: in the tuples and dataclasses that it is made of."""
    changed: object = value
    if isinstance(value, Expression):
        changed = change(value)
    elif isinstance(value, tuple):
        items = tuple(map_expressions(item, change) for item in value)
        changed = items if any(a is not b for a, b in zip(items, value, strict=True)) else value
    elif is_dataclass(value) and not isinstance(value, type):
        before = {one.name: getattr(value, one.name) for one in fields(value)}
        after = {name: map_expressions(item, change) for name, item in before.items()}
        changes = {name: item for name, item in after.items() if item is not before[name]}
        changed = replace(value, **changes) if changes else value
    return cast("_Held", changed)


def free_names(tree: ast.expr) -> frozenset[str]:
    """Return the names that an expression needs; those of functions are none of them."""
    nodes = list(ast.walk(tree))
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    return frozenset(n.id for n in nodes if isinstance(n, ast.Name) and id(n) not in called)


def substitute(constraint: Expression, names: Mapping[str, Value]) -> Expression:
    """Replace `names` by their values and fold what no longer depends on a parameter."""
    tree = _Folded(names).of(constraint.tree)
    return Expression(
        write_expression(tree), free_names(tree), tree, constraint.path, constraint.line
    )


def write_expression(tree: ast.expr) -> str:
    """Write an expression as Python's text, which gives the same one again."""
    return ast.unparse(unshare_parts(tree))


def unshare_parts(tree: ast.expr) -> ast.expr:
    """Copy an expression so that no part stands in two places.

    `ast.unparse` keeps one precedence for a part, whatever parentheses it needs in each place.
    """
    operands = _operands(tree)
    return _with_operands(tree, [*map(unshare_parts, operands)]) if operands else copy(tree)


def _literal(value: Value) -> ast.expr:
    # `ast.unparse` writes Constant(-2) ** 2 as -2 ** 2, which is -(2 ** 2).
    if isinstance(value, int | float) and not isinstance(value, bool) and value < 0:
        return ast.UnaryOp(ast.USub(), ast.Constant(-value))
    return ast.Constant(value)


class _Rewriter:
    """Make expressions of others, which stay as they are; what stands in two places is made once.

    So what a constraint needs in several places of a derived name is computed once.
    """

    def __init__(self) -> None:
        # With the expression, whose number no other gets as long as it is here.
        self._made: dict[int, tuple[ast.expr, ast.expr]] = {}

    def of(self, node: ast.expr) -> ast.expr:
        if id(node) not in self._made:
            self._made[id(node)] = node, self._make(node)
        return self._made[id(node)][1]

    def _make(self, node: ast.expr) -> ast.expr:
        operands = _operands(node)
        nodes = [self.of(operand) for operand in operands]
        same = all(one is other for one, other in zip(nodes, operands, strict=True))
        return node if same else _with_operands(node, nodes)


class _Defined(_Rewriter):
    """Put definitions in the place of their names."""

    def __init__(self, trees: Mapping[str, ast.expr]) -> None:
        super().__init__()
        self._trees = trees

    def _make(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Name):
            return self._trees.get(node.id, node)
        return super()._make(node)


class _Folded(_Rewriter):
    """Put values in the place of names, and of what then has a value."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        super().__init__()
        self._values = values
        self._open: set[int] = set()

    def _make(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Name) and node.id in self._values:
            return _literal(self._values[node.id])
        made = super()._make(node)
        if isinstance(made, ast.Name) or any(
            id(operand) in self._open for operand in _operands(made)
        ):
            self._open.add(id(made))
            return made
        if isinstance(made, ast.Constant | ast.Tuple | ast.List):
            return made
        # A part that fails stays as it is: a short circuit may never reach it.
        try:
            return _literal(Expression("", frozenset(), made).evaluate({}))
        except ExpressionError:
            return made


def _operands(node: ast.expr) -> list[ast.expr]:
    function = node.func if isinstance(node, ast.Call) else None
    children = (one for one in ast.iter_child_nodes(node) if one is not function)
    return [child for child in children if isinstance(child, ast.expr)]


def _with_operands(node: ast.expr, operands: list[ast.expr]) -> ast.expr:
    made, following = copy(node), iter(operands)
    for name, value in ast.iter_fields(node):
        if isinstance(value, ast.expr) and name != "func":
            setattr(made, name, next(following))
        elif isinstance(value, list):
            are_operands = all(isinstance(one, ast.expr) for one in value)
            setattr(made, name, [next(following) for _ in value] if are_operands else value)
    return made


def _check_bounds(value: Value) -> Value:
    if isinstance(value, float) and not isfinite(value):
        raise ExpressionError(f"gives {value}, which is not finite")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ExpressionError(f"gives a number of over {MAX_BITS} bits")
    return value


def _check(node: ast.expr, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ExpressionError("nested too deeply")
    nodes = ast.iter_child_nodes(node)
    children: Iterable[ast.expr] = (child for child in nodes if isinstance(child, ast.expr))
    match node:
        case ast.Name() | ast.BoolOp() | ast.IfExp():
            pass
        case ast.Constant(value=bool() | int() | float() | str() as constant):
            _check_bounds(constant)
        case ast.BinOp(op=op) if type(op) in _BINARY:
            pass
        case ast.UnaryOp(op=op) if type(op) in _UNARY:
            pass
        case ast.Compare(ops=ops) if all(type(op) in _COMPARE for op in ops):
            children = _split_comparison(node)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            children, count = arguments, len(arguments)
            fewest, most = {"abs": (1, 1), "ceil_div": (2, 2)}.get(name, (2, 99))
            if not fewest <= count <= most:
                needed = f"{fewest}" if fewest == most else f"at least {fewest}"
                raise ExpressionError(f"`{name}` takes {needed} arguments, not {count}")
        case ast.Call():
            raise ExpressionError(f"call to `{ast.unparse(node.func)}` is not allowed")
        case ast.Tuple() | ast.List():
            raise ExpressionError(f"the list `{ast.unparse(node)}` may only follow `in`")
        case _:
            raise ExpressionError(f"`{ast.unparse(node)}` ({type(node).__name__}) is not allowed")
    for child in children:
        _check(child, depth + 1)


def _split_comparison(node: ast.Compare) -> Iterator[ast.expr]:
    """Yield the parts of a comparison, the items of the list at its end among them."""
    yield node.left
    for op, comparator in zip(node.ops, node.comparators, strict=True):
        if not isinstance(op, ast.In | ast.NotIn):
            yield comparator
        elif isinstance(comparator, ast.Tuple | ast.List) and comparator is node.comparators[-1]:
            yield from comparator.elts
        else:
            raise ExpressionError(f"`{ast.unparse(comparator)}` is not a list such as (1, 2)")


def _evaluate(node: ast.expr, names: Mapping[str, Value]) -> Value:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as constant):
            return constant
        case ast.Name(id=name):
            return names[name]
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _evaluate(left, names), _evaluate(right, names)
            if isinstance(a, str) or isinstance(b, str):
                raise ExpressionError("arithmetic on text")
            return _check_bounds(_BINARY[type(op)](a, b))
        case ast.UnaryOp(op=op, operand=operand):
            return _UNARY[type(op)](_evaluate(operand, names))
        case ast.BoolOp(op=op, values=values):
            result: Value = False
            for value in values:
                result = _evaluate(value, names)
                if bool(result) is isinstance(op, ast.Or):
                    break
            return result
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _evaluate(body if _evaluate(test, names) else orelse, names)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            a = _evaluate(left, names)
            for op_, comparator in zip(ops, comparators, strict=True):
                if isinstance(comparator, ast.Tuple | ast.List):
                    items = [_evaluate(item, names) for item in comparator.elts]
                    return _COMPARE[type(op_)](a, items)
                b = _evaluate(comparator, names)
                if not _COMPARE[type(op_)](a, b):
                    return False
                a = b
            return True
        case ast.Call(func=ast.Name(id=name), args=args):
            return FUNCTIONS[name](*(_evaluate(argument, names) for argument in args))
        case _:
            raise ExpressionError(f"`{ast.unparse(node)}` is not a value")
