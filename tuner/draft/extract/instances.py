"""Which instantiation of a templated kernel to take: the one asked for, or one that is launched."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product

from tuner.draft.extract.chunks import template_end
from tuner.draft.extract.macros import Macro, expanded
from tuner.draft.extract.standins import dispatched_types
from tuner.model.errors import KernelError
from tuner.source import KernelFunction, LaunchSite, SourceFile, TemplateParameter
from tuner.source.accesses import assigned
from tuner.source.arguments import dtype_of, element_dtype
from tuner.source.facts import IDENTIFIER, Span, bare_name
from tuner.source.syntax import closing, closing_angle, fold, number, split_list

_INVOKED = re.compile(r"\b([A-Z][A-Z0-9_]{3,})\s*(?=\()")
_GIVEN = re.compile(
    r"\busing\s+(\w+)\s*=\s*([^;{}]+);|\btypedef\s+([\w:]+)\s+(\w+)\s*;"
    r"|\bconstexpr\s+[\w:\s]+?\b(\w+)\s*=\s*([^;{}]+);"
)
_MAX_DEPTH = 4
_MAX_ENVIRONMENTS = 64

Environment = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class HostScope:
    """Host code with the project's macros: says what names mean at a place."""

    source: SourceFile
    macros: Mapping[str, Macro]

    def environments(self, at: int) -> list[Environment]:
        """List what the names around an offset may stand for, one mapping for each way there."""
        return list(islice(self._environments(at, 0), _MAX_ENVIRONMENTS)) or [{}]

    def _environments(self, at: int, depth: int) -> Iterator[Environment]:
        own = [dict(pairs) for pairs in product(*self._dispatched(at))]
        outside = [*self._called(at, depth)] or [{}]
        for inner, outer in product(own or [{}], outside):
            yield {**outer, **inner}

    def _dispatched(self, at: int) -> Iterator[list[tuple[str, str]]]:
        masked = self.source.masked
        for match in _INVOKED.finditer(masked, 0, at):
            end = closing(masked, match.end())
            line = masked.rfind("\n", 0, match.start()) + 1
            if end is None or end <= at or masked[line : match.start()].lstrip().startswith("#"):
                continue
            pieces = split_list(masked[match.end() + 1 : end - 1])
            arguments = tuple(fold(piece) for piece, _ in pieces)
            for name, values in self._given(match[1], arguments).items():
                yield [(name, value) for value in values]

    def _given(self, name: str, arguments: tuple[str, ...]) -> dict[str, list[str]]:
        macro = self.macros.get(name)
        if macro is None or macro.parameters is None:
            types = dispatched_types(name, arguments)
            return {"scalar_t": list(types)} if types else {}
        found: dict[str, list[str]] = {}
        for match in _GIVEN.finditer(expanded(macro, arguments, self.macros)):
            key = match[1] or match[4] or match[5]
            value = fold(match[2] or match[3] or match[6])
            if value not in found.setdefault(key, []):
                found[key].append(value)
        return found

    def _called(self, at: int, depth: int) -> Iterator[Environment]:
        if depth >= _MAX_DEPTH:
            return
        around = [
            (definition.name, definition.span)
            for definition in self.source.definitions
            if definition.kind in ("function", "class")
            and definition.span[0] <= at < definition.span[1]
        ]
        for name, span in sorted(around, key=lambda found: found[1]):
            parameters = template_names(self.source.masked[slice(*span)])
            for place, arguments in self._stated(name, span) if parameters else ():
                known = self._variables(place)
                stated = (substituted(text, known) for text in arguments)
                values = dict(zip(parameters, stated, strict=False))
                for outer in self._environments(place, depth + 1):
                    yield {key: substituted(text, outer) for key, text in values.items()}

    def _variables(self, at: int) -> Environment:
        functions = tuple(d.span for d in self.source.definitions if d.kind == "function")
        return {
            name: value.text for name, value in assigned(self.source.masked, functions, at).items()
        }

    def _stated(self, name: str, own: Span) -> Iterator[tuple[int, tuple[str, ...]]]:
        masked = self.source.masked
        for match in re.finditer(rf"(?<!struct )(?<!class )\b{re.escape(name)}\s*(?=<)", masked):
            end = closing_angle(masked, match.end())
            if end is None or own[0] <= match.start() < own[1]:
                continue
            pieces = split_list(masked[match.end() + 1 : end - 1], angles=True)
            yield match.start(), tuple(fold(piece) for piece, _ in pieces)


def template_names(text: str) -> tuple[str, ...]:
    """Name the template parameters of a definition, () for one that is no template."""
    head = text[: template_end(text)]
    opening = head.find("<")
    end = closing_angle(head, opening) if opening >= 0 else None
    if end is None:
        return ()
    pieces = split_list(head[opening + 1 : end - 1], angles=True)
    names = (IDENTIFIER.findall(piece.partition("=")[0]) for piece, _ in pieces)
    return tuple(found[-1] for found in names if found)


def substituted(text: str, environment: Environment) -> str:
    """Write what names stand for in a text, where `environment` knows it."""

    def value(match: re.Match[str]) -> str:
        found = environment.get(match[0], match[0])
        # `n + 1` stays one operand where the name was one
        simple = match[0] == text or re.fullmatch(r"[\w:<>, ]*", found)
        return found if simple else f"({found})"

    return re.sub(r"(?<![\w.:])[A-Za-z_]\w*", value, text)


_ELEMENT = re.compile(
    r"(?:_cast|data_ptr|mutable_data_ptr|const_data_ptr)\s*<\s*(?:const\s+)?([^<>*]+?)\s*[*>]"
)
_PREFERRED = ("bfloat16", "float16")
_NAMES = re.compile(r"[A-Za-z_](?:\w|::)*")
_MAX_HOPS = 8


# computes a whole number from an expression, what names in it are defined as, and types; None
# where that says too little
Compute = Callable[[str, Mapping[str, str], Mapping[str, str]], str | None]


@dataclass(frozen=True, slots=True)
class Instance:
    """A kernel with a text for every template argument; `others` are what the host launches too.

    `environment` is what the names of the host code stand for in it, `site` the launch if any.
    """

    kernel: KernelFunction
    arguments: tuple[str, ...]
    site: LaunchSite | None
    environment: Environment
    others: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The kernel as a launch states it."""
        return written(self.kernel, self.arguments)


def written(kernel: KernelFunction, arguments: Sequence[str]) -> str:
    """Write an instantiation the way `--instantiate` takes it."""
    return f"{kernel.name}<{', '.join(arguments)}>" if kernel.template else kernel.name


def chosen(
    kernel: KernelFunction, host: HostScope, asked: tuple[str, ...], evaluate: Evaluate
) -> Instance:
    """Choose the instantiation; raise `KernelError` that says what to give where none is known."""
    sites = [site for site in host.source.launches if bare_name(site.kernel) == kernel.name]
    if not kernel.template:
        return Instance(kernel, (), sites[0] if sites else None, _first(host, sites))
    if asked:
        arguments = _asked(kernel, asked)
        site = next((s for s in sites if len(s.template_arguments) == len(asked)), None)
        site = site or next(iter(sites), None)
        return Instance(kernel, arguments, site, _own(kernel, arguments, site))
    launched = [*_launched(kernel, sites, host, evaluate)]
    complete = [one for one in launched if "" not in one.arguments]
    if complete:
        best = min(complete, key=lambda one: _rank(one.arguments, host.source))
        names = dict.fromkeys(one.name for one in complete)
        return replace(best, others=tuple(name for name in names if name != best.name))
    raise _unknown(kernel, launched)


def _first(host: HostScope, sites: list[LaunchSite]) -> Environment:
    return host.environments(sites[0].at)[0] if sites else {}


def _asked(kernel: KernelFunction, asked: tuple[str, ...]) -> tuple[str, ...]:
    defaults = [parameter.default for parameter in kernel.template[len(asked) :]]
    stated = [*asked, *(text for text in defaults if text is not None)]
    packed = any("..." in parameter.kind for parameter in kernel.template)
    if len(stated) != len(kernel.template) and not packed:
        names = ", ".join(f"{p.kind} {p.name}" for p in kernel.template)
        raise KernelError(
            f"{written(kernel, asked)} has {len(asked)} template arguments, and kernel "
            f"{kernel.name!r} takes {len(kernel.template)}: {names}",
            path=kernel.path,
            line=kernel.line,
            remedy=f'write it like --instantiate "{_example(kernel, ())}"',
        )
    return tuple(stated)


def _own(
    kernel: KernelFunction, arguments: tuple[str, ...], site: LaunchSite | None
) -> Environment:
    # what the launch passes for a template parameter stands for what was asked for
    passed = site.template_arguments if site is not None else ()
    pairs = zip(passed, arguments, strict=False)
    return {text: value for text, value in pairs if IDENTIFIER.fullmatch(text)}


def _launched(
    kernel: KernelFunction, sites: list[LaunchSite], host: HostScope, evaluate: Evaluate
) -> Iterator[Instance]:
    for site in sites:
        for environment in host.environments(site.at):
            texts = _texts(kernel, site)
            arguments: list[str] = []
            for parameter, text in zip(kernel.template, texts, strict=True):
                own = dict(zip((p.name for p in kernel.template), arguments, strict=False))
                known = text and evaluate(parameter, text, site, {**environment, **own})
                arguments.append(known or "")
            yield Instance(kernel, tuple(arguments), site, environment)


def _texts(kernel: KernelFunction, site: LaunchSite) -> list[str]:
    stated = [*site.template_arguments[: len(kernel.template)]]
    for parameter in kernel.template[len(stated) :]:
        stated.append(_deduced(parameter, kernel, site) or parameter.default or "")
    return stated


def _deduced(parameter: TemplateParameter, kernel: KernelFunction, site: LaunchSite) -> str | None:
    for own, text in zip(kernel.parameters, site.arguments, strict=False):
        if own.c_type == parameter.name and (match := _ELEMENT.search(text)):
            return fold(match[1])
    return None


def _rank(arguments: tuple[str, ...], source: SourceFile) -> int:
    dtypes = [element_dtype(text, source.aliases) for text in arguments]
    places = [_PREFERRED.index(dtype) for dtype in dtypes if dtype in _PREFERRED]
    return min(places, default=len(_PREFERRED))


def _unknown(kernel: KernelFunction, launched: list[Instance]) -> KernelError:
    best = max(launched, key=lambda one: sum(map(bool, one.arguments)), default=None)
    known = best.arguments if best is not None else ()
    open_ones = [
        f"{parameter.kind} {parameter.name}"
        for at, parameter in enumerate(kernel.template)
        if not known[at : at + 1] or not known[at]
    ]
    where = "no launch of it is in the source"
    if best is not None and best.site is not None:
        where = f"its launch does not say {', '.join(open_ones)}"
    names = ", ".join(f"{p.kind} {p.name}" for p in kernel.template)
    return KernelError(
        f"kernel {kernel.name!r} is a template <{names}>, and {where}",
        path=kernel.path,
        line=kernel.line,
        remedy=f'say which one to tune, such as --instantiate "{_example(kernel, known)}"',
    )


def _example(kernel: KernelFunction, known: tuple[str, ...]) -> str:
    texts = [
        (known[at] if at < len(known) else "") or parameter.default or _likely(parameter)
        for at, parameter in enumerate(kernel.template)
    ]
    return written(kernel, texts)


def _likely(parameter: TemplateParameter) -> str:
    if parameter.is_type:
        return "__nv_bfloat16"
    if parameter.kind == "bool":
        return "true"
    return "4096" if re.search(r"(?i)dim|hidden|width", parameter.name) else "8"


def split_asked(text: str) -> tuple[str, tuple[str, ...]]:
    """Split `scale<__nv_bfloat16, 8>` into the kernel's name and its template arguments."""
    name, opening, rest = text.strip().partition("<")
    if not opening or not rest.rstrip().endswith(">"):
        raise KernelError(
            f"--instantiate {text!r} is no instantiation of a kernel",
            remedy='write it like --instantiate "scale<__nv_bfloat16, 8>"',
        )
    pieces = split_list(rest.rstrip()[:-1], angles=True)
    return bare_name(name), tuple(fold(piece) for piece, _ in pieces)


class Evaluate:
    """Says what a template argument of a launch is; "" where that cannot be told."""

    def __init__(self, source: SourceFile, compute: Compute, names: Iterable[str]) -> None:
        self.source, self.compute = source, compute
        self.known = {*names, "true", "false"}
        self.constants = {d.name for d in source.definitions if d.kind == "constant"}

    def __call__(
        self, parameter: TemplateParameter, text: str, site: LaunchSite, environment: Environment
    ) -> str:
        plain = text
        for _ in range(_MAX_HOPS):
            following = substituted(plain, environment)
            if following in site.definitions:
                following = site.definitions[following]
            if following == plain:
                break
            plain = following
        if parameter.is_type:
            return self._concrete(plain) if self._is_type(plain) else ""
        value = number(plain)
        if value is not None:
            return str(value).lower()
        if plain in self.constants:
            return plain
        constants = {constant.name: constant.value for constant in self.source.constants}
        computed = self.compute(
            plain,
            {**constants, **site.definitions, **environment},
            {**self.source.aliases, **environment},
        )
        if computed is not None:
            return computed
        return plain if self._is_named(plain) else ""

    def _is_named(self, text: str) -> bool:
        # `ns::op`, `Mode::kFast`: a function, or a value of something that is defined
        names = _NAMES.findall(text)
        return bool(names) and all(self.known.intersection(name.split("::")) for name in names)

    def _is_type(self, text: str) -> bool:
        if element_dtype(text, self.source.aliases) is not None:
            return True
        plain = [name for name in _NAMES.findall(text) if name not in ("const", "typename")]
        return bool(plain) and all(
            self.known.intersection(name.split("::")) or element_dtype(name, self.source.aliases)
            for name in plain
        )

    def _concrete(self, text: str) -> str:
        # what an alias of a plain type stands for: it may be out of sight where it is launched
        following = text
        for _ in range(_MAX_HOPS):
            bare = bare_name(following) if "<" not in following else following
            if bare not in self.source.aliases:
                break
            following = self.source.aliases[bare]
        return following if dtype_of(following, {}) is not None else text
