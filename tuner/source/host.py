"""Host code in a CUDA source, put where a device-only compiler does not see it."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tuner.source.facts import LineIndex, SourceFile, Span, within
from tuner.source.syntax import Node, parse_tree, text_of, walk

# NVRTC defines it, nvcc does not
_GUARD = "#ifndef __CUDACC_RTC__"
_NESTS = (
    "namespace_definition",
    "declaration_list",
    "linkage_specification",
    "preproc_if",
    "preproc_ifdef",
    "preproc_else",
    "preproc_elif",
)
# who tells the CPU or NVRTC from the rest has decided what each of them sees
_DECIDED = (
    b"#ifdef__CUDA_ON_HOST__", b"#ifndef__CUDA_ON_HOST__",
    b"#ifndef__CUDACC_RTC__", b"#if!defined(__CUDACC_RTC__)",
)  # fmt: skip
_CLASSES = ("class_specifier", "struct_specifier", "union_specifier")
_NAMES = ("alias_declaration", "using_declaration", "namespace_alias_definition", "type_definition")
_DEVICE = re.compile(r"\b__(?:global|device|constant|shared|managed)__\b")
_MACRO = re.compile(r"\b[A-Z][A-Z0-9_]*_?(?:DEVICE|INLINE)[A-Z0-9_]*\b|\b(?:DEVICE|INLINE)\w*\b")
_LAUNCHES = re.compile(r"<<<|\bcuda(?!_)[A-Z]\w*\s*\(|\bcuLaunch\w*\s*\(")
_HOST_NAMES = re.compile(r"(?<!cuda::)\b(?:std|torch|at|c10|tvm|pybind11|thrust)\s*::")
_HOST_HEADER = re.compile(
    r"[<\"](?:(?:torch|ATen|c10|pybind11|tvm|dlpack|thrust|sys)/.*|Python\.h"
    r"|(?:cublas|cusparse|cudnn|cufft|nccl|nvrtc|nvtx|curand\.h|cuda_runtime|cuda_profiler).*"
    r"|device_launch_parameters\.h|helper_\w+\.h|(?:stdlib|string|time|unistd|getopt)\.h"
    r"|iostream|fstream|sstream|ostream|istream|iomanip|vector|string|map|set|list|deque|queue"
    r"|stack|unordered_map|unordered_set|memory|mutex|thread|atomic|chrono|random|functional"
    r"|numeric|exception|stdexcept|optional|variant|cstring|cstdlib|ctime|algorithm)[>\"]"
)

_SEMICOLON = re.compile(r"[ \t]*;")
# what nvcc's own first include brings, or a framework's header: names, and other headers with them
_IMPLICIT = {
    "cstdint": (r"u?int(?:8|16|32|64|ptr|max)_t|U?INT(?:8|16|32|64)_M(?:AX|IN)", ("stdint.h",)),
    "cmath": (r"INFINITY|NAN|HUGE_VALF?|M_(?:E|PI|LN|LOG|SQRT|[12]_)\w*", ("math.h",)),
    "climits": (r"CHAR_BIT|(?:[SU]?CHAR|U?SHRT|U?INT|U?LONG|U?LLONG)_(?:MAX|MIN)", ("limits.h",)),
    "cfloat": (r"(?:FLT|DBL)_(?:MAX|MIN|EPSILON|DIG|TRUE_MIN)", ("float.h",)),
    "cuda_fp16.h": (r"__half2?|half2|__(?:float|half)2(?:float|half)", ()),
    "cuda_bf16.h": (r"(?:__)?nv_bfloat162?|__(?:float|bfloat16)2(?:float|bfloat16)", ()),
    "cuda_fp8.h": (r"__nv_fp8\w*", ()),
}


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the characters from `start` to `end` (exclusive) by `text`."""

    start: int
    end: int
    text: str


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """Apply edits that do not overlap; those at one place follow one another as listed."""
    pieces, at = [], 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        pieces += [text[at : edit.start], edit.text]
        at = edit.end
    return "".join([*pieces, text[at:]])


def hide_host_code(source: SourceFile) -> str:
    """Guard the host code of a source so that NVRTC compiles the rest; device code is untouched.

    What nvcc or a hidden header defines without being asked is included. All this takes the place
    of blank lines where there are any, so that lines keep their numbers.
    """
    return apply_edits(source.text, host_edits(source))


def host_edits(source: SourceFile) -> tuple[Edit, ...]:
    """List the edits that `hide_host_code` makes, none for a source that NVRTC takes as it is."""
    reached = tuple(sorted(source.reachable(source.kernels)))
    items = tuple(_items(parse_tree(source.masked)))
    host = [item for item in items if _is_host(item, source, reached)]
    guards = [edit for span in _merge_spans(host, source.masked) for edit in _guard(span, source)]
    code = "\n".join(source.masked[start:end] for start, end in reached)
    include = re.compile(r"^[ \t]*#[ \t]*include\b.*$", re.MULTILINE)
    missing = implied_headers(code, include.findall(source.text))
    first = include.search(source.masked)
    at = first.start() if first else len(source.masked) - len(source.masked.lstrip())
    at = source.text.rfind("\n", 0, at) + 1
    lines = "".join(f"#include <{header}>\n" for header in missing)
    included = (Edit(at, at, lines),) if missing else ()
    taken_out = _taken_out(included, guards, source)
    return (*included, *guards, *taken_out, *_annotations(items, source, reached))


def _items(node: Node) -> Iterator[Node]:
    for child in node.named_children:
        if child.type not in _NESTS:
            yield child
        elif (child.text or b"").split(b"\n", 1)[0].replace(b" ", b"") not in _DECIDED:
            yield from _items(child)


def _is_host(item: Node, source: SourceFile, reached: tuple[Span, ...]) -> bool:
    text, kind = text_of(item, source.masked), item.type
    if kind == "preproc_include":
        return _HOST_HEADER.search(text_of(item, source.text)) is not None
    if kind.startswith("preproc_") or kind == "comment":
        return False
    if kind == "ERROR":
        return "<<<" in text and "__global__" not in text
    launches = _LAUNCHES.search(text) is not None
    inside = item.named_children if kind == "template_declaration" else [item]
    if any(child.type in _CLASSES for child in inside):
        kept = _has_mark(text, source) or _within(item, reached)
        return launches or (not kept and _has_function(item))
    if _has_mark(text.split("{", 1)[0], source):
        return False
    if launches or kind == "expression_statement":
        return True
    if _within(item, reached):
        return False
    host_names = _HOST_NAMES.search(text) is not None
    if kind in _NAMES or _has_function(item):
        return host_names or kind not in _NAMES
    constant = re.search(r"\b(?:constexpr|const|using|enum)\b", text) is not None
    return kind == "declaration" and (host_names or not constant)


def _has_function(item: Node) -> bool:
    kinds = ("function_definition", "function_declarator")
    return any(node.type in kinds for node in walk(item))


def is_marked(text: str, marks: frozenset[str] = frozenset()) -> bool:
    """Whether a head says that the device runs it, by itself or by one of the macros `marks`."""
    if _DEVICE.search(text) or _MACRO.search(text):
        return True
    return not marks.isdisjoint(re.findall(r"\w+", text))


def _has_mark(text: str, source: SourceFile) -> bool:
    words = (source.aliases.get(word, "") for word in re.findall(r"\w+", text))
    return is_marked(text) or any(_DEVICE.search(value) for value in words)


def _within(item: Node, reached: tuple[Span, ...]) -> bool:
    # Spans nest or are apart: the first that begins in the item tells of all.
    at = bisect_left(reached, (item.start_byte, 0))
    return at < len(reached) and reached[at][1] <= item.end_byte


def _annotations(
    items: tuple[Node, ...], source: SourceFile, reached: tuple[Span, ...]
) -> Iterator[Edit]:
    # nvcc lets constant expressions call host constexpr functions; NVRTC refuses to see one
    for item in items:
        inner = item.named_children[-1] if item.type == "template_declaration" else item
        head = text_of(item, source.masked).split("{", 1)[0]
        plain = inner.type == "function_definition" and re.search(r"\bconstexpr\b", head)
        if plain and not _has_mark(head, source) and _within(item, reached):
            yield Edit(inner.start_byte, inner.start_byte, "__host__ __device__ ")


def _merge_spans(items: list[Node], masked: str) -> list[Span]:
    merged: list[Span] = []
    for item in items:
        start, end = item.start_byte, item.end_byte
        end = start + len(masked[start:end].rstrip())
        semicolon = _SEMICOLON.match(masked, end)
        end = semicolon.end() if semicolon else end
        if merged and not masked[merged[-1][1] : start].strip():
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def _guard(span: Span, source: SourceFile) -> Iterator[Edit]:
    text, masked, lines = source.text, source.masked, LineIndex(source.text)
    start, end = span
    first, last = lines.at(start), lines.at(end - 1)
    rows, codes = text.split("\n"), masked.split("\n")
    above = first - 1
    while above > 1 and rows[above - 1].strip() and not codes[above - 1].strip():
        above -= 1
    above = above if above >= 1 and not rows[above - 1].strip() else first - 1
    if masked[lines.start(first) : start].strip():
        yield Edit(start, start, f"\n{_GUARD}\n")
    elif above >= 1 and not rows[above - 1].strip():
        yield Edit(lines.start(above), lines.start(above), _GUARD)
    else:
        yield Edit(lines.start(above + 1), lines.start(above + 1), f"{_GUARD}\n")
    after = lines.start(last + 1) if last < len(lines) else len(text)
    if masked[end:after].strip():
        yield Edit(end, end, "\n#endif\n")
    elif last == len(lines):
        yield Edit(after, after, "\n#endif\n")
    elif not rows[last].strip() and last + 1 < len(lines):
        yield Edit(after, after, "#endif")
    else:
        yield Edit(after, after, "#endif\n")


def implied_headers(code: str, directives: list[str]) -> list[str]:
    """List the headers that code needs and that none of the #includes `directives` brings.

    nvcc and the headers of frameworks bring them without being asked.
    """
    return [
        header
        for header, (names, others) in _IMPLICIT.items()
        if re.search(rf"\b(?:{names})\b", code)
        and not any(name in line for name in (header, *others) for line in directives)
    ]


def _taken_out(
    included: tuple[Edit, ...], guards: list[Edit], source: SourceFile
) -> Iterator[Edit]:
    # blank lines outside kernels make up for the lines that guards insert before them
    lines = LineIndex(source.text)
    used = {lines.at(edit.start) for edit in guards if "\n" not in edit.text}
    inserted = {lines.at(edit.start): edit.text.count("\n") for edit in included}
    for opening, end in zip(guards[::2], guards[1::2], strict=True):
        line = lines.at(opening.start)
        inserted[line] = inserted.get(line, 0) + (opening.text + end.text).count("\n")
    owed = 0
    for line, row in enumerate(source.text.split("\n")[:-1], start=1):
        owed += inserted.get(line, 0)
        start = lines.start(line)
        kept = line in used or within(start, (kernel.span for kernel in source.kernels))
        if owed > 0 and not row.strip() and not kept:
            owed -= 1
            yield Edit(start, lines.start(line + 1), "")
