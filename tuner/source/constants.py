"""Values fixed in the source: constants, unroll factors, shared arrays."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tuner.source.facts import Constant, ConstantKind, Lines, SharedArray, Unroll
from tuner.source.text import fold, number
from tuner.source.tree import Node, text_of

_UNROLL = re.compile(r"unroll\s*\(?\s*([^)\s]*)")
_SHARED = re.compile(
    r"(?P<extern>\bextern\b[^;{}]*?)?\b__shared__\b(?P<type>[^;{}=\[]*?)"
    r"\b(?P<name>\w+)\s*(?:\[[^\]]*\]\s*)*[;,=]"
)


def find_constants(nodes: tuple[Node, ...], masked: str, lines: Lines) -> Iterator[Constant]:
    for node in nodes:
        if node.type == "preproc_def":
            name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
            if name is not None and value is not None and text_of(value, masked).strip():
                yield _constant(name, value, masked, lines, "define")
        elif node.type == "init_declarator" and node.parent is not None:
            yield from _declared(node, node.parent, masked, lines)
        elif node.type == "field_declaration":
            name, value = (node.child_by_field_name(f) for f in ("declarator", "default_value"))
            qualifiers = masked[node.start_byte : name.start_byte] if name is not None else ""
            if name is not None and value is not None and "constexpr" in qualifiers.split():
                yield _constant(name, value, masked, lines, "constexpr")


def _declared(node: Node, declaration: Node, masked: str, lines: Lines) -> Iterator[Constant]:
    name, value = node.child_by_field_name("declarator"), node.child_by_field_name("value")
    first = next((c for c in declaration.named_children if c.type.endswith("declarator")), node)
    words = masked[declaration.start_byte : first.start_byte].split()
    if name is None or value is None or name.type != "identifier":
        return
    if "constexpr" in words or "const" in words:
        kind: ConstantKind = "constexpr" if "constexpr" in words else "const"
        yield _constant(name, value, masked, lines, kind)


def _constant(
    name: Node,
    value: Node,
    masked: str,
    lines: Lines,
    kind: ConstantKind,
) -> Constant:
    raw = text_of(value, masked)
    if value.type == "initializer_list":
        raw = raw[1:-1]
    stripped = raw.strip()
    start = masked.index(stripped, value.start_byte)
    return Constant(
        name=text_of(name, masked),
        kind=kind,
        value=stripped,
        span=(start, start + len(stripped)),
        line=lines.at(name.start_byte),
        number=number(fold(stripped)),
    )


def find_unrolls(nodes: tuple[Node, ...], masked: str, lines: Lines) -> Iterator[Unroll]:
    for node in nodes:
        if node.type != "preproc_call" or "pragma" not in text_of(node, masked)[:12]:
            continue
        match = _UNROLL.search(masked, node.start_byte, node.end_byte)
        if match is not None:
            factor = match[1] or None
            yield Unroll(lines.at(node.start_byte), factor, match.span(1) if factor else None)


def find_shared(masked: str, lines: Lines) -> Iterator[SharedArray]:
    for match in _SHARED.finditer(masked):
        yield SharedArray(
            name=match["name"],
            dynamic=match["extern"] is not None or "extern" in match["type"].split(),
            line=lines.at(match.start()),
            at=match.start(),
        )
