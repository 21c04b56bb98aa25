"""A plugin as it is written and installed, in vLLM's own loader and compiler."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_wheels import VLLM
from installed_plugins import PACKAGE, defined, installed, loaded, same_signature, written

pytest.importorskip("torch")

from tuner.compiler.pool import NvrtcPool
from tuner.extensions.runtime.pytorch.replacing import Hook
from tuner.extensions.runtime.vllm.hooks import ENGINE, HOOKS, Implementation
from tuner.space.choices import chosen_operators
from tuner.space.load import load_definition

SPACES = Path(__file__).parents[4] / "search_spaces" / "sglang"
ALL = sorted({one.operator for one in HOOKS})
LAYERS = ("SiluAndMul", "GeluAndMul")

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, compiler: NvrtcPool) -> Write:
    """Write a plugin of these operators into a folder."""
    return lambda *names: written("vllm", tmp_path, compiler, *names)


def test_a_plugin_has_its_entry_point_hooks_and_choices(write: Write) -> None:
    folder = write("rmsnorm", "merge_state")
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["vllm.general_plugins"] == {PACKAGE: f"{PACKAGE}.vllm:register"}
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert "| `rmsnorm` | `vllm.ir.ops.rms_norm` | the first norm of a model" in readme
    assert "| `merge_state` | nothing | its logarithms" in readme
    assert "\"rmsnorm\": {'GEMMA': 'false'}" in (folder / PACKAGE / "vllm.py").read_text("utf-8")


def test_what_is_shipped_imports_nothing_of_ours(write: Write) -> None:
    folder = write("rmsnorm") / PACKAGE
    shipped = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.py")}
    assert {"adapting.py", "hooks.py", "plugin.py", "replacing.py", "runtime.py"} <= set(shipped)
    assert not [name for name, text in shipped.items() if "import tuner" in text]
    assert not [name for name, text in shipped.items() if "from tuner" in text]


@pytest.mark.slow
@pytest.mark.parametrize(
    "hook", [one for one in HOOKS if not one.target.endswith(LAYERS)], ids=lambda one: one.target
)
def test_an_adapter_has_the_signature_of_vllms_function(hook: Hook) -> None:
    target = hook.target
    if isinstance(hook, Implementation):
        target = f"vllm.ir.ops.layernorm.{target.rpartition('.')[2]}"
    assert same_signature(hook.adapter, defined(VLLM.wheel(), target))


@pytest.mark.slow
def test_vllms_loader_finds_it_installed(write: Write) -> None:
    path = installed(write("moe_sum_reduce")), VLLM.wheel()
    found, log = loaded("vllm", *path, part="--loader")
    assert found["returned"] == "moe_sum", "vLLM's own, which has no tuned kernel on a CPU"
    assert found["calls"] == {"moe_sum_reduce": {"tuned": 0, "original": 1}}
    assert "moe_sum_reduce: tuned kernels in place of vllm._custom_ops.moe_sum" in log
    for name, value in (("TUNED_VLLM", "0"), ("VLLM_PLUGINS", "")):
        found, log = loaded("vllm", *path, part="--loader", **{name: value})
        assert found["calls"]["moe_sum_reduce"]["original"] == 0
        assert "in place of" not in log


@pytest.mark.slow
def test_all_of_vllm_has_what_the_hooks_name_and_compiles_it(write: Write) -> None:
    path = installed(write(*ALL)), VLLM.packages(), VLLM.wheel()
    found, log = loaded("vllm", *path)
    defaults = {name: load_definition(SPACES / f"{name}.yaml").spec for name in ALL}
    chosen = {name: dict(chosen_operators(spec, {})) for name, spec in defaults.items()}
    wanted = {one.target for name in ALL for one in ENGINE.hooks_of(name, chosen[name])}
    placed = [line for line in log.splitlines() if ": tuned kernels in place of " in line]
    assert {one for line in placed for one in line.partition(" of ")[2].split(" and ")} == wanted
    assert found["mode"] == "VLLM_COMPILE", "as it is by default"
    assert found["activation"] == "TunedSiluAndMul"
    assert found["custom_ops"] == ["none", "+TunedSiluAndMul"]
    assert found["priority"] == [f"tuned_{PACKAGE}", "native"]
    for name in ("rmsnorm", "fused_add_rmsnorm"):
        assert f"{PACKAGE}.{name}.default" in found["graph"]
    assert not [one for one in found["graph"] if "rsqrt" in one], "no norm is left to PyTorch"
    # Once in what is compiled, once not.
    names = ("rmsnorm", "fused_add_rmsnorm", "silu_and_mul")
    assert [found["calls"][name] for name in names] == [{"tuned": 0, "original": 2}] * 3
    assert found["right"]
    off, _ = loaded("vllm", *path, part="--configured", TUNED_VLLM="0")
    assert off["activation"] == "SiluAndMul"
    assert off["custom_ops"] == ["none"]
    assert off["priority"] == ["native"]
    assert off["key"] != found["key"], "of vLLM's compilation cache"
