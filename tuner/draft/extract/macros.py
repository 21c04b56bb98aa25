"""Which kernels of a source to extract: those asked for, or all that one function launches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from tuner.draft.extract.items import Item, is_marked, items_in
from tuner.draft.extract.leftovers import unread
from tuner.draft.extract.reading import Reading
from tuner.draft.extract.unit import Place
from tuner.model.errors import KernelError
from tuner.source import LaunchSite, SourceFile
from tuner.source.facts import bare_name
from tuner.source.syntax import closing, fold, split_list

_WHY = {True: "launched by different functions", False: "and no launch of any"}


def chosen_kernels(
    path: Path,
    kernels: Sequence[Item],
    asked: tuple[str, ...],
    whole: SourceFile,
    places: Sequence[Place | None],
) -> tuple[str, ...]:
    """Name the kernels to extract, in the order of their launches; `KernelError` for a choice.

    `whole` holds all files, and `places` says where each of its lines is from.
    """
    names = list(dict.fromkeys(item.names[-1] for item in kernels))
    for name in asked:
        if bare_name(name) not in names:
            raise _no_such(path, name, names)
    if asked:
        return tuple(dict.fromkeys(bare_name(name) for name in asked))
    if len(names) == 1:
        return (names[0],)
    sites = [site for site in whole.launches if bare_name(site.kernel) in names]
    own = [site for site in sites if _is_in(site, path, places)] or sites
    launched = list(dict.fromkeys(bare_name(site.kernel) for site in own))
    if len(launched) == 1 or (launched and len({_around(site, whole) for site in own}) == 1):
        return tuple(launched)
    listed = "\n  ".join(f"{item.path}:{item.line}: {item.names[-1]}" for item in kernels)
    raise KernelError(
        f"has {len(names)} kernels, " + (_WHY[bool(launched)]),
        path=path,
        remedy=f"choose one or several, such as --kernel {','.join((launched or names)[:1])}\n"
        f"  {listed}",
    )


def no_kernel(path: Path, reading: Reading) -> KernelError:
    """Say that there is no kernel, and which header could hold it."""
    missing = unread(reading, "missing")
    if missing:
        listed = ", ".join(f"{header.directive} (line {header.line})" for header in missing)
        return KernelError(
            f"has no __global__ function, and headers that it includes were not found: {listed}",
            path=missing[0].path,
            line=missing[0].line,
            remedy="give the folder that holds them with --include DIR",
        )
    return KernelError(
        "has no __global__ function, and neither have the headers that it includes",
        path=path,
        remedy="give the file that defines the kernel",
    )


def _no_such(path: Path, name: str, names: list[str]) -> KernelError:
    close = get_close_matches(name, names, 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return KernelError(
        f"no __global__ function named {name!r}",
        path=path,
        remedy=f"{hint}kernels in it: {', '.join(names)}",
    )


def _is_in(site: LaunchSite, path: Path, places: Sequence[Place | None]) -> bool:
    place = places[site.line - 1] if site.line <= len(places) else None
    return place is not None and place[0] == path


def _around(site: LaunchSite, whole: SourceFile) -> int:
    # the innermost function; where there is none, the launch is alone
    starts = [
        d.span[0]
        for d in whole.definitions
        if d.kind == "function" and d.span[0] <= site.at < d.span[1]
    ]
    return max(starts, default=-site.at)


_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(\([^)]*\))?", re.MULTILINE)
_LINE = re.compile(r"(?:[^\n\\]|\\\n|\\.)*")
_MAX_DEPTH = 6
# what stands for a piece of code that is handed to a macro
CODE = "the_code_that_is_passed"


@dataclass(frozen=True, slots=True)
class Macro:
    """One macro: its parameters, None for one without a list, and its text."""

    name: str
    parameters: tuple[str, ...] | None
    body: str


def macros_of(items: Iterable[Item]) -> dict[str, Macro]:
    """Map names to the macros that the files define, the last of each name."""
    codes = (item.code for item in items if item.kind == "macro")
    return {macro.name: macro for code in codes for macro in macros_in(code)}


def macros_in(code: str) -> Iterator[Macro]:
    """Yield the macros that a piece of code defines."""
    for match in _DEFINE.finditer(code):
        end = _LINE.match(code, match.end())
        body = code[match.end() : end.end() if end else match.end()]
        listed = match[2]
        names = None if listed is None else tuple(p for p, _ in split_list(listed[1:-1]))
        yield Macro(match[1], names, fold(body))


def expanded(macro: Macro, arguments: tuple[str, ...], known: Mapping[str, Macro]) -> str:
    """Expand one use of a macro, and the macros in it; code that is passed is left aside."""
    return _expanded(macro, arguments, known, 0)


def _expanded(
    macro: Macro, arguments: tuple[str, ...], known: Mapping[str, Macro], depth: int
) -> str:
    passed = tuple(CODE if "{" in text else text for text in arguments)
    values: dict[str, str] = {}
    for place, name in enumerate(macro.parameters or ()):
        if name.endswith("..."):
            values[name.removesuffix("...").strip() or "__VA_ARGS__"] = ", ".join(passed[place:])
        elif place < len(passed):
            values[name] = passed[place]
    text = re.sub(r"(?<!#)#\s*\w+", '""', macro.body)
    text = re.sub(r"[A-Za-z_]\w*", lambda match: values.get(match[0], match[0]), text)
    text = re.sub(r"\s*##\s*", "", text)
    return text if depth >= _MAX_DEPTH else _inside(text, known, macro.name, depth)


def _inside(text: str, known: Mapping[str, Macro], own: str, depth: int) -> str:
    pieces, at = [], 0
    for match in re.finditer(r"([A-Za-z_]\w*)\s*(?=\()", text):
        inner = known.get(match[1])
        if match.start() < at or inner is None or inner.parameters is None or inner.name == own:
            continue
        end = closing(text, match.end())
        if end is None:
            continue
        arguments = tuple(piece for piece, _ in split_list(text[match.end() + 1 : end - 1]))
        pieces += [text[at : match.start()], _expanded(inner, arguments, known, depth + 1)]
        at = end
    return "".join([*pieces, text[at:]])


_DEFINES = re.compile(r"\b(?:struct|class|constexpr|using)\b")
_LAUNCHES = re.compile(r"<<<|\bcudaLaunch\w*Kernel\w*\s*\(")
# a function template with its arguments, which may launch
_LEADS = re.compile(r"(?<!_cast)(?<![\w.])(?!\w*_cast\b)\w+\s*<[^;<>()]*>\s*\(")
_DEFINED_HERE = re.compile(r"^[ \t]*#[ \t]*define\b(?:[^\n\\]|\\\n|\\.)*", re.MULTILINE)


def written_out(items: Sequence[Item]) -> tuple[Item, ...]:
    """Replace macros that make definitions for the device, and those in host code that launch."""
    macros = macros_of(items)
    host = {name: macro for name, macro in macros.items() if not is_marked(macro.body)}
    launching = {name: macro for name, macro in host.items() if _LAUNCHES.search(macro.body)}
    leading = {name: macro for name, macro in host.items() if _LEADS.search(macro.body)}
    found: list[Item] = []
    for item in items:
        if item.kind == "invocation":
            found += _made(item, macros)
        elif item.kind in ("function", "class") and not is_marked(item.head):
            found.append(_launching(item, leading | launching, macros))
        else:
            found.append(item)
    # a launch in a macro is one where the macro is used, not where it is defined
    return tuple(item for item in found if item.kind != "macro" or item.name not in launching)


def _made(item: Item, macros: Mapping[str, Macro]) -> Iterator[Item]:
    macro = macros.get(item.name)
    if macro is None or macro.parameters is None:
        yield item
        return
    text = expanded(macro, _arguments(item.code, item.code.index("(")), macros)
    if not (is_marked(text) or _DEFINES.search(text)):
        yield item
        return
    for made in items_in(text, item):
        lines = f"// {fold(item.code)}\n{_laid_out(made.code)}"
        yield replace(made, text=lines, lead=lines.index("\n") + 1, is_made=True)


def _arguments(code: str, opening: int) -> tuple[str, ...]:
    close = closing(code, opening) or len(code)
    return tuple(fold(piece) for piece, _ in split_list(code[opening + 1 : close - 1]))


def _laid_out(code: str) -> str:
    lines: list[str] = []
    line, depth, nested = "", 0, 0
    for character in code:
        nested += (character in "([") - (character in ")]")
        if character == "}":
            lines += ["  " * depth + line.strip()] if line.strip() else []
            line, depth = "", depth - 1
        line += character
        if character in "{};" and nested == 0:
            lines.append("  " * depth + line.strip())
            line = ""
        depth += character == "{"
    return "\n".join([*lines, line.strip()]).rstrip()


def _launching(item: Item, launching: Mapping[str, Macro], macros: Mapping[str, Macro]) -> Item:
    own = {
        m.name: m for m in macros_in(item.code) if _LAUNCHES.search(m.body) or _LEADS.search(m.body)
    }
    known = {**launching, **own}
    if not known:
        return item
    code = item.code
    if own:
        code = _DEFINED_HERE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), code)
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, known))})\b(\s*\()?")
    at = 0
    while match := pattern.search(code, at):
        macro = known[match[1]]
        end: int = match.end(1)
        arguments: tuple[str, ...] = ()
        if macro.parameters is not None and match[2]:
            end = closing(code, match.end() - 1) or match.end()
            arguments = _arguments(code, match.end() - 1)
        lines = code.count("\n", match.start(), end)
        text = expanded(macro, arguments, {**macros, **own}) + "\n" * lines
        code = code[: match.start()] + text + code[end:]
        at = match.start() + len(text)
    return replace(item, code=code, text=code, lead=0)
