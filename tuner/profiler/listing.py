"""A disassembler's text, read: functions, their instructions, labels and source lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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
    """Read nvdisasm's text: the functions by their symbols."""
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
                line, places = _innermost(places), []
            instruction = _instruction(match, line)
            current.labels |= dict.fromkeys(waiting, instruction.offset)
            current.instructions.append(instruction)
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


def _instruction(match: re.Match[str], line: int | None) -> Instruction:
    operands, _, notes = match["operands"].partition("(*")
    indirect = _INDIRECT.search(notes)
    named = indirect[1].split(",") if indirect else _TARGET.findall(operands)
    return Instruction(
        offset=int(match["offset"], 16),
        opcode=match["opcode"],
        operands=operands.strip(),
        predicate=match["predicate"] or "",
        targets=tuple(named),
        line=line,
    )


def _innermost(places: Iterable[tuple[str, int]]) -> int | None:
    """Find the source's own line: the first places are those of inlined functions of headers."""
    own = (line for path, line in places if path.rpartition("/")[2] == UNIT)
    return next(own, None)
