"""One small change to a source, and the code that the operators look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tuner.source.tree import Node, text_of

# What binds at least as tightly as a call: no parentheses are needed around it.
_TIGHT = frozenset(
    {
        "identifier",
        "number_literal",
        "field_expression",
        "subscript_expression",
        "call_expression",
        "parenthesized_expression",
        "true",
        "false",
    }
)


@dataclass(frozen=True, slots=True)
class Change:
    """Replace the characters from `start` to `end` (exclusive) by `text`; `header` is needed."""

    operator: str
    start: int
    end: int
    text: str
    header: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    """The source that the tree was made of; the tree's offsets are offsets into it.

    `rendered` tells that its bare constants are values of a config, which are not the kernel's.
    """

    text: str
    rendered: bool = False

    def of(self, node: Node) -> str:
        """Return a node's text."""
        return text_of(node, self.text)

    def operand(self, node: Node) -> str:
        """Return an expression's text, in parentheses where another operator could split it."""
        text = self.of(node)
        return text if node.type in _TIGHT else f"({text})"


Operator = Callable[[Node, Code], Iterator[Change]]


def replaced(operator: str, node: Node, text: str, *, header: str = "") -> Change:
    """Make the change that puts `text` in a node's place."""
    return Change(operator, node.start_byte, node.end_byte, text, header)


def operator_of(node: Node) -> Node | None:
    """Return the token of a binary, unary, assignment or update expression."""
    return node.child_by_field_name("operator")
