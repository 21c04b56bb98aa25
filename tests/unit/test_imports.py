"""The house: packages are levels, and imports only go down."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from house import FLAT, PACKAGES, cycles, imports, modules, upward  # noqa: E402

Graph = dict[str, set[str]]


@pytest.fixture(scope="module")
def graph() -> Graph:
    return imports(modules())


def test_imports_only_go_down_and_in_no_circle(graph: Graph) -> None:
    assert upward(graph) == []
    assert cycles(graph) == []


def test_every_module_lies_in_a_package_that_the_map_knows(graph: Graph) -> None:
    packages = {name.split(".")[1] for name in graph if name not in FLAT}
    assert packages == set(PACKAGES)
    heavy = {"optuna", "kernel_tuner", "pandas", "cupy", "sqlalchemy", "pydantic", "click"}
    flat = {path.stem for path in (ROOT / "tuner").glob("*.py")}
    assert flat == {"__init__", "__main__"}
    assert not heavy & flat


def test_what_runs_a_session_imports_nothing_of_a_store() -> None:
    code = "import sys, tuner.app.run; sys.exit('sqlalchemy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
