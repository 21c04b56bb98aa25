"""Options with a syntax of their own."""

from __future__ import annotations

import click
import pytest

from tuner.cli import options
from tuner.extensions.study import mutate_command


@pytest.mark.parametrize("text", ["", "5", "5 m", "m", "-5m", "0s", "5m1h", "5x", "1e3s", "inf"])
def test_times_are_read_in_seconds_and_anything_else_is_none(text: str) -> None:
    cases = {"90s": 90, "5m": 300, "1h30m": 5400, "1h0m5s": 3605, "0.5s": 0.5, " 2m ": 120}
    assert {case: options.seconds(case) for case in cases} == cases
    with pytest.raises(click.BadParameter, match="write it as 90s, 5m or 1h30m"):
        options.seconds(text)


@pytest.mark.parametrize("text", ["nan", "-1", "100.1", "inf", "all", ""])
def test_a_percentage_is_a_number_from_0_to_100(text: str) -> None:
    assert mutate_command.percent("97.5") == 97.5
    with pytest.raises(click.BadParameter, match="is not a number from 0 to 100"):
        mutate_command.percent(text)


@pytest.mark.parametrize("text", ["", "=", "name", "name=", "=value", "name= "])
def test_an_assignment_splits_at_the_first_equals_sign_and_half_a_one_is_refused(text: str) -> None:
    assert options.assignment("ACTIVATION = a=b") == ("ACTIVATION", "a=b")
    with pytest.raises(click.BadParameter, match="NAME=VALUE"):
        options.assignment(text)


def test_a_name_assigned_twice_is_refused_by_name() -> None:
    assert options.unique((("a", "1"), ("b", "2")), "parameter") == {"a": "1", "b": "2"}
    with pytest.raises(click.UsageError, match="parameter a is given more than once"):
        options.unique((("a", "1"), ("a", "1")), "parameter")


def test_a_share_is_a_percentage_or_a_number() -> None:
    cases = {"2%": 0.02, "0.5 %": 0.005, "0.001": 0.001, "1e-05": 1e-5}
    assert {case: options.share(case) for case in cases} == pytest.approx(cases)

    for wrong in ("", "two", "-1%", "100%", "1"):
        with pytest.raises(click.BadParameter, match="is not a share from 0 to 100 %"):
            options.share(wrong)
