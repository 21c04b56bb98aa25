"""What a source may include, and which files of the user's folders it depends on."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cache as once
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

from tuner.process.files import read_regular

# Found by every source, without a folder of the user's: `<tune/tensor.h>`.
OWN = Path(__file__).with_name("include")
# What the compiler calls the source in its messages.
UNIT_NAME = "kernel.cu"

# g++ takes blanks between the backslash and the end of the line, and a lone CR for one.
_SPLICE = re.compile(r"\\[ \t\v\f]*+(?:\r\n?|\n)")
_LINE_END = re.compile(r"\r\n?")
_LONE_RETURN = re.compile(r"\r(?!\n)")
_HASH = re.compile(r"#|%:|\?\?=")
_DIRECTIVE = re.compile(r"[^!-~\n]*+(?P<name>[A-Za-z0-9_\\]*+)")
# Far more than a name needs; a line of a million directives is looked at in pieces.
MAX_REST = 2000
_FILE = re.compile(r'[^!-~\n]*+(?P<file>"[^"\n]*+"|<[^>\n]*+>)?')
_POSITION = re.compile(r'[^!-~\n]*+([0-9]++[^!-~\n]*+)?(?P<file>"[^"\n]*+")?[0-9\s]*+(?://.*+)?')
_READING_PRAGMA = re.compile(r"\s*+(GCC\s++(dependency|pch_preprocess)|include_alias)\b")
_OPERATOR = re.compile(r"\b_Pragma\b")
# Its text, or a macro that makes one of what begins so: it can name no file.
_OPERAND = re.compile(
    r'\s*+\(\s*+(?:L?"(?P<text>(?:[^"\\\n]|\\.)*+)"\s*+\)|\w++\s*+\(\s*+(?:no)?unroll\b)'
)
_HAS = re.compile(r"__has_(?:include(?:_next)?|embed)\b")
_HAS_FILE = re.compile(r'\s*+\(\s*+(?P<file>"[^"\n]*+"|<[^>\n]*+>)\s*+\)')
_HAS_CALL = re.compile(_HAS.pattern + _HAS_FILE.pattern)
_ASKED = re.compile(r"(?:\bifn?def|\bdefined[ \t]*+\(?|\belifn?def)[ \t]*+$")
_NAMED = re.compile(r"(?:include(?:_next)?|define[ \t]++\w++)[ \t(]*+[\"<]([^\">\n]{1,4000}+)[\">]")
_ABSOLUTE = re.compile(r"[/\\]|[A-Za-z]:")


def refused_include(source: str, include_dirs: tuple[str, ...] = ()) -> str | None:
    """Return an error for an include that may reach outside the include folders, else None.

    The compiler quotes lines of what it includes: an absolute path or `..` in a generated source
    would show any file of this machine. Nothing is skipped that a comment or a string might only
    seem to hide, so such a line in a block comment is refused too. With `include_dirs`, so is a
    header in them, however deep, that leads out of them by its name or by a link.
    """
    if "\0" in source:
        line = source.count("\n", 0, source.index("\0")) + 1
        return f"{UNIT_NAME}({line}): error: the source has a NUL character"
    # Trigraphs depend on the language version, and a lone CR ends a line for g++ and is a blank
    # for NVRTC: every reading must be harmless.
    readings = {source, source.replace("??/", "\\")}
    readings |= {_LONE_RETURN.sub(" ", reading) for reading in readings}
    refused = next(filter(None, map(_refusal, sorted(readings))), None)
    if refused is not None:
        return refused
    inside = [Path(folder).resolve() for folder in include_dirs]
    for line, path in _find_includes(source, include_dirs):
        target = path.resolve()
        if not any(target.is_relative_to(folder) for folder in inside):
            return f"{UNIT_NAME}({line}): error: {path} is {target}, outside the include folders"
    return None


def _refusal(source: str) -> str | None:
    parts = _SPLICE.split(source)
    text = _LINE_END.sub("\n", "".join(parts))
    for position, problem in _problems(text):
        splices = list(accumulate(len(_LINE_END.sub("\n", part)) for part in parts[:-1]))
        line = text.count("\n", 0, position) + bisect_right(splices, position) + 1
        return f"{UNIT_NAME}({min(line, source.count(chr(10)) + 1)}): error: {problem}"
    return None


def _problems(text: str) -> Iterator[tuple[int, str]]:
    for match in _HASH.finditer(text):
        if _may_be_live(text, match.start()):
            directive = _DIRECTIVE.match(text, match.end())
            assert directive is not None
            rest = text[directive.end() : directive.end() + MAX_REST].partition("\n")[0]
            if problem := _problem(directive["name"], rest):
                yield match.start(), problem
    for match in _OPERATOR.finditer(text):
        operand = _OPERAND.match(text, match.end())
        if operand is None:
            yield match.start(), "_Pragma of a macro is not allowed: write its text"
        elif reading := _READING_PRAGMA.match(operand["text"] or ""):
            yield match.start(), f"`_Pragma` of {reading[1]} is not allowed: it reads a file"
    for match in _HAS.finditer(text):
        if _ASKED.search(text[max(match.start() - 20, 0) : match.start()]):
            continue
        file = _HAS_FILE.match(text, match.end())
        if file is None:
            yield match.start(), f"{match[0]} of a macro is not allowed: write the file's name"
        elif problem := _outside(match[0], file["file"]):
            yield match.start(), problem


def _may_be_live(text: str, position: int) -> bool:
    """Whether only blanks stand between this place and the line's start or a comment's end."""
    while position and not "!" <= text[position - 1] <= "~":
        position -= 1
        if text[position] == "\n":
            return True
    return position == 0 or text[position - 2 : position] == "*/"


def _problem(name: str, rest: str) -> str | None:
    if "\\" in name:
        return f"#{name}: an escape in a directive is not allowed"
    if not name and rest.startswith("/*"):
        return "a comment after # is not allowed"
    if name in ("import", "embed"):
        return f"#{name} is not allowed"
    if name in ("include", "include_next"):
        match = _FILE.match(rest)
        if match is None or match["file"] is None:
            return f"#{name} of a macro is not allowed: write the file's name"
        return _outside(f"#{name}", match["file"])
    if name == "line" or name.isdigit():
        # Messages quote the file that a line is said to be of.
        match = _POSITION.fullmatch(rest)
        if match is None:
            return f"#{name} needs a number and a file's name"
        return _outside(f"#{name}", match["file"]) if match["file"] else None
    if name == "pragma" and (match := _READING_PRAGMA.match(rest)):
        return f"`#pragma {match[1]}` is not allowed: it reads a file"
    if name in ("if", "elif") and '"' in _HAS_CALL.sub("", rest):
        return f"a text in #{name} is not allowed"
    return None


def _outside(directive: str, file: str) -> str | None:
    name = file[1:-1]
    if _ABSOLUTE.match(name.strip()):
        return f"{directive} of the absolute path {file} is not allowed"
    if ".." in re.split(r"[/\\]", name):
        return f"{directive} of {file} with `..` is not allowed: add its folder to include_dirs"
    return None


def _find_includes(source: str, include_dirs: tuple[str, ...]) -> Iterator[tuple[int, Path]]:
    """Find the files that a source can include from the folders, and from those files on.

    Each comes with the source's line that leads to it. What the compiler would skip (`#if`) is
    counted in: a superset is safe.
    """
    folders = [Path(folder) for folder in include_dirs]
    visited: set[Path] = set()
    waiting = []
    line, end = 1, 0
    for match in _NAMED.finditer(source) if folders else ():
        line += source.count("\n", end, match.start())
        end = match.start()
        waiting.append((line, match[1], folders))
    while waiting:
        line, name, places = waiting.pop()
        for path in (folder / name for folder in places):
            if path in visited or not _is_file(path):
                continue
            visited.add(path)
            yield line, path
            waiting += [(line, inner, [path.parent, *folders]) for inner in _content(path)[1]]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def include_digest(source: str, include_dirs: tuple[str, ...]) -> str:
    """Hash the files in the user's include folders that a source can reach, however deep."""
    if not include_dirs:
        return ""
    digests = {str(path): _content(path)[0] for _, path in _find_includes(source, include_dirs)}
    content = "\n".join(f"{digest} {path}" for path, digest in sorted(digests.items()))
    return hashlib.sha256(content.encode()).hexdigest()


def reachable_files(source: str, include_dirs: tuple[str, ...]) -> list[Path]:
    """List the files in the user's include folders that a source can reach, however deep."""
    return [path for _, path in _find_includes(source, include_dirs)]


def header_digest(source: str, include_dirs: Iterable[Path | str]) -> str:
    """Hash the same files by what they hold and what they are called, wherever they lie.

    "" where there is none. Directives of templates (`//% include "words.cuh"`) count as well, and
    so do our own headers.
    """
    folders = (*map(str, include_dirs), str(OWN))
    entries = set()
    for _, path in _find_includes(source, folders):
        # What lies outside of them is refused when it is compiled.
        own = (path.relative_to(folder) for folder in folders if path.is_relative_to(folder))
        name = next(own, path)
        entries.add(f"{_content(path)[0]} {name.as_posix()}")
    return hashlib.sha256("\n".join(sorted(entries)).encode()).hexdigest() if entries else ""


def _content(path: Path) -> tuple[str, tuple[str, ...]]:
    status = path.stat()
    return _read_file(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=4096)
def _read_file(path: Path, _changed_ns: int, _size: int) -> tuple[str, tuple[str, ...]]:
    data = read_regular(path)
    return hashlib.sha256(data).hexdigest(), tuple(_NAMED.findall(data.decode(errors="replace")))


@once
def own_headers() -> dict[str, str]:
    """Read our headers for kernels, by the name that a source includes them by."""
    files = sorted(path for path in OWN.rglob("*.h"))
    return {path.relative_to(OWN).as_posix(): path.read_text("utf-8") for path in files}
