"""Calls to a cluster: who is asked, what is lost, and what then happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster_doubles import H200, Host, Hosts, StandInTool, program
from distributed.core import ConnectionPool
from faults import wait_until

from tuner.compiler.base import CompileRequest
from tuner.device.base import ComparisonRounds, Counted, Outcome
from tuner.device.reference import load_reference
from tuner.extensions.scale.cluster.compiler import RemoteCompiler
from tuner.extensions.scale.cluster.coordinator import MOST_LOSSES, Cluster, SlotLostError
from tuner.extensions.scale.cluster.device import RemoteDevice, RemoteGpu
from tuner.extensions.scale.cluster.membership import MemberSlot, Wanted
from tuner.extensions.scale.cluster.messages import CPU_MODEL, code_version, cuda_version
from tuner.model.errors import (
    ClusterLost,
    DeviceError,
    DeviceLost,
    InputError,
    KernelError,
    WorkerError,
)
from tuner.model.kernel import KernelSpec
from tuner.model.trial import Correctness, Status

GPU = Wanted(on_cpu=False)
Opens = Callable[..., RemoteDevice]


@contextmanager
def connected(hosts: Hosts, said: list[str], **seconds: float) -> Iterator[Cluster]:
    cluster = Cluster(hosts.settings(**seconds), said.append)
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def device_on(hosts: Hosts, spec: KernelSpec, said: list[str]) -> Iterator[Opens]:
    """Open devices of one run; what they hold is given back at the end."""
    with connected(hosts, said) as cluster:

        def opened(wanted: Wanted = GPU) -> RemoteDevice:
            return RemoteDevice(cluster, wanted, spec, {}, said.append)

        yield opened


def test_a_program_runs_on_a_host(hosts: Hosts, device_on: Opens) -> None:
    host = hosts.add("one")
    device = device_on()
    assert device.info.name == H200
    assert device.info.environment["host"] == "one"
    assert device.run(program()).status is Status.CORRECT
    assert device.compare([program(), program("two")], rounds=3).times_us == ((10.0, 10.0),) * 3
    assert list(device.rank([program()], rounds=3)) == [[10.0]] * 3
    assert device.bits(program(), 7) == device.bits(program(), 7) != device.bits(program("two"), 7)
    assert host.device.spec is not None
    assert host.device.spec.reference.is_file()
    device.close()
    assert host.device.closed == 1
    assert hosts.relayed == 0


def test_what_is_wrong_with_a_program_is_said_of_the_files_here(
    hosts: Hosts, spec: KernelSpec, device_on: Opens
) -> None:
    host = hosts.add("one")
    device = device_on()
    assert host.device.spec is not None
    there, here = (f"{one.source}:7: it is so" for one in (host.device.spec, spec))
    outcome = Outcome(Status.LAUNCH, there, correctness=Correctness(passed=False, reason=there))
    host.device.run = host.device.bits = lambda *_, **__: outcome  # type: ignore[method-assign]
    rounds = ComparisonRounds(((1.0, 1.0),), paired=True, faults=("", there))
    host.device.compare = lambda *_, **__: rounds  # type: ignore[method-assign]
    for found in (device.run(program()), device.bits(program(), 7)):
        assert found.correctness is not None
        assert (found.reason, found.correctness.reason) == (here, here)
    assert device.compare([program(), program()], rounds=1).faults == ("", here)


def test_what_a_tool_finds_is_said_of_the_files_here(
    hosts: Hosts, spec: KernelSpec, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = hosts.add("one")
    with connected(hosts, said) as cluster:
        device = RemoteGpu(cluster, GPU, spec, {}, said.append)
        assert host.device.spec is not None
        there, here = (f"{one.source}: it is so" for one in (host.device.spec, spec))
        monkeypatch.setattr(StandInTool, "watch", lambda *_: [Outcome(Status.LAUNCH, there)])
        monkeypatch.setattr(StandInTool, "count", lambda *_: Counted(reason=there))
        (tool,) = device.watchers().tools
        assert [one.reason for one in tool.watch([program()])] == [here]
        assert device.counters().count(program(), ()).reason == here


def test_two_devices_of_a_run_have_a_slot_each(hosts: Hosts, device_on: Opens) -> None:
    for name in ("one", "two"):
        hosts.add(name)
    first, second = device_on(), device_on()
    assert {first.host, second.host} == {"one", "two"}


def test_a_slot_that_is_given_back_while_others_are_kept_does_not_end_that(
    hosts: Hosts, spec: KernelSpec, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        hosts.add(name)
    kept: list[str] = []
    with connected(hosts, said, keep_s=0.0) as cluster:

        def keep(slot: MemberSlot) -> Coroutine[Any, Any, None]:
            kept.append(slot.info.name)
            cluster.release(slot, None)
            return asyncio.sleep(0)

        monkeypatch.setattr(cluster, "_keep", keep)
        for _ in range(2):
            RemoteDevice(cluster, GPU, spec, {}, said.append)
        wait_until(lambda: sorted(kept) == ["one", "two"], "both to be kept")
        assert not cluster._watching.done()


def test_another_run_gets_no_slot_that_is_held(
    hosts: Hosts, spec: KernelSpec, said: list[str], device_on: Opens
) -> None:
    hosts.add("one")
    first = device_on()
    with connected(hosts, said, rejoin_s=0.0) as cluster:
        with pytest.raises(DeviceLost, match=r"every GPU .* is held by another run: one"):
            RemoteDevice(cluster, GPU, spec, {}, said.append)
        first.close()
        assert RemoteDevice(cluster, GPU, spec, {}, said.append).host == "one"


def test_who_waits_for_a_slot_is_told_what_for_and_how_long(
    hosts: Hosts, spec: KernelSpec, said: list[str], device_on: Opens
) -> None:
    hosts.add("one")
    device_on()
    with connected(hosts, said, rejoin_s=1.5) as cluster, pytest.raises(DeviceLost):
        RemoteDevice(cluster, GPU, spec, {}, said.append)
    waiting = "every GPU of the cluster is held by another run: one; waiting up to 1.5 s for one"
    assert said == [waiting]


def test_what_is_lost_with_a_host_runs_on_another(
    hosts: Hosts, said: list[str], device_on: Opens
) -> None:
    for name in ("one", "two"):
        hosts.add(name)
    device = device_on()
    hosts["one"].device.goes.clear()
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(device.run, program())
        assert hosts["one"].device.began.wait(30)
        hosts.end("one")
        assert running.result(60).status is Status.CORRECT
    assert device.host == "two"
    assert hosts["two"].device.ran == ["one"]
    assert "the work of one goes on with two" in said


def test_the_last_device_waits_for_a_host_that_comes(hosts: Hosts, device_on: Opens) -> None:
    hosts.add("one")
    device = device_on()
    hosts.end("one")
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(device.run, program())
        hosts.add("late")
        assert running.result(60).status is Status.CORRECT
    assert device.host == "late"


def connecting_but_to(host: Host, *, of_scheduler: bool = False) -> Callable[..., Any]:
    """Connect as Dask does, but not to this host, unless the scheduler does and may."""
    connect = ConnectionPool.connect

    async def connected(pool: ConnectionPool, address: str, timeout: float | None = None) -> Any:
        if address == host.worker.address and not (of_scheduler and pool.server):
            raise OSError("no way")
        return await connect(pool, address, timeout)

    return connected


def test_a_host_that_takes_no_connection_is_asked_by_the_scheduler(
    hosts: Hosts, device_on: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = hosts.add("one")
    monkeypatch.setattr(ConnectionPool, "connect", connecting_but_to(host, of_scheduler=True))
    device = device_on()
    assert device.run(program()).status is Status.CORRECT
    assert host.device.ran == ["one"]
    assert hosts.relayed > 0
    device.close()
    assert host.device.closed == 1


def test_what_a_host_does_that_was_cut_off_counts_for_nothing(
    hosts: Hosts, said: list[str], device_on: Opens
) -> None:
    for name in ("one", "two"):
        hosts.add(name)
    device = device_on()
    late = hosts["one"].device
    late.goes.clear()
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(device.run, program())
        assert late.began.wait(30)
        hosts.cut_off("one")
        assert running.result(60).status is Status.CORRECT
    assert device.host == "two"
    assert hosts["two"].device.ran == ["one"]
    late.goes.set()
    wait_until(lambda: late.ran, "the late answer")
    assert device.run(program("next")).status is Status.CORRECT
    assert hosts["two"].device.ran == ["one", "next"]
    assert any("one (NVIDIA H200) gave no answer" in line for line in said)


def test_where_others_are_left_a_lost_device_says_so_at_once(
    hosts: Hosts, device_on: Opens
) -> None:
    for name in ("one", "two"):
        hosts.add(name)
    first = device_on(Wanted(on_cpu=False, name="one"))
    second = device_on(Wanted(on_cpu=False, name="two"))
    hosts.add("spare")
    hosts.end("one")
    with pytest.raises(DeviceLost, match=r"one .*left the cluster"):
        first.run(program())
    assert second.run(program()).status is Status.CORRECT


def test_a_late_answer_is_ignored(hosts: Hosts, spec: KernelSpec, said: list[str]) -> None:
    hosts.add("one")
    hosts.add("two")
    with connected(hosts, said, run_s=1.0) as cluster:
        device = RemoteDevice(cluster, GPU, spec, {}, said.append)
        late = hosts["one"].device
        late.goes.clear()
        assert device.run(program()).status is Status.CORRECT
        assert device.host == "two"
        late.goes.set()
        wait_until(lambda: late.ran, "the late answer")
        assert device.run(program("next")).status is Status.CORRECT
        assert hosts["two"].device.ran == ["one", "next"]
        assert any("gave no answer within 1 s" in line for line in said)


def test_a_host_whose_verifier_dies_is_opened_again(hosts: Hosts, device_on: Opens) -> None:
    host = hosts.add("one")
    device = device_on()
    host.device.fails = [WorkerError("the process that verifies results ended")]
    assert device.run(program()).status is Status.CORRECT
    assert host.device.closed == 1


def test_a_program_that_no_worker_survives_is_blamed(hosts: Hosts, device_on: Opens) -> None:
    host = hosts.add("one")
    device = device_on()
    host.device.fails = [WorkerError("it fell")] * MOST_LOSSES
    outcome = device.run(program())
    assert outcome.status is Status.LAUNCH
    assert outcome.reason.count("one: it fell") == MOST_LOSSES
    assert device.run(program("next")).status is Status.CORRECT


def test_an_error_of_the_device_is_nobody_s_loss(hosts: Hosts, device_on: Opens) -> None:
    host = hosts.add("one")
    device = device_on()
    host.device.fails = [DeviceError("not enough memory for N=64")]
    with pytest.raises(DeviceError, match="not enough memory"):
        device.run(program())
    assert host.device.closed == 0


RAISES = "raise ValueError(__file__)\n"


def refused_reference(path: Path) -> KernelError:
    with pytest.raises(KernelError) as refused:
        load_reference(path)
    return refused.value


def test_a_reference_that_raises_is_named_where_it_lies_here(
    hosts: Hosts, spec: KernelSpec, device_on: Opens
) -> None:
    host = hosts.add("one")
    spec.reference.write_text(RAISES, encoding="utf-8")
    device, there = device_on(), host.device.spec
    assert there is not None
    host.device.fails = [refused_reference(there.reference)]
    with pytest.raises(KernelError) as refused:
        device.run(program())
    here = refused_reference(spec.reference)
    assert (refused.value.path, refused.value.line) == (spec.reference, 1)
    assert str(refused.value) == str(here)


def test_a_reference_that_raises_when_it_is_opened_is_named_where_it_lies_here(
    hosts: Hosts,
    spec: KernelSpec,
    device_on: Opens,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = hosts.add("one")
    spec.reference.write_text(RAISES, encoding="utf-8")
    monkeypatch.setattr(host.slot, "_opened", lambda device, of, _: load_reference(of.reference))
    with pytest.raises(KernelError) as refused:
        device_on()
    assert str(refused.value) == str(refused_reference(spec.reference))


def test_without_its_scheduler_everything_ends_with_one_error(
    hosts: Hosts, device_on: Opens
) -> None:
    host = hosts.add("one")
    device = device_on()
    host.device.goes.clear()
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(device.run, program())
        assert host.device.began.wait(30)
        hosts.end_scheduler()
        with pytest.raises(ClusterLost, match=r"scheduler at tcp://.* is gone"):
            running.result(60)
        host.device.goes.set()
    with pytest.raises(ClusterLost):
        device.run(program())


def test_a_slot_is_given_back_though_the_scheduler_has_just_died(
    hosts: Hosts, spec: KernelSpec, said: list[str]
) -> None:
    hosts.add("one")
    with connected(hosts, said) as cluster:
        device = RemoteDevice(cluster, GPU, spec, {}, said.append)
        cluster._watching.cancel()  # or it may be first to notice
        hosts.end("one")
        hosts.end_scheduler()
        device.close()
        assert cluster.taken == 0
        with pytest.raises(ClusterLost):
            cluster.fitting(GPU, wait_s=0.0)


def test_hosts_of_other_versions_are_left_out(
    hosts: Hosts, said: list[str], device_on: Opens
) -> None:
    hosts.add("old", version="0.0.9 (abc)")
    hosts.add("cuda", cuda="12.0.1")
    with pytest.raises(DeviceError) as refused:
        device_on()
    assert f"old has tune 0.0.9 (abc), and this is {code_version()}" in refused.value.message
    assert f"NVRTC 12.0.1, and here it is {cuda_version()}" in refused.value.message
    hosts.add("same")
    assert device_on().host == "same"
    assert sum("Warning: old has tune 0.0.9" in line for line in said) == 1


def test_models_do_not_mix(hosts: Hosts, device_on: Opens) -> None:
    hosts.add("big", model="NVIDIA B200")
    hosts.add("small")
    hosts.add("none", model=CPU_MODEL, device="host")
    with pytest.raises(InputError, match=r"(?s)of 2 models: NVIDIA B200, NVIDIA H200.*--gpu-model"):
        device_on()
    assert device_on(Wanted(on_cpu=False, model="b200")).host == "big"
    assert device_on(Wanted(on_cpu=True)).host == "none"


def test_a_model_that_is_not_there_is_named(
    hosts: Hosts, spec: KernelSpec, said: list[str]
) -> None:
    hosts.add("small")
    with connected(hosts, said, rejoin_s=0.0) as cluster:
        wanted = Wanted(on_cpu=False, model="B300")
        with pytest.raises(DeviceLost, match=r"no GPU 'B300' to measure on; it has NVIDIA H200"):
            RemoteDevice(cluster, wanted, spec, {}, said.append)


@pytest.mark.parametrize("wanted", [GPU, replace(GPU, name="stranger")])
def test_who_does_not_wait_is_told_of_one_that_is_refused_too(
    hosts: Hosts, spec: KernelSpec, said: list[str], wanted: Wanted
) -> None:
    hosts.add("stranger", garbled=True)
    told = r"(?s)stranger.* no answer that can be read.*end that worker"
    with connected(hosts, said) as cluster, pytest.raises(DeviceError, match=told):
        RemoteDevice(cluster, wanted, spec, {}, said.append, wait_s=0.0)


def test_the_one_host_that_is_named_is_told_of_where_others_are_right(
    hosts: Hosts, spec: KernelSpec, said: list[str]
) -> None:
    hosts.add("one")
    for name in ("stranger", "unknown"):
        hosts.add(name, garbled=True)
    with connected(hosts, said) as cluster:

        def opened(name: str) -> RemoteDevice:
            return RemoteDevice(cluster, replace(GPU, name=name), spec, {}, said.append, wait_s=0.0)

        with pytest.raises(DeviceError):
            opened("unknown")
        assert opened("one").host == "one"
        with pytest.raises(DeviceError, match="no answer that can be read") as refused:
            opened("stranger")
    assert "unknown" not in refused.value.message


def test_a_host_that_nobody_reaches_is_told_of_at_once(
    hosts: Hosts, spec: KernelSpec, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = hosts.add("one")
    monkeypatch.setattr(ConnectionPool, "connect", connecting_but_to(host))
    with (
        connected(hosts, said) as cluster,
        pytest.raises(
            DeviceError, match=r"(?s)one .*neither from here nor by the scheduler.*reach"
        ),
    ):
        RemoteDevice(cluster, GPU, spec, {}, said.append)


def test_a_source_that_is_lost_with_worker_after_worker_does_not_compile(
    hosts: Hosts, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts.add("one")
    request = CompileRequest("__global__ void f() {}", ("f",), "sm_90a")
    with connected(hosts, said) as cluster:
        ask, lost = cluster.ask, list[str]()

        async def losing(slot: MemberSlot, *arguments: Any) -> Any:
            if len(lost) == MOST_LOSSES:
                return await ask(slot, *arguments)
            lost.append(slot.info.name)
            raise SlotLostError(f"{slot.info} has left the cluster")

        monkeypatch.setattr(cluster, "ask", losing)
        compiler = RemoteCompiler(cluster, on_cpu=False)
        result = compiler.submit(request).result()
        assert "compiling was lost with 3 workers, one after the other: one (" in result.error
        assert compiler.submit(request).result().ok, "the run goes on"


def test_the_tools_of_a_gpu_are_those_of_its_host(
    hosts: Hosts, spec: KernelSpec, said: list[str]
) -> None:
    hosts.add("one")
    with connected(hosts, said) as cluster:
        gpu = RemoteGpu(cluster, GPU, spec, {}, said.append)
        assert gpu.capabilities >= {"sanitizer", "counters"}
        watchers = gpu.watchers()
        assert watchers.compile_options == ("-lineinfo",)
        (tool,) = watchers.tools
        assert tool.kind == "memcheck"
        assert [one.status for one in tool.watch([program(), program("two")])] == [
            Status.CORRECT,
            Status.CORRECT,
        ]
        assert gpu.counters().refusal() == "no permission"
        assert gpu.counters().count(program(), ["cycles"]).reason == "cycles of one"
        gpu.require_energy()
        assert gpu.idle_energy(seconds=1.5).seconds == 1.5
        gpu.close()
    assert hosts["one"].device.closed == 3
