"""A plugin of pytest for `--quick`: the core, a smoke test of each extension, and what is touched.

Of the core's tests those are left out that compile. Touched is what differs from the branch that
this one left: all tests of it run, slow ones too.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from house import CORE, extension_of, imports, modules  # noqa: E402

TESTS = Path("tests")
# What opens compilers, or a device that compiles.
COMPILING_NAMES = frozenset(
    {"Nvrtc", "NvrtcPool", "HostCompiler", "HostDevice", "HipCompiler", "cached_compiler"}
)
MOST_IMPORTING_TESTS = 20
# One file or two of each extension, that take a second or two.
SMOKE = {
    "agents": ("test_rounds.py",),
    "backends": ("program/test_evaluator_device.py",),
    "compat": ("test_autotune.py",),
    "cpu": ("test_waves.py",),
    "draft": ("test_files.py",),
    "engines": ("configs/test_exported.py", "timeline/test_table.py"),
    "export": ("test_folder.py", "test_huggingface_package.py"),
    "runtime": ("../export/test_torch_runtime.py",),
    "scale": ("campaign/test_progress_lines.py", "cluster/test_members.py"),
    "study": ("mutation/test_mutants.py",),
}
COMPILING_FIXTURES = frozenset({"compiler", "host_compiler", "with_nvcc", "postgres"})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="the core, smoke tests, what is touched")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--quick"):
        given = getattr(config, "workerinput", {}).get("touched")
        touched = set(touched_tests(changed_files())) if given is None else set(given)
        config.pluginmanager.register(Selection(touched))


class Selection:
    """Which tests `--quick` takes."""

    def __init__(self, touched: set[str]) -> None:
        self._touched, self._smoke = touched, set(smoke_tests())

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["touched"] = sorted(self._touched)

    def pytest_report_header(self) -> str:
        return f"quick: the core, and {len(self._touched)} files of tests that the changes touch"

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        chosen = [item for item in items if self._takes(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
        items[:] = chosen

    def _takes(self, item: pytest.Item) -> bool:
        path = item.path.relative_to(ROOT)
        if str(path) in self._touched:
            return True
        if item.get_closest_marker("slow"):
            return False
        parts = path.parts
        is_core = parts[:2] == ("tests", "unit") and (len(parts) == 3 or parts[2] in CORE)
        return path in self._smoke or (is_core and not compiles(item))


def smoke_tests() -> Iterator[Path]:
    for extension, names in SMOKE.items():
        for name in names:
            yield Path(os.path.normpath(TESTS / "unit/extensions" / extension / name))


def compiles(item: pytest.Item) -> bool:
    names = vars(getattr(item, "module", None) or object)
    return bool(
        COMPILING_NAMES & names.keys() or COMPILING_FIXTURES.intersection(item.fixturenames)
    )


def changed_files(root: Path = ROOT) -> list[Path]:
    """List what differs from where this branch left the main one, and what git does not know."""

    def lines(*words: str) -> list[str]:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=False
        )
        return done.stdout.splitlines() if done.returncode == 0 else []

    bases = (lines("merge-base", "HEAD", name) for name in ("origin/HEAD", "origin/main", "main"))
    base = next((found[0] for found in bases if found), "HEAD")
    names = lines("diff", "--name-only", base) + lines("ls-files", "--others", "--exclude-standard")
    return sorted(map(Path, set(names)))


def touched_tests(changed: Iterable[Path], root: Path = ROOT) -> Iterator[str]:
    """Yield the files with tests of what changed, relative to `root`."""
    changed = list(changed)
    if not changed:
        return
    files = [path.relative_to(root) for path in sorted((root / TESTS).rglob("*.py"))]
    texts = {path: (root / path).read_text(encoding="utf-8") for path in files}
    imported = {path: _imported(ast.parse(text)) for path, text in texts.items()}
    support = {path.stem: imported[path] for path in files if "support" in path.parts}
    tests = [path for path in files if path.name.startswith("test_")]
    reached = {path: imported[path] | _reached(imported[path], support) for path in tests}
    uses = Counter(name for names in reached.values() for name in names)
    # What many tests import is their vocabulary: whether it works the core's tests tell.
    modules_of_many = {name for name in uses if uses[name] > MOST_IMPORTING_TESTS} - support.keys()
    names = set(_changed_modules(changed, root)) - modules_of_many
    folders = {folder for path in changed for folder in _folders(path, root)}
    mentions = {_mention(path) for path in changed if path.parts[0] != "docs"} - {""}
    for path in tests:
        if (
            path in changed
            or path.parent in folders
            or reached[path] & names
            or _mirrors(path, changed)
            or any(mention in texts[path] for mention in mentions)
        ):
            yield str(path)


def _imported(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def _changed_modules(changed: Iterable[Path], root: Path) -> Iterator[str]:
    """Name the modules that changed, and those of their extensions that import them."""
    python = [path for path in changed if path.suffix == ".py"]
    yield from (path.stem for path in python if path.parts[0] in ("tests", "benchmarks"))
    names = {_module(path) for path in python if path.parts[0] == "tuner"}
    yield from names
    if extensions := {extension_of(name) for name in names} - {""}:
        graph = imports(modules(root))
        for extension in extensions:
            inside = {name for name in graph if extension_of(name) == extension}
            found = names & inside
            while more := {name for name in inside if graph[name] & found} - found:
                found |= more
            yield from found


def _reached(names: set[str], graph: Mapping[str, set[str]]) -> set[str]:
    """Return all that the helpers among `names` import, and the helpers that they import."""
    helpers, found = names & graph.keys(), set[str]()
    while helpers:
        imported = set().union(*(graph[name] for name in helpers))
        helpers = (imported & graph.keys()) - found
        found |= imported
    return found


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _folders(path: Path, root: Path) -> Iterator[Path]:
    """Name the folders whose tests all are of what changed."""
    if path.name == "conftest.py":
        yield path.parent
        yield from (folder.relative_to(root) for folder in (root / path.parent).glob("**/"))
    elif path.parts[0] == "tests" and path.suffix != ".py":
        yield from (path.parent, path.parent.parent)
    elif path.parts[:2] == ("tuner", "extensions"):
        mirror = TESTS / "unit" / path.relative_to("tuner").parent
        yield next(one for one in (mirror, *mirror.parents) if any((root / one).glob("test_*.py")))


def _mention(path: Path) -> str:
    """Return what tests of a file that is no module say of it."""
    if path.parts[0] in ("kernels", "search_spaces", "templates"):
        return path.name.partition(".")[0]
    return path.name if path.suffix != ".py" else ""


def _mirrors(test: Path, changed: Iterable[Path]) -> bool:
    """Whether a file with tests lies where those of a changed file are looked for."""
    for path in changed:
        folder = TESTS / "unit" / (path.relative_to("tuner") if path.parts[0] == "tuner" else path)
        same = test.parent == folder.parent
        if same and (test.stem + "_").startswith(f"test_{path.stem}_"):
            return True
    return False
