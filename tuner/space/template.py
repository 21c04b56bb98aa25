"""Templates: Jinja in CUDA's own comments, rendered to CUDA that knows its lines.

A template may come from a model or a stranger. Of Jinja's syntax tree only a closed part is let
through, it renders in Jinja's immutable sandbox, and its work is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from traceback import walk_tb

import jinja2
from jinja2 import meta, nodes
from jinja2.exceptions import TemplateSyntaxError

from tuner.model.config import Derived, SearchSpace
from tuner.model.errors import ExpressionError, TemplateError
from tuner.model.expressions import Value
from tuner.model.kernel import DEVICE_NAMES, KernelSpec
from tuner.space.inclusion import Whole, put_together
from tuner.space.sandbox import (
    MARK,
    MARKS,
    MAX_DEPTH,
    MAX_OUTPUT,
    Instrumented,
    refusal,
    sandbox,
)
from tuner.space.yaml import read_text

MAX_MESSAGE = 500
_SYNTAX = "expressions are @{ name }@, statements `//% if name` or `/*% if name %*/`"
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
        tree = Instrumented().visit(tree)
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
            if isinstance(value, str) and set(value) & set(MARKS):
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
    for character in MARKS:
        if character in text:
            line = text.count("\n", 0, text.index(character)) + 1
            raise TemplateError("a control character", path=path, line=line, remedy="delete it")
    if len(text) > MAX_OUTPUT:
        raise TemplateError(f"{len(text)} characters, over {MAX_OUTPUT}", path=path)
    try:
        tree = sandbox().parse(text)
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
        if wrong := refusal(node):
            raise TemplateError(wrong[0], path=path, line=node.lineno, remedy=wrong[1])
        waiting += [(child, depth + 1) for child in reversed([*node.iter_child_nodes()])]
    return tree


def _found(text: str, line: int) -> str:
    lines = text.splitlines() or [""]
    return f"`{lines[min(line, len(lines)) - 1].strip()[:120]}`"


def _unmarked(marked: str) -> Rendered:
    lines: list[int] = []
    first, *rest = MARK.split(marked)
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
