"""What the report says of the surroundings, and where times alone say otherwise."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rich.console import Console

from tuner.model.config import Config
from tuner.model.trial import Comparison, Variant
from tuner.report.html import render_report
from tuner.report.sections.surroundings import ALONE, disagreements, surroundings_lines
from tuner.report.terminal import json_of, results_table

DECODE = "decode: after stream 16777216 at x, before stream 16777216 at y"
OTHER = Variant("t0", Config.of({"block_size": 64, "vector_bytes": 8, "keep_row": True}))


def between(data, *, other_us: float, other_alone_us: float):
    """Time one workload between neighbours: the winner takes 10 us there, and 12 us alone."""
    result = replace(
        data.results[0],
        tuned_us=10.0,
        surroundings="decode",
        alone_us=12.0,
        alone_baseline_us=18.0,
    )
    rows = tuple((13.0, 10.0 + 0.001 * (k % 3), other_us, 11.0) for k in range(40))
    comparison = Comparison(
        result.workload,
        (result.variant, OTHER),
        rows,
        peers=("sgl-jit",),
        surroundings="decode",
        alone_us=(18.0, 12.0, other_alone_us, 12.5),
        production="sgl-jit",
    )
    return replace(
        data, results=(result,), comparisons=(comparison,), surroundings={"decode": DECODE}
    )


def test_it_says_by_how_much_another_would_have_won_alone(data):
    (one,) = disagreements(between(data, other_us=10.8, other_alone_us=11.0))
    assert str(one) == (
        "T=1 D=11008: alone, t0: block_size=64 vector_bytes=8 keep_row=true would have won by "
        "9.1 %; in its surroundings it is 8.0 % slower."
    )


def test_no_loss_is_said_that_is_not_proved(data):
    (one,) = disagreements(between(data, other_us=10.001, other_alone_us=11.0))
    assert str(one).endswith("in its surroundings no difference to the winner is proved.")


def test_what_chance_kept_from_winning_is_told_as_faster(data):
    run = between(data, other_us=11.0, other_alone_us=11.0)
    (said,) = run.comparisons
    late = tuple((row[0], row[1], 0.8 * row[2], row[3]) for row in said.rounds[10:])
    ahead = replace(said, rounds=(*said.rounds[:10], *late))
    (one,) = disagreements(replace(run, comparisons=(ahead,)))
    assert str(one).endswith("in its surroundings it is 14 % faster, too.")
    assert not one.clear


def test_between_neighbours_only_a_time_alone_has_a_roofline(data):
    run = between(data, other_us=10.8, other_alone_us=11.0)
    page = render_report(run)
    assert "; 12.00 us, floor" in page
    lacking = replace(run, results=tuple(replace(r, alone_us=None) for r in run.results))
    assert json_of(lacking)["workloads"][0]["roofline"] is None
    assert "Achieved memory rate" not in render_report(lacking)
    assert "not known" in render_report(lacking)


@pytest.mark.parametrize("alone_us", [12.0, 11.99, 14.0])
def test_where_both_agree_nothing_is_said(data, alone_us):
    assert disagreements(between(data, other_us=10.8, other_alone_us=alone_us)) == ()


def test_the_page_the_object_and_the_table_have_both_times(data):
    run = between(data, other_us=10.8, other_alone_us=11.0)
    page = render_report(run)
    assert DECODE in page
    assert "Tuned us there" in page
    assert "Alone and cold us" in page
    assert ALONE.partition(",")[0] not in page
    (row,) = json_of(run)["workloads"]
    assert (row["surroundings"], row["alone_us"], row["alone_speedup"]) == ("decode", 12.0, 1.5)
    assert json.loads(json.dumps(json_of(run)))["surroundings"] == {"decode": DECODE}
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(results_table(run.results, width=80))
    assert "chain us" in capture.get()
    assert "1.50x" in capture.get()


def test_what_was_measured_alone_says_what_that_leaves_open(data):
    assert surroundings_lines(data) == [ALONE]
    assert surroundings_lines(replace(data, on_cpu=True)) == []
    some = replace(data.results[0], surroundings="decode")
    lines = surroundings_lines(replace(data, results=(some, *data.results[1:])))
    assert lines[0] == "decode (T=1 D=11008)"
    assert lines[1].startswith("T=1 D=14336, T=16 D=11008, T=16 D=14336, T=128 D=11008 and 8 more")
    assert lines[1].endswith(ALONE)
