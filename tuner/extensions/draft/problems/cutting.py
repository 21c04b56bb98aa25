"""From a problem to a cut that gives what the problem gives: proposed, written, compared."""

from __future__ import annotations

import base64
import inspect
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from tuner.device.problems import BenchProblem, Sizes
from tuner.device.recorded.recording import RecordedDeviceInfo
from tuner.device.reference import blamed_on
from tuner.device.torch_reference import tf32
from tuner.extensions.draft.problems.cut import Part, Rates, Worth, cut_graph, kept_nodes
from tuner.extensions.draft.problems.cut_text import Facts, part_text, whole_text
from tuner.extensions.draft.problems.graph import LIBRARIES, Graph, Source, Trace
from tuner.extensions.draft.problems.statement import ProblemReader
from tuner.model.errors import KernelError
from tuner.process.files import read_regular

LIMIT_S = 240.0
# For tracing again with other sizes: an RNN's steps are traced one by one, which takes a minute.
_TRACING_S = 60.0
_DRAWS = 3
# What is computed on this CPU to compare: the first sizes below the first pair, at most the second.
_ENOUGH = 512 << 20, 2e10
_MOST = 5 << 29, 2e11
# Of the largest number: the same operators on the same numbers differ by the order of sums alone.
_TOLERANCE = 1e-5
_TOLERANCE_16 = 1e-2
_MOST_PACKED = 100_000


@dataclass(frozen=True, slots=True)
class Step:
    """What one line of a proposal tells: a node that stays in PyTorch, or a part."""

    name: str
    is_part: bool
    operators: tuple[str, ...]
    nodes: tuple[str, ...]
    problem: str
    worth: Worth


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


class CutReader(ProblemReader):
    """What cuts a problem in a process of its own."""

    def read_here(self, path: Path, *asked: Any) -> Proposal:
        return propose(path, *asked)


def propose(
    path: Path,
    gpu: RecordedDeviceInfo,
    keep: Sequence[str] | None = None,
    given: Mapping[str, Sequence[str]] | None = None,
) -> Proposal:
    """Cut a problem; raise `KernelError` where it cannot be cut, or the cut changes results."""
    problem, rates = _Problem(path, keep, given or {}), Rates(gpu)
    cut = problem.cut
    bodies = {part.name: part_text(cut, part, problem.facts, alike=True) for part in cut.parts}
    first = {body: name for name, body in reversed(bodies.items())}
    uses = {name: first[body] for name, body in bodies.items()}
    files = {
        part.name: part_text(cut, part, problem.facts)
        for part in cut.parts
        if uses[part.name] == part.name
    }
    digest = sha256(repr(files).encode()).hexdigest()[:10]
    whole = whole_text(cut, problem.facts, files, uses, digest)
    steps = []
    for step in cut.steps:
        nodes = step.nodes if isinstance(step, Part) else (step,)
        if isinstance(step, Part) or not step.moves:
            steps.append(
                Step(
                    step.name,
                    isinstance(step, Part),
                    tuple(node.operator for node in nodes if not node.moves),
                    tuple(node.name for node in nodes),
                    uses.get(step.name, ""),
                    rates.worth_of(cut, step),
                )
            )
    named = {**{f"{name}.py": text for name, text in files.items()}, "cut.py": whole}
    return Proposal(tuple(steps), named, problem.compared, problem.biases(), gpu.name)


class _Problem:
    """A problem while it is cut."""

    def __init__(
        self, path: Path, keep: Sequence[str] | None, given: Mapping[str, Sequence[str]]
    ) -> None:
        self._path, self._keep, self._given = path, keep, given
        self._fake, self._real = BenchProblem(path), BenchProblem(path)
        self._torch = self._real.torch
        self._began_s = time.monotonic()
        base = Trace(self._fake, {})
        self._base_s = time.monotonic() - self._began_s
        taken = {name for names in given.values() for name in names}
        self._kept = kept_nodes(base.read(), keep) - taken
        if not self._kept:
            raise KernelError(
                f"has nothing for PyTorch's libraries ({', '.join(LIBRARIES)}): it is one kernel",
                path=path,
                remedy=f"tune it as a whole: tune {path.name}",
            )
        base.split_bias(self._kept)
        others = dict(self._others(base))
        self._knobs = tuple(others)
        self.graph = base.read([*others.values()])
        self._base, self.cut = base, cut_graph(self.graph, self._kept, given)
        if not self.cut.parts:
            raise KernelError(
                "leaves nothing for a kernel: PyTorch's libraries compute all of it",
                path=path,
                remedy="--keep less, or tune it as a whole",
            )
        drawn, self.compared = self._compare()
        self.facts = self._facts(base, drawn)

    def _others(self, base: Trace) -> Iterator[tuple[str, Trace]]:
        """Trace it with each size of its inputs doubled that it takes."""
        skeleton, shapes = base.skeleton(), _shapes(base.inputs)
        for name, knob in self._fake.knobs.items():
            if time.monotonic() - self._began_s + self._base_s > _TRACING_S:
                return
            with suppress(KernelError):
                other = Trace(self._fake, {name: 2 * knob.value})
                other.split_bias(self._kept)
                if _shapes(other.inputs) != shapes and other.skeleton() == skeleton:
                    yield name, other

    def _facts(self, trace: Trace, drawn: Mapping[str, str]) -> Facts:
        bound = inspect.signature(type(trace.model).__init__)
        positional, named = self._fake.at({}).constructor()
        made = bound.bind(None, *positional, **named)
        made.arguments.pop(next(iter(made.arguments)))
        shapes = [
            f"({tuple(one.shape)}, {one.dtype})" if hasattr(one, "shape") else repr(one)
            for one in trace.inputs.values()
        ]
        text = read_regular(self._path).decode()
        return Facts(
            self._path.name,
            text,
            repr(made.arguments),
            tuple(trace.inputs),
            f"[{', '.join(shapes)}]",
            self._knobs,
            drawn,
        )

    def biases(self) -> dict[str, str]:
        """Tell what adds the bias of each kept convolution and product."""
        within = {node.name: part.name for part in self.cut.parts for node in part.nodes}
        found = {}
        for node in self.graph.nodes:
            weights = [one for one in node.reads if one in self.graph.sources]
            biased = any(self.graph.sources[one].target.endswith("bias") for one in weights)
            if f"{node.name}_bias" in within:
                found[node.name] = within[f"{node.name}_bias"]
            elif node.library in ("conv", "matmul") and biased:
                found[node.name] = "PyTorch"
        return found

    # --- compared ---

    def _compare(self) -> tuple[dict[str, str], str]:
        """Compare cut and problem where this CPU can; tell how each part's inputs are drawn."""
        found = self._affordable()
        wanted = {one for part in self.cut.parts for one in part.inputs}
        if found is None:
            return {name: self._draw(name, None) for name in wanted}, ""
        sizes, trace = found
        cut = cut_graph(trace.read(), self._kept, self._given)
        facts = self._facts(trace, dict.fromkeys(wanted, "None"))
        files = {part.name: part_text(cut, part, facts) for part in cut.parts}
        uses = {name: name for name in files}
        whole = _module("cut", whole_text(cut, facts, files, uses, "compared"))
        posed = self._real.at(sizes)
        model = posed.model(wide=False)
        drawn: dict[str, str] = {}
        with self._torch.no_grad(), tf32(self._torch, allowed=False):
            for seed in range(_DRAWS):
                values, _ = posed.inputs(seed)
                known = self._interpret(trace, cut.graph, model, values)
                for part in cut.parts:
                    read = [known[one].contiguous() for one in part.inputs]
                    with blamed_on(self._path, f"part {part.name} fails"):
                        given = whole["_cut_parts"][part.name](*read)
                    self._require_same(
                        given if isinstance(given, tuple) else (given,),
                        tuple(known[one] for one in part.outputs),
                        f"part {part.name}",
                    )
                if not drawn:
                    drawn = {name: self._draw(name, known[name]) for name in wanted}
                del known
                with blamed_on(self._path, "`forward` fails"):
                    expected = model(*values.values())
                    given = whole["_cut_forward"](model, *values.values())
                self._require_same(given, expected, "the whole, though no part does,")
        own = ", ".join(f"{name} {size}" for name, size in sizes.items()) or "its own sizes"
        return drawn, f"{_DRAWS} draws of {own}"

    def _affordable(self) -> tuple[Sizes, Trace] | None:
        """Find sizes that this CPU computes in seconds: the problem's own, or smaller ones."""
        base = {name: self._fake.knobs[name].value for name in self._knobs}
        inputs = [one for one in self.graph.sources.values() if one.kind == "input"]
        leading = [one.tensor.shape[0] for one in inputs if one.tensor.shape]
        first = {
            name: min(2, base[name])
            for place, name in enumerate(self._knobs, 1)
            if any(not isinstance(n, int) and n.values[place] != n.values[0] for n in leading)
        }
        smaller = [
            {**{name: max(1, size // by) for name, size in base.items()}, **first}
            for by in (2, 4, 8, 16)
        ]
        skeleton, best = self._base.skeleton(), None
        for sizes in ({}, first, *smaller):
            with suppress(KernelError):
                trace = self._base if not sizes else Trace(self._fake, sizes)
                if sizes:
                    trace.split_bias(self._kept)
                if trace.skeleton() != skeleton:
                    continue
                held, flops = _cost(trace.read())
                if held <= _MOST[0] and flops <= _MOST[1]:
                    best = sizes, trace
                    if held <= _ENOUGH[0] and flops <= _ENOUGH[1]:
                        return best
            if not self._knobs:
                break
        return best

    def _interpret(
        self, trace: Trace, graph: Graph, model: Any, values: Mapping[str, Any]
    ) -> dict[str, Any]:
        known: dict[str, Any] = {}
        weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        for name, source in graph.sources.items():
            held = {"input": values, "constant": trace.constants}.get(source.kind, weights)
            known[name] = held[source.target]
        replaced = self._torch.fx.node.map_arg
        for node in trace.graph.nodes:
            if node.op == "call_function":
                args = replaced(node.args, lambda one: known[one.name])
                known[node.name] = node.target(
                    *args, **replaced(node.kwargs, lambda n: known[n.name])
                )
        return known

    def _require_same(self, found: Any, expected: Any, what: str) -> None:
        flat = self._torch.utils._pytree.tree_leaves
        for ours, theirs in zip(flat(found), flat(expected), strict=True):
            if not hasattr(theirs, "shape"):
                continue
            if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
                why = f"gives {ours.dtype} {tuple(ours.shape)}, not {tuple(theirs.shape)}"
                raise self._changed(f"{what} {why}")
            if not theirs.numel():
                continue
            one, other = ours.double().nan_to_num(), theirs.double().nan_to_num()
            largest = float(other[other.abs() < 1e300].abs().max()) if other.numel() else 0.0
            apart = float((one - other).abs().max())
            small = theirs.element_size() < 4
            if not apart <= (_TOLERANCE_16 if small else _TOLERANCE) * largest:
                raise self._changed(
                    f"{what} differs by {apart:.3g} where numbers go to {largest:.3g}"
                )

    def _changed(self, what: str) -> KernelError:
        return KernelError(
            f"the cut changes results: {what}",
            path=self._path,
            remedy="`forward` may depend on what it did before, or on Python's state; cut elsewhere "
            "(--keep, --part), or tune it as a whole",
        )

    # --- what a part's inputs are drawn from ---

    def _draw(self, name: str, value: Any) -> str:
        """Write how an input of a part is drawn; buffers are as the model has them."""
        source = self.graph.sources.get(name)
        if source is not None and source.kind == "buffer":
            return self._content(source)
        tensor = self.cut.tensors()[name]
        dtype = "" if tensor.dtype == "torch.float32" else f", dtype={tensor.dtype}"
        if tensor.dtype == "torch.bool":
            return "torch.rand({shape}) < 0.5"
        if not tensor.dtype.startswith(("torch.float", "torch.bfloat")):
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
        dtype = source.tensor.dtype
        first = value.flatten()[0]
        if bool((value == first).all()):
            return f"torch.full([{{shape}}], {first.item()!r}, dtype={dtype})"
        raw = (
            value.view(self._torch.uint8) if value.dim() else value.view(1).view(self._torch.uint8)
        )
        packed = base64.b64encode(zlib.compress(raw.numpy().tobytes(), 9)).decode()
        if len(packed) > _MOST_PACKED:
            raise KernelError(
                f"a part reads its buffer {source.target}, of {value.numel()} numbers, which are too "
                "many to write into a problem",
                path=self._path,
                remedy="keep what reads it in PyTorch: --keep",
            )
        held = f'bytearray(zlib.decompress(base64.b64decode("{packed}")))'
        return f"torch.frombuffer({held}, dtype={dtype}).reshape({{shape}})"


def _shapes(inputs: Mapping[str, Any]) -> list[tuple[int, ...]]:
    return [tuple(one.shape) for one in inputs.values() if hasattr(one, "shape")]


def _cost(graph: Graph) -> tuple[int, float]:
    """Count the bytes of all that a graph holds, and its operations."""
    held = sum(source.tensor.bytes for source in graph.sources.values())
    held += sum(one.bytes for node in graph.nodes if not node.view for one in node.results)
    return held, sum(node.flops for node in graph.nodes)


def _module(name: str, text: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": name}
    exec(compile(text, f"<{name}>", "exec"), names)  # noqa: S102
    return names
