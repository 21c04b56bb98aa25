"""The way from `main` to a launch, and the values that host code passes along it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice

from tuner.source import KernelFunction, LaunchSite, SourceFile
from tuner.source.accesses import Assigned, assigned
from tuner.source.arguments import element_dtype
from tuner.source.facts import IDENTIFIER, LineIndex, Span, bare_name
from tuner.source.launches import CallSite, HostFunction, calls_of, functions_of
from tuner.source.syntax import closing, number

_MAX_HOPS = 8


@dataclass(frozen=True, slots=True)
class HostLaunch:
    """One kernel with the first launch of it, if the file has one."""

    source: SourceFile
    kernel: KernelFunction
    site: LaunchSite | None

    @classmethod
    def of(cls, source: SourceFile, kernel: KernelFunction) -> HostLaunch:
        """Find the first launch of `kernel`, one whose template arguments are known if there is."""
        found = [
            cls(source, kernel, site)
            for site in source.launches
            if bare_name(site.kernel) == kernel.name
        ]
        complete = [launch for launch in found if launch.instance is not None]
        return next(iter(complete or found), cls(source, kernel, None))

    @property
    def line(self) -> int:
        """The launch's line, or the kernel's where there is none."""
        return self.kernel.line if self.site is None else self.site.line

    @property
    def names(self) -> frozenset[str]:
        """All names that the launch configuration depends on."""
        if self.site is None:
            return frozenset()
        site = self.site
        return self.closure((*site.grid, *site.block, site.shared, *site.template_arguments))

    def closure(self, texts: Iterable[str]) -> frozenset[str]:
        """List the names in some texts, and those that the host variables among them depend on."""
        definitions = self.site.definitions if self.site is not None else {}
        found: set[str] = set()
        pending = list(chain.from_iterable(IDENTIFIER.findall(text) for text in texts))
        while pending:
            name = pending.pop()
            if name not in found:
                found.add(name)
                pending += IDENTIFIER.findall(definitions.get(name, ""))
        return frozenset(found)

    @property
    def block(self) -> tuple[int, ...]:
        """The block's extents where they are numbers, else nothing."""
        extents = self.site.block if self.site is not None else ()
        numbers = [number(self.value(extent)) for extent in extents]
        plain = tuple(n for n in numbers if isinstance(n, int) and n > 0)
        return plain if len(plain) == len(numbers) else ()

    @property
    def block_names(self) -> tuple[str, ...]:
        """The block's extents as the names or expressions that host variables stand for."""
        return tuple(self.followed(extent) for extent in (self.site.block if self.site else ()))

    @property
    def instance(self) -> tuple[str, ...] | None:
        """A text for every template parameter; None where the source does not say them all."""
        parameters = self.kernel.template
        stated = self.site.template_arguments[: len(parameters)] if self.site is not None else ()
        own = [self.followed(text) for text in stated]
        texts = [*own, *(parameter.default for parameter in parameters[len(own) :])]
        known = tuple(text for text in texts if text is not None and self._is_known(text))
        packed = any("..." in parameter.kind for parameter in parameters)
        return known if len(known) == len(parameters) and not packed else None

    def stated(self, index: int) -> Iterator[str]:
        """Yield the values that the file's launches give to one template parameter."""
        for site in self.source.launches:
            if bare_name(site.kernel) == self.kernel.name and len(site.template_arguments) > index:
                launch = HostLaunch(self.source, self.kernel, site)
                yield launch.value(site.template_arguments[index])

    def followed(self, text: str) -> str:
        """Follow host variables to what they stand for."""
        definitions = self.site.definitions if self.site is not None else {}
        for _ in range(_MAX_HOPS):
            if text not in definitions:
                break
            text = definitions[text]
        return text

    def value(self, text: str) -> str:
        """Follow host variables, then the file's constants."""
        text = self.followed(text)
        values = {c.value for c in self.source.constants if c.name == text}
        return values.pop() if len(values) == 1 else text

    def types(self) -> dict[str, str]:
        """Map template parameters to the types they stand for, on top of the file's aliases."""
        aliases = dict(self.source.aliases)
        instance = self.instance
        for index, parameter in enumerate(self.kernel.template):
            aliases.pop(parameter.name, None)
            if parameter.is_type and instance is not None:
                aliases[parameter.name] = instance[index]
        return aliases

    def _is_known(self, text: str) -> bool:
        if self.source.host_from is not None:
            # what was extracted is an instantiation that is known as a whole
            return True
        named = {
            d.name for d in self.source.definitions if d.kind in ("class", "alias", "function")
        }
        return (
            number(self.value(text)) is not None
            or bare_name(text) in named
            or element_dtype(text, self.source.aliases) is not None
        )


_MAX_DEPTH = 12
_MAX_FRAMES = 4
_MAX_PATHS = 8
_CAST = re.compile(
    r"^(?:\((?:const\s+)?(?:unsigned|signed|int|long|size_t|u?int\d*_t|float|double|[\w:]+\s*\*)"
    r"(?:\s+\w+|\s*\*)*\s*\)|(?:static|reinterpret|const)_cast<[^<>]*>)\s*(?=[\w(&-])"
)
_WHOLE_FLOAT = re.compile(r"(\d+)(?:\.0*)?(?:[eE]\+?(\d{1,2}))?[fF]?")


@dataclass(frozen=True, slots=True)
class Frame:
    """One function on the way, up to the call that leads on.

    `variables` have one value there; `passed` maps its parameters to texts of the next frame,
    which is its caller's.
    """

    span: Span
    line: int
    variables: Mapping[str, Assigned]
    passed: Mapping[str, str]


# the launch's own function first, the outermost caller last
Path = tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Number:
    """A whole number that the source states, and the line where."""

    value: int
    line: int


def paths_to(launch: HostLaunch) -> tuple[Path, ...]:
    """List the ways on which host code reaches the launch: one where nobody in the file calls it.

    There are none without a launch.
    """
    if launch.site is None:
        return ()
    functions, calls = functions_of(launch.source), calls_of(launch.source)
    found = _paths(launch.source, launch.site.at, launch.site.line, functions, calls, 0)
    return tuple(islice(found, _MAX_PATHS))


def _paths(
    source: SourceFile,
    at: int,
    line: int,
    functions: tuple[HostFunction, ...],
    calls: tuple[CallSite, ...],
    depth: int,
) -> Iterator[Path]:
    around = [f for f in functions if f.span[0] <= at < f.span[1]]
    spans = tuple(function.span for function in functions)
    variables = assigned(source.masked, spans, at)
    if not around:
        yield (Frame((0, at), line, variables, {}),)
        return
    own = max(around, key=lambda function: function.span[0])
    callers = [
        call
        for call in calls
        if call.name == own.name
        and len(call.arguments) <= len(own.parameters)
        and not own.span[0] <= call.at < own.span[1]
    ]
    if not callers or depth >= _MAX_FRAMES:
        yield (Frame(own.span, line, variables, {}),)
        return
    for call in callers:
        passed = dict(zip(own.parameters, call.arguments, strict=False))
        frame = Frame(own.span, line, variables, passed)
        for rest in _paths(source, call.at, call.line, functions, calls, depth + 1):
            yield (frame, *rest)


@dataclass(frozen=True, slots=True)
class Host:
    """What the names mean on one way to the launch; level 0 is the launch's own function."""

    source: SourceFile
    path: Path

    def line_of(self, level: int) -> int:
        """Give the line of the call, or the launch, that a level makes."""
        return self.path[level].line

    def followed(self, text: str, level: int = 0) -> tuple[str, int]:
        """Follow a name through variables and callers; return what it stands for, and the level."""
        for _ in range(_MAX_DEPTH):
            text = plain(text)
            frame = self.path[level]
            if text in frame.variables:
                text = frame.variables[text].text
            elif text in frame.passed and level + 1 < len(self.path):
                text, level = frame.passed[text], level + 1
            else:
                break
        return text, level

    def number(self, text: str, level: int = 0) -> Number | None:
        """Compute a whole number from what the source states, where it does."""
        return self._number(text, level, self.path[level].line, 0)

    def _number(self, text: str, level: int, line: int, depth: int) -> Number | None:
        text = plain(text)
        value = _literal(text)
        if value is not None:
            return Number(value, line)
        if depth > _MAX_DEPTH:
            return None
        if IDENTIFIER.fullmatch(text):
            return self._named(text, level, depth)
        chosen = _alternatives(text)
        if chosen is not None:
            return self._chosen(*chosen, level, line, depth)
        return self._computed(text, level, line, depth)

    def _named(self, name: str, level: int, depth: int) -> Number | None:
        frame = self.path[level]
        if name in frame.variables:
            variable = frame.variables[name]
            line = LineIndex(self.source.text).at(variable.at)
            return self._number(variable.text, level, line, depth + 1)
        if name in frame.passed and level + 1 < len(self.path):
            line = self.path[level + 1].line
            return self._number(frame.passed[name], level + 1, line, depth + 1)
        constants = [c for c in self.source.constants if c.name == name]
        if len(constants) == 1:
            return self._number(constants[0].value, level, constants[0].line, depth + 1)
        return None

    def _chosen(
        self, test: str, first: str, second: str, level: int, line: int, depth: int
    ) -> Number | None:
        # `argc > 1 ? atoi(argv[1]) : 1 << 20`: the one that needs no command line
        holds = number(test)
        if holds is not None:
            return self._number(first if holds else second, level, line, depth + 1)
        known = [self._number(text, level, line, depth + 1) for text in (first, second)]
        stated = [found for found in known if found is not None]
        return stated[0] if len(stated) == 1 else None

    def _computed(self, text: str, level: int, line: int, depth: int) -> Number | None:
        pieces: list[str] = []
        end = 0
        for match in IDENTIFIER.finditer(text):
            # `4u` and `0x10` hold letters that are no names
            if match.start() and text[match.start() - 1].isdigit():
                continue
            found = self._number(match[0], level, line, depth + 1)
            if found is None:
                return None
            pieces += [text[end : match.start()], str(found.value)]
            end = match.end()
        value = _literal("".join([*pieces, text[end:]]))
        return None if value is None else Number(value, line)


def plain(text: str) -> str:
    """Strip casts and the parentheses around a whole expression."""
    text = text.strip()
    for _ in range(_MAX_DEPTH):
        if text.startswith("(") and closing(text, 0) == len(text):
            text = text[1:-1].strip()
        elif match := _CAST.match(text):
            text = text[match.end() :].strip()
        else:
            break
    return text


def _literal(text: str) -> int | None:
    value = number(text)
    if value is not None and not isinstance(value, bool):
        return value
    whole = _WHOLE_FLOAT.fullmatch(text)
    return int(whole[1]) * 10 ** int(whole[2] or 0) if whole else None


def _alternatives(text: str) -> tuple[str, str, str] | None:
    question = _outside(text, "?", 0)
    colon = _outside(text, ":", question + 1) if question is not None else None
    if question is None or colon is None:
        return None
    return text[:question], text[question + 1 : colon], text[colon + 1 :]


def _outside(text: str, character: str, start: int) -> int | None:
    position = start
    while position < len(text):
        if text[position] == character and text[position : position + 2] != "::":
            return position
        inside = closing(text, position) if text[position] in "([{" else None
        position = inside or position + (2 if text[position : position + 2] == "::" else 1)
    return None
