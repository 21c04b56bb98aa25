"""The innermost loops of machine code: back edges of its flow graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain, pairwise

from tuner.profiler.listing import Function, Instruction

_BRANCHES = frozenset({"BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU"})
# With these nothing comes after; a call comes back.
_ENDS = frozenset({"EXIT", "RET", "KILL"})
# Branches with these go both ways although no condition is written.
_FORKS = frozenset({"DIV", "CONV"})


@dataclass(frozen=True, slots=True)
class _Graph:
    """Straight pieces of code, where each goes on, where each is reached from, by number.

    `roots` are reached from elsewhere: the start, and functions that are called.
    """

    blocks: Sequence[Sequence[Instruction]]
    after: Sequence[Sequence[int]]
    before: Sequence[Sequence[int]]
    roots: frozenset[int]


def innermost_loops(function: Function) -> list[frozenset[int]]:
    """List the loops that hold no other, each as the offsets of its instructions.

    A jump back from code that the compiler put behind the end, for what happens rarely, is none.
    """
    graph = _graph(function)
    dominators = _dominators(graph)
    loops: dict[int, set[int]] = {}
    for source, targets in enumerate(graph.after):
        for header in targets:
            if dominators[source] >> header & 1 and not _trap(graph.blocks[source], header, source):
                loops.setdefault(header, set()).update(_body(graph, header, source))
    headers = loops.keys()
    innermost = [body for header, body in loops.items() if body & headers == {header}]
    return [frozenset(one.offset for n in body for one in graph.blocks[n]) for body in innermost]


def _trap(block: Sequence[Instruction], header: int, source: int) -> bool:
    """Tell the branch to itself behind the end of every function."""
    return header == source and len(block) == 1 and not block[0].predicate


def _graph(function: Function) -> _Graph:
    blocks = list(_blocks(function))
    number = {block[0].offset: n for n, block in enumerate(blocks)}
    places = {label: number[at] for label, at in function.labels.items() if at in number}
    after = []
    for n, block in enumerate(blocks):
        last = block[-1]
        onward = [places[name] for name in _jumps(last) if name in places]
        if _falls_through(last) and n + 1 < len(blocks):
            onward.append(n + 1)
        after.append(onward)
    before: list[list[int]] = [[] for _ in blocks]
    for n, onward in enumerate(after):
        for target in onward:
            before[target].append(n)
    calls = (one for one in function.instructions if one.family == "CALL")
    called = {places[name] for one in calls for name in one.targets if name in places}
    lone = {n for n, sources in enumerate(before) if not sources}
    return _Graph(blocks, after, before, frozenset({0} | called | lone))


def _blocks(function: Function) -> Iterator[list[Instruction]]:
    """Cut the code where something jumps to or from; not every label is jumped to."""
    named = set(chain.from_iterable(one.targets for one in function.instructions))
    starts = {offset for label, offset in function.labels.items() if label in named}
    for one, following in pairwise(function.instructions):
        if one.family in _BRANCHES | _ENDS:
            starts.add(following.offset)
    block: list[Instruction] = []
    for one in function.instructions:
        if block and one.offset in starts:
            yield block
            block = []
        block.append(one)
    if block:
        yield block


def _jumps(last: Instruction) -> Sequence[str]:
    return last.targets if last.family in _BRANCHES else ()


def _falls_through(last: Instruction) -> bool:
    if last.predicate:
        return True
    if last.family in _BRANCHES:
        # `BRA !P2, label` and `BRA.U UP0, label` have the condition among the operands.
        condition = last.operands.partition("`")[0].strip(" ,")
        conditional = last.family == "BRA" and bool(condition)
        return conditional or bool(_FORKS.intersection(last.modifiers))
    return last.family not in _ENDS


def _dominators(graph: _Graph) -> Sequence[int]:
    """Find for each block those that every way to it leads through, as bits of a number."""
    everything = (1 << len(graph.blocks)) - 1
    found = [1 << n if n in graph.roots else everything for n in range(len(graph.blocks))]
    changed = True
    while changed:
        changed = False
        for n, sources in enumerate(graph.before):
            if n in graph.roots:
                continue
            through = reduce(int.__and__, (found[one] for one in sources)) | 1 << n
            if through != found[n]:
                found[n], changed = through, True
    return found


def _body(graph: _Graph, header: int, source: int) -> set[int]:
    """Collect what reaches the back edge's source without passing the header."""
    body, waiting = {header}, [source]
    while waiting:
        block = waiting.pop()
        if block not in body:
            body.add(block)
            waiting += graph.before[block]
    return body
