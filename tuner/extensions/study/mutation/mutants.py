"""The mutants of a kernel: single changes to the device code that its launches reach."""

from __future__ import annotations

import random
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import unified_diff

from tuner.compiler.base import normalize_source
from tuner.extensions.study.mutation.operators import OPERATORS, Change, MutatedSource
from tuner.source.facts import LineIndex, SourceFile
from tuner.source.syntax import Node, fold, parse_tree

# Declarations that change no result, checks of the compiler's, and what is no code of the kernel's.
_LEFT_ALONE = frozenset(
    {
        "comment",
        "string_literal",
        "static_assert_declaration",
        "alignas_qualifier",
        "attribute_specifier",
        "attribute_declaration",
        "launch_bounds",
        "gnu_asm_expression",
        "template_parameter_list",
        "preproc_include",
        "preproc_function_def",
        "preproc_call",
    }
)
_LONGEST_CHANGE = 100


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells a mutant from all others, and stays when lines move.

    `line` is the text of the line that it is in, `occurrence` counts equal ones in the file from 1.
    """

    operator: str
    line: str
    change: str
    occurrence: int = 1

    def __str__(self) -> str:
        number = f" #{self.occurrence}" if self.occurrence > 1 else ""
        return f"{self.operator} `{self.change}`{number} in `{self.line}`"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A source with one change; `line` and `column` count from 1 in that source."""

    identity: Identity
    change: Change
    line: int
    column: int
    before: str

    @property
    def after(self) -> str:
        return self.change.text

    def apply(self, text: str) -> str:
        """Make the mutant's source; a header that it needs comes before everything."""
        changed, header = self.change.apply(text), self.change.header
        return f"#include <{header}>\n#line 1\n{changed}" if header else changed

    def diff(self, text: str, name: str) -> str:
        before, after = text.splitlines(), self.change.apply(text).splitlines()
        lines = unified_diff(before, after, f"a/{name}", f"b/{name}", lineterm="", n=1)
        return "\n".join(lines)


def all_mutants(source: SourceFile, *, rendered: bool = False) -> tuple[Mutant, ...]:
    """List every mutant of a source in the order of its text, also of code no launch reaches."""
    code = MutatedSource(source.text, rendered)
    changes = [
        change
        for node in _mutable_nodes(parse_tree(source.text))
        for operator in OPERATORS
        for change in operator(node, code)
    ]
    changes.sort(key=lambda change: (change.start, change.end))
    seen = {normalize_source(source.text)}
    lines, rows = LineIndex(source.text), source.masked.split("\n")
    counted: Counter[tuple[str, str, str]] = Counter()
    mutants = []
    for change in changes:
        changed = normalize_source(change.apply(source.text))
        if changed in seen:
            continue
        seen.add(changed)
        line = lines.at(change.start)
        before = source.text[change.start : change.end]
        shown = f"{_shorten(before)} -> {_shorten(change.text)}".strip()
        key = change.operator, fold(rows[line - 1]), shown
        counted[key] += 1
        column = change.start - lines.start(line) + 1
        mutants.append(Mutant(Identity(*key, counted[key]), change, line, column, before))
    return tuple(mutants)


def keep_reached(
    mutants: Iterable[Mutant], source: SourceFile, kernels: Iterable[str], macros: Mapping[str, str]
) -> tuple[Mutant, ...]:
    """Keep the mutants of code that `kernels` reach where `macros` are defined from outside."""
    defined = []
    for definition in source.definitions:
        if definition.kind == "macro" and definition.name in macros:
            continue
        # what a macro stands for takes the place of the source's own definition of it
        names = (name for name, value in macros.items() if value == definition.name)
        defined += [definition, *(replace(definition, name=name) for name in names)]
    file = replace(source, definitions=tuple(defined))
    spans = file.reachable(source.kernel(name) for name in kernels)
    return tuple(
        mutant
        for mutant in mutants
        if any(a <= mutant.change.start and mutant.change.end <= b for a, b in spans)
    )


def sample(mutants: Sequence[Mutant], limit: int | None, seed: int) -> tuple[Mutant, ...]:
    """Choose `limit` mutants spread evenly over the source, one at random from each stretch."""
    if limit is None or limit >= len(mutants):
        return tuple(mutants)
    draw = random.Random(seed).random  # noqa: S311 - a sample, not a secret
    count = len(mutants)
    return tuple(mutants[int((part + draw()) * count / limit)] for part in range(limit))


def _mutable_nodes(root: Node) -> Iterator[Node]:
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        skipped = node.child_by_field_name("condition") if node.type == "preproc_if" else None
        pending.extend(
            child
            for child in reversed(node.named_children)
            if child.type not in _LEFT_ALONE and child != skipped
        )


def _shorten(text: str) -> str:
    folded = fold(text)
    if len(folded) <= _LONGEST_CHANGE:
        return folded
    half = _LONGEST_CHANGE // 2
    return f"{folded[:half]}...{folded[-half:]}"


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
