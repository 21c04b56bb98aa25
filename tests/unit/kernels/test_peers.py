"""The peers of the shipped kernels: by name, and which of them production calls."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tuner.device.reference import load_peers, load_production
from tuner.space.choices import chosen_operators
from tuner.space.load import load_definition

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted(path.with_suffix(".py") for path in (ROOT / "kernels/sglang").glob("*.cu"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_production_is_among_the_peers_on_every_workload(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Peers import what they need when they are called.
    monkeypatch.setitem(sys.modules, "torch", None)
    peers = load_peers(file)
    # SGLang's prebuilt operators have no product whose rows are invariant.
    sglang = "sgl-invariant" if file.stem == "gemm_invariant" else "sgl-aot"
    assert {sglang, "torch.compile"} <= set(peers)
    spec = load_definition(ROOT / f"search_spaces/sglang/{file.stem}.yaml").spec
    for workload in (*spec.tuned, *spec.held_out):
        assert load_production(file, workload.values, chosen_operators(spec, {})) in peers


def test_few_tokens_are_summed_by_a_compiled_function() -> None:
    file = ROOT / "kernels/sglang/moe_sum_reduce.py"
    named = [load_production(file, {"T": tokens}, {}) for tokens in (1, 32, 33)]
    assert named == ["torch.compile-out", "torch.compile-out", "sgl-aot"]


def test_nobody_calls_an_operator_that_normalizes_the_rounded_sum() -> None:
    file = ROOT / "kernels/sglang/fused_add_rmsnorm.py"
    assert load_production(file, {}, {"GEMMA": "false", "ROUNDED": "true"}) is None
