"""The section of docs/results.md about the linear layers of decode, beside the best libraries."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import geometric_mean

from operators_section import (
    Cell,
    Figure,
    Json,
    behind_section,
    cells,
    cost_us,
    mean_figure,
    measured_at,
    operator_section,
)

FUSIONS = ("gate_up_silu", "linear_add_rmsnorm")
LINEAR = frozenset({"gemm_small_m", "gemm_fp8", *FUSIONS})
# With it PyTorch's compiler may put into a product what follows it; all others call cuBLAS first.
MAY_FUSE = frozenset({"torch.compile-max"})
# N and K of the wide ones, which stream their weights as fast as the memory gives them.
WIDE = frozenset({(28672, 4096), (128256, 4096)})
ROUTERS = frozenset({(256, 7168), (128, 2048)})
# DeepSeek's first projections.
SMALL = frozenset({(576, 7168), (2112, 7168)})
MEAN, WIDE_LEAST, ROUTERS_LEAST, FP8_MEAN, FP8_SMALL_MEAN = 1.15, 0.98, 1.5, 1.3, 2.0
# At one token, of the floor: the bytes at the rate of a stream on this GPU (targets of 2026-11).
FLOOR_BYTES_PER_US = 4.37e6
FLOOR_SHARES = {
    "qkv": ((6144, 4096), 0.87),
    "o": ((4096, 4096), 0.84),
    "down": ((4096, 14336), 0.94),
    "fused_a": ((2112, 7168), 0.83),
}


def section(results: list[Json], gpu: str, *, asked: bool = True) -> Iterator[str]:
    """Write what the linear layers cost, with the figures that are asked.

    Where they are `asked` of another GPU, those are told that can be, and none as missed.
    """
    found = cells(results)
    devices = " and ".join(sorted({one["environment"]["device"] for one in results}))
    yield f"## The linear layers of decode{'' if asked else f' on an {devices}'}\n"
    if asked:
        yield "| figure | asked | measured |\n|---|---|---|"
        yield from map(str, figures(found))
    else:
        yield "| figure | measured |\n|---|---|"
        yield from (f"| {one.name} | {one.got} |" for one in means(found) if one.met is not None)
    yield (
        "\nThe chain around them is a stream of the bytes that a norm or an activation moves, "
        "before and after. `cublaslt-tuned` is the fastest of up to 40 algorithms that cuBLASLt "
        "proposes. *Alone*: cold weights, back to back, each call overlapping the next. "
        "How far a peer may be off: [peers](peers.md).\n"
    )
    yield from fusions(found)
    yield from behind_section(found)
    for one in results:
        yield from _interrupted(one)
        yield from operator_section(one)
    yield measured_at(results, gpu)


def _interrupted(one: Json) -> Iterator[str]:
    """Say what an interrupted session has not decided, and what an earlier one had."""
    if one.get("undecided"):
        yield (
            f"The session of `{one['kernel']}` was interrupted; not decided: "
            f"{'; '.join(one['undecided'])}.\n"
        )
    kept: dict[str, list[str]] = {}
    for case in one["workloads"]:
        if "commit" in case:
            kept.setdefault(case["commit"], []).append(case["workload"])
    for commit, keys in kept.items():
        yield (
            f"Of `{one['kernel']}` these are of an earlier session, with its templates and its "
            f"search space, at {commit}: {'; '.join(keys)}.\n"
        )


def figures(found: list[Cell]) -> Iterator[Figure]:
    """Tell each figure that is asked of the linear layers, how much, and what was measured."""
    bf16 = [cell for cell in found if cell.operator == "gemm_small_m" and cell.peers]
    narrow = [cell for cell in bf16 if _shape(cell) not in WIDE]
    yield mean_figure(
        "bf16, all shapes but the wide ones: geometric mean over the best peer", MEAN, narrow
    )
    behind = sum(cell.behind for cell in narrow)
    name = "the same: cells behind the best peer by more than 2 %"
    yield (
        Figure(name, "0", f"{behind} of {len(narrow)}", behind == 0)
        if narrow
        else Figure(name, "0")
    )
    yield _least("gate_up and lm_head over the best peer", WIDE_LEAST, bf16, WIDE, (1, 16, 64, 128))
    for layer, (shape, asked) in FLOOR_SHARES.items():
        yield _share(layer, asked, [cell for cell in bf16 if _shape(cell) == shape])
    yield _least(
        "routers at 16 and 64 tokens over the best peer", ROUTERS_LEAST, bf16, ROUTERS, (16, 64)
    )
    yield from fp8_figures(found)


def fp8_figures(found: list[Cell]) -> Iterator[Figure]:
    """Tell those of fp8, of scales of rows and of blocks together."""
    fp8 = [cell for cell in found if cell.operator == "gemm_fp8"]
    small = [cell for cell in fp8 if _shape(cell) in SMALL]
    rows = (
        ("fp8: geometric mean over the best peer", FP8_MEAN, fp8),
        ("the same, kv_a and fused_a", FP8_SMALL_MEAN, small),
    )
    for name, asked, some in rows:
        yield mean_figure(name, asked, [cell for cell in some if cell.peers], len(some))


def means(found: list[Cell]) -> Iterator[Figure]:
    """Tell what says something of any GPU: means over the best peer, and cells behind it."""
    measured = [cell for cell in found if cell.peers]
    narrow = [
        cell for cell in measured if cell.operator == "gemm_small_m" and _shape(cell) not in WIDE
    ]
    yield mean_figure(
        "bf16, all shapes but the wide ones: geometric mean over the best peer", MEAN, narrow
    )
    yield from fp8_figures(found)
    for name in FUSIONS:
        some = [cell for cell in measured if cell.operator == name]
        yield mean_figure(f"{name}: geometric mean over the best peer", 1.0, some)
    behind = sum(cell.behind for cell in measured)
    yield Figure(
        "cells behind the best peer by more than 2 %",
        "0",
        f"{behind} of {len(measured)}",
        not behind,
    )


def fusions(found: list[Cell]) -> Iterator[str]:
    """Tell what two operators save that are a product and what follows it, in one."""
    rows = [(name, _unfused(name, found)) for name in FUSIONS]
    if not any(some for _, some in rows):
        return
    yield (
        "Fusions do a product and what follows it in one. Their unfused peers call cuBLAS, then a "
        "kernel or several for the rest. Where production's is not compared, it may be faster than "
        "those that took part.\n"
    )
    yield (
        "| fusion | cells | over the best unfused peer (geometric mean) | least | most "
        "| peers that took part | production's |"
    )
    yield "|---|---|---|---|---|---|---|"
    for name, some in rows:
        if some:
            yield _fusion_row(name, some)
    yield ""


def _unfused(name: str, found: list[Cell]) -> list[tuple[Cell, list[Json]]]:
    """Pair the measured cells of an operator with those of their peers that fuse nothing."""
    cells = (cell for cell in found if cell.operator == name)
    pairs = ((cell, [one for one in cell.peers if one["name"] not in MAY_FUSE]) for cell in cells)
    return [(cell, peers) for cell, peers in pairs if peers]


def _fusion_row(name: str, some: list[tuple[Cell, list[Json]]]) -> str:
    ratios = [float(min(peers, key=cost_us)["over_winner"]) for _, peers in some]
    names = dict.fromkeys(one["name"] for _, peers in some for one in peers)
    production = dict.fromkeys(cell.content["production"] for cell, _ in some)
    called = ", ".join(one if one in names else f"{one}, not compared" for one in production)
    return (
        f"| {name} | {len(some)} | {geometric_mean(ratios):.2f}x | {min(ratios):.2f}x "
        f"| {max(ratios):.2f}x | {', '.join(names)} | {called} |"
    )


def _shape(cell: Cell) -> tuple[int, int]:
    axes = cell.content["axes"]
    return axes.get("N", 0), axes["K"]


def _least(
    name: str,
    asked: float,
    found: list[Cell],
    shapes: frozenset[tuple[int, int]],
    tokens: tuple[int, ...],
) -> Figure:
    some = [
        cell for cell in found if _shape(cell) in shapes and cell.content["axes"]["M"] in tokens
    ]
    if not some:
        return Figure(name, f"{asked}x each")
    got = ", ".join(f"{cell.ratio:.2f}x" for cell in some)
    return Figure(name, f"{asked}x each", got, all(cell.ratio >= asked for cell in some))


def _share(layer: str, asked: float, some: list[Cell]) -> Figure:
    name = f"{layer} at one token, alone: share of the floor"
    one = next((cell for cell in some if cell.content["axes"]["M"] == 1), None)
    if one is None or not one.ours["alone_us"]:
        return Figure(name, f"{asked:.0%}")
    columns, depth = _shape(one)
    share = 2 * (columns * depth + columns + depth) / FLOOR_BYTES_PER_US / one.ours["alone_us"]
    return Figure(name, f"{asked:.0%}", f"{share:.0%}", round(share, 2) >= asked)
