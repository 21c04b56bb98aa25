"""The definitions of all files in one row: what each names, uses and belongs to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.draft.extract.chunks import (
    CLASS,
    Kind,
    chunks,
    is_function,
    named,
    template_end,
    without_attributes,
)
from tuner.draft.extract.reading import Code, Reading
from tuner.source.facts import IDENTIFIER, LineIndex
from tuner.source.syntax import closing, fold, mask

_MARKED = re.compile(r"\b__(?:global|device|constant|shared|managed)__\b")
_MACRO = re.compile(r"\b[A-Z][A-Z0-9_]*_?(?:DEVICE|INLINE)[A-Z0-9_]*\b|\b(?:DEVICE|INLINE)\w*\b")
_HOST = re.compile(
    r"<<<|\bcuda(?:Stream|Error|Event|Launch|Get|Set|Malloc|Memcpy|Free|Func|Device|Occupancy)\w*"
    r"|\b(?:torch|at|c10|tvm|pybind11|py|thrust)\s*::\s*(?!Half\b|BFloat16\b|Float8\w+|opmath)"
    r"|\bstd\s*::\s*(?:vector|string|optional|function|map|unordered_map|cerr|cout|runtime_error"
    r"|ostringstream|stringstream|shared_ptr|unique_ptr|mutex|getenv|invalid_argument)\b"
    r"|\b(?:TORCH_|AT_|TVM_|PYBIND|CHECK_)\w+|\bthrow\b|\bCU(?:tensorMap|stream|result|function)\b"
)
_MEMBER = re.compile(r"(?:\.|->)\s*([A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class Item:
    """One definition, with comments above it in `text`, and the code alone in `code`.

    `conditions` are the #ifs around it that only the compiler can decide, `namespace` the scopes
    it is in; `head` is what comes before a body, and `lead` how far into `text` the code begins.
    One that `is_made` is what a macro in that line stands for.
    """

    path: Path
    line: int
    kind: Kind
    names: tuple[str, ...]
    text: str
    code: str
    head: str
    namespace: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    lead: int = 0
    is_made: bool = False

    @property
    def key(self) -> tuple[Path, int, str, tuple[str, ...]]:
        """What tells it from the others."""
        return self.path, self.line, self.kind, self.names

    @property
    def name(self) -> str:
        """What to call it in messages."""
        return self.names[0] if self.names else fold(self.code)[:40]

    @property
    def is_kernel(self) -> bool:
        """Whether it is a `__global__` function with a body."""
        is_marked_so = self.kind == "function" and "__global__" in self.head
        return is_marked_so and bool(self.names) and self.code.endswith("}")

    def uses(self) -> frozenset[str]:
        """List the names it refers to; members of something else are not names of their own."""
        members = {match.start(1) for match in _MEMBER.finditer(self.code)}
        text = "\n".join([self.code, *self.conditions])
        return frozenset(m[0] for m in IDENTIFIER.finditer(text) if m.start() not in members)


def is_marked(text: str, marks: frozenset[str] = frozenset()) -> bool:
    """Whether a head says that the device runs it, by itself or by one of the macros `marks`."""
    if _MARKED.search(text) or _MACRO.search(text):
        return True
    return any(name in marks for name in IDENTIFIER.findall(text))


def says_host(code: str) -> bool:
    """Whether code holds what only a host compiler takes."""
    return _HOST.search(code) is not None


def items_of(reading: Reading, path: Path) -> tuple[Item, ...]:
    """List the definitions of a source and its headers in the order of the #includes."""
    return tuple(_file(reading, reading.files[path.resolve()], (), ()))


def _file(
    reading: Reading, code: Code, namespace: tuple[str, ...], conditions: tuple[str, ...]
) -> Iterator[Item]:
    lines = LineIndex(code.text)
    scopes: list[str | None] = []
    open_ones: list[list[str]] = []
    for chunk in chunks(code.masked):
        held = (*conditions, *(" && ".join(group) for group in open_ones))
        within = (*namespace, *(scope for scope in scopes if scope is not None))
        if chunk.what == "open":
            scopes.append(chunk.name)
        elif chunk.what == "close":
            del scopes[-1:]
        elif chunk.what == "code":
            yield from _items(code, chunk.start, chunk.end, lines, within, held)
        elif (included := code.included.get(lines.at(chunk.start))) is not None:
            if included.path is not None:
                inner = reading.files[included.path.resolve()]
                yield from _file(reading, inner, within, held)
        elif not _conditional(code.masked[chunk.start : chunk.end], open_ones):
            yield from _macro(code, chunk.start, chunk.end, lines, held)


def _conditional(directive: str, open_ones: list[list[str]]) -> bool:
    match = re.match(r"#\s*(ifdef|ifndef|if|elif|else|endif)\b(.*)", directive, re.DOTALL)
    if match is None:
        return False
    rest = fold(match[2])
    asked = {"ifdef": f"defined({rest})", "ifndef": f"!defined({rest})", "else": ""}
    condition = asked.get(match[1], f"({rest})")
    if match[1] == "endif":
        del open_ones[-1:]
    elif match[1] in ("elif", "else") and open_ones:
        last = open_ones[-1]
        open_ones[-1] = [*last[:-1], f"!{last[-1]}", *([condition] if condition else [])]
    else:
        open_ones.append([condition])
    return True


def _macro(
    code: Code, start: int, end: int, lines: LineIndex, conditions: tuple[str, ...]
) -> Iterator[Item]:
    masked = code.masked[start:end]
    match = re.match(r"#\s*(define|undef)\s+(\w+)", masked)
    if match is not None:
        above = _comments(code, start)
        line = lines.at(start)
        yield Item(
            code.path, line, "macro", (match[2],), code.text[above:end], masked,
            masked[: match.end()], (), conditions, start - above,
        )  # fmt: skip


def _items(
    code: Code, start: int, end: int, lines: LineIndex,
    namespace: tuple[str, ...], conditions: tuple[str, ...],
) -> Iterator[Item]:  # fmt: skip
    masked = code.masked[start:end]
    stop = end + (1 if code.masked[end : end + 1] == ";" else 0)
    head = _head(masked)
    kind, names = named(masked, head)
    above = _comments(code, start)
    yield Item(
        code.path, lines.at(start), kind, names, code.text[above:stop], masked, head,
        namespace, conditions, start - above,
    )  # fmt: skip


def _comments(code: Code, start: int) -> int:
    # the comment right above belongs to what follows, one above a blank line to the file
    begin = code.text.rfind("\n", 0, start) + 1
    while begin > 0:
        above = code.text.rfind("\n", 0, begin - 1) + 1
        row = code.text[above : begin - 1]
        if not row.strip() or code.masked[above : begin - 1].strip():
            break
        begin = above
    return begin if not code.masked[begin:start].strip() else start


def _head(masked: str) -> str:
    at = template_end(masked)
    while at < len(masked):
        if masked[at] == "{" and is_function(masked[:at]):
            return masked[:at]
        if masked[at] == "{" and CLASS.match(without_attributes(masked[template_end(masked) :])):
            return masked[:at]
        inside = closing(masked, at) if masked[at] in "([{" else None
        at = inside or at + 1
    return masked


def items_in(text: str, like: Item) -> Iterator[Item]:
    """List the definitions in a text that a macro makes at the place of `like`."""
    code = Code(like.path, text, mask(text), {})
    lines = LineIndex(text)
    for chunk in chunks(code.masked):
        if chunk.what == "code":
            for item in _items(code, chunk.start, chunk.end, lines, like.namespace, ()):
                yield replace(item, line=like.line, conditions=like.conditions)


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
