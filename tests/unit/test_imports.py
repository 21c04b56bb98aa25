"""The layers: a module imports from its own level or from lower ones, lazily or not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tuner

PACKAGE = Path(tuner.__file__).parent
LEVELS = {
    0: {"errors", "interrupts"},
    1: {"expressions", "findings", "hardware", "kernel", "progress", "space", "trial"},
    2: {
        "compile_options",
        "consumption",
        "energy_choice",
        "machine_code",
        "occupancy",
        "operator_choice",
        "space_choices",
        "space_file",
        "space_schema",
        "space_sections",
        "statistics",
        "strict_yaml",
        "template",
        "template_sandbox",
        "template_tree",
        "toolkit",
    },
    3: {"agent", "compiler", "device", "profiler", "search", "source"},
    4: {
        "evaluate",
        "extract",
        "feedback",
        "foresight",
        "history",
        "importance",
        "plan",
        "session",
        "session_records",
        "session_schema",
        "session_store",
        "target",
    },
    5: {
        "acceptance",
        "briefing",
        "candidates",
        "checking",
        "comparing",
        "crossing",
        "energy",
        "dispatch",
        "finalists",
        "finals",
        "knowledge",
        "peers",
        "pipeline",
        "pools",
        "profiling",
        "proposing",
        "record",
        "restoring",
        "rounds",
        "searching",
        "standing",
        "survey",
        "toolbox",
        "transcript",
        "tuning",
        "turns",
        "verification",
    },
    6: {"draft", "export", "mutation", "report", "serving"},
    7: {"cli", "rewards", "scoring"},
    8: {"__main__"},
}
LEVEL_OF = {name: level for level, names in LEVELS.items() for name in names}
# Protocols and records that the packages of level 3 share.
SEAMS = {
    "tuner.agent.base",
    "tuner.compiler.base",
    "tuner.device.base",
    "tuner.profiler.base",
    "tuner.search.base",
}

FILES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))
MODULES = [path for path in FILES if path != Path("__init__.py")]


def top(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse((PACKAGE / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "tuner":
            yield from (f"tuner.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield node.module or ""


def own_imports(path: Path) -> list[str]:
    known = {name for name in imported(path) if name.split(".")[0] == "tuner"}
    return sorted(name for name in known if top(name) not in {"", "__version__"})


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_every_module_has_a_level_and_imports_no_higher_one(path: Path) -> None:
    name = path.parts[0].removesuffix(".py")
    assert name in LEVEL_OF, f"give {name} a level in this test"
    too_high = [m for m in own_imports(path) if LEVEL_OF[top(m)] > LEVEL_OF[name]]
    assert not too_high


@pytest.mark.parametrize("path", [p for p in MODULES if p.parts[0] in LEVELS[3]], ids=str)
def test_packages_of_level_three_know_only_each_others_seams(path: Path) -> None:
    others = [m for m in own_imports(path) if LEVEL_OF[top(m)] == 3 and top(m) != path.parts[0]]
    assert set(others) <= SEAMS


def test_no_module_is_named_like_a_package_it_could_hide() -> None:
    heavy = {"optuna", "kernel_tuner", "pandas", "cupy", "sqlalchemy", "pydantic", "click", "mcp"}
    assert not heavy & {path.stem for path in FILES}
