"""Find the files of a project that launch a file's kernels, or that define those it launches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tuner.model.errors import KernelError
from tuner.source.reader import source_text
from tuner.source.syntax import mask

_SUFFIXES = (".cu", ".cuh", ".cpp", ".cc", ".cxx", ".h", ".hpp")
_KERNEL = re.compile(r"\b__global__\b[^;{}]*?\b(?!__launch_bounds__)(\w+)\s*\([^;{}]*\{")
_LAUNCHED = re.compile(r"\b(\w+)\s*(?:<[^;{}()]*>)?\s*<<<|\bcudaLaunch\w*\(\s*&?\w+,\s*&?(\w+)")
_LAUNCHES = re.compile(r"<<<|[lL]aunch")
# a template of the host: whoever calls it may say its arguments
_TEMPLATE = re.compile(r"\btemplate\s*<[^;{}()]*>\s*(?!__)(?:(?!__)[\w:*&]+\s+[*&]?)+?(\w+)\s*\(")
# a header's folder `include` stands beside the sources
_LEVELS = 3
_MAX_FILES = 400
_MAX_BYTES = 1_000_000


def siblings(path: Path, known: Iterable[Path]) -> tuple[Path, ...]:
    """List what launches the kernels of `path`, or calls who does, or defines those it launches.

    None of `known` is among them. Looked through are its folder, then those around it, up to the
    root of a repository or to where its folder `include` is.
    """
    read = {file.resolve() for file in known}
    text = mask(source_text(path))
    kernels = {match[1] for match in _KERNEL.finditer(text)}
    callers = {m[1] for m in _TEMPLATE.finditer(text)} - kernels if "<<<" in text else None
    launched = {match[1] or match[2] for match in _LAUNCHED.finditer(text)} - kernels
    names = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(kernels)))})\b")
    called = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(callers or ())))})\s*[<(]")
    include = re.compile(rf"#\s*include\s*[<\"](?:[^>\"\n]*/)?{re.escape(path.name)}[>\"]")
    for folder in _folders(path):
        found = []
        for file in _files(folder):
            if file.resolve() in read:
                continue
            own = _text(file)
            if kernels:
                launches = _LAUNCHES.search(own) and names.search(own)
                calls = callers and called.search(own)
                uses = bool(launches or calls or include.search(own))
            else:
                uses = not launched.isdisjoint(m[1] for m in _KERNEL.finditer(mask(own)))
            found += [file] if uses else []
        if found:
            return tuple(found)
    return ()


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
