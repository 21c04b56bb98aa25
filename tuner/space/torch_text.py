"""The `torch:` of a search space: Python over PyTorch whose names and results are checked."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from difflib import get_close_matches

from tuner.model.errors import SpaceError
from tuner.model.kernel import Argument, TorchText
from tuner.space.yaml import Document

_HERE = ("reference", "torch")
# What may be named beside the arguments.
LIBRARIES = ("torch", "F", "math")
_EXAMPLE = "write an expression, such as `torch.nn.functional.silu(x)`"


def torch_text(
    document: Document, text: str, arguments: Sequence[Argument], sizes: Sequence[str]
) -> TorchText:
    """Check what a reference says in PyTorch; raise `SpaceError` with the line.

    `sizes` are the axes and the operator's choices, which it may name beside the arguments.
    """
    place = document.places.get(_HERE)
    first = document.line(*_HERE)
    if place is not None:
        first = document.text.count("\n", 0, place.start) + 1
        first += document.text[place.start : place.start + 1] in ("|", ">")
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise _error(document, f"is no Python: {error.msg}", first, error.lineno) from error
    if not tree.body:
        raise _error(document, "is empty", first)
    _require_plain(document, tree, first)
    read = [a.name for a in arguments if a.role in ("input", "inout")]
    _require_known(document, tree, first, list(dict.fromkeys([*read, *sizes])))
    _require_outputs(document, tree, first, arguments)
    return TorchText(text, first)


def _require_plain(document: Document, tree: ast.Module, first: int) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            remedy = f"{', '.join(LIBRARIES)} are there; what needs more goes into a .py file"
            raise _error(document, "imports something", first, node.lineno, remedy)


def _require_known(document: Document, tree: ast.Module, first: int, given: Sequence[str]) -> None:
    bound = {*given, *LIBRARIES, *dir(builtins)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, ast.FunctionDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in bound:
            near = get_close_matches(node.id, given, n=1)
            remedy = f"did you mean `{near[0]}`? " if near else ""
            remedy += f"names here: {', '.join([*given, *LIBRARIES])}"
            raise _error(
                document, f"names `{node.id}`, which is no input", first, node.lineno, remedy
            )


def _require_outputs(
    document: Document, tree: ast.Module, first: int, arguments: Sequence[Argument]
) -> None:
    last = tree.body[-1]
    if isinstance(last, ast.Expr):
        return
    assigned = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    outputs = [a.name for a in arguments if a.role in ("output", "inout")]
    missing = [name for name in outputs if name not in assigned]
    if missing:
        remedy = f"end with an expression, or assign to {', '.join(outputs)}"
        message = f"gives nothing for the output `{missing[0]}`"
        raise _error(document, message, first, last.lineno, remedy)


def _error(
    document: Document, what: str, first: int, line: int | None = 1, remedy: str = _EXAMPLE
) -> SpaceError:
    return SpaceError(
        f"`reference.torch` {what}", path=document.path, line=first + (line or 1) - 1, remedy=remedy
    )
