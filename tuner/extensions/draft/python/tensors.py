"""Tensors as PyTorch code makes and names them: allocations, shapes, dtypes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tuner.extensions.draft.guesses import Evidence
from tuner.model.kernel import DTYPE_BYTES

_TENSOR_WORDS = frozenset((
    "shape", "stride", "size", "numel", "nelement", "dtype", "device", "contiguous", "ndim", "dim",
    "is_contiguous", "data_ptr", "is_cuda", "element_size", "view", "reshape", "flatten",
    "new_empty", "new_zeros", "to", "unsqueeze", "squeeze",
))  # fmt: skip
# Another name for the same elements.
SAME = frozenset({"contiguous", "detach", "clone", "to", "cuda", "requires_grad_"})
RESHAPED = frozenset({"view", "reshape", "flatten", "view_as", "reshape_as", "squeeze"})
_MADE = ("empty", "zeros", "ones", "full", "rand", "randn", "randint", "randperm", "arange")
_DTYPES = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "int": "int32",
    "long": "int64",
    "float8_e4m3fn": "float8_e4m3",
    "float8e4nv": "float8_e4m3",
    "float8e5": "float8_e5m2",
    "int1": "bool",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
}


@dataclass(slots=True)
class Tensor:
    """A tensor of the launcher: an argument of it, or one that it makes (`made`, the statement)."""

    name: str
    line: int
    made: ast.Call | None = None
    rank: int | None = None
    dims: dict[int, str] = field(default_factory=dict)
    said: list[Evidence] = field(default_factory=list)
    dtype: str | None = None
    dtype_said: Evidence | None = None
    dtype_of: str | None = None

    @property
    def shape(self) -> tuple[str, ...] | None:
        """The dimensions over axes, where all of them are known."""
        if self.rank is None:
            return None
        at = [self.dims.get(i, self.dims.get(i - self.rank)) for i in range(self.rank)]
        return None if None in at or not at else tuple(one for one in at if one is not None)


def dtype_of(text: str) -> str | None:
    """Name a dtype of PyTorch's or Triton's as a search space does."""
    name = text.rpartition(".")[2]
    found = _DTYPES.get(name, name)
    return found if found in DTYPE_BYTES else None


def statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """List statements with those in branches and loops, functions of their own left out."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            continue
        for name in ("body", "orelse", "finalbody"):
            yield from statements(getattr(statement, name, ()))


def may_be_none(argument: ast.arg) -> bool:
    """Tell whether a parameter's annotation allows None."""
    note = "" if argument.annotation is None else ast.unparse(argument.annotation)
    return note.startswith(("Optional[", "typing.Optional[")) or note.endswith("| None")


def is_used_as_tensor(host: ast.FunctionDef, name: str) -> bool:
    """Tell whether a function asks a parameter what only a tensor has."""
    for node in ast.walk(host):
        match node:
            case ast.Attribute(value=ast.Name(id=of), attr=word) if of == name:
                if word in _TENSOR_WORDS:
                    return True
            case ast.Call(func=how, args=[ast.Name(id=of), *_]) if of == name:
                if ast.unparse(how).endswith("_like"):
                    return True
    return False


def allocation(value: ast.expr) -> ast.Call | None:
    """Find the call of PyTorch that makes the tensor an expression gives."""
    if isinstance(value, ast.IfExp):
        return allocation(value.body) or allocation(value.orelse)
    if isinstance(value, ast.BinOp):
        return allocation(value.left) or allocation(value.right)
    if isinstance(value, ast.Call):
        if isinstance(value.func, ast.Attribute) and value.func.attr in SAME:
            return allocation(value.func.value)
        name = ast.unparse(value.func)
        kind = name.rpartition(".")[2].removeprefix("new_").removesuffix("_like")
        if kind in _MADE and (name.startswith("torch.") or ".new_" in name or "_like" in name):
            return value
    return None


def sizes_in(call: ast.Call) -> list[ast.expr] | None:
    """List the sizes that such a call is handed; None where it copies another shape."""
    how = ast.unparse(call.func).rpartition(".")[2]
    nodes = [keyword.value for keyword in call.keywords if keyword.arg == "size"] or [*call.args]
    if how == "randint" and len(nodes) > 1:
        nodes = [node for node in nodes if isinstance(node, ast.Tuple | ast.List)]
    if not nodes:
        return None
    first = nodes[0]
    if isinstance(first, ast.Tuple | ast.List):
        return [*first.elts]
    return nodes[:1] if how.endswith(("full", "arange", "randperm")) else nodes


def sizes_of(value: ast.expr) -> tuple[ast.Call, list[ast.expr]] | None:
    """Read the sizes of a tensor that an expression makes: the call, and each dimension."""
    node = allocation(value)
    sizes = None if node is None else sizes_in(node)
    return None if node is None or sizes is None else (node, sizes)


def shape_of(node: ast.expr) -> str | None:
    """Name the tensor whose whole shape an expression is."""
    match node:
        case ast.Attribute(value=ast.Name(id=name), attr="shape"):
            return name
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="size"), args=[]):
            return name
    return None


def is_plain(text: str) -> bool:
    """Tell whether a size needs no parentheses."""
    return text.isidentifier() or text.isdigit() or text.startswith("ceil_div(")
