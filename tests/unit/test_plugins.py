"""What extensions bring is found by name, and imported when it is first asked for."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import click
import pytest
from click.testing import CliRunner

from tuner import plugins
from tuner.cli import cli
from tuner.cli.options import searcher
from tuner.model.errors import InputError
from tuner.search.base import Strategies
from tuner.search.factory import strategies_of


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins.points_of.cache_clear()


@pytest.mark.parametrize(
    ("seam", "name"), [(seam, name) for seam, names in plugins.OWN.items() for name in names]
)
def test_what_is_listed_is_there(seam: str, name: str) -> None:
    assert plugins.load(seam, name) is not None


def test_what_nobody_brings_is_told_with_what_there_is() -> None:
    with pytest.raises(InputError, match=r"no extension has 'cray' for tuner\.devices") as caught:
        plugins.load(plugins.DEVICES, "cray")
    assert "host" in caught.value.remedy


def test_another_packages_entry_point_joins_and_takes_no_name_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs = [
        EntryPoint("annealing", "json:dumps", plugins.SEARCHERS),
        EntryPoint("kernel_tuner", "json:loads", plugins.SEARCHERS),
    ]
    monkeypatch.setattr(plugins, "entry_points", lambda group: theirs)
    assert plugins.names_of(plugins.SEARCHERS) == ["kernel_tuner", "annealing"]
    assert plugins.load(plugins.SEARCHERS, "annealing").__name__ == "dumps"
    assert isinstance(plugins.load(plugins.SEARCHERS, "kernel_tuner"), Strategies)


def test_no_name_of_the_cores_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = [EntryPoint("cuda", "json:dumps", plugins.DEVICES)]
    monkeypatch.setattr(plugins, "entry_points", lambda group: theirs)
    assert "cuda" not in plugins.names_of(plugins.DEVICES)


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("json:dumps", "is no Strategies"),
        ("no_such_module:x", "cannot be loaded: No module named 'no_such_module'"),
        ("json:no_such_name", "cannot be loaded: module 'json' has no attribute"),
    ],
)
def test_an_entry_point_that_does_not_keep_its_promise_is_one_error(
    place: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = [EntryPoint("annealing", place, plugins.SEARCHERS)]
    monkeypatch.setattr(plugins, "entry_points", lambda group: theirs)
    with pytest.raises(
        InputError, match=f"the entry point 'annealing' of tuner.searchers .*{says}"
    ):
        strategies_of("annealing")


def test_another_packages_command_and_searcher_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = {
        plugins.COMMANDS: [EntryPoint("cray", f"{__name__}:cray", plugins.COMMANDS)],
        plugins.SEARCHERS: [EntryPoint("annealing", "json:dumps", plugins.SEARCHERS)],
    }
    monkeypatch.setattr(plugins, "entry_points", lambda group: theirs.get(group, []))
    monkeypatch.setattr(EntryPoint, "load", lambda point: cray)
    assert CliRunner().invoke(cli, ["cray"]).output == "a supercomputer\n"
    assert "Of another package." in CliRunner().invoke(cli, ["--help"]).output
    assert searcher("annealing:fast") == "annealing:fast"


@click.command("cray")
def cray() -> None:
    """Say what it is."""
    click.echo("a supercomputer")


def test_a_run_imports_no_extension_before_it_asks_for_one() -> None:
    code = "import sys, tuner.cli, tuner.app.run\n"
    code += "print(*[name for name in sys.modules if name.startswith('tuner.extensions.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
