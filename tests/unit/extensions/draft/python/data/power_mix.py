"""Recipes mixed by the squares of their doses, with Triton's autotuner and a benchmark."""

import torch
import triton
import triton.language as tl


def at_nvidias():
    return triton.runtime.driver.active.get_current_target().backend == "cuda"


def kitchens_of_nvidia():
    return [
        triton.Config(
            {"TILE_POTS": pots, "TILE_BOWLS": bowls, "TILE_SPOONS": 32, "GROUP_AISLE": 8},
            num_warps=cooks,
            num_stages=courses,
        )
        for pots, bowls in [(32, 64), (64, 32), (64, 64)]
        for cooks, courses in [(4, 3), (8, 4)]
    ]


def kitchens_of_amd():
    return [triton.Config({"TILE_POTS": 128, "TILE_BOWLS": 256, "TILE_SPOONS": 16, "GROUP_AISLE": 4})]


def kitchens():
    if at_nvidias():
        return kitchens_of_nvidia()
    return kitchens_of_amd()


@triton.autotune(configs=kitchens(), key=["R", "D", "S"])
@triton.jit
def power_mix_kernel(
    doses_ptr, tastes_ptr, dishes_ptr, R, D, S,
    doses_r, doses_s, tastes_s, tastes_d, dishes_r, dishes_d,
    TILE_POTS: tl.constexpr, TILE_BOWLS: tl.constexpr, TILE_SPOONS: tl.constexpr,
    GROUP_AISLE: tl.constexpr, FINISH: tl.constexpr,
):  # fmt: skip
    # Cooks go up one side of an aisle of GROUP_AISLE rows and down the other.
    place, columns = tl.program_id(0), tl.cdiv(D, TILE_BOWLS)
    aisle = place // (GROUP_AISLE * columns)
    depth = min(GROUP_AISLE, tl.cdiv(R, TILE_POTS) - aisle * GROUP_AISLE)
    walked = place - aisle * GROUP_AISLE * columns
    column, row = walked // depth, walked % depth
    row = aisle * GROUP_AISLE + (row if column % 2 == 0 else depth - 1 - row)
    r = row * TILE_POTS + tl.arange(0, TILE_POTS)
    d = column * TILE_BOWLS + tl.arange(0, TILE_BOWLS)
    dish = tl.zeros((TILE_POTS, TILE_BOWLS), dtype=tl.float32)
    for first in range(0, S, TILE_SPOONS):
        s = first + tl.arange(0, TILE_SPOONS)
        dose = tl.load(
            doses_ptr + r[:, None] * doses_r + s[None, :] * doses_s,
            mask=(r < R)[:, None] & (s < S)[None, :],
            other=0.0,
        )
        taste = tl.load(
            tastes_ptr + s[:, None] * tastes_s + d[None, :] * tastes_d,
            mask=(s < S)[:, None] & (d < D)[None, :],
            other=0.0,
        )
        dish = tl.dot(dose * dose, taste, dish)
    if FINISH == "reduced":
        dish = dish / (1.0 + tl.abs(dish))
    served = dishes_ptr + r[:, None] * dishes_r + d[None, :] * dishes_d
    tl.store(served, dish.to(tl.float16), mask=(r < R)[:, None] & (d < D)[None, :])


def power_mix(doses, tastes, finish=""):
    """Mix recipes of float16: dishes[r, d] is the sum of doses[r, s] squared times tastes[s, d]."""
    assert doses.shape[1] == tastes.shape[0], "a taste for each dose"
    assert doses.is_contiguous(), "doses lie in rows"
    R, S = doses.shape
    S, D = tastes.shape
    dishes = torch.empty((R, D), device=doses.device, dtype=torch.float16)
    stoves = lambda META: (triton.cdiv(R, META["TILE_POTS"]) * triton.cdiv(D, META["TILE_BOWLS"]),)
    power_mix_kernel[stoves](
        doses, tastes, dishes, R, D, S,
        doses.stride(0), doses.stride(1), tastes.stride(0), tastes.stride(1),
        dishes.stride(0), dishes.stride(1),
        FINISH=finish,
    )  # fmt: skip
    return dishes


@triton.testing.perf_report(
    triton.testing.Benchmark(
        x_names=["R", "D", "S"],
        x_vals=[128 * many for many in range(2, 33)],
        line_arg="cook",
        line_vals=["triton"],
        line_names=["Triton"],
        plot_name="power_mix",
        args={},
    )
)
def dinner(R, D, S, cook):
    doses = torch.rand((R, S), device="cuda", dtype=torch.float16)
    tastes = torch.rand((S, D), device="cuda", dtype=torch.float16)
    return triton.testing.do_bench(lambda: power_mix(doses, tastes))
