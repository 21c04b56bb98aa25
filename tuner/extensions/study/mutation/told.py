"""Mutants of which the source, or the machine code, tells that they change no result."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from tuner.extensions.study.mutation.mutants import Mutant
from tuner.source.facts import SourceFile

_WIDE = re.compile(
    r"(?:static_cast<\s*|\(\s*)?(?:const\s+)?(?:std::)?"
    r"(?:size_t|ptrdiff_t|u?int64_t|(?:unsigned\s+)?long\s+long(?:\s+int)?)\b"
)
_LARGEST_INT = 2**31 - 1
_ZERO = r"(?:0|0\.0?f?|\.0f?)"
_UNROUNDED = re.compile(rf"[-+]?(?:INFINITY|HUGE_VALF?|{_ZERO})")
# What NVRTC calls a unit's own names by: a hash of the source, and the number of its process.
_UNIT = re.compile(rb"\d*_INTERNAL_[0-9a-f]{8}_\d+_\w+?_cu_[0-9a-f]{8}_\d+")
_SYMBOLS, _NAMES, _NO_BITS = 2, 3, 8  # SHT_SYMTAB, SHT_STRTAB, SHT_NOBITS


def changes_nothing(mutant: Mutant, source: SourceFile, largest_bytes: int) -> bool:
    """Tell mutants that give equal results; of all others nothing is said.

    With arrays of `largest_bytes` below 2^31 indices need no 64 bits, unless they are shifted.
    """
    operator, before = mutant.identity.operator, mutant.before
    fits = largest_bytes <= _LARGEST_INT and "<<" not in mutant.identity.line
    if operator in ("cast", "narrowed") and fits and _WIDE.match(before):
        return True
    if operator == "narrowed":
        # Rounding what was read in 16 bits to 16 bits, or what any float holds.
        if _UNROUNDED.fullmatch(before):
            return True
        kind = "bfloat16" if "__float2bfloat16(" in mutant.after else "half"
        return before.startswith(f"__{kind}2float(") and _closing(before) == len(before) - 1
    if operator == "compound" and (before, mutant.after) == ("+=", "="):
        return _is_first(source.masked, mutant.change.start)
    return False


def _is_first(text: str, at: int) -> bool:
    """Tell the first addition to a variable that was declared as zero, outside of inner loops."""
    name = re.search(r"(\w+)\s*$", text[:at])
    if name is None:
        return False
    word = name[1]
    declared = rf"[\w>]\s+(?:\w+\s*=\s*{_ZERO}\s*,\s*)*{word}\s*=\s*{_ZERO}\s*[,;]"
    begins = [*re.finditer(declared, text[:at])]
    if not begins:
        return False
    between = text[begins[-1].end() : name.start()]
    named = re.search(rf"\b{word}\b", between) is not None
    return not named and not re.search(r"\b(?:for|while|do)\b", between)


def _closing(text: str) -> int:
    """Find the parenthesis that closes the first one."""
    depth = 0
    for index, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == ")" and depth == 0:
            return index
    return -1


def is_same_code(one: bytes, other: bytes) -> bool:
    """Tell whether two cubins differ in nothing but how NVRTC calls a unit's own names."""
    return one == other or [*_sections(one)] == [*_sections(other)]


def _sections(elf: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield the sections of a file in ELF64, without where names stand in the lists of names."""
    (start,) = struct.unpack_from("<Q", elf, 40)
    size, count = struct.unpack_from("<HH", elf, 58)
    for number in range(count):
        header = struct.unpack_from("<IIQQQQIIQQ", elf, start + number * size)
        kind, flags, offset, length = header[1], header[2], header[4], header[5]
        content = elf[offset : offset + length] if kind != _NO_BITS else b""
        if kind == _NAMES:
            content = _UNIT.sub(b"", content)
        if kind == _SYMBOLS:
            content = b"".join(content[at + 4 : at + 24] for at in range(0, length, 24))
        yield kind, flags, content
