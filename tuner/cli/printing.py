"""What is printed: texts from outside reach a terminal without a character that it would obey."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any
from unicodedata import category


class _Shown(dict[int, str]):
    """By its code, how each character is printed that is not: `\\x1b`."""

    def __missing__(self, code: int) -> str:
        one = chr(code)
        kept = one in "\n\t" or one.isprintable() or category(one) == "Zs"
        self[code] = one if kept else one.encode("unicode_escape").decode()
        return self[code]


_SHOWN = _Shown()


def visible(text: str) -> str:
    """Write out control characters, directions of writing and halves of characters."""
    return text if text.isprintable() else text.replace("\r\n", "\n").translate(_SHOWN)


class CleanStream:
    """A text stream that writes what is visible; Rich, which writes escapes, passes it by."""

    # Else click would look for the bytes below.
    encoding, errors = "utf-8", "backslashreplace"

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        while hasattr(stream, "rich_proxied_file"):
            stream = stream.rich_proxied_file
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        """Write a text's visible form, in characters that the stream has."""
        codec = getattr(self._stream, "encoding", None) or self.encoding
        self._stream.write(visible(text).encode(codec, self.errors).decode(codec))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def clean_output() -> None:
    """Print from now on through clean streams."""
    streams: Any = map(CleanStream, (sys.stdout, sys.stderr))
    sys.stdout, sys.stderr = streams
