"""The operators: what small changes they make to a piece of code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from tuner.source.syntax import Node, fold, text_of, walk

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
class MutatedSource:
    """The source that the tree was made of; the tree's offsets are offsets into it.

    `rendered` tells that its bare constants are values of a config, which are not the kernel's.
    """

    text: str
    rendered: bool = False

    def of(self, node: Node) -> str:
        return text_of(node, self.text)

    def operand(self, node: Node) -> str:
        """Return an expression's text, in parentheses where another operator could split it."""
        text = self.of(node)
        return text if node.type in _TIGHT else f"({text})"


Operator = Callable[[Node, MutatedSource], Iterator[Change]]


def replaced(operator: str, node: Node, text: str, *, header: str = "") -> Change:
    """Make the change that puts `text` in a node's place."""
    return Change(operator, node.start_byte, node.end_byte, text, header)


def operator_of(node: Node) -> Node | None:
    return node.child_by_field_name("operator")


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


def shuffle(node: Node, code: MutatedSource) -> Iterator[Change]:
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


def narrowed(node: Node, code: MutatedSource) -> Iterator[Change]:
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


def _narrowed_assignment(node: Node, code: MutatedSource) -> Iterator[Change]:
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


def _rounded(node: Node, text: str, code: MutatedSource) -> Change:
    rounded, header = _rounding(text, code)
    return replaced("narrowed", node, rounded, header=header)


def _rounding(text: str, code: MutatedSource) -> tuple[str, str]:
    for header, pattern in _ROUNDING.items():
        if re.search(rf"#\s*include\s*<{re.escape(header)}>", code.text):
            return pattern.format(text), ""
    return _ROUNDING["cuda_fp16.h"].format(text), "cuda_fp16.h"


def _call(node: Node, code: MutatedSource) -> tuple[str, list[Node]]:
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


def _in_float_function(node: Node, code: MutatedSource) -> bool:
    function = _function(node)
    kind = function.child_by_field_name("type") if function is not None else None
    pointer = function is not None and any(
        child.type in ("pointer_declarator", "reference_declarator")
        for child in function.named_children
    )
    return kind is not None and code.of(kind) == "float" and not pointer


def _declared_float(node: Node, code: MutatedSource) -> bool:
    declaration = node.parent
    declared = node.child_by_field_name("declarator")
    if declaration is None or declared is None or declared.type != "identifier":
        return False
    kind = declaration.child_by_field_name("type")
    return kind is not None and code.of(kind) == "float" and _in_function(node)


def _float_names(node: Node, code: MutatedSource) -> frozenset[str]:
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


def swapped(node: Node, code: MutatedSource) -> Iterator[Change]:
    """Swap an operator for another: arithmetic, comparisons, logic, assignments; drop `!`."""
    sign = operator_of(node)
    if sign is None:
        return
    for name, others in _SWAPS.get(node.type, ()):
        for other in others.get(sign.type, ()):
            yield replaced(name, sign, other)


def bound(node: Node, code: MutatedSource) -> Iterator[Change]:
    """Make a bound one stricter or wider, where the comparison alone does not do the same."""
    sign = operator_of(node) if node.type == "binary_expression" else None
    right = node.child_by_field_name("right")
    if sign is None or right is None or sign.type not in _BOUND:
        return
    if not _INTEGER.fullmatch(code.of(right)):  # which the operator on constants changes
        yield replaced("bound", right, f"{code.operand(right)} {_BOUND[sign.type]} 1")


def constant(node: Node, code: MutatedSource) -> Iterator[Change]:
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


def axis(node: Node, code: MutatedSource) -> Iterator[Change]:
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


_BRANCHES = ("if_statement", "while_statement", "do_statement", "conditional_expression")
_LOOPS = ("for_statement", "while_statement", "do_statement")
_BARRIER = re.compile(r"__sync(?:threads|warp)\w*\b")
_EFFECTS = ("assignment_expression", "call_expression", "update_expression")
_ORDERS = ("<", "<=", ">", ">=")


def condition(node: Node, code: MutatedSource) -> Iterator[Change]:
    """Negate the condition of a branch or a loop."""
    asked = _condition(node)
    if asked is not None:
        yield replaced("condition", asked, f"!({code.of(asked)})")


def guard(node: Node, code: MutatedSource) -> Iterator[Change]:
    """Make a guard always true and always false."""
    asked = _condition(node)
    constexpr = any(child.type == "constexpr" for child in node.children)
    if asked is None or constexpr or node.type in _LOOPS:
        return
    if any((sign := operator_of(n)) and sign.type in _ORDERS for n in walk(asked)):
        yield replaced("guard", asked, "true")
        yield replaced("guard", asked, "false")


def tail(node: Node, code: MutatedSource) -> Iterator[Change]:
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


def removal(node: Node, code: MutatedSource) -> Iterator[Change]:
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


OPERATORS: tuple[Operator, ...] = (
    swapped,
    bound,
    constant,
    axis,
    condition,
    guard,
    tail,
    removal,
    arguments,
    cast,
    shuffle,
    narrowed,
)
