"""Which definitions a kernel needs: all that bear a name which it, or what it needs, uses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tuner.extract.chunks import chunks, is_function
from tuner.extract.items import Item, is_marked, says_host
from tuner.source.facts import IDENTIFIER

_CONSTANT = re.compile(r"\bconst(?:expr|eval)\b")
# namespaces of CUDA's own headers
_DEVICE_SCOPES = frozenset(("cooperative_groups", "cub", "nvcuda", "wmma", "cuda", "ptx"))


def device_marks(items: Iterable[Item]) -> frozenset[str]:
    """List the project's macros that put a function on the device."""
    return frozenset(
        item.name
        for item in items
        if item.kind == "macro" and is_marked(item.code[len(item.head) :])
    )


def needed(
    items: Sequence[Item], kernels: Iterable[Item], constants: Iterable[str], names: Iterable[str]
) -> list[Item]:
    """List what `kernels` need, in the order of `items`; overloads and specialisations together.

    `constants` are names that launches mention, of which only values are taken; `names` are
    others to take along, such as a functor that a kernel is instantiated with.
    """
    marks = device_marks(items)
    usable = {at: kept for at, item in enumerate(items) if (kept := _usable(item, marks))}
    by_name: dict[str, list[int]] = {}
    for at, item in usable.items():
        if not item.is_kernel:
            for name in item.names:
                by_name.setdefault(name, []).append(at)
    chosen = {id(kernel) for kernel in kernels}
    found = {at for at, item in enumerate(items) if id(item) in chosen}
    stated = [at for name in set(constants) for at in by_name.get(name, ())]
    pending = [*found, *(at for at in stated if usable[at].kind in ("variable", "macro"))]
    pending += [at for name in names for at in by_name.get(name, ())]
    found.update(pending)
    while pending:
        at = pending.pop()
        item = usable.get(at, items[at])
        reached = {place for name in item.uses() for place in by_name.get(name, ())} - found
        found |= reached
        pending += reached
        if not pending:
            pending = _operators(items, usable, found)
            found.update(pending)
    scopes = {scope for at in found for scope in items[at].namespace}
    found |= {
        at
        for at, item in enumerate(items)
        if item.kind == "directive" and _is_scope(item.name, scopes)
    }
    return [usable.get(at, items[at]) for at in sorted(found)]


def _usable(item: Item, marks: frozenset[str]) -> Item | None:
    if item.kind in ("instantiation", "assertion", "directive"):
        return None
    if item.kind == "macro":
        return item
    if item.kind == "class":
        return _without_host_members(item, marks)
    if item.kind == "function":
        marked = is_marked(item.head, marks)
        if marked:
            return item
        return None if not _CONSTANT.search(item.head) or says_host(item.code) else item
    return None if says_host(item.code) else item


def _without_host_members(item: Item, marks: frozenset[str]) -> Item | None:
    if not says_host(item.code):
        return item
    start, end = item.code.find("{", len(item.head)), item.code.rfind("}")
    if start < 0:
        return None
    text, code = item.text, item.code
    for chunk in reversed(list(chunks(code, start + 1, end))):
        piece = code[chunk.start : chunk.end]
        if chunk.what != "code" or not says_host(piece):
            continue
        if not is_function(piece[: piece.find("{")]) or is_marked(piece, marks):
            return None
        text = text[: item.lead + chunk.start] + text[item.lead + chunk.end :]
        code = code[: chunk.start] + code[chunk.end :]
    return replace(item, text=text, code=code)


def _operators(items: Sequence[Item], usable: dict[int, Item], found: set[int]) -> list[int]:
    # a + b names no function: its operands' types do
    classes = {name for at in found if items[at].kind == "class" for name in items[at].names}
    return [
        at
        for at, item in usable.items()
        if at not in found
        and item.kind == "function"
        and not item.names
        and classes.intersection(IDENTIFIER.findall(item.head))
    ]


def _is_scope(name: str, scopes: set[str]) -> bool:
    parts = name.replace(" ", "").split("::")
    known = {part for scope in scopes for part in scope.split("::")}
    return parts[-1] in known | _DEVICE_SCOPES
