"""A small project whose kernel is a Python function over PyTorch, for tests to change."""

from __future__ import annotations

import shutil
from pathlib import Path

from tuner.compiler.base import PythonCompiler
from tuner.device.base import Device
from tuner.space.callables import load_template
from tuner.space.load import Definition, load_definition
from tuner.tuning.evaluator import Candidate, Evaluator

FOLDER = Path(__file__).parent / "callables"
KERNEL, SPACE = Path("kernels/row_softmax.py"), Path("search_spaces/row_softmax.yaml")


def callable_project(
    folder: Path, *edits: tuple[str, str], space: tuple[str, str] = ("", "")
) -> Path:
    """Copy the project into a folder, with edits of its kernel and one of its space."""
    for name in (KERNEL, SPACE):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(FOLDER / name, folder / name)
    for path, changes in ((folder / KERNEL, edits), (folder / SPACE, (space,))):
        text = path.read_text(encoding="utf-8")
        for before, after in changes:
            assert before in text
            text = text.replace(before, after, 1)
        path.write_text(text, encoding="utf-8")
    return folder


def evaluator_of(definition: Definition, device: Device) -> Evaluator:
    """Make what tries its configs on a device."""
    template = load_template(definition.spec, definition.space)
    candidate = Candidate("initial", definition.space, template)
    return Evaluator(definition.spec, candidate, {"TEMPERATURE": "one"}, PythonCompiler(), device)


def read_project(folder: Path) -> Definition:
    return load_definition(folder / SPACE)
