"""Mutation operators on calls and types: arguments, casts, shuffles, narrowed precision."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from tuner.mutation.changes import Change, Code, operator_of, replaced
from tuner.source.text import fold
from tuner.source.tree import Node, walk

_SYMMETRIC = re.compile(
    r"(?:std::)?(?:f?(?:min|max)f?|u?mul(?:hi|24)|hypotf?)|__h(?:add|mul|max|min)2?\w*"
    r"|__f(?:add|mul)_r\w|__(?:vmin|vmax)\w*"
)
_FUSED = re.compile(r"(?:std::)?fmaf?|__fmaf_r\w|__hfma2?\w*|__dp[24]a")
_SHUFFLE = re.compile(r"__shfl_(up|down|xor)?_?sync")
_OTHER_SHUFFLE = {"up": "down", "down": "up", "xor": "down"}
_LOW_LANES = "0xffffu"
_NARROWER = {
    "double": "float",
    "size_t": "int",
    "int64_t": "int",
    "uint64_t": "unsigned int",
    "ptrdiff_t": "int",
    "long long": "int",
    "long long int": "int",
    "unsigned long long": "unsigned int",
    "unsigned long long int": "unsigned int",
}
_ROUNDING = {
    "cuda_bf16.h": "__bfloat162float(__float2bfloat16({}))",
    "cuda_fp16.h": "__half2float(__float2half({}))",
}


def arguments(node: Node, code: Code) -> Iterator[Change]:
    """Swap neighbouring arguments of a call that is not symmetric in them."""
    called, given = _call(node, code)
    for number, (first, second) in enumerate(pairwise(given)):
        one, other = code.of(first), code.of(second)
        symmetric = number == 0 and (_SYMMETRIC.fullmatch(called) or _FUSED.fullmatch(called))
        if one != other and not symmetric:
            yield Change("arguments", first.start_byte, second.end_byte, f"{other}, {one}")


def cast(node: Node, code: Code) -> Iterator[Change]:
    """Remove a conversion of a value."""
    value = None
    if node.type == "cast_expression":
        value = node.child_by_field_name("value")
    elif node.type == "call_expression":
        called, given = _call(node, code)
        function = node.child_by_field_name("function")
        primitive = function is not None and function.type == "primitive_type"
        if len(given) == 1 and (primitive or called.startswith("static_cast<")):
            value = given[0]
    if value is not None:
        yield replaced("cast", node, f"({code.of(value)})")


def shuffle(node: Node, code: Code) -> Iterator[Change]:
    """Shuffle by another distance, in another direction, or among half of the lanes."""
    called, given = _call(node, code)
    match = _SHUFFLE.fullmatch(called)
    function = node.child_by_field_name("function")
    if match is None or function is None or len(given) < 3:
        return
    yield replaced("shuffle", given[0], _LOW_LANES)
    yield replaced("shuffle", given[2], f"{code.operand(given[2])} + 1")
    if match[1]:
        yield replaced("shuffle", function, f"__shfl_{_OTHER_SHUFFLE[match[1]]}_sync")


def narrowed(node: Node, code: Code) -> Iterator[Change]:
    """Declare a local variable in a narrower type, and round floats to half the bits."""
    if node.type == "declaration" and _in_function(node):
        kind = node.child_by_field_name("type")
        name = fold(code.of(kind)) if kind is not None else ""
        if kind is not None and name in _NARROWER:
            yield replaced("narrowed", kind, _NARROWER[name])
    if node.type == "init_declarator" and _declared_float(node, code):
        value = node.child_by_field_name("value")
        if value is not None and value.type not in ("number_literal", "initializer_list"):
            yield _rounded(value, code.of(value), code)
    if node.type == "assignment_expression":
        yield from _narrowed_assignment(node, code)
    if node.type == "return_statement" and node.named_children and _in_float_function(node, code):
        yield _rounded(node.named_children[0], code.of(node.named_children[0]), code)


def _narrowed_assignment(node: Node, code: Code) -> Iterator[Change]:
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    sign = operator_of(node)
    if left is None or right is None or sign is None or left.type != "identifier":
        return
    if code.of(left) not in _float_names(node, code):
        return
    if sign.type == "=":
        yield _rounded(right, code.of(right), code)
    elif sign.type in ("+=", "-=", "*=", "/="):
        name = code.of(left)
        text = _rounding(f"{name} {sign.type[0]} {code.operand(right)}", code)
        yield replaced("narrowed", node, f"{name} = {text[0]}", header=text[1])


def _rounded(node: Node, text: str, code: Code) -> Change:
    rounded, header = _rounding(text, code)
    return replaced("narrowed", node, rounded, header=header)


def _rounding(text: str, code: Code) -> tuple[str, str]:
    for header, pattern in _ROUNDING.items():
        if re.search(rf"#\s*include\s*<{re.escape(header)}>", code.text):
            return pattern.format(text), ""
    return _ROUNDING["cuda_fp16.h"].format(text), "cuda_fp16.h"


def _call(node: Node, code: Code) -> tuple[str, list[Node]]:
    function = node.child_by_field_name("function")
    given = node.child_by_field_name("arguments")
    if node.type != "call_expression" or function is None or given is None:
        return "", []
    return code.of(function), [child for child in given.named_children if child.type != "comment"]


def _function(node: Node) -> Node | None:
    around = node.parent
    while around is not None and around.type not in ("function_definition", "lambda_expression"):
        around = around.parent
    return around


def _in_function(node: Node) -> bool:
    return _function(node) is not None


def _in_float_function(node: Node, code: Code) -> bool:
    function = _function(node)
    kind = function.child_by_field_name("type") if function is not None else None
    pointer = function is not None and any(
        child.type in ("pointer_declarator", "reference_declarator")
        for child in function.named_children
    )
    return kind is not None and code.of(kind) == "float" and not pointer


def _declared_float(node: Node, code: Code) -> bool:
    declaration = node.parent
    declared = node.child_by_field_name("declarator")
    if declaration is None or declared is None or declared.type != "identifier":
        return False
    kind = declaration.child_by_field_name("type")
    return kind is not None and code.of(kind) == "float" and _in_function(node)


def _float_names(node: Node, code: Code) -> frozenset[str]:
    function = _function(node)
    if function is None:
        return frozenset()
    names = set()
    for inner in walk(function):
        kind = inner.child_by_field_name("type") if inner.type == "declaration" else None
        if kind is None or code.of(kind) != "float":
            continue
        for child in inner.named_children:
            declared = child.child_by_field_name("declarator") or child
            if declared.type == "identifier":
                names.add(code.of(declared))
    return frozenset(names)
