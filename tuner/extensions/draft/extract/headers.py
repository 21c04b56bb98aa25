"""Find a header by its name alone, anywhere in the project of the file that includes it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from itertools import accumulate
from operator import eq
from pathlib import Path, PurePosixPath

from tuner.model.errors import KernelError
from tuner.source.reader import source_text

_SUFFIXES = (".cuh", ".h", ".hpp", ".hxx", ".hh", ".inl", ".cu")
# what lies at the top of a project that is no repository, such as an unpacked archive
_TOPS = ("setup.py", "pyproject.toml", "CMakeLists.txt", "LICENSE", "LICENSE.txt", "LICENSE.md")
# how far above a file a project's top is looked for
_LEVELS = 10
_MAX_FILES = 100_000
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
    found = [
        path for path in _headers(top).get(parts[-1], ()) if path.parts[-len(parts) :] == parts
    ]
    if not found:
        return None
    own = includer.resolve().parts
    shared = {path: sum(accumulate(map(eq, own, path.parts), min)) for path in found}
    nearest = [path for path in found if shared[path] == max(shared.values())]
    return nearest[0] if len(nearest) == 1 or _are_same(nearest) else None


def _are_same(paths: list[Path]) -> bool:
    try:
        return len({source_text(path) for path in paths}) == 1
    except KernelError:
        return False


def _top(folder: Path) -> Path | None:
    # a repository, else the outermost folder that looks like a project's
    above = [folder, *folder.parents][:_LEVELS]
    repository = next((place for place in above if (place / ".git").exists()), None)
    if repository is not None:
        return repository
    tops = [place for place in above if any((place / name).is_file() for name in _TOPS)]
    return tops[-1] if tops else None


@cache
def _headers(top: Path) -> Mapping[str, tuple[Path, ...]]:
    found: dict[str, tuple[Path, ...]] = {}
    count = 0
    for folder, folders, files in os.walk(top):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in _SKIPPED)
        count += len(files)
        if count > _MAX_FILES:
            break
        for file in sorted(files):
            if file.endswith(_SUFFIXES):
                found[file] = (*found.get(file, ()), Path(folder, file))
    return found
