"""Which of a problem's nodes stay in PyTorch, which become kernels, and what each is worth."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.analysis.roofline import peak_gflops
from tuner.device.recorded.recording import RecordedDeviceInfo
from tuner.extensions.draft.problems.graph import (
    LIBRARIES,
    Trace,
    computes,
    flops_of,
    is_constant,
    is_item,
    is_view,
    library_of,
    name_of,
    tensors_of,
)
from tuner.model.errors import InputError

# Of float32 it is what the benchmark's eager PyTorch may use.
_PEAKS = {"torch.float32": "tf32", "torch.float16": "fp16", "torch.bfloat16": "bf16"}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Cut:
    """A graph whose parts are calls of modules, by their names, and the parts' own graphs."""

    graph: Any
    parts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Worth:
    """What a node or a part costs at least, and what its nodes cost one by one (us)."""

    moved_bytes: int
    flops: float
    floor_us: float
    one_by_one_us: float


def kept_nodes(trace: Trace, keep: Sequence[str] | None) -> set[str]:
    """Name the nodes that stay in PyTorch: by `LIBRARIES`' words, operators' names or their own."""
    known = {node.name: {node.name, name_of(node), library_of(node)} for node in calls(trace.graph)}
    if keep is None:
        return {name for name, words in known.items() if words & {*LIBRARIES}}
    for one in keep:
        if one not in LIBRARIES and not any(one in words for words in known.values()):
            raise InputError(
                f"--keep names {one}, which the problem does not compute",
                remedy=f"{', '.join(LIBRARIES)}, or one of its nodes: {', '.join(known)}",
            )
    return {name for name, words in known.items() if words & {*keep}}


def cut_trace(trace: Trace, kept: set[str], given: Mapping[str, Sequence[str]]) -> Cut:
    """Make parts of what is not kept: the nodes of `given`, and what is connected of all others.

    Views and copies make no part. A part makes those that it reads itself, but for views that lie
    in order. The trace is used up. Raises `InputError` for parts that cannot be.
    """
    from torch.fx import GraphModule
    from torch.fx.passes.utils.fuser_utils import fuse_by_partitions
    from torch.nn import Module

    whole, nodes = GraphModule(Module(), trace.graph), {n.name: n for n in calls(trace.graph)}
    _check_given(given, nodes)
    pinned = [_complete(nodes[one] for one in names) for names in given.values()]
    whole.graph.eliminate_dead_code()
    try:
        whole = fuse_by_partitions(whole, [dict.fromkeys(part) for part in pinned], prefix="given_")
    except AssertionError as error:
        raise InputError(
            f"--part {', '.join(given)}: reads what is computed from its own results",
            remedy="name the nodes between as well, or leave out those before or after them",
        ) from error
    _carry_facts(whole)
    proposed = [dict.fromkeys(_complete(part)) for part in _propose(whole.graph, kept)]
    whole.graph.eliminate_dead_code()  # views that parts alone read, of which they have copies
    whole = fuse_by_partitions(whole, proposed, prefix="part_")
    _carry_facts(whole)
    whole.graph.eliminate_dead_code()
    parts, taken, names = dict[str, Any](), Counter[str](given), [*given]
    for node in [one for one in whole.graph.nodes if one.op == "call_module"]:
        kind, _, number = node.target.rpartition("_")
        inside = whole.get_submodule(node.target).graph
        name = names[int(number)] if kind == "given" else _part_name(inside, taken)
        node.target, parts[name] = name, inside
        node.args = tuple(one for one in node.args if not is_constant(one))  # it has its own
        for read in node.args:
            if not tensors_of(read)[0].is_contiguous():
                with whole.graph.inserting_before(node):
                    node.replace_input_with(read, whole.graph.call_method("contiguous", (read,)))
    return Cut(whole.graph, parts)


def _propose(graph: Any, kept: set[str]) -> list[list[Any]]:
    """Group what computes and is not kept: connected nodes with as many barriers before them.

    Barriers, kept nodes and given parts, are counted along the longest way: nothing in a group then
    waits for what waits for the group.
    """
    own = [node for node in calls(graph) if node.name not in kept and computes(node)]
    barriers = {n for n in graph.nodes if n.op == "call_module" or n.name in kept}
    moving = {node for node in calls(graph) if node not in barriers} - {*own}
    depth: dict[Any, int] = {}
    for node in graph.nodes:
        before = [depth[one] + (one in barriers) for one in node.all_input_nodes]
        depth[node] = max(before, default=0)
    for node in reversed(own):
        # With what reads it, not before: what is kept is written and read, and its inputs may be
        # twice as large.
        later = {depth[one] if one in own else -1 for one in _reach(node, "users", moving)}
        read = sum(map(_count, node.all_input_nodes))
        if len(later) == 1 and max(later) > depth[node] and read <= 2.1 * _count(node):
            depth[node] = max(later)
    group = {node: node for node in own}
    for node in own:  # in order, so that all that a node reads has its group
        for other in _reach(node, "all_input_nodes", moving):
            if other in group and depth[other] == depth[node]:
                old, new = group[node], group[other]
                group = {one: new if of is old else of for one, of in group.items()}
    return [[node for node in own if group[node] is of] for of in dict.fromkeys(group.values())]


def _reach(node: Any, way: str, moving: set[Any]) -> Iterator[Any]:
    """Go to the next nodes that are more than views and copies."""
    for one in getattr(node, way):
        yield from _reach(one, way, moving) if one in moving else [one]


def _complete(nodes: Iterable[Any]) -> list[Any]:
    """Add what takes one of several results, and copies of the views that a part makes itself."""
    part = dict.fromkeys(nodes)
    part |= dict.fromkeys(user for node in part for user in node.users if is_item(user))

    def is_own(read: Any) -> bool:
        if read in part or read.op != "call_function" or computes(read) or library_of(read):
            return False
        if is_item(read) and not is_view(read):
            return False
        ordered = is_view(read) and all(one.is_contiguous() for one in tensors_of(read))
        several = len(tensors_of(read)) > 1
        roots = [*_reach(read, "all_input_nodes", {*moved(read)})]
        roots = [root for root in roots if not is_constant(root)]
        return not ordered or several or not roots or any(root in part for root in roots)

    def moved(read: Any) -> Iterator[Any]:
        for one in read.all_input_nodes:
            if one not in part and one.op == "call_function" and not computes(one):
                yield one
                yield from moved(one)

    while True:
        views = [one for node in part for one in node.all_input_nodes if is_own(one)]
        if not views:
            break
        view = max(views)  # the last: those before it are found through it
        with view.graph.inserting_after(view):
            copy = view.graph.node_copy(view)
        for node in [user for user in view.users if user in part]:
            node.replace_input_with(view, copy)
        part[copy] = None
    return sorted(part)


def calls(graph: Any) -> Iterator[Any]:
    """Go through a graph's calls of operators."""
    return (node for node in graph.nodes if node.op == "call_function")


def _check_given(given: Mapping[str, Sequence[str]], nodes: Mapping[str, Any]) -> None:
    taken = set[str]()
    for part, names in given.items():
        if not _NAME.fullmatch(part) or part == "cut":
            raise InputError(f"--part {part}: a part's name is a kernel's, of letters and digits")
        for name in names:
            if name not in nodes or name in taken:
                why = "two parts" if name in taken else "no node of the problem"
                raise InputError(
                    f"--part {part} names {name}, which is of {why}",
                    remedy=f"its nodes: {', '.join(nodes)}",
                )
            taken.add(name)


def _carry_facts(whole: Any) -> None:
    """Let what parts give be known to what reads it."""
    for node in whole.graph.nodes:
        if node.op == "call_module":
            graph = whole.get_submodule(node.target).graph
            inputs = (one for one in graph.nodes if one.op == "placeholder")
            for read, own in zip(node.args, inputs, strict=True):
                own.meta |= read.meta
            results = results_of(graph)
            if len(results) == 1:
                node.meta |= results[0].meta
                continue
            for item in node.users:
                item.meta |= results[item.args[1]].meta


def _part_name(graph: Any, taken: Counter[str]) -> str:
    words = [
        "bias" if node.name.endswith("_bias") else name_of(node).strip("_")
        for node in calls(graph)
        if computes(node)
    ]
    words = [*dict.fromkeys(words)]
    name = "_".join(words if len(words) <= 3 else [*words[:2], words[-1]])
    found = name
    while taken[found]:
        taken[name] += 1
        found = f"{name}_{taken[name]}"
    taken[found] += 1
    return found


def results_of(graph: Any) -> list[Any]:
    """Give the nodes whose results a graph returns."""
    given = graph.output_node().args[0]
    return [*given] if isinstance(given, tuple | list) else [given]


class Rates:
    """What a GPU moves and computes at most."""

    def __init__(self, torch: Any, gpu: RecordedDeviceInfo) -> None:
        self._torch, self.gpu = torch, gpu

    def of_part(self, graph: Any) -> Worth:
        """Bound a part's time from below, computed at once and node by node."""
        moved = sum(_bytes(node) for node in results_of(graph))
        for node in graph.nodes:
            if node.op == "placeholder":
                whole, users = _bytes(node), [*node.users]
                seen = sum(map(_bytes, users))
                moved += min(whole, seen) if all(map(is_view, users)) else whole
        single = [self.of_node(node) for node in calls(graph)]
        flops = sum(one.flops for one in single)
        peak = "tf32" if any(map(library_of, graph.nodes)) else "fp32"
        floor = self._floor_us(moved, flops, peak)
        return Worth(moved, flops, floor, sum(one.one_by_one_us for one in single))

    def of_node(self, node: Any) -> Worth:
        """Bound a call's time from below."""
        if is_view(node) or is_item(node):
            return Worth(0, 0.0, 0.0, 0.0)
        moved = _bytes(node) + sum(map(_bytes, node.all_input_nodes))
        dtype = str(tensors_of(node)[0].dtype)
        flops = flops_of(self._torch, node)
        peak = _PEAKS.get(dtype, "fp32") if library_of(node) else "fp32"
        floor = self._floor_us(moved, flops, peak)
        return Worth(moved, flops, floor, floor)

    def _floor_us(self, moved: int, flops: float, peak: str) -> float:
        of = self.gpu.compute_capability, self.gpu.multiprocessors
        gflops = peak_gflops(*of, peak) or peak_gflops(*of, "fp32") or 1.0
        return max(moved / (self.gpu.streaming_gbps * 1e3), flops / (gflops * 1e3))


def _count(node: Any) -> int:
    return sum(one.numel() for one in tensors_of(node))


def _bytes(node: Any) -> int:
    """Count what a node's tensors take; what is expanded lies in memory once."""
    total = 0
    for one in tensors_of(node):
        count = one.element_size()
        for extent, stride in zip(one.shape, one.stride(), strict=True):
            count *= extent if stride else 1
        total += count
    return total
