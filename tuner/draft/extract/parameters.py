"""A kernel that takes a struct by value, given the struct's members one by one instead."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tuner.draft.extract.chunks import chunks, function_name, is_function, template_end
from tuner.draft.extract.items import Item
from tuner.draft.extract.reading import REMOVED, WRITTEN
from tuner.source.syntax import closing, fold, split_list

_FIELD = re.compile(r"^(?P<type>[\w:\s]+?(?:\s*[*&])*(?:\s*__restrict__)?(?:\s*const)?)\s*$")
_BOUNDS = re.compile(r"__launch_bounds__\s*(?=\()")
_MAX_COLUMNS = 110
_VOID = re.compile(r"\bvoid\b")


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a struct: its type as C++ writes it, and its name."""

    c_type: str
    name: str


@dataclass(frozen=True, slots=True)
class Opened:
    """A struct parameter that was opened: its place in the kernel's list, and its members."""

    place: int
    parameter: str
    struct: str
    members: tuple[Member, ...]


def opened(
    kernel: Item, items: Sequence[Item], conversions: str
) -> tuple[tuple[Item, ...], Opened] | None:
    """Give a kernel the members of a struct parameter in place of the struct.

    Where its code has the members' names for something else, it becomes a device function that a
    new kernel calls. None where there is no such struct, or where its members cannot be read.
    `conversions` is code whose casts say what a `void*` points to.
    """
    listed = _parameter_list(kernel)
    structs = {name: item for item in items if item.kind == "class" for name in item.names[:1]}
    if listed is None:
        return None
    start, end = listed
    pieces = [fold(piece) for piece, _ in split_list(kernel.code[start + 1 : end - 1], angles=True)]
    for place, piece in enumerate(pieces):
        match = re.fullmatch(
            r"(?:(?:const|__grid_constant__)\s+)*((?:\w+\s*::\s*)*(\w+))(?:\s+const)?"
            r"(?:\s+__grid_constant__)?\s+(\w+)",
            piece,
        )
        members = _members(structs[match[2]]) if match and match[2] in structs else ()
        if match is not None and members:
            known = tuple(_pointed(member, match[3], conversions) for member in members)
            found = Opened(place, match[3], match[1], known)
            if _is_free(kernel, found, start, end):
                return (_rewritten(kernel, (start, end), pieces, found),), found
            return _split(kernel, (start, end), pieces, found), found
    return None


def _is_free(kernel: Item, found: Opened, start: int, end: int) -> bool:
    # whether the members' names mean nothing else in the kernel
    rest = kernel.code[:start] + kernel.code[end:]
    names = "|".join(member.name for member in found.members)
    others = [piece for piece, _ in split_list(kernel.code[start + 1 : end - 1], angles=True)]
    del others[found.place]
    free = rf"(?<![\w.>])(?:{names})\b"
    return not re.search(free, rest) and not any(re.search(free, piece) for piece in others)


def _rewritten(kernel: Item, listed: tuple[int, int], pieces: list[str], found: Opened) -> Item:
    start, end = listed
    own = [*pieces]
    own[found.place : found.place + 1] = [f"{m.c_type} {m.name}" for m in found.members]
    brace = kernel.code.index("{", end)
    made = ", ".join(member.name for member in found.members)
    gone = f"\n{REMOVED}" * kernel.code.count("\n", start, end)
    rows = f"({gone}" + "".join(f"\n{WRITTEN}{row}" for row in _rows(own, ")"))
    inside = f"{{\n{WRITTEN}  const {found.struct} {found.parameter}{{{made}}};"

    def edited(text: str, lead: int) -> str:
        head = text[: lead + start] + rows + text[lead + end : lead + brace]
        return head + inside + text[lead + brace + 1 :]

    head = kernel.code[:start] + rows + kernel.code[end:brace]
    text, code = edited(kernel.text, kernel.lead), edited(kernel.code, 0)
    return replace(kernel, text=text, code=code, head=head)


def _parameter_list(kernel: Item) -> tuple[int, int] | None:
    name = function_name(kernel.head)
    match = re.search(rf"\b{name[-1]}\s*(?:<[^()]*>)?\s*(?=\()", kernel.head) if name else None
    end = closing(kernel.code, match.end()) if match is not None else None
    return None if match is None or end is None else (match.end(), end)


def _members(struct: Item) -> tuple[Member, ...]:
    if struct.code.startswith("template"):
        return ()
    start = struct.code.find("{", len(struct.head))
    found: list[Member] = []
    for chunk in chunks(struct.code, start + 1, struct.code.rfind("}")) if start >= 0 else ():
        piece = struct.code[chunk.start : chunk.end].strip()
        if chunk.what != "code" or not piece or re.match(r"(?:static|using|typedef)\b", piece):
            continue
        if is_function(piece.partition("{")[0]) or "(" in piece:
            return ()
        first = None
        for text, _ in split_list(piece.rstrip(";"), angles=True):
            declared = fold(re.split(r"=|\{", text)[0])
            match = re.match(r"(.*?[\s*&])?(\w+)$", declared)
            kind = (match[1] or first) if match else None
            if match is None or not kind or not _FIELD.match(kind):
                return ()
            first = first or kind.strip()
            found.append(Member(kind.strip(), match[2]))
    return tuple(found)


def _pointed(member: Member, parameter: str, code: str) -> Member:
    # `static_cast<const T*>(params.x)` says what x points to
    if not _VOID.search(member.c_type):
        return member
    name = rf"(?:\b{parameter}\s*\.\s*)?\b{member.name}\b"
    cast = rf"_cast\s*<\s*(?:const\s+)?([\w:]+)\s*(?:const\s*)?\*[^<>]*>\s*\(\s*{name}"
    offset = rf"\b(?:offset|load_as|ptr_cast)\s*<\s*(?:const\s+)?([\w:]+)\s*>\s*\(\s*{name}"
    found = {match[1] for pattern in (cast, offset) for match in re.finditer(pattern, code)}
    if len(found) != 1:
        return member
    return replace(member, c_type=_VOID.sub(found.pop(), member.c_type))


def _split(
    kernel: Item, listed: tuple[int, int], pieces: list[str], found: Opened
) -> tuple[Item, Item]:
    name = function_name(kernel.head)[-1]
    bounds = _BOUNDS.search(kernel.head)
    bound_end = closing(kernel.head, bounds.end()) if bounds else None
    bounds_text = kernel.head[bounds.start() : bound_end] + " " if bounds else ""
    start, end = listed
    head = kernel.text[: kernel.lead + start]
    head = re.sub(r"\b__global__\b", "__device__ __forceinline__", head)
    head = head.replace(bounds_text.strip(), "") if bounds_text else head
    head = re.sub(rf"\b{name}(\s*)$", rf"{name}_body\1", head.rstrip())
    plain = [re.sub(r"\s*__grid_constant__\s*", " ", piece).strip() for piece in pieces]
    body = f"{head}({', '.join(plain)}){kernel.text[kernel.lead + end :]}"
    body = re.sub(r"[ \t]+\n", "\n", re.sub(r"(\w) {2,}(\w)", r"\1 \2", body))
    at = template_end(kernel.code)
    template = fold(kernel.code[:at])
    own = [*pieces]
    own[found.place : found.place + 1] = [f"{m.c_type} {m.name}" for m in found.members]
    passed = [re.search(r"(\w+)\s*$", piece) for piece in pieces]
    arguments = [match[1] if match else "" for match in passed]
    arguments[found.place] = f"{found.struct}{{{', '.join(m.name for m in found.members)}}}"
    template_list = _arguments(kernel.code[:at])
    wrapper = "\n".join(
        [
            f"// {name} with the members of {found.struct} as its parameters.",
            *([template] if template else []),
            f"__global__ void {bounds_text}{name}(",
            *_rows(own, ") {"),
            f"  {name}_body{template_list}(",
            *_rows(arguments, ");"),
            "}",
        ]
    )
    code = wrapper.partition("\n")[2]
    inner = replace(kernel, kind="function", text=body, head="__device__")
    outer = replace(
        kernel, text=wrapper, code=code, head=code.partition("{")[0], lead=len(wrapper) - len(code)
    )
    return inner, outer


def _rows(texts: Sequence[str], end: str) -> list[str]:
    rows, row = [], "   "
    for at, text in enumerate(texts):
        piece = f" {text}" + ("," if at + 1 < len(texts) else end)
        if len(row) + len(piece) > _MAX_COLUMNS:
            rows.append(row)
            row = "   "
        row += piece
    return [*rows, row]


def _arguments(template: str) -> str:
    opening = template.find("<")
    if opening < 0:
        return ""
    close = template.rfind(">") if "requires" not in template else template.find(">")
    names = []
    for piece, _ in split_list(template[opening + 1 : close], angles=True):
        declared = piece.partition("=")[0].rstrip()
        match = re.search(r"(\.\.\.\s*)?(\w+)$", declared)
        if match is not None:
            names.append(match[2] + ("..." if match[1] else ""))
    return f"<{', '.join(names)}>" if names else ""


def arguments_of(site_text: str, found: Opened) -> list[str]:
    """Read what host code puts into the members: `Params{.x = a, .y = b}`, or braces in order.

    A member that is not told is written as the struct's own, `params.x`.
    """
    inside = re.search(r"\{(.*)\}\s*\)*$", site_text, re.DOTALL)
    pieces = [fold(piece) for piece, _ in split_list(inside[1])] if inside else []
    named = {
        match[1]: match[2].strip()
        for piece in pieces
        if (match := re.match(r"\.(\w+)\s*=\s*(.*)", piece, re.DOTALL))
    }
    if not named and len(pieces) == len(found.members):
        return pieces
    owner = site_text.strip() if re.fullmatch(r"\w+", site_text.strip()) else found.parameter
    return [named.get(member.name, f"{owner}.{member.name}") for member in found.members]
