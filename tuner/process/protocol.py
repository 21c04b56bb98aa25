"""Messages between processes: a JSON object and raw bytes, with their lengths in front."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

# A cubin, a log or a few arguments; nothing that a process sends is longer.
MAX_MESSAGE_BYTES = 1 << 30
_LENGTHS = struct.Struct("!II")
_MAX_DESCRIPTORS = 4


class Message(NamedTuple):
    """What one process tells another; `descriptors` are open files that came along."""

    header: dict[str, Any]
    payload: bytes = b""
    descriptors: tuple[int, ...] = ()


def pack(header: dict[str, Any], payload: bytes = b"") -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    return b"".join((_LENGTHS.pack(len(text), len(payload)), text, payload))


def unpack(data: bytes) -> Message:
    """Decode one message; `ValueError` for what is none."""
    if len(data) < _LENGTHS.size:
        raise ValueError(f"a message of {len(data)} bytes")
    header_bytes, _ = _sizes(data[: _LENGTHS.size])
    return _decode_message(data[_LENGTHS.size :], header_bytes)


def send(
    connection: socket.socket,
    header: dict[str, Any],
    payload: bytes = b"",
    descriptors: Sequence[int] = (),
) -> None:
    data = memoryview(pack(header, payload))
    if descriptors:
        data = data[socket.send_fds(connection, [data], descriptors) :]
    connection.sendall(data)


def receive(connection: socket.socket, timeout_s: float | None = None) -> Message:
    """Wait for one message.

    Raises `EOFError` where the other side is gone, `TimeoutError` where the message is not complete
    in time, and `ValueError` for what is no message.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    connection.settimeout(timeout_s)
    start, descriptors, _, _ = socket.recv_fds(connection, _LENGTHS.size, _MAX_DESCRIPTORS)
    start += _exactly(connection, _LENGTHS.size - len(start), deadline) if start else b""
    if not start:
        raise EOFError
    header_bytes, total_bytes = _sizes(start)
    message = _decode_message(_exactly(connection, total_bytes, deadline), header_bytes)
    return message._replace(descriptors=tuple(descriptors))


def _sizes(start: bytes) -> tuple[int, int]:
    header_bytes, payload_bytes = _LENGTHS.unpack(start)
    total_bytes = header_bytes + payload_bytes
    if total_bytes > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {total_bytes} bytes")
    return header_bytes, total_bytes


def _decode_message(body: bytes | bytearray, header_bytes: int) -> Message:
    return Message(json.loads(body[:header_bytes]), bytes(memoryview(body)[header_bytes:]))


def _exactly(connection: socket.socket, count: int, deadline: float | None) -> bytearray:
    data = bytearray(count)
    left = memoryview(data)
    while left:
        if deadline is not None:
            connection.settimeout(max(deadline - time.monotonic(), 1e-3))
        received = connection.recv_into(left)
        if not received:
            raise EOFError
        left = left[received:]
    return data
