"""Read a CUDA source with tree-sitter; a plain scan finds the kernels that the tree misses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tuner.errors import KernelError
from tuner.source.constants import find_constants, find_shared, find_unrolls
from tuner.source.definitions import find_aliases, find_definitions
from tuner.source.facts import KernelFunction, Lines, SourceFile, Span
from tuner.source.kernels import read_kernel
from tuner.source.launches import find_launches
from tuner.source.text import closing, mask
from tuner.source.tree import Node, namespace_of, parse_tree, span_of, walk

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
    lines = Lines(text)
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
    lines: Lines,
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
