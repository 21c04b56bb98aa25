"""Which combinations of parameter values satisfy a set of constraints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tuner.search.derived import Derivation
from tuner.search.joint import MOST_JOINED
from tuner.search.rows import Rows, TooManyRowsError, no_rows
from tuner.search.sampling import BATCH, Population, satisfying
from tuner.search.tables import Part, Table, joinable, joint_of_tables, parts_of, tables_of

if TYPE_CHECKING:
    from tuner.expressions import Expression
    from tuner.search.joint import Joint
    from tuner.space import Parameter

# More are sampled. Half a million configs of ten parameters are listed in 0.1 s; they take 25 MB
# per workload, of which there may be ten at once, and a searcher looks at each for a proposal. One
# second would be enough for 3 million, 500 MB for 8 million.
MOST_HELD = 500_000
# What a join may be expected to take: the expectation may be far too high, or too low. None at
# all leaves every constraint to be tried on rows.
_LIMITS = (30 * MOST_JOINED, MOST_JOINED, MOST_JOINED // 10, MOST_JOINED // 100, 0)


@dataclass(frozen=True, slots=True)
class Domains:
    """Parameters as a cache key that keeps `true`, `1` and `1.0` apart."""

    text: str
    parameters: tuple[Parameter, ...] = field(compare=False, repr=False)

    @classmethod
    def of(cls, parameters: tuple[Parameter, ...]) -> Domains:
        """Make the key from names and values."""
        return cls(repr([(p.name, p.values) for p in parameters]), parameters)


@dataclass(frozen=True, slots=True)
class Solutions:
    """Rows of value indices in lexicographic order.

    `emptied_by` is the position of the first constraint that alone leaves no row.
    """

    rows: Rows
    emptied_by: int | None = None


@lru_cache(maxsize=8)
def enumerate_rows(domains: Domains, residuals: tuple[Expression, ...]) -> Solutions | Population:
    """Find every row that satisfies all residual constraints; describe more than `MOST_HELD`.

    Rows are counted before any is listed (tuner/search/joint.py). Only a constraint over too many
    combinations of its own parameters takes no part in that: it is tried on rows of the others.
    Raises `FailingRowError` for a constraint that cannot be evaluated.
    """
    parameters = domains.parameters
    if not all(parameter.values for parameter in parameters):
        return Solutions(no_rows(len(parameters)))
    parts = parts_of(parameters, residuals)
    derivation = Derivation(list(parameters), len(parameters))
    tables = tables_of(derivation, parts)
    joint, loose = _joint(derivation, parts, tables)
    _require_evaluated(parts, derivation, tables, loose)
    if joint.size > MOST_HELD:
        return Population.of(parameters, parts, joint, loose)
    rows = joint.all_rows(MOST_HELD)[:, : len(parameters)]
    rows = rows[satisfying(parameters, loose, rows)]
    rows.flags.writeable = False
    return Solutions(rows, None if len(rows) else _emptied_by(parameters, parts))


def _joint(
    derivation: Derivation, parts: Sequence[Part], tables: dict[Part, Table]
) -> tuple[Joint, tuple[Part, ...]]:
    """Join what can be joined, and say which constraints are left out of it."""
    for limit in _LIMITS:
        kept = joinable(derivation, tables, limit)
        try:
            joint = joint_of_tables(derivation, [table.relations for table in kept.values()])
        except TooManyRowsError:
            continue
        return joint, tuple(part for part in parts if part not in kept)
    raise AssertionError("nothing joined is never too large")


def _require_evaluated(
    parts: Sequence[Part],
    derivation: Derivation,
    tables: dict[Part, Table],
    loose: Sequence[Part],
) -> None:
    """Raise `FailingRowError` where a constraint fails on a row that all others allow."""
    counted = {part: tables[part] for part in parts if part not in loose}
    for part, table in counted.items():
        if not len(table.failing.rows):
            continue
        others = [counted[other].relations for other in counted if other is not part]
        joint = joint_of_tables(derivation, [(table.failing, *table.steps), *others])
        if joint.size:
            # Any of these rows fails, unless the loose constraints exclude it.
            given = derivation.parameters[: derivation.given]
            rows = joint.draw(BATCH, np.random.default_rng(0))[:, : len(given)]
            satisfying(given, parts, np.unique(rows, axis=0))


def _emptied_by(parameters: tuple[Parameter, ...], parts: Sequence[Part]) -> int | None:
    for constraint in sorted({part.constraint for part in parts}):
        own = [part for part in parts if part.constraint == constraint]
        derivation = Derivation(list(parameters), len(parameters))
        tables = tables_of(derivation, own)
        if not _joint(derivation, own, tables)[0].size:
            return constraint
    return None
