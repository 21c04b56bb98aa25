"""Mutants of which the source tells that they change no result."""

from __future__ import annotations

import re

from tuner.extensions.study.mutation.mutants import Mutant
from tuner.source.facts import SourceFile

_WIDE = re.compile(
    r"(?:static_cast<\s*|\(\s*)?(?:const\s+)?(?:std::)?"
    r"(?:size_t|ptrdiff_t|u?int64_t|(?:unsigned\s+)?long\s+long(?:\s+int)?)\b"
)
_LARGEST_INT = 2**31 - 1
_ZERO = r"(?:0|0\.0?f?|\.0f?)"


def changes_nothing(mutant: Mutant, source: SourceFile, largest_bytes: int) -> bool:
    """Tell mutants that give equal results; of all others nothing is said.

    With arrays of `largest_bytes` below 2^31 indices need no 64 bits, unless they are shifted.
    """
    operator, before = mutant.identity.operator, mutant.before
    fits = largest_bytes <= _LARGEST_INT and "<<" not in mutant.identity.line
    if operator in ("cast", "narrowed") and fits and _WIDE.match(before):
        return True
    if operator == "narrowed":
        # Rounding what was read in 16 bits to 16 bits.
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
