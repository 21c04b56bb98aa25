"""Which of a problem's nodes stay in PyTorch, which become kernels, and what each is worth."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from tuner.analysis.roofline import peak_gflops
from tuner.device.recorded.recording import RecordedDeviceInfo
from tuner.extensions.draft.problems.graph import LIBRARIES, Graph, Node, Source, Tensor
from tuner.model.errors import InputError

_PEAKS = {"torch.float32": "tf32", "torch.float16": "fp16", "torch.bfloat16": "bf16"}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Part:
    """Nodes that become one kernel, in order; what they read, and what of them others read.

    `views` are those of them that PyTorch makes as well: what a kernel reads lies in order.
    """

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    views: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Worth:
    """What a node or a part costs at least, and what its nodes cost one by one (us)."""

    moved_bytes: int
    flops: float
    floor_us: float
    one_by_one_us: float


class Cut:
    """A graph with its parts; `steps` are nodes that PyTorch runs and parts, in their order."""

    def __init__(self, graph: Graph, parts: Sequence[Part]) -> None:
        self.graph, self.parts = graph, tuple(parts)
        of = {
            node.name: place
            for place, part in enumerate(parts)
            for node in part.nodes
            if node.name not in part.views
        }
        units: list[Node | Part] = [*parts, *(n for n in graph.nodes if n.name not in of)]
        of |= {node.name: n for n, node in enumerate(units) if isinstance(node, Node)}
        before: dict[int, set[int]] = {place: set() for place in range(len(units))}
        for place, unit in enumerate(units):
            read = unit.reads if isinstance(unit, Node) else unit.inputs
            before[place] = {of[one] for one in read if one in of}
        self.steps = [units[place] for place in TopologicalSorter(before).static_order()]

    def tensors(self) -> dict[str, Tensor]:
        """Give what each name holds; of several results a node's items have names of their own."""
        given = {name: source.tensor for name, source in self.graph.sources.items()}
        return given | {node.name: node.results[0] for node in self.graph.nodes}

    def source_of(self, name: str) -> Source | None:
        """Find the input or weight that something is, or is a view of."""
        views = {node.name: node.reads[0] for node in self.graph.nodes if node.view and node.reads}
        return self.graph.sources.get(views.get(name, name))


def kept_nodes(graph: Graph, keep: Sequence[str] | None) -> set[str]:
    """Name the nodes that stay in PyTorch: by `LIBRARIES`' words, operators' names or their own."""
    if keep is None:
        return {node.name for node in graph.nodes if node.library}
    names = {one for node in graph.nodes for one in (node.name, node.operator, node.library)}
    if unknown := [one for one in keep if one not in names and one not in LIBRARIES]:
        known = ", ".join(dict.fromkeys(node.name for node in graph.nodes))
        raise InputError(
            f"--keep names {unknown[0]}, which the problem does not compute",
            remedy=f"{', '.join(LIBRARIES)}, or one of its nodes: {known}",
        )
    return {n.name for n in graph.nodes if {n.name, n.operator, n.library} & {*keep}}


def cut_graph(graph: Graph, kept: set[str], given: Mapping[str, Sequence[str]]) -> Cut:
    """Make parts of the nodes that are not kept: those of `given`, and what is connected of others.

    Nodes are connected where as many libraries' calls in a row lie before them: no part then waits
    for what waits for it. Views at a part's edges cost nothing and stay in PyTorch. Raises
    `InputError` for parts that cannot be.
    """
    known = [node.name for node in graph.nodes]
    pinned: dict[str, str] = {}
    for part, names in given.items():
        if not _NAME.fullmatch(part) or part == "cut":
            raise InputError(f"--part {part}: a part's name is a kernel's, of letters and digits")
        for name in names:
            if name not in known or name in pinned:
                why = "two parts" if name in pinned else "no node of the problem"
                raise InputError(
                    f"--part {part} names {name}, which is of {why}",
                    remedy=f"its nodes: {', '.join(known)}",
                )
            pinned[name] = part
    nodes = {node.name: node for node in graph.nodes}
    # What takes one of several results belongs to what gives them.
    for node in graph.nodes:
        if node.call == "getitem" and node.reads[0] in pinned:
            pinned[node.name] = pinned[node.reads[0]]
        if node.call == "getitem" and node.reads[0] in kept:
            kept = kept | {node.name}
    own = [n.name for n in graph.nodes if n.name not in kept and n.name not in pinned]
    depth = _sink(nodes, own, _depths(nodes, kept, pinned))
    free = {*own}
    users = {name: [n.name for n in graph.nodes if name in n.reads] for name in known}

    def near(names: Sequence[str], name: str) -> list[str]:
        return [one for one in names if one in free and depth[one] == depth[name]]

    def is_edge(name: str) -> bool:
        node = nodes[name]
        before, after = near(node.reads, name), near(users[name], name)
        ordered = all(one.contiguous for one in node.results) and node.reads
        return node.view and (not after or (not before and bool(ordered)))

    while edges := [name for name in own if name in free and is_edge(name)]:
        free -= {*edges}
    group = {name: name for name in own if name in free}
    for name in group:  # in order, so that all that a node reads has its group
        for other in near(nodes[name].reads, name):
            old, new = group[name], group[other]
            group = {one: new if of == old else of for one, of in group.items()}
    groups: dict[str, list[str]] = {}
    for name, of in (*group.items(), *pinned.items()):
        groups.setdefault(f"/{of}" if name in pinned else of, []).append(name)
    working = {k: v for k, v in groups.items() if not all(nodes[n].moves for n in v)}
    parts, taken = [], Counter[str](given)
    for key, names in sorted(working.items(), key=lambda item: known.index(item[1][0])):
        inside = [nodes[name] for name in known if name in names]
        name = key[1:] if key[:1] == "/" else _part_name(inside, taken)
        parts.append(_part(graph, name, inside))
    try:
        return Cut(graph, parts)
    except CycleError as error:
        raise InputError(
            f"--part {', '.join(given)}: reads what is computed from its own results",
            remedy="name the nodes between as well, or leave out those before or after them",
        ) from error


def _depths(nodes: Mapping[str, Node], kept: set[str], pinned: Mapping[str, str]) -> dict[str, int]:
    """Count the kept nodes and given parts in a row before each node."""
    depth = dict.fromkeys(nodes, 0)

    def passes(one: str, name: str) -> bool:
        if nodes[name].call == "getitem":  # it is where what it takes from is
            return False
        return one in kept or (one in pinned and pinned.get(name) != pinned[one])

    for _ in nodes:  # a given part is as deep as its deepest node
        before = dict(depth)
        for name, node in nodes.items():
            deep = [depth[one] + passes(one, name) for one in node.reads if one in depth]
            depth[name] = max([depth[name], *deep])
        for part in {*pinned.values()}:
            inside = [name for name in pinned if pinned[name] == part]
            depth |= dict.fromkeys(inside, max(depth[name] for name in inside))
        if depth == before:
            break
    return depth


def _sink(
    nodes: Mapping[str, Node], own: Sequence[str], depth: Mapping[str, int]
) -> dict[str, int]:
    """Compute with what reads it, rather than before it, what saves memory's time there.

    A result that is kept is written and read: its inputs may be twice as large.
    """
    sunk, free = dict(depth), {*own}
    read_by: dict[str, list[str]] = {name: [] for name in nodes}
    for node in nodes.values():
        for one in node.reads:
            if one in read_by:
                read_by[one].append(node.name)
    for name in reversed(own):
        later = {sunk[one] if one in free else -1 for one in read_by[name]}
        read = sum(nodes[one].results[0].bytes for one in nodes[name].reads if one in nodes)
        if len(later) == 1 and (at := later.pop()) > sunk[name]:
            if read <= 2.1 * sum(one.bytes for one in nodes[name].results):
                sunk[name] = at
    return sunk


def _part_name(nodes: Sequence[Node], taken: Counter[str]) -> str:
    working = [n for n in nodes if not n.view and n.call != "getitem"]
    words = ["bias" if n.name.endswith("_bias") else n.operator.strip("_") for n in working]
    words = [*dict.fromkeys(words)]
    words = words if len(words) <= 3 else [words[0], words[1], words[-1]]
    name = "_".join(words)
    while True:
        taken[name] += 1
        found = name if taken[name] == 1 else f"{name}_{taken[name]}"
        if found == name or not taken[found]:
            return found


def _part(graph: Graph, name: str, own: Sequence[Node]) -> Part:
    by_name = {node.name: node for node in graph.nodes}
    inside = {node.name for node in own}
    outside = {one for node in graph.nodes if node.name not in inside for one in node.reads}
    outside |= {*references(graph.returns)}
    outputs = tuple(node.name for node in own if node.name in outside)
    constants = {one for one, source in graph.sources.items() if source.kind == "constant"}
    nodes, views = [*own], set[str]()
    while True:
        read = dict.fromkeys(one for node in nodes for one in node.reads)
        inputs = [one for one in read if one not in inside | views | constants]
        scattered = [by_name[one] for one in inputs if one in by_name and by_name[one].view]
        scattered = [node for node in scattered if not node.results[0].contiguous]
        if not scattered:
            return Part(name, tuple(nodes), tuple(inputs), outputs, frozenset(views))
        views |= {node.name for node in scattered}
        nodes = [node for node in graph.nodes if node.name in inside | views]


def references(value: object) -> Iterator[str]:
    """Name what a nested value refers to."""
    if isinstance(value, tuple | list):
        for one in value:
            yield from references(one)
    elif isinstance(value, Mapping):
        yield from references([*value.values()])
    elif hasattr(value, "name"):
        yield value.name


class Rates:
    """What a GPU moves and computes at most."""

    def __init__(self, gpu: RecordedDeviceInfo) -> None:
        self.gpu = gpu

    def worth_of(self, cut: Cut, step: Node | Part) -> Worth:
        """Bound a step's time from below, computed at once and node by node."""
        tensors = cut.tensors()
        if isinstance(step, Node):
            return self._of_node(step, tensors)
        moved = sum(tensors[one].bytes for one in step.outputs)
        for name in step.inputs:
            users = [node for node in step.nodes if name in node.reads]
            seen = sum(one.bytes for n in users for one in n.results)
            whole = tensors[name].bytes
            moved += min(whole, seen) if all(n.view for n in users) else whole
        single = [self._of_node(node, tensors) for node in step.nodes]
        flops = sum(one.flops for one in single)
        peak = "fp32" if not any(node.library for node in step.nodes) else "tf32"
        floor = self._floor_us(moved, flops, peak)
        return Worth(moved, flops, floor, sum(one.one_by_one_us for one in single))

    def _of_node(self, node: Node, tensors: Mapping[str, Tensor]) -> Worth:
        if node.view or node.call == "getitem":
            return Worth(0, 0.0, 0.0, 0.0)
        held = sum(one.bytes for one in node.results)
        moved = held + sum(tensors[one].bytes for one in {*node.reads})
        peak = _PEAKS.get(node.results[0].dtype, "fp32") if node.library else "fp32"
        floor = self._floor_us(moved, node.flops, peak)
        return Worth(moved, node.flops, floor, floor)

    def _floor_us(self, moved: int, flops: float, peak: str) -> float:
        gpu = self.gpu
        rate = peak_gflops(gpu.compute_capability, gpu.multiprocessors, peak) or peak_gflops(
            gpu.compute_capability, gpu.multiprocessors, "fp32"
        )
        return max(moved / (gpu.streaming_gbps * 1e3), flops / ((rate or 1.0) * 1e3))
