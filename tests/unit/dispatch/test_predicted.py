"""What the search's own times foretell of the set."""

from __future__ import annotations

import pytest
from dispatch_sample import ENVIRONMENT, MANY, ONE, SOME, SPACE, TEMPLATE, A, B, C, trial

from tuner.dispatch.kernels import VariantRenderer, device_numbers
from tuner.dispatch.table import SetSelection, assign_variants, list_replacements
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL
from tuner.session.records import CandidateRecord

BASELINES = {ONE: 10.0, SOME: 10.0, MANY: 10.0}


@pytest.fixture
def kernel_of():
    candidate = CandidateRecord(INITIAL, TEMPLATE, SPACE)
    return VariantRenderer([candidate], {"MAP": "twice"}, device_numbers(ENVIRONMENT)).of


def chosen(kernel_of, *trials, choice=None, distrusted=frozenset()):
    return assign_variants(trials, BASELINES, distrusted, kernel_of, choice or SetSelection())


def test_one_that_is_near_enough_everywhere_goes_to_all(kernel_of):
    trials = [
        *(trial(ONE, A, 5.0), trial(ONE, B, 5.05)),
        *(trial(SOME, C, 4.0), trial(SOME, B, 4.07)),
    ]
    within = SetSelection(within=0.02)
    assert chosen(kernel_of, *trials, choice=within) == {ONE: B, SOME: B}
    assert chosen(kernel_of, *trials, choice=SetSelection(within=0.001)) == {ONE: A, SOME: C}


def test_of_a_mix_the_search_s_times_choose_what_takes_least_in_all(kernel_of):
    trials = [
        *(trial(SOME, B, 4.0), trial(SOME, C, 5.4)),
        *(trial(MANY, B, 5.0), trial(MANY, C, 4.0)),
    ]
    assigned = [
        assign_variants(
            trials, BASELINES, frozenset(), kernel_of, SetSelection(most=1), {SOME: 1.0, MANY: many}
        )
        for many in (1.0, 3.0)
    ]
    assert assigned == [{SOME: B, MANY: B}, {SOME: C, MANY: C}]


def test_times_of_trials_that_were_stopped_early_or_wrong_serve_nothing(kernel_of):
    trials = [
        *(trial(ONE, A, 5.0), trial(ONE, B, 4.0, early=True)),
        *(trial(SOME, A, 4.0), trial(SOME, B, None)),
    ]
    assert chosen(kernel_of, *trials) == {ONE: A, SOME: A}


def test_what_is_distrusted_or_slower_than_the_baseline_serves_nothing(kernel_of):
    trials = [trial(ONE, A, 5.0), trial(ONE, B, 5.05)]
    assert chosen(kernel_of, *trials, distrusted=frozenset({A})) == {ONE: B}
    assert chosen(kernel_of, trial(ONE, A, 11.0)) == {}
    assert chosen(kernel_of) == {}


def test_at_most_n_leaves_what_gains_least_to_the_baseline(kernel_of):
    trials = [trial(ONE, A, 9.0), trial(MANY, B, 2.0)]
    assert chosen(kernel_of, *trials, choice=SetSelection(most=1)) == {MANY: B}
    assert chosen(kernel_of, *trials, choice=SetSelection(most=0)) == {}


def test_only_a_source_that_is_the_same_can_take_anothers_place(kernel_of):
    other = Workload.of({"T": 64, "D": 8192})
    served = {SOME: C, other: A}
    nothing = list_replacements(served, kernel_of, lambda w, v: None)
    # C is compiled for D=4096, so it is no replacement at 8192; A is one for it.
    assert nothing == ((SOME, A),)
