"""Cases of a sweep: some run always, others with `scripts/test --all` or `--exhaustive`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def mostly_slow(
    cases: Iterable[Any], quick: Sequence[Any] | None = None, sample: Sequence[Any] | None = None
) -> list[Any]:
    """Mark all cases as slow but those in `quick`, otherwise the first one.

    Where there is a `sample` of the slow ones, the others are the exhaustive sweep.
    """
    listed = list(cases)
    chosen = listed[:1] if quick is None else quick
    unknown = [case for case in (*chosen, *(sample or ())) if case not in listed]
    assert not unknown, f"{unknown} are no cases"

    def marked(case: Any) -> Any:
        if case in chosen:
            return case
        runs = sample is None or case in sample
        mark = pytest.mark.slow if runs else pytest.mark.exhaustive
        return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark)

    return [marked(case) for case in listed]
