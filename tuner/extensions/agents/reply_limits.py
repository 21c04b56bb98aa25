"""What a model's server may send at most, and how long it may take, whatever it sends."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Timer
from typing import Any

import httpx2

from tuner.extensions.agents.endpoint import LateError, OversizedError

# Of one event of a stream, and of a reply that is read as a whole: what a reply may have of
# characters, each of them escaped.
MOST_PIECE_BYTES = 4 << 20
# Of a stream, where each token comes with a few hundred bytes around it.
MOST_STREAM_BYTES = 64 << 20
# Of an error or a redirect: what comes after is not read.
MOST_ERROR_BYTES = 64 << 10
MOST_REDIRECTS = 3

# Two line ends, of which the second may be the beginning of CR LF in the next bytes.
_EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?=[^\n])){2}")
_CONNECTED = (".connect_tcp.complete", ".connect_unix_socket.complete", ".start_tls.complete")


class ReplyGuard:
    """Bound the replies of one HTTP client, one after the other, by its hooks."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._problem: LateError | OversizedError | None = None
        self._streamed = False
        self._timer: Timer

    @property
    def hooks(self) -> dict[str, list[Callable[..., None]]]:
        return {"request": [self._watch], "response": [self._bound_response]}

    @contextmanager
    def reply(self, longest_s: float, *, streamed: bool) -> Iterator[None]:
        """Bound what is received meanwhile, redirects included.

        Raises `LateError` and `OversizedError` in the place of what the reading makes of them.
        """
        self._problem, self._streamed = None, streamed
        self._timer = self._start_timer(longest_s)
        try:
            yield
        except Exception:
            if self._problem is None:
                raise
            raise self._problem from None
        finally:
            self._timer.cancel()
            self._timer.join()
            self._socket = None

    def hurry(self, longest_s: float) -> None:
        """Give the reply that is being received no more time than this."""
        self._timer.cancel()
        self._timer = self._start_timer(longest_s)

    def _start_timer(self, longest_s: float) -> Timer:
        timer = Timer(longest_s, self._cut_connection, (longest_s,))
        timer.daemon = True
        timer.start()
        return timer

    def _watch(self, request: httpx2.Request) -> None:
        if self._problem is not None:  # the SDK asks again, which takes time of the same reply
            raise self._problem
        request.extensions = {**request.extensions, "trace": self._trace}

    def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith(_CONNECTED):
            self._socket = info["return_value"].get_extra_info("socket")
            if self._problem is not None:  # since then
                raise self._problem

    def _cut_connection(self, longest_s: float) -> None:
        # Nothing else ends a read to which a byte comes now and then.
        self._problem = self._problem or LateError(longest_s)
        if self._socket is not None:
            with suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _bound_response(self, response: httpx2.Response) -> None:
        # What counts is what comes out of a compressed reply.
        coding = response.headers.pop("content-encoding", "identity")
        assert isinstance(response.stream, httpx2.SyncByteStream)
        inner = httpx2.Response(
            200,
            headers={"content-encoding": coding},
            stream=response.stream,
            request=response.request,
        )
        response.stream = _Stream(self._bound_pieces(response, inner), inner.close)

    def _bound_pieces(self, response: httpx2.Response, inner: httpx2.Response) -> Iterator[bytes]:
        total = piece = 0
        last = b""
        for data in inner.iter_bytes():
            if self._problem is not None:
                raise self._problem
            total += len(data)
            if not response.is_success and total > MOST_ERROR_BYTES:
                yield data[: MOST_ERROR_BYTES - total]
                return
            joined = last + data
            ends = [match.end() for match in _EVENT_END.finditer(joined)]
            if ends and self._streamed and response.is_success:
                piece = len(joined) - ends[-1]
            else:
                piece += len(data)
            last = joined[-3:]
            for most, found in ((MOST_PIECE_BYTES, piece), (MOST_STREAM_BYTES, total)):
                if found > most:
                    self._problem = OversizedError(most)
                    raise self._problem
            yield data


class _Stream(httpx2.SyncByteStream):
    def __init__(self, pieces: Iterator[bytes], close: Callable[[], None]) -> None:
        self._pieces = pieces
        self._close = close

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def close(self) -> None:
        self._close()
