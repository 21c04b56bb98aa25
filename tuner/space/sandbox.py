"""What a template may do: a closed part of Jinja, in its sandbox, with bounded work."""

from __future__ import annotations

import re
import reprlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from math import isfinite
from typing import Any

from jinja2 import StrictUndefined, Undefined, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateRuntimeError, TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from tuner.model.bounds import CONTROL
from tuner.model.expressions import FUNCTIONS, Value, power

MAX_OUTPUT = 1_000_000
MAX_SECONDS = 5.0
# Names, numbers, operators and pieces of text: Jinja takes about 50 us for each to compile it.
MAX_TOKENS = 10_000
MAX_STEPS = 50_000
MAX_RANGE = 4096
MAX_BITS = 4096
# Marks and the text inside macros count as well, so more may be written than is kept.
MAX_WRITTEN = 8 * MAX_OUTPUT
# Jinja and Python walk a tree by recursion.
MAX_DEPTH = 100

_STATEMENTS = (nodes.Assign, nodes.For, nodes.If, nodes.Macro, nodes.Output, nodes.Template)
_EXPRESSIONS = (
    *(nodes.BinExpr, nodes.UnaryExpr, nodes.Compare, nodes.Operand, nodes.Concat, nodes.CondExpr),
    *(nodes.Const, nodes.TemplateData, nodes.Name, nodes.List),
    *(nodes.Call, nodes.Filter, nodes.Getattr, nodes.Getitem),
)
_LOOP = frozenset({"first", "index", "index0", "last", "length", "revindex", "revindex0"})
# A line of output starts with the line of the template that it came from, between these two.
MARKS = "\x02\x03"
MARK = re.compile(f"{MARKS[0]}([0-9]+){MARKS[1]}")


def refusal(node: nodes.Node) -> tuple[str, str] | None:
    """Say why a node of the syntax tree is not allowed and what is; None where it may stand."""
    match node:
        case nodes.Name(name="varargs" | "kwargs" | "caller" as name):
            # Tuples of tuples: comparing two that share their parts takes exponential time.
            return f"`{name}` is not allowed", "name the macro's arguments"
        case nodes.For(recursive=True):
            return "a recursive loop is not allowed", "a macro may call itself"
        case nodes.CondExpr(expr2=None):
            return "an `if` without `else` in an expression", "write `a if c else b`"
        case nodes.Call() | nodes.Filter() if node.dyn_args or node.dyn_kwargs:
            return "`*` and `**` in a call are not allowed", "write the arguments out"
        case nodes.Call(node=function) if not isinstance(function, nodes.Name):
            listed = ", ".join(sorted(_FUNCTIONS))
            remedy = f"functions: {listed}; and the template's own macros"
            return "only a macro or a function can be called", remedy
        case nodes.Getattr(node=nodes.Name(name="loop"), attr=attribute) if attribute in _LOOP:
            return None
        case nodes.Getattr(attr=attribute):
            known = ", ".join(f"loop.{name}" for name in sorted(_LOOP))
            return f"the attribute `{attribute}` is not allowed", f"only loops have some: {known}"
        case nodes.Filter(name=name) if name not in _FILTERS:
            return f"no filter is named `{name}`", f"filters: {', '.join(sorted(_FILTERS))}"
        case nodes.Const(value=str() as text) if CONTROL.search(text):
            return "a text with a control character", "write visible characters"
        case nodes.Const(value=float() as number) if not isfinite(number):
            return "a number that is not finite", "no size needs more than 1e308"
        case nodes.Const(value=int() as number) if number.bit_length() > MAX_BITS:
            return "the number is too large", f"no size needs over {MAX_BITS} bits"
    if isinstance(node, _STATEMENTS + _EXPRESSIONS):
        return None
    remedy = "statements: if, for, set, macro"
    if isinstance(node, nodes.Expr | nodes.Helper):
        remedy = "values: numbers, texts, lists of them, and what operators and filters make of "
        remedy += "them"
    return f"`{type(node).__name__.lower()}` is not allowed in a template", remedy


class Instrumented(NodeTransformer):
    """Rewrite a syntax tree so that its output is marked with lines, and its work is counted.

    Text that a macro returns keeps its marks where it is written out at once; where a template
    looks at it or keeps it, the marks are taken out, and its lines are those of the expression.
    """

    def visit_Output(self, node: nodes.Output) -> nodes.Output:  # noqa: N802
        marked: list[nodes.Expr] = []
        for child in node.nodes:
            line = child.lineno
            if isinstance(child, nodes.TemplateData):
                pieces = child.data.split("\n")
                text = "\n".join(_mark(line + i) + piece for i, piece in enumerate(pieces))
                marked.append(nodes.Const(text, lineno=line))
                continue
            marked.append(nodes.Const(_mark(line), lineno=line))
            if isinstance(child, nodes.Call):
                self.generic_visit(child)
                marked.append(child)
            else:
                marked.append(self.visit(child))
        node.nodes = marked
        return node

    def visit_Call(self, node: nodes.Call) -> nodes.Filter:  # noqa: N802
        return _make_filter(self.generic_visit(node), "(unmark)")

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        return _make_filter(nodes.List(node.nodes, lineno=node.lineno), "join")

    def visit_List(self, node: nodes.List) -> nodes.Filter:  # noqa: N802
        return _make_filter(self.generic_visit(node), "(list)")

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        self.generic_visit(node)
        node.expr = _make_filter(node.expr, "(compare)")
        for operand in node.ops:
            operand.expr = _make_filter(operand.expr, "(compare)")
        return node

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        node.iter = _make_filter(node.iter, "(iterate)")
        return node


def _make_filter(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _mark(line: int) -> str:
    return f"{MARKS[0]}{line}{MARKS[1]}"


@dataclass(slots=True)
class RenderBudget:
    """What one rendering may still spend: loop iterations and calls, characters, and time."""

    steps: int = MAX_STEPS
    characters: int = MAX_WRITTEN
    deadline: float = field(default_factory=lambda: time.monotonic() + MAX_SECONDS)

    def spend(self, *, steps: int = 0, characters: int = 0) -> None:
        """Take something off; raise where nothing is left of it."""
        self.steps -= steps
        self.characters -= characters
        if self.steps < 0:
            raise TemplateRuntimeError(f"over {MAX_STEPS} loop iterations and calls")
        if self.characters < 0 or characters > MAX_OUTPUT:
            raise TemplateRuntimeError(f"over {MAX_OUTPUT} characters of output")
        if time.monotonic() > self.deadline:
            raise TemplateRuntimeError(f"over {MAX_SECONDS:g} s")

    def spend_on(self, value: object) -> None:
        items = value if isinstance(value, list | range) else (value,)
        self.spend(characters=sum(len(i) if isinstance(i, str) else 1 for i in items))


class _Context(Context):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.budget = RenderBudget()


class _TokenLimit(Extension):
    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        for count, token in enumerate(stream):
            if count >= MAX_TOKENS:
                raise TemplateSyntaxError(f"over {MAX_TOKENS} words and signs", token.lineno)
            yield token


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja without attributes, loaders or unbounded work."""

    context_class = _Context
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def getattr(self, obj: Any, attribute: str) -> Any:
        if not isinstance(obj, LoopContext | Undefined):
            raise SecurityError(f"the attribute {attribute!r} is not allowed")
        return getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if not isinstance(obj, list | Undefined):
            raise SecurityError(f"a {type(obj).__name__} has no items")
        return obj[argument]

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(obj, Macro) and obj not in _FUNCTIONS.values():
            raise SecurityError(f"a {type(obj).__name__} cannot be called")
        context.budget.spend(steps=1)
        for argument in args:
            context.budget.spend_on(argument)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, Undefined) or isinstance(right, Undefined):
            return super().call_binop(context, operator, left, right)
        if isinstance(left, str) and isinstance(right, str) and operator == "+":
            context.budget.spend(characters=len(left) + len(right))
            return left + right
        if not isinstance(left, int | float) or not isinstance(right, int | float):
            raise TemplateRuntimeError(f"{operator} needs two numbers; ~ joins texts")
        if operator == "**":
            return _require_small(power(left, right))
        if operator == "*" and _bits(left) + _bits(right) > MAX_BITS:
            raise TemplateRuntimeError("the product is too large")
        return _require_small(super().call_binop(context, operator, left, right))


@cache
def sandbox() -> _Sandbox:
    environment = _Sandbox(
        block_start_string="/*%",
        block_end_string="%*/",
        variable_start_string="@{",
        variable_end_string="}@",
        comment_start_string="/*#",
        comment_end_string="#*/",
        line_statement_prefix="//%",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        # Constants are folded while a template is compiled, where no budget stands.
        optimized=False,
        autoescape=False,
        cache_size=0,
        extensions=[_TokenLimit],
    )
    environment.globals = dict(_FUNCTIONS)
    environment.filters = {**_FILTERS, **_HIDDEN_FILTERS}
    environment.tests = {}
    return environment


def _as_cuda(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str() | int():
            return str(value)
        case float() if isfinite(value):
            return str(value)
        case Undefined():
            return str(value)  # StrictUndefined raises its own error here
    found = reprlib.repr(value)
    raise TemplateRuntimeError(f"{found} has no form in CUDA; write a number, a text or a bool")


@pass_context
def _finalize(context: _Context, value: object) -> str:
    text = _as_cuda(value)
    context.budget.spend(characters=len(text))
    return text


@pass_context
def _range(context: _Context, *bounds: int) -> range:
    numbers = range(*bounds)
    if len(numbers) > MAX_RANGE:
        raise TemplateRuntimeError(f"a range of {len(numbers)}, over {MAX_RANGE}")
    return numbers


@pass_context
def _join(context: _Context, items: Iterable[object], separator: str = "") -> str:
    context.budget.spend_on(items)
    texts = [_as_cuda(item) for item in items]
    characters = sum(map(len, texts)) + len(texts) * len(separator)
    context.budget.spend(steps=len(texts), characters=characters)
    return separator.join(texts)


def _round(value: float, digits: int = 0) -> Value:
    if not 0 <= digits <= 15:
        raise TemplateRuntimeError("round takes 0 to 15 digits")
    return round(value, digits) if digits else round(value)


def _charge_calls(function: Callable[..., Any]) -> Callable[..., Any]:
    @pass_context
    def apply(context: _Context, value: Any, *args: Any) -> Any:
        context.budget.spend(steps=1)
        context.budget.spend_on(value)
        return _require_small(function(value, *args))

    return apply


@pass_context
def _charge_items(context: _Context, items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        context.budget.spend(steps=1)
        yield item


@pass_context
def _charge_list(context: _Context, items: list[Any]) -> list[Any]:
    # A list in lists could hold itself many times over, and comparing it would walk them all.
    context.budget.spend(characters=sum(len(_as_cuda(item)) for item in items))
    return items


@pass_context
def _charge_comparison(context: _Context, value: Any) -> Any:
    context.budget.spend_on(value)
    return value


def _unmarked_text(value: Any) -> Any:
    return MARK.sub("", value) if isinstance(value, str) else value


def _require_small(value: Any) -> Any:
    if _bits(value) > MAX_BITS:
        raise TemplateRuntimeError("the number is too large")
    return value


def _bits(value: object) -> int:
    return value.bit_length() if isinstance(value, int) else 0


_FUNCTIONS: dict[str, Callable[..., Any]] = {**FUNCTIONS, "range": _range}
_FILTERS: dict[str, Callable[..., Any]] = {
    "join": _join,
    "length": _charge_calls(len),
    "lower": _charge_calls(str.lower),
    "round": _charge_calls(_round),
    "upper": _charge_calls(str.upper),
    **{function.__name__: _charge_calls(function) for function in (abs, float, int, max, min)},
}
_HIDDEN_FILTERS: dict[str, Callable[..., Any]] = {
    "(compare)": _charge_comparison,
    "(iterate)": _charge_items,
    "(list)": _charge_list,
    "(unmark)": _unmarked_text,
}
