"""Mutation operators on statements: conditions, guards, tails, barriers, dropped statements."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tuner.mutation.changes import Change, Code, operator_of, replaced
from tuner.source.tree import Node, walk

_BRANCHES = ("if_statement", "while_statement", "do_statement", "conditional_expression")
_LOOPS = ("for_statement", "while_statement", "do_statement")
_BARRIER = re.compile(r"__sync(?:threads|warp)\w*\b")
_EFFECTS = ("assignment_expression", "call_expression", "update_expression")
_ORDERS = ("<", "<=", ">", ">=")


def condition(node: Node, code: Code) -> Iterator[Change]:
    """Negate the condition of a branch or a loop."""
    asked = _condition(node)
    if asked is not None:
        yield replaced("condition", asked, f"!({code.of(asked)})")


def guard(node: Node, code: Code) -> Iterator[Change]:
    """Make a guard always true and always false."""
    asked = _condition(node)
    constexpr = any(child.type == "constexpr" for child in node.children)
    if asked is None or constexpr or node.type in _LOOPS:
        return
    if any((sign := operator_of(n)) and sign.type in _ORDERS for n in walk(asked)):
        yield replaced("guard", asked, "true")
        yield replaced("guard", asked, "false")


def tail(node: Node, code: Code) -> Iterator[Change]:
    """Let a loop with a stride leave out its last step."""
    asked = _condition(node) if node.type == "for_statement" else None
    update = node.child_by_field_name("update")
    if asked is None or update is None or update.type != "assignment_expression":
        return
    left, sign = asked.child_by_field_name("left"), operator_of(asked)
    step, by = update.child_by_field_name("right"), operator_of(update)
    if left is None or sign is None or step is None or by is None:
        return
    if sign.type in ("<", "<=") and by.type == "+=":
        yield replaced("tail", left, f"{code.operand(left)} + {code.operand(step)}")


def removal(node: Node, code: Code) -> Iterator[Change]:
    """Leave out a barrier, a call, an assignment or an early return."""
    if node.type == "return_statement" and not node.named_children:
        yield replaced("statement", node, ";")
    if node.type != "expression_statement" or not node.named_children:
        return
    effect = node.named_children[0]
    if effect.type in _EFFECTS:
        barrier = _BARRIER.match(code.of(effect)) is not None
        yield replaced("barrier" if barrier else "statement", node, ";")


def _condition(node: Node) -> Node | None:
    if node.type != "for_statement" and node.type not in _BRANCHES:
        return None
    asked = node.child_by_field_name("condition")
    if asked is not None and asked.type in ("condition_clause", "parenthesized_expression"):
        asked = asked.named_children[0] if len(asked.named_children) == 1 else None
    if asked is None or asked.type == "declaration":
        return None
    return asked
