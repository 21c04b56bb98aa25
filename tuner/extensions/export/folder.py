"""Write an export's files into a folder, and know them again the next time."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.model.errors import InputError
from tuner.process.files import atomic_write_all, folders_made, read_regular, remove_empty

FORMAT = "tune dispatch"
VERSION = 1
TABLE = "dispatch.json"
_MOST_FILES = 10_000


def with_table(
    files: Mapping[str, str | bytes], content: Mapping[str, Any]
) -> dict[str, str | bytes]:
    """Add the table, from its content and the hashes of all other files."""
    digests = {name: _sha(text) for name, text in files.items()}
    made = {"format": FORMAT, "version": VERSION, **content, "files": digests}
    return {**files, TABLE: json.dumps(made, indent=2) + "\n"}


def _sha(content: str | bytes) -> str:
    data = content.encode() if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()


def as_argument(folder: str) -> str:
    """Write a folder as a command takes it; pip would look for a bare name in its index."""
    bare = os.sep not in folder and not folder.startswith(".")
    return shlex.quote(f".{os.sep}{folder}" if bare else folder)


def write_folder(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files by their names in a folder, and remove those of an earlier export.

    Only what an earlier export wrote, and nobody has changed since, is replaced or removed, and its
    folders where nothing else is in them; other files stay as they are. Raises `InputError` where
    one of them is in the way, and where something cannot be written: then all that was there is
    still there, and nothing else.
    """
    try:
        before = _earlier(folder)
        _require_ours(folder, files, before)
        # The table last: with it the folder is ours.
        ordered = sorted(files, key=lambda name: name == TABLE)
        made = {folder / name: files[name] for name in ordered}
        with folders_made(made):
            atomic_write_all(made)
        gone = [
            name
            for name, digest in before.items()
            if name not in files and _is_ours(folder / name, digest)
        ]
        for name in gone:
            (folder / name).unlink()
        remove_empty({folder / path for name in gone for path in Path(name).parents[:-1]})
    except OSError as error:
        raise InputError(
            f"the export cannot be written: {error.strerror or error}",
            path=folder,
            remedy="choose another folder with --to",
        ) from error


def _earlier(folder: Path) -> Mapping[str, str]:
    path = folder / TABLE
    if not path.is_file():
        return {}
    try:
        content = json.loads(read_regular(path).decode())
    except (ValueError, RecursionError):
        return {}
    files = content.get("files") if isinstance(content, dict) else None
    if not isinstance(files, dict) or content.get("format") != FORMAT or len(files) > _MOST_FILES:
        return {}
    return {name: str(digest) for name, digest in files.items() if _stays_in(folder, name)}


def _stays_in(folder: Path, name: str) -> bool:
    """Tell whether a name leads to a place in the folder, by no link on its way."""
    path = Path(name)
    linked = any((folder / one).is_symlink() for one in path.parents[:-1])
    return not (path.is_absolute() or ".." in path.parts or linked)


def _require_ours(
    folder: Path, files: Mapping[str, str | bytes], before: Mapping[str, str]
) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError("is not a folder", path=folder, remedy="name a folder with --to")
    foreign = [
        name
        for name in files
        if (folder / name).exists() or (folder / name).is_symlink() or not _stays_in(folder, name)
        if not (_stays_in(folder, name) and _is_ours(folder / name, before.get(name, "")))
        if not (name == TABLE and before)
    ]
    if foreign:
        raise InputError(
            f"{', '.join(foreign)}: not written by tune, or changed since",
            path=folder,
            remedy="nothing was written; move it away, or choose another folder with --to",
        )


def _is_ours(path: Path, digest: str) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    return _sha(read_regular(path)) == digest
