"""What two_seeds.py and stand_ins.py compute of costs; the costs themselves need a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import two_seeds
from stand_ins import Costs, row_of
from two_seeds import compared

from tuner.model.config import Config
from tuner.model.kernel import Workload

WORKLOAD = Workload.of({"T": 64})
ONE, OTHER = Config.of({"block": 64}), Config.of({"block": 128})


def between(*times_us: float | None, noise_us: float = 0.0) -> dict[str, Any]:
    rng = np.random.default_rng(0)

    def rank(programs: list[Any], rounds: int) -> list[list[float | None]]:
        noise = noise_us * rng.standard_normal((rounds, 2))
        return [
            [None if us is None else us + more for us, more in zip(times_us, row, strict=True)]
            for row in noise.tolist()
        ]

    device, evaluator = SimpleNamespace(rank=rank), SimpleNamespace(program=lambda *_: None)
    return compared(cast(Any, device), cast(Any, evaluator), WORKLOAD, [ONE, OTHER], 200)


def test_regret_is_how_much_slower_the_slower_winner_is() -> None:
    for times_us in ((4.0, 5.0), (5.0, 4.0)):
        row = between(*times_us)
        assert row["regret"] == pytest.approx(0.25)
        assert row["rounds"] == two_seeds.BATCH


def test_winners_that_scatter_run_on_to_the_last_round() -> None:
    assert between(4.0, 4.1, noise_us=0.5)["rounds"] == 200


def test_one_winner_of_both_seeds_has_no_regret_and_is_not_run() -> None:
    row = compared(cast(Any, None), cast(Any, None), WORKLOAD, [ONE, ONE], 20)
    assert (row["same"], row["regret"]) == (True, 0.0)


def test_a_winner_that_is_wrong_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="wrong"):
        between(4.0, None)


def test_what_was_measured_of_another_operator_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "two_seeds.json"
    assert two_seeds.kept(file, ["a"]) == []
    file.write_text(json.dumps({"operators": [{"kernel": "a"}, {"kernel": "b"}]}))
    assert two_seeds.kept(file, ["a"]) == [{"kernel": "b"}]


def costs(*us: float) -> Costs:
    return Costs([*us], [*us], [*us[::-1]])


def test_stand_ins_are_judged_by_ranks_and_by_what_their_best_costs() -> None:
    row = row_of(16, costs(9.0, 1.0, 2.0, 3.0), costs(8.0, 5.0, 4.0, 6.0))
    assert row["rank_correlation"] == pytest.approx(0.8)
    assert row["repeats"] == pytest.approx([0.6, 0.6])
    assert (row["configs"], row["regret"]) == (3, 1.0)
