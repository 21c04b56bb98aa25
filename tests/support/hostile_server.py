"""A model's server that means harm: it answers every request with bytes that never seem to end."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import repeat

MIB = 1 << 20
GIB = 1 << 30
Bytes = Iterator[bytes]


class HostileServer:
    """Answer each request, of which `answer` gets path and body, with what it yields."""

    def __init__(
        self, answer: Callable[[str, bytes], Bytes], secure: ssl.SSLContext | None = None
    ) -> None:
        self._answer, self._secure = answer, secure
        self._listening = socket.create_server(("127.0.0.1", 0))
        port = self._listening.getsockname()[1]
        self.url = f"https://localhost:{port}/v1" if secure else f"http://127.0.0.1:{port}/v1"
        self.requests: list[str] = []
        self.sent_bytes = 0
        self._ended = threading.Event()

    def __enter__(self) -> HostileServer:
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, accepted: socket.socket) -> None:
        with suppress(OSError), ExitStack() as stack:  # a client that hangs up is right
            connection = stack.enter_context(accepted)
            if self._secure is not None:
                connection = stack.enter_context(
                    self._secure.wrap_socket(accepted, server_side=True)
                )
            file = connection.makefile("rb")
            head = b"".join(iter(file.readline, b"\r\n")).decode()
            sizes = [line for line in head.lower().splitlines() if "content-length:" in line]
            body = file.read(int(sizes[0].split(":")[1])) if sizes else b""
            self.requests.append(head)
            for piece in self._answer(head.split()[1], body):
                if self._ended.is_set():
                    return
                connection.sendall(piece)
                self.sent_bytes += len(piece)


def head(status: int = 200, kind: str = "text/event-stream", *more: str) -> bytes:
    lines = (f"HTTP/1.1 {status} so", f"Content-Type: {kind}", "Connection: close", *more)
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def chunk(delta: object, **more: object) -> bytes:
    """Write one event of a stream."""
    choices = [{"index": 0, "delta": delta, "finish_reason": None}]
    return b"data: " + json.dumps({"choices": choices, **more}).encode() + b"\n\n"


def filled(start: bytes, count: int = GIB) -> Bytes:
    """Begin so and go on for ever, as it seems."""
    yield start
    yield from repeat(b"x" * MIB, count // MIB)
