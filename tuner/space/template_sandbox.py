"""What a template may do: a closed part of Jinja, in its sandbox, with bounds on the work."""

from __future__ import annotations

import reprlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from math import isfinite
from typing import Any

from jinja2 import StrictUndefined, Undefined, pass_context
from jinja2.exceptions import SecurityError, TemplateRuntimeError, TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tuner.model.expressions import FUNCTIONS, Value, power

MAX_OUTPUT = 1_000_000
MAX_SECONDS = 5.0
# Names, numbers, operators and pieces of text: Jinja takes about 50 us for each to compile it.
MAX_TOKENS = 10_000
MAX_STEPS = 50_000
MAX_RANGE = 4096
MAX_BITS = 4096
# What an item of a list costs, in characters.
ITEM_WEIGHT = 8
# Marks and the text inside macros count as well, so more may be written than is kept.
MAX_WRITTEN = 8 * MAX_OUTPUT

JOIN, COUNT, UNMARK, WEIGH = "(join)", "(count)", "(unmark)", "(weigh)"
MARK = "\x02{}\x03"
MARK_CHARACTERS = "\x02\x03"
LOOP = frozenset({"first", "index", "index0", "last", "length", "revindex", "revindex0"})


@dataclass(slots=True)
class Budget:
    """What one rendering may still spend."""

    steps: int = MAX_STEPS
    characters: int = MAX_WRITTEN
    deadline: float = field(default_factory=lambda: time.monotonic() + MAX_SECONDS)

    def step(self, count: int = 1) -> None:
        """Spend steps: loop iterations, calls and items looked at."""
        self.steps -= count
        if self.steps < 0:
            raise TemplateRuntimeError(f"over {MAX_STEPS} loop iterations and calls")
        self.tick()

    def write(self, text: str) -> str:
        """Spend the characters of `text` and hand it back."""
        self.characters -= len(text)
        if self.characters < 0 or len(text) > MAX_OUTPUT:
            raise TemplateRuntimeError(f"over {MAX_OUTPUT} characters of output")
        self.tick()
        return text

    def weigh(self, value: Any) -> Any:
        """Spend as many characters as comparing `value` would look at, and hand it back."""
        self.characters -= _weight(value)
        if self.characters < 0:
            raise TemplateRuntimeError(f"over {MAX_OUTPUT} characters and items looked at")
        return value

    def tick(self) -> None:
        """Raise when the time is up."""
        if time.monotonic() > self.deadline:
            raise TemplateRuntimeError(f"over {MAX_SECONDS:g} s")


class _Context(Context):
    """A rendering's variables and its budget."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.budget = Budget()


class _Items(list[Any]):
    """What a loop runs over, with an eye on the clock."""

    budget: Budget

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self.budget.tick()
            yield item


class _Tokens(Extension):
    """Stop the parser at a template of too many tokens."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        for count, token in enumerate(stream):
            if count >= MAX_TOKENS:
                raise TemplateSyntaxError(f"over {MAX_TOKENS} words and signs", token.lineno)
            yield token


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
            raise SecurityError(f"a {type(obj).__name__} cannot be called")
        context.budget.weigh([*args, *kwargs.values()])
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
            return _bounded(power(left, right))
        if operator == "*" and _bits(left) + _bits(right) > MAX_BITS:
            raise TemplateRuntimeError("the product is too large")
        return _bounded(super().call_binop(context, operator, left, right))


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
        extensions=[_Tokens],
    )
    environment.globals = dict(functions())
    filters = {name: _counted(function) for name, function in FILTERS.items()}
    environment.filters = {**filters, **_HIDDEN}
    allowed = {"boolean", "false", "in", "number", "string", "true"}
    environment.tests = {n: test for n, test in environment.tests.items() if n in allowed}
    environment.tests |= {"divisibleby": _divisible, "even": _even, "odd": _odd}
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
    found = reprlib.repr(value)
    raise TemplateRuntimeError(f"{found} has no form in CUDA; write a number, a text or a bool")


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


def _divisible(value: object, divisor: object) -> bool:
    # Jinja's own test formats a text: `"%1000000000d" is even` fills the memory.
    if not isinstance(value, int | float) or not isinstance(divisor, int | float):
        raise TemplateRuntimeError("divisibleby, even and odd need numbers")
    return value % divisor == 0


def _even(value: object) -> bool:
    return _divisible(value, 2)


def _odd(value: object) -> bool:
    return not _divisible(value, 2)


def _counted(function: Callable[..., Any]) -> Callable[..., Any]:
    @pass_context
    def apply(context: _Context, value: Any, *args: Any) -> Any:
        context.budget.step(1 + _items(context.budget.weigh(value)))
        result = function(value, *args)
        return context.budget.write(result) if isinstance(result, str) else _bounded(result)

    return apply


@pass_context
def _loop(context: _Context, items: Iterable[Any]) -> list[Any]:
    taken = _Items(islice(items, context.budget.steps + 1))
    taken.budget = context.budget
    context.budget.step(len(taken))
    return taken


@pass_context
def _weigh(context: _Context, value: Any) -> Any:
    return context.budget.weigh(value)


def _weight(value: Any) -> int:
    # A list may hold another one many times over, and comparing or showing it walks them all.
    weight, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        weight += ITEM_WEIGHT
        if isinstance(item, str):
            weight += len(item)
        elif isinstance(item, list | tuple):
            waiting += item
        elif isinstance(item, dict):
            waiting += item
            waiting += item.values()
        if weight + ITEM_WEIGHT * len(waiting) > MAX_OUTPUT:
            raise TemplateRuntimeError(f"a value of over {MAX_OUTPUT} characters and items")
    return weight


def _bounded(value: Any) -> Any:
    if _bits(value) > MAX_BITS:
        raise TemplateRuntimeError("the number is too large")
    return value


def _unmark(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return "".join(
        piece.partition(MARK_CHARACTERS[1])[2] if i else piece
        for i, piece in enumerate(value.split(MARK_CHARACTERS[0]))
    )


def _items(value: object) -> int:
    return len(value) if isinstance(value, list | tuple | dict | range) else 0


def _bits(value: object) -> int:
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
    WEIGH: _weigh,
}
