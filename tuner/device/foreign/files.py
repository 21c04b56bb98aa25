"""Reading a stranger's JSON file, packed or not, without letting it fill the memory."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

from tuner.device.recording import MAX_BYTES
from tuner.errors import DeviceError

_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"


def is_foreign(path: Path) -> bool:
    """Tell a file that is plain or gzip-compressed JSON; our own recordings are neither."""
    try:
        with path.open("rb") as file:
            start = file.read(64)
    except OSError:
        return False
    return start.startswith(_GZIP) or start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")


def load_json(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object, closed or as a crash of Kernel Tuner left it.

    Raises `DeviceError` where the file is missing, too large, or no such thing.
    """
    try:
        text = _text(path)
        content = _parsed(text)
    except FileNotFoundError as error:
        raise DeviceError("there is no such file", path=path) from error
    except IsADirectoryError as error:
        raise DeviceError("is a folder", path=path, remedy="name a file in it") from error
    except (OSError, EOFError, zlib.error, RecursionError, ValueError) as error:
        raise DeviceError(
            f"cannot be read: {error}",
            path=path,
            remedy="Kernel Tuner's caches and T4 results are JSON, plain or packed with gzip; "
            "recordings of `tune record` end in .json.xz",
        ) from error
    if not isinstance(content, dict):
        raise DeviceError(
            f"holds a JSON {type(content).__name__}, not an object",
            path=path,
            remedy="a Kernel Tuner cache has the key `cache`, T4 results have `results`",
        )
    return content


def _text(path: Path) -> str:
    with path.open("rb") as file:
        packed = file.read(len(_XZ))
    if packed.startswith(_XZ):
        raise ValueError("it is packed with xz")
    # Asked for one byte too many, `read` unpacks no more than that of a bomb.
    with gzip.open(path) if packed.startswith(_GZIP) else path.open("rb") as stream:
        content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"over {MAX_BYTES} bytes when unpacked")
    return content.decode("utf-8-sig")


def _parsed(text: str) -> Any:
    """Read JSON; where the end is missing, close it after the last entry that is whole.

    Kernel Tuner appends an entry a line and closes its cache only at the end of the run: after a
    crash the closing braces lack, and the last line may be cut.
    """
    text = text.strip()
    try:
        return json.loads(text)
    except ValueError as error:
        whole = (text, text.rpartition("\n")[0].rstrip())
        for candidate in whole:
            try:
                return json.loads(candidate.removesuffix(",") + "}\n}")
            except ValueError:
                continue
        raise error
