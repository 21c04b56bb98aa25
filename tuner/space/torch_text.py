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
    place, first = document.places.get(_HERE), document.line(*_HERE)
    if place is not None:
        first = document.text.count("\n", 0, place.start) + 1
        first += document.text[place.start : place.start + 1] in ("|", ">")

    def error(what: str, line: int | None = 1, remedy: str = _EXAMPLE) -> SpaceError:
        message, line = f"`reference.torch` {what}", first + (line or 1) - 1
        return SpaceError(message, path=document.path, line=line, remedy=remedy)

    try:
        tree = ast.parse(text)
    except SyntaxError as mistake:
        raise error(f"is no Python: {mistake.msg}", mistake.lineno) from mistake
    if not tree.body:
        raise error("is empty")
    nodes, assigned, declared = [*ast.walk(tree)], set[str](), set[str]()
    for node in nodes:
        match node:
            case ast.Import() | ast.ImportFrom():
                remedy = f"{', '.join(LIBRARIES)} are there; what needs more goes into a .py file"
                raise error("imports something", node.lineno, remedy)
            case ast.Name(id=name, ctx=ast.Store()):
                assigned.add(name)
            case ast.FunctionDef(name=name) | ast.arg(arg=name):
                declared.add(name)
    read = [one.name for one in arguments if one.role in ("input", "inout")]
    given = list(dict.fromkeys([*read, *sizes]))
    known = {*given, *LIBRARIES, *dir(builtins), *assigned, *declared}
    for node in nodes:
        if isinstance(node, ast.Name) and node.id not in known:
            near = get_close_matches(node.id, given, n=1)
            remedy = f"did you mean `{near[0]}`? " if near else ""
            remedy += f"names here: {', '.join([*given, *LIBRARIES])}"
            raise error(f"names `{node.id}`, which is no input", node.lineno, remedy)
    outputs = [one.name for one in arguments if one.role in ("output", "inout")]
    missing, last = [name for name in outputs if name not in assigned], tree.body[-1]
    if missing and not isinstance(last, ast.Expr):
        remedy = f"end with an expression, or assign to {', '.join(outputs)}"
        raise error(f"gives nothing for the output `{missing[0]}`", last.lineno, remedy)
    return TorchText(text, first)
