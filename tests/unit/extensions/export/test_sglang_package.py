"""A plugin as it is written and installed, in SGLang's own loader."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_wheels import SGLANG
from installed_plugins import PACKAGE, defined, installed, loaded, same_signature, written

pytest.importorskip("torch")

from tuner.compiler.pool import NvrtcPool
from tuner.extensions.runtime.pytorch.replacing import Hook
from tuner.extensions.runtime.sglang.hooks import ENGINE, HOOKS
from tuner.space.choices import chosen_operators
from tuner.space.load import load_definition

SPACES = Path(__file__).parents[4] / "search_spaces" / "sglang"
ALL = sorted({one.operator for one in HOOKS})

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, compiler: NvrtcPool) -> Write:
    """Write a plugin of these operators into a folder."""
    return lambda *names: written("sglang", tmp_path, compiler, *names)


def test_a_plugin_has_its_entry_point_hooks_and_choices(write: Write) -> None:
    folder = write("rmsnorm")
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    entry = project["entry-points"]["sglang.srt.plugins"]
    assert entry == {PACKAGE: f"{PACKAGE}.sglang:register"}
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert "| `rmsnorm` | `sgl_kernel.rmsnorm` | the first norm of a model" in readme
    shipped = {path.name for path in (folder / PACKAGE).glob("*.py")}
    assert {"hooks.py", "plugin.py", "sglang.py", "runtime.py", "rmsnorm_table.py"} <= shipped
    assert "\"rmsnorm\": {'GEMMA': 'false'}" in (folder / PACKAGE / "sglang.py").read_text("utf-8")


# Where SGLang defines what it calls by another name.
DEFINED = {
    "sglang.kernels.ops.quantization.fp8_kernel.per_token_group_quant_fp8": (
        "sglang.kernels.ops.quantization.fp8_kernel.sglang_per_token_group_quant_fp8"
    ),
    "sglang.srt.hardware_backend.gpu.quantization.awq_kernels.awq_dequantize": (
        "sglang.kernels.ops.quantization.awq_dequantize.awq_dequantize"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "hook", [one for one in HOOKS if one.target.startswith("sglang.")], ids=lambda one: one.target
)
def test_an_adapter_has_the_signature_of_sglangs_function(hook: Hook) -> None:
    own = defined(SGLANG.wheel(), DEFINED.get(hook.target, hook.target))
    assert same_signature(hook.adapter, own, 2 if hook.around else 1)


@pytest.mark.slow
def test_sglangs_loader_finds_it_installed(write: Write) -> None:
    path = installed(write("rmsnorm")), SGLANG.wheel()
    found, log = loaded("sglang", *path, part="--loader")
    assert found["hooked"] == ["sgl_kernel.rmsnorm"]
    assert found["returned"] == "rmsnorm", "SGLang's own, which has no tuned kernel on a CPU"
    assert found["calls"] == {"rmsnorm": {"tuned": 0, "original": 1}}
    assert "rmsnorm: tuned kernels in place of sgl_kernel.rmsnorm" in log
    for name, value in (("TUNED_SGLANG", "0"), ("SGLANG_PLUGINS", "none")):
        found, _ = loaded("sglang", *path, part="--loader", **{name: value})
        assert not found["hooked"]
        assert found["returned"] == "rmsnorm"


@pytest.mark.slow
def test_all_of_sglang_has_what_the_hooks_name(write: Write) -> None:
    site = installed(write(*ALL))
    path = site, SGLANG.packages(), SGLANG.wheel()
    found, log = loaded("sglang", *path)
    defaults = {name: load_definition(SPACES / f"{name}.yaml").spec for name in ALL}
    chosen = {name: dict(chosen_operators(spec, {})) for name, spec in defaults.items()}
    wanted = {one.target for name in ALL for one in ENGINE.hooks_of(name, chosen[name])}
    assert set(found["hooked"]) == wanted, log
    assert set(found["calls"]) == set(ALL)
    assert "is replaced: " not in log
