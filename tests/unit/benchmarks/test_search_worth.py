"""benchmarks/search_worth.py: what it computes from rounds, and what it takes from a session."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from tuner.app.check import UnavailableDevice, target_info
from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import Measurement, Status, Trial, Variant
from tuner.tuning.evaluator import Candidates

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
WORKLOAD = Workload.of({"N": 1000})


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


worth = script("search_worth")


def columns(*times_us: float, rounds: int = 40) -> list[list[float]]:
    """Rounds that are slower and faster together, by up to 2 %."""
    drift = [1.0 + 0.02 * (k % 5) / 4 for k in range(rounds)]
    return [[time_us * factor for factor in drift] for time_us in times_us]


def test_a_drift_that_all_three_share_cancels_in_each_ratio() -> None:
    row = worth.row_of(columns(12.0, 6.0, 4.0), 0)
    ratios = {name: row[name]["ratio"] for name in worth.RATIOS}
    assert ratios == pytest.approx(
        {"default_over_baseline": 2.0, "search_over_baseline": 3.0, "search_over_default": 1.5}
    )
    assert row["search_over_default"]["interval"] == pytest.approx((1.5, 1.5))


@pytest.mark.parametrize(
    ("search_us", "word"), [(5.0, "faster"), (6.0, "same"), (5.995, "same"), (7.0, "slower")]
)
def test_a_difference_is_said_from_the_resolution_on(search_us: float, word: str) -> None:
    assert worth.row_of(columns(12.0, 6.0, search_us), 0)["search_over_default"]["said"] == word


def test_the_mean_over_workloads_is_geometric_and_inside_its_interval() -> None:
    noisy = [[10.0, 10.0], [4.0, 6.0], [5.0, 4.0]]
    means = worth.means_of([columns(8.0, 4.0, 1.0), columns(9.0, 9.0, 9.0)], 0)
    assert means["search_over_default"]["ratio"] == pytest.approx(2.0)
    assert means["search_over_baseline"]["ratio"] == pytest.approx(8.0**0.5)
    spread = worth.means_of([noisy, columns(8.0, 4.0, 1.0)], 0)["search_over_default"]
    low, high = spread["interval"]
    assert low < spread["ratio"] < high


def test_the_defaults_of_all_candidates_are_ranked_and_untimed_ones_left_out(
    make_plan, make_session, compiler
) -> None:
    plan = make_plan()
    candidates = Candidates(plan, compiler, UnavailableDevice(target_info("sm_90a")))
    session = make_session(plan)
    for name in ("initial", "r1", "r2", "r3"):
        session.add_candidate(name, "", "")
        candidates.add(replace(plan, candidate=name))
    default, other = plan.space.default, Config.of({"block": 256, "items": 1})
    session.record(_trial("initial", default, 3.0))
    session.record(_trial("r1", default, 2.0))
    session.record(_trial("r1", other, 1.0))
    session.record(_trial("r2", default, None))
    ranked = worth.defaults(session, candidates, WORKLOAD)
    assert ranked == [Variant("r1", default), Variant("initial", default)]
    session.close()


def _trial(candidate: str, config: Config, time_us: float | None) -> Trial:
    if time_us is None:
        return Trial(candidate, WORKLOAD, config, Status.INCORRECT)
    measurement = Measurement((time_us,) * 5, 20, 4)
    return Trial(candidate, WORKLOAD, config, Status.CORRECT, measurement=measurement)
