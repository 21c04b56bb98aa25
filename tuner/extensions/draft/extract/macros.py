"""Definitions that macros make, written out: for the device, and in host code that launches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tuner.extensions.draft.extract.items import SourceItem, items_in, without_repeats
from tuner.extensions.draft.extract.names import (
    DEFINE,
    Macro,
    expand_macro,
    macros_in,
    with_strings,
    without_strings,
)
from tuner.source.facts import IDENTIFIER
from tuner.source.host import is_marked
from tuner.source.syntax import fold, listed, mask

# what a macro may make outside of functions; `template void launch<T>(...)` says types
_DEFINES = re.compile(r"\b(?:struct|class|constexpr|using)\b|\btemplate\b(?!\s*<)")
_LAUNCHES = re.compile(r"<<<|\bcudaLaunch\w*Kernel\w*\s*\(")
# a function template with its arguments, which may launch
_LEADS = re.compile(r"(?<!_cast)(?<![\w.])(?!\w*_cast\b)\w+\s*<[^;<>()]*>\s*\(")
# `for (int i = blockIdx.x * ...)`, in a macro, or what it is handed by address: `FLOAT4(x[i]) = y`
_INLINE = re.compile(
    r"\bfor\s*\([^;]*\bblockIdx\b|(?:\breinterpret_cast\s*<[^<>]*\*\s*>\s*\(|\*\s*\)\s*\(?)\s*&"
)
# `atomicAdd(&(dst), v)`, `++dst`, `(dst)[i] += v`
_WRITES = (
    r"(?:^|[(,=;{{])\s*&\s*\(?\s*{0}\b|(?:\+\+|--)\s*\(?\s*{0}\b"
    r"|(?<![\w.]){0}\s*\)?\s*(?:\[[^\]]*\]\s*|\.\w+\s*)*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))"
)
# its strings are hidden in a macro's text
_WITH_STRINGS = re.compile(r"asm|printf")
_DIRECTIVE = re.compile(r"^[ \t]*#[^\n]*\n", re.MULTILINE)


def macros_of(items: Iterable[SourceItem]) -> dict[str, Macro]:
    """Map names to the macros that the files define, the last of each name."""
    return macros_in("\n".join(item.code for item in items if item.kind == "macro"))


def is_inline(macro: Macro) -> bool:
    """Tell whether a macro has to be written out to see what the kernel that uses it accesses."""
    if macro.parameters is None:
        return False
    names = [re.escape(name) for name in macro.parameters if "..." not in name]
    writes = any(re.search(_WRITES.format(name), macro.body) for name in names if name)
    plain = _WITH_STRINGS.search(macro.body) is None
    return (writes and plain) or _INLINE.search(macro.body) is not None


def written_out(items: Sequence[SourceItem]) -> tuple[SourceItem, ...]:
    """Replace macros that make definitions for the device, and those in host code that launch."""
    macros = macros_of(items)
    texts: dict[str, str] = {}
    host = {name: macro for name, macro in macros.items() if not is_marked(macro.body)}
    launching = _with_users(host, _LAUNCHES)
    leading = launching | _with_users(host, _LEADS)
    loops = {name: macro for name, macro in macros.items() if is_inline(macro)}
    source_items: list[SourceItem] = []
    for item in items:
        if item.kind == "macro" and DEFINE.match(item.code):
            # as they are defined up to here: another #define may follow, or #undef
            texts[item.name] = item.text[item.lead :]
        if item.kind == "invocation":
            source_items += _expand_item(item, texts)
        elif item.kind in ("function", "class") and not is_marked(item.head):
            whole = _with_head(item, host) if item.kind == "function" else item
            source_items.append(_launching(whole, leading | launching, host))
        elif item.is_kernel and loops:
            source_items.append(_with_loops(item, loops))
        else:
            source_items.append(item)
    # a launch in a macro is one where the macro is used, not where it is defined
    kept = [item for item in source_items if item.kind != "macro" or item.name not in launching]
    return tuple(without_repeats(kept))


def _with_loops(kernel: SourceItem, loops: Mapping[str, Macro]) -> SourceItem:
    # how far a loop over the grid runs says how large arrays are, an address what is written
    names = re.compile(rf"\b({'|'.join(map(re.escape, loops))})\s*(?=\()")
    for match in reversed([*names.finditer(kernel.code)]):
        arguments, end = listed(kernel.code, match.end())
        if end:
            text = expand_macro(loops[match[1]], arguments, {})
            kernel = kernel.with_edits([((match.start(), end), text)])
    return kernel


def _with_head(function: SourceItem, host: Mapping[str, Macro]) -> SourceItem:
    # macros over its parameters: `MATRIX(a, ROWS, COLUMNS)`
    used = {*IDENTIFIER.findall(function.head)} & host.keys()
    for match in reversed([*re.finditer(r"(\w+)\s*(?=\()", function.head)]):
        macro = host[match[1]] if match[1] in used else None
        if macro is None or macro.parameters is None or match.start() == 0:
            continue
        arguments, end = listed(function.code, match.end())
        if end and end <= len(function.head):
            text = fold(expand_macro(macro, arguments, host))
            function = function.with_edits([((match.start(), end), text)])
    return replace(function, head=function.code.partition("{")[0]) if used else function


def _with_users(host: Mapping[str, Macro], what: re.Pattern[str]) -> dict[str, Macro]:
    # the macros that have it, and those over one of them
    macros: dict[str, Macro] = {}
    more = {name: macro for name, macro in host.items() if what.search(macro.body)}
    while more:
        macros |= more
        uses = re.compile(rf"\b(?:{'|'.join(map(re.escape, macros))})\b")
        more = {n: m for n, m in host.items() if n not in macros and uses.search(m.body)}
    return macros


def _callers(code: str, host: Mapping[str, Macro], known: Mapping[str, Macro]) -> dict[str, Macro]:
    # those of the host that are handed one of `known` and call it: `DISPATCH(type, CALL)`
    found = {}
    for name in {*IDENTIFIER.findall(code)} & host.keys():
        macro = host[name]
        for match in re.finditer(rf"\b{name}\s*(?=\()", code) if macro.parameters else ():
            passed = dict(zip(macro.parameters or (), listed(code, match.end())[0], strict=False))
            handed = [own for own, text in passed.items() if text in known]
            if any(re.search(rf"\b{own}\s*\(", macro.body) for own in handed):
                found[name] = macro
    return found


def _expand_item(item: SourceItem, texts: Mapping[str, str]) -> Iterator[SourceItem]:
    strings: list[str] = []
    known = {name: without_strings(text, strings) for name, text in texts.items()}
    macros = macros_in("\n".join(known.values()))
    macro = macros.get(item.name)
    if macro is None or macro.parameters is None:
        yield item
        return

    def aside(directive: re.Match[str]) -> str:
        # `#if` in code that a macro is passed
        strings.append(f"\n{directive[0].strip()}\n")
        return f" string_literal_{len(strings) - 1} "

    used = without_strings(_DIRECTIVE.sub(aside, item.text[item.lead :]), strings)
    text = expand_macro(macro, listed(used, used.index("("))[0], macros, with_code=True)
    text = without_strings(text, strings)
    if not (is_marked(text) or _DEFINES.search(text) or text.lstrip().startswith("template")):
        yield item
        return
    for source_item in items_in(text, item):
        # the end of a class that a macro makes is with its user
        end = ";" if source_item.kind == "class" and not source_item.code.endswith(";") else ""
        lines = f"// {fold(item.code)}\n{_laid_out(source_item.code)}{end}"
        lines = with_strings(lines, strings)
        lead = lines.index("\n") + 1
        yield replace(source_item, text=lines, code=mask(lines[lead:]), lead=lead, is_made=True)


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


def _launching(
    item: SourceItem, launching: Mapping[str, Macro], host: Mapping[str, Macro]
) -> SourceItem:
    stated = macros_in(item.code)
    own = {n: m for n, m in stated.items() if _LAUNCHES.search(m.body) or _LEADS.search(m.body)}
    macros = {**launching, **own}
    macros |= _callers(item.code, {**host, **stated}, macros) if macros else {}
    used = [name for name in dict.fromkeys(IDENTIFIER.findall(item.code)) if name in macros]
    if not used:
        return item
    # a list of template arguments in the shape of one argument
    passing = {name: macro for name, macro in host.items() if macro.body == "__VA_ARGS__"}
    code = item.code
    if own:
        code = DEFINE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), code)
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, used))})\b(\s*\()?")
    at = 0
    while match := pattern.search(code, at):
        macro = macros[match[1]]
        end: int = match.end(1)
        arguments: tuple[str, ...] = ()
        if macro.parameters is not None and match[2]:
            arguments, end = listed(code, match.end() - 1)
            end = end or match.end()
        lines = code.count("\n", match.start(), end)
        text = expand_macro(macro, arguments, {**passing, **macros}) + "\n" * lines
        code = code[: match.start()] + text + code[end:]
        at = match.start() + len(text)
    # what no macro changes keeps its strings and comments
    return item if code == item.code else replace(item, code=code, text=code, lead=0)
