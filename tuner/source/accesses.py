"""What variables are set to, and what conditions bound where a piece of code is evaluated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from tuner.source.facts import Span
from tuner.source.syntax import Node, ancestors, closing, fold, listed, part, text_of

_ASSIGNED = re.compile(r"(?<![\w.>])([A-Za-z_][\w.]*)\s*=(?!=)\s*([^;{}]+|\w*\s*\{[^;{}]*\})\s*;")
_CONSTRUCTED = re.compile(r"\b(?:dim3|cudaLaunchConfig_t)\s+(?:const\s+)?(\w+)\s*(?=[({])")
_NEXT_CONSTRUCTED = re.compile(r"\s*,\s*(\w+)\s*(?=[({])")
_DECLARES = re.compile(r"(?:[*&>]|(?<![\w.])(?!return\b|else\b)\w+)$")
_NEXT_DECLARATOR = re.compile(r",\s*(?=[A-Za-z_]\w*\s*=(?!=))")
_CHANGED = re.compile(
    r"(?:\+\+|--)\s*([A-Za-z_]\w*)"
    r"|(?<![\w.>])([A-Za-z_]\w*)\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)=)"
    r"|(?<!cudaLaunchKernelEx)(?<!cudaLaunchKernelExC)[(,)]\s*&\s*([A-Za-z_]\w*)\s*(?=[,)])"
)
# a function with a `T& x` or `T*& x`
_REFERRING = re.compile(
    r"\b(?!(?:if|for|while|switch|catch)\b)(\w+)\s*"
    r"(?=\([^(){};]*&[^(){};]*\)\s*(?:const\s*)?(?:noexcept\s*)?\{)"
)
_REFERENCE = re.compile(r"(?!const\b[^*]*$)[^&=]*\w[^&=]*(?<!const)(?<!const )&\s*\w*(?: =.*)?$")
_LONGEST_WORD = 200
_BRACE = re.compile(r"[{}]")


@dataclass(frozen=True, slots=True)
class Assigned:
    """The value of a variable as text, and the offset where it is given."""

    text: str
    at: int


def _is_visible(masked: str, at: int, start: int, end: int) -> bool:
    # what a block declares is unknown behind it
    before = masked[max(start, at - _LONGEST_WORD) : at].rstrip()
    if not _DECLARES.search(before) and not _CONSTRUCTED.match(masked, at):
        return True
    depth = 0
    for brace in _BRACE.finditer(masked, at, end):
        depth += 1 if brace[0] == "{" else -1
        if depth < 0:
            return False
    return True


def find_assignments(
    masked: str, functions: tuple[Span, ...], end: int, loop_end: int = 0
) -> dict[str, Assigned]:
    """Map the variables that the function around `end` gives one value before it.

    Those that it counts up, adds to or hands out by address or reference are left out, up to the
    end of the loop around if there is one: they have several.
    """
    # a function that was not recognized begins after the one before it
    before = masked.rfind("\n}", 0, end) + 1
    start = max((a for a, b in functions if a <= end < b), default=before)
    values: dict[str, dict[str, int]] = {}
    for match in _CONSTRUCTED.finditer(masked, start, end):
        one: re.Match[str] | None = match
        while one is not None and (close := closing(masked, one.end())) is not None:
            values.setdefault(one[1], {})[fold(masked[one.end() : close])] = match.start()
            one = _NEXT_CONSTRUCTED.match(masked, close, end)  # `dim3 grid(n), block(32, 8);`
    for match in _ASSIGNED.finditer(masked, start, end):
        for piece in _NEXT_DECLARATOR.split(f"{match[1]} = {match[2]}"):
            name, _, value = piece.partition("=")
            values.setdefault(name.strip(), {}).setdefault(fold(value), match.start())
    for found in values.values():
        if len(found) > 1:
            seen = {text: at for text, at in found.items() if _is_visible(masked, at, start, end)}
            found.clear()
            found.update(seen)
    changes = _CHANGED.finditer(masked, start, max(end, loop_end))
    changed = {name for match in changes for name in match.groups()}
    changed |= handed_by_reference(masked, (start, max(end, loop_end)))
    return {
        name: Assigned(*next(iter(found.items())))
        for name, found in values.items()
        if len(found) == 1 and name not in changed
    }


def handed_by_reference(masked: str, span: Span) -> set[str]:
    """List the variables that a span hands to functions of the file which may change them."""
    places = _reference_places(masked)
    if not places:
        return set()
    calls = re.compile(rf"\b({'|'.join(places)})\s*(?:<[^<>();]*>\s*)?(?=\()")
    return {
        argument
        for call in calls.finditer(masked, *span)
        for place, argument in enumerate(listed(masked, call.end())[0])
        if place in places[call[1]] and argument.isidentifier()
    }


@lru_cache(maxsize=8)
def _reference_places(masked: str) -> dict[str, set[int]]:
    # which parameters of functions are `T&` or `T*&`
    places: dict[str, set[int]] = {}
    for head in _REFERRING.finditer(masked):
        for place, declared in enumerate(listed(masked, head.end())[0]):
            if _REFERENCE.match(declared):
                places.setdefault(head[1], set()).add(place)
    return places


_LEAVES = ("return_statement", "continue_statement", "break_statement", "throw_statement")
_FLIPPED = {"<": ">=", ">=": "<", ">": "<=", "<=": ">"}


@dataclass(frozen=True, slots=True)
class Bound:
    """`what` is below `limit` where an array is accessed."""

    what: str
    limit: str


def bare(text: str) -> str:
    """Write an expression without spaces and the parentheses around the whole, to compare it."""
    text = re.sub(r"\s+", "", text)
    while text.startswith("(") and closing(text, 0) == len(text):
        text = text[1:-1]
    return text


@dataclass(frozen=True, slots=True)
class KnownCondition:
    """What is known where a node is evaluated: `is_false`, or else it holds.

    `is_asked` by an `if`, and not by a loop or within an expression.
    """

    node: Node
    is_false: bool
    is_asked: bool = True


def conditions_at(node: Node, start: int, masked: str) -> Iterator[KnownCondition]:
    """Yield what is known where a node is evaluated, in the function from `start`; inside first."""
    for child, parent in pairwise((node, *ancestors(node))):
        if parent.start_byte < start:
            return
        condition, left = part(parent, "condition"), part(parent, "left")
        if parent.type == "compound_statement":
            for sibling in reversed(parent.named_children):
                gone = _left_on(sibling) if sibling.start_byte < child.start_byte else None
                if gone is not None:
                    yield KnownCondition(gone, is_false=True)
        elif left is not None and _sign(parent, masked) == "&&" and child == part(parent, "right"):
            yield KnownCondition(left, is_false=False, is_asked=False)
        elif condition is None or child == condition:
            continue
        elif parent.type in ("for_statement", "while_statement"):
            if child != part(parent, "initializer"):
                yield KnownCondition(condition, is_false=False, is_asked=False)
        elif parent.type not in ("if_statement", "conditional_expression"):
            continue
        elif child in (part(parent, "consequence"), part(parent, "alternative")):
            is_false = child == part(parent, "alternative")
            yield KnownCondition(condition, is_false, parent.type == "if_statement")


def bounds_at(node: Node, start: int, masked: str) -> tuple[Bound, ...]:
    """List what is known to be bounded where a node is evaluated, in the function from `start`."""
    conditions = conditions_at(node, start, masked)
    return tuple(
        b for condition in conditions for b in _bounds(condition.node, condition.is_false, masked)
    )


def _left_on(statement: Node) -> Node | None:
    # the condition on which it returns or goes on
    if statement.type != "if_statement" or part(statement, "alternative"):
        return None
    body = part(statement, "consequence")
    while body is not None and body.type == "compound_statement":
        body = body.named_children[-1] if body.named_children else None
    return part(statement, "condition") if body is not None and body.type in _LEAVES else None


def _bounds(condition: Node, negated: bool, masked: str) -> Iterator[Bound]:
    for node in split_condition(condition, masked, "||" if negated else "&&"):
        sign, left, right = _sign(node, masked), part(node, "left"), part(node, "right")
        if left is not None and right is not None and sign in _FLIPPED:
            sign = _FLIPPED[sign] if negated else sign
            small, large = (left, right) if sign in ("<", "<=") else (right, left)
            limit = fold(text_of(large, masked))
            what = bare(fold(text_of(small, masked)))
            yield Bound(what, f"({limit}) + 1" if sign in ("<=", ">=") else limit)


def split_condition(node: Node, masked: str, sign: str) -> Iterator[Node]:
    """Yield what has to hold, or not to hold, together: the parts that a sign joins."""
    while node.type in ("condition_clause", "parenthesized_expression"):
        value = part(node, "value") or next(iter(node.named_children), None)
        if value is None:
            break
        node = value
    left, right = part(node, "left"), part(node, "right")
    if left is None or right is None or _sign(node, masked) != sign:
        yield node
    else:
        yield from split_condition(left, masked, sign)
        yield from split_condition(right, masked, sign)


def _sign(node: Node, masked: str) -> str:
    return text_of(part(node, "operator"), masked) if node.type == "binary_expression" else ""
