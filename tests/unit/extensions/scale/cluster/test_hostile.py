"""A worker or a scheduler that turned hostile runs nothing on the coordinator, and ends with it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    closing,
    contextmanager,
    suppress,
)
from dataclasses import asdict
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Event, Thread
from typing import Any

import pytest
from cluster_doubles import H200, Hosts, program
from distributed.comm.tcp import _add_frames_header
from distributed.comm.utils import to_frames
from distributed.core import Server
from distributed.protocol import Serialize, ToPickle

from tuner.extensions.scale.cluster.coordinator import Cluster
from tuner.extensions.scale.cluster.device import RemoteDevice
from tuner.extensions.scale.cluster.membership import Wanted
from tuner.extensions.scale.cluster.messages import (
    CallDevice,
    SlotInfo,
    code_version,
    cuda_version,
    read_answer,
)
from tuner.extensions.scale.cluster.network import require_dask
from tuner.model.cluster import ClusterSettings, Timeouts
from tuner.model.errors import ClusterLost, DeviceError
from tuner.model.kernel import KernelSpec
from tuner.model.trial import Status

GPU = Wanted(on_cpu=False)


class Bomb:
    """Leaves a folder where it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.place),)


@pytest.fixture
def bomb(tmp_path: Path) -> Iterator[Bomb]:
    bomb = Bomb(tmp_path / "exploded")
    yield bomb
    assert not bomb.place.exists()


def measured(times_us: str) -> str:
    rest = '"calls_per_replay": 1, "buffer_sets": 1'
    return (
        f'{{"value": {{"status": "correct", "measurement": {{"times_us": {times_us}, {rest}}}}}}}'
    )


ANSWERS: dict[str, Callable[[Bomb], Any]] = {
    "a pickle": ToPickle,
    "a serialized pickle": Serialize,
    "a pickle in a dict": lambda bomb: {"status": "OK", "result": ToPickle(bomb)},
    "an error with a pickle": lambda bomb: {
        "status": "uncaught-error",
        "exception": ToPickle(bomb),
        "traceback": ToPickle(bomb),
        "exception_text": "\x1b[2J",
    },
    "bytes": lambda _: bytes(1000),
    "no JSON": lambda _: "\0" * 1000,
    "deep JSON": lambda _: '{"value": ' + "[" * 100_000,
    "another answer": lambda _: '{"value": {"digests": ["../../x"]}}',
    "no value": lambda _: '{"value": null}',
    "not a number": lambda _: measured("[NaN]"),
    "less than no time": lambda _: measured("[-1.0]"),
    "a huge number": lambda _: measured("[1e400]"),
    "no status": lambda _: '{"value": {"status": "superb"}}',
    "the end of the cluster": lambda _: '{"kind": "ClusterLost", "message": "it is over"}',
    "an unknown error": lambda _: '{"kind": "SystemExit", "message": "0"}',
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_what_a_hostile_worker_answers_costs_its_place_alone(
    hosts: Hosts, spec: KernelSpec, said: list[str], bomb: Bomb, kind: str
) -> None:
    for name in ("one", "other"):
        hosts.add(name)

    async def answer(comm: Any, **_: Any) -> Any:
        return ANSWERS[kind](bomb)

    with closing(Cluster(hosts.settings(), said.append)) as cluster:
        device = RemoteDevice(cluster, GPU, spec, {}, said.append)
        hosts["one"].worker.handlers["tune"] = answer
        assert device.run(program()).status is Status.CORRECT
        assert device.host == "other"


def test_a_hostile_worker_gets_no_file_that_is_not_the_kernel_s(
    hosts: Hosts, spec: KernelSpec, said: list[str], bomb: Bomb
) -> None:
    asked: list[str] = []

    async def answer(comm: Any, pool: str, holder: str, work: bytes) -> str:
        asked.append(pool)
        return '{"value": {"digests": ["/etc/passwd"]}}'

    hosts.add("one").worker.handlers["tune"] = answer
    with (
        closing(Cluster(hosts.settings(), said.append)) as cluster,
        pytest.raises(DeviceError, match="asks for files that are no part of its work"),
    ):
        RemoteDevice(cluster, GPU, spec, {}, said.append)
    assert asked == ["other"]


@pytest.mark.parametrize("times_us", ["[]", "[[1.0]]", "[[1.0, 1.0], [1.0]]"])
def test_a_comparison_without_a_time_for_each_program_is_no_answer(times_us: str) -> None:
    compare = CallDevice("compare", ([program(), program("two")],))
    with pytest.raises(ValueError, match="value for each program"):
        read_answer(compare, f'{{"value": {{"paired": true, "times_us": {times_us}}}}}')


def hostile_member(last_seen: object = 1.0, **told: object) -> dict[str, Any]:
    info = SlotInfo("s", "one", "one", "cuda:0", H200, code_version(), cuda_version(), 1)
    return {"last_seen": last_seen, "tune": {**asdict(info), **told}}


IDENTITIES: dict[str, Callable[[Bomb], Any]] = {
    "a pickle": ToPickle,
    "a serialized pickle": lambda bomb: {"type": "Scheduler", "workers": Serialize(bomb)},
    "a pickle as a worker": lambda bomb: {"workers": {"tcp://127.0.0.1:1": ToPickle(bomb)}},
    "no workers": lambda _: {"type": "Scheduler"},
    "workers without names": lambda _: {"workers": [1, 2]},
    "a worker that is a number": lambda _: {"workers": {"tcp://127.0.0.1:1": 7}},
    "a time that is none": lambda bomb: {"workers": {"x": hostile_member() | {"last_seen": ""}}},
}


@pytest.mark.parametrize("kind", IDENTITIES)
def test_what_a_hostile_scheduler_says_ends_the_run_with_one_error(
    said: list[str], bomb: Bomb, kind: str
) -> None:
    with scheduler(lambda: IDENTITIES[kind](bomb)) as address, pytest.raises(ClusterLost):
        Cluster(ClusterSettings(address), said.append)


@pytest.mark.parametrize(
    "address", ["", "tcp://", "nowhere", "inproc://x/1/1", "tcp://127.0.0.1:1", "tls://127.0.0.1:x"]
)
def test_a_worker_of_a_hostile_scheduler_is_nobody(
    spec: KernelSpec, said: list[str], address: str
) -> None:
    members = {
        address: hostile_member(),
        "tcp://127.0.0.1:2": hostile_member(slot="t", name="\x1b[2J"),
    }
    with scheduler(lambda: {"workers": members}) as at:
        settings = ClusterSettings(at, timeouts=Timeouts(rejoin_s=2.0, connect_s=0.5))
        with (
            closing(Cluster(settings, said.append)) as cluster,
            pytest.raises(DeviceError) as refused,
        ):
            RemoteDevice(cluster, GPU, spec, {}, said.append)
    assert "\x1b" not in "".join([str(refused.value), *said])


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_a_pickle_before_the_first_answer_is_not_opened_either(
    said: list[str], bomb: Bomb, large: bool
) -> None:
    greeting: Any = [ToPickle(bomb), bytes(20_000_000)] if large else ToPickle(bomb)
    with greeter(greeting) as address, pytest.raises(DeviceError, match="no Dask scheduler"):
        Cluster(ClusterSettings(address, timeouts=Timeouts(connect_s=2.0)), said.append)


@contextmanager
def served(listen: Callable[[], AbstractAsyncContextManager[str]]) -> Iterator[str]:
    """Listen in a thread until the block ends; yield the address."""
    require_dask()
    began = Future[str]()

    async def serve() -> None:
        async with listen() as address:
            began.set_result(address)
            while not ends.is_set():
                await asyncio.sleep(0.02)

    ends = Event()
    thread = Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        yield began.result(20)
    finally:
        ends.set()
        thread.join()


def scheduler(identity: Callable[[], Any]) -> AbstractContextManager[str]:
    """Serve what takes itself for a scheduler; its first answer, without workers, is right."""

    async def answer(n_workers: int) -> Any:
        return identity() if n_workers else {"type": "Scheduler"}

    @asynccontextmanager
    async def listen() -> AsyncIterator[str]:
        async with Server({"identity": answer}) as server:
            await server.listen("tcp://127.0.0.1")
            yield server.address

    return served(listen)


@contextmanager
def greeter(greeting: Any) -> Iterator[str]:
    """Serve a greeting of Dask's kind to whoever connects."""
    require_dask()
    content = b"".join(map(bytes, _add_frames_header(asyncio.run(to_frames(greeting)))[0]))

    class Greet(BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                self.request.sendall(content)

    with ThreadingTCPServer(("127.0.0.1", 0), Greet) as server:
        Thread(target=server.serve_forever, args=(0.02,)).start()
        yield f"tcp://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
