"""A slot works for one run at a time, once for each request, and only for who has the token."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cluster_doubles import H200, TOKEN, StandIn, info_of, program

from tuner.extensions.scale.cluster.files import FileStore, kernel_bundle
from tuner.extensions.scale.cluster.messages import (
    CallDevice,
    Held,
    Keep,
    LacksFiles,
    Leave,
    OpenKernel,
    SlotInfo,
    StoreFiles,
    Work,
    WorkAnswer,
    WorkRequest,
    read_info,
)
from tuner.extensions.scale.cluster.signing import ForgedError, MessageSigner
from tuner.extensions.scale.cluster.slot import WorkerSlot
from tuner.model.errors import DeviceError, WorkerError
from tuner.model.kernel import KernelSpec

INFO = SlotInfo("s1", "node/cuda:0", "node", "cuda:0", H200, "1", "2", 1)


class Caller:
    """Asks a slot as the coordinator does."""

    def __init__(self, slot: WorkerSlot, spec: KernelSpec, device: StandIn) -> None:
        self.slot, self.device, self.number = slot, device, 0
        moved, self.bundle = kernel_bundle(spec)
        self.kernel = OpenKernel(moved, {}, self.bundle.files)

    def ask(
        self, work: Work, holder: str = "me", slot: str = "s1", token: str = TOKEN
    ) -> WorkAnswer:
        self.number += 1
        seal = MessageSigner(token)
        sealed = self.slot.answer(
            seal.close("request", WorkRequest(slot, holder, self.number, work))
        )
        answer: WorkAnswer = MessageSigner(TOKEN).open("answer", sealed)
        return answer

    def open(self, holder: str = "me") -> object:
        said = self.ask(self.kernel, holder).value
        if isinstance(said, LacksFiles):
            self.ask(StoreFiles(self.bundle.contents(said.digests)), holder)
            said = self.ask(self.kernel, holder).value
        return said


@pytest.fixture
def caller(spec: KernelSpec, tmp_path: Path) -> Caller:
    return made(spec, tmp_path, lease_s=60.0)


def made(spec: KernelSpec, folder: Path, lease_s: float) -> Caller:
    device = StandIn(info_of())
    seal, files = MessageSigner(TOKEN), FileStore(folder / "store")
    slot = WorkerSlot(INFO, seal, files, lease_s, opened=lambda *_: device)
    return Caller(slot, spec, device)


RUN = CallDevice("run", (program(),))


def test_a_kernel_is_opened_and_run(caller: Caller) -> None:
    assert caller.open() == info_of()
    assert caller.ask(RUN).value.measurement is not None
    assert caller.device.ran == ["one"]


def test_another_run_waits_until_the_slot_is_left(caller: Caller) -> None:
    caller.open()
    assert caller.open("another") == Held()
    refused = caller.ask(RUN, "another")
    assert isinstance(refused.raised, WorkerError)
    assert caller.ask(Leave(), "another").raised is None
    assert caller.open("another") == Held()
    caller.ask(Leave())
    assert caller.device.closed == 1
    assert caller.open("another") == info_of()


def test_a_kernel_whose_files_cannot_be_laid_out_leaves_the_slot_free(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller.open()
    caller.ask(Leave())
    with monkeypatch.context() as full:
        full.setattr(FileStore, "folder", lambda *_: (_ for _ in ()).throw(OSError("no space")))
        assert "no space" in str(caller.ask(caller.kernel).raised)
    assert caller.open("another") == info_of()


def test_who_is_silent_for_too_long_loses_the_slot(spec: KernelSpec, tmp_path: Path) -> None:
    caller = made(spec, tmp_path, lease_s=0.0)
    caller.open()
    assert caller.open("another") == info_of()
    assert caller.ask(Keep()).value is False
    assert isinstance(caller.ask(RUN).raised, WorkerError)
    assert caller.device.ran == []


def test_a_slot_at_work_is_not_opened_again_not_even_by_its_holder(caller: Caller) -> None:
    caller.open()
    caller.device.goes.clear()
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(caller.ask, RUN)
        assert caller.device.began.wait(30)
        assert caller.open() == Held()
        assert caller.device.closed == 0
        caller.device.goes.set()
        assert running.result(30).raised is None
    assert caller.open() == info_of()


def test_a_copy_of_a_request_is_not_run_again(caller: Caller) -> None:
    caller.open()
    caller.number += 1
    copied = MessageSigner(TOKEN).close("request", WorkRequest("s1", "me", caller.number, RUN))
    first, second = (
        MessageSigner(TOKEN).open("answer", caller.slot.answer(copied)) for _ in range(2)
    )
    assert first.raised is None
    assert isinstance(second.raised, ForgedError)
    assert caller.device.ran == ["one"]


def test_work_for_another_process_is_refused(caller: Caller) -> None:
    caller.open()
    assert isinstance(caller.ask(RUN, slot="s0").raised, ForgedError)
    assert caller.device.ran == []


def test_work_of_a_stranger_is_refused(caller: Caller) -> None:
    refused = caller.ask(caller.kernel, token="some other token of a stranger")  # noqa: S106
    assert isinstance(refused.raised, ForgedError)
    assert caller.device.spec is None


def test_what_the_device_raises_comes_back(caller: Caller) -> None:
    caller.open()
    caller.device.fails = [DeviceError("no GPU", remedy="buy one"), KeyError("ours")]
    assert "on node:" in str(caller.ask(RUN).raised)
    failed = caller.ask(RUN).raised
    assert isinstance(failed, DeviceError)
    assert failed.remedy == "buy one"


@pytest.mark.parametrize(
    "announced",
    [
        None,
        "text",
        {},
        {"slot": "s", "name": "\x1b[2J", "host": "h", "device": "d", "model": "m"},
        {**dict.fromkeys(INFO.__slots__, "x"), "compilers": 1, "model": "\x1b]0;title\a"},
        {**dict.fromkeys(INFO.__slots__, "x"), "compilers": "many"},
    ],
)
def test_a_worker_that_is_not_ours_is_not_taken_for_one(announced: object) -> None:
    assert read_info(announced) is None
