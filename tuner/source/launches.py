"""Find launches in host code: `<<<grid, block>>>`, cudaLaunchKernelEx and cudaLaunchKernel."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tuner.source.accesses import assigned
from tuner.source.facts import LaunchSite, Lines, Span
from tuner.source.text import closing, fold, number, split_list

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


def find_launches(masked: str, lines: Lines, functions: tuple[Span, ...]) -> tuple[LaunchSite, ...]:
    """List all launches in the order of the text; `functions` bound the search for variables."""
    # a launch inside a macro is one like any other, but for the line ends
    masked = masked.replace("\\\n", " \n")
    sites = [
        *_chevrons(masked, lines, functions),
        *_runtime(masked, lines, functions),
        *_helped(masked, lines, functions),
    ]
    return tuple(sorted(sites, key=lambda site: site.line))


def _chevrons(masked: str, lines: Lines, functions: tuple[Span, ...]) -> Iterator[LaunchSite]:
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


def _runtime(masked: str, lines: Lines, functions: tuple[Span, ...]) -> Iterator[LaunchSite]:
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


def _helped(masked: str, lines: Lines, functions: tuple[Span, ...]) -> Iterator[LaunchSite]:
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
