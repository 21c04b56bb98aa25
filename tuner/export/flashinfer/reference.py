"""A kernel's reference as the Python of a Definition: only what it needs, and `run`."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping

from tuner.export.flashinfer.definition import Problem
from tuner.export.pytorch.package import template
from tuner.model.errors import InputError
from tuner.model.kernel import KernelSpec
from tuner.process.files import read_regular

# What a reference may import wherever FlashInfer-Bench runs.
IMPORTED = frozenset({*sys.stdlib_module_names, "numpy", "scipy", "cupy", "cupyx", "torch"})


def reference_code(spec: KernelSpec) -> str:
    """Return what `reference` needs of its file; raise `InputError` where that is not enough."""
    code, names, modules = needed_code(read_regular(spec.reference).decode(), "reference")
    if "run" in names:
        raise InputError(
            "`reference` needs another function `run`, which is what a definition is called by",
            path=spec.reference,
            remedy="give it another name",
        )
    if foreign := sorted(modules - IMPORTED):
        raise InputError(
            f"`reference` imports {', '.join(foreign)}, which a definition cannot bring along",
            path=spec.reference,
            remedy="write what it needs into the file itself",
        )
    return code


def run_text(problem: Problem, kernel: str, code: str, choices: Mapping[str, str]) -> str:
    """Write the module whose `run` takes a definition's inputs and returns its outputs."""
    sizes = {axis: str(size) for axis, size in problem.fixed.items()}
    if problem.varying:
        tensor, place = problem.place
        sizes[problem.varying] = f"{tensor.name}.shape[{place}]"
    return template("flashinfer/run.py.j2").render(
        kernel=kernel,
        code=code,
        inputs=problem.inputs,
        outputs=problem.outputs,
        axes=", ".join(f'"{axis}": {size}' for axis, size in sizes.items()),
        choices="".join(f", {name}={value!r}" for name, value in choices.items()),
    )


def needed_code(text: str, function: str) -> tuple[str, frozenset[str], frozenset[str]]:
    """Return what a function of a module needs of it, what that defines, and what it imports."""
    lines, body = text.splitlines(), ast.parse(text).body
    wanted, kept = {function}, set[int]()
    while more := {at for at, one in enumerate(body) if at not in kept and _bound(one) & wanted}:
        kept |= more
        wanted |= {name for at in more for name in _read(body[at])}
    needed = [body[at] for at in sorted(kept)]
    parts = ["\n".join(lines[_first_line(one) - 1 : one.end_lineno]) for one in needed]
    modules = {name for one in needed for node in ast.walk(one) for name in _imported(node)}
    names = {name for one in needed for name in _bound(one)}
    return "\n\n\n".join(parts), frozenset(names), frozenset(modules)


def _first_line(statement: ast.stmt) -> int:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return min(one.lineno for one in (statement, *statement.decorator_list))
    return statement.lineno


def _bound(statement: ast.stmt) -> set[str]:
    """Name what a statement of a module defines."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    found: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {one.asname or one.name.partition(".")[0] for one in node.names}
    return found


def _read(statement: ast.stmt) -> set[str]:
    """Name what a statement takes from its module: what a function assigns is its own."""
    nodes = list(ast.walk(statement))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    own = {node.arg for node in nodes if isinstance(node, ast.arg)}
    own |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return {node.id for node in names} - own


def _imported(node: ast.AST) -> set[str]:
    """Name the packages of an import; one of a neighbour has a dot alone."""
    if isinstance(node, ast.Import):
        return {one.name.partition(".")[0] for one in node.names}
    if isinstance(node, ast.ImportFrom):
        return {"." if node.level else (node.module or "").partition(".")[0]}
    return set()
