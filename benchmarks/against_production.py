"""What was measured on the H200 against what production runs there, and the figures asked of it.

    python benchmarks/against_production.py

Prints the table of docs/results.md and exits with 1 where a figure is missed. Reads
`results/h200/<operator>.json` (benchmarks/summarize_session.py) and `targets/sglang_h200.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import exp, log
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parent
ROOT = BENCHMARKS.parent
TARGETS = BENCHMARKS / "targets/sglang_h200.json"

WITHIN = 1.02
GEOMETRIC_MEAN = 1.25
LARGE_BYTES = 100e6
STREAMING_SHARE = 0.90
FAR_AHEAD, FAR_AHEAD_OPERATORS = 3.0, 2
HELD_OUT_WITHIN = 1.05
# Operators that compute more than they move.
NOT_STREAMING = frozenset({"topk_softmax", "moe_align_block_size"})
LARGE_T = 8192


@dataclass(frozen=True, slots=True)
class Least:
    """At the largest T, an operator's cells with these axes are so many times faster than a peer.

    The peer is the best one where none is named.
    """

    operator: str
    ratio: float
    axes: tuple[tuple[str, int], ...] = ()
    peer: str = ""


LEAST = (
    Least("per_token_quant_fp8", 1.6),
    Least("topk_softmax", 3.0, (("E", 256),)),
    Least("topk_softmax", 2.0, (("E", 128),)),
    Least("moe_align_block_size", 3.0),
    Least("rmsnorm", 1.35, (), "flashinfer"),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload that production was measured on; `interval_us` is the 95 % one of `tuned_us`."""

    operator: str
    key: str
    axes: Mapping[str, int]
    peers_us: Mapping[str, float]
    baseline_us: float
    tuned_us: float
    interval_us: tuple[float, float] | None
    isolated_us: float | None
    traffic_bytes: int

    @property
    def best_peer(self) -> str:
        """The fastest one's name."""
        return min(self.peers_us, key=lambda name: self.peers_us[name])

    @property
    def ratio(self) -> float:
        """How many times faster than the best peer."""
        return self.peers_us[self.best_peer] / self.tuned_us

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of `ratio` that follows from the tuned time's own."""
        if self.interval_us is None:
            return None
        best = self.peers_us[self.best_peer]
        return best / self.interval_us[1], best / self.interval_us[0]

    @property
    def gbps(self) -> float:
        """The fewest bytes that must move, over the time."""
        return self.traffic_bytes / self.tuned_us / 1e3

    @property
    def level(self) -> bool:
        """Whether it is as fast as the best peer, or faster."""
        return self.ratio * WITHIN >= 1.0

    @property
    def streaming_share(self) -> float | None:
        """The share of the streaming rate, where it is memory that limits and much is moved."""
        if self.operator in NOT_STREAMING or self.traffic_bytes < LARGE_BYTES:
            return None
        return self.gbps / targets()["streaming_gbps"]


@cache
def targets() -> dict[str, Any]:
    """Read what production's times are."""
    return json.loads(TARGETS.read_text(encoding="utf-8"))


def result_of(operator: str) -> dict[str, Any] | None:
    """Read what was measured of an operator; None before that."""
    path = BENCHMARKS / f"results/h200/{operator}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def cells(operator: str) -> list[Cell]:
    """Join an operator's tuned workloads with the peers of the same shape."""
    result = result_of(operator)
    known = targets()["kernels"].get(operator, {})
    if result is None:
        return []
    traffic = _traffic(operator)
    joined = []
    for found in result["workloads"]:
        cell = _cell(known, found["workload"])
        if cell is None or found["held_out"]:
            continue
        axes, peers = cell
        key = ",".join(f"{name}={value}" for name, value in found["workload"].items())
        tuned_us = found["tuned_us"]
        joined.append(
            Cell(
                operator=operator,
                key=key,
                axes=axes,
                peers_us=peers,
                baseline_us=found["baseline_us"],
                tuned_us=tuned_us,
                interval_us=result.get("tuned_interval_us", {}).get(key),
                isolated_us=result["isolated_us"].get(key),
                traffic_bytes=traffic(axes),
            )
        )
    return joined


def _cell(
    known: Mapping[str, Any], axes: Mapping[str, int]
) -> tuple[Mapping[str, int], Mapping[str, float]] | None:
    """Find the cell that a workload is; an older result may lack an axis that has been added."""
    for key, peers in known.items():
        shape = {name: int(size) for name, size in (part.split("=") for part in key.split(","))}
        if axes.items() <= shape.items():
            return shape, peers
    return None


def _traffic(operator: str) -> Any:
    from tuner.space.load import load_definition

    return load_definition(ROOT / f"search_spaces/sglang/{operator}.yaml").spec.min_bytes.integer


def all_cells() -> list[Cell]:
    """Join every operator that has a result."""
    return [cell for operator in targets()["kernels"] for cell in cells(operator)]


def geometric_mean(values: list[float]) -> float:
    """Average ratios."""
    return exp(sum(map(log, values)) / len(values))


def misses(found: list[Cell]) -> Iterator[str]:
    """Name every figure that is missed, each cell with its number."""
    yield from _missing_cells(found)
    for cell in found:
        if not cell.level:
            yield f"{cell.operator} {cell.key}: {cell.ratio:.3f}x {cell.best_peer}"
    yield from _too_slow(found)
    for cell in found:
        share = cell.streaming_share
        if share is not None and share < STREAMING_SHARE:
            yield f"{cell.operator} {cell.key}: {share:.1%} of the streaming rate"
    mean = geometric_mean([cell.ratio for cell in found])
    if mean < GEOMETRIC_MEAN:
        yield f"geometric mean {mean:.3f}x, under {GEOMETRIC_MEAN}x"
    far = _far_ahead(found)
    if len(far) < FAR_AHEAD_OPERATORS:
        yield f"{len(far)} operators with a cell of {FAR_AHEAD}x, under {FAR_AHEAD_OPERATORS}"
    loss = held_out_loss()
    if loss is not None and loss > HELD_OUT_WITHIN:
        yield f"held-out workloads: {loss - 1:.1%} slower than searched, over 5 %"


def _missing_cells(found: list[Cell]) -> Iterator[str]:
    for operator, known in targets()["kernels"].items():
        count = sum(cell.operator == operator for cell in found)
        if count < len(known):
            yield f"{operator}: {len(known) - count} of {len(known)} cells are not measured"


def _too_slow(found: list[Cell]) -> Iterator[str]:
    for asked in LEAST:
        for cell, peer, ratio in _meant(asked, found):
            if ratio < asked.ratio:
                yield f"{cell.operator} {cell.key}: {ratio:.2f}x {peer}, under {asked.ratio}x"


def _meant(asked: Least, found: list[Cell]) -> Iterator[tuple[Cell, str, float]]:
    """Name the cells that a figure is about, each with the peer it is against, and the ratio."""
    wanted = {"T": LARGE_T, **dict(asked.axes)}
    for cell in found:
        if cell.operator == asked.operator and wanted.items() <= cell.axes.items():
            peer = asked.peer or cell.best_peer
            yield cell, peer, cell.peers_us[peer] / cell.tuned_us


def _far_ahead(found: list[Cell]) -> list[str]:
    return sorted({cell.operator for cell in found if cell.ratio >= FAR_AHEAD})


def figures(found: list[Cell]) -> Iterator[tuple[str, str, str]]:
    """Tell each figure that is asked, how much, and what was measured."""
    level = sum(cell.level for cell in found)
    known = sum(len(cells) for cells in targets()["kernels"].values())
    yield "cells as fast as the best peer or faster, within 2 %", f"{known}", f"{level}"
    mean = geometric_mean([cell.ratio for cell in found])
    yield "geometric mean over the best peers", f"{GEOMETRIC_MEAN}x", f"{mean:.2f}x"
    far = _far_ahead(found)
    got = f"{len(far)}: {', '.join(far)}"
    yield f"operators with a cell of {FAR_AHEAD:g}x", f"{FAR_AHEAD_OPERATORS}", got
    for asked in LEAST:
        sizes = "".join(f", {name} {size}" for name, size in asked.axes)
        peer = f", over {asked.peer}" if asked.peer else ""
        got = ", ".join(f"{ratio:.2f}x" for _, _, ratio in _meant(asked, found))
        yield f"{asked.operator}, T {LARGE_T}{sizes}{peer}", f"{asked.ratio:g}x", got
    shares = [share for cell in found if (share := cell.streaming_share) is not None]
    if shares:
        got = f"{min(shares):.1%} at least, of {len(shares)} cells"
        yield "share of the streaming rate from 100 MB on", f"{STREAMING_SHARE:.0%}", got
    loss = held_out_loss()
    if loss is not None:
        asked_loss = f"{HELD_OUT_WITHIN - 1:.0%}"
        yield "held-out workloads slower than searched, on average", asked_loss, f"{loss - 1:.1%}"


def held_out_loss() -> float | None:
    """Average how much slower the dispatch is on held-out workloads than the best found there."""
    ratios = []
    for operator in targets()["kernels"]:
        held_out = (result_of(operator) or {}).get("held_out_us", {})
        ratios += [one["dispatched"] / one["searched"] for one in held_out.values()]
    return geometric_mean(ratios) if ratios else None


def table(found: list[Cell]) -> Iterator[str]:
    """Write the rows as Markdown."""
    yield (
        "| operator | workload | baseline | tuned | isolated | best peer | against it "
        "| 95 % interval | GB/s |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for cell in found:
        interval = "-" if cell.interval is None else "{:.2f} to {:.2f}".format(*cell.interval)
        isolated = "-" if cell.isolated_us is None else f"{cell.isolated_us:.2f}"
        peer = cell.best_peer
        yield (
            f"| {cell.operator} | {cell.key} | {cell.baseline_us:.2f} | {cell.tuned_us:.2f} "
            f"| {isolated} | {peer} {cell.peers_us[peer]:.2f} | {cell.ratio:.2f}x "
            f"| {interval} | {cell.gbps:,.0f} |"
        )


def main() -> None:
    found = all_cells()
    print("\n".join(table(found)))
    print(f"\ngeometric mean over {len(found)} cells:", end=" ")
    print(f"{geometric_mean([cell.ratio for cell in found]):.2f}x the best peer of each")
    missed = list(misses(found))
    for line in missed:
        print("MISSED", line)
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
