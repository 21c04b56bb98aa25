"""What host variables are at a launch though several lines set them: `if (n < t) t = n;`."""

from __future__ import annotations

import re
from itertools import pairwise

from tuner.source.accesses import handed_by_reference
from tuner.source.facts import Span, within
from tuner.source.syntax import Node, ancestors, fold, parse_tree, part, span_of, text_of, walk

_ELSEWHERE = frozenset(
    ("for_statement", "while_statement", "do_statement", "for_range_loop", "lambda_expression",
     "switch_statement")
)  # fmt: skip
_UNSET = "unset__"
_LONGEST = 2_000
_COMPARED = re.compile(r"\(?([^<>=&|?]+?)(<|>)=?([^<>=&|?]+?)\)?")


def branch_values(masked: str, around: Span, at: int) -> dict[str, str]:
    """Map the variables of the function `around` to what they are at `at`, each as one expression.

    What a loop sets, is counted or is handed out by address or reference is left out.
    """
    root = parse_tree(masked).descendant_for_byte_range(around[0], max(at, around[0]))
    values: dict[str, str] = {}
    declared: dict[str, int] = {}
    lost = handed_by_reference(masked, (around[0], max(at, around[0])))
    for node in walk(root) if root is not None else ():
        if node.start_byte >= at:
            break
        if node.start_byte < around[0]:
            continue
        named = part(node, "left" if node.type == "assignment_expression" else "declarator")
        is_plain = named is not None and named.type == "identifier"
        name = fold(text_of(named, masked)) if is_plain else ""
        if node.type in ("init_declarator", "declaration") and name:
            lost |= {name} & declared.keys()
            declared[name] = node.start_byte
            values[name] = fold(text_of(part(node, "value"), masked)) or _UNSET
        elif node.type == "assignment_expression" and name in declared:
            if (value := _assigned(node, name, values[name], masked, (declared[name], at))) is None:
                lost.add(name)
            else:
                values[name] = value
        elif node.type in ("update_expression", "pointer_expression"):
            lost.add(fold(text_of(part(node, "argument"), masked)))
    return {
        name: text
        for name, text in values.items()
        if name not in lost and _UNSET not in text and len(text) < _LONGEST
    }


def _assigned(node: Node, name: str, old: str, masked: str, seen: Span) -> str | None:
    # what the variable is after an assignment; `seen` from its declaration to the launch
    conditions, is_other = [], False
    for child, outer in pairwise((node, *ancestors(node))):
        if outer.start_byte <= seen[0]:
            break
        if outer.type in _ELSEWHERE:
            return None
        if outer.type != "if_statement" or child == part(outer, "condition"):
            continue
        if within(seen[1], [span_of(child)]):
            continue
        if within(seen[1], [span_of(outer)]):
            return old  # on the other branch
        told = fold(text_of(part(outer, "condition"), masked))
        is_other |= child == part(outer, "alternative")
        conditions.append(f"!{told}" if child == part(outer, "alternative") else told)
    value = fold(text_of(part(node, "right"), masked))
    sign = fold(text_of(part(node, "operator"), masked))
    value = value if sign == "=" else f"{name} {sign[:-1]} ({value})"
    own = re.compile(rf"(?<![\w.]){name}\b")
    if len(conditions) == 1 and (compared := _COMPARED.fullmatch(conditions[0])):
        left, right = compared[1].strip(), compared[3].strip()
        if name in (left, right) and value in (left, right):
            least = (compared[2] == ">") is (left == name)
            return f"{'min' if least else 'max'}({old}, {value})"
    value = own.sub(f"({old})", value)
    if is_other and _UNSET in old:
        return old.replace(_UNSET, value)
    asked = own.sub(f"({old})", " && ".join(conditions))
    return f"({asked}) ? ({value}) : ({old})" if conditions else value
