"""T4 results: read from whatever tool wrote them, and written as the schema wants them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.caches import cache, written
from tuner.device.recorded.kernel_tuner_files import load_measured, t4_text
from tuner.model.config import Config
from tuner.model.errors import DeviceError
from tuner.model.trial import Status


def result(**changes: Any) -> dict[str, Any]:
    measured = {"name": "time", "value": 2.0, "unit": "ms"}
    return {
        "timestamp": "2025-03-01 12:00:00+00:00",
        "configuration": {"block": 32, "name": "a"},
        "times": {"compilation": 400.0, "benchmark": 100.0, "runtimes": [2.0, 2.5]},
        "invalidity": "correct",
        "correctness": 1,
        "measurements": [measured],
        "objectives": ["time"],
        **changes,
    }


def results(*rows: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"schema_version": "1.0.0", "results": list(rows), "metadata": metadata}


def only_answer(tmp_path: Path, row: dict[str, Any], **metadata: Any):
    measured = load_measured(written(tmp_path / "t4.json", results(row, **metadata)))
    (answer,) = measured.answers.values()
    return answer


def test_a_result_is_read(tmp_path: Path) -> None:
    answer = only_answer(tmp_path, result(), timeunit="milliseconds")
    assert (answer.status, answer.time_us, answer.samples_us) == (
        Status.CORRECT,
        2000.0,
        (2000.0, 2500.0),
    )
    assert answer.seconds == 0.5


@pytest.mark.parametrize(
    ("unit", "time_us"), [("s", 2e6), ("us", 2.0), ("microseconds", 2.0), ("ns", 2e-3), ("", 2e3)]
)
def test_a_time_has_its_unit(tmp_path: Path, unit: str, time_us: float) -> None:
    row = result(measurements=[{"name": "time", "value": 2.0, "unit": unit}])
    assert only_answer(tmp_path, row).time_us == pytest.approx(time_us)


def test_runtimes_stand_in_for_a_time(tmp_path: Path) -> None:
    answer = only_answer(tmp_path, result(measurements=[]), timeunit="microseconds")
    assert answer.time_us == 2.25


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"invalidity": "constraints"}, Status.CONSTRAINT),
        ({"invalidity": "compile"}, Status.COMPILE),
        ({"invalidity": "runtime"}, Status.LAUNCH),
        ({"invalidity": "timeout"}, Status.TIMEOUT),
        ({"invalidity": "correctness"}, Status.INCORRECT),
        ({"correctness": 0}, Status.INCORRECT),
        ({"measurements": [{"name": "time", "value": "InvalidConfig"}]}, Status.LAUNCH),
        ({"measurements": [{"name": "time", "value": 1e20}]}, Status.LAUNCH),
    ],
)
def test_failures_have_a_status(tmp_path: Path, changes: dict[str, Any], status: Status) -> None:
    answer = only_answer(tmp_path, result(**changes))
    assert (answer.status, answer.time_us) == (status, None)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([result(invalidity="odd")], "'odd' is no invalidity"),
        ([result(times={}, measurements=[])], "no measurement named `time`"),
        ([result(measurements=[{"name": "time", "value": -1}])], "a time of -1"),
        (
            [result(measurements=[{"name": "time", "value": 1, "unit": "years"}])],
            "'years' is no unit",
        ),
        ([result(configuration={})], "`results.0.configuration`"),
        ([result(configuration={"block": None, "name": "a"})], "no plain value"),
        ([result(), result(configuration={"block": 1})], "result 1 has the parameters block"),
        (7, "`results`"),
    ],
)
def test_damage_is_named_with_its_place(tmp_path: Path, rows: Any, words: str) -> None:
    path = written(tmp_path / "t4.json", {"results": rows})
    with pytest.raises(DeviceError) as caught:
        load_measured(path)
    assert words in caught.value.message
    assert caught.value.path == path


def test_what_is_written_fits_the_schema_and_is_read_again(tmp_path: Path) -> None:
    import jsonschema
    from kernel_tuner.file_utils import output_file_schema

    measured = load_measured(written(tmp_path / "c.json", cache()))
    text = t4_text(measured)
    _, schema = output_file_schema("results")
    jsonschema.validate(json.loads(text), schema)
    again = load_measured(written(tmp_path / "t4.json", text))
    assert (again.kernel, again.device, again.problem_size) == (
        measured.kernel,
        measured.device,
        measured.problem_size,
    )
    config = Config.of({"block": 256, "items": 4})
    assert again.answers[config].time_us == measured.answers[config].time_us
