"""Choose the instantiation of a templated kernel: the requested one, or one that is launched."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, islice, product, repeat
from operator import eq

from tuner.extensions.draft.extract.deduction import (
    Calls,
    GenericLambda,
    TemplateCall,
    arguments_of,
    generic_lambdas,
    passed_constants,
    with_values,
)
from tuner.extensions.draft.extract.guesses import VECTOR, Guesses, alternatives, in_elements
from tuner.extensions.draft.extract.names import FRAMEWORKS, Macro, dispatched_types, expand_macro
from tuner.extensions.draft.host_values import HostLaunch, names_behind
from tuner.extensions.draft.translate import Scope, translate
from tuner.model.errors import KernelError
from tuner.model.kernel import DTYPE_BYTES
from tuner.source.accesses import find_assignments
from tuner.source.facts import (
    IDENTIFIER,
    KernelFunction,
    LaunchSite,
    LineIndex,
    SourceFile,
    Span,
    TemplateParameter,
    bare_name,
    within,
)
from tuner.source.kernels import dtype_of, element_dtype, read_template
from tuner.source.syntax import fold, listed, number

_INVOKED = re.compile(r"\b([A-Z][A-Z0-9_]{3,})\s*(?=\()")
_GIVEN = re.compile(
    r"\busing\s+(\w+)\s*=\s*([^;{}]+);|\btypedef\s+([\w:]+)\s+(\w+)\s*;"
    r"|\bconst(?:expr)?\s+[\w:\s]+?\b(\w+)\s*=\s*([^;{}]+);"
)
_NAMES = re.compile(r"[A-Za-z_](?:\w|::)*")
_SPACES = re.compile(r"\s*::\s*")
_NESTED = re.compile(r">::(?:template\s+)?\w+")
_WORDS = frozenset(("const", "typename", "template", "sizeof"))
_PREFERRED = ("bfloat16", "float16")
_LOAD_BYTES = 16
# marks a name that an alias of the same name hides
_OUTER = "@"
_MAX_DEPTH = 4
_MAX_ENVIRONMENTS = 64
_MAX_HOPS = 8

Environment = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Instance:
    """A kernel with a text for every template argument; `others` are what could be taken, too.

    `guessed` are the kernel's template parameters that no launch says.
    """

    kernel: KernelFunction
    arguments: tuple[str, ...]
    site: LaunchSite | None
    environment: Environment
    others: tuple[str, ...] = ()
    guessed: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return _write_name(self.kernel, self.arguments)


@dataclass(frozen=True)
class HostCode:
    """All code with its macros and the names that it defines: says what names mean at a place."""

    source: SourceFile
    macros: Mapping[str, Macro]
    defined: frozenset[str]
    functions: tuple[KernelFunction, ...] = ()

    def environments(self, at: int) -> list[Environment]:
        """List what the names around an offset may stand for, one mapping for each way there."""
        return list(islice(self._environments(at, 0), _MAX_ENVIRONMENTS)) or [{}]

    def _environments(self, at: int, depth: int) -> Iterator[Environment]:
        ways = islice(product(*self._dispatch_values(at)), _MAX_ENVIRONMENTS)
        own = [dict(chain.from_iterable(groups)) for groups in ways]
        outside = [*islice(self._caller_environments(at, depth), _MAX_ENVIRONMENTS)] or [{}]
        for inner, outer in product(own or [{}], outside):
            yield {**outer, **inner}

    def _dispatch_values(self, at: int) -> Iterator[Sequence[tuple[tuple[str, str], ...]]]:
        masked = self.source.masked
        for generic_lambda in self.lambdas:
            inside = within(at, [generic_lambda.span])
            handed = passed_constants(masked, generic_lambda) if inside else ()
            if constants := [*dict.fromkeys(handed)]:
                yield constants
        for match in _INVOKED.finditer(masked, 0, at):
            arguments, end = listed(masked, match.end())
            line = masked.rfind("\n", 0, match.start()) + 1
            if end <= at or masked[line : match.start()].lstrip().startswith("#"):
                continue
            macro = self.macros.get(match[1])
            if macro is None or macro.parameters is None:
                name, types = dispatched_types(match[1], arguments)
                yield from [[((name, dtype),) for dtype in types]] if types else []
                continue
            found: dict[str, list[str]] = {}
            text = expand_macro(macro, arguments, self.macros)
            for given in _GIVEN.finditer(text):
                values = found.setdefault(given[1] or given[4] or given[5], [])
                values.append(fold(given[2] or given[3] or given[6]))
            for inner in _INVOKED.finditer(text):
                name, types = dispatched_types(inner[1], listed(text, inner.end())[0])
                found.setdefault(name, []).extend(types)
            for name, values in found.items():
                known: list[tuple[tuple[str, str], ...]]
                known = [((name, value),) for value in dict.fromkeys(values)]
                numeric = bool(values) and values[0].isdigit()
                if numeric and IDENTIFIER.fullmatch(arguments[0]):
                    # `switch (vec) { case 8: constexpr VEC = 8; ... }`: both have the value
                    known = [(*pairs, (arguments[0], pairs[0][1])) for pairs in known]
                yield from [known] if known else []

    def _caller_environments(self, at: int, depth: int) -> Iterator[Environment]:
        if depth >= _MAX_DEPTH:
            return
        for template in self.templates:
            if not template.span[0] <= at < template.span[1]:
                continue
            for call in self.calls_of(template):
                # variables and types that the function around gives one meaning
                spans = tuple(d.span for d in self.source.definitions if d.kind == "function")
                assigned = find_assignments(self.source.masked, spans, call.at)
                known = {name: value.text for name, value in assigned.items()}
                own = self._own_meanings(call.at).items()
                known |= {name: text for name, (text, is_type) in own if is_type}
                values = {name: substitute(text, known) for name, text in call.arguments.items()}
                for outer in self._environments(call.at, depth + 1):
                    yield {name: substitute(text, outer) for name, text in values.items()}

    def _own_meanings(self, at: int) -> dict[str, tuple[str, bool]]:
        # the types and constants that the function around gives one meaning, in their order
        spans = (d.span for d in self.source.definitions if d.kind == "function")
        start = max((first for first, last in spans if first <= at < last), default=at)
        found: dict[str, set[tuple[str, bool]]] = {}
        for match in _GIVEN.finditer(self.source.masked, start, at):
            text, name = fold(match[2] or match[3] or match[6]), match[1] or match[4]
            if name:
                # `using Traits = Traits<T>`: the second is not the first
                text = re.sub(rf"(?<![\w.:]){name}(?=\s*<)", f"{_OUTER}{name}", text)
            found.setdefault(name or match[5], set()).add((text, bool(name)))
        return {name: texts.pop() for name, texts in found.items() if len(texts) == 1}

    def meanings(self, at: int, environment: Environment) -> dict[str, str]:
        """Say what the names around an offset mean, with its function's types and constants."""
        known = dict(environment)
        for name, (text, is_type) in self._own_meanings(at).items():
            value = substitute(text, known)
            is_plain = is_type or value in ("true", "false")
            computed = None if is_plain else translate(value, self._scope({}, known))
            known.setdefault(name, computed or value)
        return known

    def _scope(self, definitions: Mapping[str, str], environment: Environment) -> Scope:
        constants = {constant.name: constant.value for constant in self.source.constants}
        return Scope(
            definitions={**constants, **definitions, **environment},
            types={**self.source.aliases, **environment},
        )

    @cached_property
    def lambdas(self) -> tuple[GenericLambda, ...]:
        """The generic lambdas, to which calls hand constants."""
        return tuple(generic_lambdas(self.source.masked))

    @cached_property
    def templates(self) -> tuple[KernelFunction, ...]:
        """The templates of functions, then of classes, without parameters."""
        lines = LineIndex(self.source.masked)
        functions = [function for function in self.functions if function.template]
        for function in tuple(functions):
            # `void Runner<T>::run(...)` is a template of its class
            head = self.source.masked[function.span[0] : function.body[0]]
            owner = re.search(rf"\b(\w+)\s*<[^<>;{{}}]*>\s*::\s*{function.name}\s*\(", head)
            if owner is not None:
                functions.append(replace(function, name=owner[1], parameters=()))
        for definition in self.source.definitions:
            text = self.source.masked[slice(*definition.span)]
            template, _ = read_template(text, definition.span[0], lines)
            if definition.kind == "class" and template:
                at, span = definition.span[0], definition.span
                name, path = definition.name, self.source.path
                body = (span[0], span[1])
                functions.append(
                    KernelFunction(name, path, lines.at(at), span, body, at, (), template=template)
                )
        return tuple(functions)

    def read_arguments(self, kernel: KernelFunction, site: LaunchSite) -> dict[str, str]:
        """Say what a launch gives the kernel's template parameters, in the words of its place."""
        types = self.calls.types_of(site.arguments, site.at)
        return arguments_of(kernel, site.template_arguments, types)

    def calls_of(self, template: KernelFunction) -> list[TemplateCall]:
        """List the uses of a template; on the ways to a launch they are asked for often."""
        key = template.name, template.span
        if key not in self._known_calls:
            self._known_calls[key] = [*self.calls.of(template)]
        return self._known_calls[key]

    @cached_property
    def _known_calls(self) -> dict[tuple[str, Span], list[TemplateCall]]:
        return {}

    @cached_property
    def guesses(self) -> Guesses:
        """What could stand for parameters that nobody names."""
        return Guesses(self.source, self.functions)

    @cached_property
    def calls(self) -> Calls:
        """The code as what calls templates."""
        kinds = ("class", "alias")
        types = frozenset(d.name for d in self.source.definitions if d.kind in kinds)
        return Calls(self.source.masked, self.functions, types)

    def evaluate(
        self,
        parameter: TemplateParameter,
        text: str,
        definitions: Mapping[str, str],
        environment: Environment,
    ) -> str:
        """Evaluate a template argument; "" where its value is unknown.

        `definitions` are the variables where it stands.
        """
        plain = text
        for _ in range(_MAX_HOPS):
            following = substitute(plain, environment)
            if following in definitions:
                following = definitions[following]
            following = with_values(following)
            if following == plain:
                break
            plain = following
        plain = plain.replace(_OUTER, "")
        if parameter.is_type:
            return self._type(plain)
        value = number(plain)
        if value is not None:
            return str(value).lower()
        # `sizes::kBlock` of a namespace, and of no class that an alias may hide
        owner, _, name = plain.rpartition("::")
        is_class = owner and not re.search(rf"\bnamespace\s[\w:\s]*\b{owner}\b", self.source.masked)
        constants = (d.name for d in self.source.definitions if d.kind == "constant")
        if not is_class and name in constants:
            return plain
        computed = translate(plain, self._scope(definitions, environment))
        if computed is not None and re.fullmatch(r"-?\d+", computed):
            return computed
        # `ns::op<T>`, `Mode::kFast`, `Traits<T>::kWidth`: a function, or a value of what is defined
        return plain if self._are_known(plain) else ""

    def _are_known(self, text: str) -> bool:
        # `Traits<T>::Type` is known where Traits and T are
        owners = _NESTED.sub(">", _SPACES.sub("::", text))
        names = [name for name in _NAMES.findall(owners) if name not in _WORDS]
        return bool(names) and all(
            name.startswith(("cub::", "cuda::", "cooperative_groups::"))
            or name in self.macros
            or not self.defined.isdisjoint(name.split("::"))
            or element_dtype(name, self.source.aliases) is not None
            for name in names
        )

    def _type(self, text: str) -> str:
        aliases = self.source.aliases
        text = _SPACES.sub("::", text)
        if element_dtype(text, aliases) is None and not self._are_known(text):
            return ""
        # what an alias of a plain type stands for: it may be out of sight where it is launched
        following = text
        for _ in range(_MAX_HOPS):
            bare = bare_name(following) if "<" not in following else following
            following = aliases.get(bare, following)
        return following if dtype_of(following, {}) is not None else text


def substitute(text: str, environment: Environment) -> str:
    """Write what names stand for in a text, where `environment` knows it."""

    def value(match: re.Match[str]) -> str:
        found = environment.get(match[0], match[0])
        # `n + 1` stays one operand where the name was one
        simple = match[0] == text or re.fullmatch(r"[\w:<>, ]*", found)
        return found if simple else f"({found})"

    return re.sub(rf"(?<![\w.:{_OUTER}])[A-Za-z_]\w*", value, text)


def choose_instance(
    kernel: KernelFunction, host: HostCode, asked: tuple[str, ...], place: int = 0
) -> Instance:
    """Choose the instantiation: what is asked for, else the best of what is launched, else a guess.

    `place` counts those that are no good. Raises `KernelError` that says what to give where
    nothing is known.
    """
    sites = [site for site in host.source.launches if bare_name(site.kernel) == kernel.name]
    if not kernel.template:
        site = sites[0] if sites else None
        return Instance(kernel, (), site, host.environments(site.at)[0] if site else {})
    if asked:
        return _asked_instance(kernel, sites, host, asked)
    launched = [*_launched_instances(kernel, sites, host)]
    instances = [instance for instance in launched if "" not in instance.arguments]
    several = sites if len(sites) > 1 else []
    ruled_out = [site for site in several if HostLaunch(host.source, kernel, site).is_ruled_out]
    instances.sort(key=lambda i: (i.site in ruled_out, _rank(i, host.source.aliases)))
    instances = instances or [*_guess_instances(kernel, launched, host)]
    if not instances:
        raise _ambiguity(kernel, launched, host)
    first: dict[str, Instance] = {}
    for instance in instances:
        first.setdefault(instance.name, instance)
    own = list(first.values())
    best = own.pop(min(place, len(own) - 1))
    return replace(best, others=tuple(instance.name for instance in own))


def _asked_instance(
    kernel: KernelFunction, sites: Sequence[LaunchSite], host: HostCode, asked: tuple[str, ...]
) -> Instance:
    arguments = _complete(kernel, asked, host)
    launched = _launched_instances(kernel, sites, host)
    nearest = max(launched, key=partial(_agreeing, arguments), default=None)
    if nearest is None or nearest.site is None:
        return Instance(kernel, arguments, None, {})
    if nearest.arguments == arguments:
        return nearest
    site = nearest.site
    if not _agreeing(arguments, nearest):
        site = next((s for s in sites if len(s.template_arguments) == len(asked)), site)
    # what the launch passes for a template parameter stands for what was asked for
    stated = host.read_arguments(kernel, site)
    pairs = zip((stated.get(p.name, "") for p in kernel.template), arguments, strict=False)
    own = {text: value for text, value in pairs if IDENTIFIER.fullmatch(text)}
    return Instance(kernel, arguments, site, own)


def _agreeing(arguments: tuple[str, ...], instance: Instance) -> int:
    return sum(map(eq, arguments, instance.arguments))


def _guess_instances(
    kernel: KernelFunction, launched: Sequence[Instance], host: HostCode
) -> Iterator[Instance]:
    # of what is known already the most, and then the best
    best = min(
        launched,
        key=lambda one: (one.arguments.count(""), _rank(one, host.source.aliases)),
        default=None,
    )
    best = best or Instance(kernel, ("",) * len(kernel.template), None, {})
    site, known = best.site, dict(best.environment)
    stated = host.read_arguments(kernel, site) if site is not None else {}
    around = {
        parameter.name: (parameter, template)
        for template in host.templates
        if site is not None and template.span[0] <= site.at < template.span[1]
        for parameter in template.template
        if known.get(parameter.name, parameter.name) == parameter.name
    }
    lists: dict[str, tuple[str, ...]] = {}
    for parameter, value in zip(kernel.template, best.arguments, strict=True):
        text = stated.get(parameter.name, "")
        behind = names_behind([text], site.definitions if site is not None else {})
        if value:
            continue
        if used := [name for name in around if name in behind]:
            lists |= {name: host.guesses.of(*around[name]) for name in used}
        else:
            stated = {**stated, parameter.name: parameter.name}
            lists[parameter.name] = host.guesses.of(parameter, kernel)
    for alternative in alternatives(lists):
        own = {name: text for name, text in alternative.items() if not text.endswith(" bytes")}
        types = (*own.values(), *(p.c_type for p in kernel.parameters if p.pointers))
        dtypes = (element_dtype(text, host.source.aliases) for text in types)
        width = min((DTYPE_BYTES[dtype] for dtype in dtypes if dtype is not None), default=4)
        loads = [name for name in alternative if name not in own]
        own |= {name: in_elements(alternative[name], width) for name in loads}
        instance = _instance(kernel, stated, site, {**known, **own}, host)
        if "" not in instance.arguments:
            pairs = zip(kernel.template, best.arguments, strict=True)
            yield replace(instance, guessed=tuple(p.name for p, value in pairs if not value))


def _rank(instance: Instance, aliases: Mapping[str, str]) -> tuple[int, int]:
    # production's types first, in as many arguments as may be, then loads of 16 bytes
    known = (element_dtype(text, aliases) for text in instance.arguments)
    dtypes = [dtype for dtype in known if dtype is not None]
    places = [_PREFERRED.index(dtype) for dtype in dtypes if dtype in _PREFERRED]
    best = min(places, default=len(_PREFERRED))
    element = min((DTYPE_BYTES[dtype] for dtype in dtypes), default=_LOAD_BYTES)
    widths = [
        abs(int(text) * element - _LOAD_BYTES)
        for parameter, text in zip(instance.kernel.template, instance.arguments, strict=False)
        if VECTOR.fullmatch(parameter.name) and text.isdigit()
    ]
    return best * len(dtypes) - places.count(best), sum(widths) if dtypes else 0


def asked_for(instantiate: Iterable[str], kernels: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Map kernels to the template arguments asked for: `scale<__nv_bfloat16, 8>`, or `bf16, 8`.

    Without a name they are of the only one of `kernels`.
    """
    wanted: dict[str, tuple[str, ...]] = {}
    only = next(iter(kernels), "") if len({*kernels}) == 1 else ""
    for text in instantiate:
        named = re.match(r"\s*(?:\w+\s*::\s*)*(\w+)\s*(?=<)", text)
        is_plain = named is None or (named[1] not in kernels and not text.rstrip().endswith(">"))
        at = 0 if named is None else named.end()
        whole = f"<{text}>" if is_plain and only and text.strip() else text
        pieces, end = listed(whole, 0 if whole is not text else at) if named or only else ((), 0)
        if not end or whole[end:].strip() or (is_plain and text.strip() == only):
            raise KernelError(
                f"--instantiate {text!r} is no instantiation of a kernel",
                remedy='write it like --instantiate "scale<__nv_bfloat16, 8>"'
                + (', or --instantiate "bf16, 8"' if only else f"; kernels: {', '.join(kernels)}"),
            )
        pieces = tuple(FRAMEWORKS["short"].get(piece, piece) for piece in pieces)
        name = only if whole is not text else bare_name(text)
        if name in wanted:
            raise KernelError(
                f"--instantiate names kernel {name!r} twice",
                remedy="a draft is of one instantiation: give one of them",
            )
        wanted[name] = pieces
    return wanted


def _write_name(kernel: KernelFunction, arguments: Sequence[str]) -> str:
    return f"{kernel.name}<{', '.join(arguments)}>" if kernel.template else kernel.name


def _complete(kernel: KernelFunction, asked: tuple[str, ...], host: HostCode) -> tuple[str, ...]:
    defaults = [parameter.default for parameter in kernel.template[len(asked) :]]
    stated = (*asked, *(text for text in defaults if text is not None))
    packed = any("..." in parameter.kind for parameter in kernel.template)
    if len(stated) != len(kernel.template) and not packed:
        raise KernelError(
            f"{_write_name(kernel, asked)} has {len(asked)} template arguments, and kernel "
            f"{kernel.name!r} takes {len(kernel.template)}: {_write_parameters(kernel.template)}",
            path=kernel.path,
            line=kernel.line,
            remedy=f'write it like --instantiate "{_example(kernel, (), host)}"',
        )
    return stated


def _launched_instances(
    kernel: KernelFunction, sites: Sequence[LaunchSite], host: HostCode
) -> Iterator[Instance]:
    for site in sites:
        stated = host.read_arguments(kernel, site)
        for environment in host.environments(site.at):
            yield _instance(kernel, stated, site, environment, host)
    # an explicit instantiation, or what is handed to somebody who launches it
    own = sites[0] if sites else None
    for call in host.calls_of(kernel):
        for environment in host.environments(call.at):
            yield _instance(kernel, call.arguments, own, environment, host)


def _instance(
    kernel: KernelFunction,
    stated: Mapping[str, str],
    site: LaunchSite | None,
    environment: Environment,
    host: HostCode,
) -> Instance:
    found: dict[str, str] = {}
    known = site.definitions if site is not None else {}
    around: Environment | None = None
    for parameter in kernel.template:
        text = stated.get(parameter.name, "")
        value = text and host.evaluate(parameter, text, known, {**environment, **found})
        if text and not value and site is not None:
            around = around or host.meanings(site.at, environment)
            value = host.evaluate(parameter, text, known, around)
        found[parameter.name] = value
    return Instance(kernel, tuple(found.values()), site, environment)


def _ambiguity(kernel: KernelFunction, launched: Sequence[Instance], host: HostCode) -> KernelError:
    pack = next((p for p in kernel.template if "..." in p.kind), None)
    if pack is not None and launched:
        return KernelError(
            f"kernel {kernel.name!r} takes a pack, `{pack.kind} {pack.name}`: how many arguments "
            "it has, and of which types, each caller says; a draft is for one list of arrays and "
            "numbers",
            path=kernel.path,
            line=kernel.line,
            remedy="write a kernel for one tensor with its pointers, sizes and numbers as "
            "parameters, which does what this one calls, and draft from that",
        )
    best = max(launched, key=lambda instance: sum(map(bool, instance.arguments)), default=None)
    known = best.arguments if best is not None else ("",) * len(kernel.template)
    where = "no launch of it is in the source"
    if best is not None and best.site is not None:
        unknown = [p for p, text in zip(kernel.template, known, strict=True) if not text]
        where = f"its launch does not say {_write_parameters(unknown)}"
    return KernelError(
        f"kernel {kernel.name!r} is a template <{_write_parameters(kernel.template)}>, and {where}",
        path=kernel.path,
        line=kernel.line,
        remedy=f'say which one to tune, such as --instantiate "{_example(kernel, known, host)}"',
    )


def _write_parameters(parameters: Iterable[TemplateParameter]) -> str:
    return ", ".join(f"{parameter.kind} {parameter.name}" for parameter in parameters)


def _example(kernel: KernelFunction, known: Sequence[str], host: HostCode) -> str:
    texts = []
    for p, text in zip(kernel.template, chain(known, repeat("")), strict=False):
        guess = next(iter(host.guesses.of(p, kernel)), f"YOUR_{p.name}")
        texts.append(text or p.default or in_elements(guess, 2))
    return _write_name(kernel, texts)
