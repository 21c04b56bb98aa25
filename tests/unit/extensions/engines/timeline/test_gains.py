"""What is predicted of a step, and what is said of it afterwards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from dispatch_sample import BASELINE_US, comparison, with_production
from operator_sessions import choices, write_operator_session

from tuner.extensions.engines.timeline.gains import (
    best_for,
    known_bests,
    measured_gain,
    predicted_gain,
)
from tuner.extensions.engines.timeline.operators import Label
from tuner.extensions.engines.timeline.table import Best, Row, rows_of
from tuner.extensions.engines.timeline.trace import Trace, TracedLaunch
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Variant
from tuner.session.session import Session
from tuner.space.load import load_definition

ROOT = Path(__file__).parents[5]


def trace_of(*calls: tuple[int, float, Label]) -> tuple[tuple[Row, ...], Trace]:
    """Make the trace of calls one after another, so many that take so long, and its rows."""
    launches, now = [], 0.0
    for count, us, label in calls:
        for _ in range(count):
            launches.append((TracedLaunch("k", now, us, (1, 1, 1)), label))
            now += us
    return rows_of(launches, {}, None), Trace(Path("t.json"), tuple(one for one, _ in launches))


def gemm(n: int) -> Label:
    return Label("gemm_small_m", "", workload=Workload.of({"M": 8, "N": n, "K": 4096}))


def test_steps_are_counted_by_the_same_workload_of_an_operator() -> None:
    before = trace_of((1, 300.0, gemm(128256)), (48, 6.0, gemm(4096)))
    after = trace_of((1, 250.0, gemm(128256)), (48, 6.0, gemm(4096)))
    assert measured_gain(*before, *after) == pytest.approx(50.0 / 588.0)


@pytest.mark.parametrize(
    ("engine", "us", "share"),
    [
        ("SGLang", 13.8, 1 - 1 / 1.38),
        # It runs what is nearly the best.
        ("SGLang", 11.0, 1 - 10 / 11),
        ("SGLang", 9.0, 0.0),
        ("tune", 10.0, None),
    ],
)
def test_what_already_runs_is_not_predicted_again(
    engine: str, us: float, share: float | None
) -> None:
    ((row,), _) = trace_of((4, us, replace(gemm(4096), engine=engine)))
    gain = predicted_gain(replace(row, best=Best("config", 10.0, 1.38, (1.3, 1.4))))
    assert (gain and gain.share) == (share if share is None else pytest.approx(share))


def test_where_rows_keep_their_bits_no_peer_is_the_best(tmp_path: Path) -> None:
    path = ROOT / "search_spaces/sglang/gemm_invariant.yaml"
    chosen = choices("gemm_invariant")[0]
    session = write_operator_session(tmp_path / "s", "gemm_invariant", chosen)
    definition = load_definition(path, chosen)
    assert definition.space.default is not None
    with Session.open(session) as opened:
        (made,) = opened.comparisons()
        ours = {Variant(INITIAL, definition.space.default): 0.8 * BASELINE_US}
        opened.append(
            replace(with_production(comparison(made.workload, ours), 2.0, "pytorch"), production="")
        )
    label = Label("gemm_invariant", "", "", tuple(chosen.items()), made.workload)
    spaces = {"gemm_invariant": load_definition(path)}
    best = best_for(label, known_bests([tmp_path], "NVIDIA H200", spaces), spaces)
    assert best is not None
    assert (best.name, best.speedup) == ("config", pytest.approx(1.25, rel=1e-3))
    elsewhere = best_for(label, known_bests([tmp_path], "NVIDIA H200", {}), spaces)
    assert elsewhere is not None
    assert elsewhere.name == "pytorch"
