"""What a kernel's machine code does before it waits for the launches before it.

A programmatic launch may begin while they run: until `griddepcontrol.wait` it has to keep its hands
off global memory. The compiler moves loads across the wait where nothing holds them back, which no
source shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner.analysis.sass import (
    ALWAYS,
    Function,
    Instruction,
    class_of,
    falls_through,
    find_nvdisasm,
)

WAIT = "ACQBULK"  # griddepcontrol.wait
TRIGGER = "PREEXIT"  # griddepcontrol.launch_dependents
# A prefetch (CCTL, UBLKPF) is none: it goes through the L2, as all writers do.
_ACCESSES = frozenset(
    [
        *("global_load", "global_store", "generic_load", "generic_store"),
        *("async_copy", "bulk_copy", "atomic", "texture"),
    ]
)
# Of these, what reads alone, with the directions of a bulk copy that end in shared memory.
_READS = frozenset({"global_load", "generic_load", "async_copy", "texture"})
_BULK_READS = ("UTMALDG", "UBLKCP.S.G")
_NEVER = frozenset({"!PT", "!UPT"})
_INDIRECT = frozenset({"BRX", "BRXU", "JMX", "JMXU", "CALL"})
# These name a place without going there.
_NAMES_ONLY = frozenset({"BSSY", "RET", "LEPC", "MOV", "UMOV", "R2UR"})
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class BeforeWait:
    """What can be reached from a kernel's start without passing its wait.

    `accesses` touch global memory; behind `unclear` anything may come: jumps to an address that a
    register holds. `triggers` tells whether the kernel has a trigger anywhere.
    """

    accesses: tuple[Instruction, ...]
    unclear: tuple[Instruction, ...]
    triggers: bool

    @property
    def writes(self) -> tuple[Instruction, ...]:
        """The accesses that are more than reads."""
        return tuple(
            access
            for access in self.accesses
            if class_of(access) not in _READS and not access.opcode.startswith(_BULK_READS)
        )

    @property
    def problem(self) -> str:
        """Word what is wrong, with the first of the accesses; "" where nothing is."""
        return _describe_places(self.accesses)

    @property
    def problem_beside_constants(self) -> str:
        """Word what is wrong where reads may be of constant inputs."""
        return _describe_places(self.writes)


def _describe_places(wrong: Sequence[Instruction]) -> str:
    if not wrong:
        return ""
    named = ", ".join(f"{access.opcode} at {access.offset:#x}" for access in wrong[:_MOST_NAMED])
    more = len(wrong) - _MOST_NAMED
    named += f" and {more} more" if more > 0 else ""
    return (
        f"its machine code touches global memory before griddepcontrol.wait: {named}; use what "
        "`launder_after_wait` returns after the wait, and store nothing before it "
        "(docs/templates.md)"
    )


def before_wait(functions: Mapping[str, Function], symbol: str) -> BeforeWait | None:
    """Follow a kernel of disassembled functions along all ways up to its waits.

    None where the kernel is none of them. A wait that only some threads come to, under a
    predicate, ends no way.
    """
    if symbol not in functions or not functions[symbol].instructions:
        return None
    reached = {
        (name, instruction.offset): instruction
        for name, instruction in _walk_instructions(functions, symbol)
        if instruction.predicate not in _NEVER
    }
    ordered = [instruction for _, instruction in sorted(reached.items(), key=lambda item: item[0])]
    return BeforeWait(
        tuple(instruction for instruction in ordered if class_of(instruction) in _ACCESSES),
        tuple(i for i in ordered if i.family in _INDIRECT and not i.targets),
        any(instruction.family == TRIGGER for instruction in functions[symbol].instructions),
    )


def unread_because(cubin: bytes) -> str:
    """Say why machine code cannot be read here, "" where it can."""
    if not cubin:
        return "not read: there is no machine code here"
    if find_nvdisasm() is None:
        return "not read: nvdisasm was not found (pip install nvidia-cuda-nvdisasm)"
    return ""


def _walk_instructions(
    functions: Mapping[str, Function], symbol: str
) -> Iterator[tuple[str, Instruction]]:
    waiting, seen = [(symbol, 0)], set()
    places = {
        name: {instruction.offset: index for index, instruction in enumerate(function.instructions)}
        for name, function in functions.items()
    }
    while waiting:
        name, index = waiting.pop()
        code = functions[name].instructions
        if (name, index) in seen or index >= len(code):
            continue
        seen.add((name, index))
        instruction = code[index]
        yield name, instruction
        if instruction.family == WAIT and instruction.predicate in ALWAYS:
            continue
        if falls_through(instruction):
            waiting.append((name, index + 1))
        for target in () if instruction.family in _NAMES_ONLY else instruction.targets:
            if target in functions[name].labels:
                offset = functions[name].labels[target]
                waiting.append((name, places[name][offset]))
            elif target in functions:
                waiting.append((target, 0))
