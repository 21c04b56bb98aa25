"""What a compiler says of an extracted unit, as an error about the source it came from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tuner.extensions.draft.extract.extraction import Extraction
from tuner.extensions.draft.extract.names import FRAMEWORKS
from tuner.extensions.draft.extract.reading import Include
from tuner.model.errors import KernelError

_ERROR = re.compile(r"^kernel\.cu\((\d+)\): (?:catastrophic )?error(?: #\d+(?:-D)?)?: (.*)", re.M)
_UNRESOLVED = re.compile(
    r'(?:namespace|class) "[^"]+" has no (?:actual )?member "(?P<member>[^"]+)"'
    r'|no instance of (?:overloaded )?function "(?P<function>[^"]+)"|"(?P<name>[^"]+)" '
    r"(?:is undefined|is not a (?:(?:class )?template|type name)|has not been declared)"
)
_NOT_A_TYPE = re.compile(r"this declaration has no storage class|expected a")


class NotCompiledError(KernelError):
    """Report a unit that was extracted and does not compile; `names` are what nothing defines."""

    names: tuple[str, ...] = ()

    @property
    def is_mixed(self) -> bool:
        """Whether it asks small floats for arithmetic or conversions that PyTorch's types have."""
        asks = (
            r"more than one (?:operator|conversion)|no operator"
            r"|no suitable (?:conversion|constructor).*__nv_fp8"
        )
        return re.search(asks, str(self)) is not None


# what a compiler says of text that is no C++, apart from what it does not know
_SYNTAX = re.compile(
    r"^(?:expected (?:a|an) \S+|unrecognized token|missing closing quote|extra text after"
    r"|expected a declaration|this declaration has no storage|extraneous)"
)


def failure(extraction: Extraction, error: str) -> NotCompiledError:
    """Turn the compiler's errors about a unit into one about the source and the unit's line."""
    found, kernel = _ERROR.findall(error), extraction.instances[0].kernel
    path, own_line = kernel.path, kernel.line
    if not found:
        what = error.strip().splitlines()[0].removeprefix("kernel.cu: error: ")
        message = f"what was extracted does not compile: {what}"
        remedy = "another instantiation may: give it with --instantiate"
        return NotCompiledError(message, path=path, line=own_line, remedy=remedy)
    line, message = found[0]
    number, rows = int(line), extraction.source.text.split("\n")
    if number <= len(extraction.places):
        path, own_line = extraction.places[number - 1] or (path, own_line)
    row = rows[number - 1].strip()
    named = [_name(text, row) for at, text in found if at == line]
    known = [name for name in named if name is not None]
    name = next((name for name in known if name.isupper()), next(iter(known), None))
    if name is not None:
        macro = " (by its name a macro)" if name.isupper() else ""
        message = f"{name!r}{macro} is defined in no file that could be read"
        message += "; the kernel needs it here"
        every = (_name(text, rows[int(at) - 1]) for at, text in found if int(at) <= len(rows))
        if others := ", ".join(repr(one) for one in dict.fromkeys(every) if one and one != name):
            message += f"; and so it is with {others}"
        remedy = _remedy(name, row, extraction.unread)
    elif _SYNTAX.match(message):
        message, remedy = f"does not compile: {message} (`{row}`)", "mend this line, or one above"
    else:
        message = f"what was extracted does not compile here: {message} (`{row}`)"
        remedy = "write this so that NVRTC takes it, or replace it in the source"
    remedy += f"; this is line {number} of {extraction.source.path}, the unit to mend"
    failed = NotCompiledError(message, path=path, line=own_line, remedy=remedy)
    if name is not None:
        # of a namespace that is empty without it, what the kernel takes of it
        failed.names = (*re.findall(rf"\b{re.escape(name)}\s*::\s*(\w+)", row), name)
    return failed


def _name(message: str, row: str) -> str | None:
    match = _UNRESOLVED.search(message)
    if match is None and "must be a class or namespace name" in message:
        # the compiler does not name a namespace that it does not know
        match = re.search(r"\b(?!std\b)(\w+)\s*::", row)
    elif match is None and _NOT_A_TYPE.search(message):
        # nor a macro whose parameters are code
        match = re.search(r"\b([A-Z][A-Z0-9_]{3,})\s*\(", row)
    return match[match.lastindex or 0] if match else None


def _remedy(name: str, row: str, unread: Sequence[tuple[Path, int, Include]]) -> str:
    scope = re.search(rf"\b(\w+)\s*::\s*(?:\w+\s*::\s*)*{re.escape(name)}\b", row)
    for owner, (pattern, headers) in FRAMEWORKS["owners"].items():
        if not re.fullmatch(pattern, scope[1] if scope else name):
            continue
        own = [one for one in unread if re.match(headers, one[2].name)]
        where = f", of {_places(own)}" if own else ""
        return (
            f"it is a name of {owner}{where}, and not one of those that units get a stand-in for; "
            f"put a definition of {name} into a header of your own, or write what it stands for"
        )
    if missing := [one for one in unread if one[2].origin == "missing"]:
        return (
            f"these headers were not found, and one of them may hold it: {_places(missing)}; "
            "give their folder with --include DIR"
        )
    if frameworks := [one for one in unread if one[2].origin == "framework"]:
        return (
            f"it may be of a framework's header, which is left out: {_places(frameworks)}; put a "
            f"definition of {name} into a header of your own, or write what it stands for"
        )
    called = re.search(rf"\b{name}\s*(?:\(|::|<\w)", row)
    build = "" if called else f", or give `-D {name}=VALUE` as the build does"
    return f"include the header that defines {name}, or define it in the source{build}"


def _places(unread: Sequence[tuple[Path, int, Include]]) -> str:
    return ", ".join(f"{include} ({path}:{line})" for path, line, include in unread[:6])
