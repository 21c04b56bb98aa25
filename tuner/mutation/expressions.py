"""Mutation operators on expressions: arithmetic, comparisons, bounds, constants, logic, indices."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tuner.mutation.changes import Change, Code, operator_of, replaced
from tuner.source.tree import Node

_ARITHMETIC = {
    "+": ("-", "*"),
    "-": ("+", "*"),
    "*": ("/", "+"),
    "/": ("*", "%"),
    "%": ("/", "*"),
    "&": ("|",),
    "|": ("&",),
    "^": ("&",),
    "<<": (">>",),
    ">>": ("<<",),
}
_COMPOUND = {f"{name}=": tuple(f"{n}=" for n in names) for name, names in _ARITHMETIC.items()}
_COMPOUND |= {"+=": ("-=", "="), "++": ("--",), "--": ("++",)}
_COMPARISON = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
# `i < n + 1` is `i <= n`, which the operator on comparisons makes already.
_BOUND = {"<": "-", "<=": "+", ">": "+", ">=": "-"}
_LOGICAL = {"&&": "||", "||": "&&"}
_INTEGER = re.compile(r"(0[xX][\da-fA-F']+|0[bB][01']+|\d[\d']*)([uUlLzZ]*)")
_FLOAT = re.compile(r"((?:\d[\d']*)?\.?[\d']*(?:[eE][-+]?\d+)?)([fFlL]?)")
_LARGEST = 2**31 - 1
_AXES = {
    "threadIdx": "blockIdx",
    "blockIdx": "threadIdx",
    "blockDim": "gridDim",
    "gridDim": "blockDim",
}
_NEXT = {"x": "y", "y": "x", "z": "x"}


def arithmetic(node: Node, code: Code) -> Iterator[Change]:
    """Swap `+ - * / %`, bit operators and shifts."""
    sign = operator_of(node) if node.type == "binary_expression" else None
    if sign is not None:
        for other in _ARITHMETIC.get(sign.type, ()):
            yield replaced("arithmetic", sign, other)


def compound(node: Node, code: Code) -> Iterator[Change]:
    """Swap compound assignments, increments and decrements."""
    known = node.type in ("assignment_expression", "update_expression")
    sign = operator_of(node) if known else None
    if sign is not None:
        for other in _COMPOUND.get(sign.type, ()):
            yield replaced("compound", sign, other)


def comparison(node: Node, code: Code) -> Iterator[Change]:
    """Let a comparison count equality in or out."""
    sign = operator_of(node) if node.type == "binary_expression" else None
    if sign is not None and sign.type in _COMPARISON:
        yield replaced("comparison", sign, _COMPARISON[sign.type])


def bound(node: Node, code: Code) -> Iterator[Change]:
    """Make a bound one stricter or wider, where the comparison alone does not do the same."""
    sign = operator_of(node) if node.type == "binary_expression" else None
    right = node.child_by_field_name("right")
    if sign is None or right is None or sign.type not in _BOUND:
        return
    if not _INTEGER.fullmatch(code.of(right)):  # which the operator on constants changes
        yield replaced("bound", right, f"{code.operand(right)} {_BOUND[sign.type]} 1")


def logical(node: Node, code: Code) -> Iterator[Change]:
    """Swap `&&` and `||`; drop `!`."""
    sign = operator_of(node)
    if sign is None:
        return
    if node.type == "binary_expression" and sign.type in _LOGICAL:
        yield replaced("logical", sign, _LOGICAL[sign.type])
    if node.type == "unary_expression" and sign.type == "!":
        yield replaced("logical", sign, "")


def constant(node: Node, code: Code) -> Iterator[Change]:
    """Change whole numbers by one and to zero; scale floats by 1 % and negate them."""
    if node.type == "preproc_def":
        node = node.child_by_field_name("value") or node
        if node.type != "preproc_arg" or code.rendered:
            return
    elif node.type not in ("number_literal", "true", "false"):
        return
    if code.rendered and _is_setting(node):
        return
    for text in _other_values(code.of(node).strip()):
        yield replaced("constant", node, text)


def axis(node: Node, code: Code) -> Iterator[Change]:
    """Take another index variable, another of its axes, or another component of a vector."""
    value, field = node.child_by_field_name("argument"), node.child_by_field_name("field")
    if node.type != "field_expression" or value is None or field is None:
        return
    name, letter = code.of(value), code.of(field)
    if name in _AXES:
        yield replaced("axis", value, _AXES[name])
    if letter in _NEXT:
        yield replaced("axis" if name in _AXES else "component", field, _NEXT[letter])


def _is_setting(node: Node) -> bool:
    """Tell a constant outside functions whose whole value is this literal."""
    declarator = node.parent
    if declarator is None or declarator.type != "init_declarator":
        return False
    around = declarator.parent
    while around is not None:
        if around.type in ("function_definition", "lambda_expression"):
            return False
        around = around.parent
    return True


def _other_values(literal: str) -> Iterator[str]:
    if literal in ("true", "false"):
        yield "false" if literal == "true" else "true"
    elif match := _INTEGER.fullmatch(literal):
        yield from _other_integers(match[1].replace("'", ""), match[2])
    elif (match := _FLOAT.fullmatch(literal)) and any(map(str.isdigit, match[1])):
        value = float(match[1].replace("'", ""))
        yield from (f"{value * 1.01!r}{match[2]}", f"(-{literal})") if value else ("1.0f",)


def _other_integers(digits: str, suffix: str) -> Iterator[str]:
    octal = re.fullmatch(r"0[0-7]+", digits) is not None
    value = int(digits, 8) if octal else int(digits, 0)
    write = hex if digits[:2] in ("0x", "0X") else str
    if value < _LARGEST:
        yield f"{write(value + 1)}{suffix}"
    if value > 0:
        yield f"{write(value - 1)}{suffix}"
    if value > 1:
        yield f"0{suffix}"
