"""How the pool and a worker talk: a JSON object and raw bytes, with their lengths in front."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

READ_BYTES = 1 << 20
# A cubin, or a log; nothing that a worker sends is longer.
MAX_MESSAGE_BYTES = 1 << 30
_LENGTHS = struct.Struct("!II")

Message = tuple[dict[str, Any], bytes]


def packed(content: dict[str, Any], payload: bytes = b"") -> bytes:
    """Encode one message."""
    text = json.dumps(content, separators=(",", ":")).encode()
    return b"".join((_LENGTHS.pack(len(text), len(payload)), text, payload))


class Unpacker:
    """Put messages together from whatever pieces arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Take the next piece and yield the messages that it completes.

        Raises `ValueError` for what is no message.
        """
        self._buffer += data
        while len(self._buffer) >= _LENGTHS.size:
            text_size, payload_size = _LENGTHS.unpack_from(self._buffer)
            text_end = _LENGTHS.size + text_size
            end = text_end + payload_size
            if end > MAX_MESSAGE_BYTES:
                raise ValueError(f"a message of {end} bytes")
            if len(self._buffer) < end:
                return
            content = json.loads(self._buffer[_LENGTHS.size : text_end])
            payload = bytes(self._buffer[text_end:end])
            del self._buffer[:end]
            yield content, payload
