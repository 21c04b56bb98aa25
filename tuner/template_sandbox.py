"""What a template may do: a closed part of Jinja, in its sandbox, with bounds on the work."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import islice
from math import isfinite
from typing import Any

from jinja2 import StrictUndefined, Undefined, pass_context
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tuner.expressions import FUNCTIONS, Value, power

MAX_OUTPUT = 1_000_000
MAX_STEPS = 50_000
MAX_RANGE = 4096
MAX_BITS = 4096
# Marks and the text inside macros count as well, so more may be written than is kept.
MAX_WRITTEN = 8 * MAX_OUTPUT

JOIN, COUNT, UNMARK = "(join)", "(count)", "(unmark)"
MARK = "\x02{}\x03"
MARK_CHARACTERS = "\x02\x03"
LOOP = frozenset({"first", "index", "index0", "last", "length", "revindex", "revindex0"})


@dataclass(slots=True)
class Budget:
    """What one rendering may still spend."""

    steps: int = MAX_STEPS
    characters: int = MAX_WRITTEN

    def step(self, count: int = 1) -> None:
        """Spend steps: loop iterations, calls and items looked at."""
        self.steps -= count
        if self.steps < 0:
            raise TemplateRuntimeError(f"over {MAX_STEPS} loop iterations and calls")

    def write(self, text: str) -> str:
        """Spend the characters of `text` and hand it back."""
        self.characters -= len(text)
        if self.characters < 0 or len(text) > MAX_OUTPUT:
            raise TemplateRuntimeError(f"over {MAX_OUTPUT} characters of output")
        return text


class _Context(Context):
    """A rendering's variables and its budget."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.budget = Budget()


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja without attributes, loaders or unbounded work."""

    context_class = _Context
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Give what a loop knows of itself; nothing else has attributes."""
        if isinstance(obj, Undefined):
            return getattr(obj, attribute)
        if not isinstance(obj, LoopContext) or attribute not in LOOP:
            raise SecurityError(f"the attribute {attribute!r} is not allowed")
        return getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Index a list, a mapping or a text, without Jinja's detour to attributes."""
        if not isinstance(obj, list | tuple | dict | str | Undefined):
            raise SecurityError(f"a {type(obj).__name__} has no items")
        return obj[argument]

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a macro or a function of ours, and count it."""
        if not isinstance(obj, Macro) and obj not in functions().values():
            raise SecurityError(f"{obj!r} cannot be called")
        context.budget.step(1 + sum(_items(argument) for argument in args))
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute with numbers of bounded size; `+` also joins two texts."""
        if isinstance(left, Undefined) or isinstance(right, Undefined):
            return super().call_binop(context, operator, left, right)
        if isinstance(left, str) and isinstance(right, str) and operator == "+":
            return context.budget.write(left + right)
        if not isinstance(left, int | float) or not isinstance(right, int | float):
            raise TemplateRuntimeError(f"{operator} needs two numbers; ~ joins texts")
        if operator == "**":
            return power(left, right)
        if operator == "*" and _bits(left) + _bits(right) > MAX_BITS:
            raise TemplateRuntimeError("the product is too large")
        return super().call_binop(context, operator, left, right)


@cache
def sandbox() -> Sandbox:
    """Make the environment that every template is parsed and rendered in."""
    environment = Sandbox(
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
    )
    environment.globals = dict(functions())
    filters = {name: _counted(function) for name, function in FILTERS.items()}
    environment.filters = {**filters, **_HIDDEN}
    allowed = {"boolean", "divisibleby", "even", "false", "in", "number", "odd", "string", "true"}
    environment.tests = {n: test for n, test in environment.tests.items() if n in allowed}
    return environment


@pass_context
def _finalize(context: _Context, value: object) -> str:
    return context.budget.write(as_cuda(value))


def as_cuda(value: object) -> str:
    """Write a value as C++ does: `true`, not `True`."""
    match value:
        case bool():
            return str(value).lower()
        case str() | int():
            return str(value)
        case float() if isfinite(value):
            return str(value)
        case Undefined():
            return str(value)  # StrictUndefined raises its own error here
    raise TemplateRuntimeError(f"{value!r} has no form in CUDA; write a number, a text or a bool")


@pass_context
def _range(context: _Context, *bounds: int) -> range:
    numbers = range(*bounds)
    if len(numbers) > MAX_RANGE:
        raise TemplateRuntimeError(f"a range of {len(numbers)}, over {MAX_RANGE}")
    return numbers


@cache
def functions() -> dict[str, Callable[..., Any]]:
    """List what a template can call besides its own macros."""
    return {**FUNCTIONS, "range": _range}


def _join(items: Iterable[object], separator: str = "") -> str:
    return separator.join(as_cuda(item) for item in items)


def _round(value: float, digits: int = 0) -> Value:
    if not 0 <= digits <= 15:
        raise TemplateRuntimeError("round takes 0 to 15 digits")
    return round(value, digits) if digits else round(value)


def _counted(function: Callable[..., Any]) -> Callable[..., Any]:
    @pass_context
    def apply(context: _Context, value: Any, *args: Any) -> Any:
        context.budget.step(1 + _items(value))
        result = function(value, *args)
        return context.budget.write(result) if isinstance(result, str) else result

    return apply


@pass_context
def _loop(context: _Context, items: Iterable[Any]) -> list[Any]:
    taken = list(islice(items, context.budget.steps + 1))
    context.budget.step(len(taken))
    return taken


def _unmark(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return "".join(
        piece.partition(MARK_CHARACTERS[1])[2] if i else piece
        for i, piece in enumerate(value.split(MARK_CHARACTERS[0]))
    )


def _items(value: object) -> int:
    return len(value) if isinstance(value, list | tuple | dict | range) else 0


def _bits(value: float) -> int:
    return value.bit_length() if isinstance(value, int) else 0


FILTERS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "float": float,
    "int": int,
    "join": _join,
    "length": len,
    "lower": str.lower,
    "max": max,
    "min": min,
    "round": _round,
    "upper": str.upper,
}
_HIDDEN: dict[str, Callable[..., Any]] = {
    COUNT: _loop,
    JOIN: _counted(_join),
    UNMARK: _unmark,
}
