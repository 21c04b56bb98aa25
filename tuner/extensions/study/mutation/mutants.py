"""The mutants of a kernel: single changes to the device code that its launches reach."""

from __future__ import annotations

import random
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

    def applied(self, text: str) -> str:
        """Make the mutant's source; a header that it needs comes before everything."""
        changed, header = self.change.applied(text), self.change.header
        return f"#include <{header}>\n#line 1\n{changed}" if header else changed

    def diff(self, text: str, name: str) -> str:
        before, after = text.splitlines(), self.change.applied(text).splitlines()
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
        changed = normalize_source(change.applied(source.text))
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
    found = replace(source, definitions=tuple(defined))
    spans = found.reachable(source.kernel(name) for name in kernels)
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
