"""Requests go straight to a worker, each by a connection that carries one at a time."""

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
from cluster_processes import free_port
from distributed.core import Server

from tuner.extensions.scale.cluster.membership import Connections, UnreachableError
from tuner.extensions.scale.cluster.network import require_dask, security_of
from tuner.extensions.scale.cluster.task import SlotPlugin
from tuner.model.cluster import TlsFiles

TIMEOUT_S = 20.0


@dataclass
class Echo:
    """A slot that answers with the request; those for its device wait while `goes` is not set."""

    goes: Event = field(default_factory=Event)
    began: Event = field(default_factory=Event)
    answered: list[bytes] = field(default_factory=list)

    def answer(self, sealed: bytes) -> bytes:
        if sealed.startswith(b"slow"):
            self.began.set()
            assert self.goes.wait(60)
        self.answered.append(sealed)
        return b"re: " + sealed


@dataclass
class StandInWorker:
    """As much of Dask's worker as the plugin uses."""

    executors: dict[str, Any] = field(default_factory=dict)
    handlers: dict[str, Any] = field(default_factory=dict)


@asynccontextmanager
async def serving(slot: Echo, tls: TlsFiles | None = None) -> AsyncIterator[Server]:
    require_dask()
    worker = StandInWorker()
    SlotPlugin(slot, compilers=1).setup(worker)
    arguments = security_of(tls, "worker").get_listen_args("worker")
    server = Server(worker.handlers)
    await server.listen("tls://127.0.0.1" if tls else "tcp://127.0.0.1", **arguments)
    try:
        yield server
    finally:
        slot.goes.set()
        await server.close()
        for pool in worker.executors.values():
            pool.shutdown(wait=False)


def connections_to(address: str, tls: TlsFiles | None = None) -> Connections:
    arguments = security_of(tls, "client").get_connection_args("client")
    return Connections(address, arguments, TIMEOUT_S)


Talk = Callable[[Echo, Server, Connections], Awaitable[None]]


def served(talk: Talk) -> Callable[[], None]:
    """Run a test in a loop of its own, with connections to a slot that is served."""

    async def over() -> None:
        slot = Echo()
        async with serving(slot) as server:
            await talk(slot, server, connections_to(server.address))

    return lambda: asyncio.run(over())


async def until(condition: Callable[[], object]) -> None:
    ends_s = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < ends_s
        await asyncio.sleep(0.02)


@served
async def test_a_connection_is_used_again(
    slot: Echo, server: Server, connections: Connections
) -> None:
    for text in (b"one", b"two", bytes(1 << 20)):
        assert await connections.call("device", text) == b"re: " + text
    assert len(server._comms) == 1
    connections.close()
    await until(lambda: not server._comms)


@served
async def test_what_is_quick_does_not_wait_for_what_is_slow(
    slot: Echo, server: Server, connections: Connections
) -> None:
    slow = asyncio.ensure_future(connections.call("device", b"slow"))
    await until(slot.began.is_set)
    for pool in ("other", "compile"):
        assert await connections.call(pool, b"quick") == b"re: quick"
    assert not slow.done()
    slot.goes.set()
    assert await slow == b"re: slow"


@served
async def test_what_nobody_waits_for_any_more_is_not_begun(
    slot: Echo, server: Server, connections: Connections
) -> None:
    slow = asyncio.ensure_future(connections.call("device", b"slow"))
    await until(slot.began.is_set)
    given_up = asyncio.ensure_future(connections.call("device", b"given up"))
    await until(lambda: len(server._comms) == 2)
    await connections.call("other", b"sent after it")
    given_up.cancel()
    await asyncio.sleep(0.2)
    slot.goes.set()
    await slow
    assert await connections.call("device", b"next") == b"re: next"
    assert slot.answered == [b"sent after it", b"slow", b"next"]


@served
async def test_a_worker_that_ends_gives_no_answer(
    slot: Echo, server: Server, connections: Connections
) -> None:
    slow = asyncio.ensure_future(connections.call("device", b"slow"))
    await until(slot.began.is_set)
    await server.close()
    with pytest.raises(OSError, match=r"(?i)closed"):
        await slow


@served
async def test_who_has_no_such_pool_gives_no_answer(
    slot: Echo, server: Server, connections: Connections
) -> None:
    with pytest.raises(OSError, match="is no answer"):
        await connections.call("none", b"text")  # type: ignore[arg-type]
    assert slot.answered == []


def test_a_worker_that_cannot_be_reached_was_sent_nothing() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    with pytest.raises(UnreachableError, match=address):
        asyncio.run(Connections(address, {}, 0.3).call("other", b"text"))


def test_certificates_hold_for_connections_as_well(tmp_path: Path) -> None:
    ours, strange = Authority(tmp_path / "ours"), Authority(tmp_path / "strange")
    tls = TlsFiles(ours.certificate, *ours.sign("ours"))
    other = TlsFiles(ours.certificate, *strange.sign("other"))

    async def calls() -> None:
        slot = Echo()
        async with serving(slot, tls) as server:
            assert server.address.startswith("tls://")
            assert await connections_to(server.address, tls).call("device", b"one") == b"re: one"
            refused = Connections(
                server.address, security_of(other, "client").get_connection_args("client"), 1.0
            )
            with pytest.raises((UnreachableError, OSError)):
                await refused.call("device", b"two")
            assert slot.answered == [b"one"]

    asyncio.run(calls())
