"""Recordings: what is written is read, what cannot be read says why, and nothing is guessed."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recordings import recording

from tuner.compiler.base import CompileResult
from tuner.device.base import Program
from tuner.device.recorded.recording import (
    VERSION,
    RecordedCompilation,
    RecordedDevice,
    RecordedFinals,
    RecordedProgram,
    RecordedWorkload,
    load_recording,
    recordings_of,
    save_recording,
)
from tuner.model.errors import DeviceError
from tuner.model.kernel import Launch, Workload
from tuner.model.surroundings import Link, Neighbour, Surroundings
from tuner.model.trial import Resources, Status

RECORDING = recording(
    operators={"ACTIVATION": "gelu"},
    workloads={
        "T=1": RecordedWorkload(
            baseline="a",
            programs={
                "a": RecordedProgram(status=Status.CORRECT, ticks=(30000, 30001), calls=20, sets=4),
                "b": RecordedProgram(status=Status.INCORRECT, reason="y[0] is 1, expected 2"),
                "c": RecordedProgram(
                    status=Status.CORRECT, ticks=(90000,) * 3, calls=20, sets=4, stopped_early=True
                ),
            },
            finals=RecordedFinals(
                programs=("a", "c"), rounds=((30000, 90000), (30002, 90001)), isolated=(None, 95000)
            ),
        ),
        "T=2": RecordedWorkload(baseline="a", programs={}),
    },
)


def refused(path: Path) -> DeviceError:
    with pytest.raises(DeviceError) as caught:
        load_recording(path)
    assert caught.value.path == path
    return caught.value


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Any], Path]:
    """Write any content the way recordings are written."""

    def write(content: Any) -> Path:
        path = tmp_path / "example.json.xz"
        path.write_bytes(lzma.compress(json.dumps(content).encode()))
        return path

    return write


@pytest.fixture
def content(tmp_path: Path) -> dict[str, Any]:
    """What a good file holds."""
    path = tmp_path / "good.json.xz"
    save_recording(RECORDING, path)
    loaded: dict[str, Any] = json.loads(lzma.decompress(path.read_bytes()))
    return loaded


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "recordings" / "h200" / "example.json.xz"
    save_recording(RECORDING, path)
    assert load_recording(path) == RECORDING
    assert [file.name for file in path.parent.iterdir()] == [path.name], "nothing is left beside"


def test_the_file_says_its_version_and_leaves_out_defaults(content: dict[str, Any]) -> None:
    assert content["version"] == VERSION
    assert content["workloads"]["T=1"]["programs"]["a"] == {
        "status": "correct",
        "ticks": [30000, 30001],
        "calls": 20,
        "sets": 4,
    }


def test_a_recorded_program_answers_as_the_gpu_did() -> None:
    programs = RECORDING.workloads["T=1"].programs
    right, wrong, slow = (programs[key].outcome() for key in "abc")
    assert right.status is Status.CORRECT
    assert right.measurement is not None
    assert right.measurement.times_us == pytest.approx((3.0, 3.0001))
    assert (right.measurement.calls_per_replay, right.measurement.buffer_sets) == (20, 4)
    assert (wrong.status, wrong.reason) == (Status.INCORRECT, "y[0] is 1, expected 2")
    assert wrong.measurement is None
    assert slow.measurement is not None
    assert slow.measurement.stopped_early
    info = RECORDING.device.info()
    assert info.recorded
    assert (info.compute_capability, info.environment["gpu_driver_version"]) == ((9, 0), "580.1")


def test_a_python_kernels_launches_are_kept_with_what_they_use() -> None:
    launch = Launch("rows", (16, 2, 1), (256, 1, 1))
    result = CompileResult(resources={"rows": Resources(200, 12, 12, 100)}, called=(launch,))
    assert RecordedCompilation.of(result).result() == result


def test_bits_are_kept_where_there_are_any() -> None:
    kept = RecordedProgram(status=Status.CORRECT, ticks=(1,), calls=1, sets=1, bits="0f")
    verdict = kept.outcome().correctness
    assert verdict is not None
    assert verdict.bits == "0f"
    assert RECORDING.workloads["T=1"].programs["a"].outcome().correctness is None


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert "no such recording" in refused(tmp_path / "nothing.json.xz").message
    assert "is not a recording" in refused(tmp_path).message


def test_a_newer_version_asks_for_an_update(
    content: dict[str, Any], write: Callable[[Any], Path]
) -> None:
    newer = write({**content, "version": VERSION + 1, "something_new": 1})
    error = refused(newer)
    assert f"version {VERSION + 1}" in error.message
    assert error.remedy == "update kernel-tune"


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[:60] + bytes(10) + whole[70:],
        lambda whole: b"{}",
        lambda whole: lzma.compress(b"{"),
        lambda whole: lzma.compress(b"\xff\xfe\x00"),
    ],
    ids=["empty", "cut off", "overwritten", "not compressed", "not JSON", "not text"],
)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "example.json.xz"
    save_recording(RECORDING, path)
    path.write_bytes(damage(path.read_bytes()))
    error = refused(path)
    assert "is not a recording" in error.message
    assert "xz-compressed JSON" in str(error)


def test_what_is_damaged_is_named(content: dict[str, Any], write: Callable[[Any], Path]) -> None:
    wrong, incomplete, timeless, empty, short, nan = (deepcopy(content) for _ in range(6))
    wrong["workloads"]["T=1"]["programs"]["a"]["status"] = "quick"
    del incomplete["device"]["l2_bytes"]
    timeless["workloads"]["T=1"]["programs"]["a"]["ticks"][1] = 0
    empty["workloads"]["T=1"]["finals"]["rounds"] = []
    short["workloads"]["T=1"]["finals"]["rounds"][1].pop()
    nan["device"]["streaming_gbps"] = float("nan")
    for damaged, place in (
        (wrong, "at workloads.T=1.programs.a.status"),
        (incomplete, "at device.l2_bytes"),
        (nan, "at device.streaming_gbps"),
        (timeless, "at workloads.T=1.programs.a.ticks.1"),
        (empty, "at workloads.T=1.finals.rounds"),
        (short, "at workloads.T=1.finals: Value error, there is not a time for each of its 2"),
        ({**content, "colour": "red"}, "at colour"),
        ([], ""),
        (None, ""),
    ):
        assert f"is damaged {place}" in refused(write(damaged)).message


def test_recordings_lie_beside_their_kernel(tmp_path: Path) -> None:
    source = tmp_path / "example.cu"
    assert recordings_of(source) == []
    for gpu, name in (("h200", "example"), ("a100", "example"), ("h200", "other")):
        save_recording(RECORDING, tmp_path / "recordings" / gpu / f"{name}.json.xz")
    found = [path.relative_to(tmp_path).as_posix() for path in recordings_of(source)]
    assert found == ["recordings/a100/example.json.xz", "recordings/h200/example.json.xz"]


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
    path = tmp_path / "example.json.xz"
    workload = RecordedWorkload(baseline=BASELINE.key, programs=programs, finals=finals)
    save_recording(recording(operators=OPERATORS, workloads={LARGE.key: workload}), path)
    return path


@pytest.fixture
def device(path: Path) -> RecordedDevice:
    return RecordedDevice(path, "example", OPERATORS)


DECODE, PREFILL = (
    Surroundings(name, (Link((Neighbour("stream", "x", (1 << 20,)),)),))
    for name in ("decode", "prefill")
)


@pytest.mark.parametrize(
    ("recorded_in", "wanted", "words"),
    [
        (None, DECODE, ["was measured alone on", "those of decode", "--surroundings alone"]),
        (DECODE, None, ["other neighbours (decode)", "not alone", "leave --surroundings out"]),
        (DECODE, PREFILL, ["(decode)", "those of prefill"]),
        (DECODE, replace(DECODE, links=(Link(),)), ["(decode)", "those of decode"]),
    ],
    ids=["alone", "between neighbours", "between others", "between others of the name"],
)
def test_what_was_measured_in_other_surroundings_is_refused(
    path: Path, recorded_in: Surroundings | None, wanted: Surroundings | None, words: list[str]
) -> None:
    known = load_recording(path)
    content = recorded_in.content if recorded_in else ""
    kept = known.workloads[LARGE.key].model_copy(update={"surroundings": content})
    known = known.model_copy(update={"workloads": {LARGE.key: kept}})
    right = RecordedDevice(path, "example", OPERATORS, known, lambda workload: recorded_in)
    assert right.run(FASTER).status is Status.CORRECT
    other = RecordedDevice(path, "example", OPERATORS, known, lambda workload: wanted)
    with pytest.raises(DeviceError) as caught:
        other.run(FASTER)
    assert all(word in str(caught.value) for word in words), caught.value


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
    assert device.run(FAST).status is Status.CORRECT
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
    assert len(device.compare([BASELINE, FAST], rounds=10).times_us) == 10
    assert rounds.times_us[1] == pytest.approx((30.0001, 20.0001, 10.0001))
    assert rounds.isolated_us == (None, None, pytest.approx(12.0))


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


def test_what_the_compiler_said_comes_back_and_older_files_say_less() -> None:
    used = Resources(168, 8, 4, 1024, 16, 2, "insufficient register resources")
    kept = RecordedCompilation.of(CompileResult(resources={"k": used}))
    assert RecordedCompilation.model_validate_json(kept.model_dump_json()).result().resources == {
        "k": used
    }
    older = RecordedCompilation.model_validate({"resources": {"k": [168, 8, 4, 1024, 16, 2]}})
    assert older.result().resources == {"k": replace(used, serialized_wgmma="")}
