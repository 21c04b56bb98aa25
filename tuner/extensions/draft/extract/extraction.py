"""Extract a kernel and what it needs from production sources into one translation unit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tuner.extensions.draft.extract.accessors import without_accessors
from tuner.extensions.draft.extract.conditions import guard_of
from tuner.extensions.draft.extract.deduction import with_values
from tuner.extensions.draft.extract.instances import (
    HostCode,
    Instance,
    asked_for,
    choose_instance,
    substitute,
)
from tuner.extensions.draft.extract.items import SourceItem, items_of
from tuner.extensions.draft.extract.macros import macros_of, written_out
from tuner.extensions.draft.extract.project import siblings
from tuner.extensions.draft.extract.reading import BUILD, Include, Reading, read_all
from tuner.extensions.draft.extract.structs import Opened, arguments_of, open_struct, unpack_vectors
from tuner.extensions.draft.extract.unit import (
    SourcePlace,
    Text,
    add_items,
    device_marks,
    left_out,
    preamble,
    qualify_names,
    select_items,
)
from tuner.extensions.draft.host_code import heads_of
from tuner.extensions.draft.host_values import names_behind
from tuner.model.errors import KernelError
from tuner.source import parse_source
from tuner.source.facts import (
    IDENTIFIER,
    KernelFunction,
    LaunchSite,
    SourceFile,
    TemplateParameter,
    bare_name,
    unknown_kernel,
)
from tuner.source.host import is_marked
from tuner.source.kernels import dtype_of
from tuner.source.syntax import fold, listed
from tuner.source.unsupported import require_arguments, require_body, require_closed

_ELEMENT_SIZE = re.compile(
    r"\b(?:at::|c10::)?elementSize\s*\([^()]*(?:\(\))?\)|\b\w+\s*(?:\.|->)\s*(?:element_size|itemsize)\s*\(\s*\)"
)
_SPECIALISED = re.compile(r"template\s*<\s*>")
_CONCEPT = re.compile(r"\bconcept\s+\w+\s*=")
_STANDARD_CONCEPTS = ("std::floating_point", "std::integral")


@dataclass(slots=True)
class Sources:
    """A source with its headers and siblings as they were read; `items` once somebody asked."""

    reading: Reading
    items: tuple[SourceItem, ...] | None = None


# by the other files that are read, and the macros that are defined
Memo = dict[tuple[tuple[Path, ...], frozenset[str]], Sources]


@dataclass(frozen=True, slots=True)
class Extraction:
    """One translation unit with what is known of how its kernels are launched.

    `source` is the unit followed by the host code, `places` says where each line of it is from.
    `unread` are the #includes that could hold what is missing, `dropped` the conditions that do not
    hold, `defined` the macros that a build is taken to define, `searched` the headers that were
    found by their names alone and are part of the unit.
    """

    source: SourceFile
    places: tuple[SourcePlace | None, ...]
    instances: tuple[Instance, ...]
    left_out: tuple[str, ...]
    unread: tuple[tuple[Path, int, Include], ...]
    opened: tuple[Opened, ...]
    dropped: tuple[tuple[Path, int, str], ...] = ()
    defined: frozenset[str] = frozenset()
    searched: tuple[Path, ...] = ()

    @property
    def unit(self) -> str:
        return self.source.own_text

    @property
    def is_stated(self) -> bool:
        """Whether the source launches all kernels, and says all template arguments."""
        return all(i.site is not None and not i.guessed for i in self.instances)

    @property
    def names(self) -> tuple[str, ...]:
        """The kernels as launches of the unit state them, each with its namespaces."""
        kernels = {kernel.name: kernel for kernel in self.source.kernels}
        found = []
        for instance in self.instances:
            qualified = kernels[instance.kernel.name].qualified_name
            arguments = f"<{', '.join(instance.arguments)}>" if instance.kernel.template else ""
            found.append(qualified + arguments)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which kernels are extracted, and how.

    `kernels` chooses, `instantiate` names instantiations (`scale<float, 4>`), `folders` are where
    headers are looked for. `place` counts instantiations that are no good; with `mixed` small
    floats and others have the arithmetic of PyTorch's; `defined` are macros that a build defines.
    Other files of the project are read where the source does not say how its kernels are launched,
    and with `around` in any case.
    """

    kernels: tuple[str, ...] = ()
    instantiate: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()
    place: int = 0
    mixed: bool = False
    defined: frozenset[str] = frozenset()
    around: bool = False


def extract(
    path: Path, target: Path, wanted: Wanted | None = None, memo: Memo | None = None
) -> Extraction:
    """Extract the kernels of `path`, as if the unit were the file `target`; nothing is written.

    `memo` keeps what was read for another place of the same source. Raises `KernelError` for what
    is not there or needs a choice.
    """
    memo, wanted = memo if memo is not None else {}, wanted or Wanted()
    sources = _read(path, wanted, (), memo)
    guards = {guard_of(bare_name(kernel), sources.reading.dropped) for kernel in wanted.kernels}
    if more_defined := {guard for guard in guards if guard is not None} - wanted.defined:
        wanted = replace(wanted, defined=wanted.defined | more_defined)
        sources = _read(path, wanted, (), memo)
    alone: Extraction | None = None
    error: KernelError | None = None
    try:
        alone = _extract_unit(path, target, sources, wanted)
    except KernelError as found:
        error = found
    if alone is not None and alone.is_stated and not wanted.around:
        return alone
    reading = sources.reading
    others = siblings(path, reading.files)
    if others:
        with suppress(KernelError):
            known = dict.fromkeys(reading.files)
            wider = _read(path, wanted, others, memo)
            more = tuple(other for other in others if other.resolve() in wider.reading.files)
            whole = _extract_unit(path, target, wider, wanted, more, frozenset(known))
            # a kernel of that name elsewhere is not that of a header which is missing
            is_whole = alone is not None or whole.is_stated or wanted.around
            if is_whole or not reading.list_unread("missing"):
                return whole
    if alone is None and error is not None:
        raise error
    assert alone is not None
    return alone


def _read(path: Path, wanted: Wanted, others: tuple[Path, ...], memo: Memo) -> Sources:
    key = (others, wanted.defined)
    if key not in memo:
        memo[key] = Sources(read_all(path, wanted.folders, others, wanted.defined))
    return memo[key]


def _extract_unit(
    path: Path,
    target: Path,
    sources: Sources,
    asked: Wanted,
    others: Sequence[Path] = (),
    own: frozenset[Path] = frozenset(),
) -> Extraction:
    # `others` are files of the project that are read too, `own` those that `path` includes
    reading = sources.reading
    if sources.items is None:
        listed_items = written_out([*_list_items(reading, (path, *others))])
        sources.items = without_accessors(listed_items, macros_of(listed_items))
    items = sources.items
    source_items = [item for item in items if item.is_kernel]
    source_items = [item for item in source_items if item.path.resolve() in own] or source_items
    if not source_items:
        raise _no_kernel(path, reading)
    text = Text()
    unread = ("assertion", "directive", "using")
    add_items(text, [item for item in items if item.kind not in unread])
    whole = _with_types(parse_source(str(text), target), items)
    wanted = asked_for(asked.instantiate, asked.kernels or [i.names[-1] for i in source_items])
    named = (*asked.kernels, *(name for name in wanted if name not in asked.kernels))
    names = _chosen_kernels(path, source_items, named, whole, text.places)
    defined = {name for item in items if item.kind != "macro" for name in item.names}
    known = frozenset((*defined, "true", "false"))
    host = HostCode(whole, macros_of(items), known, heads_of(whole))
    instances = tuple(_instance(name, source_items, host, wanted, asked.place) for name in names)
    picked = [item for name in names for item in _one(name, source_items)]
    # what the kernels need, and what their launches mention
    mentioned = {
        name
        for site in (instance.site for instance in instances if instance.site is not None)
        for name in names_behind((*site.grid, *site.block, site.shared), site.definitions)
    }
    arguments = " ".join(text for instance in instances for text in instance.arguments)
    stated = {*IDENTIFIER.findall(arguments)}
    kept = select_items(items, picked, mentioned, stated, mixed=asked.mixed)
    for item in kept:
        if item.kind == "function":
            require_body(names[0], item.path, item.line, item.code)
    structs: dict[str, tuple[Opened, ...]] = {}
    code = "\n".join(item.code for item in kept)
    for kernel in picked:
        at = kept.index(kernel)
        kept[at], structs[kernel.names[-1]] = unpack_vectors(kernel)
        opened = open_struct(kept[at], kept, code, mentioned)
        if opened is not None:
            kept[at : at + 1] = opened[0]
            structs[kernel.names[-1]] += (opened[1],)
    files = tuple(dict.fromkeys(item.path for item in kept))
    instances = tuple(
        replace(instance, arguments=tuple(qualify_names(text, kept) for text in instance.arguments))
        for instance in instances
    )
    unit = preamble(reading, path, [instance.name for instance in instances], files, kept)
    add_items(unit, kept)
    source, places = _with_host(unit, items, kept, target)
    return Extraction(
        source=_add_launches(source, instances, structs, whole),
        places=places,
        instances=instances,
        left_out=tuple(left_out(reading, path, items, kept)),
        unread=tuple(reading.list_unread("missing", "framework")),
        opened=tuple(one for struct in structs.values() for one in struct),
        dropped=tuple(reading.dropped),
        defined=asked.defined,
        searched=tuple(path for path in reading.searched_headers() if path in files),
    )


def _list_items(reading: Reading, files: Sequence[Path]) -> Iterator[SourceItem]:
    # what a file has before it #includes another may be what that one goes by
    paths = {file.resolve() for file in files}
    included = {
        include.path.resolve()
        for file in paths
        for include in reading.files[file].included.values()
        if include.path is not None
    }
    done = set[Path]()
    yield from items_of(reading, BUILD)
    for file in sorted(files, key=lambda file: file.resolve() in included):
        if file.resolve() not in done:
            done.add(file.resolve())
            for item in items_of(reading, file):
                done.add(item.path.resolve())
                yield item


def _one(name: str, kernels: Sequence[SourceItem]) -> Iterator[SourceItem]:
    # the first of a name with its specialisations: overloads for other types are other kernels
    first, *others = (item for item in kernels if item.names[-1] == name)
    yield first
    if first.code.startswith("template"):
        yield from (item for item in others if _SPECIALISED.match(item.code))


def _chosen_kernels(
    path: Path,
    kernels: Sequence[SourceItem],
    asked: Sequence[str],
    whole: SourceFile,
    places: Sequence[SourcePlace | None],
) -> tuple[str, ...]:
    # in the order of their launches; `places` says where each line of `whole` is from
    names = list(dict.fromkeys(item.names[-1] for item in kernels))
    wanted = tuple(dict.fromkeys(map(bare_name, asked)))
    for name in asked:
        if bare_name(name) not in names:
            raise unknown_kernel(name, names, path)
    if wanted or len(names) == 1:
        return wanted or (names[0],)
    sites = [site for site in whole.launches if bare_name(site.kernel) in names]
    own = [site for site in sites if (place := places[site.line - 1]) and place[0] == path] or sites
    launched = list(dict.fromkeys(bare_name(site.kernel) for site in own))
    # one function launches them; where there is none around, the launch is alone
    spans = [d.span for d in whole.definitions if d.kind == "function"]
    launching = {
        max((start for start, end in spans if start <= site.at < end), default=-site.at)
        for site in own
    }
    if len(launched) == 1 or (launched and len(launching) == 1):
        return tuple(launched)
    listed = "\n  ".join(f"{item.path}:{item.line}: {item.names[-1]}" for item in kernels)
    why = "launched by different functions" if launched else "and no launch of any"
    raise KernelError(
        f"has {len(names)} kernels, {why}",
        path=path,
        remedy=f"choose one or several, such as --kernel {(launched or names)[0]}\n  {listed}",
    )


def _no_kernel(path: Path, reading: Reading) -> KernelError:
    missing = reading.list_unread("missing")
    require_closed(path, reading.files[path.resolve()].text)
    if not missing:
        message = "has no __global__ function, and neither have the headers that it includes"
        return KernelError(message, path=path, remedy="give the file that defines the kernel")
    listed = ", ".join(f"{include} (line {line})" for _, line, include in missing)
    return KernelError(
        f"has no __global__ function, and headers that it includes were not found: {listed}",
        path=missing[0][0],
        line=missing[0][1],
        remedy="give the folder that holds them with --include DIR",
    )


def _instance(
    name: str,
    items: Sequence[SourceItem],
    host: HostCode,
    wanted: dict[str, tuple[str, ...]],
    place: int,
) -> Instance:
    item = next(item for item in items if item.names[-1] == name)
    path, line = item.path, item.line
    kernel = next((k for k in host.source.kernels if k.name == name), None)
    if kernel is None:
        message, remedy = "cannot be read", "write out what macros stand for in its head"
        raise KernelError(f"kernel {name!r} {message}", path=path, line=line, remedy=remedy)
    kernel = replace(kernel, path=path, line=line)
    require_arguments(kernel)
    if name in wanted and not kernel.template:
        message, remedy = "is no template", f"choose it with --kernel {name}"
        raise KernelError(f"kernel {name!r} {message}", path=path, line=line, remedy=remedy)
    return choose_instance(kernel, host, wanted.get(name, ()), place)


def _with_host(
    unit: Text, items: Sequence[SourceItem], kept: Sequence[SourceItem], target: Path
) -> tuple[SourceFile, tuple[SourcePlace | None, ...]]:
    marks = device_marks(items)
    both = {"__host__", *(i.name for i in items if i.kind == "macro" and "__host__" in i.code)}
    taken = {item.key for item in kept}
    host = [
        replace(item, namespace=(), conditions=())
        for item in items
        if item.key not in taken
        and item.kind in ("function", "class", "variable", "macro", "alias", "invocation")
        and not item.is_kernel
        and not (
            item.kind == "function"
            and is_marked(item.head, marks)
            and both.isdisjoint(IDENTIFIER.findall(item.head))
        )
    ]
    own = str(unit)
    count = own.count("\n")
    del unit.lines[count:], unit.places[count:]
    add_items(unit, host)
    source = parse_source(own + "\n".join(unit.lines[count:]) + "\n", target)
    return replace(_with_types(source, items), host_from=len(own)), tuple(unit.places)


def _with_types(source: SourceFile, items: Sequence[SourceItem]) -> SourceFile:
    # `template <number T>`, with a concept, is one for types
    concepts = {item.names[0] for item in items if _CONCEPT.search(item.code) and item.names}

    def plain(parameter: TemplateParameter) -> TemplateParameter:
        name = parameter.kind.rsplit("::", 1)[-1].partition("<")[0]
        is_concept = name in concepts or parameter.kind in _STANDARD_CONCEPTS
        return replace(parameter, kind="typename") if is_concept else parameter

    kernels = (replace(k, template=tuple(map(plain, k.template))) for k in source.kernels)
    return replace(source, kernels=tuple(kernels))


def _add_launches(
    source: SourceFile,
    instances: Iterable[Instance],
    structs: Mapping[str, Sequence[Opened]],
    whole: SourceFile,
) -> SourceFile:
    launches: list[LaunchSite] = []
    unlaunched: list[LaunchSite] = []
    for instance in instances:
        name = instance.kernel.name
        before = [site for site in whole.launches if bare_name(site.kernel) == name]
        after = [site for site in source.launches if bare_name(site.kernel) == name]
        if instance.site is None or len(after) != len(before):
            nowhere = LaunchSite(name, instance.arguments, (), (), "0", (), instance.kernel.line)
            unlaunched.append(replace(nowhere, guessed=instance.guessed))
            continue
        site = after[before.index(instance.site)]
        known = partial(substitute, environment=instance.environment)
        element = next((text for text in instance.arguments if dtype_of(text, {})), None)

        def resolve(text: str, known: partial[str] = known, element: str | None = element) -> str:
            text = with_values(known(text))
            return _ELEMENT_SIZE.sub(f"sizeof({element})", text) if element else text

        # a host variable's name says what else in the launch comes from it
        stated = site.template_arguments[: len(instance.arguments)]
        named = [
            text if resolve(site.definitions.get(text, "")) == own else own
            for text, own in zip(stated, instance.arguments, strict=False)
        ]
        own = replace(
            site,
            template_arguments=(*named, *instance.arguments[len(named) :]),
            guessed=instance.guessed,
            grid=tuple(map(resolve, site.grid)),
            block=tuple(map(resolve, site.block)),
            shared=resolve(site.shared),
            arguments=tuple(map(resolve, site.arguments)),
            definitions={name: resolve(text) for name, text in site.definitions.items()},
        )
        for struct in structs.get(name, ()):
            own = _with_members(own, struct)
        launches += [own, *(other for other in after if other is not site)]
    kernels = _choose_specialisations(source, {one.kernel.name: one.arguments for one in instances})
    return replace(source, kernels=kernels, launches=tuple(launches), unlaunched=tuple(unlaunched))


def _choose_specialisations(
    source: SourceFile, instances: Mapping[str, tuple[str, ...]]
) -> tuple[KernelFunction, ...]:
    # what runs is the specialisation for the arguments, where there is one
    def plain(texts: Iterable[str]) -> list[str]:
        return [dtype_of(text, {}) or text for text in map(fold, texts)]

    own: dict[str, KernelFunction] = {}
    others: list[KernelFunction] = []
    for kernel in source.kernels:
        head = source.masked[kernel.span[0] : kernel.body[0]]
        match = re.search(rf"\b{kernel.name}\s*(?=<)", head)
        given = listed(head, match.end())[0] if match is not None else ()
        if not given:
            others.append(kernel)
        elif plain(given) == plain(instances.get(kernel.name, ())):
            own[kernel.name] = replace(kernel, template=source.kernel(kernel.name).template)
    return (*own.values(), *(kernel for kernel in others if kernel.name not in own))


def _with_members(site: LaunchSite, struct: Opened) -> LaunchSite:
    arguments = list(site.arguments)
    if len(arguments) <= struct.place:
        return site
    text = arguments[struct.place]
    whole = re.sub(r"^\w+$", lambda match: site.definitions.get(match[0], match[0]), text)
    members = arguments_of(whole, struct)
    if whole != text and any(m.startswith(f"{struct.parameter}.") for m in members):
        members = [re.sub(rf"^{struct.parameter}\.", f"{text}.", member) for member in members]
    arguments[struct.place : struct.place + 1] = members
    return replace(site, arguments=tuple(arguments))
