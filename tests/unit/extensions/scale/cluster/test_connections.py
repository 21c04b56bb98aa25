"""A worker answers beside what Dask has it do, each kind of work in a pool of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from certificates import Authority
from distributed.core import Server

from tuner.extensions.scale.cluster.network import make_connections, require_dask, security_of
from tuner.extensions.scale.cluster.slot import SlotServer
from tuner.model.cluster import TlsFiles


@dataclass
class Echo:
    """A slot that answers with the request; those for its device wait while `goes` is not set."""

    goes: Event = field(default_factory=Event)
    began: Event = field(default_factory=Event)
    answered: list[bytes] = field(default_factory=list)

    def answer(self, holder: str, work: bytes) -> str:
        if work.startswith(b"slow"):
            self.began.set()
            assert self.goes.wait(60)
        self.answered.append(work)
        return f"re: {work.decode()}"


@asynccontextmanager
async def serving(
    slot: Echo, tls: TlsFiles | None = None, theirs: TlsFiles | None = None
) -> AsyncIterator[tuple[Server, Callable[[str, bytes], Awaitable[Any]]]]:
    """Serve a slot; yield the server and what calls it as a coordinator does."""
    require_dask()
    answering = SlotServer(slot, compilers=1)  # type: ignore[arg-type]
    security = security_of(theirs or tls, "client")
    async with (
        Server({"tune": answering.call}) as server,
        make_connections(security, "client", 1.0 if theirs else 20.0) as connections,
    ):
        arguments = security_of(tls, "worker").get_listen_args("worker")
        await server.listen("tls://127.0.0.1" if tls else "tcp://127.0.0.1", **arguments)

        async def call(pool: str, work: bytes) -> Any:
            return await connections(server.address).tune(pool=pool, holder="me", work=work)

        try:
            yield server, call
        finally:
            slot.goes.set()
            for pool in answering.executors.values():
                pool.shutdown(wait=False)


async def until(condition: Callable[[], object]) -> None:
    ends_s = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < ends_s
        await asyncio.sleep(0.02)


def test_what_is_quick_does_not_wait_for_what_is_slow() -> None:
    async def calls(slot: Echo) -> None:
        async with serving(slot) as (_, call):
            slow = asyncio.ensure_future(call("device", b"slow"))
            await until(slot.began.is_set)
            for pool in ("other", "compile"):
                assert await call(pool, b"quick") == "re: quick"
            assert not slow.done()
            slot.goes.set()
            assert await slow == "re: slow"

    asyncio.run(calls(Echo()))


def test_what_nobody_waits_for_any_more_is_not_begun() -> None:
    async def calls(slot: Echo) -> None:
        async with serving(slot) as (server, call):
            slow = asyncio.ensure_future(call("device", b"slow"))
            await until(slot.began.is_set)
            given_up = asyncio.ensure_future(call("device", b"given up"))
            await until(lambda: len(server._comms) == 2)
            await call("other", b"sent after it")
            given_up.cancel()
            await asyncio.sleep(0.2)
            slot.goes.set()
            await slow
            assert await call("device", b"next") == "re: next"
            assert slot.answered == [b"sent after it", b"slow", b"next"]

    asyncio.run(calls(Echo()))


def test_certificates_hold_for_connections_as_well(tmp_path: Path) -> None:
    ours, strange = Authority(tmp_path / "ours"), Authority(tmp_path / "strange")
    tls = TlsFiles(ours.certificate, *ours.sign("ours"))
    other = TlsFiles(ours.certificate, *strange.sign("other"))

    async def calls(slot: Echo) -> None:
        async with serving(slot, tls) as (server, call):
            assert server.address.startswith("tls://")
            assert await call("device", b"one") == "re: one"
        async with serving(slot, tls, other) as (_, call):
            with pytest.raises(OSError):
                await call("device", b"two")
        assert slot.answered == [b"one"]

    asyncio.run(calls(Echo()))
