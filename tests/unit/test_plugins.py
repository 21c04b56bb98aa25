"""What extensions bring is found by name, and imported when it is first asked for."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from tuner import plugins
from tuner.model.errors import InputError
from tuner.search.base import Strategies


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


@pytest.mark.parametrize(
    ("missing", "install"),
    [("distributed", "[cluster]"), ("mcp", "[mcp]"), ("thing", "pip install thing")],
)
def test_a_library_that_is_missing_is_told_with_what_installs_it(
    missing: str, install: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(_: str) -> None:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=f"{missing}.part")

    monkeypatch.setattr(plugins.importlib, "import_module", absent)
    with pytest.raises(InputError, match=f"needs {missing}") as caught:
        plugins.load(plugins.COMMANDS, "worker")
    assert install in caught.value.remedy


def test_a_run_imports_no_extension_before_it_asks_for_one() -> None:
    code = "import sys, tuner.cli, tuner.app.run\n"
    code += "print(*[name for name in sys.modules if name.startswith('tuner.extensions.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
