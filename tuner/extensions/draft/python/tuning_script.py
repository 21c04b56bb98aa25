"""The parameters that a script of Kernel Tuner beside a source gives it; nothing of it is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tuner.extensions.draft.python.literals import Literals, bindings
from tuner.model.expressions import Value
from tuner.process.files import read_text

_TUNES = re.compile(r"\b(?:tune_kernel|run_kernel)\b")
_NAMED = "tune_params"
_MOST_FILES = 40
_MOST_BYTES = 1 << 20


def read_tuning_script(source: Path) -> dict[str, tuple[Value, ...]]:
    """Map the names in `tune_params` to the values there, of a script that names the source."""
    for path in sorted(source.parent.glob("*.py"))[:_MOST_FILES]:
        try:
            text = read_text(path) if path.stat().st_size <= _MOST_BYTES else ""
            tree = ast.parse(text) if _TUNES.search(text) and source.name in text else None
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue
        if tree is not None and (found := dict(_parameters(tree))):
            return found
    return {}


def _parameters(tree: ast.Module) -> Iterator[tuple[str, tuple[Value, ...]]]:
    literals = Literals(tree)
    for node in ast.walk(tree):
        for target, value in bindings(node) if isinstance(node, ast.stmt) else ():
            named = literals.try_evaluate(value) if target == _NAMED else None
            for name, values in named.items() if isinstance(named, dict) else ():
                yield from _checked(name, values)
        match node:
            case ast.Assign(
                targets=[ast.Subscript(value=ast.Name(id=name), slice=key)], value=value
            ):
                if name == _NAMED:
                    yield from _checked(literals.try_evaluate(key), literals.try_evaluate(value))


def _checked(name: Any, values: Any) -> Iterator[tuple[str, tuple[Value, ...]]]:
    numbers = (
        [one for one in values if type(one) in (int, bool)] if isinstance(values, list) else []
    )
    if isinstance(name, str) and name.isidentifier() and numbers and len(numbers) == len(values):
        yield name, tuple(dict.fromkeys(numbers))
