"""What a new search takes up of past ones, and in which order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.model.config import Config, Parameter, SearchSpace
from tuner.model.kernel import Workload
from tuner.model.trial import Status
from tuner.session.knowledge import PastConfig, PastSearch, PastWorkload
from tuner.tuning.warm_start import WarmStartQuery, fit_config, seeds

SPACE = SearchSpace(
    (Parameter("block", (32, 64, 128, 256, 512)), Parameter("items", (1, 2))),
    default=Config.of({"block": 128, "items": 1}),
)
QUERY = WarmStartQuery(SPACE, {}, "NVIDIA H200", "sm_90a", "t")
HERE = Workload((("N", 1000),))


def blocks(known, question=QUERY, *, limit=5, valid=lambda config: True):
    found = seeds(known, question, HERE, limit=limit, valid=valid)
    return [seed.config["block"] for seed in found]


def test_the_fastest_come_first_and_no_more_than_asked_for(make_search) -> None:
    known = [make_search({32: 5.0, 64: 2.0, 128: 3.0, 256: 4.0})]
    assert blocks(known, limit=3) == [64, 128, 256]
    assert blocks([]) == []


def test_a_seed_says_where_it_was_found(make_search) -> None:
    known = [make_search({32: 5.0}, size=64)]
    (seed,) = seeds(known, QUERY, HERE, limit=1, valid=lambda config: True)
    assert (seed.device, seed.workload) == ("NVIDIA H200", "N=64")


def test_the_same_shape_comes_before_the_nearest_by_ratio(make_search) -> None:
    near = make_search({32: 1.0}, size=2000)
    far = make_search({64: 1.0}, size=100)
    same = make_search({128: 1.0})
    assert blocks([far, near, same]) == [128, 32, 64]


@pytest.mark.parametrize(
    "changes",
    [
        {"device": "NVIDIA A100"},
        {"architecture": "sm_80"},
        {"operators": {"ACTIVATION": "gelu"}},
        {"parameters": ("block",)},
    ],
)
def test_what_is_known_of_the_same_thing_comes_before_another_at_the_same_shape(
    make_search, changes
) -> None:
    other = make_search({32: 1.0}, **changes)
    own = make_search({64: 1.0}, size=9999)
    assert blocks([other, own]) == [64, 32]


def test_groups_take_turns_so_that_none_fills_the_list(make_search) -> None:
    own = make_search({32: 1.0, 64: 1.1, 128: 1.2, 256: 1.3})
    other = make_search({512: 1.0}, device="NVIDIA A100")
    assert blocks([own, other], limit=3) == [32, 64, 512]


def test_a_later_run_has_the_last_word(make_search) -> None:
    before, failed = make_search({32: 1.0, 64: 2.0}), make_search({32: None})
    assert blocks([before, make_search({32: 3.0})]) == [64, 32]
    assert blocks([failed, make_search({32: 1.0})]) == [32]


def test_times_of_two_runs_are_compared_by_their_baselines(make_search) -> None:
    slow_clock = make_search({32: 2.0}, baseline_us=20.0)
    fast_clock = make_search({64: 1.5}, baseline_us=10.0)
    assert blocks([slow_clock, fast_clock]) == [32, 64]


def test_what_failed_here_is_not_tried_though_it_was_good_elsewhere(make_search) -> None:
    elsewhere = make_search({32: 1.0, 64: 2.0}, size=2000)
    here = make_search({32: None})
    assert blocks([elsewhere, here]) == [64]
    assert blocks([elsewhere, replace(here, device="NVIDIA A100")]) == [32, 64]
    assert blocks([elsewhere, replace(here, template_sha="mended")]) == [32, 64]


def test_what_is_not_valid_here_is_passed_over(make_search) -> None:
    known = [make_search({32: 1.0, 64: 2.0})]
    assert blocks(known, valid=lambda config: config["block"] > 32) == [64]


def test_other_axes_are_another_problem(make_search) -> None:
    known = make_search({32: 1.0})
    other = replace(known.workloads[0], workload=Workload((("M", 1000),)))
    assert blocks([replace(known, workloads=(other,))]) == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"items": 2, "block": 64}, {"block": 64, "items": 2}),
        ({"block": 64}, {"block": 64, "items": 1}),
        ({"block": 1024, "items": 1}, None),
        ({"block": 64, "items": True}, None),
        ({"block": 64, "items": 1, "stages": 2}, None),
    ],
    ids=["another order", "a new parameter", "a value that is gone", "a boolean", "one too many"],
)
def test_a_config_is_written_in_todays_space_or_dropped(given, expected) -> None:
    assert fit_config(given, SPACE) == (None if expected is None else Config.of(expected))


def test_a_new_parameter_without_a_default_drops_the_config() -> None:
    assert fit_config({"block": 64}, SearchSpace(SPACE.parameters)) is None


VALUES = st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=3))
CONFIGS = st.dictionaries(st.sampled_from(["block", "items", "x"]), VALUES, min_size=1)
TIMES = st.floats(min_value=1e-300, allow_infinity=False)
PAST = st.builds(
    PastConfig,
    (CONFIGS | st.fixed_dictionaries({"block": st.sampled_from([32, 64, 128])})).map(Config.of),
    st.just(Status.CORRECT),
    TIMES,
)
WORKLOADS = st.builds(
    PastWorkload,
    st.integers(min_value=1).map(lambda size: Workload((("N", size),))),
    st.none() | TIMES,
    st.lists(PAST, max_size=4).map(tuple),
)
SEARCHES = st.builds(
    PastSearch,
    kernel=st.just("scale"),
    operators=st.just({}),
    device=st.sampled_from(["NVIDIA H200", "?"]),
    architecture=st.sampled_from(["sm_90a", ""]),
    candidate=st.just("initial"),
    template_sha=st.sampled_from(["t", "u"]),
    parameters=st.lists(st.text(max_size=2), max_size=2).map(tuple),
    tuner_version=st.just(""),
    created=st.just(""),
    state=st.just(""),
    workloads=st.lists(WORKLOADS, max_size=3).map(tuple),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(SEARCHES, max_size=4), st.integers(min_value=0, max_value=4))
def test_whatever_is_known_the_list_is_short_valid_and_without_repeats(known, limit) -> None:
    found = seeds(known, QUERY, HERE, limit=limit, valid=lambda config: config["items"] == 1)
    configs = [Config.of(seed.config) for seed in found]
    assert len(configs) <= limit
    assert len(set(configs)) == len(configs)
    for config in configs:
        assert config["items"] == 1
        assert config == fit_config(config, SPACE)
