"""From a problem to a cut that gives what the problem gives: proposed, written, compared."""

from __future__ import annotations

import base64
import inspect
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tuner.device.problems import BenchProblem, Sizes
from tuner.device.recorded.recording import RecordedDeviceInfo
from tuner.device.reference import blamed_on
from tuner.device.torch_modes import tf32
from tuner.extensions.draft.problems.cut import (
    Rates,
    Worth,
    calls,
    cut_trace,
    kept_nodes,
    results_of,
)
from tuner.extensions.draft.problems.cut_text import Facts, inputs_of, part_text, whole_text
from tuner.extensions.draft.problems.graph import (
    LIBRARIES,
    Size,
    Source,
    Trace,
    computes,
    flops_of,
    is_view,
    library_of,
    name_of,
    tensors_of,
)
from tuner.model.errors import KernelError
from tuner.process.files import read_regular

LIMIT_S = 600.0
# For tracing again with other sizes: an RNN's steps are traced one by one, which takes a minute.
_TRACING_S = 60.0
_DRAWS = 3
# What is computed on this CPU to compare: the first sizes below the first pair, at most the second.
_ENOUGH = 512 << 20, 2e10
_MOST = 5 << 29, 2e11
# Of the largest number: the same operators on the same numbers differ by the order of sums alone.
_TOLERANCE = 1e-5
# So many numbers are compared at a time, for in float64 they take several times the memory.
_PIECE = 1 << 22
_TOLERANCE_16 = 1e-2
_MOST_PACKED = 100_000


@dataclass(frozen=True, slots=True)
class Step:
    """What one line of a proposal tells: a node that stays in PyTorch, or a part.

    `problem` is the file of a part without its ending: of another one that computes the same.
    """

    name: str
    problem: str
    nodes: tuple[str, ...]
    worth: Worth

    @property
    def is_part(self) -> bool:
        return bool(self.problem)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A cut to show and to write: `files` by name, `compared` how it was checked, "" if it wasn't.

    `biases` tells what adds each convolution's or product's bias.
    """

    steps: tuple[Step, ...]
    files: Mapping[str, str]
    compared: str
    biases: Mapping[str, str]
    gpu: str


def propose(
    path: Path,
    gpu: RecordedDeviceInfo,
    keep: Sequence[str] | None = None,
    given: Mapping[str, Sequence[str]] | None = None,
) -> Proposal:
    """Cut a problem; raise `KernelError` where it cannot be cut, or the cut changes results."""
    problem = _Problem(path, keep, given or {})
    cut, rates = problem.cut, Rates(problem.torch, gpu)
    bodies = {name: part_text(cut, name, problem.facts, alike=True) for name in cut.parts}
    first = {body: name for name, body in reversed(bodies.items())}
    uses = {name: first[body] for name, body in bodies.items()}
    files = {n: part_text(cut, n, problem.facts) for n in dict.fromkeys(uses.values())}
    steps = []
    for node in cut.graph.nodes:
        if node.op == "call_module":
            inside = [*calls(cut.parts[node.target])]
            worth = rates.of_part(cut.parts[node.target])
            names = tuple(one.name for one in inside)
            steps.append(Step(node.target, uses[node.target], names, worth))
        elif node.op == "call_function" and (computes(node) or library_of(node)):
            steps.append(Step(node.name, "", (name_of(node),), rates.of_node(node)))
    biases = problem.biases()
    named = {f"{name}.py": text for name, text in files.items()}
    named["cut.py"] = whole_text(cut, problem.trace, problem.facts, files, uses)
    return Proposal(tuple(steps), named, problem.compared, biases, gpu.name)


class _Problem:
    """A problem while it is cut."""

    def __init__(
        self, path: Path, keep: Sequence[str] | None, given: Mapping[str, Sequence[str]]
    ) -> None:
        self._path, self._keep, self._given = path, keep, given
        self._fake, self._real = BenchProblem(path), BenchProblem(path)
        self.torch = self._real.torch
        self._began_s = time.monotonic()
        self.trace = Trace(self._fake, {})
        self._trace_s = time.monotonic() - self._began_s
        pinned = {name for names in given.values() for name in names}
        self._kept = kept_nodes(self.trace, keep) - pinned
        if not self._kept:
            raise KernelError(
                f"has nothing for PyTorch's libraries ({', '.join(LIBRARIES)}): it is one kernel",
                path=path,
                remedy=f"tune it as a whole: tune {path.name}",
            )
        self.trace.split_bias(self._kept)
        self._skeleton = self.trace.skeleton()
        others = dict(self._trace_others())
        self._knobs = tuple(others)
        self.trace.compare_sizes([*others.values()])
        self._cost = _cost(self.trace)
        self._leading = {
            name: min(2, self._fake.knobs[name].value)
            for place, name in enumerate(self._knobs, 1)
            if any(
                isinstance(n, Size) and n.values[place] != n.values[0]
                for node in self.trace.graph.nodes
                if node.op == "placeholder" and node.meta["source"].kind == "input"
                for n in node.meta["shape"][:1]
            )
        }
        self.cut = cut_trace(self.trace, self._kept, given)
        if not self.cut.parts:
            raise KernelError(
                "leaves nothing for a kernel: PyTorch's libraries compute all of it",
                path=path,
                remedy="--keep less, or tune it as a whole",
            )
        self.facts = self._state_facts({})
        drawn, self.compared = self._compare()
        self.facts = self._state_facts(drawn)

    def _trace_others(self) -> Iterator[tuple[str, Trace]]:
        """Trace it with each size of its inputs doubled that it takes."""
        shapes = _shapes(self.trace.inputs)
        for name, knob in self._fake.knobs.items():
            if time.monotonic() - self._began_s + self._trace_s > _TRACING_S:
                return
            other = self._trace_at({name: 2 * knob.value})
            if other is not None and _shapes(other.inputs) != shapes:
                yield name, other

    def _trace_at(self, sizes: Sizes) -> Trace | None:
        """Trace it for other sizes; None where it does not take them, or is another graph then."""
        with suppress(KernelError):
            trace = Trace(self._fake, sizes)
            trace.split_bias(self._kept)
            return trace if trace.skeleton() == self._skeleton else None
        return None

    def _state_facts(self, drawn: Mapping[tuple[str, str], str]) -> Facts:
        positional, named = self._fake.at({}).constructor()
        bound = inspect.signature(type(self.trace.model)).bind(*positional, **named)
        text = read_regular(self._path).decode()
        return Facts(self._path.name, text, repr(bound.arguments), self._knobs, drawn)

    def biases(self) -> dict[str, str]:
        """Tell what adds the bias of each kept convolution and product."""
        within = {n.name: part for part, graph in self.cut.parts.items() for n in calls(graph)}
        found = {}
        for node in calls(self.cut.graph):
            read = [one.meta.get("source") for one in node.all_input_nodes]
            if (added := f"{node.name}_bias") in within:
                found[node.name] = within[added]
            elif library_of(node) in ("conv", "matmul") and any(
                one and one.target.endswith("bias") for one in read
            ):
                found[node.name] = "PyTorch"
        return found

    # --- compared ---

    def _compare(self) -> tuple[dict[tuple[str, str], str], str]:
        """Compare cut and problem where this CPU can; tell how each part's inputs are drawn."""
        wanted = [(part, node) for part, g in self.cut.parts.items() for node in inputs_of(g)]
        found = self._find_affordable()
        if found is None:
            return {(part, node.name): self._draw(node, None) for part, node in wanted}, ""
        sizes, trace = found
        trace.compare_sizes(())
        graph = self.torch.fx.Graph()  # cutting uses up its own
        graph.output(graph.graph_copy(trace.graph, {}))
        cut = cut_trace(trace, self._kept, self._given)
        facts = replace(self.facts, drawn={(part, n.name): "None" for part, n in wanted})
        files = {name: part_text(cut, name, facts) for name in cut.parts}
        names: dict[str, Any] = {"__name__": "cut"}
        text = whole_text(cut, trace, facts, files, {name: name for name in files})
        exec(compile(text, "<cut>", "exec"), names)  # noqa: S102
        posed = self._real.at(sizes)
        model = posed.model(wide=False)
        drawn: dict[tuple[str, str], str] = {}
        with self.torch.no_grad(), tf32(self.torch, allowed=False):
            for seed in range(_DRAWS):
                values, _ = posed.inputs(seed)
                known = self._interpret(trace, graph, model, values)
                for name, part in cut.parts.items():
                    read = [known[one.meta["name"]].contiguous() for one in inputs_of(part)]
                    results = [known[one.meta["name"]] for one in results_of(part)]
                    self._require_same(names["_cut_parts"][name](*read), results, f"part {name}")
                if not drawn:
                    drawn = {(p, n.name): self._draw(n, known[n.meta["name"]]) for p, n in wanted}
                del known
                with blamed_on(self._path, "`forward` fails"):
                    expected = model(*values.values())
                given = names["_cut_forward"](model, *values.values())
                self._require_same(given, expected, "the whole, though no part does,")
        own = ", ".join(f"{name} {size}" for name, size in sizes.items()) or "its own sizes"
        return drawn, f"{_DRAWS} draws of {own}"

    def _find_affordable(self) -> tuple[Sizes, Trace] | None:
        """Find sizes that this CPU computes in seconds: the problem's own, or smaller ones."""
        base = {name: self._fake.knobs[name].value for name in self._knobs}
        smaller = [
            {**{name: max(1, size // by) for name, size in base.items()}, **self._leading}
            for by in (2, 4, 8, 16)
        ]
        single = dict.fromkeys(self._leading, 1)
        best = None
        for sizes in ({}, self._leading, *smaller, single):
            if best is not None and sizes == single:
                break  # a single image is only better than none
            if not sizes and (self._cost[0] > _MOST[0] or self._cost[1] > _MOST[1]):
                continue
            trace = self._trace_at(sizes)
            if trace is None:
                continue
            held, flops = _cost(trace)
            if held <= _MOST[0] and flops <= _MOST[1]:
                best = sizes, trace
            if not self._knobs or (held <= _ENOUGH[0] and flops <= _ENOUGH[1]):
                break
        return best

    def _interpret(
        self, trace: Trace, graph: Any, model: Any, values: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Compute each node of a whole graph, by its name."""
        known: dict[str, Any] = {}
        weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        for node in graph.nodes:
            if node.op == "placeholder":
                source = node.meta["source"]
                held = {"input": values, "constant": trace.constants}.get(source.kind, weights)
                known[node.name] = held[source.target]
            elif node.op == "call_function":
                given = node.args, node.kwargs
                args, named = self.torch.fx.node.map_arg(given, lambda one: known[one.name])
                known[node.name] = node.target(*args, **named)
        return known

    def _require_same(self, found: Any, expected: Any, what: str) -> None:
        flat = self.torch.utils._pytree.tree_leaves
        for ours, theirs in zip(flat(found), flat(expected), strict=True):
            if not hasattr(theirs, "shape") or not theirs.numel():
                continue
            if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
                why = f"gives {ours.dtype} {tuple(ours.shape)}, not {tuple(theirs.shape)}"
                raise self._changed(f"{what} {why}")
            apart = largest = 0.0
            pieces = (each.flatten().split(_PIECE) for each in (ours, theirs))
            for pair in zip(*pieces, strict=True):
                one, other = (piece.double().nan_to_num() for piece in pair)
                usual = other[other.abs() < 1e300].abs()
                largest = max(largest, float(usual.amax()) if usual.numel() else 0.0)
                apart = max(apart, float((one - other).abs().max()))
            tolerance = _TOLERANCE_16 if theirs.element_size() < 4 else _TOLERANCE
            if not apart <= tolerance * largest:
                numbers = f"differs by {apart:.3g} where numbers go to {largest:.3g}"
                raise self._changed(f"{what} {numbers}")

    def _changed(self, what: str) -> KernelError:
        return KernelError(
            f"the cut changes results: {what}",
            path=self._path,
            remedy="`forward` may depend on what it did before, or on Python's state: cut "
            "elsewhere (--keep, --part), or tune it as a whole",
        )

    # --- what a part's inputs are drawn from ---

    def _draw(self, node: Any, value: Any) -> str:
        """Write how an input of a part is drawn; buffers are as the model has them."""
        source, tensor = node.meta.get("source"), node.meta["val"]
        if source is not None and source.kind == "buffer":
            return self._content(source)
        dtype = "" if tensor.dtype == self.torch.float32 else f", dtype={tensor.dtype}"
        if tensor.dtype == self.torch.bool:
            return "torch.rand({shape}) < 0.5"
        if not tensor.is_floating_point():
            low, high = (0, 1) if value is None else (int(value.min()), int(value.max()))
            return f"torch.randint({low}, {high + 1}, [{{shape}}]{dtype})"
        # what is never below 0 may stand under a root
        positive = value is not None and bool(value.min() >= 0) and bool(value.max() > 0)
        return f"torch.{'rand' if positive else 'randn'}({{shape}}{dtype})"

    @cached_property
    def _buffers(self) -> Mapping[str, Any]:
        return dict(self._real.at({}).model(wide=False).named_buffers())

    def _content(self, source: Source) -> str:
        value = self._buffers[source.target].detach().contiguous()
        dtype = value.dtype
        first = value.flatten()[0]
        if bool((value == first).all()):
            return f"torch.full([{{shape}}], {first.item()!r}, dtype={dtype})"
        raw = value.view(self.torch.uint8) if value.dim() else value.view(1).view(self.torch.uint8)
        packed = base64.b64encode(zlib.compress(raw.numpy().tobytes(), 9)).decode()
        if len(packed) > _MOST_PACKED:
            raise KernelError(
                f"a part reads its buffer {source.target}, of {value.numel()} numbers, which are "
                "too many to write into a problem",
                path=self._path,
                remedy="keep what reads it in PyTorch: --keep",
            )
        held = f'bytearray(zlib.decompress(base64.b64decode("{packed}")))'
        return f"torch.frombuffer({held}, dtype={dtype}).reshape({{shape}})"


def _shapes(inputs: Mapping[str, Any]) -> list[tuple[int, ...]]:
    return [tuple(one.shape) for one in inputs.values() if hasattr(one, "shape")]


def _cost(trace: Trace) -> tuple[int, float]:
    """Count the bytes of all that a graph holds, and its operations."""
    nodes = [node for node in trace.graph.nodes if not is_view(node)]
    held = sum(one.nbytes for node in nodes for one in tensors_of(node))
    flops = {node: flops_of(trace.torch, node) for node in nodes}
    # A CPU's transposed convolution writes each product of a filter's place down: 2 operations for
    # each of an image's channels are one number.
    for node in nodes:
        if name_of(node).startswith("conv_transpose"):
            image, filters = (tensors_of(one)[0] for one in node.all_input_nodes[:2])
            held += int(flops[node] / 2 / filters.shape[0]) * image.element_size()
    return held, sum(flops.values())
