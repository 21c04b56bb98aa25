"""What the project's macros stand for, written out: kernels that they make, launches in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tuner.extract.items import Item, is_marked, items_in
from tuner.extract.macros import Macro, expanded, macros_in, macros_of
from tuner.source.text import closing, fold, split_list

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
