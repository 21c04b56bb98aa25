"""What `enough` may be, and what it decides besides the end of a search."""

from __future__ import annotations

from pathlib import Path

from tuner.app.plan import new_plan
from tuner.model.settings import (
    CLOSE_COMPARISON_ROUNDS,
    COMPARISON_ROUNDS,
    ENOUGH,
    ENOUGH_OF_A_FLEET,
)


def rounds_of(project: Path, **settings: float) -> int:
    plan = new_plan(project / "scale.cu", {"space": project / "scale.yaml", **settings})
    return plan.config.comparison_rounds


def test_who_looks_on_for_less_compares_in_more_rounds(project: Path) -> None:
    assert rounds_of(project) == rounds_of(project, enough=ENOUGH) == COMPARISON_ROUNDS
    assert rounds_of(project, enough=0.02) == COMPARISON_ROUNDS
    assert rounds_of(project, enough=ENOUGH_OF_A_FLEET) == CLOSE_COMPARISON_ROUNDS
