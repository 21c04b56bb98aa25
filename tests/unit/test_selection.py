"""What `scripts/test` runs: a smoke test of each extension, and the tests of what changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from house import EXTENSIONS
from selection import ROOT, SMOKE, changed_files, smoke_tests, touched_tests

UNIT, SUPPORT, CODE, DOCS, SPACES = "tests/unit", "tests/support", "tuner", "docs", "search_spaces"
TREE = {
    f"{CODE}/space/load.py": "",
    f"{CODE}/model/config.py": "",
    f"{CODE}/extensions/draft/items.py": "",
    f"{CODE}/extensions/draft/reading.py": "from tuner.extensions.draft.items import Item",
    f"{SUPPORT}/doubles.py": "from tuner.space.load import load_definition",
    f"{UNIT}/space/test_load.py": "",
    f"{UNIT}/space/test_load_data.py": "",
    f"{UNIT}/space/test_yaml.py": "",
    f"{UNIT}/app/test_run.py": "from doubles import Double",
    f"{UNIT}/extensions/draft/test_draft.py": "",
    f"{UNIT}/extensions/export/test_cpp.py": "from tuner.extensions.draft import reading",
    f"{UNIT}/extensions/export/conftest.py": "",
    f"{UNIT}/kernels/test_scale.py": 'KERNEL = "scale"',
}


@pytest.mark.parametrize(
    ("changed", "touched"),
    [
        (f"{UNIT}/space/test_yaml.py", "space/test_yaml"),
        (f"{CODE}/space/load.py", "app/test_run space/test_load space/test_load_data"),
        (f"{SUPPORT}/doubles.py", "app/test_run"),
        (
            f"{CODE}/extensions/draft/items.py",
            "extensions/draft/test_draft extensions/export/test_cpp",
        ),
        (f"{UNIT}/extensions/export/conftest.py", "extensions/export/test_cpp"),
        (f"{SPACES}/scale.yaml", "kernels/test_scale"),
        (f"{DOCS}/scale.md", ""),
    ],
)
def test_what_changed_is_tested(tmp_path: Path, changed: str, touched: str) -> None:
    for name, text in TREE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = set(touched_tests([Path(changed)], tmp_path))
    assert found == {f"{UNIT}/{name}.py" for name in touched.split()}


def test_where_there_is_no_repository_nothing_is_known_to_have_changed(tmp_path: Path) -> None:
    assert changed_files(tmp_path) == []


def test_every_extension_has_a_smoke_test() -> None:
    assert SMOKE.keys() == set(EXTENSIONS)
    assert all((ROOT / path).is_file() for path in smoke_tests())


@pytest.mark.parametrize(("budget_min", "code"), [("9", 0), ("0.0001", 6)])
def test_more_cpu_time_than_the_budget_is_a_failure(
    tmp_path: Path, budget_min: str, code: int
) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(): sum(range(10_000_000))\n")
    words = ["-p", "cpu_time", "--cpu-budget", budget_min, "--import-mode=importlib", "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests/support")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout
    assert f"minutes in all, of a budget of {budget_min}" in done.stdout
