"""A release says one version, its wheel holds all that runs, and its site has every page."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_what_installs_an_extra_names_one_and_leaves_the_checkout_installed() -> None:
    """Without `-e` a copy of that day would take the place of the checkout in `.venv`."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tuner").rglob("*.py")]
    commands = [
        command
        for page in pages
        for command in re.findall(r"pip install (\S* ?'\.\[\w+\]')", page.read_text("utf-8"))
    ]
    assert len(commands) > 8
    extras = SETUP["options.extras_require"]
    assert {c for c in commands if c not in {f"-e '.[{extra}]'" for extra in extras}} == set()


@pytest.mark.parametrize(
    ("config", "fetched"), [("global.index-url='https://mine'", False), ("", True)]
)
def test_uv_is_fetched_unless_pip_is_told_of_another_index(
    tmp_path: Path, config: str, fetched: bool
) -> None:
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\ncase "$*" in *config*) echo "{config}" ;; esac\n')
    python.chmod(0o755)
    script = f"source {ROOT}/scripts/environment; venv=$0; find_uv"
    words = ["/bin/bash", "-c", script, tmp_path]
    ran = subprocess.run(words, capture_output=True, text=True, env={"PATH": "/bin"}, check=False)
    assert (ran.returncode == 0) == fetched
    assert ran.stdout == (f"{tmp_path}/.uv/bin/uv\n" if fetched else "")
