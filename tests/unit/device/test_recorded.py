"""The recorded device: it answers what was measured and never guesses."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tuner.device.base import Program
from tuner.device.recorded.recording import (
    RecordedDevice,
    RecordedDeviceInfo,
    RecordedFinals,
    RecordedProgram,
    RecordedWorkload,
    Recording,
    save_recording,
)
from tuner.model.errors import DeviceError
from tuner.model.kernel import Launch, Workload
from tuner.model.trial import Status

LARGE, SMALL = Workload.of({"T": 1024}), Workload.of({"T": 1})
OPERATORS = {"ACTIVATION": "silu"}


def program(source: str, workload: Workload = LARGE, *, block: int = 256) -> Program:
    return Program(source, workload, (Launch("example", (8, 1, 1), (block, 1, 1)),))


BASELINE, FAST, FASTER, WRONG, LATE = map(program, ("base", "fast", "faster", "wrong", "late"))


def correct(*ticks: int) -> RecordedProgram:
    return RecordedProgram(status=Status.CORRECT, ticks=ticks, calls=20, sets=4)


def recorded(programs: Iterable[tuple[Program, RecordedProgram]]) -> dict[str, RecordedProgram]:
    return {program.key: answer for program, answer in programs}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A recording of one workload: four programs, three of them in the finals."""
    programs = recorded(
        [
            (BASELINE, correct(300_000, 301_000, 302_000)),
            (FAST, correct(200_000, 201_000)),
            (FASTER, correct(100_000, 101_000, 102_000)),
            (LATE, correct(150_000, 151_000, 152_000)),
            (WRONG, RecordedProgram(status=Status.INCORRECT, reason="y[0] is 1, expected 2")),
        ]
    )
    finals = RecordedFinals(
        programs=(BASELINE.key, FASTER.key, FAST.key),
        rounds=tuple((300_000 + i, 100_000 + i, 200_000 + i) for i in range(30)),
        isolated=(None, 120_000, None),
    )
    info = RecordedDeviceInfo(
        name="NVIDIA H200",
        architecture="sm_90a",
        compute_capability=(9, 0),
        multiprocessors=132,
        l2_bytes=60 << 20,
        streaming_gbps=4370.0,
        environment={},
    )
    path = tmp_path / "example.json.xz"
    workload = RecordedWorkload(baseline=BASELINE.key, programs=programs, finals=finals)
    recording = Recording(
        kernel="example",
        created="2026-11-20T12:00:00+00:00",
        device=info,
        operators=OPERATORS,
        workloads={LARGE.key: workload},
    )
    save_recording(recording, path)
    return path


@pytest.fixture
def device(path: Path) -> RecordedDevice:
    return RecordedDevice(path, "example", OPERATORS)


def test_it_answers_what_was_measured(device: RecordedDevice) -> None:
    outcome = device.run(FAST)
    assert outcome.status is Status.CORRECT
    assert outcome.measurement is not None
    assert outcome.measurement.times_us == pytest.approx((20.0, 20.1))


def test_it_answers_failures_as_well(device: RecordedDevice) -> None:
    outcome = device.run(WRONG)
    assert (outcome.status, outcome.reason) == (Status.INCORRECT, "y[0] is 1, expected 2")


@pytest.mark.parametrize(
    "unknown",
    [program("another source"), program("fast", block=128)],
    ids=["other source", "other launch"],
)
def test_what_was_not_measured_is_missing(device: RecordedDevice, unknown: Program) -> None:
    outcome = device.run(unknown)
    assert outcome.status is Status.NOT_RECORDED
    assert "example.json.xz has no measurement" in outcome.reason
    assert outcome.measurement is None


def test_a_machine_codes_bytes_do_not_matter(device: RecordedDevice) -> None:
    compiled = Program(FAST.source_key, LARGE, FAST.launches, b"cubin", {"example": "_Z7example"})
    assert device.run(compiled).status is Status.CORRECT


def test_an_unknown_workload_is_an_error_with_those_that_are_there(
    device: RecordedDevice,
) -> None:
    with pytest.raises(DeviceError, match=r"for workload T=1\n") as caught:
        device.run(program("fast", SMALL))
    assert caught.value.remedy == "recorded workloads: T=1024"


def test_finalists_of_the_recording_are_compared_in_its_rounds(device: RecordedDevice) -> None:
    rounds = device.compare([BASELINE, FAST, FASTER], rounds=30)
    assert rounds.paired
    assert len(rounds.times_us) == 30
    assert rounds.times_us[1] == pytest.approx((30.0001, 20.0001, 10.0001))
    assert rounds.isolated_us == (None, None, pytest.approx(12.0))


def test_fewer_rounds_than_recorded_may_be_asked_for(device: RecordedDevice) -> None:
    assert len(device.compare([BASELINE, FAST], rounds=10).times_us) == 10


def test_other_programs_are_compared_by_their_own_samples_and_unpaired(
    device: RecordedDevice,
) -> None:
    rounds = device.compare([BASELINE, LATE, FASTER], rounds=30)
    assert not rounds.paired
    assert rounds.times_us[0] == pytest.approx((30.0, 15.0, 10.0))
    assert len(rounds.times_us) == 3
    assert rounds.isolated_us == (None, None, None)


@pytest.mark.parametrize("other", [WRONG, program("never seen")], ids=["failed", "missing"])
def test_what_has_no_samples_cannot_be_compared(device: RecordedDevice, other: Program) -> None:
    with pytest.raises(DeviceError, match="no recorded samples"):
        device.compare([BASELINE, other], rounds=30)


def test_it_says_which_file_answers_and_since_when(device: RecordedDevice, path: Path) -> None:
    assert device.path == path
    assert device.created == "2026-11-20T12:00:00+00:00"
    assert device.info.recorded


def test_a_recording_of_another_kernel_is_refused(path: Path) -> None:
    with pytest.raises(DeviceError, match="a recording of example, not of scale"):
        RecordedDevice(path, "scale", OPERATORS)


@pytest.mark.parametrize(
    ("operators", "words"),
    [({"ACTIVATION": "gelu"}, "not with ACTIVATION=gelu"), ({}, "not with no operator choice")],
)
def test_another_choice_of_the_operator_is_refused(
    path: Path, operators: dict[str, str], words: str
) -> None:
    with pytest.raises(DeviceError, match=f"recorded with ACTIVATION=silu, {words}"):
        RecordedDevice(path, "example", operators)
