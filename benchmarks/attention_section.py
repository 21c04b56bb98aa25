"""The section of docs/results.md about what keeps decode attention from its floor, per shape."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path

from operators_section import Cell, Json, cells, cost_us

from tuner.dispatch.kernels import device_numbers
from tuner.model.expressions import Value
from tuner.model.kernel import KernelSpec
from tuner.model.statistics import floor_us
from tuner.space.choices import chosen_operators
from tuner.space.load import load_definition

ROOT = Path(__file__).resolve().parents[1]
SPACE = ROOT / "search_spaces/sglang/decode_attention.yaml"


@dataclass(frozen=True, slots=True)
class Parts:
    """What a call's microseconds are: two floors, a bound for the tail, and all that is left."""

    total_us: float
    streaming_us: float
    launch_us: float
    tail_us: float
    splits: int

    @property
    def left_us(self) -> float:
        return self.total_us - self.streaming_us - self.launch_us

    def __str__(self) -> str:
        shares = (us / self.total_us for us in (self.streaming_us, self.launch_us, self.left_us))
        streaming, launch, left = (f"{share:.1%}" for share in shares)
        tail = min(self.tail_us, max(self.left_us, 0.0)) / self.total_us
        split = "0.0%" if self.splits == 1 else f"in what is left, of {self.splits} parts"
        return f"{self.total_us:.2f} | {streaming} | {launch} | {left} | {tail:.1%} | {split}"


def section(result: Json, gpu: str) -> Iterator[str]:
    """Divide each winner's time; nothing where the least that a launch takes was not measured."""
    path = ROOT / f"benchmarks/results/{gpu}/launch_floor.json"
    if not path.exists():
        return
    (launch,) = json.loads(path.read_text(encoding="utf-8"))["workloads"]
    definition, environment = load_definition(SPACE), result["environment"]
    operators = chosen_operators(definition.spec, result.get("operators", {}))
    spec = definition.chosen(operators).spec
    numbers = {**operators, **device_numbers(environment)}
    rate = float(environment["streaming_gbps"])
    floors_us = launch["tuned_us"], launch["baseline_us"]
    yield "## What keeps decode attention from its floor\n"
    yield "| workload | us | streaming | launch | left | of it tail, at most | of it split |"
    yield "|---|---|---|---|---|---|---|"
    for cell in cells([result]):
        parts = divide(cell, spec, numbers, rate, floors_us)
        yield f"| {cell.content['workload']} | {parts} |"
    yield (
        f"\n*Streaming* is the space's `min_bytes` at the {rate:,.0f} GB/s that this GPU streams. "
        "*Launch* is what a kernel takes that writes one number, with programmatic launch where "
        "the winner has it, measured alone and on another day. *Tail* is how much longer the "
        "multiprocessor with the most blocks would stream if each had its own share of the rate: "
        "a bound, as others stream faster meanwhile. *Split* is nothing where a sequence is one "
        "part; what putting parts together takes, and what of the rest is waiting for the first "
        "bytes, arithmetic that nothing hides and the last bytes on their way, no measurement "
        "here tells apart.\n"
    )


def divide(
    cell: Cell,
    spec: KernelSpec,
    numbers: Mapping[str, Value],
    rate_gbps: float,
    launch_us: tuple[float, float],
) -> Parts:
    """Divide the time of a cell's winner.

    `launch_us` is the least of a launch, programmatic and not.
    """
    axes, config = cell.content["axes"], cell.ours["config"]
    names = {**numbers, **axes, **config}
    launches = spec.candidate_launches(names)
    streaming_us = floor_us(spec.min_bytes.integer(names), rate_gbps)
    on_each = prod(launches[0].grid) / int(names["multiprocessors"])
    programmatic, plain = launch_us
    return Parts(
        cost_us(cell.ours),
        streaming_us,
        len(launches) * (programmatic if config["pdl"] else plain),
        streaming_us * (ceil(on_each) / on_each - 1.0),
        config["splits"],
    )
