"""What a kernel does with its arrays: reads, writes, or hands them to code that is not there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tuner.extensions.draft.reading.reaches import name_of
from tuner.source.facts import IDENTIFIER, KernelFunction, LineIndex, SourceFile, Span
from tuner.source.syntax import Node, ancestors, closing, fold, parse_tree, part, text_of, walk

_MAX_DEPTH = 8
_CASTS = re.compile(r"(?:reinterpret|static|const|bit)_cast|__builtin_assume_aligned|launder")
_LOADS = re.compile(r"__ld\w+|assert")
_STORES = re.compile(r"__st\w+|memset")
_CHANGES = re.compile(r"atomic\w+|swap")
_COPIES = re.compile(r"memcpy|__pipeline_memcpy_async|memcpy_async")
_UNTOUCHED = re.compile(r"\w*prefetch\w*|__is\w+|sizeof|alignof|decltype")
# What its name says a function does that the file does not hold: a guess, and told as one.
_NAMED_LOAD = re.compile(r"load|^ld|_ld|read|fetch|gather", re.IGNORECASE)
_METHOD = re.compile(r"(?:\.|->)\s*(\w+)\s*$")
_NAMED_STORE = re.compile(r"store|^st_|_st_|write|scatter", re.IGNORECASE)
_ASM = re.compile(r"\b(?:asm|__asm__|__asm)\s*(?:volatile|__volatile__)?\s*\(")
_WRITABLE = re.compile(r"\bconst_cast\b|\(\s*(?!const\b)[\w:]+\s*\*+\s*\)")
_ASM_STORE = re.compile(r"\bst\.|\.global\.shared")
_ASM_LOAD = re.compile(r"\bld\.|\bcp\.async")
_PLAIN_LOAD = re.compile(r"\bld\.")
_ASM_CHANGE = re.compile(r"\b(?:atom|red)\b")
_SAME_POINTER = ("parenthesized_expression", "cast_expression", "update_expression")
_SAME_ELEMENT = ("parenthesized_expression", "field_expression", "subscript_expression")
_UNEVALUATED = ("sizeof_expression", "decltype", "alignof_expression", "template_argument_list")


@dataclass(frozen=True, slots=True)
class Use:
    """What is done with one array, each with the first line that does it.

    `handed` names code that gets it and that is not in the file: what that does is unknown.
    `assumed` is set where only the name of such code says what it does.
    """

    read: int | None = None
    written: int | None = None
    handed: tuple[str, int] | None = None
    assumed: bool = False

    @property
    def role(self) -> str:
        """The role that this makes sure, or the one that is safe where something is unknown."""
        if self.handed is not None and not self.assumed:
            return "inout"
        if self.written is None:
            return "input"
        return "output" if self.read is None else "inout"


def uses_of(source: SourceFile, kernel: KernelFunction) -> dict[str, Use]:
    """Find out what becomes of each array, through pointers, casts, references and functions."""
    follower = _Follower(source)
    arrays = [p.name for p in kernel.parameters if p.pointers and p.name]
    follower.follow(kernel.body, {name: _Handle(name) for name in arrays}, 0)
    return {name: follower.use(name) for name in arrays}


@dataclass(frozen=True, slots=True)
class _Handle:
    # a name for an array's pointer, or for an element of it
    array: str
    is_pointer: bool = True


@dataclass(frozen=True, slots=True)
class _Touch:
    array: str
    at: int
    reads: bool = False
    writes: bool = False
    by: str = ""  # what it is handed to


@dataclass(slots=True)
class _Follower:
    source: SourceFile
    root: Node = field(init=False)
    functions: dict[str, list[Node]] = field(init=False)
    asm: list[Span] = field(init=False, default_factory=list)
    touches: list[_Touch] = field(init=False, default_factory=list)
    visited: set[tuple[int, int, _Handle]] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        masked = self.source.masked
        for match in _ASM.finditer(masked):
            end = closing(masked, match.end() - 1)
            if end is not None:
                self.asm.append((match.start(), end))
        self.root, self.functions = parse_tree(masked), {}
        for node in walk(self.root):
            if node.type == "function_definition" and part(node, "body"):
                name = name_of(part(node, "declarator", "declarator"))
                self.functions.setdefault(name, []).append(node)

    def use(self, array: str) -> Use:
        lines, mine = LineIndex(self.source.masked), [t for t in self.touches if t.array == array]

        def first(touches: list[_Touch]) -> int | None:
            return lines.at(touches[0].at) if touches else None

        unknown = [t for t in mine if t.by and not (t.reads or t.writes)]
        handed = unknown or [t for t in mine if t.by]
        return Use(
            first([t for t in mine if t.reads]),
            first([t for t in mine if t.writes]),
            (handed[0].by, lines.at(handed[0].at)) if handed else None,
            assumed=bool(handed) and not unknown,
        )

    def follow(self, span: Span, handles: dict[str, _Handle], depth: int) -> None:
        around = self.root.descendant_for_byte_range(span[0], span[1] - 1) or self.root
        for node in walk(around):
            if node.type != "identifier" or not span[0] <= node.start_byte < span[1]:
                continue
            handle, parent = handles.get(text_of(node, self.source.masked)), node.parent
            if handle is None or parent is None:
                continue
            if parent.type.endswith("_declarator") and part(parent, "value") != node:
                continue
            if any(one.type in _UNEVALUATED for one in ancestors(node)):
                continue
            if handle.is_pointer:
                self.pointer(node, handle.array, handles, depth)
            else:
                self.element(node, handle.array, handles, depth)
        for start, end in self.asm:
            if span[0] <= start < span[1]:
                for name in {*IDENTIFIER.findall(self.source.masked, start, end)} & {*handles}:
                    self.in_asm(self.source.text[start:end], handles[name].array, start)

    def pointer(self, node: Node, array: str, handles: dict[str, _Handle], depth: int) -> None:
        parent = node.parent
        while parent is not None and self.is_same_pointer(node, parent):
            node, parent = parent, parent.parent
        if parent is None:
            return
        if parent.type == "subscript_expression" or self.is_dereference(parent):
            if part(parent, "argument") == node:
                self.element(parent, array, handles, depth)
        elif parent.type == "field_expression":
            self.element(parent, array, handles, depth)
        elif parent.type == "init_declarator":
            self.alias(part(parent, "declarator"), _Handle(array), handles, node)
        elif parent.type == "assignment_expression":
            if part(parent, "right") == node:
                self.alias(part(parent, "left"), _Handle(array), handles, node)
        elif parent.type == "argument_list":
            self.follow_argument(node, parent, _Handle(array), handles, depth)
        elif parent.type == "pointer_expression" or parent.type in (
            "initializer_list", "return_statement", "field_initializer", "initializer_pair",
        ):  # fmt: skip
            self.note(array, node, by=fold(text_of(parent, self.source.masked))[:60])

    def is_same_pointer(self, node: Node, parent: Node) -> bool:
        if parent.type == "conditional_expression":
            return part(parent, "condition") != node
        if parent.type == "binary_expression":
            return text_of(part(parent, "operator"), self.source.masked) in ("+", "-")
        return parent.type in _SAME_POINTER

    def element(self, node: Node, array: str, handles: dict[str, _Handle], depth: int) -> None:
        parent = node.parent
        while parent is not None and parent.type in _SAME_ELEMENT:
            if parent.type == "subscript_expression" and part(parent, "argument") != node:
                break
            node, parent = parent, parent.parent
        if parent is None:
            return
        if parent.type == "assignment_expression" and part(parent, "left") == node:
            plain = text_of(part(parent, "operator"), self.source.masked) == "="
            self.note(array, node, reads=not plain, writes=True)
        elif parent.type == "update_expression":
            self.note(array, node, reads=True, writes=True)
        elif parent.type == "pointer_expression" and not self.is_dereference(parent):
            self.pointer(parent, array, handles, depth)
        elif parent.type == "call_expression":  # a method of the element
            self.note(array, node, by=name_of(part(parent, "function")))
        elif parent.type == "argument_list":
            self.follow_argument(node, parent, _Handle(array, is_pointer=False), handles, depth)
        elif reference := self.bound_reference(node, parent):
            self.alias(reference, _Handle(array, is_pointer=False), handles, node)
        else:
            self.note(array, node, reads=True)

    def bound_reference(self, node: Node, parent: Node) -> Node | None:
        # T& value = x[i];  for (T& value : x[i].values)
        declared = part(parent, "declarator")
        if parent.type == "init_declarator":
            around = parent.parent
        elif parent.type == "for_range_loop" and part(parent, "right") == node:
            around = parent
        else:
            return None
        if declared is None or declared.type != "reference_declarator" or around is None:
            return None
        head = self.source.masked[around.start_byte : declared.start_byte]
        return None if re.search(r"\bconst\b", head) else declared

    def alias(
        self, declared: Node | None, handle: _Handle, handles: dict[str, _Handle], node: Node
    ) -> None:
        kinds = ("identifier", "pointer_declarator", "reference_declarator")
        name = name_of(declared) if declared is not None and declared.type in kinds else ""
        if name:
            handles.setdefault(name, handle)
        else:
            self.note(handle.array, node, by=fold(text_of(declared, self.source.masked)) or "?")

    def follow_argument(
        self,
        node: Node,
        arguments: Node,
        handle: _Handle,
        handles: dict[str, _Handle],
        depth: int,
    ) -> None:
        call, place = arguments.parent, arguments.named_children.index(node)
        if call is None or call.type != "call_expression":  # T value(x[i]);
            before = self.source.masked[: arguments.start_byte][-80:]
            if method := _METHOD.search(before):  # typename Traits::Load(storage).Load(x, values)
                self.into(method[1], place, node, handle, depth)
            else:
                self.note_constructor(node, handle)
            return
        name = name_of(part(call, "function"))
        if _CASTS.fullmatch(name):
            if handle.is_pointer:
                self.pointer(call, handle.array, handles, depth)
            elif "&" in text_of(part(call, "function"), self.source.masked):
                self.element(call, handle.array, handles, depth)
            else:
                self.note(handle.array, node, reads=True)
        elif known := _library_use(name, place):
            if handle.is_pointer or _CHANGES.fullmatch(name):
                self.note(handle.array, node, reads="r" in known, writes="w" in known)
            else:
                self.note(handle.array, node, reads=True)
        elif not _UNTOUCHED.fullmatch(name):
            self.into(name, place, node, handle, depth)

    def note_constructor(self, node: Node, handle: _Handle) -> None:
        if handle.is_pointer:
            self.note(handle.array, node, by="a constructor")
        else:
            self.note(handle.array, node, reads=True)

    def into(self, name: str, place: int, node: Node, handle: _Handle, depth: int) -> None:
        found = False
        for function in self.functions.get(name, ()):
            parameters = part(function, "declarator", "parameters")
            declared = [
                one for one in (parameters.named_children if parameters else ())
                if one.type.endswith("parameter_declaration")
            ]  # fmt: skip
            if place < len(declared):
                found = True
                self.inside(function, declared[place], place, node, handle, depth)
        if found:
            return
        if not handle.is_pointer:
            self.note(handle.array, node, reads=True)
        elif _NAMED_LOAD.search(name) and not _NAMED_STORE.search(name):
            self.note(handle.array, node, reads=True, by=f"{name}()")
        elif _NAMED_STORE.search(name) and not _NAMED_LOAD.search(name):
            self.note(handle.array, node, writes=True, by=f"{name}()")
        else:
            self.note(handle.array, node, by=f"{name}()")

    def inside(
        self, function: Node, declared: Node, place: int, node: Node, handle: _Handle, depth: int
    ) -> None:
        declarator, body = part(declared, "declarator"), part(function, "body")
        text = text_of(declared, self.source.masked)
        by_reference = declarator is not None and declarator.type == "reference_declarator"
        constant = re.search(r"\bconst\b(?!\s*(?:__restrict__\s*)?\w*$)", text) is not None
        inside = text_of(body, self.source.masked)
        if constant and handle.is_pointer:
            constant = not _ASM.search(inside) and not _WRITABLE.search(inside)
        if constant or not (handle.is_pointer or by_reference):
            self.note(handle.array, node, reads=True)
            return
        key = (function.start_byte, place, handle)
        if key in self.visited or body is None:
            return
        if depth >= _MAX_DEPTH:
            self.note(handle.array, node, by=fold(text))
            return
        self.visited.add(key)
        span = (body.start_byte, body.end_byte)
        self.follow(span, {name_of(declarator): handle}, depth + 1)

    def in_asm(self, text: str, array: str, at: int) -> None:
        changes = _ASM_CHANGE.search(text) is not None
        reads = changes or _ASM_LOAD.search(text) is not None
        writes = changes or _ASM_STORE.search(text) is not None
        if _ASM_STORE.search(text) and not _PLAIN_LOAD.search(text):
            reads = changes
        if reads or writes or "prefetch" not in text:
            by = "" if reads or writes else "asm"
            self.touches.append(_Touch(array, at, reads, writes, by))

    def is_dereference(self, node: Node) -> bool:
        return node.type == "pointer_expression" and text_of(
            node, self.source.masked
        ).lstrip().startswith("*")

    def note(
        self, array: str, node: Node, *, reads: bool = False, writes: bool = False, by: str = ""
    ) -> None:
        self.touches.append(_Touch(array, node.start_byte, reads, writes, by))


def _library_use(name: str, place: int) -> str:
    # what a function of CUDA's or C's does with what it is passed at `place`
    kinds: Iterator[tuple[re.Pattern[str], str]] = iter(
        ((_LOADS, "r"), (_STORES, "w" * (place == 0)), (_CHANGES, "rw"))
    )
    if _COPIES.fullmatch(name):
        return ("w", "r", "")[min(place, 2)]
    return next((what for pattern, what in kinds if pattern.fullmatch(name)), "")
