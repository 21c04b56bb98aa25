"""The contract of a device, over those that need no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from recordings import recording

from tests.support.simulated_device import MeteredDevice, SimulatedDevice
from tuner.device.base import Device, Program
from tuner.device.group import Home, group_of
from tuner.device.recorded.recording import (
    RecordedDevice,
    RecordedProgram,
    RecordedWorkload,
    save_recording,
)
from tuner.model.kernel import Launch, Workload
from tuner.model.trial import Status
from tuner.testing.devices import DeviceContract

WORKLOAD = Workload.of({"T": 64})


def program(source: str) -> Program:
    return Program(source, WORKLOAD, (Launch("example", (1, 1, 1), (64, 1, 1)),))


TIMES_US = {"baseline": 20.0, "first": 10.0, "second": 12.5}
FAILING = program("failing")


class WithPrograms(DeviceContract):
    @pytest.fixture
    def working(self) -> list[Program]:
        return [program(source) for source in TIMES_US]

    @pytest.fixture
    def failing(self) -> Program:
        return FAILING


class TestSimulated(WithPrograms):
    @pytest.fixture
    def device(self) -> Iterator[Device]:
        device = SimulatedDevice(lambda asked: TIMES_US.get(asked.source_key, Status.INCORRECT))
        yield device
        device.close()
        device.close()
        assert device.closed


class TestMetered(WithPrograms):
    @pytest.fixture
    def device(self) -> Device:
        def answer(asked: Program) -> float | Status:
            return TIMES_US.get(asked.source_key, Status.INCORRECT)

        return MeteredDevice(answer, lambda asked: 300.0)


class TestRecorded(WithPrograms):
    @pytest.fixture
    def device(self, tmp_path: Path) -> Iterator[Device]:
        programs = {
            program(source).key: RecordedProgram(
                status=Status.CORRECT, ticks=(round(time * 1e4),) * 7, calls=20, sets=4
            )
            for source, time in TIMES_US.items()
        }
        programs[FAILING.key] = RecordedProgram(status=Status.LAUNCH, reason="illegal address")
        workload = RecordedWorkload(baseline=program("baseline").key, programs=programs)
        path = tmp_path / "example.json.xz"
        save_recording(recording(workloads={WORKLOAD.key: workload}), path)
        device = RecordedDevice(path, "example", {})
        yield device
        device.close()
        device.close()


class TestGroup(WithPrograms):
    @pytest.fixture
    def device(self) -> Iterator[Device]:
        def answer(asked: Program) -> float | Status:
            return TIMES_US.get(asked.source_key, Status.INCORRECT)

        device = group_of({name: SimulatedDevice(answer) for name in ("GPU 0", "GPU 1")})
        device.settle({WORKLOAD.key: Home("GPU 1")})
        yield device
        device.close()
        device.close()


def test_the_simulated_device_lists_what_it_ran() -> None:
    device = SimulatedDevice(lambda asked: 5.0)
    asked = [program("b"), program("a"), program("b")]
    for one in asked:
        device.run(one)
    assert device.ran == asked
