"""The end of a run in a terminal, and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rich.console import Console

from tuner.model.config import Config
from tuner.model.trial import INITIAL, Check, Occupancy, Resources, Status
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


@pytest.mark.parametrize("candidate", [INITIAL, "r12"])
def test_every_column_fits_in_100_columns(data, candidate):
    results = [replace(r, config=long_config(i)) for i, r in enumerate(data.results)]
    text = printed([replace(results[0], candidate=candidate), *results[1:]])
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 100
    assert "…" not in text
    for shown in ("T=8192 D=14336", "359.9", "211.7", "1.70x", "[1.69, 1.71]", "79 %", "registers"):
        assert shown in text


def test_parameters_with_one_value_everywhere_are_named_once(data):
    text = printed([replace(r, config=long_config(i)) for i, r in enumerate(data.results)])
    assert text.count("unroll=4") == 1
    assert "everywhere: cache_hint=evict_first unroll=4" in text
    assert text.count("vector_bytes=") == len(data.results)


def test_a_single_result_shows_its_whole_config(data):
    text = printed(data.results[:1])
    assert "everywhere" not in text
    assert "block_size=256" in text


def test_held_out_workloads_come_last_and_are_marked(data):
    text = printed(tuple(reversed(data.results)))
    assert text.count("held out") == 3
    assert text.index("T=1 D=11008") < text.index("T=3 D=4096")


def test_a_baseline_that_wins_is_named(data):
    lost = replace(data.results[0], baseline_wins=True, occupancy=None, resources=None)
    line = printed([lost]).splitlines()[2]
    assert line.split()[-3:] == ["-", "-", "baseline"]


def test_brackets_in_a_value_are_not_markup(data):
    odd = replace(data.results[0], config=Config.of({"mode": "[red]x[/blue]"}))
    assert "mode=[red]x[/blue]" in printed([odd], width=140)


def test_the_json_object_has_the_documented_shape(data):
    made = json.loads(json.dumps(json_of(data), allow_nan=False))
    assert list(made) == [
        "kernel",
        "device",
        "recorded",
        "on_cpu",
        "session",
        "seconds",
        "trials",
        "checks",
        "workloads",
        "rounds",
    ]
    assert made["trials"] == {status.value: 0 for status in Status} | {
        "correct": 330,
        "constraint": 50,
        "resource_limit": 20,
    }
    last = made["workloads"][-1]
    assert last == {
        "workload": {"T": 3000, "D": 4096},
        "held_out": True,
        "baseline_us": pytest.approx(28.73, abs=0.01),
        "tuned_us": pytest.approx(23.94, abs=0.01),
        "speedup": 1.2,
        "interval": [1.19, 1.21],
        "roofline": pytest.approx(0.733, abs=0.001),
        "candidate": "initial",
        "config": {"block_size": 256, "vector_bytes": 16, "keep_row": False},
        "registers": 48,
        "occupancy": 0.75,
    }


def test_every_round_is_in_the_json_object(with_rounds):
    made = json.loads(json.dumps(json_of(with_rounds), allow_nan=False))
    assert [one["candidate"] for one in made["workloads"]] == ["r1", "r3", "r3"]
    assert [(one["round"], one["end"], one["base"]) for one in made["rounds"]] == [
        (1, "searched", "initial"),
        (2, "refused", "r1"),
        (3, "searched", "r1"),
        (4, "refused", "r3"),
        (5, "searched", "r3"),
        (6, "open", "r3"),
    ]
    third = made["rounds"][2]
    assert third.pop("hypothesis").startswith("A block waits for one row")
    assert third.pop("refused") == list(with_rounds.rounds[2].record.problems)
    assert third == {
        "round": 3,
        "end": "searched",
        "base": "r1",
        "candidate": "r3",
        "change": "16-byte loads, and two rows a warp",
        "expectations": [
            {
                "metric": "time_us",
                "workload": "T=8192,E=256",
                "predicted": 0.5,
                "measured": 0.7308,
            },
            {"metric": "registers", "workload": None, "predicted": 1.5, "measured": 1.375},
            {"metric": "bank_conflicts", "workload": None, "predicted": 0.1, "measured": None},
        ],
        "speedup": 2.6,
        "over_base": 1.3684,
        "default_speedup": 1.8571,
        "search_gain": 1.4,
        "tokens": {"input": 78_000, "cached": 39_000, "output": 6_500},
        "cost": 0.078,
    }


def test_a_round_without_a_candidate_has_nulls_in_json(with_rounds):
    second = json_of(with_rounds)["rounds"][1]
    assert {second[name] for name in ("candidate", "speedup", "over_base", "search_gain")} == {None}
    assert len(second["refused"]) == 4


def test_the_candidate_is_a_column_only_where_it_is_not_always_the_first(data, with_rounds):
    assert " from " not in printed(data.results)
    head, first, _, second, *_ = printed(with_rounds.results).splitlines()[1:]
    assert head.split()[-2:] == ["from", "config"]
    assert first.split()[-2:] == ["r1", "block=64"]
    assert second.split()[-3:] == ["r3", "block=128", "rows_per_warp=2"]


def test_a_baseline_that_wins_is_from_no_candidate(with_rounds):
    kept = replace(with_rounds.results[0], baseline_wins=True)
    line = printed((kept, *with_rounds.results[1:])).splitlines()[2]
    assert line.split()[-2:] == ["-", "baseline"]


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


def test_what_a_cpu_has_no_use_for_is_left_out(data):
    result = replace(data.results[0], resources=Resources(None), occupancy=None)
    row = printed([result]).splitlines()[2]
    assert "79 %" not in row
    assert row.split()[5:8] == ["-", "-", "-"]
    (made,) = json_of(replace(data, on_cpu=True, results=(result,)))["workloads"]
    assert (made["roofline"], made["registers"], made["occupancy"]) == (None, None, None)


def test_what_is_unknown_is_null_in_json(data):
    result = replace(data.results[0], resources=None, occupancy=None)
    made = json_of(replace(data, results=(result,), seconds=1.23456))
    (workload,) = made["workloads"]
    assert (workload["registers"], workload["occupancy"]) == (None, None)
    assert made["seconds"] == 1.235


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "0.500"), (2.0204, "2.020"), (22.134, "22.13"), (211.66, "211.7"), (12345.6, "12,346")],
)
def test_microseconds_have_four_digits(value, text):
    assert formatting.microseconds(value) == text


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ((1.5, 1.625), "[1.50, 1.62]"),
        ((1.0012, 1.05), "[1.001, 1.05]"),
        ((0.9, 0.99996), "[0.90, 1.0000]"),
        ((1.0, 1.1), "[1.00, 1.10]"),
    ],
)
def test_a_bound_beside_one_shows_its_side(bounds, text):
    assert formatting.interval(bounds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(41.25, "41.2 s"), (185.0, "3 min 05 s"), (7800.0, "2 h 10 min"), (3599.7, "1 h 00 min")],
)
def test_durations_are_readable(value, text):
    assert formatting.seconds(value) == text


def test_occupancy_names_its_limiter():
    assert formatting.occupancy(Occupancy(0.5, 4, "registers")) == "50 % (registers)"
    assert formatting.occupancy(Occupancy(1.0, 8, "")) == "100 %"
    assert formatting.occupancy(None) == "-"


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


def test_every_row_says_whose_config_it_is(with_rounds):
    frame = trials_frame(with_rounds)
    assert frame.groupby("candidate").size().to_dict() == {
        "initial": 32,
        "r1": 32,
        "r3": 64,
        "r5": 64,
    }
