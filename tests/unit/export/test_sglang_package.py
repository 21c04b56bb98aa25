"""A plugin as it is written and installed, in SGLang's own loader."""

from __future__ import annotations

import ast
import inspect
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import sglang_wheel
from operator_sessions import choices, write_operator_session

pytest.importorskip("torch")

from tuner.compiler.pool import NvrtcPool
from tuner.export.packages import export_package
from tuner.export.pytorch.replacing import Hook
from tuner.export.sglang.hooks import ENGINE, HOOKS
from tuner.export.winners import winners_of
from tuner.space.choices import chosen_operators
from tuner.space.load import load_definition

ROOT = Path(__file__).parents[3]
SPACES = ROOT / "search_spaces" / "sglang"
ALL = sorted({one.operator for one in HOOKS})
PACKAGE = "tuned_test"
LOADER = ROOT / "tests/support/genuine_sglang.py"

Written = Callable[..., Path]


@pytest.fixture
def written(tmp_path: Path, compiler: NvrtcPool) -> Written:
    """Write a plugin of these operators into a folder."""

    def write(*names: str) -> Path:
        folder, sessions = tmp_path / "plugin", tmp_path / "sessions"
        made = [write_operator_session(sessions / one, one, choices(one)[0]) for one in names]
        winners = [winners_of(one, None, None) for one in made]
        export_package(winners, folder, compiler, PACKAGE, "sglang")
        return folder

    return write


def test_a_plugin_has_its_entry_point_hooks_and_choices(written: Written) -> None:
    folder = written("rmsnorm")
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    entry = project["entry-points"]["sglang.srt.plugins"]
    assert entry == {PACKAGE: f"{PACKAGE}.sglang:register"}
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert "| `rmsnorm` | `sgl_kernel.rmsnorm` | the first norm of a model" in readme
    shipped = {path.name for path in (folder / PACKAGE).glob("*.py")}
    assert {"hooks.py", "plugin.py", "sglang.py", "runtime.py", "rmsnorm_table.py"} <= shipped
    assert "\"rmsnorm\": {'GEMMA': 'false'}" in (folder / PACKAGE / "sglang.py").read_text("utf-8")


def installed(folder: Path) -> Path:
    """Install a plugin as its README says, but into a folder of its own."""
    site = folder.parent / "site"
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--target", str(site))
    command = [sys.executable, "-m", "pip", "install", *options, str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return site


def loaded(*path: Path, switches: Mapping[str, str], only_loader: bool) -> tuple[Any, str]:
    """Load it in an SGLang on this path; return what the loader found, and what was logged."""
    environment = {
        **{name: value for name, value in os.environ.items() if "SGLANG" not in name},
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        **switches,
    }
    command = [sys.executable, str(LOADER), PACKAGE, *(["--loader"] if only_loader else [])]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


# Where SGLang defines what it calls by another name.
DEFINED = {
    "sglang.kernels.ops.quantization.fp8_kernel.per_token_group_quant_fp8": (
        "sglang.kernels.ops.quantization.fp8_kernel.sglang_per_token_group_quant_fp8"
    ),
    "sglang.srt.hardware_backend.gpu.quantization.awq_kernels.awq_dequantize": (
        "sglang.kernels.ops.quantization.awq_dequantize.awq_dequantize"
    ),
}


def signature(function: ast.FunctionDef) -> list[tuple[str, str]]:
    """List arguments with their defaults, as they are written."""
    given = [*function.args.args, *function.args.kwonlyargs]
    defaults = [*function.args.defaults, *(one for one in function.args.kw_defaults if one)]
    texts = ["", *[""] * (len(given) - 1), *map(ast.unparse, defaults)][-len(given) :]
    return [(one.arg, text) for one, text in zip(given, texts, strict=True)]


def defined(module: Path, name: str) -> ast.FunctionDef:
    path = (
        module.with_suffix(".py") if module.with_suffix(".py").exists() else module / "__init__.py"
    )
    found = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return next(one for one in found if isinstance(one, ast.FunctionDef) and one.name == name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "hook", [one for one in HOOKS if one.target.startswith("sglang.")], ids=lambda one: one.target
)
def test_an_adapter_has_the_signature_of_sglangs_function(hook: Hook) -> None:
    module, _, name = DEFINED.get(hook.target, hook.target).rpartition(".")
    own = signature(defined(sglang_wheel.wheel() / module.replace(".", "/"), name))
    adapter = ast.parse(inspect.getsource(hook.adapter)).body[0]
    assert isinstance(adapter, ast.FunctionDef)
    assert signature(adapter)[1:] == own


@pytest.mark.slow
def test_sglangs_loader_finds_it_installed(written: Written) -> None:
    path = installed(written("rmsnorm")), sglang_wheel.wheel()
    found, log = loaded(*path, switches={}, only_loader=True)
    assert found["hooked"] == ["sgl_kernel.rmsnorm"]
    assert found["returned"] == "rmsnorm", "SGLang's own, which has no tuned kernel on a CPU"
    assert found["calls"] == {"rmsnorm": {"tuned": 0, "original": 1}}
    assert "rmsnorm: tuned kernels in place of sgl_kernel.rmsnorm" in log
    for name, value in (("TUNED_SGLANG", "0"), ("SGLANG_PLUGINS", "none")):
        found, _ = loaded(*path, switches={name: value}, only_loader=True)
        assert not found["hooked"]
        assert found["returned"] == "rmsnorm"


@pytest.mark.slow
def test_all_of_sglang_has_what_the_hooks_name(written: Written) -> None:
    site = installed(written(*ALL))
    path = site, sglang_wheel.packages(), sglang_wheel.wheel()
    found, log = loaded(*path, switches={}, only_loader=False)
    defaults = {name: load_definition(SPACES / f"{name}.yaml").spec for name in ALL}
    chosen = {name: dict(chosen_operators(spec, {})) for name, spec in defaults.items()}
    wanted = {one.target for name in ALL for one in ENGINE.hooks_of(name, chosen[name])}
    assert set(found["hooked"]) == wanted, log
    assert set(found["calls"]) == set(ALL)
    assert "is replaced: " not in log
