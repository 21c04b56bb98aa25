"""A release says one version, its wheel holds all that runs, and its site has every page."""

from __future__ import annotations

import configparser
import subprocess
import sys
from pathlib import Path

import tuner

ROOT = Path(__file__).parents[2]
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_every_place_says_the_same_version() -> None:
    version = SETUP["metadata"]["version"]
    assert tuner.__version__ == version
    assert f"\n## [{version}] - 20" in text_of("CHANGELOG.md")
    assert f"\nversion: {version}\n" in text_of("CITATION.cff")
    assert f"\n{version} · Python 3.11 to " in text_of("README.md")


def test_a_wheel_has_every_file_that_is_no_module() -> None:
    held = {
        path
        for package, patterns in SETUP["options.package_data"].items()
        for pattern in patterns.split(",")
        for path in (ROOT / package.replace(".", "/")).glob(pattern.strip())
    }
    held |= set((ROOT / "tuner/cli/demo").rglob("*"))  # `demo/**`, which setuptools reads so
    files = {path for path in (ROOT / "tuner").rglob("*") if path.is_file()}
    assert {path for path in files - held if path.suffix not in (".py", ".pyc")} == set()


def test_the_site_has_every_page_once(tmp_path: Path) -> None:
    words = [sys.executable, ROOT / "docs/site/pages.py", tmp_path / "pages"]
    subprocess.run(words, check=True, env={"PYTHONPATH": str(ROOT), "PATH": ""})
    made = {str(path.relative_to(tmp_path / "pages")) for path in tmp_path.rglob("*.md")}
    listed = [line for line in text_of("docs/site/mkdocs.yml").splitlines() if line.endswith(".md")]
    named = [line.split()[-1] for line in listed]
    assert sorted(named) == sorted(made)
    assert "| `--searcher SEARCHER` |" in (tmp_path / "pages/options.md").read_text()
