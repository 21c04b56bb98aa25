"""A kernel's source in a namespace of its own, so that several can be linked together."""

from __future__ import annotations

import re

from tuner.source.text import mask

_LINKAGE = re.compile(r'\bextern(\s+)"C(?:\+\+)?"(\s*\{)?')
_INCLUDE = re.compile(r"[ \t]*#[ \t]*include\b")
_OPENS = re.compile(r"[ \t]*#[ \t]*if")
_CLOSES = re.compile(r"[ \t]*#[ \t]*endif\b")
_TURNS = re.compile(r"[ \t]*#[ \t]*el(?:se|if)")
# The tuner compiled without these parts: with nvcc they are left out as well.
_HOST_PART = re.compile(
    r"[ \t]*#[ \t]*(?:ifndef[ \t]+__CUDACC_RTC__"
    r"|if[ \t]+!\s*defined[ \t]*\(?[ \t]*__CUDACC_RTC__[ \t]*\)?)[ \t]*$"
)


def in_namespace(source: str, name: str) -> str:
    """Put a source into a namespace, its includes outside, without C linkage and host parts."""
    lines = _without_host_parts(_without_linkage(source)).split("\n")
    codes = mask("\n".join(lines)).split("\n")
    start = _first_code(codes)
    opened, closed = f"namespace {name} {{", f"}}  // namespace {name}"
    made = [*lines[:start], opened]
    depth = 0
    for line, code in zip(lines[start:], codes[start:], strict=True):
        if depth == 0 and _INCLUDE.match(code):
            made += [closed, line, opened]
        else:
            made.append(line)
            # A directive may hold half of a pair.
            depth += 0 if code.lstrip().startswith("#") else code.count("{") - code.count("}")
    return "\n".join([*made, closed])


def _without_linkage(source: str) -> str:
    masked = mask(source)

    def plain(match: re.Match[str]) -> str:
        if not masked.startswith("extern", match.start()):
            return match[0]
        # The block's brackets stay.
        return "inline namespace c_linkage" + match[2] if match[2] else ""

    return _LINKAGE.sub(plain, source)


def _without_host_parts(source: str) -> str:
    lines = source.split("\n")
    codes = mask(source).split("\n")
    for at, code in enumerate(codes):
        if _HOST_PART.match(code) and not _turns(codes, at):
            lines[at] = f"#if 0  // {lines[at].strip()}"
    return "\n".join(lines)


def _turns(codes: list[str], start: int) -> bool:
    """Whether the conditional that opens on a line has another branch."""
    depth = 0
    for code in codes[start:]:
        if _OPENS.match(code):
            depth += 1
        elif _CLOSES.match(code):
            depth -= 1
            if depth == 0:
                return False
        elif depth == 1 and _TURNS.match(code):
            return True
    return False


def _first_code(codes: list[str]) -> int:
    """Find the line before which there are only comments and whole directives."""
    depth, safe, continued = 0, 0, False
    for at, code in enumerate(codes):
        text = code.strip()
        if not (continued or not text or text.startswith("#")):
            break
        if _OPENS.match(code):
            depth += 1
        elif _CLOSES.match(code):
            depth -= 1
        continued = text.endswith("\\")
        if depth == 0 and not continued:
            safe = at + 1
    return safe
