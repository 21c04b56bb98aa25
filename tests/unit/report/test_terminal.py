"""The end of a run in a terminal, and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rich.console import Console

from tuner.cli.report_command import plain_cell
from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import Check, Occupancy, Resources, Status
from tuner.report import formatting
from tuner.report.terminal import json_of, results_table, trials_frame


def printed(results, width: int = 100) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(results_table(results))
    return capture.get()


def long_config(index: int) -> Config:
    names = ("vector_bytes", "block_size", "vectors_per_thread", "rows_per_block", "persistent")
    return Config.of({**dict.fromkeys(names, 2**index), "cache_hint": "evict_first", "unroll": 4})


def test_the_tables_fit_in_100_columns(data, with_rounds, golden):
    results = [replace(r, config=long_config(i)) for i, r in enumerate(data.results)]
    first, second, *_ = data.results
    odd = replace(first, config=Config.of({"mode": "[red]x[/blue]"}))
    cpu = replace(second, resources=Resources(None), occupancy=None)
    kept = replace(with_rounds.results[0], baseline_wins=True, occupancy=None, resources=None)
    tables = (
        reversed(results),
        [replace(results[0], candidate="r12"), *results[1:]],
        data.results[:1],
        (odd, cpu),
        (kept, *with_rounds.results[1:]),
    )
    text = "\n\n".join(printed([*rows]) for rows in tables)
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= 100
    golden("tables.txt", "\n".join(lines))


MANY = ("num_heads", "num_kv_heads", "head_size", "rot_dim", "query_stride", "max_position")


def with_many_axes(results, *, same: bool):
    sizes = {r.workload: dict.fromkeys(MANY, 128 * (1 if same else i + 1)) for i, r in results}
    return [
        replace(r, workload=Workload.of({**r.workload.values, **sizes[r.workload]}))
        for _, r in results
    ]


def test_axes_that_all_workloads_share_are_named_once_where_names_are_long(data):
    text = printed(with_many_axes([*enumerate(data.results[:3])], same=True))
    assert "T=16 D=11008 " in text
    assert text.count("num_kv_heads=128") == 1
    assert "…" not in text


def test_long_names_break_between_axes_and_leave_the_numbers_whole(data):
    text = printed(with_many_axes([*enumerate(data.results[:3])], same=False))
    assert "num_heads=128" in text
    assert "1.30x" in text
    assert "[1.29, 1.31]" in text
    assert "…" not in text


def test_the_json_objects_have_the_documented_shape(data, with_rounds, golden):
    cpu = replace(data.results[0], resources=Resources(None), occupancy=None)
    unknown = replace(data.results[1], resources=None)
    results = (cpu, unknown, *data.results[2:])
    runs = (
        replace(data, on_cpu=True, results=results, seconds=1.23456),
        replace(with_rounds, session="s/1", seconds=0.0),
    )
    golden(
        "runs.json", "\n".join(json.dumps(json_of(run), allow_nan=False, indent=1) for run in runs)
    )


def test_checks_of_the_winners_are_counted_by_kind(data):
    here, config = data.results[0].workload, data.results[0].config
    checks = (
        Check("edge_cases", here, config, True),
        Check("memcheck", here, config, None, "did not start"),
        Check("memcheck", data.results[1].workload, config, False, "out of bounds"),
        Check("edge_cases", here, Config.of({"block_size": 1}), False, "no winner of anything"),
    )
    assert json_of(replace(data, checks=checks))["checks"] == {
        "edge_cases": {"passed": 1, "failed": 0, "not_run": 0},
        "memcheck": {"passed": 0, "failed": 1, "not_run": 1},
    }
    assert json_of(data)["checks"] == {}


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        *((formatting.microseconds, us, text) for us, text in (
            (0.5, "0.500"), (2.0204, "2.020"), (22.134, "22.13"), (211.66, "211.7"),
            (12345.6, "12,346"),
        )),
        (formatting.interval, (1.5, 1.625), "[1.50, 1.62]"),
        (formatting.interval, (1.0012, 1.05), "[1.001, 1.05]"),
        (formatting.interval, (0.9, 0.99996), "[0.90, 1.0000]"),
        (formatting.interval, (1.0, 1.1), "[1.00, 1.10]"),
        *((formatting.seconds, seconds, text) for seconds, text in (
            (41.25, "41.2 s"), (185.0, "3 min 05 s"), (7800.0, "2 h 10 min"),
            (3599.7, "1 h 00 min"),
        )),
        (formatting.occupancy, Occupancy(0.5, 4, "registers"), "50 % (registers)"),
        (formatting.occupancy, Occupancy(1.0, 8, ""), "100 %"),
        (formatting.occupancy, None, "-"),
    ],
)  # fmt: skip
def test_a_number_is_written_with_the_digits_that_say_something(write, value, text):
    assert write(value) == text


def test_every_trial_is_a_row_with_its_axes_and_parameters(data):
    frame = trials_frame(data)
    assert len(frame) == len(data.records)
    trial = data.records[0][0]
    first = frame.iloc[0]
    assert {name: first[name] for name in trial.workload.values} == trial.workload.values
    assert first["config.block_size"] == trial.config["block_size"]
    timed = [trial.time_us for trial in data.trials if trial.time_us is not None]
    assert frame["time_us"].dropna().tolist() == timed
    failed = frame[frame["status"] != Status.CORRECT.value]
    assert len(failed) > 0
    assert failed["time_us"].isna().all()
    assert (failed["reason"] != "").all()


def test_an_axis_may_be_named_as_a_column_of_the_table(data):
    trial, elapsed_s = data.records[0]
    named = replace(trial, workload=Workload.of({"samples": 4096, "stage": 3, "D": 8}))
    (row,) = trials_frame(replace(data, records=((named, elapsed_s),))).to_dict("records")
    assert (row["axis.samples"], row["axis.stage"], row["D"]) == (4096, 3, 8)
    assert (row["samples"], row["stage"]) == (len(trial.measurement.times_us), trial.stage)


def test_every_row_says_whose_config_it_is(with_rounds):
    frame = trials_frame(with_rounds)
    assert frame.groupby("candidate").size().to_dict() == {
        "initial": 32,
        "r1": 32,
        "r3": 64,
        "r5": 64,
    }


def test_no_cell_of_a_csv_is_a_formula() -> None:
    for text in ("=cmd|x!A0", "+1", "-1", "@sum", " =1", "\t=1"):
        assert plain_cell(text) == f"'{text}"
    for value in ("a=b", "1-2", "", -1, None, 2.5):
        assert plain_cell(value) is value
