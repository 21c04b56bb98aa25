"""Made-up searches and rounds for tests of the feedback: the same numbers each time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.analysis.base import Degree
from tuner.device.base import DeviceInfo
from tuner.extensions.agents.briefing import KernelTask
from tuner.model.config import Config, Parameter, SearchSpace
from tuner.model.expressions import Value
from tuner.model.kernel import Workload
from tuner.model.statistics import floor_us
from tuner.model.trial import Measurement, Occupancy, Resources, Status, Trial
from tuner.session.events import Expectation, Idea, Moved, RoundOutcome
from tuner.session.rounds import RoundRecord
from tuner.space.load import load_definition
from tuner.space.template import Template

ROOT = Path(__file__).parents[2]
INFO = DeviceInfo("NVIDIA H200", "sm_90a", (9, 0), 132, 60 << 20, 4283.0, recorded=False)
DEVICE = {
    "max_threads": 1024,
    "max_shared_bytes": 232448,
    "multiprocessors": 132,
    "warp_size": 32,
    "successor_waits": False,
}
TEMPLATE = """\
constexpr int kBlock = @{ block }@;
constexpr int kItems = @{ items }@;
constexpr bool kFast = @{ fast }@;
"""


@dataclass(frozen=True)
class Project:
    task: KernelTask
    space: SearchSpace
    template: Template
    trials: dict[Workload, list[Trial]]
    baselines_us: dict[Workload, float]

    @property
    def best(self) -> dict[Workload, Trial]:
        timed = {w: [t for t in found if t.time_us] for w, found in self.trials.items()}
        return {w: min(found, key=lambda t: t.time_us or 0.0) for w, found in timed.items()}


def silu_project() -> Project:
    definition = load_definition(ROOT / "search_spaces/sglang/silu_and_mul.yaml")
    spec, space = definition.spec, definition.space
    task = KernelTask(
        spec,
        spec.source.read_text(encoding="utf-8"),
        INFO,
        Degree.COUNTERS,
        {"ACTIVATION": "silu"},
        spec.reference.read_text(encoding="utf-8"),
    )
    draw = random.Random(7)  # noqa: S311
    trials = {}
    for workload in spec.tuned:
        configs = draw_configs(space, {**workload.values, **DEVICE}, draw, 80)
        trials[workload] = [silu_trial(workload, config) for config in configs]
    baselines_us = {w: 2.7 + 1.06 * silu_floor_us(w) for w in spec.tuned}
    return Project(
        task, space, Template.load(spec.template, spec.include_dirs), trials, baselines_us
    )


def draw_configs(
    space: SearchSpace, names: dict[str, Value], draw: random.Random, count: int
) -> list[Config]:
    """Draw valid configs, the default first, by changing a few of its values."""
    assert space.default is not None
    found = {space.default: None}
    while len(found) < count:
        values = dict(space.default)
        for parameter in draw.sample(space.parameters, draw.randint(1, 5)):
            values[parameter.name] = draw.choice(parameter.values)
        config = Config.of(values)
        if space.allows(config, names):
            found[config] = None
    return list(found)


def silu_floor_us(workload: Workload) -> float:
    return floor_us(workload.values["T"] * workload.values["D"] * 6, INFO.streaming_gbps)


def silu_trial(workload: Workload, config: Config) -> Trial:
    """Large blocks win at large sizes, prefetching at small ones; wide accesses that are unrolled
    spill."""
    block, vector = int(config["block_size"]), int(config["vector_bytes"])
    if vector * int(config["unroll"]) == 64:
        reason = f"spills {vector * 2 + block // 32} bytes a thread, and spills are forbidden"
        status = Status.RESOURCE_LIMIT
        return Trial("initial", workload, config, status, reason, Resources(255, 96))
    large = workload.values["T"] >= 1024
    time_us = 1.5 + 1.02 * silu_floor_us(workload)
    time_us *= 1 + 0.08 * ((512 - block) / 512 if large else abs(block - 128) / 512)
    time_us *= {8: 1.0, 16: 1.03, 32: 1.09}[vector]
    if config["prefetch"]:
        time_us *= 1.1 if large else 0.8
    if not config["pdl"]:
        time_us += 0.9
    time_us *= 1 + 0.002 * (len(str(config)) % 3)
    return Trial(
        "initial",
        workload,
        config,
        Status.CORRECT,
        resources=Resources(16 + vector),
        occupancy=Occupancy(0.75, 6, "registers"),
        measurement=Measurement((time_us,) * 5, 20, 4, stopped_early=bool(config["persistent"])),
    )


@dataclass(frozen=True)
class Small:
    """A space of three parameters and trials that a test makes of it, config by config."""

    space: SearchSpace
    template: Template

    def trial(self, workload: Workload, time_us: float | None = None, **values: Value) -> Trial:
        config = Config.of(values)
        if time_us is None:
            return Trial("c", workload, config, Status.INCORRECT, "out is wrong at [0, 3]")
        measurement = Measurement((time_us,), 20, 4)
        return Trial("c", workload, config, Status.CORRECT, measurement=measurement)


def small_space() -> Small:
    parameters = (
        Parameter("block", (64, 128, 256, 512)),
        Parameter("items", (1, 2, 4)),
        Parameter("fast", (False, True)),
    )
    template = Template.from_text(TEMPLATE, Path("t.cu.j2"))
    return Small(SearchSpace(parameters), template)


def grid(small: Small, workload: Workload, time_of: Callable[..., float | None]) -> Sequence[Trial]:
    return [
        small.trial(workload, time_of(block, items, fast), block=block, items=items, fast=fast)
        for block in (64, 128, 256, 512)
        for items in (1, 2, 4)
        for fast in (False, True)
    ]


KEY = "T=8192,E=256"


def idea(base: str, change: str) -> Idea:
    return Idea(base, "a block waits for one row", change, (Expectation("time_us", 0.6, KEY),))


def made(number: int, base: str, change: str, speedup: float, over: float, **more) -> RoundRecord:
    found = RoundOutcome(speedup, over, (Moved("time_us", KEY, 0.6, 1 / over),), {KEY: 8.0}, {})
    return RoundRecord(number, base, idea(base, change), f"r{number}", outcome=found, **more)


def refused(number: int, base: str, change: str, *problems: str) -> RoundRecord:
    return RoundRecord(number, base, idea(base, change), problems=problems)


HISTORY = (
    made(1, "initial", "one warp a row, packed keys", 2.1, 2.1),
    refused(2, "r1", "eight rows a block", "template.cu.j2:12: error: expected a `;`"),
    refused(3, "r1", "asynchronous copies", "no block", "template.cu.j2:40: error: expected a `;`"),
    made(4, "r1", "a wide load for each lane", 2.6, 1.24, problems=("default is missing",)),
    RoundRecord(5, "r4", idea("r4", "clusters"), "r5", outcome=RoundOutcome(None, None)),
    RoundRecord(6, "initial", problems=("the reply was no plan",)),
    made(7, "r4", "sort in registers", 2.2, 0.85),
)
