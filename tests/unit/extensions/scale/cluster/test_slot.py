"""A slot works for one run at a time, and says in JSON what came of it."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path
from typing import Any

import pytest
from cluster_doubles import H200, StandIn, info_of, program

from tuner.device.base import DeviceInfo, Outcome, amd_info
from tuner.extensions.scale.cluster.files import FileStore, kernel_bundle
from tuner.extensions.scale.cluster.messages import (
    CallDevice,
    Keep,
    LacksFiles,
    Leave,
    OpenKernel,
    SlotInfo,
    StoreFiles,
    Work,
    read_answer,
    read_info,
    write_value,
)
from tuner.extensions.scale.cluster.slot import WorkerSlot
from tuner.model.errors import (
    DeviceError,
    DeviceLost,
    KernelError,
    OutOfMemory,
    WorkerError,
)
from tuner.model.kernel import KernelSpec
from tuner.model.trial import Accuracy, Correctness, Measurement, Resources, Status

INFO = SlotInfo("s1", "node/cuda:0", "node", "cuda:0", H200, "1", "2", 1)


class Caller:
    """Asks a slot as the coordinator does."""

    def __init__(self, slot: WorkerSlot, spec: KernelSpec, device: StandIn) -> None:
        self.slot, self.device = slot, device
        moved, self.bundle = kernel_bundle(spec)
        self.kernel = OpenKernel(moved, {}, self.bundle.files)

    def ask(self, work: Work, holder: str = "me") -> Any:
        return read_answer(work, self.slot.answer(holder, pickle.dumps(work)))

    def open(self, holder: str = "me") -> DeviceInfo | None:
        """Open the kernel; None where another run holds the slot."""
        said = self.ask(self.kernel, holder)
        if isinstance(said, LacksFiles):
            self.ask(StoreFiles(self.bundle.contents(said.digests)), holder)
            said = self.ask(self.kernel, holder)
        assert said is None or isinstance(said, DeviceInfo)
        return said


@pytest.fixture
def caller(spec: KernelSpec, tmp_path: Path) -> Caller:
    return made(spec, tmp_path, lease_s=60.0)


def made(spec: KernelSpec, folder: Path, lease_s: float) -> Caller:
    device = StandIn(info_of())
    slot = WorkerSlot(INFO, FileStore(folder / "store"), lease_s, opened=lambda *_: device)
    return Caller(slot, spec, device)


RUN = CallDevice("run", (program(),))


def test_a_kernel_is_opened_and_run(caller: Caller) -> None:
    assert caller.open() == info_of()
    assert read_answer(caller.kernel, write_value(amd_info("gfx942"))) == amd_info("gfx942")
    assert caller.ask(RUN).measurement is not None
    assert caller.device.ran == ["one"]


def test_another_run_waits_until_the_slot_is_left(caller: Caller) -> None:
    caller.open()
    assert caller.open("another") is None
    with pytest.raises(WorkerError, match="no longer held by this run"):
        caller.ask(RUN, "another")
    caller.ask(Leave(), "another")
    assert caller.open("another") is None
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
        with pytest.raises(WorkerError, match="no space"):
            caller.ask(caller.kernel)
    assert caller.open("another") == info_of()


def test_who_is_silent_for_too_long_loses_the_slot(spec: KernelSpec, tmp_path: Path) -> None:
    caller = made(spec, tmp_path, lease_s=0.0)
    caller.open()
    assert caller.open("another") == info_of()
    assert caller.ask(Keep()) is False
    with pytest.raises(WorkerError):
        caller.ask(RUN)
    assert caller.device.ran == []


def test_a_slot_at_work_is_not_opened_again_not_even_by_its_holder(caller: Caller) -> None:
    caller.open()
    caller.device.goes.clear()
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(caller.ask, RUN)
        assert caller.device.began.wait(30)
        assert caller.open() is None
        assert caller.device.closed == 0
        caller.device.goes.set()
        assert running.result(30).measurement is not None
    assert caller.open() == info_of()


def test_what_the_device_raises_comes_back(caller: Caller) -> None:
    caller.open()
    caller.device.fails = [DeviceError("no GPU", remedy="buy one"), KeyError("ours")]
    with pytest.raises(WorkerError, match=r"(?s)on node:.*KeyError"):
        caller.ask(RUN)
    with pytest.raises(DeviceError) as failed:
        caller.ask(RUN)
    assert (failed.value.message, failed.value.remedy) == ("no GPU", "buy one")


@pytest.mark.parametrize(
    "error",
    [
        KernelError("it is so", path=Path("/k.py"), line=3, remedy="mend it"),
        OutOfMemory("too large", "N=64", remedy="a smaller one"),
        DeviceLost("the GPU fell off"),
        MemoryError("too large"),
        WorkerError("a path \udc80 that is no text"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_come_back_as_they_were(caller: Caller, error: Exception) -> None:
    caller.open()
    caller.device.fails = [error]
    with pytest.raises(type(error)) as failed:
        caller.ask(RUN)
    same = {name: value for name, value in vars(error).items() if "udc80" not in repr(value)}
    assert {name: vars(failed.value)[name] for name in same} == same


def test_what_came_of_a_program_comes_back_to_the_last_bit(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller.open()
    outcome = Outcome(
        Status.INCORRECT,
        "é",
        Measurement((0.1, 1 / 3, 1e-300, 3e13), 3, 2, stopped_early=True, wall_ratio=1.5),
        Correctness(False, ("ones",), (("y", inf),), accuracy=(("y", Accuracy(0.1, 0.3)),)),
        Resources(12, max_threads=256),
    )
    monkeypatch.setattr(caller.device, "run", lambda _: outcome)
    assert caller.ask(RUN) == outcome


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
