"""What `enough` may be, and what it decides besides the end of a search."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.app.plan import new_plan
from tuner.model.errors import InputError
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


@pytest.mark.parametrize("share", [-0.001, 1.0, float("nan")])
def test_what_is_no_share_is_refused(project: Path, share: float) -> None:
    with pytest.raises(InputError, match="it is a share of the best time"):
        rounds_of(project, enough=share)
