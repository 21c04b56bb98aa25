"""Cases of which the first ones run always, and the others with `scripts/test --all`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def mostly_slow(cases: Iterable[Any], quick: Sequence[Any] = ()) -> list[Any]:
    """Mark all cases as slow but those in `quick`, or the first one."""
    listed = list(cases)
    chosen = quick or listed[:1]
    return [
        case
        if case in chosen
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in listed
    ]
