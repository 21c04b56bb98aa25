"""Plugins of inference engines: installed, loaded, and held against the engine's signatures."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from operator_sessions import choices, write_operator_session

from tuner.compiler.base import Compiler
from tuner.extensions.export.packages import export_package
from tuner.extensions.export.winners import winners_of

PACKAGE = "tuned_test"


class Noting:
    """An operator that serves everything, or nothing, and notes what it is given."""

    def __init__(self, *, serves: bool = True, invariant: bool = False) -> None:
        self.serves, self.fallback, self.invariant = serves, None, invariant
        self.devices, self.quiet = {"NVIDIA H200"}, False
        self.calls: Counter[int] = Counter()
        self.tensors: tuple[Any, ...] = ()
        self.keywords: dict[str, Any] = {}

    def keep_rows(self) -> bool:
        return self.invariant

    def attempt(self, *tensors: Any, **keywords: Any) -> bool:
        self.tensors, self.keywords = tensors, keywords
        return self.serves

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [tuple(one.shape) for one in self.tensors]


def empty_table(
    folder: Path,
    name: str,
    order: tuple[Any, ...],
    shapes: Callable[..., tuple[tuple[int, ...], ...]],
    scalars: tuple[float, ...] = (),
) -> Any:
    """Make the table of an operator of rows that has no variants."""
    from tuner.extensions.runtime.pytorch.runtime import Table

    return Table(
        name=name,
        device="NVIDIA H200",
        capability=(9, 0),
        axes=("T", "D"),
        given=(),
        order=order,
        read_axes=lambda out, *_: (out[0], out[1]),
        shapes=shapes,
        scratch_bytes=lambda rows, width: (),
        scalars=lambda rows, width: scalars,
        variants=(),
        points=(),
        folder=folder,
    )


@contextmanager
def registered(table: Any, namespace: str) -> Iterator[Any]:
    """Register a table's operator with PyTorch, under a name that is free again afterwards."""
    import torch

    from tuner.extensions.runtime.pytorch.runtime import Operator

    with torch.library._scoped_library(namespace, "FRAGMENT") as library:
        found = Operator(table)
        found.register(library)
        yield found


def written(form: str, place: Path, compiler: Compiler, *names: str) -> Path:
    """Write a plugin of these operators, with their first choices, into a folder of `place`."""
    folder, sessions = place / "plugin", place / "sessions"
    made = [write_operator_session(sessions / one, one, choices(one)[0]) for one in names]
    winners = [winners_of(one, None, None) for one in made]
    export_package(winners, folder, compiler, PACKAGE, form)
    return folder


def installed(folder: Path) -> Path:
    """Install a plugin as its README says, but into a folder of its own."""
    site = folder.parent / "site"
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--target", str(site))
    command = [sys.executable, "-m", "pip", "install", *options, str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return site


def loaded(engine: str, *path: Path, part: str = "", **switches: str) -> tuple[Any, str]:
    """Load it in an engine on this path; return what the loader found, and what was logged.

    `part` is an option of the engine's loader: `--loader` for its loader of plugins alone.
    """
    environment = {
        **{name: value for name, value in os.environ.items() if engine.upper() not in name},
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        **switches,
    }
    loader = Path(__file__).with_name(f"genuine_{engine}.py")
    command = [sys.executable, str(loader), PACKAGE, *filter(None, [part])]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def same_signature(adapter: Callable[..., Any], own: ast.FunctionDef, before: int = 1) -> bool:
    """Say whether an adapter takes what the engine's function does, after the operator.

    Where it takes the function itself, too, it has two `before`.

    What a method calls `self` may have another name, and None may stand for a default by a name of
    torch or of the engine, which whoever writes packages need not have.
    """
    source = ast.parse(inspect.getsource(adapter)).body[0]
    assert isinstance(source, ast.FunctionDef)
    given, wanted = signature(source)[before:], signature(own)
    if wanted[0] == ("self", ""):
        given, wanted = given[1:], wanted[1:]
    return len(given) == len(wanted) and all(
        mine == theirs or (mine == (theirs[0], "None") and re.fullmatch(r"\w+\.\w+", theirs[1]))
        for mine, theirs in zip(given, wanted, strict=True)
    )


def signature(function: ast.FunctionDef) -> list[tuple[str, str]]:
    """List arguments with their defaults, as they are written."""
    given = [*function.args.args, *function.args.kwonlyargs]
    defaults = [*function.args.defaults, *(one for one in function.args.kw_defaults if one)]
    texts = ["", *[""] * (len(given) - 1), *map(ast.unparse, defaults)][-len(given) :]
    return [(one.arg, text) for one, text in zip(given, texts, strict=True)]


def defined(wheel: Path, target: str) -> ast.FunctionDef:
    """Find a function or a method in the sources of a wheel, overloads left out."""
    module, _, name = target.rpartition(".")
    scope = ""
    if module.rpartition(".")[2][0].isupper():
        module, _, scope = module.rpartition(".")
    place = wheel / module.replace(".", "/")
    path = place.with_suffix(".py") if place.with_suffix(".py").exists() else place / "__init__.py"
    tree: ast.AST = ast.parse(path.read_text(encoding="utf-8"))
    if scope:
        classes = (one for one in ast.walk(tree) if isinstance(one, ast.ClassDef))
        tree = next(one for one in classes if one.name == scope)
    named = (one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name == name)
    return next(
        one for one in named if "overload" not in [ast.unparse(d) for d in one.decorator_list]
    )
