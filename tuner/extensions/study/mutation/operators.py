"""The operators: what small changes they make to a piece of code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from tuner.source.syntax import Node, ancestors, fold, integer, part, text_of, walk

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

    def apply(self, text: str) -> str:
        return text[: self.start] + self.text + text[self.end :]


@dataclass(frozen=True, slots=True)
class MutatedSource:
    """The source that the tree was made of; the tree's offsets are offsets into it.

    `rendered` tells that its bare constants are values of a config, which are not the kernel's.
    """

    text: str
    rendered: bool = False

    def of(self, node: Node | None) -> str:
        return text_of(node, self.text)

    def operand(self, node: Node) -> str:
        """Return an expression's text, in parentheses where another operator could split it."""
        text = self.of(node)
        return text if node.type in _TIGHT else f"({text})"


Operator = Callable[[Node, MutatedSource], Iterator[Change]]


def replace_node(operator: str, node: Node, text: str, *, header: str = "") -> Change:
    return Change(operator, node.start_byte, node.end_byte, text, header)


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


_VALUED = ("declaration", "init_declarator", "assignment_expression", "return_statement")


def arguments(node: Node, code: MutatedSource) -> Iterator[Change]:
    """Swap neighbouring arguments of a call that is not symmetric in them."""
    called, given = _call(node, code)
    for number, (first, second) in enumerate(pairwise(given)):
        one, other = code.of(first), code.of(second)
        symmetric = number == 0 and (_SYMMETRIC.fullmatch(called) or _FUSED.fullmatch(called))
        if one != other and not symmetric:
            yield Change("arguments", first.start_byte, second.end_byte, f"{other}, {one}")


def cast(node: Node, code: MutatedSource) -> Iterator[Change]:
    """Remove a conversion of a value."""
    value = part(node, "value") if node.type == "cast_expression" else None
    called, given = _call(node, code)
    function = part(node, "function")
    if function is not None and len(given) == 1:
        converts = function.type == "primitive_type" or called.startswith("static_cast<")
        value = given[0] if converts else None
    if value is not None:
        yield replace_node("cast", node, f"({code.of(value)})")


def shuffle(node: Node, code: MutatedSource) -> Iterator[Change]:
    """Shuffle by another distance, in another direction, or among half of the lanes."""
    called, given = _call(node, code)
    match = _SHUFFLE.fullmatch(called)
    function = part(node, "function")
    if match is None or function is None or len(given) < 3:
        return
    yield replace_node("shuffle", given[0], _LOW_LANES)
    yield replace_node("shuffle", given[2], f"{code.operand(given[2])} + 1")
    if match[1]:
        yield replace_node("shuffle", function, f"__shfl_{_OTHER_SHUFFLE[match[1]]}_sync")


def narrow_types(node: Node, code: MutatedSource) -> Iterator[Change]:
    """Declare a local variable in a narrower type, and round floats to half the bits."""
    function = _function(node) if node.type in _VALUED else None
    if function is None:
        return
    kind, value = part(node, "type"), part(node, "value")
    if node.type == "declaration" and kind is not None and fold(code.of(kind)) in _NARROWER:
        yield replace_node("narrowed", kind, _NARROWER[fold(code.of(kind))])
    if node.type == "assignment_expression":
        yield from _narrowed_assignment(node, function, code)
    if node.type == "init_declarator" and value is not None:
        name = part(node, "declarator")
        is_float = code.of(part(node.parent, "type")) == "float"
        literal = value.type in ("number_literal", "initializer_list")
        if is_float and name is not None and name.type == "identifier" and not literal:
            yield _round_value(value, code.of(value), code)
    if node.type == "return_statement" and node.named_children:
        kinds = {child.type for child in function.named_children}
        by_value = kinds.isdisjoint(("pointer_declarator", "reference_declarator"))
        if code.of(part(function, "type")) == "float" and by_value:
            yield _round_value(node.named_children[0], code.of(node.named_children[0]), code)


def _narrowed_assignment(node: Node, function: Node, code: MutatedSource) -> Iterator[Change]:
    left, sign, right = part(node, "left"), code.of(part(node, "operator")), part(node, "right")
    if left is None or right is None or left.type != "identifier":
        return
    declared = (
        code.of(part(child, "declarator") or child)
        for inner in walk(function)
        if inner.type == "declaration" and code.of(part(inner, "type")) == "float"
        for child in inner.named_children
        if (part(child, "declarator") or child).type == "identifier"
    )
    name = code.of(left)
    if name not in declared:
        return
    if sign == "=":
        yield _round_value(right, code.of(right), code)
    elif sign in ("+=", "-=", "*=", "/="):
        text = f"{name} {sign[0]} {code.operand(right)}"
        yield _round_value(node, text, code, start=f"{name} = ")


def _round_value(node: Node, text: str, code: MutatedSource, *, start: str = "") -> Change:
    for header, pattern in _ROUNDING.items():
        if re.search(rf"#\s*include\s*<{re.escape(header)}>", code.text):
            return replace_node("narrowed", node, start + pattern.format(text))
    header = "cuda_fp16.h"
    return replace_node("narrowed", node, start + _ROUNDING[header].format(text), header=header)


def _call(node: Node, code: MutatedSource) -> tuple[str, list[Node]]:
    function, given = part(node, "function"), part(node, "arguments")
    if node.type != "call_expression" or function is None or given is None:
        return "", []
    return code.of(function), [child for child in given.named_children if child.type != "comment"]


def _function(node: Node) -> Node | None:
    functions = ("function_definition", "lambda_expression")
    return next((around for around in ancestors(node) if around.type in functions), None)


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
_COMPARISON = {
    "<": ("<=",),
    "<=": ("<",),
    ">": (">=",),
    ">=": (">",),
    "==": ("!=",),
    "!=": ("==",),
}
# `i < n + 1` is `i <= n`, which the operator on comparisons makes already.
_BOUND = {"<": "-", "<=": "+", ">": "+", ">=": "-"}
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


_SWAPS: dict[str, tuple[tuple[str, Mapping[str, tuple[str, ...]]], ...]] = {
    "binary_expression": (
        ("arithmetic", _ARITHMETIC),
        ("comparison", _COMPARISON),
        ("logical", {"&&": ("||",), "||": ("&&",)}),
    ),
    "unary_expression": (("logical", {"!": ("",)}),),
    "assignment_expression": (("compound", _COMPOUND),),
    "update_expression": (("compound", _COMPOUND),),
}


def swap_operators(node: Node, code: MutatedSource) -> Iterator[Change]:
    """Swap an operator for another: arithmetic, comparisons, logic, assignments; drop `!`."""
    sign = part(node, "operator")
    if sign is None:
        return
    for name, others in _SWAPS.get(node.type, ()):
        for other in others.get(sign.type, ()):
            yield replace_node(name, sign, other)


def bound(node: Node, code: MutatedSource) -> Iterator[Change]:
    """Make a bound one stricter or wider, where the comparison alone does not do the same."""
    sign, right = part(node, "operator"), part(node, "right")
    if node.type != "binary_expression" or sign is None or right is None:
        return
    # the operator on constants changes integers
    if sign.type in _BOUND and not _INTEGER.fullmatch(code.of(right)):
        yield replace_node("bound", right, f"{code.operand(right)} {_BOUND[sign.type]} 1")


def constant(node: Node, code: MutatedSource) -> Iterator[Change]:
    """Change whole numbers by one and to zero; scale floats by 1 % and negate them."""
    if node.type == "preproc_def":
        node = part(node, "value") or node
        if node.type != "preproc_arg" or code.rendered:
            return
    elif node.type not in ("number_literal", "true", "false"):
        return
    around = node.parent
    # the whole value of a constant outside functions
    setting = around is not None and around.type == "init_declarator" and _function(around) is None
    if not (code.rendered and setting):
        for text in _other_values(code.of(node).strip()):
            yield replace_node("constant", node, text)


def axis(node: Node, code: MutatedSource) -> Iterator[Change]:
    """Take another index variable, another of its axes, or another component of a vector."""
    value, field = part(node, "argument"), part(node, "field")
    if node.type != "field_expression" or value is None or field is None:
        return
    name, letter = code.of(value), code.of(field)
    if name in _AXES:
        yield replace_node("axis", value, _AXES[name])
    if letter in _NEXT:
        yield replace_node("axis" if name in _AXES else "component", field, _NEXT[letter])


def _other_values(literal: str) -> Iterator[str]:
    if literal in ("true", "false"):
        yield "false" if literal == "true" else "true"
    elif match := _INTEGER.fullmatch(literal):
        value, suffix = integer(match[1]), match[2]
        write = hex if literal[:2] in ("0x", "0X") else str
        if value < _LARGEST:
            yield f"{write(value + 1)}{suffix}"
        if value > 0:
            yield f"{write(value - 1)}{suffix}"
        if value > 1:
            yield f"0{suffix}"
    elif (match := _FLOAT.fullmatch(literal)) and any(map(str.isdigit, match[1])):
        number = float(match[1].replace("'", ""))
        yield from (f"{number * 1.01!r}{match[2]}", f"(-{literal})") if number else ("1.0f",)


_BRANCHES = ("if_statement", "while_statement", "do_statement", "conditional_expression")
_LOOPS = ("for_statement", "while_statement", "do_statement")
_BARRIER = re.compile(r"__sync(?:threads|warp)\w*\b")
_EFFECTS = ("assignment_expression", "call_expression", "update_expression")
_ORDERS = ("<", "<=", ">", ">=")


def condition(node: Node, code: MutatedSource) -> Iterator[Change]:
    """Negate the condition of a branch or a loop."""
    asked = _condition(node)
    if asked is not None:
        yield replace_node("condition", asked, f"!({code.of(asked)})")


def guard(node: Node, code: MutatedSource) -> Iterator[Change]:
    """Make a guard always true and always false."""
    asked = _condition(node)
    constexpr = any(child.type == "constexpr" for child in node.children)
    if asked is None or constexpr or node.type in _LOOPS:
        return
    if any((sign := part(n, "operator")) and sign.type in _ORDERS for n in walk(asked)):
        yield replace_node("guard", asked, "true")
        yield replace_node("guard", asked, "false")


def tail(node: Node, code: MutatedSource) -> Iterator[Change]:
    """Let a loop with a stride leave out its last step."""
    asked = _condition(node) if node.type == "for_statement" else None
    update = part(node, "update")
    left, step = part(asked, "left"), part(update, "right")
    if left is None or update is None or step is None or update.type != "assignment_expression":
        return
    sign, by = code.of(part(asked, "operator")), code.of(part(update, "operator"))
    if sign in ("<", "<=") and by == "+=":
        yield replace_node("tail", left, f"{code.operand(left)} + {code.operand(step)}")


def removal(node: Node, code: MutatedSource) -> Iterator[Change]:
    """Leave out a barrier, a call, an assignment or an early return."""
    if node.type == "return_statement" and not node.named_children:
        yield replace_node("statement", node, ";")
    if node.type != "expression_statement" or not node.named_children:
        return
    effect = node.named_children[0]
    if effect.type in _EFFECTS:
        barrier = _BARRIER.match(code.of(effect)) is not None
        yield replace_node("barrier" if barrier else "statement", node, ";")


def _condition(node: Node) -> Node | None:
    if node.type != "for_statement" and node.type not in _BRANCHES:
        return None
    asked = part(node, "condition")
    if asked is not None and asked.type in ("condition_clause", "parenthesized_expression"):
        asked = asked.named_children[0] if len(asked.named_children) == 1 else None
    return None if asked is None or asked.type == "declaration" else asked


OPERATORS: tuple[Operator, ...] = (
    *(swap_operators, bound, constant, axis, condition, guard, tail, removal),
    *(arguments, cast, shuffle, narrow_types),
)
