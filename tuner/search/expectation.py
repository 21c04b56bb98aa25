"""What is left to find: when a search may end before its budget."""

from __future__ import annotations

from math import expm1
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.search.members import GaussianMember


def expected_gain(model: GaussianMember) -> float:
    """Return the largest expected improvement, as a share of the best time."""
    gains = model.gains()
    return -expm1(-max(0.0, float(gains.max(initial=0.0))))
