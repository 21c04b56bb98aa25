"""Files that are written whole or not at all, and files of strangers, read without a surprise."""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO

# A name may have 255 bytes; this one gets a prefix and a suffix.
_NAME_CHARACTERS = 48
# Larger than any source, recording or table of ours.
MOST_BYTES = 64 << 20


def atomic_write(path: Path, content: str | bytes) -> None:
    """Put a new file in a place, or leave the place as it was and raise `OSError`.

    What is there goes, a link too: never what it leads to. Only devices and pipes stay, and are
    refused.
    """
    atomic_write_all({path: content})


def atomic_write_all(files: Mapping[Path, str | bytes]) -> None:
    """Write several files as `atomic_write` does; the first is put in its place once all exist."""
    unfinished: dict[Path, Path] = {}
    try:
        for path, content in files.items():
            _require_replaceable(path)
            name = f".{path.name[:_NAME_CHARACTERS]}.{secrets.token_hex(8)}"
            # Nobody can have put a link there: the name is new, and links are refused.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(path.with_name(name), flags, 0o666)
            unfinished[path] = path.with_name(name)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
        for path in files:
            unfinished[path].replace(path)
            del unfinished[path]
    finally:
        for left in unfinished.values():
            left.unlink(missing_ok=True)


@contextmanager
def folders_made(files: Iterable[Path]) -> Iterator[None]:
    """Make the folders of files that are written meanwhile; if that fails, those made go again."""
    created: list[Path] = []
    try:
        for folder in dict.fromkeys(path.parent for path in files):
            missing = [*takewhile(lambda place: not place.is_dir(), (folder, *folder.parents))]
            for place in reversed(missing):
                place.mkdir(exist_ok=True)
                created.append(place)
        yield
    except BaseException:
        remove_empty(created)
        raise


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders that are empty, those within others first; leave all others as they are."""
    for folder in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):
        with suppress(OSError):
            folder.rmdir()


def _require_replaceable(path: Path) -> None:
    # A user may name /dev/stdout or a pipe, which must not become files.
    try:
        mode = path.stat().st_mode
    except OSError:  # nothing is there, or a link to nothing
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def open_log(path: Path) -> BinaryIO:
    """Open a file of ours to append to; `OSError` where a link or anything else is in its place."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.fdopen(os.open(path, flags, 0o666), "ab")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def open_regular(path: Path, *, follow: bool = True) -> BufferedReader:
    """Open a regular file for reading; `OSError` for anything else, at once.

    A pipe without a writer would never answer, and a device such as /dev/zero never ends. Where
    `follow` is false a link is refused as well.
    """
    more = os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    try:
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | more))  # noqa: SIM115
    except ValueError as error:  # a NUL in its name
        raise OSError(errno.EINVAL, "not a file's name") from error
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise OSError(errno.ELOOP, "is a link", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def read_regular(path: Path, most: int = MOST_BYTES, *, follow: bool = True) -> bytes:
    """Read a regular file of at most `most` bytes; `OSError` for anything else, at once."""
    with open_regular(path, follow=follow) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"over {most:,} bytes", str(path))
    return content


def parse_json(text: str) -> Any:
    """Parse JSON; raise `ValueError` also for half a character in it, which nothing can write."""
    parsed = json.loads(text)
    if "\\ud" in text.lower():
        json.dumps(parsed, ensure_ascii=False).encode()
    return parsed


def read_text(path: Path, most: int = MOST_BYTES, *, follow: bool = True) -> str:
    """Read a regular file of UTF-8, with a byte-order mark or without; what is not becomes `�`."""
    return read_regular(path, most, follow=follow).decode("utf-8-sig", errors="replace")
