"""Rows add up to the step, and say what tuning each could give to it at most."""

from __future__ import annotations

from pathlib import Path

import pytest
from timelines import kernel, operator, torch_trace

from tuner.extensions.engines.timeline.operators import Label
from tuner.extensions.engines.timeline.table import (
    Row,
    commands_of,
    rows_of,
    stated_workloads,
    traffic_of,
    without_shapes,
)
from tuner.extensions.engines.timeline.trace import TracedLaunch
from tuner.model.errors import InputError
from tuner.model.kernel import Workload
from tuner.space.load import load_definition

ROOT = Path(__file__).parents[5]
SPACES = {
    name: load_definition(ROOT / "search_spaces" / "sglang" / f"{name}.yaml")
    for name in ("silu_and_mul", "rmsnorm")
}
SMALL = Label("silu_and_mul", "", workload=Workload.of({"T": 64, "D": 14336}))
LARGE = Label("silu_and_mul", "", workload=Workload.of({"T": 1024, "D": 14336}))
GEMM = Label(kind="GEMM")


def rows(*found: tuple[str, float, Label], gbps: float | None = 1000.0) -> tuple[Row, ...]:
    launches = ((TracedLaunch(name, 0.0, us, (1, 1, 1)), label) for name, us, label in found)
    return rows_of(launches, SPACES, gbps)


def test_what_is_alike_is_one_row_and_shares_add_up() -> None:
    made = rows(("a", 30.0, GEMM), ("b", 30.0, GEMM), ("k", 40.0, SMALL))
    assert [(row.name, row.calls, row.share) for row in made] == [
        ("GEMM", 2, 0.6),
        ("silu_and_mul", 1, 0.4),
    ]


def test_each_workload_and_each_unknown_kernel_has_its_own_row() -> None:
    made = rows(("k", 4.0, SMALL), ("k", 3.0, LARGE), ("x", 2.0, Label()), ("y", 1.0, Label()))
    assert [row.name for row in made] == ["silu_and_mul", "silu_and_mul", "x", "y"]


def test_the_floor_is_the_operators_bytes_over_the_bandwidth() -> None:
    (row,) = rows(("k", 8.0, SMALL))
    assert row.floor_us == pytest.approx(3 * 64 * 14336 * 2 / 1e6)
    assert row.at_most == pytest.approx(1.0 - 5.505 / 8.0, abs=1e-3)


@pytest.mark.parametrize("us", [1.0, 0.0])
def test_a_kernel_under_its_floor_has_nothing_to_gain(us: float) -> None:
    (row,) = rows(("k", us, SMALL))
    assert row.at_most == 0.0


def test_the_floor_is_that_of_the_choice() -> None:
    space = load_definition(ROOT / "search_spaces" / "sglang" / "per_token_group_quant.yaml")
    workload = Workload.of({"T": 64, "K": 4096})
    chosen = Label("per_token_group_quant", "", choices=(("FUSED", "true"),), workload=workload)
    launches = [(TracedLaunch("k", 0.0, 9.0), chosen)]
    (row,) = rows_of(launches, {"per_token_group_quant": space}, 1000.0)
    assert row.floor_us == pytest.approx((64 * 4096 * 5 + 64 * 32 * 4) / 1e6)


@pytest.mark.parametrize("label", [GEMM, Label("silu_and_mul", "")])
def test_without_a_workload_there_is_no_floor(label: Label) -> None:
    (row,) = rows(("k", 1.0, label))
    assert (row.floor_us, row.at_most) == (None, None)


def test_without_a_bandwidth_there_is_no_floor() -> None:
    (row,) = rows(("k", 1.0, SMALL), gbps=None)
    assert row.floor_us is None


def test_the_parts_of_a_call_take_time_and_are_no_calls() -> None:
    part = Label("rmsnorm", "", launches=0)
    (row,) = rows(("main", 3.0, Label("rmsnorm", "")), ("part", 1.0, part), ("part", 1.0, part))
    assert (row.calls, row.per_call_us) == (1, 5.0)


def test_launches_of_one_call_are_counted_together_whatever_their_grids_are() -> None:
    moe = Label("fused_moe", "", launches=2)
    grids = [(grid, 1, 1) for _ in range(3) for grid in (8, 32)]
    (row,) = rows_of([(TracedLaunch("k", 0.0, 1.0, grid), moe) for grid in grids], {}, None)
    assert (row.calls, row.per_call_us) == (3, 2.0)


def test_a_command_has_all_workloads_of_its_operator_and_the_most_to_gain_is_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    gemma = Label("rmsnorm", "", "", (("GEMMA", "true"),), Workload.of({"T": 1, "H": 4096}))
    made = rows(("k", 6.0, SMALL), ("k", 90.0, LARGE), ("n", 50.0, gemma), ("g", 9.0, GEMM))
    words = [command.words for command in commands_of(made, SPACES)]
    norm, activation = "kernels/sglang/rmsnorm.cu", "kernels/sglang/silu_and_mul.cu"
    assert words == [
        (norm, "--operator", "GEMMA=true", "--workload", "T=1,H=4096"),
        (activation, "--workload", "T=1024,D=14336", "--workload", "T=64,D=14336"),
    ]


def test_the_traffic_of_traces_is_how_long_shapes_take_whatever_the_tokens_are(
    tmp_path: Path,
) -> None:
    events = []
    for number, tokens in enumerate((4, 64)):
        dims = [[tokens, 2048], [128, 384, 2048], [128, 2048, 192], [tokens, 8], [tokens, 8]]
        types = {"Input type": ["c10::BFloat16"] * 5}
        events.append(operator(number, "sglang::inplace_fused_experts", dims, **types))
        for gemm in range(2):
            start_us = 100.0 * number + 10 * gemm
            events.append(kernel("fused_moe_kernel", start_us, 5.0, external=number))
    trace = torch_trace(tmp_path / "trace.json", events)
    shape = frozenset({"E=128", "N=192", "K=2048", "TOP_K=8"})
    assert traffic_of([trace, trace]) == {("fused_moe", shape): 40.0}


def test_traces_without_shapes_are_no_traffic(tmp_path: Path) -> None:
    trace = torch_trace(tmp_path / "trace.json", [kernel("fused_moe_kernel", 0.0, 5.0)])
    with pytest.raises(InputError, match="no shapes of any operator in it"):
        traffic_of([trace])


def test_operators_without_shapes_are_listed_and_have_no_command() -> None:
    made = rows(("k", 1.0, Label("silu_and_mul", "")), ("g", 1.0, GEMM))
    assert [row.name for row in without_shapes(made)] == ["silu_and_mul"]
    assert commands_of(made, SPACES) == ()


def test_a_workload_can_be_stated_for_an_operator() -> None:
    stated = stated_workloads(["rmsnorm:T=3,H=8"], SPACES)
    assert stated == {"rmsnorm": Workload.of({"T": 3, "H": 8})}


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["T=3,H=8"], "'T=3,H=8' names no operator"),
        (["rmsnom:T=3,H=8"], "here are rmsnorm, silu_and_mul"),
        (["rmsnorm:T=3"], "gives no value for H"),
        (["rmsnorm:T=3,H=8", "rmsnorm:T=4,H=8"], "rmsnorm is given two workloads"),
    ],
)
def test_a_wrong_workload_is_refused(texts: list[str], said: str) -> None:
    with pytest.raises(InputError) as caught:
        stated_workloads(texts, SPACES)
    assert said in str(caught.value)
