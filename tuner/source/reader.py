"""Read a CUDA source with tree-sitter; a plain scan finds the kernels that the tree misses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from tuner.model.errors import KernelError
from tuner.process.files import read_regular
from tuner.source.facts import (
    IDENTIFIER,
    Constant,
    ConstantKind,
    KernelFunction,
    LineIndex,
    SourceFile,
    Span,
    Symbol,
    SymbolKind,
    Unroll,
    bare_name,
    within,
)
from tuner.source.kernels import plain_structs, read_kernel
from tuner.source.launches import find_launches
from tuner.source.syntax import (
    Node,
    ancestors,
    closing,
    fold,
    mask,
    number,
    parse_tree,
    part,
    span_of,
    text_of,
    walk,
    without_qualifiers,
)
from tuner.source.unsupported import require_closed, require_cuda

# Far more than a kernel has.
_MOST_BYTES, _MOST_PARAMETERS = 4 << 20, 1000
# What each is given is looked for in all of the function before it.
_MOST_LAUNCHES = 1000
_CHEVRONS = re.compile(r"(<[ \t]*<[ \t]*<)([^;{}]*?)(>[ \t]*>[ \t]*>)(?=\s*\()")
_UNROLL = re.compile(r"unroll\s*\(?\s*([^)\s]*)")

# an inline one need not be named
_NAMESPACE = re.compile(r"(?<!inline )\bnamespace\b(?P<names>[\w\s:]*)\{")
_CLASSES = ("class_specifier", "struct_specifier", "union_specifier", "enum_specifier")
_ALIASES = {
    "alias_declaration": ("name", "type"),
    "type_definition": ("declarator", "type"),
    "preproc_def": ("name", "value"),
}
_SYMBOLS: dict[str, tuple[str, SymbolKind]] = {
    "alias_declaration": ("name", "alias"),
    "type_definition": ("declarator", "alias"),
    "preproc_def": ("name", "macro"),
    "preproc_function_def": ("name", "macro"),
    **dict.fromkeys(_CLASSES, ("name", "class")),
}
_COUNTING = re.compile(r"enum\s+(?!class\b|struct\b)[^{]*\{[^}]*=\s*(?:32|64|96|128|192|256|512)\b")
# `mode == kRows`, `flags & kRows`, `case kRows:`
_CHOOSING = r"(?:[=!]=|[&|]|\bcase\b)\s*(?:\w+::)*{0}\b|\b{0}\s*(?:[=!]=|&(?!&)|\|(?!\|))"
_GLOBAL_MACRO = re.compile(r"#\s*define\s+(\w+)[ \t]+(?!.*##).*\b__global__\b")


def read_source(path: Path) -> SourceFile:
    """Read a CUDA source file; raise `KernelError` where there is no kernel to be had from it."""
    text = source_text(path)
    require_cuda(path, text)
    return parse_source(text, path)


def source_text(path: Path) -> str:
    """Read a file as text; raise `KernelError` where it is none."""
    remedy = "give the path of a .cu file"
    try:
        data = read_regular(path, _MOST_BYTES)
    except FileNotFoundError as error:
        raise KernelError("no such file", path=path, remedy=remedy) from error
    except OSError as error:
        message = f"cannot be read: {(error.strerror or str(error)).lower()}"
        raise KernelError(message, path=path, remedy=remedy) from error
    if b"\0" in data:
        raise KernelError("is a binary file", path=path, remedy="give the path of CUDA source text")
    try:
        return _CHEVRONS.sub(_join_chevrons, data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        message = f"is not UTF-8: byte 0x{data[error.start]:02x}"
        line = data.count(b"\n", 0, error.start) + 1
        raise KernelError(message, path=path, line=line, remedy="save it as UTF-8") from error


def _join_chevrons(launch: re.Match[str]) -> str:
    # `<< <grid, block >> >`, as some formatters write it; offsets stay
    first, config, last = launch.groups()
    return "<<<".rjust(len(first)) + config + ">>>".ljust(len(last))


@lru_cache(maxsize=4)
def parse_source(text: str, path: Path) -> SourceFile:
    """Read CUDA source text; `path` is where it came from, for messages."""
    if not text.strip():
        raise KernelError("is empty", path=path, remedy="give a file with a __global__ function")
    masked = without_qualifiers(mask(text))
    if (count := masked.count("<<<")) > _MOST_LAUNCHES:
        remedy = "give the file of one kernel, with the code that launches it"
        message = f"has {count:,} launches: at most {_MOST_LAUNCHES:,} are read"
        raise KernelError(message, path=path, remedy=remedy)
    try:
        nodes = tuple(walk(parse_tree(masked)))
    except KernelError as error:
        error.path = path
        raise
    reader = _Reader(path, masked, nodes, LineIndex(text))
    aliases = reader.aliases()
    kernels = tuple(reader.kernels(aliases))
    if not kernels:
        require_closed(path, text)
        message, remedy = "has no __global__ function", "give the file that defines the kernel"
        if "__global__" in masked:
            message = "has `__global__`, but no kernel with a body that can be read"
            remedy += ", and write out a kernel that a macro makes"
        raise KernelError(message, path=path, remedy=remedy)
    functions = tuple(span_of(node) for node in nodes if node.type == "function_definition")
    return SourceFile(
        path=path,
        text=text,
        masked=masked,
        kernels=kernels,
        definitions=tuple(reader.symbols()),
        constants=tuple(reader.constants()),
        unrolls=tuple(reader.unrolls()),
        launches=find_launches(masked, reader.lines, functions),
        aliases=aliases,
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    path: Path
    masked: str
    nodes: tuple[Node, ...]
    lines: LineIndex

    def text(self, node: Node | None) -> str:
        return text_of(node, self.masked)

    def constants(self) -> Iterator[Constant]:
        for node in self.nodes:
            if node.type == "preproc_def":
                yield from self.constant(part(node, "name"), part(node, "value"), ["define"])
            elif node.type == "enumerator":
                # of an enumeration with a name each says what, unless one counts threads
                inside = node.parent.parent if node.parent is not None else None
                if inside is not None and (part(inside, "name") is None or self.counts(inside)):
                    yield from self.constant(part(node, "name"), part(node, "value"), ["const"])
            elif node.type == "field_declaration":
                names = node.children_by_field_name("declarator")
                words = self.masked[node.start_byte : names[0].start_byte].split() if names else []
                values = node.children_by_field_name("default_value")
                if "constexpr" in words and len(names) == len(values):
                    for own, value in zip(names, values, strict=True):
                        yield from self.constant(own, value, words)
            elif node.type == "init_declarator" and node.parent is not None:
                name, children = part(node, "declarator"), node.parent.named_children
                first = next((c for c in children if c.type.endswith("declarator")), node)
                words = self.masked[node.parent.start_byte : first.start_byte].split()
                if name is not None and name.type == "identifier":
                    yield from self.constant(name, part(node, "value"), words)

    def counts(self, enumeration: Node) -> bool:
        """Tell whether an enumeration says numbers of threads, and no modes or flags."""
        if not _COUNTING.match(self.text(enumeration)):
            return False
        names = [self.text(part(e, "name")) for e in walk(enumeration) if e.type == "enumerator"]
        return not any(re.search(_CHOOSING.format(name), self.masked) for name in names)

    def constant(
        self, name: Node | None, value: Node | None, words: list[str]
    ) -> Iterator[Constant]:
        kinds: tuple[ConstantKind, ...] = ("define", "constexpr", "const")
        kind = next((kind for kind in kinds if kind in words), None)
        written = self.text(value)
        if value is not None and value.type == "initializer_list":
            written = written[1:-1]
        written = written.strip()
        # `static constexpr int sizes[] = {...}` has no one value
        plain = name is not None and name.type.endswith("identifier")
        if name is None or value is None or kind is None or not plain or not written:
            return
        start = self.masked.index(written, value.start_byte)
        span = start, start + len(written)
        line, known = self.lines.at(name.start_byte), number(fold(written))
        yield Constant(self.text(name), kind, written, span, line, known)

    def unrolls(self) -> Iterator[Unroll]:
        for node in self.nodes:
            if node.type != "preproc_call" or "pragma" not in self.text(node)[:12]:
                continue
            if match := _UNROLL.search(self.masked, node.start_byte, node.end_byte):
                factor = match[1] or None
                line = self.lines.at(node.start_byte)
                yield Unroll(line, factor, match.span(1) if factor else None)

    def aliases(self) -> dict[str, str]:
        values: dict[str, set[str]] = {}
        for node in self.nodes:
            name, kind = (part(node, field) for field in _ALIASES.get(node.type, ("", "")))
            if name is not None and kind is not None:
                values.setdefault(self.text(name), set()).add(fold(self.text(kind)))
        # defined twice (in the two halves of an #if, say), it has no single meaning
        plain = {name: found.pop() for name, found in values.items() if len(found) == 1}
        return plain | plain_structs(self.masked)

    def symbols(self) -> Iterator[Symbol]:
        for node in self.nodes:
            if node.type == "function_definition":
                declared = part(node, "declarator")
                inside = walk(declared) if declared is not None else ()
                declarator = next((n for n in inside if n.type == "function_declarator"), None)
                if named := part(declarator, "declarator"):
                    yield Symbol(bare_name(self.text(named)), "function", span_of(node))
            elif node.type in ("init_declarator", "enumerator") and not any(
                around.type in ("function_definition", "field_declaration_list")
                for around in ancestors(node)
            ):
                name = part(node, "declarator") or part(node, "name")
                if name is not None and node.parent is not None:
                    yield Symbol(self.text(name), "constant", span_of(node.parent))
            elif node.type not in _CLASSES or part(node, "body") is not None:
                field, kind = _SYMBOLS.get(node.type, ("", "macro"))
                if name := part(node, field):
                    yield Symbol(self.text(name).split("<")[0].strip(), kind, span_of(node))

    def kernels(self, aliases: dict[str, str]) -> Iterator[KernelFunction]:
        marks = "|".join(["__global__", *_GLOBAL_MACRO.findall(self.masked)])
        mark = re.compile(rf"\b(?:{marks})\b")
        defines = ("preproc_def", "preproc_function_def")
        directives = [span_of(node) for node in self.nodes if node.type in defines]
        pieces: list[tuple[Span, Span]] = []
        for node in self.nodes:
            body = part(node, "body") if node.type == "function_definition" else None
            start, end = span_of(node)
            if body is not None and mark.search(self.masked, start, body.start_byte):
                pieces.append(((start, end), (body.start_byte, body.end_byte)))
        for match in mark.finditer(self.masked):
            taken = [span for span, _ in pieces] + directives
            if not within(match.start(), taken):
                missed = _scan(self.masked, match.start())
                if missed is not None:
                    pieces.append(missed)
        # by their brackets: what the grammar does not know may tear the tree apart
        namespaces = [
            (IDENTIFIER.findall(match["names"]), (match.start(), end or len(self.masked)))
            for match in _NAMESPACE.finditer(self.masked)
            for end in (closing(self.masked, match.end() - 1),)
        ]
        for span, body_span in sorted(pieces):
            kernel = read_kernel(self.masked, span, body_span, self.path, self.lines, aliases)
            if kernel is not None:
                if (count := len(kernel.parameters)) > _MOST_PARAMETERS:
                    message = f"{kernel.name} has {count:,} parameters, over {_MOST_PARAMETERS:,}"
                    raise KernelError(message, path=self.path, remedy="hand it a struct of them")
                around = [names for names, inside in namespaces if within(span[0], [inside])]
                yield replace(kernel, namespace=tuple(name for names in around for name in names))


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
