"""The house: a core whose packages are levels, and extensions that it is to know nothing of."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from house import (  # noqa: E402
    CORE,
    EXTENSIONS,
    FLAT,
    across,
    cycles,
    imports,
    lines_by_part,
    modules,
    outward,
    upward,
)

Graph = dict[str, set[str]]
# What each part may have, in lines. Who raises one says in the commit why.
BUDGET = {
    "core": 47_370,
    "runtime": 2_930,
    "export": 4_260,
    "engines": 5_075,
    "draft": 17_040,
    "agents": 8_760,
    "cpu": 4_730,
    "backends": 2_815,
    "scale": 4_545,
    "study": 3_845,
    "compat": 1_710,
    "tests": 90_220,
    "docs": 5_020,
}


@pytest.fixture(scope="module")
def graph() -> Graph:
    return imports(modules())


def test_imports_of_the_core_only_go_down_and_none_in_a_circle(graph: Graph) -> None:
    assert upward(graph) == []
    assert cycles(graph) == []


def test_the_core_imports_no_extension(graph: Graph) -> None:
    assert outward(graph) == []


def test_extensions_import_of_one_another_what_they_build_on(graph: Graph) -> None:
    assert across(graph) == []


def test_what_exported_packages_ship_imports_nothing_of_ours(graph: Graph) -> None:
    runtime = {name for name in graph if name.startswith("tuner.extensions.runtime")}
    assert all(graph[name] <= runtime for name in runtime)


def test_every_module_lies_in_a_package_that_the_map_knows(graph: Graph) -> None:
    packages = {name.split(".")[1] for name in graph if name not in FLAT}
    assert packages == {*CORE, "extensions"}
    extensions = {name.split(".")[2] for name in graph if name.startswith("tuner.extensions.")}
    assert extensions == set(EXTENSIONS)
    heavy = {"optuna", "kernel_tuner", "pandas", "cupy", "sqlalchemy", "pydantic", "click"}
    flat = {path.stem for path in (ROOT / "tuner").glob("*.py")}
    assert flat == {"__init__", "__main__", "plugins"}
    assert not heavy & flat


def test_every_part_keeps_its_budget_of_lines() -> None:
    over = {part: n for part, n in lines_by_part().items() if n > BUDGET[part]}
    assert over == {}


def test_what_runs_a_session_imports_nothing_of_a_store() -> None:
    code = "import sys, tuner.app.run; sys.exit('sqlalchemy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
