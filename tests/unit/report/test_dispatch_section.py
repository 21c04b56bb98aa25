"""The section on the dispatch says who serves what, and what that is worth."""

from __future__ import annotations

import pytest
from dispatch_sample import (
    COMPARISONS,
    ONE,
    SOME,
    A,
    B,
    comparison,
    write_project,
    write_session,
)

from tuner.report.sections import dispatch as section
from tuner.session.session import Session


@pytest.fixture
def dispatch(tmp_path):
    """Make what the section shows of a session with these comparisons."""

    def make(comparisons=COMPARISONS, **changes):
        space = write_project(tmp_path / "project")
        folder = write_session(tmp_path / "session", space, comparisons, **changes)
        with Session.open(folder, read_only=True) as session:
            return section.dispatch_of(session)

    return make


def test_it_says_how_few_serve_how_many(dispatch):
    told = section.summary(dispatch())
    assert told == "2 variants serve 3 of 3 tuned workloads, within 2 % of each workload's best."


def test_what_the_baseline_serves_is_counted(dispatch):
    told = section.summary(dispatch((comparison(ONE, {A: 5.0}),)))
    assert told.startswith("1 variant serves 1 of 3 tuned workloads")
    assert told.endswith(", the baseline 2.")


def test_nothing_proved_is_said_so(dispatch):
    told = section.summary(dispatch((comparison(ONE, {A: 10.0}),)))
    assert told == "The baseline serves all of 3 tuned workloads: no variant is proved faster."


def test_every_workload_has_its_variant_speedup_and_slowdown(dispatch):
    first, second, _ = section.served(dispatch())
    assert (first.workload, first.by, first.slowdown) == ("T=1 D=4096", "v1", "1.000x")
    assert first.speedup.startswith("2.00x [")
    assert (second.by, second.slowdown) == ("v2", "1.009x")


def test_each_variant_names_what_it_serves(dispatch):
    one, two = section.chosen(dispatch())
    assert (one.number, one.config["block"], one.serves) == (1, 64, "T=1 D=4096")
    assert two.serves == "T=64 D=4096, T=1024 D=4096"


def test_the_rule_is_shown_with_what_came_of_it(dispatch):
    near, far = section.checked(dispatch())
    assert (near.nearest, near.by, near.verdict) == ("T=1 D=4096", "v1", "faster")
    assert far.verdict == "slower; the baseline serves"


def test_what_might_save_a_variant_is_listed(dispatch):
    made = dispatch((comparison(ONE, {A: 5.0}), comparison(SOME, {B: 4.0})))
    shown, more = section.wanted(made)
    assert {workload for workload, _ in shown} == {"T=1 D=4096", "T=64 D=4096"}
    assert more == 0


@pytest.mark.parametrize(
    "changes", [{"comparisons": ()}, {"environment": {"architecture": "x86_64"}}]
)
def test_without_comparisons_or_a_gpu_there_is_no_section(dispatch, changes):
    assert dispatch(**changes) is None


def test_the_template_shows_it_all(dispatch):
    from tuner.report.html import _environment

    made = dispatch()
    shown, more = section.wanted(made)
    html = (
        _environment()
        .get_template("dispatch.html.j2")
        .render(
            dispatch_summary=section.summary(made),
            dispatch_chosen=section.chosen(made),
            dispatch_served=section.served(made),
            dispatch_checked=section.checked(made),
            dispatch_wanted=shown,
            dispatch_wanted_more=more,
        )
    )
    for text in ("2 variants serve 3", "v2", "1.009x", "slower; the baseline serves", "specialize"):
        assert text in html
