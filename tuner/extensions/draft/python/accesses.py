"""What a kernel of Triton does with each pointer that it is handed."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tuner.extensions.draft.python.literals import bindings
from tuner.extensions.draft.python.source import PythonKernel, argument_of, calls_in, passed_to

_READS = ("load", "gather")
_WRITES = ("store", "scatter")
_DEPTH = 6


@dataclass(frozen=True, slots=True)
class PythonAccess:
    """Lines in which a pointer's elements are read and written.

    `is_index` says that what is read points into another array, `stored_as` what type of Triton's
    is stored, and `extent` is the parameter that bounds all of a row of numbers.
    """

    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    is_index: bool = False
    stored_as: str = ""
    extent: str = ""

    def with_(self, other: PythonAccess) -> PythonAccess:
        """Take both together."""
        return PythonAccess(
            self.reads + other.reads,
            self.writes + other.writes,
            self.is_index or other.is_index,
            self.stored_as or other.stored_as,
            self.extent or other.extent,
        )


def accesses(
    kernel: PythonKernel, kernels: Mapping[str, PythonKernel], depth: int = 0
) -> dict[str, PythonAccess]:
    """Map each parameter that is a pointer to what is done with it, in helpers too."""
    reading = _AccessReading(kernel)
    found: dict[str, PythonAccess] = {}
    for call in calls_in(kernel.node):
        for name, access in reading.of(call):
            found[name] = found.get(name, PythonAccess()).with_(access)
        helper = kernels.get(call.func.id) if isinstance(call.func, ast.Name) else None
        if helper is None or helper is kernel or depth >= _DEPTH:
            continue
        inner = accesses(helper, kernels, depth + 1)
        handed = passed_to(helper.parameters, call)
        for name, access in inner.items():
            base = reading.base(handed[name]) if name in handed else None
            if base is not None:
                plain = replace(access, extent="")
                found[base] = found.get(base, PythonAccess()).with_(plain)
    return found


def loops(kernel: PythonKernel) -> bool:
    """Tell whether a kernel has a loop that Triton could pipeline."""
    return any(isinstance(node, ast.For | ast.While) for node in ast.walk(kernel.node))


def multiplies(kernel: PythonKernel, kernels: Mapping[str, PythonKernel]) -> bool:
    """Tell whether a kernel, or what it calls, multiplies tiles on tensor cores."""
    calls = calls_in(kernel.node)
    if any(ast.unparse(call.func).endswith((".dot", ".dot_scaled")) for call in calls):
        return True
    helpers = {call.func.id for call in calls if isinstance(call.func, ast.Name)} & {*kernels}
    others = {name: python_kernel for name, python_kernel in kernels.items() if name != kernel.name}
    return any(multiplies(others[name], others) for name in helpers & {*others})


class _AccessReading:
    def __init__(self, kernel: PythonKernel) -> None:
        self.parameters = frozenset(kernel.parameters)
        self.constexprs = frozenset(kernel.constexprs)
        self.calls = calls_in(kernel.node)
        self.defined: dict[str, list[ast.expr]] = {}
        for node in ast.walk(kernel.node):
            for name, value in bindings(node):
                self.defined.setdefault(name, []).append(value)
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                self.defined.setdefault(f"+{node.target.id}", []).append(node.value)

    def base(self, node: ast.expr, depth: int = 0) -> str | None:
        """Follow an address to the parameter that it starts from."""
        if depth > 20:
            return None
        match node:
            case ast.Name(id=name):
                for value in self.defined.get(name, ()):
                    if name not in _names(value) or name not in self.parameters:
                        found = self.base(value, depth + 1)
                        if found is not None:
                            return found
                return name if name in self.parameters else None
            case ast.BinOp(left=left, right=right, op=ast.Add() | ast.Sub()):
                return self.base(left, depth + 1) or self.base(right, depth + 1)
            case ast.Call(func=ast.Attribute(value=inner, attr="to")):
                return self.base(inner, depth + 1)
            case ast.Call() if _method(node).startswith(("make_", "advance", "cast")):
                first = argument_of(node, "base", 0)
                return None if first is None else self.base(first, depth + 1)
        return None

    def of(self, call: ast.Call) -> Iterator[tuple[str, PythonAccess]]:
        method = _method(call)
        is_atomic = method.startswith("atomic_")
        if not (method in _READS + _WRITES or is_atomic):
            return
        address = argument_of(call, "pointer", 0)
        of_language = isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)
        if of_language and isinstance(call.func, ast.Attribute):
            described = self.base(call.func.value)
            if described is not None:  # a descriptor's own load and store
                address = call.func.value
        base = None if address is None else self.base(address)
        if base is None or address is None or base in self.constexprs:
            return
        line, stored_as = (call.lineno,), ""
        match argument_of(call, "value", 1):
            case ast.Call(func=ast.Attribute(attr="to"), args=[kind]) if method in _WRITES:
                text = ast.unparse(kind)
                stored_as = text.rpartition(".")[2] if "." in text and "dtype" not in text else ""
        access = PythonAccess(
            reads=line if method in _READS or is_atomic else (),
            writes=line if method in _WRITES or is_atomic else (),
            is_index=method in _READS and self._points(call),
            stored_as=stored_as,
            extent=self._extent(call, address),
        )
        yield base, access

    def _points(self, call: ast.Call) -> bool:
        values = [(n.lstrip("+"), value) for n, own in self.defined.items() for value in own]
        names = {n for n, value in values if any(call is inner for inner in ast.walk(value))}
        computed = [(n, _names(value)) for n, value in values if not calls_in(value)]
        for _ in range(4):
            names |= {name for name, of in computed if names & of}
        return any(
            names & (_names(other.args[0]) - {_first(other.args[0])})
            for other in self.calls
            if other is not call and other.args and _method(other) in _READS
        )

    def _extent(self, call: ast.Call, address: ast.expr) -> str:
        """Name the parameter that bounds the only offset of an address."""
        mask = argument_of(call, "mask", 1 if _method(call) in _READS else None)
        if isinstance(mask, ast.Name) and len(self.defined.get(mask.id, ())) == 1:
            mask = self.defined[mask.id][0]
        name = _first(address)
        moved = name is None or f"+{name}" in self.defined or name in self.defined
        match address, mask:
            case (
                ast.BinOp(left=ast.Name(), op=ast.Add(), right=ast.Name(id=offset)),
                ast.Compare(
                    ops=[ast.Lt()], left=ast.Name(id=bounded), comparators=[ast.Name(id=n)]
                ),
            ) if offset == bounded and n in self.parameters and not moved:
                return n
        return ""


def _first(address: ast.expr) -> str | None:
    while isinstance(address, ast.BinOp):
        address = address.left
    return address.id if isinstance(address, ast.Name) else None


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""
