"""Classes of configs with equal bits, what decides them, and what keeping the default's costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Correctness, Measurement, Status, Trial
from tuner.report.data import ReportData
from tuner.report.html import render_report
from tuner.report.sections.bits import bits_json, bits_lines, classes, separations

HERE = Workload.of({"T": 1})


def make(bits: str, time_us: float, *, early: bool = False, **values: int) -> Trial:
    return Trial(
        candidate=INITIAL,
        workload=HERE,
        config=Config.of(values),
        status=Status.CORRECT,
        measurement=Measurement((time_us,), 20, 4, early),
        correctness=Correctness(True, bits=bits),
    )


# The bits depend on k alone; of w there are pairs, of s none.
TRIALS = (
    make("aa", 10.0, k=1, w=1, s=1),
    make("aa", 10.3, k=1, w=2, s=1),
    make("bb", 10.0, k=2, w=1, s=1),
    make("bb", 5.0, early=True, k=2, w=2, s=1),
)
DATA = ReportData(
    "k",
    "GPU",
    recorded=False,
    records=tuple((trial, 0.0) for trial in TRIALS),
    default=Config.of({"k": 1, "w": 2, "s": 1}),
    baseline_bits={HERE.key: "bb"},
)


def test_the_defaults_class_comes_first_and_short_looks_are_no_times() -> None:
    ((own, other),) = (one.classes for one in classes(DATA))
    assert (own.bits, own.configs, own.best_us, own.name) == ("aa", 2, 10.0, "the default's")
    assert (other.bits, other.configs, other.best_us) == ("bb", 2, 10.0)
    assert other.name == "the baseline's"
    assert own.best_config == TRIALS[0].config


def test_trials_of_other_bits_count_for_their_class_and_wrong_ones_for_none() -> None:
    kept = tuple(
        replace(trial, status=Status.OTHER_BITS if trial.config["k"] == 2 else trial.status)
        for trial in TRIALS
    )
    wrong = replace(TRIALS[0], status=Status.INCORRECT)
    none = replace(TRIALS[0], correctness=None)
    records = tuple((trial, 0.0) for trial in (*kept, wrong, none))
    assert classes(replace(DATA, records=records)) == classes(DATA)


@pytest.mark.parametrize(
    ("other_us", "said", "cost"),
    [
        (8.0, "its best is 25.0% slower than the best of all", 0.25),
        (11.0, "the fastest of all is one of them", 0.0),
    ],
)
def test_it_is_said_what_keeping_bits_costs(other_us: float, said: str, cost: float) -> None:
    trials = (*TRIALS[:2], make("bb", other_us, k=2, w=1, s=1))
    data = replace(DATA, records=tuple((trial, 0.0) for trial in trials))
    assert bits_lines(data)[0] == (
        f"T=1: 3 configs in 2 classes; 2 in the default's, the baseline has other bits; {said}"
    )
    (on,) = bits_json(data)["workloads"]  # type: ignore[attr-defined]
    assert on["cost"] == cost
    on_cpu = replace(data, on_cpu=True)
    assert "slower" not in bits_lines(on_cpu)[0], "its times say nothing"


def test_only_pairs_that_differ_in_one_parameter_tell_what_decides() -> None:
    found = {one.name: (one.pairs, one.differing) for one in separations(TRIALS)}
    assert found == {"k": (2, 2), "w": (2, 0), "s": (0, 0)}
    assert bits_lines(DATA)[-1] == (
        "of 4 trials, where one parameter alone differs: bits differ with k; "
        "with w (2) no pair of trials differs; of s nothing was seen"
    )


def test_the_report_and_the_json_show_them_where_there_are_any() -> None:
    page = render_report(DATA)
    assert "Bits of the outputs" in page
    assert "the baseline&#39;s" in page
    made = bits_json(replace(DATA, keep_bits=True))
    assert made["kept"] is True
    assert made["parameters"]["k"] == {"pairs": 2, "differing": 2}  # type: ignore[index]
    silent = replace(DATA, records=((replace(TRIALS[0], correctness=None), 0.0),))
    assert bits_json(silent) == {}
    assert bits_lines(silent) == ()
    assert "Bits of the outputs" not in render_report(silent)
