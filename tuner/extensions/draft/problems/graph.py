"""A problem's `forward` as torch.export sees it: plain nodes, and not one tensor allocated."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.device.problems import BenchProblem, Sizes
from tuner.device.reference import line_in
from tuner.device.torch_reference import NUMBERS
from tuner.model.errors import KernelError

# What PyTorch's libraries are best at, by the words of `--keep`: beginnings of operators' names.
LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "conv": ("conv",),
    "matmul": (
        *("mm", "addmm", "bmm", "baddbmm", "addbmm", "matmul", "linear", "einsum", "bilinear"),
        *("mv", "addmv", "dot", "tensordot", "inner"),
    ),
    "attention": ("scaled_dot_product", "_scaled_dot_product", "_native_multi_head_attention"),
    "rnn": ("lstm", "gru", "rnn_tanh", "rnn_relu"),
    "fft": ("fft_", "_fft_"),
}
_WHOLE = frozenset(LIBRARIES["matmul"])  # names, no beginnings: `mm` is no `mmul`
# What gives a view only where its input lies in order; else it copies.
_COPIES = frozenset({"reshape", "flatten", "contiguous", "unflatten", "to", "_unsafe_view"})
_SAME = frozenset({"clone", "lift_fresh_copy", "alias", "detach", "lift_fresh"})
# What `train()` and `eval()` change.
_HAS_MODE = re.compile(r"batch_norm|instance_norm|dropout|rrelu|lstm|gru|rnn_")
_MOST_CONSTANTS = 1024


@dataclass(frozen=True, slots=True)
class Size:
    """A whole number that sizes of the problem change: with its own, then with each one doubled."""

    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ref:
    """What another node, an input or a weight gives."""

    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A dtype, a device or the like, as Python writes it."""

    text: str


@dataclass(frozen=True, slots=True)
class Tensor:
    shape: tuple[int | Size, ...]
    dtype: str
    bytes: int
    count: int
    contiguous: bool


@dataclass(frozen=True, slots=True)
class Source:
    """An input of `forward`, a parameter, a buffer, or a constant of its text (`values`)."""

    kind: str
    target: str
    tensor: Tensor
    values: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """One call; `library` is the word of `LIBRARIES`, `view` says that it costs nothing."""

    name: str
    call: str
    args: tuple[Any, ...]
    named: Mapping[str, Any]
    results: tuple[Tensor, ...]
    reads: tuple[str, ...]
    library: str
    view: bool
    flops: float

    @property
    def operator(self) -> str:
        return self.call.split(".")[1] if "." in self.call else self.call

    @property
    def moves(self) -> bool:
        """Whether it computes nothing: a view, a copy, or one of several results."""
        return self.view or self.call == "getitem" or self.operator in _COPIES | _SAME


@dataclass(frozen=True, slots=True)
class Graph:
    """All that `forward` computes: `returns` is nested as its result, `has_mode` of `eval()`."""

    sources: Mapping[str, Source]
    nodes: tuple[Node, ...]
    returns: Any
    has_mode: bool


class Trace:
    """torch.export's graph of a problem for some sizes, made simpler.

    Raises `KernelError` for what cannot be cut: control flow that depends on values, random
    numbers, inputs that are no tensors, writes into inputs or buffers.
    """

    def __init__(self, problem: BenchProblem, sizes: Sizes) -> None:
        self._problem, self._torch = problem, problem.torch
        from torch._subclasses.fake_tensor import FakeTensorMode

        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        with self._fake:
            posed = problem.at(sizes)
            self.model = posed.model(wide=False)
            values, self.fills = posed.inputs()
        for name, value in values.items():
            if not (hasattr(value, "shape") or isinstance(value, NUMBERS)):
                raise self._refuse(f"its input `{name}` is a {type(value).__name__}")
        self.inputs = values
        exported = self._export(tuple(values.values()))
        self._signature, self.constants = exported.graph_signature, exported.constants
        self._tree = exported.call_spec.out_spec
        self.graph = exported.graph
        self._simplify(posed.averages(self.model))

    def _refuse(self, why: str, line: int | None = None) -> KernelError:
        return KernelError(
            f"cannot be cut: {why}",
            path=self._problem.path,
            line=line,
            remedy=f"tune it as a whole: tune {self._problem.path.name}",
        )

    def _export(self, inputs: tuple[Any, ...]) -> Any:
        torch = self._torch
        try:
            with torch.no_grad():
                exported = torch.export.export(self.model, inputs, strict=False)
                targets = [node.target for node in exported.graph.nodes]
                schemas = [one._schema for one in targets if hasattr(one, "_schema")]
                self.has_mode = any(_HAS_MODE.search(str(one)) for one in targets)
                # What writes in place computes anew then. It takes as long again, minutes for an
                # RNN, whose steps are all traced.
                if any(schema.is_mutable for schema in schemas):
                    exported = exported.run_decompositions({})
        except Exception as error:
            if isinstance(error, MemoryError):
                raise
            text = next(iter(str(error).strip().splitlines()), "")
            why = f"torch.export refuses its `forward`: {type(error).__name__}: {text:.200}"
            raise self._refuse(why, line_in(self._problem.path, error)) from error
        return exported

    def _simplify(self, averages: set[str]) -> None:
        aten, graph = self._torch.ops.aten, self.graph
        output = graph.output_node()
        results = []
        for spec, value in zip(self._signature.output_specs, output.args[0], strict=True):
            if spec.kind.name == "USER_OUTPUT":
                results.append(value)
            elif (spec.target or "").replace(".", "_") not in averages:
                raise self._refuse(f"its `forward` writes into {spec.target or 'an input'}")
        output.args = (tuple(results),)
        for node in reversed(list(graph.nodes)):
            if node.op == "call_function" and not node.users:
                graph.erase_node(node)  # an assertion, or what only averages take
        for node in list(graph.nodes):
            if node.op != "call_function":
                continue
            name, packet = _name(node), getattr(node.target, "overloadpacket", None)
            if packet is None and node.target is not operator.getitem:
                raise self._refuse(f"its `forward` has control flow on values ({node.name})")
            self._require_no_random(node)
            if packet is aten._native_batch_norm_legit_functional:  # in training
                x, weight, bias, _, _, _, momentum, eps = node.args
                with graph.inserting_before(node):
                    args = (x, weight, bias, None, None, True, momentum, eps, False)
                    call = "call_function"
                    norm = graph.create_node(call, aten.batch_norm.default, args, name="batch_norm")
                norm.meta["val"] = node.meta["val"][0]
                for item in list(node.users):
                    item.replace_all_uses_with(norm)
                    graph.erase_node(item)
                graph.erase_node(node)
            elif name in _SAME or (name == "_to_copy" and not node.kwargs.get("dtype")):
                given = node.args[0]
                copies = output in node.users and given.op == "placeholder"
                if given.meta["val"].is_contiguous() and not copies:
                    node.replace_all_uses_with(given)
                    graph.erase_node(node)

    def _require_no_random(self, node: Any) -> None:
        tags = getattr(node.target, "tags", ())
        if self._torch.Tag.nondeterministic_seeded not in tags:
            return
        names = [argument.name for argument in node.target._schema.arguments]
        given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        # Of attention and RNNs a rate that is not given is 0.
        rates = [given.get(one) for one in ("p", "dropout", "dropout_p") if one in names]
        if not rates or (any(rates) and given.get("train") is not False):
            raise KernelError(
                f"draws random numbers while it runs ({_name(node)}), which no kernel can repeat",
                path=self._problem.path,
                remedy="draw them in get_inputs, or leave dropout and noise out (`self.eval()`)",
            )

    def split_bias(self, kept: set[str]) -> None:
        """Take out of kept convolutions a bias that what follows can add: cuDNN's takes a pass.

        A product's bias stays in its call, whose end adds it for nothing.
        """
        aten, graph = self._torch.ops.aten, self.graph
        for node in list(graph.nodes):
            follow = [one for one in node.users if one.op == "call_function"]
            computing = [n for n in follow if n.name not in kept and not self._is_view(n)]
            if node.name not in kept or _library(node) != "conv" or not computing:
                continue
            if len(node.args) < 3 or node.args[2] is None:
                continue
            bias, value = node.args[2], node.meta["val"]
            shape = [bias.meta["val"].shape[0], *[1] * (node.args[1].meta["val"].dim() - 2)]
            call = "call_function"
            with graph.inserting_after(node):
                name = f"{node.name}_wide_bias"
                wide = graph.create_node(call, aten.view.default, (bias, shape), name=name)
            with graph.inserting_after(wide):
                name = f"{node.name}_bias"
                added = graph.create_node(call, aten.add.Tensor, (node, wide), name=name)
            node.replace_all_uses_with(added, delete_user_cb=lambda user, me=added: user is not me)
            node.args = (*node.args[:2], None, *node.args[3:])
            with self._fake:
                wide.meta["val"] = bias.meta["val"].view(shape)
                added.meta["val"] = value

    def _is_view(self, node: Any) -> bool:
        if node.target is operator.getitem:
            return bool(self._is_view(node.args[0]) and "Tensor" not in _name(node.args[0]))
        if not isinstance(node.args and node.args[0], self._torch.fx.Node):
            return node.op == "call_function" and not node.all_input_nodes  # zeros, arange
        returned, before = node.target._schema.returns, node.args[0].meta["val"]
        aliases = bool(returned) and (returned[0].alias_info or _name(node) == "_unsafe_view")
        if not aliases or isinstance(before, tuple | list):
            return False
        after = node.meta["val"]
        same = all(one.dtype == before.dtype for one in _several(after))
        return same and (_name(node) not in _COPIES or before.is_contiguous())

    def skeleton(self) -> list[str]:
        """Write the graph without whole numbers: two that differ have no sizes in common."""
        return [
            f"{node.target}{self._convert((node.args,), '_')}{self._convert((node.kwargs,), '_')}"
            + str([one.dim() for one in _several(node.meta.get("val"))])
            for node in self.graph.nodes
        ]

    def read(self, others: Sequence[Trace] = ()) -> Graph:
        """Make plain nodes; whole numbers that differ in graphs of other sizes are `Size`."""
        rows = [*zip(*(one.graph.nodes for one in (self, *others)), strict=True)]
        sources = dict(self._read_sources([row for row in rows if row[0].op == "placeholder"]))
        nodes = [self._node(row) for row in rows if row[0].op == "call_function"]
        results = [
            Ref(one.name) if hasattr(one, "name") else one
            for one in self.graph.output_node().args[0]
        ]
        returns = self._torch.utils._pytree.tree_unflatten(results, self._tree)
        return Graph(sources, tuple(nodes), returns, self.has_mode)

    def _read_sources(self, rows: Sequence[tuple[Any, ...]]) -> Iterator[tuple[str, Source]]:
        kinds = {
            "USER_INPUT": "input",
            "PARAMETER": "parameter",
            "BUFFER": "buffer",
            "CONSTANT_TENSOR": "constant",
        }
        inputs = iter(self.inputs)
        for row, spec in zip(rows, self._signature.input_specs, strict=True):
            kind = kinds.get(spec.kind.name, "")
            target = next(inputs) if kind == "input" else str(spec.target)
            if not hasattr(row[0].meta.get("val"), "shape"):
                continue
            values = ""
            if kind == "constant":
                tensor = self.constants[target]
                if tensor.numel() > _MOST_CONSTANTS:
                    raise self._refuse(
                        f"its `forward` makes a constant of {tensor.numel()} numbers"
                    )
                values = _number_text(tensor.tolist())
            yield row[0].name, Source(kind, target, self._tensor(row), values)

    def _tensor(self, row: Sequence[Any], place: int | None = None) -> Tensor:
        values = [node.meta["val"] for node in row]
        values = values if place is None else [value[place] for value in values]
        first = values[0]
        shape = (_whole(sizes) for sizes in zip(*(one.shape for one in values), strict=True))
        # what is expanded lies in memory once
        count = 1
        for extent, stride in zip(first.shape, first.stride(), strict=True):
            count *= extent if stride else 1
        dtype = str(first.dtype)
        held = count * first.element_size()
        return Tensor(tuple(shape), dtype, held, first.numel(), first.is_contiguous())

    def _node(self, row: tuple[Any, ...]) -> Node:
        node = row[0]
        value = node.meta["val"]
        if isinstance(value, tuple | list):
            held = [n for n, one in enumerate(value) if hasattr(one, "shape")]
            results = tuple(self._tensor(row, place) for place in held)
        else:
            results = (self._tensor(row),)
        view, library = self._is_view(node), _library(node)
        item = node.target is operator.getitem
        call = "getitem" if item else str(node.target)
        return Node(
            node.name,
            call if item or call.startswith("aten.") else f"torch.ops.{call}",
            tuple(self._convert(tuple(one.args for one in row))),
            dict(self._convert(tuple(one.kwargs for one in row))),
            results,
            tuple(one.name for one in node.all_input_nodes),
            library,
            view,
            0.0 if view or item else self._flops(node, library, results),
        )

    def _convert(self, values: tuple[Any, ...], number: str = "") -> Any:
        first, torch = values[0], self._torch
        if isinstance(first, torch.fx.Node):
            return Ref(first.name)
        if isinstance(first, Mapping):
            keys = [key for key in first if key != "pin_memory"]
            return {key: self._convert(tuple(v[key] for v in values), number) for key in keys}
        if isinstance(first, tuple | list):
            inner = zip(*values, strict=True)
            return type(first)([self._convert(one, number) for one in inner])
        if type(first) is int:
            return Literal(number) if number else _whole(values)
        if isinstance(first, torch.device):
            return Literal("device")
        if isinstance(first, torch.dtype | torch.memory_format | torch.layout):
            return Literal(str(first))
        return first

    def _flops(self, node: Any, library: str, results: Sequence[Tensor]) -> float:
        if not library:
            given = [one.meta["val"] for one in node.all_input_nodes]
            tensors = [one for value in given for one in _several(value)]
            return float(max([t.numel() for t in tensors] + [r.count for r in results], default=0))
        given = self._torch.fx.node.map_arg(node.args, lambda one: one.meta["val"])
        if library == "rnn":
            steps = given[0].numel() / given[0].shape[-1]
            return float(2 * steps * sum(one.numel() for one in given[2] if one.dim() == 2))
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            node.target(*given, **node.kwargs)
        return float(counter.get_total_flops())


def _name(node: Any) -> str:
    return str(node.target).split(".")[1] if "." in str(node.target) else node.name


def _library(node: Any) -> str:
    if node.op != "call_function" or node.target is operator.getitem:
        return ""
    name = _name(node)
    for word, starts in LIBRARIES.items():
        if name in _WHOLE if word == "matmul" else name.startswith(starts):
            return word
    return ""


def _several(value: Any) -> list[Any]:
    values = value if isinstance(value, tuple | list) else [value]
    return [one for one in values if hasattr(one, "shape")]


def _whole(values: Sequence[int]) -> int | Size:
    return values[0] if len({*values}) == 1 else Size(tuple(values))


def _number_text(value: Any) -> str:
    """Write numbers as Python reads them back."""
    if isinstance(value, list):
        return f"[{', '.join(map(_number_text, value))}]"
    text = repr(value)
    return f'float("{text}")' if text in ("inf", "-inf", "nan") else text
