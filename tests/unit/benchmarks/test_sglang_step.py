"""benchmarks/sglang_step.py: what it computes without SGLang."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
import sglang_step as step
import step_kernels
from moe_modes import Mode
from sglang_engine import MODELS, Engine, NoPlugin, tuned_kernels

OPERATORS = frozenset({"rmsnorm", "silu_and_mul", "fused_qk_norm_rope"})


def modes(*, each: bool = False, fused_rope: bool = False) -> dict[str, Mode]:
    plugin = SimpleNamespace(operators=OPERATORS)
    found = step.modes_of(plugin, Namespace(each=each, fused_rope=fused_rope), {})  # type: ignore[arg-type]
    return {one.name: one for one in found}


def test_a_speedup_is_that_of_a_round_whatever_the_rounds_drift() -> None:
    own = [100.0 + drift for drift in range(30)]
    found = step.speedup(own, [one / 1.02 for one in own])
    assert found == {"median": 1.02, "interval": [1.02, 1.02]}


def test_captures_count_alike_and_their_spread_is_in_the_interval() -> None:
    own = [100.0, 102.0, 104.0] * 10
    found = step.speedup(own, [100.0] * 30, captures=3)
    assert found["median"] == 1.02
    low, high = found["interval"]
    assert (low, high) == (1.0, 1.04)


def test_an_interval_holds_the_median_of_noisy_rounds() -> None:
    own = [100.0 + (7 * k % 5) for k in range(30)]
    found = step.speedup(own, [100.0 + (3 * k % 5) for k in range(30)])
    low, high = found["interval"]
    assert low < found["median"] < high


def test_operators_are_compared_with_sglang_by_default() -> None:
    assert modes() == {
        "sglang": Mode("sglang"),
        "tuned": Mode("tuned", OPERATORS - {"fused_qk_norm_rope"}),
    }


def test_each_operator_is_a_mode_of_its_own() -> None:
    assert modes(each=True)["only rmsnorm"].operators == {"rmsnorm"}


def test_the_fused_rope_alone_is_compared_with_that_of_sglang() -> None:
    only = modes(each=True, fused_rope=True)["only fused_qk_norm_rope"]
    assert (only.fused_rope, only.against) == (True, "sglang, fused rope")


def test_all_that_is_tuned_is_compared_with_sglang_as_it_comes() -> None:
    assert modes(fused_rope=True)["tuned, fused rope"].against == "sglang"


def test_without_a_plugin_the_modes_are_those_of_the_configs() -> None:
    asked, folder = Namespace(each=False, fused_rope=False), Path("tuned")
    found = step.modes_of(NoPlugin(), asked, {"no file": Path("empty"), "file": folder})
    assert [one.name for one in found] == ["sglang", "no file", "file"]
    assert (found[0].configs, found[2].configs) == (None, folder)
    assert {one.against for one in found} == {"sglang"}


def test_a_mode_with_attention_tuned_finds_its_graph_by_a_step_of_its_own() -> None:
    engine, steps = object.__new__(Engine), []
    engine.decoder = SimpleNamespace(_replay_graph_key=None, backend=None)
    engine.use = lambda mode: steps.append(mode.name)  # type: ignore[method-assign]

    def decode(*_: object) -> None:
        engine.decoder._replay_graph_key = f"{steps[-1]} of {engine.decoder.backend}"

    engine.runner = SimpleNamespace(decode=decode, synchronize=lambda: None)
    asked = [Mode("sglang"), Mode("norm", OPERATORS), Mode("all", OPERATORS | {"decode_attention"})]
    keys = engine.step(asked, {mode.name: f"graphs {mode.name}" for mode in asked}, None, None)
    own = "sglang of graphs sglang"
    assert keys == {"sglang": own, "norm": own, "all": "all of graphs all"}
    assert steps == ["sglang", "all"]


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("fused_add_rmsnorm", "tuned fused_add_rmsnorm"),
        ("FusedAddRMSNormKernel_object_at__tensorptrbf16", "fused_add_rmsnorm"),
        ("nvjet_tst_64x8_64x16_1x4_h_bz_TNT", "GEMM"),
        ("what_is_this", "other"),
    ],
)
def test_a_kernel_has_a_kind(kernel: str, kind: str) -> None:
    pytest.importorskip("yaml")
    assert step_kernels.kind_of(kernel, {"fused_add_rmsnorm": "fused_add_rmsnorm"}) == kind


def test_shares_are_of_a_call_and_add_up() -> None:
    pytest.importorskip("yaml")
    found = step_kernels.shares([("nvjet", 30.0), ("mine", 10.0)] * 2, {"mine": "rmsnorm"}, times=2)
    assert found["us"] == 40.0
    assert found["kinds"]["tuned rmsnorm"] == {"count": 1.0, "us": 10.0, "share": 0.25}


def test_the_kernels_of_a_package_are_known_by_their_names() -> None:
    variant = SimpleNamespace(symbols={"count_routes": "count_routes"})
    table = SimpleNamespace(name="moe_align_block_size", variants=(variant,))
    package = SimpleNamespace(OPERATORS={"moe_align_block_size": SimpleNamespace(table=table)})
    assert tuned_kernels(package) == {"count_routes": "moe_align_block_size"}


def test_llama_has_its_real_epsilon() -> None:
    config = json.loads((MODELS / "llama-3-8b.json").read_text("utf-8"))
    assert config["rms_norm_eps"] == 1e-5
