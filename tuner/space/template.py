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

from tuner.model.bounds import CONTROL
from tuner.model.config import Derived, SearchSpace
from tuner.model.errors import ExpressionError, TemplateError
from tuner.model.expressions import Value
from tuner.model.kernel import DEVICE_NAMES, KernelSpec
from tuner.space.sandbox import (
    MARK,
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


_DIRECTIVE = re.compile(r"[ \t]*//%[ \t]*include\b(.*)")
_NAME = re.compile(r'[ \t]+"([^"]+)"\s*')
MAX_INCLUDED_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Whole:
    """A template with all that it includes; `places[i]` is the file and line of line i + 1.

    Without includes it has no places.
    """

    text: str
    path: Path
    places: tuple[tuple[Path, int], ...] = ()

    def place(self, line: int) -> tuple[Path, int]:
        """Find the file and the line in it that a line of the whole text stands in."""
        if not self.places:
            return self.path, line
        return self.places[min(max(line, 1), len(self.places)) - 1]

    def error(self, message: str, line: int, remedy: str | None = None) -> TemplateError:
        path, line = self.place(line)
        return TemplateError(message, path=path, line=line, remedy=remedy)


def put_together(text: str, path: Path, folders: Sequence[Path]) -> Whole:
    """Put the files that `//% include "words.cuh"` names in the place of these lines, each once.

    `path` is the template's, `folders` are looked through in their order. A file may include
    others. Raises `TemplateError` with the line for a name that is none of a file inside a folder.
    """
    paths: set[Path] = set()

    def lines_of(text: str, path: Path) -> Iterator[tuple[str, tuple[Path, int]]]:
        for number, line in enumerate(text.split("\n"), 1):
            directive = _DIRECTIVE.fullmatch(line.rstrip("\r"))
            if directive is None:
                yield line, (path, number)
                continue
            file = _find_include(directive[1], path, number, folders)
            if file not in paths:
                paths.add(file)
                inner = read_text(file, MAX_INCLUDED_BYTES, TemplateError, "file to include")
                yield from lines_of(inner.removesuffix("\n"), file)

    lines = [*lines_of(text, path)]
    return Whole("\n".join(line for line, _ in lines), path, tuple(place for _, place in lines))


def _find_include(rest: str, path: Path, line: int, folders: Sequence[Path]) -> Path:
    name = _NAME.fullmatch(rest)
    if name is None:
        message, remedy = "an `include` needs a name in quotes", 'write //% include "words.cuh"'
        raise TemplateError(message, path=path, line=line, remedy=remedy)
    for folder in (one.resolve() for one in folders):
        file = (folder / name[1]).resolve()
        if file.is_file() and file.is_relative_to(folder):
            return file
    looked = ", ".join(map(str, folders)) or "nowhere: the search space lists no folder"
    message, remedy = f"no file {name[1]!r} to include", "list its folder under `include`"
    raise TemplateError(f"{message}; looked in {looked}", path=path, line=line, remedy=remedy)


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
    _whole: Whole = field(repr=False, compare=False)

    @classmethod
    def load(cls, path: Path, folders: Sequence[Path] = ()) -> Template:
        """Read and parse a file with what it includes from `folders`.

        Raises `TemplateError` with the file and line of a mistake.
        """
        text = read_text(path, 4 * MAX_OUTPUT, TemplateError, "template")
        return cls._from_whole(put_together(text, path, folders))

    @classmethod
    def from_text(cls, text: str, path: Path) -> Template:
        """Parse a text that includes nothing; `path` is where errors say it stands."""
        return cls._from_whole(Whole(text, path))

    @classmethod
    def _from_whole(cls, whole: Whole) -> Template:
        tree, path = _parse(whole), whole.path
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
            raise whole.error(message, 1) from error
        compiled = jinja2.Template.from_code(sandbox(), code, sandbox().globals)
        return cls(path, whole.text, frozenset(names), loaded, assigned, compiled, whole)

    def check(self, space: SearchSpace, spec: KernelSpec) -> None:
        """Raise `TemplateError` unless the template uses exactly the declared parameters.

        It may use axes, operator macros and derived names too. A parameter may also be used by a
        launch only.
        """
        operators = {operator.name for operator in spec.operators}
        derived = {each.name: each.expression for each in space.derived}
        known = {*space.names, *spec.axes, *operators, *derived}
        for name in sorted(self.uses - known, key=lambda name: self._places[name]):
            remedy = f"declare it under `parameters` in {spec.path.name}; "
            remedy += f"declared: {', '.join(sorted(known))}"
            raise self._whole.error(f"`{name}` is not declared", self._places[name], remedy)
        for name in sorted(known & self._assigned.keys()):
            remedy = "choose another name for the variable or macro"
            message = f"`{name}` is declared in {spec.path.name} and set again here"
            raise self._whole.error(message, self._assigned[name], remedy)
        used = {n for launch in spec.launch for e in launch.expressions() for n in e.names}
        used |= self.uses
        for one in space.derived:
            asked = sorted(one.expression.names & DEVICE_NAMES)
            if one.name in self.uses and asked:
                message = f"`{one.name}` depends on `{asked[0]}`, a number of the device"
                remedy = "write only what is the same on every device into the source"
                raise self._whole.error(message, self._places[one.name], remedy)
            if one.name in self.uses:
                used |= one.expression.names
            elif not one.used:
                message = f"the derived name `{one.name}` changes nothing: nothing uses it"
                line, remedy = one.expression.line, "use it, or delete it here"
                raise TemplateError(message, path=spec.path, line=line, remedy=remedy)
        for parameter in space.parameters:
            if parameter.name not in used:
                message = f"the parameter `{parameter.name}` changes nothing: "
                message += f"neither {self.path.name} nor a launch uses it"
                remedy = f"write @{{ {parameter.name} }}@ in the template, or delete it here"
                raise TemplateError(message, path=spec.path, line=parameter.line, remedy=remedy)

    def line_of(self, name: str) -> int | None:
        """Find the first line that uses a name; None where the template doesn't use it."""
        return self._places.get(name) if name in self.uses else None

    def render(self, names: Mapping[str, Value], derived: Iterable[Derived] = ()) -> Rendered:
        """Render for one config; raise `TemplateError` with the template's line.

        Of the `derived` names those get a value that the template uses; raises `ExpressionError`
        for one that has none here.
        """
        used = {one.name: one.expression for one in derived if one.name in self.uses}
        names = {**names, **{name: expression.evaluate(names) for name, expression in used.items()}}
        for name, value in names.items():
            if isinstance(value, str) and CONTROL.search(value):
                raise TemplateError(f"the value of `{name}` has a control character")
        try:
            marked = self._compiled.render(names)
        except _FAILURES as error:
            frames = walk_tb(error.__traceback__)
            lines = [n for frame, n in frames if frame.f_code.co_filename == str(self.path)]
            line = lines[-1] if lines else 1
            message = error.message if isinstance(error, ExpressionError) else str(error)
            message = message[:MAX_MESSAGE] or type(error).__name__
            if isinstance(error, RecursionError):
                message = "a macro calls itself without end"
            message = f"does not render: {message}; found {_line_of(self.text, line)}"
            known = f"known names: {', '.join(sorted(names))}"
            remedy = known if isinstance(error, jinja2.UndefinedError) else None
            raise self._whole.error(message, line, remedy) from error
        rendered = replace(_remove_marks(marked), whole=self._whole)
        if len(rendered.source) > MAX_OUTPUT:
            message = f"renders to {len(rendered.source)} characters, over {MAX_OUTPUT}"
            raise self._whole.error(message, 1)
        return rendered


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


def _parse(whole: Whole) -> nodes.Template:
    text = whole.text
    if hidden := CONTROL.search(text):
        line = text.count("\n", 0, hidden.start()) + 1
        raise whole.error(f"a control character, {hidden[0]!a}", line, "delete it")
    if len(text) > MAX_OUTPUT:
        raise TemplateError(f"{len(text)} characters, over {MAX_OUTPUT}", path=whole.path)
    try:
        tree = sandbox().parse(text)
    except TemplateSyntaxError as error:
        problem = (error.message or "not a template").rstrip(".")
        message = f"{problem}; found {_line_of(text, error.lineno)}"
        raise whole.error(message, error.lineno, _SYNTAX) from error
    except (RecursionError, MemoryError) as error:
        raise whole.error("nested too deeply", 1) from error
    except ValueError as error:
        # Python's bound on the digits of a number.
        raise whole.error(f"not a template: {error}", 1) from error
    waiting: list[tuple[nodes.Node, int]] = [(tree, 0)]
    while waiting:
        node, depth = waiting.pop()
        if depth > MAX_DEPTH:
            remedy = f"no more than {MAX_DEPTH} levels; long sums and chains count too"
            raise whole.error("nested too deeply", node.lineno, remedy)
        if wrong := refusal(node):
            raise whole.error(wrong[0], node.lineno, wrong[1])
        waiting += [(child, depth + 1) for child in reversed([*node.iter_child_nodes()])]
    return tree


def _line_of(text: str, line: int) -> str:
    lines = text.splitlines() or [""]
    return f"`{lines[min(line, len(lines)) - 1].strip()[:120]}`"


def _remove_marks(marked: str) -> Rendered:
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
