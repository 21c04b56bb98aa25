"""What Python text says without being run: numbers, lists, and loops that build them."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

# What a file may make us do, and how long what it makes may get.
_MOST_STEPS = 200_000
_MOST_STEPS_OF_FILE = 2_000_000
_MOST_ITEMS = 20_000
_MOST_DEPTH = 80
_LARGEST = 2**63
_MOST_BITS = 62

_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
}
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, among: item in among,
    ast.NotIn: lambda item, among: item not in among,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}
# What makes new values of known ones, by the end of its dotted name.
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "range": lambda *bounds: [*_short(range(*bounds))],
    "list": lambda items=(): [*items],
    "tuple": lambda items=(): (*items,),
    "set": lambda items=(): [*dict.fromkeys(items)],
    "sorted": sorted,
    "reversed": lambda items: [*items][::-1],
    "len": len,
    "min": min,
    "max": max,
    "sum": sum,
    "int": int,
    "float": float,
    "bool": bool,
    "dict": dict,
    "zip": lambda *groups: [*zip(*groups, strict=False)],
    "enumerate": lambda items, start=0: [*enumerate(items, start)],
    "product": lambda *groups, repeat=1: [*_product(groups, repeat)],
    "chain": lambda *groups: [item for group in groups for item in group],
    "cdiv": lambda a, b: -(-a // b),
    "next_power_of_2": lambda n: 1 << max(0, n - 1).bit_length(),
}
# A draft is for NVIDIA's GPUs: so are the branches that it reads.
_ON_CUDA: Mapping[str, object] = {
    "backend": "cuda",
    "version.hip": None,
    "cuda.is_available()": True,
    "is_cuda()": True,
    "is_hip()": False,
    "is_rocm()": False,
    "is_amd": False,
    "is_amd()": False,
    "is_xpu()": False,
}
_METHODS: Mapping[str, Callable[[Any], Any]] = {
    "keys": lambda found: [*found],
    "values": lambda found: [*found.values()],
    "items": lambda found: [*found.items()],
    "copy": lambda found: found.copy(),
}


class UnreadableError(Exception):
    """An expression that only running it could tell; `line` is where, `text` what it says."""

    def __init__(self, node: ast.AST) -> None:
        try:
            text = ast.unparse(node).partition("\n")[0]
        except RecursionError:
            text = "what is nested so deep"
        self.text = text if len(text) <= 80 else f"{text[:77]}..."
        self.line = int(getattr(node, "lineno", 1))
        super().__init__(f"line {self.line}: {self.text}")


@dataclass(frozen=True, slots=True)
class Made:
    """A call that is read and not executed: `triton.Config({...}, num_warps=4)`."""

    name: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    line: int


class _ReturnedError(Exception):
    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value


@dataclass(slots=True)
class Literals:
    """Values of expressions of one module; names are its constants and functions.

    A call whose dotted name ends with one of `kept` is given as `Made`.
    """

    tree: ast.Module
    kept: frozenset[str] = frozenset({"Config"})
    _constants: dict[str, ast.expr] = field(init=False, default_factory=dict)
    _functions: dict[str, ast.FunctionDef] = field(init=False, default_factory=dict)
    _left: int = _MOST_STEPS_OF_FILE
    _budget: int = 0
    _depth: int = 0

    def __post_init__(self) -> None:
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef):
                self._functions[node.name] = node
            for target, value in bindings(node):
                self._constants[target] = value

    def value(self, node: ast.expr, names: Mapping[str, object] | None = None) -> Any:
        """Evaluate an expression; raise `UnreadableError` with the part that cannot be."""
        self._budget = min(_MOST_STEPS, self._left) if self._depth == 0 else self._budget
        self._budget -= 1
        self._left -= 1
        if self._budget < 0 or self._depth > _MOST_DEPTH:
            raise UnreadableError(node)
        self._depth += 1
        try:
            return _check_size(self._value(node, names or {}), node)
        except (ArithmeticError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise UnreadableError(node) from error
        finally:
            self._depth -= 1

    def try_evaluate(self, node: ast.expr | None, names: Mapping[str, object] | None = None) -> Any:
        """Evaluate an expression, or give None where it cannot be."""
        try:
            return None if node is None else self.value(node, names)
        except UnreadableError:
            return None

    def _value(self, node: ast.expr, names: Mapping[str, object]) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                if name in names:
                    return names[name]
                if name in self._constants:
                    return self.value(self._constants[name])
            case ast.List() | ast.Tuple() | ast.Set():
                items = [*self._items(node.elts, names)]
                return tuple(items) if isinstance(node, ast.Tuple) else items
            case ast.Dict(keys=keys, values=values):
                found: dict[Any, Any] = {}
                for key, given in zip(keys, values, strict=True):
                    made = self.value(given, names)
                    found |= made if key is None else {self.value(key, names): made}
                return found
            case ast.BinOp(left=left, op=op, right=right):
                pair = self.value(left, names), self.value(right, names)
                _require_small(op, *pair, node)
                return _BINARY[type(op)](*pair)
            case ast.UnaryOp(op=sign, operand=operand):
                return _UNARY[type(sign)](self.value(operand, names))
            case ast.BoolOp(op=ast.And(), values=parts):
                return all(self.value(part, names) for part in parts)
            case ast.BoolOp(values=parts):
                return any(self.value(part, names) for part in parts)
            case ast.Compare():
                return self._compare(node, names)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.value(body if self.value(test, names) else orelse, names)
            case ast.Subscript(value=whole, slice=place):
                return self.value(whole, names)[self.value(place, names)]
            case ast.Slice(lower=lower, upper=upper, step=step):
                ends = (lower, upper, step)
                return slice(*(None if n is None else self.value(n, names) for n in ends))
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                return [self.value(node.elt, n) for n in self._loops(node.generators, names)]
            case ast.DictComp():
                each = self._loops(node.generators, names)
                return {self.value(node.key, n): self.value(node.value, n) for n in each}
            case ast.Attribute():
                return self._of_gpu(node)
            case ast.Call():
                return self._call(node, names)
        raise UnreadableError(node)

    def _items(self, nodes: Sequence[ast.expr], names: Mapping[str, object]) -> Iterator[Any]:
        for node in nodes:
            if isinstance(node, ast.Starred):
                yield from self.value(node.value, names)
            else:
                yield self.value(node, names)

    def _compare(self, node: ast.Compare, names: Mapping[str, object]) -> bool:
        left = self.value(node.left, names)
        for op, right in zip(node.ops, node.comparators, strict=True):
            following = self.value(right, names)
            if not _COMPARED[type(op)](left, following):
                return False
            left = following
        return True

    def _loops(
        self, generators: Sequence[ast.comprehension], names: Mapping[str, object]
    ) -> Iterator[Mapping[str, object]]:
        if not generators:
            yield names
            return
        first, *others = generators
        for item in self.value(first.iter, names):
            inner = {**names, **_bound(first.target, item)}
            if all(self.value(test, inner) for test in first.ifs):
                yield from self._loops(others, inner)

    def _of_gpu(self, node: ast.expr) -> object:
        text = ast.unparse(node)
        for end, value in _ON_CUDA.items():
            if text == end or text.endswith(f".{end}"):
                return value
        raise UnreadableError(node)

    def _call(self, node: ast.Call, names: Mapping[str, object]) -> Any:
        if isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS and not node.args:
            return _METHODS[node.func.attr](self.value(node.func.value, names))
        name = ast.unparse(node.func).rpartition(".")[2]
        arguments = tuple(self._items(node.args, names))
        keywords: dict[str, Any] = {}
        for keyword in node.keywords:
            # what a config is handed to call later stays text
            is_hook = keyword.arg in ("pre_hook", "ir_override")
            value: Any = ast.unparse(keyword.value) if is_hook else self.value(keyword.value, names)
            keywords |= value if keyword.arg is None else {keyword.arg: value}
        if name in self.kept:
            return Made(ast.unparse(node.func), arguments, keywords, node.lineno)
        if isinstance(node.func, ast.Name) and name in self._functions:
            return self._run(self._functions[name], arguments, keywords, node)
        if name in _FUNCTIONS:
            return _FUNCTIONS[name](*arguments, **keywords)
        return self._of_gpu(node)

    def _run(
        self,
        function: ast.FunctionDef,
        arguments: Sequence[object],
        keywords: Mapping[str, object],
        node: ast.Call,
    ) -> object:
        parameters = [*function.args.posonlyargs, *function.args.args]
        defaults = function.args.defaults
        names: dict[str, object] = {}
        for parameter, value in zip(
            parameters[len(parameters) - len(defaults) :], defaults, strict=True
        ):
            names[parameter.arg] = self.try_evaluate(value)
        names |= dict(zip((p.arg for p in parameters), arguments, strict=False))
        names |= keywords
        if any(p.arg not in names for p in parameters) or len(arguments) > len(parameters):
            raise UnreadableError(node)
        try:
            self._statements(function.body, names)
        except _ReturnedError as returned:
            return returned.value
        return None

    def _statements(self, body: Iterable[ast.stmt], names: dict[str, object]) -> None:
        for statement in body:
            match statement:
                case ast.Return(value=value):
                    raise _ReturnedError(None if value is None else self.value(value, names))
                case ast.Assign(targets=[target], value=value):
                    names |= _bound(target, self.value(value, names))
                case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value):
                    names[name] = _check_size(names[name] + self.value(value, names), value)
                case ast.For(target=target, iter=items, body=inner, orelse=[]):
                    for item in self.value(items, names):
                        names |= _bound(target, item)
                        self._statements(inner, names)
                case ast.If(test=test, body=then, orelse=otherwise):
                    self._statements(then if self.value(test, names) else otherwise, names)
                case ast.Expr(
                    value=ast.Call(
                        func=ast.Attribute(value=ast.Name(id=name), attr=how), args=[value]
                    )
                ) if name in names:
                    grown, more = names[name], self.value(value, names)
                    if not isinstance(grown, list) or how not in ("append", "extend"):
                        raise UnreadableError(statement)
                    grown.extend([more] if how == "append" else more)
                    _check_size(grown, statement)
                case ast.Expr(value=ast.Constant()) | ast.Pass():
                    continue
                case _:
                    raise UnreadableError(statement)


def bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """List the names that a statement gives a value of its own, with the values."""
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
        yield node.target.id, node.value
    if not isinstance(node, ast.Assign):
        return
    for target in node.targets:
        if isinstance(target, ast.Name):
            yield target.id, node.value
        elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            for one, value in zip(target.elts, node.value.elts, strict=False):
                if isinstance(one, ast.Name) and not isinstance(value, ast.Starred):
                    yield one.id, value


def _bound(target: ast.expr, item: Any) -> dict[str, object]:
    if isinstance(target, ast.Name):
        return {target.id: item}
    if isinstance(target, ast.Tuple | ast.List) and len(target.elts) == len(item):
        pairs = zip(target.elts, item, strict=True)
        return {name: value for node, each in pairs for name, value in _bound(node, each).items()}
    raise UnreadableError(target)


def _check_size(value: Any, node: ast.AST) -> Any:
    if isinstance(value, list | tuple | dict | str) and len(value) > _MOST_ITEMS:
        raise UnreadableError(node)
    if isinstance(value, int) and not -_LARGEST <= value <= _LARGEST:
        raise UnreadableError(node)
    return value


def _require_small(op: ast.operator, left: Any, right: Any, node: ast.AST) -> None:
    # before it is computed: what it would take
    if isinstance(op, ast.Pow | ast.LShift) and not (
        abs(left) <= 2**16 and 0 <= right <= _MOST_BITS
    ):
        raise UnreadableError(node)
    if isinstance(op, ast.Mult):
        for sequence, times in ((left, right), (right, left)):
            if isinstance(sequence, list | tuple | str) and len(sequence) * times > _MOST_ITEMS:
                raise UnreadableError(node)
    if isinstance(op, ast.Mod) and isinstance(left, str):
        raise UnreadableError(node)


def _short(items: range) -> range:
    if len(items) > _MOST_ITEMS:
        raise ValueError(f"{len(items)} items")
    return items


def _product(groups: Sequence[Sequence[object]], repeat: int) -> Iterator[tuple[object, ...]]:
    count = 1
    for group in groups:
        count *= len(group)
    if not 0 <= repeat <= 8 or count**repeat > _MOST_ITEMS:
        raise ValueError(f"{count} items")
    yield from product(*groups, repeat=repeat)
