"""Rows of every shipped operator that declares them, on the CPU: the same bits in every batch."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from shipped_kernels import SPACES
from slow import mostly_slow

from tuner.app.instruments import compiler_for
from tuner.device.base import Outcome, Program
from tuner.device.select import open_device
from tuner.model.config import Config
from tuner.model.expressions import Value
from tuner.model.kernel import Workload
from tuner.model.trial import Status
from tuner.space.choices import chosen_operators
from tuner.space.load import load_definition
from tuner.space.template import Template
from tuner.tuning.evaluator import Candidate, Evaluator

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
SIZES = (1, 8, 33)
# Triton's need a GPU, and the products that are for nothing else have tests of their own.
ELSEWHERE = ("gemm_invariant", "gemm_invariant_fp8", "matmul_persistent", "w8a8_block_fp8")
Changes = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Rows:
    """A problem, and what its configs change of the default one.

    Those in `alike` have its bits, those in `apart` others, and `maybe` says nothing of that: of 16
    bits many orders give the same.
    """

    problem: Mapping[str, int]
    alike: tuple[Changes, ...] = ()
    apart: tuple[Changes, ...] = ()
    maybe: tuple[Changes, ...] = ()
    choice: Mapping[str, str] = field(default_factory=dict)

    @property
    def changes(self) -> tuple[Changes, ...]:
        return ({}, *self.alike, *self.apart, *self.maybe)


TILES: Changes = {"tokens": 16, "stages": 2, "warps_n": 2}
SPLIT: Changes = {"split": 2, "reduction": "last"}
LOOP: Changes = {"rows_per_block": 2, "row_prefetch": "registers", "min_threads_per_sm": 1024}
CASES = {
    "rmsnorm": Rows({"H": 1032}, alike=(LOOP,)),
    "fused_add_rmsnorm": Rows({"H": 1032}, alike=(LOOP,)),
    "silu_and_mul": Rows({"D": 264}, alike=({"block_size": 64, "vector_bytes": 4},)),
    "topk_softmax": Rows({"E": 64, "k": 4}, alike=({"warps": 2},), maybe=({"lanes": 4},)),
    "per_token_group_quant": Rows({"K": 512}, alike=({"lanes": 16, "neighbours": 8, "tokens": 4},)),
    "per_token_quant_fp8": Rows({"K": 1032}, alike=({"rows_per_block": 4, "neighbours": 4},)),
    "merge_state": Rows({"H": 3, "D": 64}, alike=({"vector_bytes": 8, "by_lanes": True},)),
    "moe_sum_reduce": Rows({"K": 8, "H": 264}, maybe=({"split": 4},)),
    "fused_qk_norm_rope": Rows({"Q": 5, "G": 1, "D": 128}, alike=({"heads": 4},)),
    "gate_up_silu": Rows({"D": 72, "K": 512}, alike=(TILES,)),
    "gemm_small_m": Rows({"N": 72, "K": 512}, (TILES,), apart=(SPLIT,), choice={"OUT": "fp32"}),
    "gemm_fp8": Rows({"N": 72, "K": 512}, alike=(TILES,), choice={"SCALES": "block"}),
    "linear_add_rmsnorm": Rows({"N": 72, "K": 512}, maybe=({"split": 2, "norm_threads": 128},)),
}


def tell_rows(name: str, rows: Rows) -> list[dict[Workload, Outcome]]:
    """Run the default config and its changes at all sizes; say what is told of each one's rows."""
    definition = load_definition(SPACES / f"{name}.yaml", rows.choice, invariant=True)
    operators = chosen_operators(definition.spec, rows.choice)
    assert definition.spec.invariant is not None
    axis, default = definition.spec.invariant.axis, definition.space.default
    assert default is not None
    sizes = [Workload.of({**dict.fromkeys(definition.spec.axes, n), **rows.problem}) for n in SIZES]
    assert all(one.values[axis] in SIZES for one in sizes)
    spec = replace(definition.spec, tuned=tuple(sizes), held_out=(), edge_cases=(), surroundings=())
    with ExitStack() as stack:
        device = stack.enter_context(closing(open_device("host", spec, operators, sizes)))
        compiler = compiler_for(spec, device, None, stack)
        template = Template.load(spec.template, spec.include_dirs)
        candidate = Candidate("initial", definition.space, template)
        evaluator = Evaluator(spec, candidate, operators, compiler, device)
        configs = [Config.of({**default, **more}) for more in rows.changes]
        started = [[evaluator.start(size, config) for size in sizes] for config in configs]
        made = [[evaluator.ready(one) for one in row] for row in started]
        return [
            {
                size: device.bits(one) if isinstance(one, Program) else one
                for size, one in zip(sizes, row, strict=True)
            }
            for row in made
        ]


@pytest.mark.parametrize("name", mostly_slow(CASES, ["silu_and_mul"], ["gemm_small_m"]))
def test_a_row_has_the_same_bits_at_every_size_and_beside_any_others(name: str) -> None:
    rows, told = CASES[name], tell_rows(name, CASES[name])
    bits = []
    for outcomes in told:
        # A config that is not for few rows has the bits of others all the same.
        ran = [one for one in outcomes.values() if one.status is not Status.CONSTRAINT]
        assert ran
        assert {(one.status, one.reason) for one in ran} == {(Status.CORRECT, "")}
        digests = {one.correctness.bits for one in ran if one.correctness}
        assert len(digests) == 1
        bits += digests
    default, *others = bits
    alike, rest = others[: len(rows.alike)], others[len(rows.alike) :]
    assert {*alike} <= {default}
    assert default not in rest[: len(rows.apart)]


def test_every_operator_that_declares_rows_is_shown_and_the_others_say_why_not() -> None:
    for path in sorted(Path(SPACES).glob("*.yaml")):
        if path.stem.endswith(".mutants"):
            continue
        declared = load_definition(path).spec.rows is not None
        assert declared is (path.stem in (*CASES, *ELSEWHERE)), path.stem
        assert declared is not ("# No `rows`: " in path.read_text(encoding="utf-8")), path.stem
