"""What came of the rounds: outcomes beside predictions, and what was tried before."""

from __future__ import annotations

import pytest
from feedback_samples import HISTORY, made, refused

from tuner.extensions.agents.history import LINE, memory_text, outcome, sentence
from tuner.session.events import Expectation, Idea, Moved, RoundOutcome

A, B = "T=1,E=256", "T=8192,E=256"


def idea(*expectations: Expectation) -> Idea:
    return Idea("initial", "it waits for memory", "one warp a row", expectations)


def compared(*expectations: Expectation, **changes) -> RoundOutcome:
    values = {
        "baseline_us": {A: 4.0, B: 16.0},
        "base_us": {A: 4.0, B: 10.0},
        "best_us": {A: 2.0, B: 8.0},
        "default_us": {A: 2.5, B: None},
        "base_metrics": {A: {"registers": 64, "spill_bytes": 0}, B: {"registers": 40}},
        "metrics": {A: {"registers": 32, "spill_bytes": 8}, B: {"registers": 40}},
    }
    return outcome(idea(*expectations), **{**values, **changes})


def test_speedups_are_geometric_means_over_baseline_and_base():
    found = compared()
    assert found.speedup == pytest.approx(2.0)
    assert found.over_base == pytest.approx((2.0 * 1.25) ** 0.5)
    assert found.best_us == {A: 2.0, B: 8.0}
    assert found.default_us == {A: 2.5, B: None}


def test_of_a_mix_they_are_those_of_its_time():
    found = compared(weights={A: 10.0, B: 1.0})
    assert found.speedup == pytest.approx(56.0 / 28.0)
    assert found.over_base == pytest.approx(50.0 / 28.0)


def test_the_baseline_stands_in_where_a_workload_has_no_correct_config():
    found = compared(best_us={A: 1.0})
    assert found.speedup == pytest.approx((4.0 * 1.0) ** 0.5)
    assert found.over_base == pytest.approx((4.0 * (10.0 / 16.0)) ** 0.5)


def test_no_correct_config_at_all_is_no_speedup():
    found = compared(Expectation("time_us", 0.5), best_us={})
    assert (found.speedup, found.over_base) == (None, None)
    assert found.moved == (Moved("time_us", "", 0.5, None),)


@pytest.mark.parametrize(
    ("expectation", "actual"),
    [
        (Expectation("time_us", 0.6, B), 0.8),
        (Expectation("time_us", 0.6), (0.5 * 0.8) ** 0.5),
        (Expectation("registers", 0.5, A), 0.5),
        (Expectation("registers", 0.5), 0.75),  # the middle of 0.5 and 1
        (Expectation("spill_bytes", 0.5, A), None),  # of 0 nothing is a multiple
        (Expectation("spill_bytes", 0.5, B), None),
        (Expectation("bank_conflicts", 0.5), None),
        (Expectation("time_us", 0.5, "T=7,E=7"), None),
    ],
)
def test_each_expectation_gets_the_factor_that_was_measured(expectation, actual):
    (moved,) = compared(expectation).moved
    assert moved.actual == (None if actual is None else pytest.approx(actual))


def test_a_count_that_falls_to_nothing_is_a_factor_of_zero():
    found = compared(
        Expectation("spill_bytes", 0.1),
        base_metrics={A: {"spill_bytes": 64}, B: {"spill_bytes": 0}},
        metrics={A: {"spill_bytes": 0}, B: {"spill_bytes": 0}},
    )
    assert found.moved[0].actual == 0.5  # the middle of 0 and unchanged


@pytest.mark.parametrize(
    ("moved", "text"),
    [
        (Moved("time_us", B, 0.6, 0.71), f"expected time x0.60 on {B}, got x0.71"),
        (Moved("spill_bytes", "", 0.5, None),
         "expected spill bytes x0.50 on all workloads, not measured"),
        (Moved("registers", A, 0.5, 1.25),
         f"expected registers x0.50 on {A}, got x1.25, the other way"),
    ],
)  # fmt: skip
def test_the_sentence_states_both(moved, text):
    assert sentence(moved) == text


def test_the_memory_of_a_session(golden):
    golden("memory.txt", memory_text(HISTORY))
    assert memory_text(()) == "Nothing was tried before this round."


def test_failures_of_other_bases_are_told_apart():
    text = memory_text((refused(1, "a", "x", "no block"), refused(2, "b", "y", "no block")))
    assert text.count("no block") == 2


def test_an_entry_has_at_most_three_lines_of_bounded_length():
    words = "long words " * 200
    history = [refused(n, "initial", f"{n} {words}", words) for n in range(1, 9)]
    lines = memory_text(history).splitlines()
    assert len(lines) == 4  # one of them names the base
    assert max(map(len, lines)) <= LINE + 2


def test_older_rounds_are_counted_with_their_best():
    history = [made(n, "initial", f"change {n}", 1 + n / 10, 1.1) for n in range(1, 31)]
    text = memory_text(history, most=10)
    assert "round 21" in text
    assert "round 20" not in text
    assert text.endswith(
        "[left out: 20 older rounds, 0 of them failed, the best of them x3.00 as fast as the "
        "baseline]"
    )
