"""Print the figures of the code itself: its size, its imports, its longest functions."""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# From the bottom up: a package of the core imports from itself and from those before it.
CORE = (
    "model",
    "process",
    "source",
    "space",
    "compiler",
    "device",
    "search",
    "analysis",
    "session",
    "dispatch",
    "tuning",
    "report",
    "app",
    "cli",
    "testing",
)
# They import the core, which imports none of them, and of one another are to import only these.
EXTENSIONS = (
    *("runtime", "export", "engines", "draft", "agents", "cpu", "backends", "scale", "study"),
    "compat",
)
BETWEEN = frozenset({("export", "runtime"), ("engines", "runtime"), ("engines", "export")})
# `tuner.compat` is the name under which scripts of other tuners import the extension.
FLAT = frozenset(
    {"tuner", "tuner.__main__", "tuner.plugins", "tuner.compat", "tuner.compat.kernel_tuner"}
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
IRREGULAR = frozenset(
    "begun broken built chosen done drawn driven fed felt forgotten found given "  # noqa: SIM905
    "gone grown heard held kept known laid left led lost made meant met overwritten paid "
    "rewritten risen said seen sent shown shrunk spent spoken stated stood taken told "
    "thought understood unknown unread unsaid withdrawn worn woven written".split()
)
VERBS = frozenset({"embed", "feed", "need", "proceed", "seed", "shed", "speed"})
KERNEL = "kernels/sglang/silu_and_mul.cu"


def modules(root: Path = ROOT) -> dict[str, ast.Module]:
    """Parse every module of the package, by its dotted name."""
    found = {}
    for path in sorted((root / "tuner").rglob("*.py")):
        if path.is_symlink():
            continue
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def imports(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Tell which of our modules each module imports, lazily and for types too."""
    return {name: set(_imported(name, tree, trees)) for name, tree in trees.items()}


def _imported(name: str, tree: ast.Module, known: Mapping[str, object]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            # Modules that exports ship import from beside themselves.
            beside = name.split(".")[: -node.level] if node.level else []
            module = ".".join([*beside, node.module or ""])
            for alias in node.names:
                full = f"{module}.{alias.name}"
                found = full if full in known else module
                if found in known:
                    yield found


def extension_of(module: str) -> str:
    """Name the extension that a module belongs to, "" for the core."""
    parts = module.split(".")
    return parts[2] if parts[1:2] == ["extensions"] and len(parts) > 2 else ""


def upward(graph: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """List the imports that lead from a package of the core to one above it."""
    level = {package: number for number, package in enumerate(CORE)}

    def level_of(module: str) -> int | None:
        return level.get(module.split(".")[1]) if module not in FLAT else None

    return [
        (name, other)
        for name, others in graph.items()
        for other in sorted(others)
        if (low := level_of(name)) is not None
        and (high := level_of(other)) is not None
        and high > low
    ]


def outward(graph: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """List the imports that lead from the core to an extension.

    `tuner` itself names what extensions bring for type checkers alone, and imports it by name.
    """
    return [
        (name, other)
        for name, others in graph.items()
        for other in sorted(others)
        if name not in FLAT and extension_of(other) and not extension_of(name)
    ]


def across(graph: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """List the imports from one extension to another, but for those that are meant to be."""
    pairs = ((name, other) for name, others in graph.items() for other in sorted(others))
    return [
        (name, other)
        for name, other in pairs
        if (here := extension_of(name))
        and (there := extension_of(other))
        and here != there
        and (here, there) not in BETWEEN
    ]


def lines_by_part(root: Path = ROOT) -> dict[str, int]:
    """Count the lines of the core, of each extension, of the tests, and of docs by hand."""
    extensions = root / "tuner/extensions"
    by_part = {name: lines_of(extensions / name) for name in EXTENSIONS}
    by_part["core"] = lines_of(root / "tuner") - lines_of(extensions)
    by_part["tests"] = lines_of(root / "tests")
    pages = [path for path in (root / "docs").glob("*.md") if path.name != "results.md"]
    by_part["docs"] = sum(path.read_bytes().count(b"\n") for path in pages)
    return by_part


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Find the groups of modules that import one another, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph.get(name, ()):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in graph:
        if name not in index:
            visit(name)
    return found


def repeated_classes(trees: Mapping[str, ast.Module]) -> dict[str, int]:
    """Count the class names that stand in several modules."""
    counts = Counter(
        node.name for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef)
    )
    return {name: count for name, count in sorted(counts.items()) if count > 1}


def places_of_settings(trees: Mapping[str, ast.Module]) -> list[str]:
    """List the classes and functions that write seven settings of a run or more as their own.

    What inherits from a class that declares them, or has options made of them, writes none.
    """
    model = "tuner.model.settings"
    classes = [node for node in trees[model].body if isinstance(node, ast.ClassDef)]
    declaring = {node.name: _fields(node) for node in classes if node.name.endswith("Settings")}
    known = set().union(*declaring.values())
    found = [model]
    for name, tree in trees.items():
        for node in ast.walk(tree) if name != model else ():
            if isinstance(node, ast.ClassDef) and not declaring.keys() & _names(*node.bases):
                own = _fields(node)
            elif isinstance(node, ast.FunctionDef) and "options" not in _names(
                *node.decorator_list
            ):
                own = {one.arg for one in (*node.args.args, *node.args.kwonlyargs)}
            else:
                continue
            if len(own & known) >= 7:
                found.append(f"{name}.{node.name}")
    return found


def _fields(node: ast.ClassDef) -> set[str]:
    return {one.target.id for one in node.body if isinstance(one, ast.AnnAssign)}


def _names(*nodes: ast.expr) -> set[str]:
    return {one.id for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name)}


def function_lengths(trees: Mapping[str, ast.Module]) -> list[int]:
    """List the lengths of all functions in lines, without decorators, shortest first."""
    return sorted(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, FUNCTIONS)
    )


def single_callers(trees: Mapping[str, ast.Module]) -> list[str]:
    """List the private functions that their own module names once, and no other does."""
    found = []
    for name, tree in trees.items():
        named = Counter(_referred(tree))
        for node in ast.walk(tree):
            if isinstance(node, FUNCTIONS) and node.name[0] == "_" != node.name[1]:
                within = Counter(_referred(node))[node.name]
                if named[node.name] - within == 1:
                    found.append(f"{name}.{node.name}")
    return found


def _referred(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def named_by_participles(trees: Mapping[str, ast.Module]) -> list[str]:
    """List the functions whose name is one word, and that a participle: `told`, `_written`.

    Properties are not among them: `path.joined` says what it is, as nouns do.
    """
    return [
        f"{name}.{node.name}"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, FUNCTIONS)
        and not any("property" in ast.unparse(one) for one in node.decorator_list)
        and (word := node.name.strip("_"))
        and "_" not in word
        and (word in IRREGULAR or (word.endswith("ed") and word not in VERBS))
    ]


def lines_of(folder: Path) -> int:
    """Count the lines of Python below a folder, as `wc -l` does; a link has none of its own."""
    files = (path for path in folder.rglob("*.py") if not path.is_symlink())
    return sum(path.read_bytes().count(b"\n") for path in files)


def loaded_by_a_run(root: Path = ROOT) -> tuple[int, int]:
    """Count our modules that `tune` loads to tune a kernel on its recording, and the packages."""
    code = (
        "import sys, tempfile, contextlib, os\n"
        "from tuner.cli import cli\n"
        "os.environ['TUNE_STORE'] = 'none'\n"
        "with tempfile.TemporaryDirectory() as folder, contextlib.suppress(SystemExit):\n"
        f"    cli.main([{KERNEL!r}, '--device', 'recorded', '--trials', '20', '--quiet',\n"
        "              '--workload', 'T=16,D=14336', '--session', folder + '/session'])\n"
        "ours = [m for name, m in sys.modules.items() if name.split('.')[0] == 'tuner']\n"
        "packages = sum(hasattr(module, '__path__') for module in ours)\n"
        "print(len(ours) - packages, packages)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    modules_loaded, packages = map(int, ran.stdout.splitlines()[-1].split())
    return modules_loaded, packages


def figures(root: Path = ROOT) -> dict[str, object]:
    """Gather all figures of a checkout."""
    trees = modules(root)
    graph = imports(trees)
    lengths = function_lengths(trees)
    loaded, packages = loaded_by_a_run(root)
    flat = {path.stem for path in (root / "tuner").glob("*.py")}
    flat -= {"__init__", "__main__", "plugins"}
    known = not flat
    return {
        "modules": len(trees),
        "lines in tuner": lines_of(root / "tuner"),
        "lines in tests": lines_of(root / "tests"),
        "modules flat in tuner": len(flat),
        "imports that point up": upward(graph) if known else "no layers",
        "imports from the core into extensions": outward(graph),
        "imports between extensions": across(graph),
        "lines by part": [f"{part} {lines}" for part, lines in lines_by_part(root).items()],
        "cycles of modules": cycles(graph),
        "class names in several modules": repeated_classes(trees),
        "places where settings are written": places_of_settings(trees),
        "functions, 90th percentile in lines": lengths[int(0.9 * len(lengths))],
        "functions, longest in lines": lengths[-1],
        "functions": len(lengths),
        "private functions with one caller": single_callers(trees),
        "functions named by a bare participle": named_by_participles(trees),
        "modules loaded by a recorded run": loaded,
        "packages loaded besides": packages,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to look at")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    made = figures(arguments.root.resolve())
    if arguments.json:
        print(json.dumps(made, indent=1))
        return
    for name, value in made.items():
        text = f"{len(value)} {value}" if isinstance(value, (list, dict)) and value else value
        print(f"{name:36} {str(text or 0)[:200]}")


if __name__ == "__main__":
    main()
