"""Find launches in host code: `<<<grid, block>>>`, cudaLaunchKernelEx and cudaLaunchKernel."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tuner.source.accesses import Assigned, assigned
from tuner.source.facts import LaunchSite, LineIndex, SourceFile, Span
from tuner.source.kernels import read_kernel
from tuner.source.syntax import (
    closing,
    fold,
    number,
    parse_tree,
    span_of,
    split_list,
    text_of,
    walk,
)

_CALLED = re.compile(r"((?:\w+\s*::\s*)*\w+)\s*$")
_RUNTIME = re.compile(r"\bcudaLaunch(?:CooperativeKernel|KernelExC?|Kernel)\s*(?=\()")
# a framework's helper: LaunchKernel(grid, block, device)(kernel, arguments...)
_HELPER = re.compile(r"(?<![\w.>])(?!cu)\w*LaunchKernel(?:\s+\w+)?\s*(?=\()")
_CHAINED = re.compile(r"\s*\.\s*\w+\s*(?=\()")
_MEMBER = re.compile(
    r"\bconstexpr\s+(?:auto|void)\s*[*(&]*\s*(\w+)[^=;{}]*=\s*&?\s*([\w:]+(?:<[^;{}]*>)?)\s*;"
)
# what only a framework's object knows: `x.size(0)`
_ASKED = re.compile(r"[\w)\]]\s*(?:\.|->)\s*[a-z]\w*\s*\(")
_DIM3 = re.compile(r"^(?:dim3\s*)?(?=[({])")
_MAX_HOPS = 4


def find_launches(
    masked: str, lines: LineIndex, functions: tuple[Span, ...]
) -> tuple[LaunchSite, ...]:
    """List all launches in the order of the text; `functions` bound the search for variables."""
    # a launch inside a macro is one like any other, but for the line ends
    masked = masked.replace("\\\n", " \n")
    sites = [
        *_chevrons(masked, lines, functions),
        *_runtime(masked, lines, functions),
        *_helped(masked, lines, functions),
    ]
    return tuple(sorted(sites, key=lambda site: site.line))


def _chevrons(masked: str, lines: LineIndex, functions: tuple[Span, ...]) -> Iterator[LaunchSite]:
    for match in re.finditer("<<<", masked):
        end = _end_of_config(masked, match.end())
        called = _called(masked, match.start())
        if end is None or called is None:
            continue
        name, arguments, start = called
        config = [fold(piece) for piece, _ in split_list(masked[match.end() : end])]
        call = closing(masked, end + 3) if masked.startswith("(", end + 3) else None
        passed = split_list(masked[end + 4 : call - 1]) if call else []
        yield _site(
            (name, arguments),
            config,
            [fold(piece) for piece, _ in passed],
            (start, lines.at(start)),
            _definitions(masked, functions, start),
        )


def _runtime(masked: str, lines: LineIndex, functions: tuple[Span, ...]) -> Iterator[LaunchSite]:
    for match in _RUNTIME.finditer(masked):
        end = closing(masked, match.end())
        pieces = _passed(masked[match.end() + 1 : (end or 1) - 1])
        known = _definitions(masked, functions, match.start())
        place = match.start(), lines.at(match.start())
        if "Ex" in match[0]:
            if len(pieces) < 2 or (called := _callee(pieces[1], known)) is None:
                continue
            config = _config(pieces[0].lstrip("& "), known)
            yield _site(called, config, pieces[2:], place, known)
        elif len(pieces) >= 3 and (called := _callee(pieces[0], known)) is not None:
            yield _site(called, [*pieces[1:3], *pieces[4:5]], [], place, known)


def _helped(masked: str, lines: LineIndex, functions: tuple[Span, ...]) -> Iterator[LaunchSite]:
    for match in _HELPER.finditer(masked):
        end = closing(masked, match.end())
        config = [fold(p) for p, _ in split_list(masked[match.end() + 1 : (end or 1) - 1])]
        while end is not None and (chained := _CHAINED.match(masked, end)):
            end = closing(masked, chained.end())
        if end is None or len(config) < 2 or not masked[end:].lstrip().startswith("("):
            continue
        opening = masked.index("(", end)
        pieces = _passed(masked[opening + 1 : (closing(masked, opening) or 1) - 1])
        known = _members(masked, functions) | _definitions(masked, functions, match.start())
        called = _callee(pieces[0], known) if pieces else None
        if called is not None:
            place = match.start(), lines.at(match.start())
            yield _site(called, [*config[:2], *config[3:4]], pieces[1:], place, known)


def _passed(text: str) -> list[str]:
    # commas of a kernel's template arguments separate none of the launch's
    joined: list[str] = []
    for piece, _ in split_list(text):
        if joined and joined[-1].count("<") > joined[-1].count(">") and "<" in joined[-1]:
            joined[-1] += f", {fold(piece)}"
        else:
            joined.append(fold(piece))
    return joined


def _members(masked: str, functions: tuple[Span, ...]) -> dict[str, str]:
    # `static constexpr auto kernel = scale<T, 8>;` in the class that launches it
    found: dict[str, set[str]] = {}
    for match in _MEMBER.finditer(masked):
        if not any(start <= match.start() < end for start, end in functions):
            found.setdefault(match[1], set()).add(fold(match[2]))
    return {name: values.pop() for name, values in found.items() if len(values) == 1}


def _site(
    called: tuple[str, tuple[str, ...]],
    config: list[str],
    arguments: list[str],
    place: tuple[int, int],
    known: Mapping[str, str],
) -> LaunchSite:
    grid, block, shared = [*config, "", "", ""][:3]
    name, template_arguments = called
    if not template_arguments:
        name, template_arguments = _callee(name, known) or called
    return LaunchSite(
        kernel=name,
        template_arguments=template_arguments,
        grid=_extents(grid, known, named=True),
        block=_extents(block, known),
        shared=shared or "0",
        arguments=tuple(arguments),
        line=place[1],
        definitions=known,
        at=place[0],
    )


def _end_of_config(masked: str, start: int) -> int | None:
    position = start
    while position < len(masked):
        if masked.startswith(">>>", position):
            return position
        if masked[position] in ";}":
            return None
        inside = closing(masked, position) if masked[position] in "({[" else None
        position = inside or position + 1
    return None


def _called(masked: str, end: int) -> tuple[str, tuple[str, ...], int] | None:
    end = len(masked[:end].rstrip())
    arguments: tuple[str, ...] = ()
    if masked[:end].endswith(">"):
        opening = _opening_angle(masked, end - 1)
        if opening is None:
            return None
        inside = masked[opening + 1 : end - 1]
        arguments = tuple(fold(piece) for piece, _ in split_list(inside, angles=True))
        end = opening
    match = _CALLED.search(masked[max(0, end - 400) : end])
    if match is None:
        return None
    return re.sub(r"\s", "", match[1]), arguments, end - len(match[0])


def _opening_angle(masked: str, close: int) -> int | None:
    depth = 0
    for position in range(close, -1, -1):
        depth += (masked[position] == ">") - (masked[position] == "<")
        if depth == 0:
            return position
        if masked[position] in ";{}":
            return None
    return None


def _callee(text: str, known: Mapping[str, str]) -> tuple[str, tuple[str, ...]] | None:
    for _ in range(_MAX_HOPS):
        if text not in known:
            break
        text = known[text]
    text = re.sub(r"^\(\s*(?:const\s+)?void\s*\*\s*\)|^reinterpret_cast<.*?>\s*", "", text)
    bare = text.strip("&() ")
    found = _called(bare, len(bare))
    return found and (found[0], found[1])


def _config(name: str, known: Mapping[str, str]) -> list[str]:
    whole = known.get(name, "")
    if pieces := split_list(whole[whole.find("{") + 1 : -1]):
        return [fold(piece) for piece, _ in pieces]
    fields = ("gridDim", "blockDim", "dynamicSmemBytes")
    return [known.get(f"{name}.{field}", "") for field in fields]


def _extents(text: str, known: Mapping[str, str], *, named: bool = False) -> tuple[str, ...]:
    name = text
    for _ in range(_MAX_HOPS):
        if text not in known:
            break
        text = known[text]
    if named and not _DIM3.match(text) and (number(text) is not None or _ASKED.search(text)):
        # a size that the problem may have a name for
        return (name,)
    if f"{text}.x" in known:
        return tuple(known[f"{text}.{axis}"] for axis in "xyz" if f"{text}.{axis}" in known)
    match = _DIM3.match(text)
    if match and closing(text, match.end()) == len(text):
        return tuple(fold(piece) for piece, _ in split_list(text[match.end() + 1 : -1]))
    return (text,) if text else ()


def _definitions(masked: str, functions: tuple[Span, ...], end: int) -> dict[str, str]:
    return {name: value.text for name, value in assigned(masked, functions, end).items()}


_MALLOC = re.compile(r"\bcuda(?:Malloc(?:Managed|Async|Host)?|HostAlloc)\s*(?:<[^<>()]*>)?(?=\()")
_CONTAINER = re.compile(
    r"\b(?:std\s*::\s*|thrust\s*::\s*)?(?:\w+_)?vector\s*<\s*([\w:\s]+?)\s*>\s*(\w+)\s*(?=[({])"
)
_POINTER = re.compile(r"([A-Za-z_][\w.]*)\s*\)*$")
_CAST = re.compile(r"^(?:\([\w:\s]+\*\s*\)|(?:static|reinterpret)_cast<[^<>]*>)\s*")
_HEAP = re.compile(r"(?:std::)?(?:malloc|aligned_alloc)\s*(?=\()")
_CLEARED = re.compile(r"(?:std::)?calloc\s*(?=\()")
_MAX_CASTS = 3
_NEW = re.compile(r"new\s+([\w:\s]+?)\s*(?=\[)")


@dataclass(frozen=True, slots=True)
class HostFunction:
    """A function with a body, and the names of its parameters; "" for one without a name."""

    name: str
    parameters: tuple[str, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class CallSite:
    """One call of a function, with its arguments as text."""

    name: str
    arguments: tuple[str, ...]
    at: int
    line: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """Memory that a variable points to: `size` as text, in bytes, or in elements of a type.

    `how` is what was called, for comments.
    """

    target: str
    size: str
    in_bytes: bool
    how: str
    line: int


def functions_of(source: SourceFile) -> tuple[HostFunction, ...]:
    """List the functions that the file defines."""
    lines = LineIndex(source.text)
    found = []
    for node in walk(parse_tree(source.masked)):
        body = node.child_by_field_name("body") if node.type == "function_definition" else None
        if body is None:
            continue
        read = read_kernel(
            source.masked,
            span_of(node),
            (body.start_byte, body.end_byte),
            path=source.path,
            lines=lines,
            aliases=source.aliases,
        )
        if read is not None and read.parameters_known:
            names = tuple(parameter.name for parameter in read.parameters)
            found.append(HostFunction(read.name, names, span_of(node)))
    return tuple(found)


def calls_of(source: SourceFile) -> tuple[CallSite, ...]:
    """List the plain calls in the file, launches aside."""
    lines, found = LineIndex(source.text), []
    for node in walk(parse_tree(source.masked)):
        function = node.child_by_field_name("function")
        arguments = node.child_by_field_name("arguments")
        if node.type != "call_expression" or function is None or arguments is None:
            continue
        if any(child.type == "kernel_call_syntax" for child in node.named_children):
            continue
        name = text_of(function, source.masked).split("<", 1)[0].rsplit("::", 1)[-1].strip()
        texts = split_list(text_of(arguments, source.masked)[1:-1], angles=True)
        passed = tuple(fold(text) for text, _ in texts)
        found.append(CallSite(name, passed, node.start_byte, lines.at(node.start_byte)))
    return tuple(found)


def allocations_in(
    source: SourceFile, span: Span, variables: dict[str, Assigned]
) -> tuple[Allocation, ...]:
    """List the allocations in a piece of host code, those that `variables` are set to too."""
    lines = LineIndex(source.text)
    heap = (
        found
        for name, value in variables.items()
        if (found := _on_heap(name, value.text, lines.at(value.at))) is not None
    )
    return (*_from_cuda(source.masked, span, lines), *_contained(source.masked, span, lines), *heap)


def _from_cuda(masked: str, span: Span, lines: LineIndex) -> Iterator[Allocation]:
    for match in _MALLOC.finditer(masked, *span):
        end = closing(masked, match.end())
        pieces = [fold(text) for text, _ in split_list(masked[match.end() + 1 : (end or 1) - 1])]
        target = _POINTER.search(pieces[0]) if len(pieces) > 1 else None
        if target is not None:
            how = re.sub(r"\s*<.*", "", match[0]).strip()
            yield Allocation(target[1], pieces[1], True, how, lines.at(match.start()))


def _contained(masked: str, span: Span, lines: LineIndex) -> Iterator[Allocation]:
    for match in _CONTAINER.finditer(masked, *span):
        end = closing(masked, match.end())
        pieces = [fold(text) for text, _ in split_list(masked[match.end() + 1 : (end or 1) - 1])]
        # braces list the elements where there are several
        if pieces and (masked[match.end()] == "(" or len(pieces) == 1):
            yield Allocation(match[2], pieces[0], False, "the vector", lines.at(match.start()))


def _on_heap(name: str, text: str, line: int) -> Allocation | None:
    plain = text
    for _ in range(_MAX_CASTS):
        plain = _CAST.sub("", plain)
        if plain.startswith("(") and closing(plain, 0) == len(plain):
            plain = plain[1:-1].strip()
    if match := _NEW.match(plain):
        end = closing(plain, match.end())
        return Allocation(name, plain[match.end() + 1 : (end or 1) - 1], False, "new", line)
    cleared = _CLEARED.match(plain)
    match = cleared or _HEAP.match(plain)
    end = closing(plain, match.end()) if match is not None else None
    if match is None or end != len(plain):
        return None
    pieces = [fold(piece) for piece, _ in split_list(plain[match.end() + 1 : end - 1])]
    if cleared is not None:
        size = f"({pieces[0]}) * {pieces[1]}" if len(pieces) == 2 else ""
        return Allocation(name, size, True, "calloc", line)
    return Allocation(name, pieces[-1] if pieces else "", True, "malloc", line)
