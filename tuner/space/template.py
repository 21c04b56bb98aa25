"""Templates: Jinja in CUDA's own comments, rendered to CUDA that knows its lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from traceback import walk_tb

import jinja2
from jinja2 import meta, nodes
from jinja2.visitor import NodeTransformer

from tuner.model.config import SearchSpace
from tuner.model.errors import ExpressionError, TemplateError
from tuner.model.expressions import Value
from tuner.model.kernel import KernelSpec
from tuner.space.template_sandbox import (
    COUNT,
    FILTERS,
    JOIN,
    LOOP,
    MARK,
    MARK_CHARACTERS,
    MAX_BITS,
    MAX_OUTPUT,
    UNMARK,
    WEIGH,
    functions,
    sandbox,
)

_STATEMENTS = (nodes.Assign, nodes.For, nodes.If, nodes.Macro, nodes.Output, nodes.Template)
_EXPRESSIONS = (
    *(nodes.BinExpr, nodes.UnaryExpr, nodes.Compare, nodes.Operand, nodes.Concat, nodes.CondExpr),
    *(nodes.Const, nodes.TemplateData, nodes.Name, nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair),
    *(nodes.Call, nodes.Keyword, nodes.Filter, nodes.Test, nodes.Getattr, nodes.Getitem),
)


def refusal(node: nodes.Node) -> tuple[str, str] | None:
    """Say why a node of the syntax tree is not allowed and what is; None where it may stand."""
    environment = sandbox()
    match node:
        case nodes.For(recursive=True):
            return "a recursive loop is not allowed", "a macro may call itself"
        case nodes.CondExpr(expr2=None):
            return "an `if` without `else` in an expression", "write `a if c else b`"
        case nodes.Call(dyn_args=extra, dyn_kwargs=more) if extra or more:
            return "`*` and `**` in a call are not allowed", "write the arguments out"
        case nodes.Call(node=function) if not isinstance(function, nodes.Name):
            return "only a macro or a function can be called", _functions()
        case nodes.Getattr(node=nodes.Name(name="loop"), attr=attribute) if attribute in LOOP:
            return None
        case nodes.Getattr(attr=attribute):
            known = ", ".join(f"loop.{name}" for name in sorted(LOOP))
            return f"the attribute `{attribute}` is not allowed", f"only loops have some: {known}"
        case nodes.Filter(name=name) if name not in FILTERS:
            return f"no filter is named `{name}`", f"filters: {', '.join(sorted(FILTERS))}"
        case nodes.Test(name=name) if name not in environment.tests:
            return f"no test is named `{name}`", f"tests: {', '.join(sorted(environment.tests))}"
        case nodes.Const(value=str() as text) if set(text) & set(MARK_CHARACTERS):
            return "a text with a control character", "write visible characters"
        case nodes.Const(value=float() as number) if not isfinite(number):
            return "a number that is not finite", "no size needs more than 1e308"
        case nodes.Const(value=int() as number) if number.bit_length() > MAX_BITS:
            return "the number is too large", f"no size needs over {MAX_BITS} bits"
    if isinstance(node, _STATEMENTS + _EXPRESSIONS):
        return None
    name = type(node).__name__.lower()
    return f"`{name}` is not allowed in a template", "statements: if, for, set, macro"


def _functions() -> str:
    return f"functions: {', '.join(sorted(functions()))}; and the template's own macros"


class Marking(NodeTransformer):
    """Rewrite a syntax tree so that every line of its output starts with the line it came from.

    Text that a macro returns keeps its marks where it is written out at once; where a template
    looks at it or keeps it, the marks are taken out, and its lines are those of the expression.
    """

    def visit_Output(self, node: nodes.Output) -> nodes.Output:  # noqa: N802
        """Mark the lines of text, and what is written between them."""
        marked: list[nodes.Expr] = []
        for child in node.nodes:
            line = child.lineno
            if isinstance(child, nodes.TemplateData):
                marked.append(nodes.Const(_marked(child.data, line), lineno=line))
                continue
            marked.append(nodes.Const(MARK.format(line), lineno=line))
            if isinstance(child, nodes.Call):
                self.generic_visit(child)
                marked.append(child)
            else:
                marked.append(self.visit(child))
        node.nodes = marked
        return node

    def visit_Call(self, node: nodes.Call) -> nodes.Filter:  # noqa: N802
        """Take the marks out of what a macro returns."""
        self.generic_visit(node)
        return _filter(node, UNMARK)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        """Join texts within the budget."""
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), JOIN)

    def visit_List(self, node: nodes.List) -> nodes.Filter:  # noqa: N802
        """Bound what a list holds, itself many times over included."""
        self.generic_visit(node)
        return _filter(node, WEIGH)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Filter:  # noqa: N802
        """Bound what a mapping holds, and the keys that are hashed for it."""
        for pair in node.items:
            pair.key = _filter(self.visit(pair.key), WEIGH)
            pair.value = self.visit(pair.value)
        return _filter(node, WEIGH)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:  # noqa: N802
        """Bound what a tuple holds; one that is assigned to holds nothing."""
        self.generic_visit(node)
        return node if node.ctx == "store" else _filter(node, WEIGH)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        """Compare within the budget."""
        self.generic_visit(node)
        node.expr = _filter(node.expr, WEIGH)
        for operand in node.ops:
            operand.expr = _filter(operand.expr, WEIGH)
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Test:  # noqa: N802
        """Test within the budget: `is in` compares."""
        self.generic_visit(node)
        node.node = _filter(node.node, WEIGH)
        node.args = [_filter(argument, WEIGH) for argument in node.args]
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Getitem:  # noqa: N802
        """Look a key up within the budget: a long one is hashed and compared."""
        self.generic_visit(node)
        node.arg = _filter(node.arg, WEIGH)
        return node

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        """Iterate within the budget."""
        self.generic_visit(node)
        node.iter = _filter(node.iter, COUNT)
        return node


def _filter(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _marked(text: str, line: int) -> str:
    pieces = text.split("\n")
    return "\n".join(MARK.format(line + i) + piece for i, piece in enumerate(pieces))


_MARK = re.compile(f"{MARK_CHARACTERS[0]}([0-9]+){MARK_CHARACTERS[1]}")
_LEADING = re.compile(f"(?:{_MARK.pattern})+")
# Jinja and Python walk a tree by recursion.
MAX_DEPTH = 100
MAX_MESSAGE = 500
_SYNTAX = "expressions are @{ name }@, statements `//% if name` or `/*% if name %*/`"
# What a template can do wrong while it renders: it may come from a model.
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
    """CUDA source; line i + 1 of it came from line `lines[i]` of the template."""

    source: str
    lines: tuple[int, ...]

    def template_line(self, line: int) -> int:
        """Find the template's line for a line of `source`; compilers also name the one after."""
        return self.lines[min(max(line, 1), len(self.lines)) - 1] if self.lines else 1


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template. `uses` are the names it needs, with the line of each in `_places`."""

    path: Path
    text: str
    uses: frozenset[str]
    _places: Mapping[str, int] = field(repr=False, compare=False)
    _assigned: Mapping[str, int] = field(repr=False, compare=False)
    _compiled: jinja2.Template = field(repr=False, compare=False)

    @classmethod
    def load(cls, path: Path) -> Template:
        """Read and parse a file; raise `TemplateError` with the line of a mistake."""
        try:
            with path.open("rb") as file:
                content = file.read(4 * MAX_OUTPUT + 1)
        except FileNotFoundError as error:
            raise TemplateError("no such template", path=path) from error
        except OSError as error:
            raise TemplateError(f"cannot be read: {error.strerror}", path=path) from error
        try:
            return cls.from_text(content.decode("utf-8-sig"), path)
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise TemplateError("not UTF-8 text", path=path, line=line) from error

    @classmethod
    def from_text(cls, text: str, path: Path) -> Template:
        """Parse `text`; `path` is where errors say it stands."""
        tree = _parsed(text, path)
        names = meta.find_undeclared_variables(tree)
        loaded: dict[str, int] = {}
        assigned: dict[str, int] = {}
        for node in _named(tree):
            load = isinstance(node, nodes.Name) and node.ctx == "load"
            (loaded if load else assigned).setdefault(node.name, node.lineno)
        tree = Marking().visit(tree)
        tree.set_environment(sandbox())
        try:
            code = sandbox().compile(tree, name=path.name, filename=str(path))
        except (SyntaxError, RecursionError, MemoryError) as error:
            message = "nested too deeply, or too many loops in one another"
            raise TemplateError(message, path=path, line=1) from error
        compiled = jinja2.Template.from_code(sandbox(), code, sandbox().globals)
        return cls(path, text, frozenset(names), loaded, assigned, compiled)

    def check(self, space: SearchSpace, spec: KernelSpec) -> None:
        """Raise `TemplateError` unless the template uses exactly the declared parameters.

        It may use axes and operator macros too. A parameter may also be used by a launch only.
        """
        operators = {operator.name for operator in spec.operators}
        known = {*space.names, *spec.axes, *operators}
        for name in sorted(self.uses - known, key=lambda name: self._places[name]):
            raise TemplateError(
                f"`{name}` is not declared",
                path=self.path,
                line=self._places[name],
                remedy=f"declare it under `parameters` in {spec.path.name}; "
                f"declared: {', '.join(sorted(known))}",
            )
        for name in sorted(known & self._assigned.keys()):
            raise TemplateError(
                f"`{name}` is declared in {spec.path.name} and set again here",
                path=self.path,
                line=self._assigned[name],
                remedy="choose another name for the variable or macro",
            )
        launched = {n for launch in spec.launch for e in launch.expressions() for n in e.names}
        for parameter in space.parameters:
            if parameter.name not in self.uses | launched:
                raise TemplateError(
                    f"the parameter `{parameter.name}` changes nothing: neither {self.path.name} "
                    "nor a launch uses it",
                    path=spec.path,
                    line=parameter.line,
                    remedy=f"write @{{ {parameter.name} }}@ in the template, or delete it here",
                )

    def line_of(self, name: str) -> int | None:
        """Find the first line that uses a name; None where the template doesn't use it."""
        return self._places.get(name) if name in self.uses else None

    def render(self, names: Mapping[str, Value]) -> Rendered:
        """Render for one config; raise `TemplateError` with the template's line."""
        for name, value in names.items():
            if isinstance(value, str) and set(value) & set(MARK_CHARACTERS):
                raise TemplateError(f"the value of `{name}` has a control character")
        try:
            marked = self._compiled.render(names)
        except _FAILURES as error:
            raise self._failure(error, names) from error
        rendered = _unmarked(marked)
        if len(rendered.source) > MAX_OUTPUT:
            message = f"renders to {len(rendered.source)} characters, over {MAX_OUTPUT}"
            raise TemplateError(message, path=self.path, line=1)
        return rendered

    def _failure(self, error: Exception, names: Mapping[str, Value]) -> TemplateError:
        lines = [
            line
            for frame, line in walk_tb(error.__traceback__)
            if frame.f_code.co_filename == str(self.path)
        ]
        line = lines[-1] if lines else 1
        message = error.message if isinstance(error, ExpressionError) else str(error)
        if isinstance(error, KeyError):
            message = f"no key {error}"
        message = message[:MAX_MESSAGE]
        if isinstance(error, RecursionError):
            message = "a macro calls itself without end"
        remedy = f"known names: {', '.join(sorted(names))}"
        return TemplateError(
            f"does not render: {message or type(error).__name__}; found {_found(self.text, line)}",
            path=self.path,
            line=line,
            remedy=remedy if isinstance(error, jinja2.UndefinedError) else None,
        )


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
            place = rendered.template_line(int(match[1] or match[2]))
            changed = f"{path}:{place}{line[match.end() :]}"
        elif other.match(line):
            in_unit = False
        elif (match := trace.search(line)) and (in_unit or match[2]):
            place = rendered.template_line(int(match[1]))
            changed = f"{line[: match.start()]}at {path}:{place}"
        mapped.append(changed.replace(f'"{unit}"', f'"{path}"'))
    return "\n".join(mapped)


def _parsed(text: str, path: Path) -> nodes.Template:
    for character in MARK_CHARACTERS:
        if character in text:
            line = text.count("\n", 0, text.index(character)) + 1
            raise TemplateError("a control character", path=path, line=line, remedy="delete it")
    if len(text) > MAX_OUTPUT:
        raise TemplateError(f"{len(text)} characters, over {MAX_OUTPUT}", path=path)
    try:
        tree = sandbox().parse(text)
    except jinja2.TemplateSyntaxError as error:
        raise _syntax_error(error, text, path) from error
    except (RecursionError, MemoryError) as error:
        raise TemplateError("nested too deeply", path=path, line=1) from error
    except ValueError as error:
        # Python's bound on the digits of a number.
        raise TemplateError(f"not a template: {error}", path=path, line=1) from error
    for node, depth in _all(tree):
        if depth > MAX_DEPTH:
            remedy = f"no more than {MAX_DEPTH} levels; long sums and chains count too"
            raise TemplateError("nested too deeply", path=path, line=node.lineno, remedy=remedy)
        if wrong := refusal(node):
            raise TemplateError(wrong[0], path=path, line=node.lineno, remedy=wrong[1])
    return tree


def _syntax_error(error: jinja2.TemplateSyntaxError, text: str, path: Path) -> TemplateError:
    message = (
        f"{(error.message or 'not a template').rstrip('.')}; found {_found(text, error.lineno)}"
    )
    return TemplateError(message, path=path, line=error.lineno, remedy=_SYNTAX)


def _found(text: str, line: int) -> str:
    lines = text.splitlines() or [""]
    return f"`{lines[min(line, len(lines)) - 1].strip()[:120]}`"


def _all(tree: nodes.Template) -> Iterator[tuple[nodes.Node, int]]:
    waiting: list[tuple[nodes.Node, int]] = [(tree, 0)]
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        waiting += [(child, depth + 1) for child in reversed([*node.iter_child_nodes()])]


def _named(tree: nodes.Template) -> Iterator[nodes.Name | nodes.Macro]:
    found: Iterator[nodes.Name | nodes.Macro] = tree.find_all((nodes.Name, nodes.Macro))
    return found


def _unmarked(marked: str) -> Rendered:
    lines: list[int] = []
    current = 1
    pieces = marked.split("\n")
    for piece in pieces:
        if leading := _LEADING.match(piece):
            current = int(leading[1])
        lines.append(current)
        # A line that starts inside a value has no mark: it belongs to the last one before.
        for mark in _MARK.finditer(piece):
            current = int(mark[1])
    if not _MARK.sub("", pieces[-1]):
        lines.pop()
    return Rendered(_MARK.sub("", marked), tuple(lines))
