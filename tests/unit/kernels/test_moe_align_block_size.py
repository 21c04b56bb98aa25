"""moe_align_block_size: reference, kernels on the CPU, and near misses that are to be caught."""

from __future__ import annotations

import numpy as np
import pytest
from operators import launch
from shipped_kernels import KernelChecks, Sample, ShippedKernel

from tuner.device.inputs import INPUT_KINDS

KERNEL = ShippedKernel("moe_align_block_size")


def referred(ids: list[list[int]], experts: int, tile: int) -> dict[str, list[int]]:
    routed = np.array(ids)
    axes = {"T": routed.shape[0], "E": experts, "k": routed.shape[1], "B": tile}
    outputs = KERNEL.compute({"topk_ids": routed}, axes)
    return {name: np.asarray(values).tolist() for name, values in outputs.items()}


def drawn(fill: str, axes: dict[str, int]) -> np.ndarray:
    return np.asarray(KERNEL.drawn(axes, fill, 5)["topk_ids"])


def test_routes_are_sorted_by_expert_and_padded_to_tiles() -> None:
    outputs = referred([[2, 0], [2, 3], [2, 0]], experts=4, tile=2)
    assert outputs["sorted_ids"] == [1, 5, 0, 2, 4, 6, 3, 6, 6, 6]
    assert outputs["expert_ids"] == [0, 2, 2, 3, -1]
    assert outputs["num_tokens_post_pad"] == [8]


def test_any_order_within_an_expert_is_right_and_none_across_experts() -> None:
    canonical = KERNEL.reference.canonical
    assert canonical is not None
    axes = {"T": 3, "E": 4, "k": 2, "B": 2}
    experts = np.array([0, 2, 2, 3, -1], dtype=np.int32)

    def ordered(places: list[int]) -> list[int]:
        outputs = {"sorted_ids": np.array(places, dtype=np.int32), "expert_ids": experts}
        found = canonical(np, outputs, axes)["sorted_ids"]
        assert found.dtype == np.int32
        return found.tolist()

    right = [1, 5, 0, 2, 4, 6, 3, 6, 6, 6]
    assert ordered([5, 1, 6, 4, 0, 2, 6, 3, 6, 6]) == right
    # A route in another expert's tile, one twice, and what is no route at all.
    for places in ([1, 0, 5, 2, 4, 6, 3, 6, 6, 6], [1, 1, 0, 2, 4, 6, 3, 6, 6, 6]):
        assert ordered(places) != right
    for strange in (-1, -(2**31), 2**31 - 1):
        assert ordered([1, 5, 0, 2, 4, strange, 3, 6, 6, 6]) != right


def test_production_reads_no_expert_of_a_tile_that_nobody_has() -> None:
    unread = KERNEL.reference.unread
    assert unread is not None
    experts = np.array([0, 2, 2, 3, 99], dtype=np.int32)
    outputs = {"expert_ids": experts, "num_tokens_post_pad": np.array([6], dtype=np.int32)}
    found = unread(np, outputs, {"B": 2})["expert_ids"]
    assert (found.tolist(), found.dtype) == ([0, 2, 2, -1, -1], np.int32)


def test_a_tile_a_route_is_room_enough_for_fewer_routes_than_experts() -> None:
    outputs = referred([[6, 1]], experts=8, tile=4)
    assert outputs["sorted_ids"] == [1, 2, 2, 2, 0, 2, 2, 2]
    assert outputs["expert_ids"] == [1, 6]
    assert outputs["num_tokens_post_pad"] == [8]


def test_experts_with_full_tiles_have_no_padding() -> None:
    outputs = referred([[0, 1]] * 4, experts=2, tile=4)
    assert outputs["sorted_ids"] == [0, 2, 4, 6, 1, 3, 5, 7, *[8] * 8]
    assert outputs["expert_ids"] == [0, 1, -1, -1]


@pytest.mark.parametrize("fill", INPUT_KINDS)
def test_inputs_name_experts_and_a_token_has_none_twice_in_all_fills_but_one(fill: str) -> None:
    ids = drawn(fill, {"T": 50, "E": 20, "k": 6, "B": 16})
    assert ids.shape == (50, 6)
    assert ids.min() >= 0
    assert ids.max() < 20
    distinct = all(len(set(row)) == 6 for row in ids.tolist())
    assert distinct == (fill != "extreme")


def test_inputs_hold_even_and_uneven_loads_and_experts_without_any() -> None:
    axes = {"T": 100, "E": 20, "k": 4, "B": 16}
    counts = {fill: np.bincount(drawn(fill, axes).ravel(), minlength=20) for fill in INPUT_KINDS}
    assert np.ptp(counts["x0.01"]) <= 1
    assert counts["x3"].max() > 3 * counts["x3"].mean()
    assert np.flatnonzero(counts["negated"]).tolist() == [16, 17, 18, 19]
    assert np.flatnonzero(counts["zeros"]).tolist() == list(range(1, 20, 2))
    assert np.flatnonzero(counts["extreme"]).tolist() == [0, 19]


class TestOnTheCpu(KernelChecks):
    kernel = KERNEL
    baselines = (
        {"T": 1, "E": 64, "k": 8, "B": 16},
        {"T": 511, "E": 8, "k": 2, "B": 128},
        {"T": 512, "E": 8, "k": 2, "B": 128},
        {"T": 3, "E": 1000, "k": 7, "B": 4},
    )
    samples = tuple(
        Sample({"T": tokens, "E": 65, "k": 4, "B": 16}, having={"method": method})
        for method, tokens in {"direct": 3, "solo": 33, "cluster": 129, "launches": 1030}.items()
    )
    # two launches
    # As many routes as fill a tile of each expert where all have the same number.
    workload = {"T": 260, "E": 65, "k": 4, "B": 16}
    launches = (launch(2, 1024, kernel="align_experts"), launch(2, 256, kernel="scatter_routes"))
