"""A struct parameter given as its members."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.extensions.draft.extract.items import (
    SourceItem,
    chunks,
    function_name,
    is_function,
    template_end,
)
from tuner.extensions.draft.extract.reading import REMOVED, WRITTEN
from tuner.source.facts import IDENTIFIER, LineIndex, Span
from tuner.source.kernels import dtype_of, read_template
from tuner.source.syntax import closing, fold, listed, split_list, top_level

# names of types that only the struct itself knows
_OWN_TYPE = re.compile(
    r"\b(?:using\s+(?P<name>\w+)\s*=\s*(?P<of>[^;]+)|typedef\s+(?P<of_last>[^;{}]+?)\s+(?P<last>\w+)\s*);"
)
_FIELD = re.compile(r"^(?P<type>[\w:\s]+?(?:\s*[*&])*(?:\s*__restrict__)?(?:\s*const)?)\s*$")
# a function in a class, but no pointer to one
_METHOD = re.compile(r"^[^()=]*[\w=<>+*/\[\]-]\s*\((?!\s*[*&])|\boperator\b")
_BOUNDS = re.compile(r"__launch_bounds__\s*(?=\()")
_VOID = re.compile(r"\bvoid\b")
_MAX_COLUMNS = 110
_MOST_ELEMENTS = 16


@dataclass(frozen=True, slots=True)
class StructMember:
    """One parameter for a member; `path` is how code spells an element, or a member's member.

    `of` is the name that such a one has in the class that declares it.
    """

    c_type: str
    name: str
    of: str = ""
    path: str = ""

    def inside(self, name: str, path: str) -> StructMember:
        """Give it as a part of the member `name`."""
        own = f"{path}.{self.path or self.name}"
        return StructMember(self.c_type, f"{name}_{self.name}", self.of or self.name, own)

    @property
    def spelled(self) -> str:
        """A pattern for how code spells it, after the struct's name."""
        return r"\s*".join(map(re.escape, re.findall(r"\w+|\W", self.path))) + r"(?!\w)"


@dataclass(frozen=True, slots=True)
class Opened:
    """A struct parameter that was opened: its place in the kernel's list, and its members.

    `unused` are members that no code of the unit names: they are no parameters.
    """

    place: int
    parameter: str
    struct: str
    members: tuple[StructMember, ...]
    unused: frozenset[str] = frozenset()

    @property
    def given(self) -> tuple[StructMember, ...]:
        return tuple(member for member in self.members if member.name not in self.unused)

    @property
    def built(self) -> str:
        """The braces' content that makes the struct of the parameters."""
        return ", ".join(
            f"static_cast<{member.c_type}>(0)" if member.name in self.unused else member.name
            for member in self.members
        )


_VECTOR = re.compile(
    r"(?:const\s+)?(?P<type>(?P<of>u?(?:char|short|int|long|longlong)|float|double)(?P<size>[1-4])"
    r"|dim3)(?:\s+const)?\s+(?P<name>\w+)"
)
_UNSIGNED = {"longlong": "long long", "ulonglong": "unsigned long long", None: "unsigned int"}


def unpack_vectors(kernel: SourceItem) -> tuple[SourceItem, tuple[Opened, ...]]:
    """Give a kernel one number for each member of CUDA's own vectors, `uint3` or `dim3`."""
    span = _parameter_list(kernel)
    if span is None:
        return kernel, ()
    found: list[Opened] = []
    edits: list[tuple[Span, str]] = []
    more = 0
    listed_ones = split_list(kernel.code[span[0] + 1 : span[1] - 1], angles=True)
    for place, (piece, at) in enumerate(listed_ones):
        start, equals = span[0] + 1 + at, top_level(piece, "=")
        declared = piece if equals is None else piece[:equals].rstrip()
        if equals is not None:
            # what follows may have no default
            edits.append(((start + len(declared), start + len(piece)), ""))
        if (match := _VECTOR.fullmatch(declared)) is None:
            continue
        of = match["of"]
        c_type = _UNSIGNED.get(of) or re.sub(r"^u(?=[a-z])", "unsigned ", of)
        names = [f"{match['name']}_{axis}" for axis in "xyzw"[: int(match["size"] or 3)]]
        members = tuple(StructMember(c_type, name) for name in names)
        found.append(Opened(place + more, match["name"], match["type"], members))
        more += len(members) - 1
        new = ", ".join(f"{c_type} {name}" for name in names)
        edits.append(((start, start + len(declared)), new))
    if not found:
        return kernel, ()
    built = ""
    for one in found:
        values = ", ".join(member.name for member in one.members)
        value = f"({values})" if one.struct == "dim3" else f" = {{{values}}}"
        built += f"\n{WRITTEN}  {one.struct} {one.parameter}{value};"
    brace = kernel.code.index("{", span[1]) + 1
    kernel = kernel.with_edits([*sorted(edits), ((brace, brace), built)])
    head = kernel.code[: kernel.code.index("{", span[0])]
    return replace(kernel, head=head), tuple(found)


def open_struct(
    kernel: SourceItem,
    items: Sequence[SourceItem],
    conversions: str,
    mentioned: Container[str] = frozenset(),
) -> tuple[tuple[SourceItem, ...], Opened] | None:
    """Give a kernel the members of a struct parameter in place of the struct, where it has one.

    Where its code has the members' names for something else, it becomes a device function that a
    new kernel calls. `conversions` is code whose casts say what a `void*` points to, `mentioned`
    are the names that the launch depends on.
    """
    span = _parameter_list(kernel)
    structs = {name: item for item in items if item.kind == "class" for name in item.names[:1]}
    if span is None:
        return None
    start, end = span
    pieces = [fold(piece) for piece, _ in split_list(kernel.code[start + 1 : end - 1], angles=True)]
    for place, piece in enumerate(pieces):
        match = re.fullmatch(
            r"(?:(?:const|__grid_constant__)\s+)*"
            r"((?:typename\s+)?(?:\w+\s*::\s*)*(\w+)\s*(?P<given><.*>)?)(?:\s+const)?"
            r"(?:\s+__grid_constant__)?\s+(?P<name>\w+)",
            piece,
        )
        if match is None or match[2] not in structs:
            continue
        given = listed(match["given"], 0)[0] if match["given"] else ()
        members = _members(structs[match[2]], structs, given)
        if members:
            # a type that the kernel's body names is not known in its head
            own = _own_types(kernel)
            pointed = (_resolve_void(member, match["name"], conversions) for member in members)
            members = tuple(replace(m, c_type=_spell_type(m.c_type, own)) for m in pointed)
            unused = frozenset(_unused_members(members, items, kernel, mentioned))
            found = Opened(place, match["name"], match[1], members, unused)
            # do the members' names mean something else in the kernel?
            others = (kernel.code[:start], *pieces[:place], *pieces[place + 1 :])
            taken = {n for text in others for n in _bare(text, found.given)}
            inside = _bare(kernel.code[end:], found.given)
            if taken or not all(_is_local(name, kernel.code[end:]) for name in inside):
                return _split(kernel, span, pieces, found), found
            return (_rewrite_kernel(kernel, span, pieces, found, inside),), found
    return None


def _unused_members(
    members: Sequence[StructMember],
    items: Sequence[SourceItem],
    kernel: SourceItem,
    mentioned: Container[str],
) -> Iterator[str]:
    # of what could be 0, what is named once alone, where it is declared
    counts = Counter(word for item in items for word in IDENTIFIER.findall(item.code))
    own = Counter(IDENTIFIER.findall(kernel.code))
    for member in members:
        is_plain = "*" in member.c_type or dtype_of(member.c_type, {}) is not None
        name = member.of or member.name
        if is_plain and counts[name] <= 1 and not own[name] and name not in mentioned:
            yield member.name


def _bare(text: str, members: Sequence[StructMember]) -> set[str]:
    names = "|".join(member.name for member in members)
    return {match[1] for match in re.finditer(rf"(?<![\w.>])({names})\b", text)}


def _is_local(name: str, body: str) -> bool:
    # `T* name = ...`, and all before it is no use of another thing of that name
    first = re.search(rf"(?<![\w.>]){name}\b", body)
    declared = rf"(?:[\w>]\s*[*&]+\s*|[\w>]\s+)(?:__restrict__\s+)?{name}\s*(?:[=;{{\[]|\()"
    match = re.search(rf"(?<!return)(?<!return ){declared}", body)
    return first is not None and match is not None and match.start() < first.start() < match.end()


def _with_members(pieces: Sequence[str], found: Opened) -> list[str]:
    own = [f"{member.c_type} {member.name}" for member in found.given]
    return [*pieces[: found.place], *own, *pieces[found.place + 1 :]]


def _rewrite_kernel(
    kernel: SourceItem, span: Span, pieces: list[str], found: Opened, renamed: set[str]
) -> SourceItem:
    """Put the members into the list, and their names into the body where nothing else is used."""
    kernel = _rename_locals(kernel, span[1], {name: f"{name}_" for name in renamed})
    names = "|".join(member.name for member in found.members)
    owner = rf"(?<![\w.>]){found.parameter}\s*\.\s*"
    forms = {f"{owner}{member.spelled}": member.name for member in found.members if member.path}
    forms[rf"{owner}(?=(?:{names})\b)"] = ""
    places = [
        (match.span(), new)
        for form, new in forms.items()
        for match in re.compile(form).finditer(kernel.code, span[1])
    ]
    all_of = re.findall(rf"(?<![\w.>]){found.parameter}\b", kernel.code[span[1] :])
    whole = len(all_of) > len(places)
    if not whole:
        kernel = kernel.with_edits(sorted(places))
    start, end = span
    brace = kernel.code.index("{", end)
    gone = f"\n{REMOVED}" * kernel.code.count("\n", start, end)
    written = _rows(_with_members(pieces, found), ")")
    rows = f"({gone}" + "".join(f"\n{WRITTEN}{row}" for row in written)
    const = "const " if re.search(r"\bconst\b|__grid_constant__", pieces[found.place]) else ""
    built = f"\n{WRITTEN}  {const}{found.struct} {found.parameter}{{{found.built}}};"
    inside = f"{{{built}" if whole else "{"

    def splice(text: str, lead: int) -> str:
        head = text[: lead + start] + rows + text[lead + end : lead + brace]
        return head + inside + text[lead + brace + 1 :]

    head = kernel.code[:start] + rows + kernel.code[end:brace]
    text, code = splice(kernel.text, kernel.lead), splice(kernel.code, 0)
    return replace(kernel, text=text, code=code, head=head)


def _rename_locals(kernel: SourceItem, start: int, names: Mapping[str, str]) -> SourceItem:
    taken = {*IDENTIFIER.findall(kernel.code)}
    edits = []
    for name, wanted in names.items():
        other = next(one for n in range(len(taken) + 1) if (one := wanted + "_" * n) not in taken)
        places = re.compile(rf"(?<![\w.>]){name}\b").finditer(kernel.code, start)
        edits += [(match.span(), other) for match in places]
    return kernel.with_edits(edits)


def _parameter_list(kernel: SourceItem) -> Span | None:
    name = function_name(kernel.head)
    match = re.search(rf"\b{name[-1]}\s*(?:<[^()]*>)?\s*(?=\()", kernel.head) if name else None
    end = closing(kernel.code, match.end()) if match is not None else None
    return None if match is None or end is None else (match.end(), end)


def _members(
    struct: SourceItem, structs: Mapping[str, SourceItem], given: Sequence[str] = ()
) -> tuple[StructMember, ...]:
    """List the members in the order of initialization, those of base classes first.

    `given` are the template arguments of the struct.
    """
    names = [p.name for p in read_template(struct.code, 0, LineIndex(struct.code))[0]]
    if len(names) != len(given):
        return ()
    members: list[StructMember] = []
    own = dict(zip(names, given, strict=True))
    bases = re.search(r"(?<!:):(?!:)(.*)", struct.head, re.DOTALL)
    words = [IDENTIFIER.findall(text) for text in bases[1].split(",")] if bases else []
    for base in (names[-1] for names in words if names):
        inherited = _members(structs[base], structs) if base in structs else ()
        if not inherited:
            return ()
        members += inherited
        own |= _own_types(structs[base])
    own |= _own_types(struct)
    start = struct.code.find("{", len(struct.head))
    for chunk in chunks(struct.code, start + 1, struct.code.rfind("}")) if start >= 0 else ():
        piece = struct.code[chunk.start : chunk.end].strip()
        if chunk.what != "code" or not piece or re.match(r"(?:static|using|typedef)\b", piece):
            continue
        if is_function(piece.partition("{")[0]) or "(" in piece:
            # braces initialize what has functions, but nothing that has constructors
            if not _METHOD.search(piece.partition("{")[0]) or struct.name in function_name(piece):
                return ()
            continue
        first = None
        for text, _ in split_list(piece.rstrip(";"), angles=True):
            declared = fold(re.split(r"=|\{", text)[0])
            match = re.match(r"(.*?[\s*&])?(\w+)\s*(?:\[\s*(\d+)\s*\])?$", declared)
            kind = (match[1] or first) if match else None
            if match is None or not kind or not _FIELD.match(kind):
                return ()
            first = first or kind.strip()
            c_type, count = _spell_type(kind.strip(), own), int(match[3] or 1)
            if count > _MOST_ELEMENTS:
                return ()
            # `float v[2]` is two numbers, and `Sizes of` its members: braces take them one by one
            parts = [(f"{match[2]}_{n}", f"{match[2]}[{n}]") for n in range(count)]
            nested = re.fullmatch(r"(?:const )?(?:\w+::)*(\w+)\s*(<.*>)?(?: const)?", c_type)
            of = structs.get(nested[1]) if nested else None
            passed = listed(nested[2], 0)[0] if nested and nested[2] else ()
            inner = _members(of, structs, passed) if of is not None else ()
            for name, path in parts if match[3] else [(match[2], match[2])]:
                members += [member.inside(name, path) for member in inner] or [
                    StructMember(c_type, name, *((match[2], path) if match[3] else ()))
                ]
    return tuple(members)


def _own_types(code: SourceItem) -> dict[str, str]:
    matches = _OWN_TYPE.finditer(code.code)
    return {m["name"] or m["last"]: fold(m["of"] or m["of_last"]) for m in matches}


def _spell_type(c_type: str, own: Mapping[str, str]) -> str:
    return re.sub(r"[A-Za-z_]\w*", lambda word: own.get(word[0], word[0]), c_type)


def _resolve_void(member: StructMember, parameter: str, code: str) -> StructMember:
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
    kernel: SourceItem, span: Span, pieces: list[str], found: Opened
) -> tuple[SourceItem, SourceItem]:
    name = function_name(kernel.head)[-1]
    bounds = _BOUNDS.search(kernel.head)
    bound_end = closing(kernel.head, bounds.end()) if bounds else None
    bounds_text = kernel.head[bounds.start() : bound_end] + " " if bounds else ""
    start, end = span
    head = kernel.text[: kernel.lead + start]
    head = re.sub(r"\b__global__\b", "__device__ __forceinline__", head)
    head = head.replace(bounds_text.strip(), "") if bounds_text else head
    head = re.sub(rf"\b{name}(\s*)$", rf"{name}_body\1", head.rstrip())
    plain = [re.sub(r"\s*__grid_constant__\s*", " ", piece).strip() for piece in pieces]
    body = f"{head}({', '.join(plain)}){kernel.text[kernel.lead + end :]}"
    body = re.sub(r"[ \t]+\n", "\n", re.sub(r"(\w) {2,}(\w)", r"\1 \2", body))
    at = template_end(kernel.code)
    template = fold(kernel.code[:at])
    passed = [re.search(r"(\w+)\s*$", piece) for piece in pieces]
    arguments = [match[1] if match else "" for match in passed]
    arguments[found.place] = f"{found.struct}{{{found.built}}}"
    parameters, _ = read_template(template, 0, LineIndex(template))
    names = [f"{p.name}..." if "..." in p.kind else p.name for p in parameters]
    given = f"<{', '.join(names)}>" if names else ""
    rows = [
        f"// {name} with the members of {found.struct} as its parameters.",
        *([template] if template else []),
        f"__global__ void {bounds_text}{name}(",
        *_rows(_with_members(pieces, found), ") {"),
        f"  {name}_body{given}(",
        *_rows(arguments, ");"),
        "}",
    ]
    wrapper, code = "\n".join(rows), "\n".join(rows[1:])
    inner = replace(kernel, kind="function", text=body, head="__device__")
    lead, head = len(wrapper) - len(code), code.partition("{")[0]
    return inner, replace(kernel, text=wrapper, code=code, head=head, lead=lead)


def _rows(texts: Sequence[str], end: str) -> list[str]:
    rows, row = [], "   "
    for at, text in enumerate(texts):
        piece = f" {text}" + ("," if at + 1 < len(texts) else end)
        if len(row) + len(piece) > _MAX_COLUMNS:
            rows.append(row)
            row = "   "
        row += piece
    return [*rows, row]


def arguments_of(site_text: str, found: Opened) -> list[str]:
    """Read `Params{.x = a, .y = b}`, or braces in order; `params.x` for what is not told.

    What is read is for the members that are parameters.
    """
    built = rf"^(?:make_)?{re.escape(found.struct)}\s*\((.*)\)$"
    inside = re.search(r"\{(.*)\}\s*\)*$", site_text, re.DOTALL)
    inside = inside or re.search(built, site_text.strip(), re.DOTALL)
    pieces = [fold(piece) for piece, _ in split_list(inside[1])] if inside else []
    if inside and pieces and len(pieces) < len(found.members):
        # braces within
        pieces = [fold(piece) for piece, _ in split_list(re.sub(r"[{}]", " ", inside[1]))]
    named = {
        match[1]: match[2].strip()
        for piece in pieces
        if (match := re.match(r"\.(\w+)\s*=\s*(.*)", piece, re.DOTALL))
    }
    if not named and len(pieces) == len(found.members):
        pairs = zip(found.members, pieces, strict=True)
        return [piece for member, piece in pairs if member.name not in found.unused]
    owner = site_text.strip() if re.fullmatch(r"\w+", site_text.strip()) else found.parameter
    return [named.get(m.name, f"{owner}.{m.path or m.name}") for m in found.given]
