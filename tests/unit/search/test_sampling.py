"""Spaces that are too large to list are counted and sampled, and their pools grow."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import product
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import process_time

import numpy as np
import pytest

from tuner.model.config import Config, SearchSpace
from tuner.model.errors import ExpressionError, InputError
from tuner.search import enumeration
from tuner.search.factory import make_searcher, require_listed
from tuner.search.pool import Pool, RemainingConfigs, valid_configs
from tuner.testing.searchers import make_space


def numbered(count: int, values: int, *constraints: str) -> SearchSpace:
    return make_space({f"p{i}": range(1, values + 1) for i in range(count)}, *constraints)


# 10^12 combinations, 1 in 50 000 valid
TIGHT = numbered(
    12,
    10,
    "p0 * p1 <= 30",
    "p1 + p2 + p3 <= 10",
    "p3 % p4 == 0",
    "p4 * p5 * p6 <= 64",
    "p6 < p7 < p8",
    "p8 * p9 % (p7 * p10) == 0",
    "p11 >= p0",
    "p0 * p4 * p8 % 2 == 1",
)
SUM = " + ".join(f"p{i}" for i in range(12))
# one constraint over all parameters, which half of the draws break
EVEN = numbered(
    12, 10, "p0 * p1 <= 30", "p3 % p4 == 0", "p6 < p7 < p8", "p11 >= p0", f"({SUM}) % 2 == 0"
)
ROOT = Path(__file__).parents[3]


def holds(space: SearchSpace, pool: Pool, indices: Sequence[int]) -> bool:
    return all(space.violated(pool[i], {}) is None for i in indices)


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have spaces of a few configs sampled."""
    monkeypatch.setattr(enumeration, "MOST_HELD", 1)
    enumeration.enumerate_rows.cache_clear()
    yield
    enumeration.enumerate_rows.cache_clear()


class TestCounting:
    def test_unconstrained_combinations_are_multiplied(self) -> None:
        assert valid_configs(numbered(40, 10), {}).estimated_size == 10**40

    def test_what_no_constraint_is_left_for_multiplies_the_count(self) -> None:
        pool = valid_configs(numbered(12, 10, "p3 + p7 <= 8", "p1 != p2"), {})
        assert pool.estimated_size == 28 * 90 * 10**8
        assert pool.size_is_exact

    def test_more_valid_configs_than_are_held_are_counted_exactly(self) -> None:
        pool = valid_configs(numbered(6, 10, "p0 != p1"), {})
        assert pool.sampled
        assert (pool.estimated_size, pool.size_is_exact) == (900_000, True)
        with pytest.raises(InputError, match=r"^900000 valid configs are too many") as caught:
            require_listed(pool)
        assert "--searcher random" in (caught.value.remedy or "")

    def test_the_rest_is_estimated_from_draws(self) -> None:
        pool = valid_configs(numbered(12, 10, f"{SUM} == 54"), {})
        one = np.array([0] + [1] * 10, dtype=object)
        exact = reduce(np.convolve, [one] * 12)[54]
        assert pool.estimated_size == pytest.approx(exact, rel=0.03)
        assert not pool.size_is_exact
        with pytest.raises(InputError, match=r"^about \d{11} valid configs are too many"):
            require_listed(pool)

    def test_what_is_listed_in_the_end_may_be_sampled_on_the_way(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        space = numbered(7, 5, "p0 * p1 * p2 * p3 * p4 * p5 * p6 % 3 == 0", "p6 < p2")
        exact = valid_configs(space, {})
        assert not exact.sampled
        monkeypatch.setattr(enumeration, "MOST_PARTIAL", 1000)
        enumeration.enumerate_rows.cache_clear()
        pool = valid_configs(space, {})
        enumeration.enumerate_rows.cache_clear()
        assert pool.sampled
        assert pool.estimated_size == pytest.approx(len(exact), rel=0.03)
        assert set(pool) <= set(exact)


class TestSamples:
    def test_every_config_of_a_sample_is_valid_and_different(self) -> None:
        pool = valid_configs(TIGHT, {})
        assert pool.sampled
        assert pool.estimated_size == pytest.approx(18_566_696, rel=0.02)
        assert len(pool) == 20_000
        # different, and in the order of the file
        assert (np.unique(pool.encoded, axis=0) == pool.encoded).all()
        assert holds(TIGHT, pool, range(0, len(pool), 100))

    @pytest.mark.parametrize("partial", [50, 1000])
    def test_all_configs_are_equally_likely(
        self, small_limits: None, monkeypatch: pytest.MonkeyPatch, partial: int
    ) -> None:
        space = make_space(
            {"a": range(1, 9), "b": range(1, 9), "c": (1, 2, 3), "d": (False, True)},
            "a * b <= 12",
            "c <= a or d",
        )
        monkeypatch.setattr(enumeration, "MOST_PARTIAL", partial)
        rows = product(*(p.values for p in space.parameters))
        configs = [Config.of(zip(space.names, row, strict=True)) for row in rows]
        valid = [config for config in configs if space.violated(config, {}) is None]
        found = enumeration.enumerate_rows(
            enumeration.Domains.of(space.parameters), space.constraints
        )
        assert not found.listed
        assert bool(found.loose) == (partial == 50)
        rng = np.random.default_rng(5)
        draws = np.concatenate([found.draw(rng) for _ in range(10)])
        counts = Counter(map(tuple, draws.tolist()))
        expected = len(draws) / len(valid)
        chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
        freedom = len(valid) - 1
        assert len(counts) == len(valid)
        # within four standard deviations of its mean
        assert abs(chi_square - freedom) < 4 * (2 * freedom) ** 0.5

    def test_each_value_is_as_frequent_as_among_all_valid_configs(self) -> None:
        # of the 10 values of p0, `k` leaves 11 - k for p11
        pool = valid_configs(numbered(12, 10, "p11 >= p0"), {})
        counts = np.bincount(pool.encoded[:, 0], minlength=10)
        expected = len(pool) * np.arange(10, 0, -1) / 55
        assert ((counts - expected) ** 2 / expected).sum() < 27.9  # chi-square, 9, p = 0.001

    def test_the_same_seed_gives_the_same_pool_and_growth(self) -> None:
        first, second = valid_configs(EVEN, {}), valid_configs(EVEN, {})
        other = valid_configs(EVEN, {}, seed=1)
        for pool in (first, second):
            assert len(pool) == 20_000, "pools of one space grow apart"
            pool.neighbours(7)
            pool.draw_more(50)
        assert (first.encoded == second.encoded).all()
        assert (other.encoded != first.encoded[: len(other)]).any()

    @pytest.mark.parametrize("count", [5, 100])
    def test_a_space_smaller_than_the_sample_is_drawn_whole(
        self, small_limits: None, count: int
    ) -> None:
        pool = valid_configs(make_space({"a": range(count)}, "a >= 0"), {})
        assert pool.encoded[:, 0].tolist() == list(range(count))
        assert pool.draw_more(10) == 0


class TestGrowth:
    def test_neighbours_outside_the_sample_are_taken_up(self) -> None:
        pool = valid_configs(EVEN, {})
        before = len(pool)
        neighbours = pool.neighbours(3).tolist()
        assert max(neighbours) >= before
        assert holds(EVEN, pool, neighbours)
        assert all(
            sum(pool[3][name] != pool[i][name] for name in EVEN.names) == 1 for i in neighbours
        )
        assert pool.neighbours(3).tolist() == neighbours
        assert len(pool) == before + sum(i >= before for i in neighbours)

    def test_any_valid_config_is_in_it_and_has_a_position(self) -> None:
        pool = valid_configs(EVEN, {})
        other = valid_configs(EVEN, {}, seed=1)
        held = set(pool)
        new = [other[i] for i in range(50) if other[i] not in held]
        size = len(pool)
        assert all(config in pool for config in new)
        assert len(pool) == size
        positions = [pool.index(config) for config in new]
        assert positions == list(range(size, size + len(new)))
        assert [pool[i] for i in positions] == new
        assert [pool.index(config) for config in new] == positions

    def test_other_configs_are_not(self) -> None:
        pool = valid_configs(EVEN, {})
        broken = {**pool[0], "p6": 9, "p7": 1}
        for config in (broken, {**pool[0], "p0": 77}, {"p0": 1}, "p0"):
            assert config not in pool
        with pytest.raises(ValueError, match="not a valid config"):
            pool.index(broken)

    def test_the_untried_follow(self) -> None:
        pool = valid_configs(EVEN, {})
        seed = valid_configs(EVEN, {}, seed=1)[4]
        untried = RemainingConfigs(pool, [seed])
        size = len(untried)
        assert pool[untried.take_seed() or 0] == seed
        added = [i for i in pool.neighbours(pool.index(seed)).tolist() if i >= size]
        assert len(untried) == size - 1 + len(added)
        assert untried.take(added[0]) not in untried
        assert all(i in untried for i in added[1:])

    def test_a_valid_wish_outside_the_sample_is_granted(self) -> None:
        pool = valid_configs(EVEN, {})
        untried = RemainingConfigs(pool)
        wish = valid_configs(EVEN, {}, seed=1).encoded[9]
        assert (pool.encoded != wish).any(axis=1).all()
        first, second = untried.take_nearest(wish), untried.take_nearest(wish)
        with pytest.raises(ValueError, match="read-only"):
            pool.encoded[0, 0] = 1
        assert pool.encoded[first].tolist() == wish.tolist()
        assert (pool.encoded[second] != wish).sum() == 1


class TestBadSpaces:
    def test_a_constraint_that_fails_somewhere_is_an_error(self) -> None:
        space = numbered(12, 10, "p0 % (p1 - 4) == 0", "p2 != p3")
        with pytest.raises(ExpressionError, match=r"`p0 % \(p1 - 4\) == 0`.*for p0=\d+ p1=4"):
            valid_configs(space, {})

    def test_unless_another_excludes_it(self) -> None:
        space = numbered(12, 10, "p0 % (p1 - 4) == 0", "p1 != 4 or p0 > 10")
        assert valid_configs(space, {}).sampled

    def test_an_axis_may_empty_it(self) -> None:
        space = numbered(12, 10, "p0 * p1 * p2 * p3 == T")
        assert valid_configs(space, {"T": 2520}).sampled
        assert valid_configs(space, {"T": 11}).emptied_by is space.constraints[0]

    def test_one_that_draws_never_satisfy_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(enumeration, "MOST_DRAWS", 40_000)
        space = numbered(12, 10, "p0 < p1", f"{SUM} == 120")
        with pytest.raises(InputError, match=r"== 120` left none of 40000 configs drawn") as caught:
            valid_configs(space, {})
        assert "several constraints" in (caught.value.remedy or "")


def cost(space: SearchSpace) -> None:
    """Print the seconds and the megabytes that a first proposal takes."""
    base = getrusage(RUSAGE_SELF).ru_maxrss
    started = process_time()
    pool = valid_configs(space, {})
    make_searcher("random", pool, space, seed=0, budget=100).ask(8)
    used = process_time() - started
    assert pool.estimated_size > 10**7
    print(used, (getrusage(RUSAGE_SELF).ru_maxrss - base) / 1024)


LOOSE = numbered(10, 8, "p0 * p1 <= 32", "p2 >= p3")


@pytest.mark.parametrize("space", ["TIGHT", "LOOSE"])
def test_ten_million_configs_take_little_time_and_memory(space: str) -> None:
    """Processor time, in a process of its own: other tests may run beside it."""
    folders = f"{ROOT / 'tests' / 'support'}:{Path(__file__).parent}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": folders}
    code = f"from test_sampling import *; cost({space})"
    command = [sys.executable, "-c", code]
    output = subprocess.check_output(command, env=environment, text=True)
    seconds, megabytes = map(float, output.split())
    assert seconds < 2
    assert megabytes < 200
