"""What a fuzzer calls with arbitrary bytes: each target ends, or raises one of our own errors.

A target fails on every other exception. `TARGETS` names them; `tests/fuzz` has their corpora.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from functools import cache
from pathlib import Path

from tuner.compiler.base import normalize_source
from tuner.compiler.includes import refused_include
from tuner.model.errors import ExpressionError, InputError, TemplateError
from tuner.model.expressions import Expression
from tuner.space.load import load_definition
from tuner.space.template import Template, map_errors

NAMES = {"T": 128, "K": 4096, "block_size": 256, "flag": True, "layout": "rows", "share": 0.5}
TEMPLATE = Path("kernel.cu.j2")
_REFUSAL = re.compile(r"kernel\.cu\((\d+)\): error: .+", re.DOTALL)


def space(data: bytes) -> None:
    """Load `data` as a search-space file whose kernel, reference and template are there."""
    path = _folder() / "space.yaml"
    path.write_bytes(data)
    try:
        load_definition(path)
    except InputError as error:
        assert error.path == path and error.line is not None, error
        assert error.line <= data.count(b"\n") + data.count(b"\r") + 2


def expression(data: bytes) -> None:
    """Parse `data` as an expression and evaluate it."""
    text = data.decode(errors="replace")
    try:
        parsed = Expression.parse(text, path=TEMPLATE, line=1)
    except ExpressionError as error:
        assert error.path == TEMPLATE and error.line == 1
        return
    for compute in (parsed.evaluate, parsed.integer):
        try:
            value = compute(NAMES)
        except ExpressionError as error:
            assert error.path == TEMPLATE and error.line == 1
        else:
            assert isinstance(value, bool | int | float | str)


def template(data: bytes) -> None:
    """Parse `data` as a template, render it, and map an error of its last line back."""
    text = data.decode(errors="replace")
    try:
        parsed = Template.from_text(text, TEMPLATE)
        rendered = parsed.render({name: NAMES.get(name, 8) for name in parsed.uses})
    except TemplateError as error:
        assert error.path == TEMPLATE and error.line is not None
        assert error.line <= len(text.splitlines()) + 1
        return
    assert not set("\x02\x03") & set(rendered.source)
    lines = len(rendered.lines)
    map_errors(f"kernel.cu({lines}): error: x", rendered, TEMPLATE, unit="kernel.cu")


def include(data: bytes) -> None:
    """Look for includes in `data` as in a kernel's source, and fold its comments."""
    text = data.decode(errors="replace")
    refused = refused_include(text)
    if refused is not None:
        match = _REFUSAL.fullmatch(refused)
        assert match and 1 <= int(match[1]) <= text.count("\n") + 1, refused
    assert normalize_source(text) is not None


TARGETS = {target.__name__: target for target in (space, expression, template, include)}


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="tuner-fuzz-"))
    for name in ("k.cu", "k.py", "k.cu.j2"):
        (folder / name).write_text("")
    (folder / "headers").mkdir()
    import atexit

    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
