"""Write a file in one step, so that nobody ever reads half of it."""

from __future__ import annotations

from pathlib import Path
from threading import get_native_id


def atomic_write(path: Path, content: str | bytes) -> None:
    """Write a file under another name and put it in its place.

    Raises `OSError` where it cannot, with what was there before left as it was.
    """
    unfinished = path.with_name(f".{path.name}.{get_native_id()}")
    try:
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
