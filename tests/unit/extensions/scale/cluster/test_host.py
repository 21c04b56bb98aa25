"""What a host says of itself, and of a GPU of its that cannot join."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event
from typing import Any

import faults
import pytest
from cluster_doubles import Hosts

from tuner.extensions.scale.cluster.host import HostOptions, _keep_all, _Keeper, slot_infos
from tuner.extensions.scale.cluster.messages import read_info
from tuner.extensions.scale.cluster.slot import SlotOptions
from tuner.model.errors import DeviceError, InputError


def test_what_a_host_announces_is_read() -> None:
    (info,) = slot_infos(HostOptions("tcp://s:1", device="host", name="node-1.example"))
    assert read_info(asdict(info)) == info
    assert str(info) == "node-1.example/host (host CPU)"


@pytest.mark.parametrize("name", ["nöde", "a node", "a\n", "a" * 101])
def test_a_name_that_nobody_would_read_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"(?s)is no name for a host.*--name"):
        slot_infos(HostOptions("tcp://s:1", device="host", name=name))


def test_the_folder_of_a_worker_that_was_killed_goes_when_the_next_one_starts(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "cache"))
    words = ("worker", hosts.address, "--device", "host", "--name", "node", "--jobs", "1")

    @contextmanager
    def working(log: Path) -> Iterator[subprocess.Popen[str]]:
        with log.open("w") as output, faults.started(*words, folder=tmp_path, output=output) as one:
            try:
                faults.wait_until(lambda: "works for" in log.read_text(), "the worker", 60)
                yield one
            finally:
                one.kill()

    with working(tmp_path / "first.log"):
        (left,) = temporary.iterdir()
    assert left.exists()
    with working(tmp_path / "second.log") as process:
        (used,) = temporary.iterdir()
        assert used != left
        process.send_signal(signal.SIGINT)
        process.wait(20)
    assert list(temporary.iterdir()) == []


@dataclass
class Keeper:
    """Keeps a process until it is told to end, or fails at once."""

    name: str
    ends: Event
    failure: DeviceError | None = None

    def run(self) -> None:
        if self.failure is None:
            assert self.ends.wait(20)


def test_a_gpu_that_cannot_join_is_told_while_the_others_work() -> None:
    ends, said = Event(), list[str]()
    keepers: list[Any] = [
        Keeper("node/cuda:0", ends),
        Keeper("node/cuda:1", ends, DeviceError("the driver is too old")),
    ]

    def say(text: str) -> None:
        said.append(text)
        ends.set()  # the other one works until this was said

    with pytest.raises(DeviceError, match="the driver is too old"):
        _keep_all(keepers, say)
    assert said == ["node/cuda:1 is left out: the driver is too old"]


def test_the_only_one_that_cannot_join_is_the_error_alone() -> None:
    said: list[str] = []
    keeper: Any = Keeper("node/cuda:0", Event(), DeviceError("the driver is too old"))
    with pytest.raises(DeviceError):
        _keep_all([keeper], said.append)
    assert said == []


def test_a_process_that_cannot_be_started_is_the_error_and_no_good_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refused)
    (info,) = slot_infos(HostOptions("tcp://s:1", device="host", name="node"))
    options = SlotOptions("tcp://s:1", info, None, tmp_path, tmp_path, 60.0)
    said: list[str] = []
    with pytest.raises(DeviceError, match=r"process did not start: .*temporarily unavailable"):
        _keep_all([_Keeper(options, said.append)], said.append)
