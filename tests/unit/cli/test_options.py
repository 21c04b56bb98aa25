"""Options with a syntax of their own."""

from __future__ import annotations

import click
import pytest

from tuner.cli import options, run_command
from tuner.extensions.agents import mcp_command


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5m", 300), ("1h30m", 5400), ("1h0m5s", 3605), ("0.5s", 0.5), (" 2m ", 120)],
)
def test_times_are_read_in_seconds(text: str, seconds: float) -> None:
    assert options.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "5 m", "m", "-5m", "0s", "5m1h", "5x", "1e3s", "inf"])
def test_anything_else_is_not_a_time(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write it as 90s, 5m or 1h30m"):
        options.seconds(text)


@pytest.mark.parametrize("name", ["auto", "exhaustive", "optuna", "kernel_tuner:genetic_algorithm"])
def test_known_searchers_pass(name: str) -> None:
    assert options.searcher(name) == name


@pytest.mark.parametrize("name", ["Auto", "annealing", "kernel_tuner", "kernel_tuner:", ""])
def test_an_unknown_searcher_is_told_the_known_ones(name: str) -> None:
    with pytest.raises(click.BadParameter, match=r"exhaustive.*kernel_tuner:<strategy>"):
        options.searcher(name)


def test_a_folder_that_the_system_will_not_look_for_is_refused() -> None:
    with pytest.raises(click.BadParameter, match="File name too long"):
        options.folder("x" * 300)


@pytest.mark.parametrize("text", ["nan", "-1", "100.1", "inf", "all", ""])
def test_a_percentage_is_a_number_from_0_to_100(text: str) -> None:
    assert options.percent("97.5") == 97.5
    with pytest.raises(click.BadParameter, match="is not a number from 0 to 100"):
        options.percent(text)


def test_an_assignment_splits_at_the_first_equals_sign() -> None:
    assert options.assignment("ACTIVATION = a=b") == ("ACTIVATION", "a=b")


@pytest.mark.parametrize("text", ["", "=", "name", "name=", "=value", "name= "])
def test_half_an_assignment_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="NAME=VALUE"):
        options.assignment(text)


def test_a_name_assigned_twice_is_refused_by_name() -> None:
    assert options.unique((("a", "1"), ("b", "2")), "parameter") == {"a": "1", "b": "2"}
    with pytest.raises(click.UsageError, match="parameter a is given more than once"):
        options.unique((("a", "1"), ("a", "1")), "parameter")


SHARED = ["policy", "workload", "operator", "session", "resume", "sources", "jobs", "prune"]


@pytest.mark.parametrize("name", SHARED)
def test_a_run_and_a_server_read_an_option_that_both_have_alike(name: str) -> None:
    one, other = (
        next(option for option in made.params if option.name == name)
        for made in (run_command.command, mcp_command.command)
    )
    assert one.opts == other.opts
    assert one.multiple == other.multiple
    assert one.type.to_info_dict() == other.type.to_info_dict()


@pytest.mark.parametrize(
    ("text", "value"), [("2%", 0.02), ("0.5 %", 0.005), ("0.001", 0.001), ("1e-05", 1e-5)]
)
def test_a_share_is_a_percentage_or_a_number(text: str, value: float) -> None:
    assert options.share(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "two", "-1%", "100%", "1"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a share from 0 to 100 %"):
        options.share(text)
