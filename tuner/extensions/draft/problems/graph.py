"""A problem's `forward` as torch.export sees it: plain nodes, and not one tensor allocated."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
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


class Size(int):
    """A whole number that sizes of the problem change: its own, and that with each one doubled."""

    values: tuple[int, ...]

    def __new__(cls, values: Sequence[int]) -> Size:
        """Make it of what it is in each trace, that of the problem's own sizes first."""
        size = int.__new__(cls, values[0])
        size.values = tuple(values)
        return size


@dataclass(frozen=True, slots=True)
class Source:
    """An input of `forward`, a parameter, a buffer, or a constant of its text (`values`)."""

    kind: str
    target: str
    values: str = ""


class Trace:
    """torch.export's graph of a problem for some sizes, made simpler.

    Raises `KernelError` for what cannot be cut: control flow that depends on values, random
    numbers, inputs that are no tensors, writes into inputs or buffers.
    """

    def __init__(self, problem: BenchProblem, sizes: Sizes) -> None:
        self._problem, self.torch = problem, problem.torch
        from torch._subclasses.fake_tensor import FakeTensorMode

        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        posed = problem.at(sizes)
        with suppress(KernelError), self._fake:
            posed.model(wide=False)
        # What reads a number of a tensor while it is made has real weights instead.
        self.model = posed.model(wide=False)
        with self._fake:
            values, _ = posed.inputs()
        for name, value in values.items():
            if not (hasattr(value, "shape") or isinstance(value, NUMBERS)):
                raise self._refuse(f"its input `{name}` is a {type(value).__name__}")
        self.inputs = values
        exported = self._export(tuple(values.values()))
        self._signature, self.constants = exported.graph_signature, exported.constants
        self._tree, self.graph = exported.call_spec.out_spec, exported.graph
        self._name_sources()
        self._simplify(posed.averages(self.model))

    def _refuse(self, why: str, line: int | None = None) -> KernelError:
        return KernelError(
            f"cannot be cut: {why}",
            path=self._problem.path,
            line=line,
            remedy=f"tune it as a whole: tune {self._problem.path.name}",
        )

    def _export(self, inputs: tuple[Any, ...]) -> Any:
        torch = self.torch
        try:
            with torch.no_grad():
                exported = torch.export.export(self.model, inputs, strict=False)
                targets = [node.target for node in exported.graph.nodes]
                schemas = [target._schema for target in targets if hasattr(target, "_schema")]
                self.has_mode = any(_HAS_MODE.search(str(target)) for target in targets)
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
        aten, graph = self.torch.ops.aten, self.graph
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
            name, packet = name_of(node), getattr(node.target, "overloadpacket", None)
            if packet is None and node.target is not operator.getitem:
                raise self._refuse(f"its `forward` has control flow on values ({node.name})")
            if name == "as_strided":
                raise self._refuse("its `forward` says where numbers lie (as_strided)")
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
        if self.torch.Tag.nondeterministic_seeded not in tags:
            return
        names = [argument.name for argument in node.target._schema.arguments]
        given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        # Of attention and RNNs a rate that is not given is 0.
        rates = [given.get(one) for one in ("p", "dropout", "dropout_p") if one in names]
        if not rates or (any(rates) and given.get("train") is not False):
            raise KernelError(
                f"draws random numbers while it runs ({name_of(node)}), which no kernel can repeat",
                path=self._problem.path,
                remedy="draw them in get_inputs, or leave dropout and noise out (`self.eval()`)",
            )

    def split_bias(self, kept: set[str]) -> None:
        """Take out of kept convolutions a bias that what follows can add: cuDNN's takes a pass.

        A product's bias stays in its call, whose end adds it for nothing.
        """
        aten, graph = self.torch.ops.aten, self.graph
        for node in list(graph.nodes):
            follow = [one for one in node.users if one.op == "call_function"]
            computing = [n for n in follow if n.name not in kept and not is_view(n)]
            if node.name not in kept or library_of(node) != "conv" or not computing:
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
                wide.meta |= {**bias.meta, "val": bias.meta["val"].view(shape)}
                added.meta["val"] = value

    def skeleton(self) -> list[str]:
        """Write the graph without whole numbers: two that differ have no sizes in common."""
        map_arguments = self.torch.fx.node.map_aggregate
        return [
            f"{node.target}"
            + str(map_arguments((node.args, node.kwargs), lambda v: "_" if type(v) is int else v))
            + str([value.dim() for value in tensors_of(node)])
            for node in self.graph.nodes
        ]

    def compare_sizes(self, others: Sequence[Trace]) -> None:
        """Make a `Size` of each whole number that differs in graphs of other sizes."""

        def whole(*values: Any) -> Any:
            return Size(values) if type(values[0]) is int and len({*values}) > 1 else values[0]

        tree_map = self.torch.utils._pytree.tree_map
        for node, *same in zip(*(trace.graph.nodes for trace in (self, *others)), strict=True):
            given = [(tuple(one.args), dict(one.kwargs)) for one in (node, *same)]
            if node.op == "call_function":
                node.args, node.kwargs = tree_map(whole, *given)
            shapes = [one.shape for each in map(tensors_of, (node, *same)) for one in each[:1]]
            node.meta["name"] = node.name
            node.meta["shape"] = [whole(*extents) for extents in zip(*shapes, strict=True)]

    def nest(self, results: Sequence[Any]) -> Any:
        """Put results of the graph together as `forward` does."""
        return self.torch.utils._pytree.tree_unflatten([*results], self._tree)

    def _name_sources(self) -> None:
        kinds = {"PARAMETER": "parameter", "BUFFER": "buffer", "CONSTANT_TENSOR": "constant"}
        placeholders = [node for node in self.graph.nodes if node.op == "placeholder"]
        inputs = iter(self.inputs)
        for node, spec in zip(placeholders, self._signature.input_specs, strict=True):
            kind, values = kinds.get(spec.kind.name, "input"), ""
            target = next(inputs) if kind == "input" else str(spec.target)
            if kind == "constant":
                tensor = self.constants[target]
                if tensor.numel() > _MOST_CONSTANTS:
                    count = tensor.numel()
                    raise self._refuse(f"its `forward` makes a constant of {count} numbers")
                values = f"{_number_text(tensor.tolist())}, dtype={tensor.dtype}"
            node.meta["source"] = Source(kind, target, values)


def flops_of(torch: Any, node: Any) -> float:
    """Count operations: a library's own, else one for each number of the largest tensor."""
    if node.op != "call_function" or node.target is operator.getitem:
        return 0.0
    library, given = library_of(node), torch.fx.node.map_arg(node.args, lambda n: n.meta["val"])
    if not library:
        tensors = [one for n in (*node.all_input_nodes, node) for one in tensors_of(n)]
        return float(max((tensor.numel() for tensor in tensors), default=0))
    if library == "rnn":
        steps = given[0].numel() / given[0].shape[-1]
        return float(2 * steps * sum(one.numel() for one in given[2] if one.dim() == 2))
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        node.target(*given, **node.kwargs)
    return float(counter.get_total_flops())


def is_view(node: Any) -> bool:
    """Tell what costs nothing: a view of what lies in memory, or an item of several of them."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return is_view(node.args[0])
    if not node.all_input_nodes:  # zeros, arange
        return True
    returned, before = node.target._schema.returns, tensors_of(node.all_input_nodes[0])
    aliases = bool(returned) and (returned[0].alias_info or name_of(node) == "_unsafe_view")
    if not aliases or len(before) != 1:
        return False
    same = all(one.dtype == before[0].dtype for one in tensors_of(node))
    return same and (name_of(node) not in _COPIES or before[0].is_contiguous())


def is_constant(node: Any) -> bool:
    """Tell numbers of `forward`'s text, which are no argument of anything."""
    return node.op == "placeholder" and "source" in node.meta and bool(node.meta["source"].values)


def is_item(node: Any) -> bool:
    """Tell what takes one of a call's several results."""
    return node.target is operator.getitem


def computes(node: Any) -> bool:
    """Tell a call that is more than a view, a copy, or one of several results."""
    moves = is_view(node) or is_item(node)
    return node.op == "call_function" and not moves and name_of(node) not in _COPIES | _SAME


def name_of(node: Any) -> str:
    """Name a call's operator, such as `conv2d`."""
    return str(node.target).split(".")[1] if "." in str(node.target) else node.name


def library_of(node: Any) -> str:
    """Name the library whose work a call is, by the words of `LIBRARIES`; "" for none."""
    if node.op != "call_function" or node.target is operator.getitem:
        return ""
    name = name_of(node)
    for word, starts in LIBRARIES.items():
        if name in _WHOLE if word == "matmul" else name.startswith(starts):
            return word
    return ""


def tensors_of(node: Any) -> list[Any]:
    """Give the tensors without content that a node stands for."""
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else [value]
    return [one for one in values if hasattr(one, "shape")]


def _number_text(value: Any) -> str:
    """Write numbers as Python reads them back."""
    if isinstance(value, list):
        return f"[{', '.join(map(_number_text, value))}]"
    text = repr(value)
    return f'float("{text}")' if text in ("inf", "-inf", "nan") else text
