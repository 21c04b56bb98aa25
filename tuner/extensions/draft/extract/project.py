"""Files of a project: a header by its name, and what launches or defines a file's kernels."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import accumulate
from operator import eq
from pathlib import Path, PurePosixPath

from tuner.model.errors import KernelError
from tuner.source.reader import source_text
from tuner.source.syntax import mask

_INCLUDED_SUFFIXES = (".cuh", ".h", ".hpp", ".hxx", ".hh", ".inl", ".cu")
# what lies at the top of a project that is no repository, such as an unpacked archive
_TOPS = ("setup.py", "pyproject.toml", "CMakeLists.txt", "LICENSE", "LICENSE.txt", "LICENSE.md")
# how far above a file a project's top is looked for
_MOST_LEVELS = 10
_MOST_FILES = 100_000
# built copies of headers, and what others wrote
_SKIPPED = frozenset(("build", "dist", "node_modules", "__pycache__", "site-packages"))


def in_project(name: str, includer: Path) -> Path | None:
    """Find the header that an #include can only mean, where no folder of a build tells; else None.

    Of several that end in `name` it is the one that shares most folders with the includer; None
    where two do and say different things.
    """
    top = _top(includer.resolve().parent)
    parts = PurePosixPath(name).parts
    if top is None or not parts or ".." in parts:
        return None
    named = _list_headers(top).get(parts[-1], ())
    paths = [path for path in named if path.parts[-len(parts) :] == parts]
    if not paths:
        return None
    own = includer.resolve().parts
    shared = {path: sum(accumulate(map(eq, own, path.parts), min)) for path in paths}
    nearest = [path for path in paths if shared[path] == max(shared.values())]
    return nearest[0] if len(nearest) == 1 or _are_same(nearest) else None


def _are_same(paths: list[Path]) -> bool:
    try:
        return len({source_text(path) for path in paths}) == 1
    except KernelError:
        return False


def _top(folder: Path) -> Path | None:
    # a repository, else the outermost folder that looks like a project's
    above = [folder, *folder.parents][:_MOST_LEVELS]
    repositories = [place for place in above if (place / ".git").exists()]
    tops = [place for place in above if any((place / name).is_file() for name in _TOPS)]
    return next(iter([*repositories, *reversed(tops)]), None)


@cache
def _list_headers(top: Path) -> Mapping[str, tuple[Path, ...]]:
    found: dict[str, tuple[Path, ...]] = {}
    count = 0
    for folder, folders, files in os.walk(top):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in _SKIPPED)
        count += len(files)
        if count > _MOST_FILES:
            break
        for file in sorted(files):
            if file.endswith(_INCLUDED_SUFFIXES):
                found[file] = (*found.get(file, ()), Path(folder, file))
    return found


_SUFFIXES = (".cu", ".cuh", ".cpp", ".cc", ".cxx", ".h", ".hpp")
_HEADER_SUFFIXES = (".cuh", ".h", ".hpp")
_KERNEL = re.compile(r"\b__global__\b[^;{}]*?\b(?!__launch_bounds__)(\w+)\s*\([^;{}]*\{")
_LAUNCHED = re.compile(r"\b(\w+)\s*(?:<[^;{}()]*>)?\s*<<<|\bcudaLaunch\w*\(\s*&?\w+,\s*&?(\w+)")
_LAUNCHES = re.compile(r"<<<|[lL]aunch")
# a template of the host: whoever calls it may say its arguments
_TEMPLATE = re.compile(r"\btemplate\s*<[^;{}()]*>\s*(?!__)(?:(?!__)[\w:*&]+\s+[*&]?)+?(\w+)\s*\(")
# a header's folder `include` stands beside the sources
_LEVELS = 3
_MAX_FILES = 400
_MAX_BYTES = 1_000_000


def siblings(path: Path, paths: Iterable[Path]) -> tuple[Path, ...]:
    """List files that launch the kernels of `path`, call a launcher, or define what it launches.

    None of `known` is among them, nor a copy of `path`, which launches kernels of its own. Looked
    through are its folder, then those around it, up to the root of a repository or to where its
    folder `include` is.
    """
    read = {file.resolve() for file in paths}
    text = mask(source_text(path))
    kernels = {match[1] for match in _KERNEL.finditer(text)}
    callers = {m[1] for m in _TEMPLATE.finditer(text)} - kernels if "<<<" in text else None
    launched = {match[1] or match[2] for match in _LAUNCHED.finditer(text)} - kernels
    names = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(kernels)))})\b")
    called = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(callers or ())))})\s*[<(]")
    include = includes_of([path])
    for folder in _folders(path):
        found = []
        texts = {file: _text(file) for file in _files(folder) if file.resolve() not in read}
        for file, own in texts.items():
            if kernels:
                launches = _LAUNCHES.search(own) and names.search(own)
                calls = callers and called.search(own)
                ours = (launches or calls) and not kernels <= _kernels(own)
                uses = bool(ours or include.search(own))
            else:
                uses = not launched.isdisjoint(_kernels(own))
            found += [file] if uses else []
        if found:
            return (*found, *_including(path, found, texts))
    return ()


def _kernels(text: str) -> set[str]:
    return {match[1] for match in _KERNEL.finditer(mask(text))}


def includes_of(files: Iterable[Path]) -> re.Pattern[str]:
    """Match the #include of any of these headers."""
    names = "|".join(re.escape(file.name) for file in files)
    return re.compile(rf"#\s*include\s*[<\"](?:[^>\"\n]*/)?(?:{names})[>\"]")


def _including(path: Path, paths: list[Path], texts: Mapping[Path, str]) -> Iterator[Path]:
    # what a header goes by may stand before the #include of the header that #includes it
    include = includes_of([path])
    headers = (file for file in paths if file.suffix in _HEADER_SUFFIXES)
    above = [file for file in headers if include.search(texts[file])]
    known = {path, *paths}
    while above:
        include = includes_of(above)
        above = [file for file, own in texts.items() if file not in known and include.search(own)]
        known.update(above)
        yield from above


def _folders(path: Path) -> Iterator[Path]:
    # as it was named, where that is possible
    yield path.parent
    above = path.resolve().parents[: _LEVELS + 1]
    tops = [n for n, place in enumerate(above) if (place / ".git").exists()]
    tops = tops or [n + 1 for n, place in enumerate(above[:-1]) if place.name == "include"]
    yield from above[1 : tops[0] + 1] if tops else ()


def _files(folder: Path) -> Iterator[Path]:
    # breadth first, so that a large tree does not hide what is near
    pending, count = [folder], 0
    while pending and count < _MAX_FILES:
        try:
            entries = sorted(pending.pop(0).iterdir())
        except OSError:
            continue
        count += len(entries)
        pending += [e for e in entries if e.is_dir() and not e.name.startswith((".", "build"))]
        yield from (entry for entry in entries if entry.suffix in _SUFFIXES and entry.is_file())


def _text(file: Path) -> str:
    try:
        return source_text(file) if file.stat().st_size <= _MAX_BYTES else ""
    except (OSError, KernelError):
        return ""
