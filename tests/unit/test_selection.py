"""What `scripts/test` runs: a smoke test of each extension, and the tests of what changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from house import EXTENSIONS
from selection import ROOT, SMOKE, changed_files, smoke_tests, touched_tests

TREE = {
    "tuner/space/load.py": "",
    "tuner/model/config.py": "",
    "tuner/extensions/draft/items.py": "",
    "tuner/extensions/draft/reading.py": "from tuner.extensions.draft.items import Item",
    "tests/support/doubles.py": "from tuner.space.load import load_definition",
    "tests/unit/space/test_load.py": "",
    "tests/unit/space/test_load_data.py": "",
    "tests/unit/space/test_yaml.py": "",
    "tests/unit/app/test_run.py": "from doubles import Double",
    "tests/unit/extensions/draft/test_draft.py": "",
    "tests/unit/extensions/export/test_cpp.py": "from tuner.extensions.draft import reading",
    "tests/unit/extensions/export/conftest.py": "",
    "tests/unit/kernels/test_scale.py": 'KERNEL = "scale"',
}


@pytest.mark.parametrize(
    ("changed", "touched"),
    [
        ("tests/unit/space/test_yaml.py", "space/test_yaml"),
        ("tuner/space/load.py", "app/test_run space/test_load space/test_load_data"),
        ("tests/support/doubles.py", "app/test_run"),
        (
            "tuner/extensions/draft/items.py",
            "extensions/draft/test_draft extensions/export/test_cpp",
        ),
        ("tests/unit/extensions/export/conftest.py", "extensions/export/test_cpp"),
        ("search_spaces/scale.yaml", "kernels/test_scale"),
        ("docs/scale.md", ""),
    ],
)
def test_what_changed_is_tested(tmp_path: Path, changed: str, touched: str) -> None:
    for name, text in TREE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = set(touched_tests([Path(changed)], tmp_path))
    assert found == {f"tests/unit/{name}.py" for name in touched.split()}


def test_where_there_is_no_repository_nothing_is_known_to_have_changed(tmp_path: Path) -> None:
    assert changed_files(tmp_path) == []


def test_every_extension_has_a_smoke_test() -> None:
    assert SMOKE.keys() == set(EXTENSIONS)
    assert all((ROOT / path).is_file() for path in smoke_tests())


@pytest.mark.parametrize(("budget_min", "code"), [("9", 0), ("0.0001", 1)])
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
