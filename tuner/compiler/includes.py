"""What a source may include, and which files of the user's folders it depends on."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path

# What the compiler calls the source in its messages.
UNIT_NAME = "kernel.cu"

_SPLICE = re.compile(r"\\\r?\n")
_GAP = r"(?:[ \t\v\f\r]|/\*.*?\*/)*"
_DIRECTIVE = re.compile(
    rf"(?:\#|%:|\?\?=){_GAP}(?P<name>include_next|include|import|embed)\b{_GAP}"
    r'(?P<file>"[^"\n]*"|<[^>\n]*>)?',
    re.DOTALL,
)
_NAMED = re.compile(
    r'(?:include\w*[ \t(]*|define[ \t]+\w+[ \t]+)["<]([^">\n]+)[">]',
)
_PRINTABLE = re.compile(r"[!-~]")
_ABSOLUTE = re.compile(r"[/\\]|[A-Za-z]:")


def refused_include(source: str) -> str | None:
    """Return an error for an include that may reach outside the include folders, else None.

    The compiler quotes lines of what it includes: an absolute path or `..` in a generated source
    would show any file of this machine. Nothing is skipped that a comment or a string might only
    seem to hide, so such a line in a block comment is refused too.
    """
    if "\0" in source:
        line = source.count("\n", 0, source.index("\0")) + 1
        return f"{UNIT_NAME}({line}): error: the source has a NUL character"
    # Trigraphs depend on the language version, so both readings must be harmless.
    readings = {source, source.replace("??/", "\\")}
    return next(filter(None, map(_refusal, sorted(readings))), None)


def _refusal(source: str) -> str | None:
    parts = _SPLICE.split(source)
    text = "".join(parts)
    splices = list(accumulate(len(part) for part in parts[:-1]))
    for match in _DIRECTIVE.finditer(text):
        problem = _problem(match["name"], match["file"])
        if problem and _may_be_live(text, match.start()):
            line = text.count("\n", 0, match.start()) + bisect_right(splices, match.start()) + 1
            return f"{UNIT_NAME}({line}): error: {problem}"
    return None


def _may_be_live(text: str, position: int) -> bool:
    start = max(text.rfind("\n", 0, position), text.rfind("\r", 0, position)) + 1
    before = text[start:position]
    return "*/" in before or not _PRINTABLE.search(before)


def _problem(directive: str, file: str | None) -> str | None:
    if directive in ("import", "embed"):
        return f"#{directive} is not allowed"
    if file is None:
        return f"#{directive} of a macro is not allowed: write the file's name"
    name = file[1:-1]
    if _ABSOLUTE.match(name.strip()):
        return f"#{directive} of the absolute path {file} is not allowed"
    if ".." in re.split(r"[/\\]", name):
        return f"#{directive} of {file} with `..` is not allowed: add its folder to include_dirs"
    return None


class IncludeDigest:
    """Hash the files in the user's include folders that a source can reach, however deep."""

    def __init__(self) -> None:
        self._files: dict[Path, tuple[tuple[int, int], str, tuple[str, ...]]] = {}

    def of(self, source: str, include_dirs: tuple[str, ...]) -> str:
        """Return one hash over all of them; equal when none of them changed.

        What the compiler would skip (`#if`) is counted in: a superset is safe.
        """
        if not include_dirs:
            return ""
        folders = [Path(folder) for folder in include_dirs]
        found: dict[str, str] = {}
        waiting = [(name, folders) for name in _NAMED.findall(source)]
        while waiting:
            name, places = waiting.pop()
            for path in (folder / name for folder in places):
                if str(path) in found or not path.is_file():
                    continue
                digest, names = self._read(path)
                found[str(path)] = digest
                waiting += [(inner, [path.parent, *folders]) for inner in names]
        content = "\n".join(f"{digest} {path}" for path, digest in sorted(found.items()))
        return hashlib.sha256(content.encode()).hexdigest()

    def _read(self, path: Path) -> tuple[str, tuple[str, ...]]:
        status = path.stat()
        stamp = (status.st_mtime_ns, status.st_size)
        known = self._files.get(path)
        if known is None or known[0] != stamp:
            data = path.read_bytes()
            names = tuple(_NAMED.findall(data.decode(errors="replace")))
            known = (stamp, hashlib.sha256(data).hexdigest(), names)
            self._files[path] = known
        return known[1], known[2]
