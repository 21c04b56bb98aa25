"""Kernel Tuner's caches and T4 results: read as they are found, written so that it reads them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.caches import BLOCKS, FAILED, ITEMS, cache, entry, time_ms, written
from tuner.extensions.study import kernel_tuner_files
from tuner.extensions.study.kernel_tuner_files import (
    UNKNOWN_DATE,
    ForeignAnswer,
    MeasuredSpace,
    cache_text,
    is_foreign,
    load_measured,
    measured_in_cache,
    measured_in_t4,
    t4_text,
)
from tuner.model.config import Config, Parameter
from tuner.model.errors import DeviceError
from tuner.model.trial import Status


def config(block: int, items: int) -> Config:
    return Config.of({"block": block, "items": items})


def refused(path: Path) -> DeviceError:
    with pytest.raises(DeviceError) as caught:
        load_measured(path)
    assert caught.value.path == path
    return caught.value


@pytest.mark.parametrize("name", ["cache.json", "cache.json.gz"])
def test_a_cache_is_read_plain_or_packed(tmp_path: Path, name: str) -> None:
    measured = load_measured(written(tmp_path / name, cache()))
    assert (measured.kernel, measured.device) == ("scale", "NVIDIA A100-PCIE-40GB")
    assert measured.problem_size == (1000,)
    assert measured.parameters == (Parameter("block", BLOCKS), Parameter("items", ITEMS))
    assert measured.created == "2025-03-01T12:00:00.5+00:00"
    best = measured.answers[config(256, 4)]
    assert (best.status, best.time_us, best.samples_us) == (Status.CORRECT, 1e3, (1e3,) * 7)
    assert best.seconds == 0.5
    failed = measured.answers[config(256, 8)]
    assert (failed.status, "InvalidConfig" in failed.reason) == (Status.CONSTRAINT, True)


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ({"time": "CompilationFailedConfig"}, Status.COMPILE),
        ({"__error__": "RuntimeFailedConfig"}, Status.LAUNCH),
        ({"time": "timed out"}, Status.LAUNCH),
        ({"time": 1e20}, Status.LAUNCH),
        ({"time": float("nan")}, Status.LAUNCH),
        ({"time": 10**400}, Status.LAUNCH),
        ({"GFLOP/s": "InvalidConfig"}, Status.CONSTRAINT),
    ],
)
def test_a_failure_may_be_told_in_several_ways(
    tmp_path: Path, told: dict[str, object], status: Status
) -> None:
    content = cache(cache={"32,1": {"block": 32, "items": 1, **told}})
    (answer,) = load_measured(written(tmp_path / "c.json", content)).answers.values()
    assert (answer.status, answer.time_us) == (status, None)


@pytest.mark.parametrize("end", [",", "", ',\n"64,1": {"block": 64, "ite', '\n"64,1": {"blo'])
def test_a_cache_that_a_crash_left_open_is_read_to_its_last_whole_entry(
    tmp_path: Path, end: str
) -> None:
    whole = json.dumps(cache(cache={"32,1": entry(32, 1)}), indent="").rstrip("}\n") + "}"
    measured = load_measured(written(tmp_path / "c.json", whole + end))
    assert list(measured.answers) == [config(32, 1)]


def test_values_are_taken_from_the_entries_where_none_are_listed(tmp_path: Path) -> None:
    content = cache()
    del content["tune_params"]
    measured = load_measured(written(tmp_path / "c.json", content))
    assert measured.parameters == (Parameter("block", BLOCKS), Parameter("items", ITEMS))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cache": {"a": {"block": 32, "items": 1}}}, "entry 'a' has no `time`"),
        ({"cache": {"a": {**entry(32, 1), "time": -1}}}, "entry 'a' has a `time` of -1"),
        ({"cache": {"a": {**entry(32, 1), "time": True}}}, "entry 'a' has a `time` of True"),
        ({"cache": {"a": {"block": 32, "time": 1}}}, "no value for the parameter items"),
        ({"cache": {"a": {**entry(32, 1), "items": [1]}}}, "no value for the parameter items"),
        ({"cache": {"a": entry(33, 1)}}, "block=33 is not among its values"),
        ({"cache": {"a": 7}}, "`cache.a`"),
        ({"cache": []}, "`cache`"),
        ({"tune_params_keys": []}, "`tune_params_keys`"),
        ({"kernel_tune": {"version": 1}}, "`kernel_tune.kernel`"),
    ],
)
def test_damage_is_named_with_its_place(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    error = refused(written(tmp_path / "c.json", cache(**changes)))
    assert error.message.startswith("is damaged: ")
    assert words in error.message
    assert error.remedy


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be read"),
        ("{" * 100_000, "cannot be read"),
        ('{"cache": ' + "[" * 100_000, "cannot be read"),
        ("[]", "holds a JSON list"),
        ('{"trials": []}', "neither a Kernel Tuner cache nor T4 results"),
        ('{"a": ' + "1" * 5000 + "}", "cannot be read"),
    ],
)
def test_what_is_no_cache_says_so(tmp_path: Path, text: str, words: str) -> None:
    assert words in refused(written(tmp_path / "c.json", text)).message


def test_a_packed_file_that_is_cut_short_or_huge_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = gzip.compress(json.dumps(cache()).encode())
    cut, bomb = tmp_path / "cut.json.gz", tmp_path / "bomb.json.gz"
    cut.write_bytes(whole[:-20])
    assert "cannot be read" in refused(cut).message
    monkeypatch.setattr(kernel_tuner_files, "MAX_BYTES", 1 << 16)
    bomb.write_bytes(gzip.compress(b"{" + b" " * (1 << 24)))
    assert f"over {1 << 16} bytes when unpacked" in refused(bomb).message


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert "no such file" in refused(tmp_path / "none.json").message
    assert "is a folder" in refused(tmp_path).message
    assert not is_foreign(tmp_path / "none.json")
    assert not is_foreign(tmp_path)


values = st.one_of(
    st.booleans(), st.integers(-4, 4), st.floats(0.5, 8), st.text("ab,\u20ac", max_size=3)
)
parameters = st.lists(
    st.lists(values, min_size=1, max_size=3, unique=True), min_size=1, max_size=3
).map(lambda lists: tuple(Parameter(f"p{i}", tuple(v)) for i, v in enumerate(lists)))
failures = st.sampled_from([Status.CONSTRAINT, Status.COMPILE, Status.LAUNCH]).map(ForeignAnswer)
times = st.integers(1, 10**6).map(lambda n: ForeignAnswer(Status.CORRECT, "", n * 0.5, (n * 0.5,)))


@st.composite
def spaces(draw: st.DrawFn) -> MeasuredSpace:
    drawn = draw(parameters)
    pick = st.tuples(*(st.sampled_from(p.values) for p in drawn))
    configs = draw(st.lists(pick, min_size=1, max_size=6))
    names = [p.name for p in drawn]
    # Kernel Tuner's own keys don't tell ("a,", "b") from ("a", ",b").
    configs = list({",".join(map(str, config)): config for config in configs}.values())
    answers = {Config.of(zip(names, c, strict=True)): draw(failures | times) for c in configs}
    return MeasuredSpace("k", "GPU", (7, 1), drawn, answers)


@given(spaces())
def test_what_is_written_is_read(space: MeasuredSpace) -> None:
    read = measured_in_cache(json.loads(cache_text(space)))
    assert (read.kernel, read.device, read.problem_size) == ("k", "GPU", (7, 1))
    assert read.parameters == space.parameters
    for again in (read, measured_in_t4(json.loads(t4_text(space)))):
        assert again.created == UNKNOWN_DATE
        assert {c: (a.status, a.time_us) for c, a in again.answers.items()} == {
            c: (a.status, None if a.time_us is None else pytest.approx(a.time_us))
            for c, a in space.answers.items()
        }


def test_kernel_tuner_reads_and_goes_on_with_what_is_written(tmp_path: Path) -> None:
    from kernel_tuner import tune_cache, util

    measured = load_measured(written(tmp_path / "c.json", cache()))
    path = tmp_path / "ours.json"
    path.write_text(cache_text(measured))
    with pytest.warns(UserWarning, match="thread block dimensions"):
        results, environment = tune_cache(str(path), quiet=True)
    assert len(results) == len(BLOCKS) * len(ITEMS) - len(FAILED)
    best = min(r["time"] for r in results if "__error__" not in r)
    assert best == time_ms(256, 4)
    assert environment["device_name"] == "NVIDIA A100-PCIE-40GB"
    # opened to append to it, and closed by a crash
    util.read_cache(str(path), open_cache=True)
    util.store_cache("512,1", {"block": 512, "items": 1, "time": 9.0}, str(path), {})
    assert load_measured(path).answers[config(512, 1)].time_us == 9e3


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
    by_runtimes = only_answer(tmp_path, result(measurements=[]), timeunit="microseconds")
    assert by_runtimes.time_us == 2.25


@pytest.mark.parametrize(
    ("unit", "time_us"), [("s", 2e6), ("us", 2.0), ("microseconds", 2.0), ("ns", 2e-3), ("", 2e3)]
)
def test_a_time_has_its_unit(tmp_path: Path, unit: str, time_us: float) -> None:
    row = result(measurements=[{"name": "time", "value": 2.0, "unit": unit}])
    assert only_answer(tmp_path, row).time_us == pytest.approx(time_us)


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
def test_damage_of_t4_is_named_with_its_place(tmp_path: Path, rows: Any, words: str) -> None:
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
    assert again.problem_size == measured.problem_size
    assert (again.kernel, again.device) == (measured.kernel, measured.device)
