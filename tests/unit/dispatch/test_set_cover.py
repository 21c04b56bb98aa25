"""The smallest set and the best set, against trying every set."""

from __future__ import annotations

from itertools import combinations
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.dispatch.set_cover import best_set, fewest_set, smallest_set

ROWS = st.lists(
    st.dictionaries(st.integers(0, 6), st.integers(0, 20).map(lambda n: n / 100), min_size=1),
    min_size=1,
    max_size=6,
)


def kind(option: int) -> int:
    return option // 2


def of_set(rows, allowed, otherwise=None):
    """The least cost of serving every row from a set, infinite where it can't be."""
    total = 0.0
    for r, row in enumerate(rows):
        costs = [cost for option, cost in row.items() if option in allowed]
        if otherwise is not None:
            costs.append(otherwise[r])
        total += min(costs, default=inf)
    return total


def sets(rows):
    options = sorted({option for row in rows for option in row})
    return [one for n in range(len(options) + 1) for one in combinations(options, n)]


def total(rows, chosen, otherwise=None):
    return sum(
        row[option] if option is not None else otherwise[r]
        for r, (row, option) in enumerate(zip(rows, chosen, strict=True))
    )


@settings(max_examples=60, deadline=None)
@given(ROWS)
def test_the_smallest_set_is_smallest_then_of_fewest_kinds_then_cheapest(rows):
    found = smallest_set(rows, kind)
    best = min(
        (len(one), len({kind(o) for o in one}), of_set(rows, one))
        for one in sets(rows)
        if of_set(rows, one) < inf
    )
    used = set(found)
    assert (len(used), len({kind(o) for o in used})) == best[:2]
    assert total(rows, found) == pytest.approx(best[2], abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.integers(0, 4), st.data())
def test_the_best_set_of_a_size_costs_least_and_is_no_larger_than_it_must_be(rows, most, data):
    costs = st.integers(0, 30).map(lambda n: n / 100)
    otherwise = data.draw(st.lists(costs, min_size=len(rows), max_size=len(rows)))
    found = best_set(rows, otherwise, most, kind)
    allowed = [one for one in sets(rows) if len(one) <= most]
    cheapest = min(of_set(rows, one, otherwise) for one in allowed)
    assert total(rows, found, otherwise) == pytest.approx(cheapest, abs=1e-5)
    enough = [one for one in allowed if of_set(rows, one, otherwise) <= cheapest + 1e-9]
    assert len(set(found) - {None}) == min(map(len, enough))


@pytest.mark.parametrize(
    ("rows", "otherwise", "most", "expected"),
    [
        (
            [*[{0: 0.0}] * 3, {0: 0.07, 1: 0.08, 2: 0.08}],
            [0.0, 0.0, 0.0, 0.1],
            1,
            (None,) * 3 + (0,),
        ),
        ([{6: 0.13, 4: 0.08, 5: 0.13}], [0.23], 3, (4,)),
    ],
)
def test_what_the_solver_s_presolve_fails_on_is_solved_without_it(rows, otherwise, most, expected):
    assert best_set(rows, otherwise, most, kind) == expected


def test_equal_choices_are_made_alike_every_time():
    rows = [dict.fromkeys(range(8), 0.0) for _ in range(6)]
    assert len({smallest_set(rows, kind) for _ in range(3)}) == 1


def test_a_row_that_nothing_serves_is_refused():
    with pytest.raises(ValueError, match=r"cannot be served|no choice"):
        smallest_set([{1: 0.0}, {}], kind)


def test_without_rows_or_options_nothing_is_chosen():
    assert smallest_set([], kind) == ()
    assert best_set([{}, {}], [0.1, 0.2], 3, kind) == (None, None)


@pytest.mark.timeout(60)
@pytest.mark.exhaustive
def test_forty_workloads_with_dozens_of_options_end_within_the_nodes():
    rows = [{(r + k * k) % 90: (k % 7) / 1000 for k in range(12)} for r in range(40)]
    assert len(set(smallest_set(rows, kind))) <= 8


@settings(max_examples=60, deadline=None)
@given(ROWS, st.integers(0, 40).map(lambda n: n / 100))
def test_the_fewest_set_is_the_smallest_that_costs_no_more_than_the_least_and_a_bit(rows, more):
    otherwise = [0.3] * len(rows)
    found = fewest_set(rows, otherwise, more, kind)
    least = of_set(rows, range(7), otherwise)
    enough = [s for s in sets(rows) if s and of_set(rows, s, otherwise) <= least + more + 1e-9]
    assert len({option for option in found if option is not None}) <= min(map(len, enough))
    if len(rows) > 1:
        assert total(rows, found, otherwise) <= least + more + 1e-5
    else:
        assert found == (min(rows[0], key=rows[0].__getitem__),)
