"""Templates: Jinja in CUDA's own comments, rendered to CUDA that knows its lines.

A template may come from a model or a stranger. Of Jinja's syntax tree only a closed part is let
through, it renders in Jinja's immutable sandbox, and its work is bounded.
"""

from __future__ import annotations

import re
import reprlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import isfinite
from pathlib import Path
from traceback import walk_tb
from typing import Any

import jinja2
from jinja2 import StrictUndefined, Undefined, meta, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateRuntimeError, TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from tuner.model.config import Derived, SearchSpace
from tuner.model.errors import ExpressionError, TemplateError
from tuner.model.expressions import FUNCTIONS, Value, power
from tuner.model.kernel import DEVICE_NAMES, KernelSpec
from tuner.space.inclusion import Whole, put_together
from tuner.space.yaml import read_text

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
MAX_MESSAGE = 500

_SYNTAX = "expressions are @{ name }@, statements `//% if name` or `/*% if name %*/`"
_STATEMENTS = (nodes.Assign, nodes.For, nodes.If, nodes.Macro, nodes.Output, nodes.Template)
_EXPRESSIONS = (
    *(nodes.BinExpr, nodes.UnaryExpr, nodes.Compare, nodes.Operand, nodes.Concat, nodes.CondExpr),
    *(nodes.Const, nodes.TemplateData, nodes.Name, nodes.List),
    *(nodes.Call, nodes.Filter, nodes.Getattr, nodes.Getitem),
)
_LOOP = frozenset({"first", "index", "index0", "last", "length", "revindex", "revindex0"})
# A line of output starts with the line of the template that it came from, between these two.
_MARKS = "\x02\x03"
_MARK = re.compile(f"{_MARKS[0]}([0-9]+){_MARKS[1]}")
# What a template can do wrong while it renders.
_FAILURES = (
    jinja2.TemplateError,
    ExpressionError,
    ArithmeticError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class Rendered:
    """CUDA source; line i + 1 of it came from line `lines[i]` of the template.

    `whole` says which file each of those was read from, where there are several.
    """

    source: str
    lines: tuple[int, ...]
    whole: Whole | None = field(default=None, repr=False, compare=False)

    def template_line(self, line: int) -> int:
        """Find the template's line for a line of `source`; compilers also name the one after."""
        return self.lines[min(max(line, 1), len(self.lines)) - 1] if self.lines else 1

    def place(self, line: int, path: Path) -> str:
        """Name the file and line for a line of `source`; `path` is the template's."""
        found = path, self.template_line(line)
        return "{}:{}".format(*(self.whole.place(found[1]) if self.whole else found))


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template. `uses` are the names it needs, with the line of each in `_places`.

    `text` holds what the template includes in its place: it needs no other file, and lines count
    in it. `_whole` knows the files for errors.
    """

    path: Path
    text: str
    uses: frozenset[str]
    _places: Mapping[str, int] = field(repr=False, compare=False)
    _assigned: Mapping[str, int] = field(repr=False, compare=False)
    _compiled: jinja2.Template = field(repr=False, compare=False)
    _whole: Whole | None = field(default=None, repr=False, compare=False)

    @classmethod
    def load(cls, path: Path, folders: Sequence[Path] = ()) -> Template:
        """Read and parse a file with what it includes from `folders`.

        Raises `TemplateError` with the file and line of a mistake.
        """
        text = read_text(path, 4 * MAX_OUTPUT, TemplateError, "template")
        whole = put_together(text, path, folders)
        try:
            template = cls.from_text(whole.text, path)
        except TemplateError as error:
            _tell_file(error, whole)
            raise
        return replace(template, _whole=whole) if whole.text != text else template

    @classmethod
    def from_text(cls, text: str, path: Path) -> Template:
        """Parse a text that includes nothing; `path` is where errors say it stands."""
        tree = _parsed(text, path)
        names = meta.find_undeclared_variables(tree)
        loaded: dict[str, int] = {}
        assigned: dict[str, int] = {}
        named: Iterator[nodes.Name | nodes.Macro] = tree.find_all((nodes.Name, nodes.Macro))
        for node in named:
            load = isinstance(node, nodes.Name) and node.ctx == "load"
            (loaded if load else assigned).setdefault(node.name, node.lineno)
        tree = _Instrumented().visit(tree)
        tree.set_environment(_sandbox())
        try:
            code = _sandbox().compile(tree, name=path.name, filename=str(path))
        except (SyntaxError, RecursionError, MemoryError) as error:
            message = "nested too deeply, or too many loops in one another"
            raise TemplateError(message, path=path, line=1) from error
        compiled = jinja2.Template.from_code(_sandbox(), code, _sandbox().globals)
        return cls(path, text, frozenset(names), loaded, assigned, compiled)

    def check(self, space: SearchSpace, spec: KernelSpec) -> None:
        """Raise `TemplateError` unless the template uses exactly the declared parameters.

        It may use axes, operator macros and derived names too. A parameter may also be used by a
        launch only.
        """
        try:
            self._check(space, spec)
        except TemplateError as error:
            _tell_file(error, self._whole)
            raise

    def _check(self, space: SearchSpace, spec: KernelSpec) -> None:
        operators = {operator.name for operator in spec.operators}
        derived = {one.name: one.expression for one in space.derived}
        known = {*space.names, *spec.axes, *operators, *derived}
        for name in sorted(self.uses - known, key=lambda name: self._places[name]):
            remedy = f"declare it under `parameters` in {spec.path.name}; "
            remedy += f"declared: {', '.join(sorted(known))}"
            message, line = f"`{name}` is not declared", self._places[name]
            raise TemplateError(message, path=self.path, line=line, remedy=remedy)
        for name in sorted(known & self._assigned.keys()):
            remedy = "choose another name for the variable or macro"
            message = f"`{name}` is declared in {spec.path.name} and set again here"
            raise TemplateError(message, path=self.path, line=self._assigned[name], remedy=remedy)
        used = {n for launch in spec.launch for e in launch.expressions() for n in e.names}
        used |= self._check_derived(space, spec) | self.uses
        for parameter in space.parameters:
            if parameter.name not in used:
                message = f"the parameter `{parameter.name}` changes nothing: "
                message += f"neither {self.path.name} nor a launch uses it"
                remedy = f"write @{{ {parameter.name} }}@ in the template, or delete it here"
                raise TemplateError(message, path=spec.path, line=parameter.line, remedy=remedy)

    def _check_derived(self, space: SearchSpace, spec: KernelSpec) -> set[str]:
        """Return what the derived names depend on that the template uses."""
        needed = set[str]()
        for one in space.derived:
            if one.name in self.uses:
                needed |= one.expression.names
                if asked := sorted(one.expression.names & DEVICE_NAMES):
                    message = f"`{one.name}` depends on `{asked[0]}`, a number of the device"
                    remedy = "write only what is the same on every device into the source"
                    place = self._places[one.name]
                    raise TemplateError(message, path=self.path, line=place, remedy=remedy)
            elif not one.used:
                message = f"the derived name `{one.name}` changes nothing: nothing uses it"
                line, remedy = one.expression.line, "use it, or delete it here"
                raise TemplateError(message, path=spec.path, line=line, remedy=remedy)
        return needed

    def line_of(self, name: str) -> int | None:
        """Find the first line that uses a name; None where the template doesn't use it."""
        return self._places.get(name) if name in self.uses else None

    def render(self, names: Mapping[str, Value], derived: Iterable[Derived] = ()) -> Rendered:
        """Render for one config; raise `TemplateError` with the template's line.

        Of the `derived` names those get a value that the template uses; raises `ExpressionError`
        for one that has none here.
        """
        used = {one.name: one.expression for one in derived if one.name in self.uses}
        names = {**names, **{name: one.evaluate(names) for name, one in used.items()}}
        for name, value in names.items():
            if isinstance(value, str) and set(value) & set(_MARKS):
                raise TemplateError(f"the value of `{name}` has a control character")
        try:
            marked = self._compiled.render(names)
        except _FAILURES as error:
            failure = self._failure(error, names)
            _tell_file(failure, self._whole)
            raise failure from error
        rendered = replace(_unmarked(marked), whole=self._whole)
        if len(rendered.source) > MAX_OUTPUT:
            message = f"renders to {len(rendered.source)} characters, over {MAX_OUTPUT}"
            raise TemplateError(message, path=self.path, line=1)
        return rendered

    def _failure(self, error: Exception, names: Mapping[str, Value]) -> TemplateError:
        frames = walk_tb(error.__traceback__)
        lines = [n for frame, n in frames if frame.f_code.co_filename == str(self.path)]
        line = lines[-1] if lines else 1
        message = error.message if isinstance(error, ExpressionError) else str(error)
        message = message[:MAX_MESSAGE] or type(error).__name__
        if isinstance(error, RecursionError):
            message = "a macro calls itself without end"
        message = f"does not render: {message}; found {_found(self.text, line)}"
        known = f"known names: {', '.join(sorted(names))}"
        remedy = known if isinstance(error, jinja2.UndefinedError) else None
        return TemplateError(message, path=self.path, line=line, remedy=remedy)


def _tell_file(error: TemplateError, whole: Whole | None) -> None:
    if whole is not None and error.line is not None and error.path == whole.path:
        error.path, error.line = whole.place(error.line)


def map_errors(text: str, rendered: Rendered, path: Path, *, unit: str) -> str:
    """Rewrite a compiler's messages about `unit` to lines of the template at `path`."""
    name = re.escape(unit)
    own = re.compile(rf"^(?:[^\s():]*/)?{name}(?:\((\d+)\)|:(\d+)(?::\d+)?)(?=:)")
    other = re.compile(r"^\S[^():]*(?:\(\d+\)|:\d+(?::\d+)?): ")
    trace = re.compile(rf"\bat line (\d+)( of \"?{name}\"?)?(?=$)")
    in_unit = True
    mapped = []
    for line in text.split("\n"):
        changed = line
        if match := own.match(line):
            in_unit = True
            place = rendered.place(int(match[1] or match[2]), path)
            changed = f"{place}{line[match.end() :]}"
        elif other.match(line):
            in_unit = False
        elif (match := trace.search(line)) and (in_unit or match[2]):
            place = rendered.place(int(match[1]), path)
            changed = f"{line[: match.start()]}at {place}"
        mapped.append(changed.replace(f'"{unit}"', f'"{path}"'))
    return "\n".join(mapped)


def _parsed(text: str, path: Path) -> nodes.Template:
    for character in _MARKS:
        if character in text:
            line = text.count("\n", 0, text.index(character)) + 1
            raise TemplateError("a control character", path=path, line=line, remedy="delete it")
    if len(text) > MAX_OUTPUT:
        raise TemplateError(f"{len(text)} characters, over {MAX_OUTPUT}", path=path)
    try:
        tree = _sandbox().parse(text)
    except TemplateSyntaxError as error:
        problem = (error.message or "not a template").rstrip(".")
        message = f"{problem}; found {_found(text, error.lineno)}"
        raise TemplateError(message, path=path, line=error.lineno, remedy=_SYNTAX) from error
    except (RecursionError, MemoryError) as error:
        raise TemplateError("nested too deeply", path=path, line=1) from error
    except ValueError as error:
        # Python's bound on the digits of a number.
        raise TemplateError(f"not a template: {error}", path=path, line=1) from error
    waiting: list[tuple[nodes.Node, int]] = [(tree, 0)]
    while waiting:
        node, depth = waiting.pop()
        if depth > MAX_DEPTH:
            remedy = f"no more than {MAX_DEPTH} levels; long sums and chains count too"
            raise TemplateError("nested too deeply", path=path, line=node.lineno, remedy=remedy)
        if wrong := _refusal(node):
            raise TemplateError(wrong[0], path=path, line=node.lineno, remedy=wrong[1])
        waiting += [(child, depth + 1) for child in reversed([*node.iter_child_nodes()])]
    return tree


def _found(text: str, line: int) -> str:
    lines = text.splitlines() or [""]
    return f"`{lines[min(line, len(lines)) - 1].strip()[:120]}`"


def _refusal(node: nodes.Node) -> tuple[str, str] | None:
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
        case nodes.Const(value=str() as text) if set(text) & set(_MARKS):
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


class _Instrumented(NodeTransformer):
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
        return _filtered(self.generic_visit(node), "(unmark)")

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "join")

    def visit_List(self, node: nodes.List) -> nodes.Filter:  # noqa: N802
        return _filtered(self.generic_visit(node), "(list)")

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        self.generic_visit(node)
        node.expr = _filtered(node.expr, "(compare)")
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, "(compare)")
        return node

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "(iterate)")
        return node


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _mark(line: int) -> str:
    return f"{_MARKS[0]}{line}{_MARKS[1]}"


def _unmarked(marked: str) -> Rendered:
    lines: list[int] = []
    first, *rest = _MARK.split(marked)
    current, starts = 1, True
    for number, text in zip(("1", *rest[::2]), (first, *rest[1::2]), strict=True):
        # A line that starts inside a value has no mark: it belongs to the last one before.
        current = int(number)
        if not text:
            continue
        ends = text.count("\n")
        inside = ends - 1 if text.endswith("\n") else ends
        lines += [current] * (starts + inside)
        starts = inside < ends
    return Rendered("".join((first, *rest[1::2])), tuple(lines))


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
            return _bounded(power(left, right))
        if operator == "*" and _bits(left) + _bits(right) > MAX_BITS:
            raise TemplateRuntimeError("the product is too large")
        return _bounded(super().call_binop(context, operator, left, right))


@cache
def _sandbox() -> _Sandbox:
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


def _counted(function: Callable[..., Any]) -> Callable[..., Any]:
    @pass_context
    def apply(context: _Context, value: Any, *args: Any) -> Any:
        context.budget.spend(steps=1)
        context.budget.spend_on(value)
        return _bounded(function(value, *args))

    return apply


@pass_context
def _iterated(context: _Context, items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        context.budget.spend(steps=1)
        yield item


@pass_context
def _listed(context: _Context, items: list[Any]) -> list[Any]:
    # A list in lists could hold itself many times over, and comparing it would walk them all.
    context.budget.spend(characters=sum(len(_as_cuda(item)) for item in items))
    return items


@pass_context
def _compared(context: _Context, value: Any) -> Any:
    context.budget.spend_on(value)
    return value


def _unmarked_text(value: Any) -> Any:
    return _MARK.sub("", value) if isinstance(value, str) else value


def _bounded(value: Any) -> Any:
    if _bits(value) > MAX_BITS:
        raise TemplateRuntimeError("the number is too large")
    return value


def _bits(value: object) -> int:
    return value.bit_length() if isinstance(value, int) else 0


_FUNCTIONS: dict[str, Callable[..., Any]] = {**FUNCTIONS, "range": _range}
_FILTERS: dict[str, Callable[..., Any]] = {
    "join": _join,
    "length": _counted(len),
    "lower": _counted(str.lower),
    "round": _counted(_round),
    "upper": _counted(str.upper),
    **{function.__name__: _counted(function) for function in (abs, float, int, max, min)},
}
_HIDDEN_FILTERS: dict[str, Callable[..., Any]] = {
    "(compare)": _compared,
    "(iterate)": _iterated,
    "(list)": _listed,
    "(unmark)": _unmarked_text,
}
