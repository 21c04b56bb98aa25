"""Shapes and dtypes of a launcher's tensors, as its own statements tell them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from tuner.extensions.draft.guesses import LIKELY, SURE, Evidence
from tuner.extensions.draft.python.literals import Literals
from tuner.extensions.draft.python.source import all_arguments, argument_of, defaults_of
from tuner.extensions.draft.python.tensors import (
    RESHAPED,
    SAME,
    Tensor,
    allocation,
    dtype_of,
    is_plain,
    is_used_as_tensor,
    may_be_none,
    shape_of,
    sizes_in,
    statements,
)
from tuner.model.config import RESERVED_NAMES
from tuner.model.expressions import MAX_LENGTH

_MOST_RANKS = 100
_OPERATORS: Mapping[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
}


def _bounded(size: str) -> str | None:
    """Forget a size that no search space could state: names that add up double at each line."""
    return size if len(size) <= MAX_LENGTH else None


class Shapes:
    """The reading of one launcher: its tensors by name, and the axes that size them."""

    def __init__(self, host: ast.FunctionDef, literals: Literals, pointers: frozenset[str]) -> None:
        self.host, self.literals = host, literals
        self.axes: dict[str, int] = {}
        self.sizes: dict[str, str] = {}
        self.aliases: dict[str, str] = {}
        self.renamed: dict[str, str] = {}
        self.tensors = {a.arg: Tensor(a.arg, a.lineno) for a in self._tensors(pointers)}
        self._ranks()
        self.defaults = {
            name: value
            for name, node in defaults_of(host).items()
            if (value := literals.try_evaluate(node)) is not None
        }
        # What an assertion says of sizes may be named further down only.
        for statement in [*statements(host.body)] * 2:
            match statement:
                case ast.Assert(test=test):
                    self._note_assertion(test)
                case ast.Assign(targets=[ast.Tuple(elts=names)], value=value):
                    self._unpack([n.id if isinstance(n, ast.Name) else "" for n in names], value)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._assign(name, value)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    self._assign(name, value)

    def _tensors(self, pointers: frozenset[str]) -> Iterator[ast.arg]:
        defaults = defaults_of(self.host)
        for argument in all_arguments(self.host):
            note = "" if argument.annotation is None else ast.unparse(argument.annotation)
            default = defaults.get(argument.arg)
            if isinstance(default, ast.Constant) and default.value is None:
                continue  # what may be left out is left out
            if may_be_none(argument):
                continue
            is_noted = "Tensor" in note and "list" not in note.lower()
            is_open = not note and default is None
            used = argument.arg in pointers or is_used_as_tensor(self.host, argument.arg)
            if is_noted or (is_open and used):
                yield argument

    def root(self, node: ast.expr) -> Tensor | None:
        """Find the tensor whose elements an expression gives, under whatever name."""
        match node:
            case ast.Name(id=name):
                for _ in range(10):
                    if name in self.tensors:
                        return self.tensors[name]
                    if name not in self.aliases:
                        return None
                    name = self.aliases[name]
            case ast.Call(func=ast.Attribute(value=inner, attr=how)) if how in SAME | RESHAPED:
                return self.root(inner)
            case ast.Call(func=how, args=[first, *_]) if "TensorDescriptor" in ast.unparse(how):
                return self.root(first)
            case ast.IfExp(body=body, orelse=other):
                return self.root(body) or self.root(other)
        return None

    def size(self, node: ast.expr, hint: str = "") -> str | None:
        """Write a size over axes; a dimension that has no name yet becomes the axis `hint`."""
        match node:
            case ast.Constant(value=value) if type(value) is int and value > 0:
                return str(value)
            case ast.Name(id=name) if name in self.sizes:
                return self.sizes[name]
            case ast.Subscript(value=ast.Attribute(value=whole, attr="shape"), slice=place):
                return self._dim(whole, place, hint, node)
            case ast.Call(func=ast.Attribute(value=whole, attr="size"), args=[place]):
                return self._dim(whole, place, hint, node)
            case ast.Call(func=ast.Attribute(value=whole, attr="numel" | "nelement"), args=[]):
                return self._numel(whole, hint, node)
            case ast.Call(func=ast.Name(id="len"), args=[whole]):
                return self._dim(whole, ast.Constant(0), hint, node)
            case ast.BinOp(
                left=ast.Call(func=ast.Attribute(value=whole, attr="numel")),
                op=ast.FloorDiv(),
                right=last,
            ) if hint and self._is_last(whole, last):
                return self._rows(whole, hint, node)
            case ast.BinOp(left=whole, op=ast.FloorDiv(), right=ast.Constant(value=int(parts))) if (
                hint and self._is_open(whole)
            ):
                axis = self.sizes.get(hint) or self.axis(hint, node.lineno)
                self.size(whole, f"{parts} * {axis}")
                return axis
            case ast.BinOp(left=left, right=right, op=op) if type(op) in _OPERATORS:
                texts = [text for one in (left, right) if (text := self.size(one)) is not None]
                if len(texts) < 2:
                    return None
                first, second = (one if is_plain(one) else f"({one})" for one in texts)
                return _bounded(f"{first} {_OPERATORS[type(op)]} {second}")
            case ast.Call(func=how, args=[left, right]) if ast.unparse(how).endswith("cdiv"):
                pair = self.size(left), self.size(right)
                return None if None in pair else _bounded(f"ceil_div({pair[0]}, {pair[1]})")
            case ast.Call(func=ast.Name(id="int"), args=[inner]):
                return self.size(inner, hint)
            case ast.Name() | ast.Subscript():
                known = self.literals.try_evaluate(node, self.defaults)
                return str(known) if type(known) is int and known > 0 else None
        return None

    def axis(self, name: str, line: int) -> str:
        """Give a size that a launcher names a name of its own among the axes."""
        plain = name if name.isidentifier() and name not in RESERVED_NAMES else f"{name}_"
        plain = plain.strip("_") or "n"
        self.axes.setdefault(plain, line)
        return plain

    def same(self, left: str, right: str) -> None:
        """Take two axes as one: the first."""
        if left == right or not (left.isidentifier() and right.isidentifier()):
            return
        self.axes.pop(right, None)
        for tensor in self.tensors.values():
            tensor.dims = {n: left if text == right else text for n, text in tensor.dims.items()}
        self.sizes = {name: left if text == right else text for name, text in self.sizes.items()}

    def claim(self, tensor: Tensor, dims: Sequence[str], evidence: Evidence) -> None:
        """Give a tensor all its dimensions, where it has none yet."""
        tensor.rank = len(dims)
        tensor.dims |= dict(enumerate(dims))
        tensor.said.append(evidence)

    def _ranks(self) -> None:
        # how many dimensions: unpacked, asked for by number, asserted
        asked: dict[str, int] = {}
        for node in ast.walk(self.host):
            match node:
                case ast.Assign(targets=[ast.Tuple(elts=names)], value=value):
                    for _, tensor, count in self._unpacked(value, len(names)):
                        if tensor is not None:
                            tensor.rank = count
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id=name), attr="stride" | "size"),
                    args=[ast.Constant() | ast.UnaryOp() as at],
                ) if name in self.tensors:
                    place = self.literals.try_evaluate(at)
                    if type(place) is int:
                        least = place + 1 if place >= 0 else -place
                        asked[name] = max(asked.get(name, 0), least)
                case ast.Subscript(
                    value=ast.Attribute(value=ast.Name(id=name), attr="shape"),
                    slice=ast.Constant(value=int(place)),
                ) if name in self.tensors:
                    asked[name] = max(asked.get(name, 0), place + 1)
                case ast.Compare(
                    left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=int(n))]
                ):
                    text = ast.unparse(left)
                    name = text.partition(".")[0]
                    if text in (f"{name}.ndim", f"{name}.dim()") and name in self.tensors:
                        self.tensors[name].rank = n
        for name, least in asked.items():
            if self.tensors[name].rank is None and least > 1:
                self.tensors[name].rank = least

    def _unpacked(
        self, value: ast.expr, count: int
    ) -> Iterator[tuple[ast.expr, Tensor | None, int]]:
        """Yield what names are set to: a tensor that has so many dimensions, or one value."""
        parts = value.elts if isinstance(value, ast.Tuple) else [value]
        for part in parts:
            name = shape_of(part.value if isinstance(part, ast.Starred) else part)
            tensor = None if name is None else self.root(ast.Name(name, ast.Load()))
            if tensor is not None and (isinstance(part, ast.Starred) or len(parts) == 1):
                yield part, tensor, count - (len(parts) - 1)
            else:
                yield part, None, 1

    def _unpack(self, names: Sequence[str], value: ast.expr) -> None:
        taken = 0
        for part, tensor, count in self._unpacked(value, len(names)):
            if tensor is not None:
                inner = part.value if isinstance(part, ast.Starred) else part
                tensor.rank = tensor.rank or count
                evidence = Evidence(SURE, f"unpacked in line {inner.lineno}: {ast.unparse(inner)}")
                for place, name in enumerate(names[taken : taken + count]):
                    self._name(tensor, place, name, inner.lineno)
                tensor.said.append(evidence)
            elif taken < len(names) and names[taken] and not isinstance(part, ast.Starred):
                self._assign(names[taken], part)
            taken += count

    def _name(self, tensor: Tensor, place: int, name: str, line: int) -> None:
        if not name or name == "_":
            name = f"{tensor.name}_{place}"
        known = tensor.dims.get(place)
        if known is not None:
            self.sizes[name] = known
            return
        text = self.sizes.get(name) or self.axis(name, line)
        tensor.dims[place] = self.sizes[name] = text

    def _assign(self, name: str, value: ast.expr) -> None:
        node = allocation(value)
        if node is not None:
            self._note_allocation(name, node)
            return
        tensor = self.root(value)
        if tensor is not None:
            if tensor.name != name:
                self.aliases[name] = tensor.name
            self._note_reshape(tensor, value)
            return
        text = self.size(value, name)
        if text is not None and name not in self.sizes:
            self.sizes[name] = text

    def _note_allocation(self, name: str, node: ast.Call) -> None:
        if name in self.tensors and self.tensors[name].made is None:
            return  # an argument that is made where it is not given
        tensor = Tensor(name, node.lineno, node)
        said = Evidence(SURE, f"{ast.unparse(node.func)}, line {node.lineno}")
        how = ast.unparse(node.func).rpartition(".")[2]
        like = self.root(node.args[0]) if how.endswith("_like") and node.args else None
        sizes = None if like is not None else sizes_in(node)
        if like is not None:
            tensor.rank, tensor.dims, tensor.dtype_of = like.rank, dict(like.dims), like.name
        elif sizes is not None:
            whole = self._shape(sizes[0]) if len(sizes) == 1 else None
            sized = (self.size(one, f"{name}_{n}") for n, one in enumerate(sizes))
            texts = [*sized] if whole is None else [*whole]
            tensor.rank = len(texts)
            tensor.dims = {n: text for n, text in enumerate(texts) if text is not None}
        tensor.said = [] if like is None and sizes is None else [said]
        self._note_dtype(tensor, node)
        self.tensors[name] = tensor

    def _shape(self, node: ast.expr) -> tuple[str, ...] | None:
        """Write a whole shape, `x.shape` or `x.shape[:-1] + (n,)`, where all of it is known."""
        if (of := shape_of(node)) in self.tensors:
            return self.tensors[of or ""].shape
        match node:
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                first, second = self._shape(left), self._shape(right)
                if first is None or second is None or len(first + second) > _MOST_RANKS:
                    return None
                return first + second
            case ast.Subscript(value=whole, slice=ast.Slice() as cut):
                shape = self._shape(whole)
                ends = (self.literals.try_evaluate(end) for end in (cut.lower, cut.upper, cut.step))
                return None if shape is None else shape[slice(*ends)]
            case ast.Tuple(elts=nodes) | ast.List(elts=nodes):
                texts = [self.size(one) for one in nodes]
                return None if None in texts else tuple(text for text in texts if text is not None)
        return None

    def _note_dtype(self, tensor: Tensor, made: ast.Call) -> None:
        node = argument_of(made, "dtype")
        while isinstance(node, ast.BoolOp):
            node = node.values[0]
        is_new = node is None and ".new_" in ast.unparse(made.func)
        owner = made.func if is_new else node
        if isinstance(owner, ast.Attribute) and (is_new or owner.attr == "dtype"):
            of = self.root(owner.value)
            tensor.dtype_of = of.name if of else None
        elif node is not None:
            defaults = defaults_of(self.host)
            if isinstance(node, ast.Name) and node.id in defaults:
                node = defaults[node.id]
            tensor.dtype = dtype_of(ast.unparse(node))
            tensor.dtype_of = None
            tensor.dtype_said = Evidence(SURE, f"dtype={ast.unparse(node)}, line {node.lineno}")
        elif tensor.dtype_of is None:
            tensor.dtype = "float32"
            tensor.dtype_said = Evidence(LIKELY, f"PyTorch's default, line {made.lineno}")

    def _note_reshape(self, tensor: Tensor, value: ast.expr) -> None:
        if tensor.rank is not None or tensor.dims:
            return
        match value:
            case ast.Call(func=ast.Attribute(attr="view" | "reshape"), args=[first, last]):
                if ast.unparse(first) == "-1":
                    tensor.rank = 2
                    text = f"line {value.lineno} takes it as two-dimensional"
                    tensor.said.append(Evidence(LIKELY, text))
                    self.size(last)
            case ast.Call(func=ast.Attribute(attr="flatten")):
                tensor.rank = 1

    def _note_assertion(self, test: ast.expr) -> None:
        parts = test.values if isinstance(test, ast.BoolOp) else [test]
        for part in parts:
            match part:
                case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                    self._equal(left, right)
                case ast.Compare(
                    left=ast.Attribute(value=of, attr="dtype"),
                    ops=[ast.In()],
                    comparators=[ast.List() | ast.Tuple() as among],
                ):
                    self._dtype(of, among.elts[0] if among.elts else None, LIKELY)

    def _equal(self, left: ast.expr, right: ast.expr) -> None:
        if isinstance(left, ast.Attribute) and left.attr == "dtype":
            self._dtype(left.value, right, SURE)
            return
        shapes = [shape_of(node) for node in (left, right)]
        if shapes[0] in self.tensors and shapes[1] in self.tensors:
            first, second = (self.tensors[name or ""] for name in shapes)
            if not second.dims:
                second.rank, second.dims = first.rank, first.dims
            return
        match left, right:
            case (
                ast.Subscript(value=one_, slice=ast.Slice(lower=None, upper=up)),
                ast.Subscript(value=two_, slice=ast.Slice(lower=None)),
            ) if up is not None:
                # all dimensions but the last are the same
                names = shape_of(one_), shape_of(two_)
                pair = [self.tensors[name] for name in names if name in self.tensors]
                for tensor, other in (pair, pair[::-1]) if len(pair) == 2 else ():
                    if tensor.rank is not None and other.rank in (None, tensor.rank):
                        other.rank, last = tensor.rank, tensor.rank - 1
                        other.dims |= {n: text for n, text in tensor.dims.items() if 0 <= n < last}
                return
        size = self.size(left)
        known = self.size(right, size or "")
        size = self.size(left, known or "") if size is None else size
        if size is not None and known is not None:
            self.same(size, known)

    def _dtype(self, of: ast.expr, kind: ast.expr | None, certainty: str) -> None:
        tensor = self.root(of)
        if tensor is None or kind is None:
            return
        if isinstance(kind, ast.Attribute) and kind.attr == "dtype":
            other = self.root(kind.value)
            tensor.dtype_of = tensor.dtype_of or (other.name if other else None)
        elif (found := dtype_of(ast.unparse(kind))) is not None:
            tensor.dtype = found
            tensor.dtype_said = Evidence(certainty, f"asserted in line {kind.lineno}")

    def _dim(self, whole: ast.expr, place: ast.expr, hint: str, node: ast.expr) -> str | None:
        tensor, at = self.root(whole), self.literals.try_evaluate(place)
        if tensor is None or type(at) is not int:
            return None
        if at < 0 and tensor.rank is not None:
            at += tensor.rank
        if at in tensor.dims:
            return tensor.dims[at]
        if not hint:
            return None
        if not hint.isidentifier():
            tensor.dims[at] = hint  # an expression that it equals
            return hint
        tensor.dims[at] = self.sizes.get(hint) or self.axis(hint, node.lineno)
        if len(tensor.said) == 0 or not tensor.said[-1].text.startswith("sized in"):
            tensor.said.append(Evidence(SURE, f"sized in line {node.lineno}: {ast.unparse(node)}"))
        return tensor.dims[at]

    def _is_open(self, node: ast.expr) -> bool:
        """Whether it is a tensor's dimension that has no name yet."""
        match node:
            case (
                ast.Subscript(value=ast.Attribute(value=whole, attr="shape"))
                | ast.Call(func=ast.Attribute(value=whole, attr="size"), args=[_])
            ):
                return self.root(whole) is not None and self.size(node) is None
        return False

    def _is_last(self, whole: ast.expr, last: ast.expr) -> bool:
        """Whether a size is that of a tensor's last dimension."""
        tensor = self.root(whole)
        if tensor is None or tensor.rank not in (None, 2):
            return False
        if isinstance(last, ast.Subscript) and shape_of(last.value) == tensor.name:
            return bool(self.literals.try_evaluate(last.slice) == -1)
        known = tensor.dims.get(-1, tensor.dims.get(1) if tensor.rank == 2 else None)
        return known is not None and self.size(last) == known

    def _rows(self, whole: ast.expr, hint: str, node: ast.expr) -> str:
        tensor = self.root(whole)
        assert tensor is not None
        if tensor.rank is None:
            text = f"taken as two-dimensional: line {node.lineno} counts its rows"
            tensor.said.append(Evidence(LIKELY, text))
        tensor.rank = 2
        return tensor.dims.setdefault(0, self.sizes.get(hint) or self.axis(hint, node.lineno))

    def _numel(self, whole: ast.expr, hint: str, node: ast.expr) -> str | None:
        tensor = self.root(whole)
        if tensor is None:
            return None
        if (shape := tensor.shape) is not None:
            return " * ".join(one if is_plain(one) else f"({one})" for one in shape)
        if not hint or tensor.dims or tensor.rank not in (None, 1):
            return None
        text = f"line {node.lineno} counts its elements: taken as one-dimensional"
        self.claim(tensor, (self.axis(hint, node.lineno),), Evidence(LIKELY, text))
        return tensor.dims[0]
