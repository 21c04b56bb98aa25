"""The rules say "faster" when it is true, and only then."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tuner.model.statistics import (
    FEWEST_ROUNDS,
    LEVEL,
    average_speedup,
    clearly_slower,
    cost_us,
    enough,
    floor_us,
    geometric_mean,
    paired_interval,
    relative_standard_error,
    roofline_share,
    trimmed_mean,
    unpaired_interval,
)

Samples = NDArray[np.float64]


def noisy(rng: np.random.Generator, median_us: float, clocks: Samples) -> Samples:
    """Samples as a GPU gives them: 0.6 % noise and 5 % slow outliers on top of the clocks."""
    times = median_us * clocks * (1 + 0.006 * rng.standard_normal(clocks.size))
    outliers = rng.random(clocks.size) < 0.05
    return np.where(outliers, times * (1 + rng.exponential(0.05, clocks.size)), times)


def drift(rng: np.random.Generator, rounds: int) -> Samples:
    """A common-mode drift of the clocks by 1.5 %: a ramp, or a slow swing at a random phase."""
    if rng.random() < 0.5:
        return 1 + 0.015 * np.linspace(0, 1, rounds)
    swing = np.linspace(0, rng.uniform(1, 12), rounds) + rng.uniform(0, 6)
    return 1 + 0.0075 * np.sin(swing)


def intervals(gain: float, rounds: int, runs: int = 300) -> Samples:
    rng = np.random.default_rng(20)
    found = []
    for seed in range(runs):
        clocks = drift(rng, rounds)
        baseline, candidate = noisy(rng, 20.0, clocks), noisy(rng, 20.0 / (1 + gain), clocks)
        found.append(paired_interval(baseline, candidate, seed, resamples=1000)[1])
    return np.array(found)


class TestPairedInterval:
    def test_equal_programs_are_called_different_in_at_most_one_run_of_twenty(self) -> None:
        low, high = intervals(gain=0.0, rounds=60).T
        assert 0.93 <= np.mean((low <= 1) & (high >= 1)) <= 1.0

    def test_the_interval_covers_a_true_gain(self) -> None:
        low, high = intervals(gain=0.01, rounds=60).T
        assert 0.93 <= np.mean((low <= 1.01) & (high >= 1.01)) <= 1.0

    def test_half_a_percent_is_found_in_a_hundred_rounds(self) -> None:
        low, _ = intervals(gain=0.005, rounds=100).T
        assert np.mean(low > 1) > 0.8

    def test_drift_between_sequential_measurements_deceives_only_the_unpaired(self) -> None:
        rng = np.random.default_rng(3)
        ramp = 1 + 0.015 * np.linspace(0, 1, 200)
        first, second = noisy(rng, 20.0, ramp[:100]), noisy(rng, 20.0, ramp[100:])
        _, (_, high) = unpaired_interval(first, second, 0)
        assert high < 1
        interleaved = noisy(rng, 20.0, ramp[::2]), noisy(rng, 20.0, ramp[::2])
        _, (low, high) = paired_interval(*interleaved, 0)
        assert low <= 1 <= high

    @pytest.mark.parametrize("compare", [paired_interval, unpaired_interval])
    def test_a_seed_decides_the_interval(self, compare) -> None:
        rng = np.random.default_rng(0)
        a, b = rng.normal(20, 0.2, 60), rng.normal(19, 0.2, 60)
        assert compare(a, b, 5) == compare(a, b, 5) != compare(a, b, 6)

    @pytest.mark.parametrize("seed", range(5))
    def test_a_difference_that_comes_near_zero_in_some_rounds_does_not_explode(self, seed) -> None:
        """Costs in surroundings: 2.5 and 2.0 us with noise of 1 us, no round below 0.001 us."""
        rng = np.random.default_rng(seed)
        baseline, candidate = (np.maximum(rng.normal(mean, 1.0, 30), 1e-3) for mean in (2.5, 2.0))
        speedup, (low, high) = paired_interval(baseline, candidate, 0)
        assert speedup == pytest.approx(cost_us(baseline) / cost_us(candidate))
        assert low <= speedup <= high < 2.5

    @pytest.mark.parametrize("rounds", [1, 5, 7, 30, 60])
    def test_the_speedup_lies_in_its_interval_and_is_that_of_the_costs_shown(self, rounds) -> None:
        rng = np.random.default_rng(rounds)
        for seed in range(50):
            pair = 20 * rng.lognormal(0, 0.3, rounds), 20 * rng.lognormal(0, 0.3, rounds)
            for compare in (paired_interval, unpaired_interval):
                speedup, (low, high) = compare(*pair, seed, resamples=200)
                assert low <= speedup <= high
                assert speedup == pytest.approx(cost_us(pair[0]) / cost_us(pair[1]))

    def test_the_interval_covers_the_ratio_of_two_noisy_differences(self) -> None:
        covered = []
        for seed in range(300):
            rng = np.random.default_rng(seed)
            pair = (np.maximum(rng.normal(mean, 0.4, 30), 1e-3) for mean in (2.5, 2.0))
            _, (low, high) = paired_interval(*pair, seed, resamples=1000)
            covered.append(low <= 1.25 <= high)
        assert np.mean(covered) >= 0.91

    def test_the_speedup_is_the_ratio_of_the_costs(self) -> None:
        assert paired_interval([10, 12, 11] * 4, [5, 6, 5.5] * 4, 0) == (2.0, (2.0, 2.0))

    def test_swapping_the_sides_inverts_the_interval(self) -> None:
        rng = np.random.default_rng(1)
        a, b = rng.normal(20, 0.2, 60), rng.normal(19, 0.2, 60)
        speedup, (low, high) = paired_interval(a, b, 0)
        inverse, inverse_interval = paired_interval(b, a, 0)
        assert inverse == pytest.approx(1 / speedup)
        assert inverse_interval == pytest.approx((1 / high, 1 / low), rel=1e-4)


class TestFewOrConstantSamples:
    @pytest.mark.parametrize("compare", [paired_interval, unpaired_interval])
    @pytest.mark.parametrize("rounds", [1, 2, 5])
    def test_too_few_rounds_never_claim_a_difference(self, compare, rounds: int) -> None:
        assert compare([20.0] * rounds, [10.0] * rounds, 0) == (2.0, (1.0, 2.0))
        assert compare([10.0] * rounds, [20.0] * rounds, 0) == (0.5, (0.5, 1.0))

    @pytest.mark.parametrize("compare", [paired_interval, unpaired_interval])
    def test_constant_samples_give_an_interval_without_width(self, compare) -> None:
        assert compare([20.0] * 6, [10.0] * 6, 0) == (2.0, (2.0, 2.0))
        assert compare([20.0] * 30, [20.0] * 30, 0) == (1.0, (1.0, 1.0))

    def test_sides_of_different_length_are_compared_only_unpaired(self) -> None:
        assert unpaired_interval([20.0] * 30, [10.0] * 7, 0) == (2.0, (2.0, 2.0))
        assert unpaired_interval([20.0] * 30, [10.0] * 5, 0) == (2.0, (1.0, 2.0))
        with pytest.raises(ValueError, match="30 and 7 samples are not pairs"):
            paired_interval([20.0] * 30, [10.0] * 7, 0)

    @pytest.mark.parametrize("compare", [paired_interval, unpaired_interval])
    @pytest.mark.parametrize("bad", [[], [0.0], [-1.0], [float("nan")], [float("inf")]])
    def test_times_that_cannot_be_are_refused(self, compare, bad: list[float]) -> None:
        with pytest.raises(ValueError, match="sample"):
            compare([1.0] * len(bad), bad, 0)

    def test_the_sign_test_sets_the_fewest_rounds(self) -> None:
        assert 2 * 0.5**FEWEST_ROUNDS <= 1 - LEVEL < 2 * 0.5 ** (FEWEST_ROUNDS - 1)


class TestStandardError:
    def test_it_agrees_with_the_spread_of_many_medians(self) -> None:
        rng = np.random.default_rng(0)
        samples = rng.normal(20, 0.2, (4000, 50))
        true = np.std(np.median(samples, axis=1)) / 20
        estimated = np.median([relative_standard_error(row) for row in samples[:500]])
        assert estimated == pytest.approx(true, rel=0.1)

    def test_outliers_hardly_move_it(self) -> None:
        rng = np.random.default_rng(0)
        clean = rng.normal(20, 0.2, 100)
        spoiled = clean.copy()
        spoiled[::20] *= 50
        before, after = relative_standard_error(clean), relative_standard_error(spoiled)
        assert before is not None
        assert after == pytest.approx(before, rel=0.3)

    def test_one_sample_has_none_and_constant_samples_have_zero(self) -> None:
        assert relative_standard_error([3.0]) is None
        assert relative_standard_error([3.0, 3.0]) == 0.0


class TestTrimmedMean:
    def test_its_error_agrees_with_the_spread_of_many_means(self) -> None:
        rng = np.random.default_rng(0)
        means, errors = trimmed_mean(rng.normal(5.0, 1.0, (48, 2000)), 1 / 16)
        assert means.mean() == pytest.approx(5.0, abs=0.02)
        assert errors.mean() == pytest.approx(means.std(), rel=0.1)

    def test_rounds_in_which_the_gpu_was_held_up_do_not_count(self) -> None:
        rounds = np.tile([[1.0, 2.0]], (48, 1))
        rounds[3:6] = 50.0
        means, errors = trimmed_mean(rounds, 1 / 16)
        assert (means.tolist(), errors.tolist()) == ([1.0, 2.0], [0.0, 0.0])

    def test_a_single_row_is_known_to_nothing(self) -> None:
        means, errors = trimmed_mean(np.array([[1.0, 2.0]]), 1 / 16)
        assert (means.tolist(), errors.tolist()) == ([1.0, 2.0], [np.inf, np.inf])


class TestStopping:
    @pytest.mark.parametrize(
        ("times_us", "target", "minimum", "stop"),
        [
            ([], 0.01, 0, False),
            ([10.0], 1.0, 1, False),  # one sample says nothing about its spread
            ([10.0, 10.0], 0.01, 2, True),
            ([10.0, 10.0], 0.01, 3, False),
            ([10.0] * 7, 0.0, 7, True),
            ([9.0, 11.0] * 5, 0.01, 7, False),
            ([9.0, 11.0] * 5, 0.10, 7, True),
        ],
    )
    def test_enough(self, times_us: list[float], target: float, minimum: int, stop: bool) -> None:
        assert enough(times_us, target, minimum) is stop

    @pytest.mark.parametrize(
        ("times_us", "stop"),
        [
            ([], False),
            ([30.0, 30.0], False),  # too few
            ([30.0, 30.0, 30.0], True),
            ([30.0, 30.0, 11.9], False),  # one that is within the margin
            ([30.0, 30.0, 12.0], False),
            ([30.0, 30.0, 12.1], True),
            ([9.0, 9.0, 9.0], False),
        ],
    )
    def test_clearly_slower(self, times_us: list[float], stop: bool) -> None:
        assert clearly_slower(times_us, incumbent_us=10.0, margin=0.2) is stop

    def test_a_config_as_good_as_the_incumbent_is_never_stopped_by_noise(self) -> None:
        rng = np.random.default_rng(0)
        for _ in range(2000):
            times = noisy(rng, 20.0, 1.015 * np.ones(3))
            assert not clearly_slower(list(times), incumbent_us=20.0, margin=0.1)


class TestRoofline:
    def test_a_gigabyte_at_4000_gbps_takes_250_us(self) -> None:
        assert floor_us(1e9, 4000.0) == pytest.approx(250.0)
        assert roofline_share(1e9, 500.0, 4000.0) == pytest.approx(0.5)
        assert roofline_share(0, 5.0, 4000.0) == 0.0

    @pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
    def test_a_rate_or_time_that_cannot_be_is_refused(self, rate: float) -> None:
        with pytest.raises(ValueError, match="streaming rate"):
            roofline_share(1e9, 1.0, rate)
        with pytest.raises(ValueError, match="time"):
            roofline_share(1e9, rate, 4000.0)


class TestAverageSpeedup:
    def test_it_is_the_geometric_mean_unless_the_time_before_is_known(self) -> None:
        assert average_speedup([2.0, 0.5]) == pytest.approx(1.0)

    def test_of_known_times_it_is_the_speedup_of_their_sum(self) -> None:
        # 90 us become 45, 10 us become 20.
        assert average_speedup([2.0, 0.5], [90.0, 10.0]) == pytest.approx(100.0 / 65.0)


class TestGeometricMean:
    def test_it_averages_ratios(self) -> None:
        assert geometric_mean([2.0, 0.5]) == pytest.approx(1.0)
        assert geometric_mean(x for x in (1.0, 2.0, 4.0)) == pytest.approx(2.0)
        assert geometric_mean([1e300, 1e300]) == pytest.approx(1e300)

    @pytest.mark.parametrize("values", [[], [1.0, 0.0], [-1.0]])
    def test_none_or_a_ratio_that_is_not_positive_is_refused(self, values: list[float]) -> None:
        with pytest.raises(ValueError, match="sample"):
            geometric_mean(values)
