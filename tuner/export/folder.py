"""Writing an export into a folder without touching what is not ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tuner.errors import InputError
from tuner.export.dispatch_document import FORMAT, sha

TABLE = "dispatch.json"
_SUFFIX = ".new"


def write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Write files by their names in a folder, and remove those of an earlier export.

    Only what an earlier export wrote, and nobody has changed since, is replaced or removed; other
    files stay as they are. Raises `InputError` where one of them is in the way, and where
    something cannot be written: then all that was there is still there.
    """
    try:
        before = _earlier(folder)
        _require_ours(folder, files, before)
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            _unfinished(path).write_text(text, encoding="utf-8")
        # The table last: with it the folder is ours.
        for name in sorted(files, key=lambda name: name == TABLE):
            _unfinished(folder / name).replace(folder / name)
        for name, digest in before.items():
            if name not in files and _is_ours(folder / name, digest):
                (folder / name).unlink()
    except OSError as error:
        raise InputError(
            f"the export cannot be written: {error.strerror or error}",
            path=folder,
            remedy="choose another folder with --to",
        ) from error
    finally:
        for name in files:
            _remove_quietly(_unfinished(folder / name))


def _unfinished(path: Path) -> Path:
    return path.with_name(path.name + _SUFFIX)


def _remove_quietly(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


def _earlier(folder: Path) -> Mapping[str, str]:
    """Read which files an earlier export wrote here, with their hashes."""
    path = folder / TABLE
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        return {}
    files = content.get("files")
    if not isinstance(files, dict):
        return {}
    names = {str(n): str(h) for n, h in files.items() if not Path(str(n)).is_absolute()}
    return {name: digest for name, digest in names.items() if ".." not in Path(name).parts}


def _require_ours(folder: Path, files: Mapping[str, str], before: Mapping[str, str]) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError("is not a folder", path=folder, remedy="name a folder with --to")
    foreign = [
        name
        for name in files
        if (folder / name).exists() or (folder / name).is_symlink()
        if not _is_ours(folder / name, before.get(name, ""))
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
    try:
        return sha(path.read_text(encoding="utf-8")) == digest
    except UnicodeDecodeError:
        return False
