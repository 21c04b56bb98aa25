"""Machine code, counted: instructions by class, widths of accesses, loops, template lines."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from itertools import chain, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from tuner.analysis.base import INSTRUCTION_CLASSES, OTHER, MachineCode
from tuner.compiler.command import candidates, executable, list_pip_paths

# How the compiler names the source: equal to `compiler.includes.UNIT_NAME`.
UNIT = "kernel.cu"

_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^,\s]+)")
_OTHER_SECTION = re.compile(r"^\s*\.section\s")
_ENTRY = re.compile(r'^\s*\.other\s+([^,\s]+),@"[^"]*STO_CUDA_ENTRY')
_FILE = re.compile(r'^\s*//## File "([^"]*)", line (\d+)')
_LABEL = re.compile(r"^([^\s:/][^\s:]*):\s*$")
_INSTRUCTION = re.compile(
    r"^\s+/\*(?P<offset>[0-9a-f]+)\*/\s+"
    r"(?:@(?P<predicate>!?\w+)\s+)?(?P<opcode>[A-Z][\w.]*)(?P<operands>[^;]*);"
)
_FUNCTION = re.compile(r"^\s*\.type\s")
_TARGET = re.compile(r"`\(([^)\s]+)\)")
_INDIRECT = re.compile(r'"BRANCH_TARGETS ([^"]*)"')


@dataclass(frozen=True, slots=True)
class Instruction:
    """One machine instruction: `LDG.E.128 R4, [R2.64]` at an offset in bytes.

    `targets` are the labels that it names, `line` the innermost line of the compiled source that
    it came from, None where the compiler didn't say.
    """

    offset: int
    opcode: str
    operands: str = ""
    predicate: str = ""
    targets: tuple[str, ...] = ()
    line: int | None = None

    @property
    def family(self) -> str:
        """The opcode without its modifiers, `LDG`."""
        return self.opcode.partition(".")[0]

    @property
    def modifiers(self) -> tuple[str, ...]:
        """What follows it, `("E", "128")`."""
        return tuple(self.opcode.split(".")[1:])


@dataclass(slots=True)
class Function:
    """The code of one section: a kernel (`entry`) with what was placed beside it, or a function.

    `labels` are the places that instructions name, as offsets.
    """

    name: str
    entry: bool = False
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


def read(text: str) -> Mapping[str, Function]:
    functions: dict[str, Function] = {}
    current: Function | None = None
    places: list[tuple[str, int]] = []
    waiting: list[str] = []
    line: int | None = None
    for row in text.splitlines():
        if match := _INSTRUCTION.match(row):
            if current is None:
                continue
            if places:
                # The first places are those of inlined functions of headers.
                own = (number for path, number in places if path.rpartition("/")[2] == UNIT)
                line, places = next(own, None), []
            offset, operands = int(match["offset"], 16), match["operands"].partition("(*")[0]
            indirect = _INDIRECT.search(match["operands"])
            named = indirect[1].split(",") if indirect else _TARGET.findall(operands)
            predicate, opcode = match["predicate"] or "", match["opcode"]
            current.instructions.append(
                Instruction(offset, opcode, operands.strip(), predicate, tuple(named), line)
            )
            current.labels |= dict.fromkeys(waiting, offset)
            waiting = []
        elif match := _FILE.match(row):
            places.append((match[1], int(match[2])))
        elif _FUNCTION.match(row):
            line = None  # what the compiler adds, such as a slow division, has no lines
        elif match := _SECTION.match(row):
            current = functions.setdefault(match[1], Function(match[1]))
            places, waiting, line = [], [], None
        elif _OTHER_SECTION.match(row):
            current = None
        elif current is not None and (match := _ENTRY.match(row)):
            current.entry = True
        elif match := _LABEL.match(row):
            waiting.append(match[1])
    return functions


# A predicate that is always true.
ALWAYS = frozenset({"", "PT", "UPT"})
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
            block = graph.blocks[source]
            # Behind the end of every function is a branch to itself.
            trap = header == source and len(block) == 1 and not block[0].predicate
            if dominators[source] >> header & 1 and not trap:
                loops.setdefault(header, set()).update(_body(graph, header, source))
    headers = loops.keys()
    innermost = [body for header, body in loops.items() if body & headers == {header}]
    return [frozenset(i.offset for n in body for i in graph.blocks[n]) for body in innermost]


def _graph(function: Function) -> _Graph:
    blocks = list(_blocks(function))
    number = {block[0].offset: n for n, block in enumerate(blocks)}
    places = {label: number[at] for label, at in function.labels.items() if at in number}
    after = []
    for n, block in enumerate(blocks):
        last = block[-1]
        jumps = last.targets if last.family in _BRANCHES else ()
        onward = [places[name] for name in jumps if name in places]
        if falls_through(last) and n + 1 < len(blocks):
            onward.append(n + 1)
        after.append(onward)
    before: list[list[int]] = [[] for _ in blocks]
    for n, onward in enumerate(after):
        for target in onward:
            before[target].append(n)
    calls = (instruction for instruction in function.instructions if instruction.family == "CALL")
    called = {places[name] for call in calls for name in call.targets if name in places}
    lone = {n for n, sources in enumerate(before) if not sources}
    return _Graph(blocks, after, before, frozenset({0} | called | lone))


def _blocks(function: Function) -> Iterator[list[Instruction]]:
    """Cut the code where something jumps to or from; not every label is jumped to."""
    named = set(chain.from_iterable(instruction.targets for instruction in function.instructions))
    starts = {offset for label, offset in function.labels.items() if label in named}
    for instruction, following in pairwise(function.instructions):
        if instruction.family in _BRANCHES | _ENDS:
            starts.add(following.offset)
    block: list[Instruction] = []
    for instruction in function.instructions:
        if block and instruction.offset in starts:
            yield block
            block = []
        block.append(instruction)
    if block:
        yield block


def falls_through(instruction: Instruction) -> bool:
    """Whether the next instruction may follow; what jumps on a condition may have it as operand."""
    if instruction.predicate not in ALWAYS or _FORKS.intersection(instruction.modifiers):
        return True
    if instruction.family in ("BRA", "JMP"):
        # `BRA !P2, label`, `BRA.U UP0, label` and `BRA.DIV UR4, label` go both ways.
        return bool(instruction.operands.partition("`")[0].strip(" ,"))
    return instruction.family not in _ENDS | _BRANCHES


def _dominators(graph: _Graph) -> Sequence[int]:
    """Find for each block those that every way to it leads through, as bits of a number."""
    everything = (1 << len(graph.blocks)) - 1
    dominating = [1 << n if n in graph.roots else everything for n in range(len(graph.blocks))]
    changed = True
    while changed:
        changed = False
        for n, sources in enumerate(graph.before):
            if n in graph.roots:
                continue
            through = reduce(int.__and__, (dominating[block] for block in sources)) | 1 << n
            if through != dominating[n]:
                dominating[n], changed = through, True
    return dominating


def _body(graph: _Graph, header: int, source: int) -> set[int]:
    body, waiting = {header}, [source]
    while waiting:
        block = waiting.pop()
        if block not in body:
            body.add(block)
            waiting += graph.before[block]
    return body


_PATTERNS = [(name, re.compile(stated["names"])) for name, stated in INSTRUCTION_CLASSES.items()]
# Written as arithmetic, to move a value or to load a constant on another pipe.
_MOVES = re.compile(r"IMAD\.MOV\b")
_CONSTANT = re.compile(r"R\d+, -RZ, RZ, ")
# False whatever comes: for a thread, and for a whole warp.
_NEVER = frozenset({"!PT", "!UPT"})
_LOADS = frozenset({"global_load", "generic_load", "async_copy"})
_STORES = frozenset({"global_store", "generic_store"})
_BITS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}


def codes(
    text: str,
    kernels: Mapping[str, str],
    lines: Sequence[int],
    executed: Mapping[str, Mapping[int, int]] | None = None,
) -> tuple[MachineCode, ...]:
    """Count the kernels of a disassembler's text, in the order of `kernels`.

    `kernels` maps names to symbols; line i + 1 of the source came from line `lines[i]` of the
    template. Functions that a kernel calls count as its own. `executed` counts by a kernel's name
    how often warps executed the instruction at an offset. Empty where a kernel isn't there.
    """
    counted = executed or {}
    functions = read(text)
    if not all(symbol in functions for symbol in kernels.values()):
        return ()
    return tuple(
        _code(
            name,
            [functions[called] for called in _list_callees(functions, symbol)],
            lines,
            counted.get(name, {}),
        )
        for name, symbol in kernels.items()
    )


def opcodes_by_line(text: str, symbols: Iterable[str]) -> Mapping[int, Counter[str]]:
    """Count the opcodes that each line of the compiled source became, in kernels by their symbols.

    Functions that a kernel calls count as its own, what inlines a line of a header as the line that
    it was inlined into.
    """
    functions = read(text)
    called = (_list_callees(functions, symbol) for symbol in symbols if symbol in functions)
    by_line: dict[int, Counter[str]] = {}
    for name in dict.fromkeys(chain.from_iterable(called)):
        for instruction in _working(functions[name]):
            if instruction.line is not None:
                by_line.setdefault(instruction.line, Counter())[instruction.opcode] += 1
    return by_line


def hot_lines(
    text: str, symbol: str, samples: Mapping[int, int], lines: Sequence[int]
) -> tuple[tuple[int, float], ...]:
    """Give the template's lines with their share of the samples taken at a kernel's offsets."""
    function = read(text).get(symbol)
    by_line: Counter[int] = Counter()
    for instruction in function.instructions if function else ():
        if (line := _template_line(instruction, lines)) is not None:
            by_line[line] += samples.get(instruction.offset, 0)
    total = sum(samples.values())
    return tuple((line, count / total) for line, count in by_line.most_common() if count)


def class_of(instruction: Instruction) -> str:
    if _MOVES.match(instruction.opcode):
        return "move"
    if instruction.family == "HFMA2" and _CONSTANT.match(instruction.operands):
        return "move"
    matching = (name for name, pattern in _PATTERNS if pattern.fullmatch(instruction.family))
    return next(matching, OTHER)


def bits_of(instruction: Instruction) -> int:
    """Read the width of a memory access; 32 is what isn't written."""
    return next((_BITS[text] for text in instruction.modifiers if text in _BITS), 32)


def _list_callees(functions: Mapping[str, Function], symbol: str) -> list[str]:
    """List a function and those with sections of their own that it calls, directly or not."""
    reached = [symbol]
    for name in reached:  # which grows meanwhile
        calls = (i.targets for i in functions[name].instructions if i.family == "CALL")
        reached += dict.fromkeys(
            t for t in chain.from_iterable(calls) if t in functions and t not in reached
        )
    return reached


def _working(function: Function) -> Iterator[Instruction]:
    """List the instructions without what fills up the last line of code, and the trap before it."""
    for instruction in function.instructions:
        aims = [function.labels.get(target) for target in instruction.targets]
        trap = instruction.family == "BRA" and not instruction.predicate
        if trap and aims == [instruction.offset]:
            continue
        if instruction.family != "NOP" and instruction.predicate not in _NEVER:
            yield instruction


def _code(
    name: str, functions: Sequence[Function], lines: Sequence[int], executed: Mapping[int, int]
) -> MachineCode:
    mix: Counter[str] = Counter()
    loop_mix: Counter[str] = Counter()
    loads: Counter[int] = Counter()
    stores: Counter[int] = Counter()
    places: Counter[tuple[bool, str, int]] = Counter()
    ran: Counter[str] = Counter()
    ran_at: Counter[tuple[int, str]] = Counter()
    for number, function in enumerate(functions):
        loops = frozenset(chain.from_iterable(innermost_loops(function)))
        for instruction in _working(function):
            kind = class_of(instruction)
            mix[kind] += 1
            loop_mix[kind] += instruction.offset in loops
            loads[bits_of(instruction)] += kind in _LOADS
            stores[bits_of(instruction)] += kind in _STORES
            line = _template_line(instruction, lines)
            if line is not None:
                places[instruction.offset in loops, kind, line] += 1
            # The offsets are those of the kernel itself: of what it calls nothing was counted.
            times = 0 if number else executed.get(instruction.offset, 0)
            ran[kind] += times
            if line is not None:
                ran_at[line, kind] += times
    most: dict[str, int] = {}
    for (line, kind), _ in (+ran_at).most_common():
        most.setdefault(kind, line)
    ranked = sorted(places.items(), key=lambda item: (not item[0][0], -item[1]))
    for (_, kind, line), _ in ranked:
        most.setdefault(kind, line)
    return MachineCode(
        kernel=name,
        instructions=mix.total(),
        mix=dict(mix),
        load_bits=dict(+loads),
        store_bits=dict(+stores),
        lines=most,
        loop_mix=dict(+loop_mix),
        executed=dict(+ran),
        executed_lines=dict(+ran_at),
    )


def _template_line(instruction: Instruction, lines: Sequence[int]) -> int | None:
    line = instruction.line
    return lines[line - 1] if line is not None and 0 < line <= len(lines) else None


TIMEOUT_S = 30.0
# Some 600,000 instructions: more than any kernel that fits into an instruction cache's reach.
MAX_BYTES = 64 << 20

_NAME = "nvdisasm"
_MAGIC = b"\x7fELF"


@cache
def find_nvdisasm() -> Path | None:
    """Find the tool: pip's, which is as new as the compiler, else a CUDA toolkit's."""
    paths = (*list_pip_paths(_NAME), *candidates(_NAME))
    return next((path for path in paths if executable(path)), None)


def disassemble(cubin: bytes, timeout_s: float = TIMEOUT_S) -> str:
    """Disassemble a cubin, with the source's line of each instruction where it is known.

    Returns "" where there is no tool, or it refuses the cubin, or does not end in time.
    """
    tool = find_nvdisasm()
    if tool is None or not cubin.startswith(_MAGIC):
        return ""
    with TemporaryDirectory(prefix="tuner-nvdisasm-") as folder:
        file, listing = Path(folder, "cubin"), Path(folder, "listing")
        file.write_bytes(cubin)
        with listing.open("wb") as output:
            try:
                ended = subprocess.run(  # noqa: S603 - the tool that was found
                    [tool, "--print-code", "--print-line-info-inline", file],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, "LC_ALL": "C"},
                    timeout=timeout_s,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired):
                return ""
        if ended.returncode != 0 or listing.stat().st_size > MAX_BYTES:
            return ""
        return listing.read_text(encoding="utf-8", errors="replace")
