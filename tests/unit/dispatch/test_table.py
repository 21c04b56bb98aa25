"""Who serves what: proved, near enough to the best, and by as few as can be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dispatch_sample import (
    COMPARISONS,
    FAR,
    MANY,
    NEAR,
    ONE,
    SOME,
    A,
    B,
    C,
    comparison,
    trial,
    variant,
    with_production,
    write_project,
    write_session,
)

from tuner.dispatch.evidence import productions
from tuner.dispatch.table import SessionDispatch, SetSelection, wanted_for
from tuner.model.errors import SessionError
from tuner.model.trial import Check
from tuner.session.events import BitsKept
from tuner.session.session import Session


@pytest.fixture
def dispatched(tmp_path):
    """Make the table of a session with these comparisons."""

    def make(
        comparisons=COMPARISONS,
        choice=None,
        trials=(),
        checks=(),
        environment=None,
        rows=None,
        weight="",
    ):
        number = len(list(tmp_path.iterdir()))
        space = write_project(tmp_path / f"project-{number}")
        given = {} if environment is None else {"environment": environment}
        folder = write_session(
            tmp_path / f"session-{number}", space, comparisons, trials, weight=weight, **given
        )
        with Session.open(folder) as session:
            for check in checks:
                session.append(check)
            if rows:
                session.record_event(BitsKept(0, rows))
            return SessionDispatch(session, choice or SetSelection())

    return make


def served(dispatched):
    entries = dispatched.table.entries
    return [None if e.kernel is None else e.kernel.variant for e in entries]


def test_few_variants_serve_all_within_a_share_of_each_best(dispatched):
    made = dispatched(choice=SetSelection(within=0.02))
    assert served(made) == [A, B, B]
    one, some, many = made.table.entries
    assert one.slowdown == many.slowdown == 1.0
    assert some.slowdown == pytest.approx(4.0 / 3.97, rel=3e-3)
    assert some.best.variant == C
    assert [made.table.number(e.kernel) for e in made.table.entries] == [1, 2, 2]
    assert served(dispatched(choice=SetSelection(within=0.0))) == [A, C, B]


def test_unless_it_is_said_the_set_is_the_fewest_that_lose_no_more_than_1_percent_in_all(
    dispatched,
):
    made = dispatched()
    assert str(made.table.choice) == "the fewest within 1 % of all"
    # B takes 0.8 % longer than C on one of three, which is less than 1 % of the mean.
    assert served(made) == [A, B, B]
    # 3.2 % longer on one of three is more.
    apart = (COMPARISONS[0], comparison(SOME, {C: 3.87, B: 4.0}), COMPARISONS[2])
    assert served(dispatched(apart)) == [A, C, B]


def test_a_small_gain_that_is_proved_is_served_too(dispatched):
    small = dispatched((comparison(ONE, {A: 9.94}), comparison(SOME, {A: 9.94})))
    assert served(small)[:2] == [A, A]
    assert served(dispatched((comparison(ONE, {A: 9.94}),)))[0] == A


def test_a_curve_says_what_every_variant_is_worth(dispatched):
    curve = dispatched().curve()
    assert [point.variants for point in curve] == [1, 2, 3]
    one, two, every = (point.speedup for point in curve)
    assert one < two < every
    means = [entry.best.speedup for entry in dispatched().table.entries]
    assert every == pytest.approx((means[0] * means[1] * means[2]) ** (1 / 3))
    assert [point.chosen for point in curve] == [False, True, False]


def test_the_curve_names_1_2_3_5_all_and_the_chosen_count(dispatched):
    none = dispatched((comparison(ONE, {A: 9.999}),))
    assert none.curve() == ()
    single = dispatched((comparison(ONE, {A: 5.0}),))
    assert [(p.variants, p.chosen) for p in single.curve()] == [(1, True)]


def test_at_most_n_loses_least_in_the_geometric_mean(dispatched):
    assert served(dispatched(choice=SetSelection(most=1))) == [None, B, B]
    assert served(dispatched(choice=SetSelection(most=2))) == [A, B, B]
    assert served(dispatched(choice=SetSelection(most=5))) == [A, C, B]
    reason = dispatched(choice=SetSelection(most=1)).table.entries[0].reason
    assert reason == "the variants serve other workloads"


def test_of_a_mix_the_set_loses_least_of_its_time(dispatched):
    # C takes 5.4 us instead of 4 on one, 4 instead of 5 on the other: worse by the geometric mean.
    two = (comparison(SOME, {B: 4.0, C: 5.4}), comparison(MANY, {B: 5.0, C: 4.0}))
    assert served(dispatched(two, SetSelection(most=1))) == [None, B, B]
    assert served(dispatched(two, SetSelection(most=1), weight="1")) == [None, B, B]
    often = "3 if T > 100 else 1"
    assert served(dispatched(two, SetSelection(most=1), weight=often)) == [None, C, C]
    # All together lose 1.7 us of 20 with one of the two, and 0.2 us of 404.
    assert served(dispatched(two, weight=often)) == [None, B, C]
    assert served(dispatched(two, weight="100 if T > 100 else 1")) == [None, C, C]


def test_a_curve_of_a_mix_says_what_of_its_time_is_saved(dispatched):
    two = (comparison(SOME, {B: 5.0}), comparison(MANY, {C: 2.0}))
    (one, both) = dispatched(two, weight="3 if T > 100 else 1").curve()
    assert one.speedup == pytest.approx(40.0 / 16.0, rel=1e-3)
    assert both.speedup == pytest.approx(40.0 / 11.0, rel=1e-3)


def test_what_is_not_proved_faster_is_the_baselines(dispatched):
    made = dispatched((comparison(ONE, {A: 9.999}), comparison(SOME, {A: 10.4})))
    assert served(made) == [None, None, None]
    assert made.table.kernels == ()
    reasons = [entry.reason for entry in made.table.entries]
    assert reasons == [
        "the winner is not proved faster",
        "the winner is not proved faster",
        "nothing was compared with the baseline",
    ]
    assert made.table.entries[1].slowdown == 1.0


def test_where_bits_of_rows_are_kept_productions_which_has_its_own_serves_nothing(dispatched):
    compared = (comparison(ONE, {A: 9.999}), comparison(SOME, {A: 10.4}), comparison(FAR, {A: 12}))
    made = dispatched(compared, rows={ONE.key: "bits"})
    assert served(made) == [A, A, A]
    assert made.table.entries[2].reason == "the nearest one's, for the bits of its rows"
    assert made.table.keeps_rows
    assert [workload for workload, _ in made.table.points] == [ONE, SOME]
    assert None not in dict(made.table.points).values()
    assert [one.refuted for one in made.table.held_out] == [False, False]
    assert {one.kernel.variant for one in made.table.held_out} == {A}
    assert made.table.serving(MANY)[0] == made.table.serving(FAR)[0] == A
    few = dispatched(choice=SetSelection(most=1), rows={ONE.key: "bits"})
    assert served(few) == [B, B, B]


def test_what_is_faster_than_the_baseline_but_not_than_productions_peer_serves_nowhere(dispatched):
    faster = with_production(comparison(ONE, {A: 5.0}), 5.5)
    slower = with_production(comparison(SOME, {A: 5.0}), 4.0)
    made = dispatched((faster, slower))
    assert served(made) == [A, None, None]
    entry = made.table.entries[1]
    assert entry.reason == "the winner is not proved faster"
    assert productions(entry.best) == "production's: sgl-jit"
    assert productions(made.table.entries[2].best) == "production's: the baseline"
    # Production's is the best there: nothing is lost by it.
    assert entry.slowdown == 1.0


def test_where_the_winner_is_not_proved_no_other_serves(dispatched):
    said = comparison(ONE, {A: 9.8, B: 9.9})
    late = tuple((row[0], row[0], row[2]) for row in said.rounds[10:])
    made = dispatched((replace(said, rounds=(*said.rounds[:10], *late)),))
    assert [one.proved for one in made.evidence[ONE]] == [False, True]
    assert served(made)[0] is None


def test_a_held_out_workload_may_be_too_noisy_to_say(dispatched):
    rows = tuple((10.0, 4.0 if k % 2 else 9.0) for k in range(40))
    near = replace(comparison(NEAR, {A: 6.0}), rounds=rows)
    held_out, _ = dispatched((*COMPARISONS[:3], near)).table.held_out
    assert (held_out.verdict, held_out.refuted) == ("too noisy to say", True)


def test_as_fast_as_productions_peer_is_not_faster(dispatched):
    assert served(dispatched((with_production(comparison(ONE, {A: 5.0}), 5.005),)))[0] is None


def test_a_peer_that_is_not_productions_forbids_nothing(dispatched):
    peer = replace(with_production(comparison(ONE, {A: 5.0}), 4.0), production="")
    assert served(dispatched((peer,)))[0] == A


def test_the_rule_is_refuted_where_productions_peer_is_as_fast(dispatched):
    near = with_production(comparison(NEAR, {A: 6.0}), 5.0)
    made = dispatched((*COMPARISONS[:3], near)).table
    assert (made.held_out[0].verdict, made.held_out[0].refuted) == ("slower", True)
    assert made.serving(NEAR)[0] is None
    assert made.serving(ONE)[0] == A


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ({"checks": [Check("memcheck", MANY, B.config, False, "out of bounds", "GPU")]}, [A, C, C]),
        ({"checks": [Check("memcheck", MANY, B.config, None, "no tool", "GPU")]}, [A, B, B]),
        ({"trials": [trial(NEAR, B, None)]}, [A, C, C]),
    ],
    ids=["failed a check", "a check that could not be run", "was once wrong"],
)
def test_a_variant_that_was_ever_wrong_serves_nowhere(dispatched, records, expected):
    assert served(dispatched(**records)) == expected


def test_the_rule_is_checked_where_it_was_measured_and_the_baseline_serves_where_it_is_refuted(
    dispatched,
):
    table = dispatched().table
    near, far = table.held_out
    assert (near.workload, near.nearest, near.verdict) == (NEAR, ONE, "faster")
    assert (far.workload, far.nearest, far.verdict) == (FAR, MANY, "slower")
    assert table.points[-1] == (FAR, None)
    assert len(table.points) == 4


def test_another_source_of_a_variant_proves_nothing_of_this_one(dispatched):
    written = variant(128, specialize=True)
    made = dispatched((comparison(MANY, {written: 5.0}), comparison(FAR, {written: 5.0})))
    near, far = made.table.held_out
    # Compiled for D=4096, it can't run at 8192: the next nearest has the baseline.
    assert far.verdict == "baseline"
    assert far.nearest == SOME
    assert near.verdict == "baseline"


def test_unpaired_rounds_are_told_as_such(dispatched):
    unpaired = replace(comparison(ONE, {A: 5.0}), paired=False)
    entry = dispatched((unpaired,)).table.entries[0]
    assert not entry.compared.paired
    assert entry.kernel.variant == A


@pytest.mark.parametrize("environment", [{}, {"architecture": "x86_64", "multiprocessors": "4"}])
def test_a_session_of_no_gpu_has_no_dispatch(dispatched, environment):
    with pytest.raises(SessionError, match="does not say which GPU it was measured on"):
        dispatched(environment=environment)


def test_a_measurement_that_could_save_a_variant_is_wanted(dispatched):
    # A at MANY and B at ONE: if B were as good at the smallest, A could go.
    made = dispatched((comparison(ONE, {A: 5.0}), comparison(SOME, {B: 4.0})))
    assert set(wanted_for(made)) == {(ONE, B), (SOME, A)}


def test_what_the_search_found_slow_is_not_wanted(dispatched):
    trials = [trial(ONE, A, 5.0), trial(ONE, B, 6.0), trial(SOME, A, 9.0, early=True)]
    made = dispatched((comparison(ONE, {A: 5.0}), comparison(SOME, {B: 4.0})), trials=trials)
    assert wanted_for(made) == ()
