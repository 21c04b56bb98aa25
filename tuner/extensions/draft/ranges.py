"""What whole numbers may hold that point nowhere, by what a kernel does with them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tuner.source.facts import LineIndex, Span
from tuner.source.syntax import Node, ancestors, fold, parse_tree, part, text_of, walk

# What takes bits out of a number, or bins it: all its bits are data.
_BITS = {"&": "masked", ">>": "shifted", "%": "binned", "/": "binned", "^": "mixed"}
_SUMS = {"+": "added", "-": "subtracted", "*": "multiplied"}
_BITS |= {f"{sign}=": what for sign, what in _BITS.items()}
_SUMS |= {f"{sign}=": what for sign, what in _SUMS.items()}
_LOOPS = ("for_statement", "while_statement", "do_statement")
_SAME = (
    *("parenthesized_expression", "cast_expression", "field_expression", "argument_list"),
    *("call_expression", "pointer_expression"),
)
_WHOLE = re.compile(r"(u?)int(16|32|64)")
# What float64 holds exactly, with room for sums of some.
_MOST_BITS = 44
_FEW, _SOME = 8, 1000


def range_fill(masked: str, spans: Sequence[Span], name: str, dtype: str) -> tuple[str, str] | None:
    """Give the fill of an array of whole numbers and why; None for its dtype's whole range.

    Numbers that are counted to, or point somewhere unseen, are few; those that are added or
    multiplied are small enough for their sums.
    """
    match = _WHOLE.fullmatch(dtype)
    if match is None:
        return None
    unsigned, bits = match[1] == "u", min(int(match[2]), _MOST_BITS)
    uses = dict(_uses(masked, spans, name))
    lines = LineIndex(masked)
    for kinds, most, why in (
        (_BITS.values(), 0, ""),
        (("counted to", "an index"), _FEW, "a guess: "),
        (_SUMS.values(), _SOME, "sums of larger ones need not fit: "),
    ):
        what = next((kind for kind in kinds if kind in uses), None)
        if what is not None:
            high = most or (2**bits - 1 if unsigned else 2 ** (bits - 1) - 1)
            low = 0 if unsigned or most == _FEW else -high
            return f"uniform({low}, {high})", f"{why}{what} in line {lines.at(uses[what])}"
    return None


def _uses(masked: str, spans: Sequence[Span], name: str) -> Iterator[tuple[str, int]]:
    """Yield what is done with an array's elements, and where, through local names for them."""
    nodes = [
        node
        for node in walk(parse_tree(masked))
        if node.type == "identifier" and any(a <= node.start_byte < b for a, b in spans)
    ]
    elements, pointers = set[str](), {name}
    for _ in range(2):  # a local pointer, and what is read through it
        for node in nodes:
            text = text_of(node, masked)
            if text not in pointers | elements:
                continue
            element = node if text in elements else _read(node, masked)
            is_element, top = element is not None, _climb(element or node)
            while not is_element and top.parent and top.parent.type == "binary_expression":
                top = _climb(top.parent)
            parent = top.parent
            if parent is None or parent.type not in ("init_declarator", "assignment_expression"):
                continue
            left = part(parent, "declarator") or part(parent, "left")
            if left is None or left == top:
                continue
            match = re.fullmatch(r"[*&\s]*(?:__restrict__\s+)?(\w+)", fold(text_of(left, masked)))
            if match is not None:
                (elements if is_element else pointers).add(match[1])
    for node in reversed(nodes):
        text = text_of(node, masked)
        element = node if text in elements else None
        element = _read(node, masked) if text in pointers else element
        top = _climb(element or node)
        parent = top.parent
        if element is None or parent is None:
            continue
        sign, at = text_of(part(parent, "operator"), masked), element.start_byte
        if parent.type in ("binary_expression", "assignment_expression"):
            is_left = part(parent, "left") == top
            if sign in _BITS and (is_left or sign == "&"):
                yield _BITS[sign], at
            elif sign in _SUMS:
                yield _SUMS[sign], at
            elif sign in ("<", "<=", ">", ">=", "!="):
                around = next((one for one in ancestors(parent) if one.type in _LOOPS), None)
                if around is not None and part(around, "condition") in (parent, parent.parent):
                    yield "counted to", at
        if any(one.type == "subscript_argument_list" for one in (parent, *ancestors(parent))):
            yield "an index", at


def _read(node: Node, masked: str) -> Node | None:
    """Give the element that a pointer is read at: `p[i]`, `*(p + i)` or `__ldg(p + i)`."""
    before, parent = node, node.parent
    while parent is not None and parent.type in ("parenthesized_expression", "binary_expression"):
        before, parent = parent, parent.parent
    if parent is None:
        return None
    if parent.type == "argument_list":
        is_load = text_of(parent.parent, masked).startswith("__ld")
        return parent.parent if is_load else None
    if parent.type == "pointer_expression":
        return parent if text_of(parent, masked).startswith("*") else None
    is_element = parent.type == "subscript_expression" and part(parent, "argument") == before
    return parent if is_element else None


def _climb(node: Node) -> Node:
    """Follow an element outwards through its brackets, casts, members and loads."""
    while (parent := node.parent) is not None:
        inside = parent.type == "subscript_expression" and part(parent, "argument") == node
        chosen = parent.type == "conditional_expression" and part(parent, "condition") != node
        if not (inside or chosen) and parent.type not in _SAME:
            break
        node = parent
    return node
