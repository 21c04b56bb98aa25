"""PyTorch's accessors as kernels' parameters, written as a pointer and the sizes of its array."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.extensions.draft.extract.items import SourceItem
from tuner.extensions.draft.extract.names import Macro
from tuner.source.facts import Span
from tuner.source.syntax import closing, fold, listed, split_list

_TYPE = re.compile(r"(?:Generic)?PackedTensorAccessor(?P<bits>32|64)?\s*(?=<)")
_BEFORE = re.compile(r"(?:const\s+|typename\s+|(?:::\s*)?\w+\s*::\s*)*$")
_AFTER = re.compile(r"\s*(?:const\b)?\s*&?\s*(?P<name>\w+)$")
# what host code makes them with: `x.packed_accessor32<T, 2>()`, or a function that is handed x
_MADE = re.compile(
    r"(?P<of>(?:\w+(?:\(\))?\s*\.\s*)*\w+(?:\(\))?)\s*\.\s*(?:template\s+)?"
    r"packed_accessor\w*\s*(?=<)|\b\w*packed_accessor\w*\s*(?=<)"
)
_KEPT = re.compile(r"\bauto\s*&{0,2}\s*(\w+)\s*=\s*$")
_NUMBER = re.compile(r"\d+")
_METHOD = re.compile(r"\s*\.\s*(?P<name>size|stride|data|data_ptr)\s*\(\s*(?P<of>\d*)\s*\)")


@dataclass(frozen=True, slots=True)
class _Accessor:
    element: str
    rank: int
    index: str
    is_restricted: bool

    @classmethod
    def parse(cls, arguments: Sequence[str], bits: str | None) -> _Accessor | None:
        if len(arguments) < 2 or not _NUMBER.fullmatch(arguments[1]):
            return None
        index = {"32": "int", "64": "int64_t", None: "int64_t"}[bits]
        index = arguments[3] if len(arguments) > 3 else index
        is_restricted = any("RestrictPtrTraits" in text for text in arguments[2:3])
        return cls(arguments[0], int(arguments[1]), index, is_restricted)

    def parameters(self, name: str) -> str:
        mark = "__restrict__ " if self.is_restricted else ""
        sizes = [f"{self.index} {size}" for size in self.sizes(name)]
        return ", ".join([f"{self.element}* {mark}{name}", *sizes])

    def sizes(self, name: str) -> list[str]:
        return [f"{name}_n{at}" for at in range(self.rank)]

    def pass_tensor(self, tensor: str) -> str:
        sizes = [f"{tensor}.size({at})" for at in range(self.rank)]
        return ", ".join([f"{tensor}.data_ptr<{self.element}>()", *sizes])


def without_accessors(
    items: Sequence[SourceItem], macros: Mapping[str, Macro]
) -> tuple[SourceItem, ...]:
    """Write `T* x, int x_n0, int x_n1` for a kernel's accessors, and what launches hand over.

    Their elements become those of a contiguous array, `x[i * x_n1 + j]`. A kernel that does more
    with one than to index it wholly, or to ask for sizes, keeps all of them.
    """
    if not any(_TYPE.search(item.code) for item in items):
        return tuple(items)
    plain = tuple(_plain(item, macros) if item.is_kernel else item for item in items)
    if all(new is old for new, old in zip(plain, items, strict=True)):
        return plain
    return tuple(item if item.is_kernel or item.kind == "macro" else _host(item) for item in plain)


def _plain(kernel: SourceItem, macros: Mapping[str, Macro]) -> SourceItem:
    match = re.search(rf"\b{kernel.names[-1]}\s*(?=\()", kernel.head)
    end = closing(kernel.code, match.end()) if match is not None else None
    if match is None or end is None:
        return kernel
    accessors: dict[str, _Accessor] = {}
    edits: list[tuple[Span, str]] = []
    start = match.end() + 1
    for piece, at in split_list(kernel.code[start : end - 1], angles=True):
        declared = _read_declaration(piece, macros)
        if declared is not None:
            name, accessor = declared
            accessors[name] = accessor
            edits.append(((start + at, start + at + len(piece)), accessor.parameters(name)))
    if not accessors:
        return kernel
    item = _rewrite_indices(kernel, end, accessors)
    if item is None:
        return kernel
    for span, new in reversed(edits):
        item = _replace_span(item, span, new)
    return replace(item, head=item.code[: item.code.index("{")])


def _read_declaration(piece: str, macros: Mapping[str, Macro]) -> tuple[str, _Accessor] | None:
    # a macro may stand for the type
    plain = {name: macro.body for name, macro in macros.items() if macro.parameters is None}
    piece = re.sub(r"\b[A-Z]\w+\b", lambda word: plain.get(word[0], word[0]), piece)
    match = _TYPE.search(piece)
    if match is None or not _BEFORE.fullmatch(piece[: match.start()].lstrip()):
        return None
    arguments, end = listed(piece, match.end())
    named = _AFTER.fullmatch(piece[end:].rstrip()) if end else None
    accessor = _Accessor.parse(arguments, match["bits"])
    return (named["name"], accessor) if named and accessor else None


def _rewrite_indices(
    kernel: SourceItem, start: int, accessors: Mapping[str, _Accessor]
) -> SourceItem | None:
    # from the last to the first: an index may hold another array's element
    uses = re.compile(rf"(?<![\w.>])(?:{'|'.join(accessors)})\b")
    for match in reversed([*uses.finditer(kernel.code, start)]):
        if (use := _use(kernel.code, match.end(), match[0], accessors[match[0]])) is None:
            return None
        end, text = use
        kernel = _replace_span(kernel, (match.start(), end), text)
    return kernel


def _use(code: str, at: int, name: str, accessor: _Accessor) -> tuple[int, str] | None:
    indices: list[str] = []
    while len(indices) < accessor.rank and code[at:].lstrip().startswith("["):
        opening = code.index("[", at)
        end = closing(code, opening)
        if end is None:
            return None
        indices.append(fold(code[opening + 1 : end - 1]))
        at = end
    sizes = accessor.sizes(name)
    method = _METHOD.match(code, at)
    if len(indices) == accessor.rank:
        return at, f"{name}[{_flat(indices, sizes)}]"
    if method is None or (indices and method["name"] not in ("data", "data_ptr")):
        return None
    if method["name"] == "size" and method["of"] and int(method["of"]) < accessor.rank:
        return method.end(), sizes[int(method["of"])]
    if method["name"] == "stride" and method["of"]:
        return method.end(), f"({' * '.join(sizes[int(method['of']) + 1 :]) or '1'})"
    if method["name"] in ("data", "data_ptr"):
        rest = ["0"] * (accessor.rank - len(indices))
        text = f"({name} + {_flat([*indices, *rest], sizes)})" if indices else name
        return method.end(), text
    return None


def _flat(indices: Sequence[str], sizes: Sequence[str]) -> str:
    text = _term(indices[0])
    for index, size in zip(indices[1:], sizes[1:], strict=True):
        whole = f"({text})" if " + " in text else text
        text = f"{whole} * {size} + {_term(index)}"
    return text if len(indices) > 1 else indices[0]


def _term(index: str) -> str:
    return index if re.fullmatch(r"[\w.]+", index) else f"({index})"


def _host(item: SourceItem) -> SourceItem:
    kept: dict[str, str] = {}
    for match in reversed([*_MADE.finditer(item.code)]):
        if (argument := _rewrite_argument(item.code, match)) is None:
            continue
        end, text = argument
        variable = _KEPT.search(item.code[: match.start()])
        if variable is not None:
            kept[variable[1]] = text
        else:
            item = _replace_span(item, (match.start(), end), text)
    for opens in reversed([*re.finditer(r">>>\s*(?=\()", item.code)]) if kept else ():
        start, end = opens.end(), closing(item.code, opens.end()) or opens.end()
        names = re.compile(rf"(?<![\w.])(?:{'|'.join(kept)})(?![\w.])")
        for match in reversed([*names.finditer(item.code, start, end)]):
            item = _replace_span(item, match.span(), kept[match[0]])
    return item


def _rewrite_argument(code: str, match: re.Match[str]) -> tuple[int, str] | None:
    arguments, after = listed(code, match.end())
    if not after or not code[after:].lstrip().startswith("("):
        return None
    accessor = _Accessor.parse(arguments, None)
    handed, end = listed(code, code.index("(", after))
    tensor = fold(match["of"]) if match["of"] else next(iter(handed), "")
    return (end, accessor.pass_tensor(tensor)) if accessor and end and tensor else None


def _replace_span(item: SourceItem, span: Span, new: str) -> SourceItem:
    # lines keep their numbers
    return item.with_edits([(span, new + "\n" * item.code.count("\n", *span))])
