"""Kernels in Python: their spaces, and the modules that are made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from callable_project import KERNEL, SPACE, callable_project, read_project

from tuner.device.base import Program
from tuner.device.callables import Modules
from tuner.model.config import Config
from tuner.model.errors import InputError
from tuner.model.kernel import CALL, Workload
from tuner.space.callables import baseline_text, check_function, load_template

CONFIG = {"pieces": 2, "shift": True, "method": "exp"}
NAMES = {"T": 16, "D": 256, "TEMPERATURE": "two"}


def executed(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(text, "module", "exec"), names)  # noqa: S102
    return names


def test_a_space_without_a_template_has_a_call_for_a_launch(tmp_path: Path) -> None:
    spec = read_project(callable_project(tmp_path)).spec
    assert spec.is_callable
    assert spec.template == spec.source
    assert [one.kernel for one in (*spec.baseline, *spec.launch)] == [CALL, CALL]


def test_a_config_becomes_a_module_that_knows_it(tmp_path: Path) -> None:
    definition = read_project(callable_project(tmp_path))
    template = load_template(definition.spec, definition.space)
    template.check(definition.space, definition.spec)
    rendered = template.render({**NAMES, **Config.of(CONFIG)}, definition.space.derived)
    module = executed(rendered.source)
    assert module["CONFIG"] == CONFIG
    assert module["AXES"] == {"T": 16, "D": 256}
    assert module["OPERATORS"] == {"TEMPERATURE": "two"}
    assert callable(module["launch"])


def test_lines_of_the_module_are_those_of_the_file(tmp_path: Path) -> None:
    definition = read_project(callable_project(tmp_path))
    template = load_template(definition.spec, definition.space)
    rendered = template.render({**NAMES, **CONFIG}, definition.space.derived)
    ours = (tmp_path / KERNEL).read_text().splitlines()
    assert rendered.source.splitlines()[: len(ours)] == ours
    assert rendered.template_line(9) == 9


def test_the_baseline_has_no_config(tmp_path: Path) -> None:
    module = executed(baseline_text(read_project(callable_project(tmp_path)).spec, NAMES))
    assert module["CONFIG"] is None
    assert module["AXES"] == {"T": 16, "D": 256}


def test_a_template_of_ones_own_may_be_named(tmp_path: Path) -> None:
    folder = callable_project(tmp_path, space=("axes:", "template: t.py.j2\naxes:"))
    text = (folder / KERNEL).read_text().replace('axes["T"] // config["pieces"]', "@{ T }@ // 2")
    (folder / "search_spaces" / "t.py.j2").write_text(text)
    definition = read_project(folder)
    template = load_template(definition.spec, definition.space)
    assert "max(1, 16 // 2)" in template.render({**NAMES, **CONFIG}, ()).source


def assigned(value: str) -> tuple[str, str]:
    """Edit the kernel so that `launch` is a value, after the function of that name."""
    return "def reference(", f"launch = {value}\n\n\ndef reference("


SIGNATURE = "(config, tensors, axes, TEMPERATURE"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("parameters:", "launch: [{kernel: f, grid: [1], block: [1]}]\nparameters:",
         "`launch` is for kernels in CUDA"),
        ("parameters:", "baseline: {launch: []}\nparameters:",
         "`baseline` is for kernels in CUDA"),
        ("parameters:", "sources: 1\nparameters:", "unknown key `sources`"),
        ("def launch(", "def run(", "defines no function `launch`"),
        (*assigned("None"), "`launch` is no function"),
        (*assigned("lambda config, tensors: None"), "takes other than"),
        (*assigned("lambda config, tensors, axes: None"), "lacks the parameter 'TEMPERATURE'"),
        (SIGNATURE, "(config, TEMPERATURE", "takes other than"),
        (SIGNATURE, "(config, tensors, TEMPERATURE", "takes other than"),
        (', TEMPERATURE="one"):\n    """Write', '):\n    """Write',
         "lacks the parameter 'TEMPERATURE'"),
        ('axes, TEMPERATURE="one"):\n    """', 'axes, extra, TEMPERATURE):\n    """',
         "asks for 'extra', which is no choice of the operator"),
        ('TEMPERATURE="one"):\n    """Write', 'TEMPERATURE, *, extra):\n    """Write',
         "asks for 'extra', which is no choice of the operator"),
        ("scale = 0.5 if", "scale = = if", "is not Python"),
        ("    import torch", "    import torch  # @{ x }@", "is a template's syntax"),
    ],
)  # fmt: skip
def test_each_mistake_is_told_with_its_line_and_remedy(
    tmp_path: Path, before: str, after: str, said: str
) -> None:
    in_space = before == "parameters:"
    edits, space = ((), (before, after)) if in_space else (((before, after),), ("", ""))
    with pytest.raises(InputError, match=said) as raised:
        definition = read_project(callable_project(tmp_path, *edits, space=space))
        check_function(definition.spec)
        load_template(definition.spec, definition.space)
    assert raised.value.path == tmp_path / (SPACE if in_space else KERNEL)
    assert raised.value.remedy or raised.value.line


@pytest.mark.parametrize(
    "parameters",
    [
        "config, tensors, axes, TEMPERATURE",
        "config, tensors, axes, *, TEMPERATURE",
        "config, tensors, axes, **operators",
        "config, tensors, axes=None, extra=1, *, more=2, **operators",
    ],
)
def test_whatever_can_be_called_with_the_operators_choices_is_a_launch(
    tmp_path: Path, parameters: str
) -> None:
    edit = ('launch(config, tensors, axes, TEMPERATURE="one")', f"launch({parameters})")
    check_function(read_project(callable_project(tmp_path, edit)).spec)


@pytest.mark.parametrize(
    "value",
    [
        "lambda config, tensors, axes, **operators: noted(None, config, tensors, axes, operators)",
        "functools.partial(noted, None)",
        "Launcher()",
    ],
)
def test_whatever_can_be_called_is_a_launch(tmp_path: Path, value: str) -> None:
    noted = (
        "import functools\ndef noted(by, config, tensors, axes, operators=None, TEMPERATURE=''):\n"
        "    tensors['asked'] = (config, axes, TEMPERATURE or operators['TEMPERATURE'])\n"
        "class Launcher:\n    def __call__(self, *given, **named):\n"
        "        noted(None, *given, **named)\n\n\nlaunch: object = "
    )
    edits = ("def launch(", "def run("), ("def reference(", f"{noted}{value}\ndef reference(")
    spec = read_project(callable_project(tmp_path, *edits)).spec
    check_function(spec)
    text = baseline_text(spec, NAMES)
    program = Program("key", Workload.of({"T": 16, "D": 256}), (), cubin=text.encode())
    tensors: dict[str, Any] = {}
    Modules(spec.source).function(program)(tensors, {"T": 16}, TEMPERATURE="two")
    assert tensors["asked"] == (None, {"T": 16}, "two")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("async def launch(", "`launch` is an async function"),
        ("class launch:\n  def run(", "`launch` is a class"),
    ],
)
def test_what_is_no_launch_is_told_with_its_line_and_what_to_define(
    tmp_path: Path, kind: str, said: str
) -> None:
    spec = read_project(callable_project(tmp_path, ("def launch(", kind))).spec
    with pytest.raises(InputError) as raised:
        check_function(spec)
    place, remedy = str(raised.value).splitlines()
    assert place.startswith(f"{tmp_path / KERNEL}:4: {said}")
    assert remedy.startswith("  write def launch(config, tensors, axes, TEMPERATURE='one'): it")
