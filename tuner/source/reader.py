"""Read a CUDA source with tree-sitter; a plain scan finds the kernels that the tree misses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tuner.model.errors import KernelError
from tuner.source.facts import (
    Constant,
    ConstantKind,
    KernelFunction,
    LineIndex,
    SharedArray,
    SourceFile,
    Span,
    Symbol,
    Unroll,
)
from tuner.source.kernels import read_kernel
from tuner.source.launches import find_launches
from tuner.source.syntax import (
    Node,
    closing,
    fold,
    mask,
    namespace_of,
    number,
    parse_tree,
    span_of,
    text_of,
    walk,
)

_UNROLL = re.compile(r"unroll\s*\(?\s*([^)\s]*)")
_SHARED = re.compile(
    r"(?P<extern>\bextern\b[^;{}]*?)?\b__shared__\b(?P<type>[^;{}=\[]*?)"
    r"\b(?P<name>\w+)\s*(?:\[[^\]]*\]\s*)*[;,=]"
)


def find_constants(nodes: tuple[Node, ...], masked: str, lines: LineIndex) -> Iterator[Constant]:
    for node in nodes:
        if node.type == "preproc_def":
            name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
            if name is not None and value is not None and text_of(value, masked).strip():
                yield _constant(name, value, masked, lines, "define")
        elif node.type == "init_declarator" and node.parent is not None:
            yield from _declared(node, node.parent, masked, lines)
        elif node.type == "field_declaration":
            name, value = (node.child_by_field_name(f) for f in ("declarator", "default_value"))
            qualifiers = masked[node.start_byte : name.start_byte] if name is not None else ""
            if name is not None and value is not None and "constexpr" in qualifiers.split():
                yield _constant(name, value, masked, lines, "constexpr")


def _declared(node: Node, declaration: Node, masked: str, lines: LineIndex) -> Iterator[Constant]:
    name, value = node.child_by_field_name("declarator"), node.child_by_field_name("value")
    first = next((c for c in declaration.named_children if c.type.endswith("declarator")), node)
    words = masked[declaration.start_byte : first.start_byte].split()
    if name is None or value is None or name.type != "identifier":
        return
    if "constexpr" in words or "const" in words:
        kind: ConstantKind = "constexpr" if "constexpr" in words else "const"
        yield _constant(name, value, masked, lines, kind)


def _constant(
    name: Node,
    value: Node,
    masked: str,
    lines: LineIndex,
    kind: ConstantKind,
) -> Constant:
    raw = text_of(value, masked)
    if value.type == "initializer_list":
        raw = raw[1:-1]
    stripped = raw.strip()
    start = masked.index(stripped, value.start_byte)
    return Constant(
        name=text_of(name, masked),
        kind=kind,
        value=stripped,
        span=(start, start + len(stripped)),
        line=lines.at(name.start_byte),
        number=number(fold(stripped)),
    )


def find_unrolls(nodes: tuple[Node, ...], masked: str, lines: LineIndex) -> Iterator[Unroll]:
    for node in nodes:
        if node.type != "preproc_call" or "pragma" not in text_of(node, masked)[:12]:
            continue
        match = _UNROLL.search(masked, node.start_byte, node.end_byte)
        if match is not None:
            factor = match[1] or None
            yield Unroll(lines.at(node.start_byte), factor, match.span(1) if factor else None)


def find_shared(masked: str, lines: LineIndex) -> Iterator[SharedArray]:
    for match in _SHARED.finditer(masked):
        yield SharedArray(
            name=match["name"],
            dynamic=match["extern"] is not None or "extern" in match["type"].split(),
            line=lines.at(match.start()),
            at=match.start(),
        )


_CLASSES = ("class_specifier", "struct_specifier", "union_specifier")


def find_aliases(nodes: tuple[Node, ...], masked: str) -> dict[str, str]:
    values: dict[str, set[str]] = {}
    for node in nodes:
        if node.type == "alias_declaration":
            name, kind = node.child_by_field_name("name"), node.child_by_field_name("type")
        elif node.type == "type_definition":
            name, kind = node.child_by_field_name("declarator"), node.child_by_field_name("type")
        elif node.type == "preproc_def":
            name, kind = node.child_by_field_name("name"), node.child_by_field_name("value")
        else:
            continue
        if name is not None and kind is not None:
            values.setdefault(text_of(name, masked), set()).add(fold(text_of(kind, masked)))
    # defined twice (in the two halves of an #if, say), it has no single meaning
    return {name: found.pop() for name, found in values.items() if len(found) == 1}


def find_definitions(nodes: tuple[Node, ...], masked: str) -> Iterator[Symbol]:
    for node in nodes:
        if node.type == "function_definition":
            yield from _function(node, masked)
        elif node.type in _CLASSES and node.child_by_field_name("body") is not None:
            name = node.child_by_field_name("name")
            if name is not None:
                yield Symbol(text_of(name, masked).split("<")[0].strip(), "class", span_of(node))
        elif node.type in ("alias_declaration", "type_definition"):
            field = "name" if node.type == "alias_declaration" else "declarator"
            name = node.child_by_field_name(field)
            if name is not None:
                yield Symbol(text_of(name, masked), "alias", span_of(node))
        elif node.type in ("preproc_def", "preproc_function_def"):
            name = node.child_by_field_name("name")
            if name is not None:
                yield Symbol(text_of(name, masked), "macro", span_of(node))
        elif node.type == "init_declarator" and _at_file_level(node):
            name = node.child_by_field_name("declarator")
            if name is not None and node.parent is not None:
                yield Symbol(text_of(name, masked), "constant", span_of(node.parent))


def _function(node: Node, masked: str) -> Iterator[Symbol]:
    declarator = node.child_by_field_name("declarator")
    while declarator is not None and declarator.type != "function_declarator":
        declarator = declarator.child_by_field_name("declarator") or next(
            (c for c in declarator.named_children if c.type == "function_declarator"), None
        )
    named = declarator.child_by_field_name("declarator") if declarator is not None else None
    if named is not None:
        name = text_of(named, masked).split("<")[0].rsplit("::", 1)[-1].strip()
        yield Symbol(name, "function", span_of(node))


def _at_file_level(node: Node) -> bool:
    parent = node.parent
    while parent is not None:
        if parent.type == "function_definition":
            return False
        parent = parent.parent
    return True


_GLOBAL_MACRO = re.compile(r"#\s*define\s+(\w+)[ \t]+(?!.*##).*\b__global__\b")


def read_source(path: Path) -> SourceFile:
    """Read a CUDA source file; raise `KernelError` where there is no kernel to be had from it."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise KernelError(
            "no such file", path=path, remedy="give the path of a .cu file"
        ) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise KernelError(
            f"cannot be read: {reason.lower()}", path=path, remedy="give the path of a .cu file"
        ) from error
    if b"\0" in data:
        raise KernelError("is a binary file", path=path, remedy="give the path of CUDA source text")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise KernelError(
            f"is not UTF-8: byte 0x{data[error.start]:02x}",
            path=path,
            line=data.count(b"\n", 0, error.start) + 1,
            remedy="save it as UTF-8",
        ) from error
    return parse_source(text, path)


def parse_source(text: str, path: Path) -> SourceFile:
    """Read CUDA source text; `path` is where it came from, for messages."""
    if not text.strip():
        raise KernelError("is empty", path=path, remedy="give a file with a __global__ function")
    masked = mask(text)
    root = parse_tree(masked)
    lines = LineIndex(text)
    nodes = tuple(walk(root))
    aliases = find_aliases(nodes, masked)
    kernels = _kernels(nodes, masked, path, lines, aliases)
    if not kernels:
        raise _no_kernel(masked, path)
    functions = tuple(span_of(node) for node in nodes if node.type == "function_definition")
    return SourceFile(
        path=path,
        text=text,
        masked=masked,
        kernels=kernels,
        definitions=tuple(find_definitions(nodes, masked)),
        constants=tuple(find_constants(nodes, masked, lines)),
        unrolls=tuple(find_unrolls(nodes, masked, lines)),
        shared=tuple(find_shared(masked, lines)),
        launches=find_launches(masked, lines, functions),
        aliases=aliases,
    )


def _kernels(
    nodes: tuple[Node, ...],
    masked: str,
    path: Path,
    lines: LineIndex,
    aliases: Mapping[str, str],
) -> tuple[KernelFunction, ...]:
    marks = "|".join(["__global__", *_GLOBAL_MACRO.findall(masked)])
    mark = re.compile(rf"\b(?:{marks})\b")
    directives = [
        span_of(node) for node in nodes if node.type in ("preproc_def", "preproc_function_def")
    ]
    pieces: list[tuple[Span, Span, tuple[str, ...]]] = []
    for node in nodes:
        body = node.child_by_field_name("body") if node.type == "function_definition" else None
        start, end = span_of(node)
        if body is not None and mark.search(masked, start, body.start_byte):
            pieces.append(((start, end), (body.start_byte, body.end_byte), namespace_of(node)))
    for match in mark.finditer(masked):
        taken = [span for span, _, _ in pieces] + directives
        if not any(a <= match.start() < b for a, b in taken):
            missed = _scan(masked, match.start())
            if missed is not None:
                pieces.append((*missed, ()))
    read = (
        read_kernel(
            masked, span, body, path=path, lines=lines, aliases=aliases, namespace=namespace
        )
        for span, body, namespace in sorted(pieces)
    )
    return tuple(kernel for kernel in read if kernel is not None)


def _scan(masked: str, mark: int) -> tuple[Span, Span] | None:
    position = mark
    while position < len(masked) and masked[position] not in ";{}":
        inside = closing(masked, position) if masked[position] == "(" else None
        position = inside or position + 1
    end = closing(masked, position) if masked[position : position + 1] == "{" else None
    if end is None:
        return None
    start = max(masked.rfind(character, 0, mark) for character in ";{}") + 1
    before = [m.end() for m in re.finditer(r"^[ \t]*#.*$", masked[start:mark], re.MULTILINE)]
    start += before[-1] if before else 0
    start += len(masked[start:mark]) - len(masked[start:mark].lstrip())
    return (start, end), (position, end)


def _no_kernel(masked: str, path: Path) -> KernelError:
    if "__global__" not in masked:
        return KernelError(
            "has no __global__ function", path=path, remedy="give the file that defines the kernel"
        )
    return KernelError(
        "has `__global__`, but no kernel with a body that can be read",
        path=path,
        remedy="give the file that defines the kernel, and write out a kernel that a macro makes",
    )
