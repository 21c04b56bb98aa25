"""Opening all GPUs of a cluster: whom a run has, and what is told of the others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

pytest.importorskip("distributed")

from cluster_doubles import Hosts

from tuner.device.base import Device
from tuner.extensions.scale.cluster.coordinator import Cluster
from tuner.extensions.scale.cluster.device import RemoteDevice
from tuner.extensions.scale.cluster.membership import Wanted
from tuner.extensions.scale.cluster_run import _group
from tuner.model.errors import DeviceError, KernelError
from tuner.model.kernel import KernelSpec

GPU = Wanted(on_cpu=False)
REFUSED = "gave no answer that can be read"


@pytest.fixture
def opened(hosts: Hosts, said: list[str], spec: KernelSpec) -> Callable[[str], Device]:
    """Open what `--gpus` asks for."""

    def open_all(gpus: str = "all") -> Device:
        with closing(Cluster(hosts.settings(rejoin_s=0.0), said.append)) as cluster:

            def one(wanted: Wanted, wait_s: float | None) -> RemoteDevice:
                return RemoteDevice(cluster, wanted, spec, {}, said.append, wait_s=wait_s)

            with closing(_group(cluster, GPU, gpus, one, said.append)) as device:
                return device

    return open_all


def test_each_worker_that_is_refused_is_told_of_once(
    hosts: Hosts, said: list[str], opened: Callable[..., Device]
) -> None:
    hosts.add("old", version="0.0.9 (abc)")
    for name in ("another", "stranger"):
        hosts.add(name, garbled=True)
    hosts.add("one")
    assert opened().info.members == 1
    for name in ("old", "another", "stranger"):
        (told,) = [line for line in said if name in line]
        assert told.startswith(f"Warning: {name}")


def test_all_that_are_refused_are_in_the_error_where_nobody_is_left(
    hosts: Hosts, said: list[str], opened: Callable[..., Device]
) -> None:
    hosts.add("old", version="0.0.9 (abc)")
    for name in ("another", "stranger"):
        hosts.add(name, garbled=True)
    with pytest.raises(DeviceError) as refused:
        opened()
    assert all(
        f"{name} (NVIDIA H200) {REFUSED}" in refused.value.message
        for name in ("another", "stranger")
    )
    assert "old has tune 0.0.9 (abc)" in refused.value.message
    assert not said


def test_all_that_fail_are_in_the_error_where_nobody_is_left(
    hosts: Hosts, opened: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(text: str, *_: object) -> Device:
        raise DeviceError(f"{text} has no driver", remedy="install one")

    for name in ("one", "two"):
        monkeypatch.setattr(hosts.add(name).slot, "_opened", fails)
    with pytest.raises(DeviceError) as refused:
        opened()
    assert refused.value.message.count("cuda:0 has no driver") == 2
    assert refused.value.remedy == "install one"


def test_where_one_cannot_open_the_kernel_the_others_are_given_back(
    hosts: Hosts, opened: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks(*_: object) -> Device:
        raise KernelError("cannot be imported: ModuleNotFoundError")

    monkeypatch.setattr(hosts.add("one").slot, "_opened", lacks)
    two = hosts.add("two")
    with pytest.raises(KernelError, match="ModuleNotFoundError"):
        opened()
    assert two.device.closed == 1


def test_why_there_are_fewer_than_were_asked_for_is_told(
    hosts: Hosts, said: list[str], opened: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(text: str, *_: object) -> Device:
        raise DeviceError("no driver")

    hosts.add("one")
    monkeypatch.setattr(hosts.add("two").slot, "_opened", fails)
    with pytest.raises(DeviceError, match="2 are asked for, and the cluster has 1 that are free"):
        opened("2")
    assert [line for line in said if "two" in line] == [
        "Warning: left out: two (NVIDIA H200): no driver"
    ]
