"""Extract a kernel and what it needs from production sources into one translation unit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.errors import KernelError
from tuner.extract.dispatch import HostScope, substituted
from tuner.extract.instances import Compute, Evaluate, Instance, chosen, split_asked
from tuner.extract.items import Item, is_marked, items_of
from tuner.extract.kernels import chosen_kernels, no_kernel
from tuner.extract.leftovers import Header, LeftOut, left_out, unread
from tuner.extract.macros import macros_of
from tuner.extract.made import written_out
from tuner.extract.parameters import Opened, arguments_of, opened
from tuner.extract.preamble import preamble
from tuner.extract.reach import device_marks, needed
from tuner.extract.reading import read_all
from tuner.extract.unit import Place, Text, add_items, qualified
from tuner.source import LaunchSite, SourceFile, TemplateParameter, parse_source
from tuner.source.facts import IDENTIFIER, bare_name

_CONCEPT = re.compile(r"\bconcept\s+\w+\s*=")
_STANDARD_CONCEPTS = ("std::floating_point", "std::integral")


@dataclass(frozen=True, slots=True)
class Extraction:
    """One translation unit with what is known of how its kernels are launched.

    `source` is the unit followed by the host code, for whoever drafts from it; `places` says where
    each line of that is from. `instances` are the kernels in the order of their launches. `unread`
    are headers that could hold what is missing, `opened` the structs that became parameters.
    """

    source: SourceFile
    places: tuple[Place | None, ...]
    instances: tuple[Instance, ...]
    left_out: tuple[LeftOut, ...]
    unread: tuple[Header, ...]
    opened: tuple[Opened, ...]

    @property
    def unit(self) -> str:
        """The text of the translation unit."""
        return self.source.own_text

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


def extract(
    path: Path,
    target: Path,
    compute: Compute,
    *,
    kernels: tuple[str, ...] = (),
    instantiate: tuple[str, ...] = (),
    folders: tuple[Path, ...] = (),
) -> Extraction:
    """Extract the kernels of `path`, as if the unit were the file `target`; nothing is written.

    `kernels` chooses, `instantiate` names instantiations (`scale<float, 4>`), `folders` are where
    headers are looked for. Raises `KernelError` for what is not there or needs a choice.
    """
    reading = read_all(path, folders)
    items = written_out(items_of(reading, path))
    found = [item for item in items if item.is_kernel]
    if not found:
        raise no_kernel(path, reading)
    text = Text()
    add_items(text, _readable(items))
    whole = _with_types(parse_source(str(text), target), items)
    wanted = _wanted(instantiate)
    named = (*kernels, *(name for name in wanted if name not in kernels))
    names = chosen_kernels(path, found, named, whole, text.places)
    host = HostScope(whole, macros_of(items))
    defined = {name for item in items if item.kind != "macro" for name in item.names}
    evaluate = Evaluate(whole, compute, defined)
    instances = tuple(_instance(name, found, host, wanted, evaluate) for name in names)
    picked = [item for item in found if item.names[-1] in names]
    kept = needed(items, picked, _launch_names(instances), _argument_names(instances))
    kept, structs = _opened(kept, picked)
    files = tuple(dict.fromkeys(item.path for item in kept))
    instances = tuple(
        replace(one, arguments=tuple(qualified(text, kept) for text in one.arguments))
        for one in instances
    )
    unit = preamble(reading, path, [one.name for one in instances], files, kept)
    add_items(unit, kept)
    source, places = _with_host(unit, items, kept, target)
    return Extraction(
        source=_launched(source, instances, structs, whole),
        places=places,
        instances=instances,
        left_out=tuple(left_out(reading, path, items, kept)),
        unread=tuple(unread(reading, "missing", "framework")),
        opened=tuple(structs.values()),
    )


def _wanted(instantiate: Iterable[str]) -> dict[str, tuple[str, ...]]:
    wanted: dict[str, tuple[str, ...]] = {}
    for name, arguments in map(split_asked, instantiate):
        if name in wanted:
            raise KernelError(
                f"--instantiate names kernel {name!r} twice",
                remedy="a draft is of one instantiation: give one of them",
            )
        wanted[name] = arguments
    return wanted


def _readable(items: Sequence[Item]) -> list[Item]:
    return [item for item in items if item.kind not in ("assertion", "directive", "using")]


def _instance(
    name: str,
    found: Sequence[Item],
    host: HostScope,
    wanted: dict[str, tuple[str, ...]],
    evaluate: Evaluate,
) -> Instance:
    item = next(item for item in found if item.names[-1] == name)
    kernel = next((k for k in host.source.kernels if k.name == name), None)
    if kernel is None:
        raise KernelError(
            f"kernel {name!r} cannot be read",
            path=item.path,
            line=item.line,
            remedy="write out what macros stand for in its head",
        )
    kernel = replace(kernel, path=item.path, line=item.line)
    if name in wanted and not kernel.template:
        raise KernelError(
            f"kernel {name!r} is no template", path=item.path, line=item.line,
            remedy=f"choose it with --kernel {name}",
        )  # fmt: skip
    return chosen(kernel, host, wanted.get(name, ()), evaluate)


def _launch_names(instances: Iterable[Instance]) -> set[str]:
    found: set[str] = set()
    for site in (instance.site for instance in instances if instance.site is not None):
        pending = [*site.grid, *site.block, site.shared]
        while pending:
            for name in IDENTIFIER.findall(pending.pop()):
                if name not in found:
                    found.add(name)
                    pending.append(site.definitions.get(name, ""))
    return found


def _argument_names(instances: Iterable[Instance]) -> set[str]:
    texts = (text for instance in instances for text in instance.arguments)
    return {name for text in texts for name in IDENTIFIER.findall(text)}


def _opened(kept: list[Item], picked: Sequence[Item]) -> tuple[list[Item], dict[str, Opened]]:
    structs: dict[str, Opened] = {}
    code = "\n".join(item.code for item in kept)
    for kernel in picked:
        made = opened(kernel, kept, code)
        if made is not None:
            at = kept.index(kernel)
            kept[at : at + 1] = made[0]
            structs[kernel.names[-1]] = made[1]
    return kept, structs


def _with_host(
    unit: Text, items: Sequence[Item], kept: Sequence[Item], target: Path
) -> tuple[SourceFile, tuple[Place | None, ...]]:
    marks = device_marks(items)
    taken = {item.key for item in kept}
    host = [
        replace(item, namespace=(), conditions=())
        for item in items
        if item.key not in taken
        and item.kind in ("function", "class", "variable", "macro", "alias", "invocation")
        and not item.is_kernel
        and not (item.kind == "function" and is_marked(item.head, marks))
    ]
    own = str(unit)
    count = own.count("\n")
    del unit.lines[count:], unit.places[count:]
    add_items(unit, host)
    source = parse_source(own + "\n".join(unit.lines[count:]) + "\n", target)
    return replace(_with_types(source, items), host_from=len(own)), tuple(unit.places)


def _with_types(source: SourceFile, items: Sequence[Item]) -> SourceFile:
    # `template <number T>`, with a concept, is one for types
    concepts = {item.names[0] for item in items if _CONCEPT.search(item.code) and item.names}

    def plain(parameter: TemplateParameter) -> TemplateParameter:
        name = parameter.kind.rsplit("::", 1)[-1].partition("<")[0]
        is_concept = name in concepts or parameter.kind in _STANDARD_CONCEPTS
        return replace(parameter, kind="typename") if is_concept else parameter

    kernels = (replace(k, template=tuple(map(plain, k.template))) for k in source.kernels)
    return replace(source, kernels=tuple(kernels))


def _launched(
    source: SourceFile,
    instances: Iterable[Instance],
    structs: dict[str, Opened],
    whole: SourceFile,
) -> SourceFile:
    launches: list[LaunchSite] = []
    for instance in instances:
        name = instance.kernel.name
        before = [site for site in whole.launches if bare_name(site.kernel) == name]
        after = [site for site in source.launches if bare_name(site.kernel) == name]
        if instance.site is None or len(after) != len(before):
            continue
        site = after[before.index(instance.site)]
        stated = _stated(site, instance)
        if (struct := structs.get(name)) is not None:
            stated = _with_members(stated, struct)
        launches += [stated, *(other for other in after if other is not site)]
    return replace(source, launches=tuple(launches))


def _stated(site: LaunchSite, instance: Instance) -> LaunchSite:
    def stated(text: str) -> str:
        return substituted(text, instance.environment)

    return replace(
        site,
        template_arguments=instance.arguments,
        grid=tuple(map(stated, site.grid)),
        block=tuple(map(stated, site.block)),
        shared=stated(site.shared),
        arguments=tuple(map(stated, site.arguments)),
        definitions={name: stated(text) for name, text in site.definitions.items()},
    )


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
