"""Why NVRTC does not take an extracted unit: the name, where the source has it, what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tuner.errors import KernelError
from tuner.extract.extraction import Extraction
from tuner.extract.leftovers import Header

_ERROR = re.compile(r"^kernel\.cu\((\d+)\): (?:catastrophic )?error(?: #\d+(?:-D)?)?: (.*)", re.M)
_UNRESOLVED = (
    re.compile(r'identifier "([^"]+)" is undefined'),
    re.compile(r'"([^"]+)" is undefined'),
    re.compile(r'(?:namespace|class) "[^"]+" has no (?:actual )?member "([^"]+)"'),
    re.compile(r'no instance of (?:overloaded )?function "([^"]+)"'),
    re.compile(r"name followed by \"::\" must be a class or namespace name()"),
    re.compile(r'"([^"]+)" is not a (?:template|class template|type name)'),
    re.compile(r'"([^"]+)" has not been declared'),
)
_NOT_A_TYPE = re.compile(r"this declaration has no storage class|expected a")


def failure(extraction: Extraction, error: str) -> KernelError:
    """Turn the compiler's errors about a unit into one about the source."""
    found = _ERROR.findall(error)
    if not found:
        return KernelError(
            "what was extracted does not compile: "
            + error.strip().splitlines()[0].removeprefix("kernel.cu: error: "),
            path=extraction.instances[0].kernel.path,
            line=extraction.instances[0].kernel.line,
            remedy="another instantiation may: give it with --instantiate",
        )
    line, message = found[0]
    number = int(line)
    place = extraction.places[number - 1] if number <= len(extraction.places) else None
    kernel = extraction.instances[0].kernel
    path, own_line = place or (kernel.path, kernel.line)
    row = extraction.source.text.split("\n")[number - 1].strip()
    named = [_name(text) or _scope(text, row) for at, text in found if at == line]
    known = [name for name in named if name is not None]
    name = next((name for name in known if name.isupper()), next(iter(known), None))
    if name is None:
        return KernelError(
            f"what was extracted does not compile here: {message} (`{row}`)",
            path=path,
            line=own_line,
            remedy="write this so that NVRTC takes it, or replace it in the source",
        )
    macro = " (by its name a macro)" if name.isupper() else ""
    return KernelError(
        f"{name!r}{macro} is defined in no file that could be read; the kernel needs it here",
        path=path,
        line=own_line,
        remedy=_remedy(name, extraction.unread),
    )


def _name(message: str) -> str | None:
    for pattern in _UNRESOLVED:
        if (match := pattern.search(message)) and match[1]:
            return match[1]
    return None


def _scope(message: str, row: str) -> str | None:
    # the compiler does not name a namespace that it does not know
    if "must be a class or namespace name" in message:
        match = re.search(r"\b(?!std\b)(\w+)\s*::", row)
        return match[1] if match else None
    # nor a macro whose parameters are code
    match = re.search(r"\b([A-Z][A-Z0-9_]{3,})\s*\(", row) if _NOT_A_TYPE.search(message) else None
    return match[1] if match else None


def _remedy(name: str, unread: Sequence[Header]) -> str:
    missing = [header for header in unread if header.origin == "missing"]
    frameworks = [header for header in unread if header.origin == "framework"]
    if missing:
        return (
            f"these headers were not found, and one of them may hold it: {_listed(missing)}; "
            "give their folder with --include DIR"
        )
    if frameworks:
        return (
            f"it may be of a framework's header, which is left out: {_listed(frameworks)}; put a "
            f"definition of {name} into a header of your own, or write what it stands for"
        )
    return f"include the header that defines {name}, or define it in the source"


def _listed(headers: Sequence[Header]) -> str:
    return ", ".join(f"{h.directive} ({h.path}:{h.line})" for h in headers[:6])
