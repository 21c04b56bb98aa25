"""What bounds a number where code uses it: the conditions that hold there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tuner.source.text import closing, fold
from tuner.source.tree import Node, text_of

_LEAVES = ("return_statement", "continue_statement", "break_statement")
_FLIPPED = {"<": ">=", ">=": "<", ">": "<=", "<=": ">"}


@dataclass(frozen=True, slots=True)
class Bound:
    """`what` is below `limit` where an array is accessed."""

    what: str
    limit: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """Reads the bounds in a function whose body starts at the offset `start`."""

    masked: str
    start: int

    def at(self, node: Node) -> Iterator[Bound]:
        """Yield what holds where a node is evaluated, the innermost condition first."""
        child, parent = node, node.parent
        while parent is not None and parent.start_byte >= self.start:
            yield from self._by(parent, child)
            child, parent = parent, parent.parent

    def _by(self, parent: Node, child: Node) -> Iterator[Bound]:
        condition = parent.child_by_field_name("condition")
        if parent.type == "compound_statement":
            # what has returned or gone on already
            for sibling in reversed(parent.named_children):
                if sibling.start_byte < child.start_byte:
                    yield from self._survived(sibling)
        elif operator_of(parent, self.masked) == "&&" and child == parent.child_by_field_name(
            "right"
        ):
            left = parent.child_by_field_name("left")
            if left is not None:
                yield from self._holding(left)
        elif condition is None or child == condition:
            return
        elif parent.type in ("for_statement", "while_statement"):
            if child != parent.child_by_field_name("initializer"):
                yield from self._holding(condition)
        elif parent.type in ("if_statement", "conditional_expression"):
            if child == parent.child_by_field_name("consequence"):
                yield from self._holding(condition)
            elif child == parent.child_by_field_name("alternative"):
                yield from self._failing(condition)

    def _survived(self, statement: Node) -> Iterator[Bound]:
        if statement.type != "if_statement" or statement.child_by_field_name("alternative"):
            return
        body = statement.child_by_field_name("consequence")
        while body is not None and body.type == "compound_statement":
            body = body.named_children[-1] if body.named_children else None
        condition = statement.child_by_field_name("condition")
        if body is not None and body.type in _LEAVES and condition is not None:
            yield from self._failing(condition)

    def _holding(self, condition: Node) -> Iterator[Bound]:
        condition = _inner(condition)
        sign = operator_of(condition, self.masked)
        if sign == "&&":
            for side in ("left", "right"):
                inside = condition.child_by_field_name(side)
                if inside is not None:
                    yield from self._holding(inside)
        elif sign in _FLIPPED:
            yield from self._compared(condition, sign)

    def _failing(self, condition: Node) -> Iterator[Bound]:
        condition = _inner(condition)
        sign = operator_of(condition, self.masked)
        if sign == "||":
            for side in ("left", "right"):
                inside = condition.child_by_field_name(side)
                if inside is not None:
                    yield from self._failing(inside)
        elif sign in _FLIPPED:
            yield from self._compared(condition, _FLIPPED[sign])

    def _compared(self, condition: Node, sign: str) -> Iterator[Bound]:
        left, right = (condition.child_by_field_name(side) for side in ("left", "right"))
        if left is None or right is None:
            return
        small, large = (left, right) if sign in ("<", "<=") else (right, left)
        limit = self._text(large)
        more = sign in ("<=", ">=")
        yield Bound(bare(self._text(small)), f"({limit}) + 1" if more else limit)

    def _text(self, node: Node) -> str:
        return fold(text_of(node, self.masked))


def bare(text: str) -> str:
    """Write an expression without spaces and the parentheses around the whole, to compare it."""
    text = re.sub(r"\s+", "", text)
    while text.startswith("(") and closing(text, 0) == len(text):
        text = text[1:-1]
    return text


def operator_of(node: Node, masked: str) -> str:
    """Return the operator of a binary expression; "" for any other node."""
    sign = node.child_by_field_name("operator") if node.type == "binary_expression" else None
    return text_of(sign, masked) if sign is not None else ""


def _inner(condition: Node) -> Node:
    while condition.type in ("condition_clause", "parenthesized_expression"):
        value = condition.child_by_field_name("value") or next(iter(condition.named_children), None)
        if value is None:
            break
        condition = value
    return condition
