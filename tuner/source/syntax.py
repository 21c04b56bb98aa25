"""Scan C++ text where a syntax tree is not needed or not to be had: masking, brackets, lists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

import tree_sitter
import tree_sitter_cuda

from tuner.model.errors import ExpressionError, KernelError
from tuner.model.expressions import Expression
from tuner.source.facts import Span

_HIDDEN = re.compile(
    r'R"(?P<tag>[^()\s\\]{0,16})\(.*?\)(?P=tag)"'
    r"|//(?:\\\r?\n|[^\n])*|/\*.*?(?:\*/|\Z)"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'(?:\\.[^'\n]{0,8}|[^'\\\n])'",
    re.DOTALL,
)
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_MOST_DEPTH = 2000
_NUMBER = re.compile(r"\b(0[xX][\da-fA-F']+|0[bB][01']+|\d[\d']*)([uUlLzZ]*)\b(?!\.)")


def mask(text: str) -> str:
    """Blank comments, strings and character literals; offsets and lines stay."""
    return _HIDDEN.sub(lambda match: _blank(match[0]), text)


def _blank(text: str) -> str:
    return re.sub(r"[^\r\n]", " ", text)


# `float * PROJECT_RESTRICT x`: two names behind a star, and the first no C++
_QUALIFIED = re.compile(r"(?<=[*&])\s*\b([A-Z][A-Z0-9_]{3,})(?=\s+[A-Za-z_]\w*\s*[=,;)\[])")


def without_qualifiers(masked: str) -> str:
    """Blank a project's macros for `__restrict__` and its like; offsets and lines stay."""
    return _QUALIFIED.sub(lambda match: re.sub(r"\S", " ", match[0]), masked)


def closing(text: str, start: int) -> int | None:
    """Find the end (exclusive) of the bracket that opens at `start`; None where it never closes."""
    stack: list[str] = []
    for position in range(start, len(text)):
        character = text[position]
        if character in _PAIRS:
            stack.append(_PAIRS[character])
        elif stack and character == stack[-1]:
            stack.pop()
            if not stack:
                return position + 1
    return None


def opening(text: str, close: int, pair: str = "()", *, stop: str = "") -> int | None:
    """Find the bracket that closes at `close`, looking back no further than any of `stop`."""
    depth = 0
    for position in range(close, -1, -1):
        depth += (text[position] == pair[1]) - (text[position] == pair[0])
        if depth == 0:
            return position
        if text[position] in stop:
            return None
    return None


def closing_angle(text: str, start: int) -> int | None:
    """Find the end (exclusive) of the template list that opens at `start`."""
    depth, position = 0, start
    while position < len(text):
        character = text[position]
        if character in _PAIRS:
            position = closing(text, position) or len(text)
            continue
        depth += (character == "<") - (character == ">")
        position += 1
        if depth == 0:
            return position
    return None


def top_level(text: str, character: str) -> int | None:
    """Find a character outside all brackets, `==` and `operator()` aside."""
    depth = 0
    for at, found in enumerate(text):
        if found == character and depth == 0:
            pattern = r"[=<>!]\Z" if found == "=" else r"\boperator\s*$"
            doubled = found == "=" and text[at + 1 : at + 2] == "="
            if not doubled and re.search(pattern, text[:at]) is None:
                return at
        depth += (found in "([{<") - (found in ")]}>" and text[at - 1 : at] != "-")
        depth = max(depth, 0)
    return None


def split_list(text: str, *, angles: bool = False) -> list[tuple[str, int]]:
    """Split at top-level commas into stripped pieces with their offsets; `angles` nest too."""
    pieces, depth, start, position = [], 0, 0, 0
    while position < len(text):
        character = text[position]
        inside = closing(text, position) if character in _PAIRS else None
        if character == "," and depth == 0:
            pieces.append((start, text[start:position]))
            start = position + 1
        elif angles:
            depth += (character == "<") - (character == ">")
        position = inside or position + 1
    pieces.append((start, text[start:]))
    found = [(piece.strip(), at + len(piece) - len(piece.lstrip())) for at, piece in pieces]
    return [] if len(found) == 1 and not found[0][0] else found


def listed(text: str, opening: int) -> tuple[tuple[str, ...], int]:
    """Split the list that opens at an offset into its pieces; give its end too, 0 without one."""
    angles = text[opening] == "<"
    end = closing_angle(text, opening) if angles else closing(text, opening)
    if end is None:
        return (), 0
    pieces = split_list(text[opening + 1 : end - 1], angles=angles)
    return tuple(fold(piece) for piece, _ in pieces), end


def fold(text: str) -> str:
    """Fold white space and joined lines to single spaces."""
    return " ".join(text.replace("\\\n", " ").replace("\\\r\n", " ").split())


def number(text: str) -> int | bool | None:
    """Compute a C expression made of integer literals alone; None for anything else."""
    if text in ("true", "false"):
        return text == "true"
    plain = _NUMBER.sub(lambda match: str(integer(match[1])), text)
    if re.search(r"[A-Za-z_.\"',]", plain):
        return None
    try:
        value = Expression.parse(re.sub(r"(?<!/)/(?!/)", "//", plain)).evaluate({})
    except ExpressionError:
        return None
    return value if isinstance(value, int) else None


def integer(literal: str) -> int:
    """Read an integer literal of C without its suffix."""
    digits = literal.replace("'", "")
    if not digits.isdigit():
        return int(digits, 0)
    return int(digits, 8 if re.fullmatch(r"0[0-7]+", digits) else 10)


Node = tree_sitter.Node
_CUDA = tree_sitter.Language(tree_sitter_cuda.language())
# what the grammar does not know, where it would tear a declaration apart; inline PTX without its
# strings is no C++ either
_UNPARSED = re.compile(
    r"\b(?:__align__|__cluster_dims__|__maxnreg__|__block_size__"
    r"|(?:asm|__asm__|__asm)(?:\s+(?:volatile|__volatile__))?)\s*(?=\()"
)
# where a masked string was the whole of an argument: `static_assert(a,    )`
_NO_ARGUMENT = re.compile(r"(?:(?<=,)|(?<=\()(?=\s*,))\s*[ \t](?=\s*[,)])")


# A draft asks for the tree of one file at each launch and each array.
@lru_cache(maxsize=4)
def parse_tree(text: str) -> Node:
    """Parse C++ text so that byte offsets in the tree are character offsets in the text."""
    for match in _UNPARSED.finditer(text):
        end = closing(text, match.end()) or match.end()
        text = text[: match.start()] + _blank(text[match.start() : end]) + text[end:]
    text = _NO_ARGUMENT.sub(lambda match: match[0][:-1] + "0", text)
    # one byte for every character, so that the offsets agree
    root = tree_sitter.Parser(_CUDA).parse(text.encode("ascii", "replace")).root_node
    cursor = root.walk()
    while cursor.goto_first_child() or _go_on(cursor):
        # a node finds its parent from the root down
        if cursor.depth > _MOST_DEPTH:
            message = f"nested more than {_MOST_DEPTH:,} deep"
            raise KernelError(message, remedy="no kernel needs that")
    return root


def _go_on(cursor: tree_sitter.TreeCursor) -> bool:
    while not cursor.goto_next_sibling():
        if not cursor.goto_parent():
            return False
    return True


def walk(root: Node) -> Iterator[Node]:
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(node.named_children))


def ancestors(node: Node) -> Iterator[Node]:
    while parent := node.parent:
        yield parent
        node = parent


def part(node: Node | None, *fields: str) -> Node | None:
    """Go down by the fields' names; None where there is no such part."""
    for field in fields:
        node = node.child_by_field_name(field) if node is not None else None
    return node


def span_of(node: Node) -> Span:
    parent = node.parent
    if parent is not None and parent.type == "template_declaration":
        return span_of(parent)
    return node.start_byte, node.end_byte


def text_of(node: Node | None, masked: str) -> str:
    return masked[node.start_byte : node.end_byte] if node is not None else ""
