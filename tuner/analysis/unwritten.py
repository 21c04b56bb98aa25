"""Descriptors in machine code that are read from registers which nothing has written.

The ptxas of CUDA 13.0 makes such code of some asynchronous copies with a cache policy, where a
part of the address is the same for a warp: of 33 configs of a kernel it did so for 19. Of 8 of
these that an H200 ran, 7 ended with an illegal instruction, and one never came to the copy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tuner.analysis.sass import Function, Instruction

_DESCRIPTOR = re.compile(r"desc\[UR(\d+)\]")
# Behind predicates, which an instruction sets as well.
_RESULT = re.compile(r"^(?:U?P\w+, *)*UR(\d+)\b(?!\])")
# What calls is not followed: it may write any.
_CALLS = frozenset({"CALL", "BRX", "BRXU", "JMX", "JMXU"})


def find_unwritten(function: Function) -> tuple[Instruction, ...]:
    """Find the accesses whose descriptor lies in a uniform register that nothing writes."""
    code = function.instructions
    if any(instruction.family in _CALLS for instruction in code):
        return ()
    written = {number for instruction in code for number in _written_by(instruction)}
    return tuple(
        instruction
        for instruction in code
        if any(int(number) not in written for number in _DESCRIPTOR.findall(instruction.operands))
    )


def describe_unwritten(wrong: Sequence[Instruction]) -> str:
    """Say what the compiler did, and what to change."""
    first = wrong[0]
    return (
        f"the compiler has made {first.opcode} at {first.offset:#x} read its descriptor from a "
        f"register that nothing writes ({first.operands}): another compiler may do better, or "
        "a copy without a cache policy, or whose address each thread keeps"
    )


def _written_by(instruction: Instruction) -> Iterator[int]:
    if result := _RESULT.match(instruction.operands):
        first = int(result[1])
        yield from range(first, first + (4 if "128" in instruction.modifiers else 2))
