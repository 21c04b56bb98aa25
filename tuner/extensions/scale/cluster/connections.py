"""Calls straight to a worker, past the scheduler: Dask's own connections, held open and reused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tuner.extensions.scale.cluster.messages import TOPIC, Pool

if TYPE_CHECKING:
    from distributed.comm import Comm


class UnreachableError(Exception):
    """Report a worker that takes no connection from here: nothing was sent to it."""


class Connections:
    """Connections to one worker; each carries one call at a time.

    Used in one event loop. `arguments` are what Dask's `connect` needs for TLS.
    """

    def __init__(self, address: str, arguments: Mapping[str, Any], timeout_s: float) -> None:
        self._address, self._arguments, self._timeout_s = address, arguments, timeout_s
        self._idle: list[Comm] = []
        self._closed = False

    async def call(self, pool: Pool, sealed: bytes) -> bytes:
        """Send a sealed request for one of the worker's pools, and wait for the sealed answer.

        Raises `UnreachableError` where nothing was sent, `OSError` where no answer came of it.
        """
        comm = await self._connect()
        try:
            await comm.write({"op": TOPIC, "pool": pool, "sealed": sealed})
            said = await comm.read()
            if not isinstance(said, bytes):
                raise OSError("what came back is no answer")
        except BaseException:
            comm.abort()  # whose answer comes next is not known
            raise
        if self._closed:
            comm.abort()
        else:
            self._idle.append(comm)
        return said

    def close(self) -> None:
        """End what is idle now, and what is in use as soon as it is not."""
        self._closed = True
        while self._idle:
            self._idle.pop().abort()

    async def _connect(self) -> Comm:
        from distributed.comm import connect

        while self._idle:
            if not (comm := self._idle.pop()).closed():
                return comm
        try:
            return await connect(self._address, timeout=self._timeout_s, **self._arguments)
        except (OSError, TimeoutError) as error:
            raise UnreachableError(f"{self._address}: {error}") from error
