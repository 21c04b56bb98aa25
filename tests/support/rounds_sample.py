"""A session with rounds: a scripted agent's events as a run records them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from manifests import manifest

from tuner.analysis.base import Bottleneck, Degree
from tuner.extensions.agents.history import outcome
from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import (
    INITIAL,
    Finding,
    Measurement,
    Occupancy,
    Resources,
    Result,
    Status,
    Trial,
)
from tuner.session.events import (
    AnswerAccepted,
    CandidateMade,
    Expectation,
    Idea,
    Planned,
    Profiled,
    RoundEnded,
    RoundRefused,
    Said,
)
from tuner.session.session import Session
from tuner.tuning.progress import best_us

SMALL, LARGE = Workload.of({"T": 16, "E": 256}), Workload.of({"T": 8192, "E": 256})
HELD_OUT = Workload.of({"T": 3000, "E": 128}, held_out=True)
BASELINES_US = {SMALL: 6.0, LARGE: 30.0, HELD_OUT: 18.0}
TEMPLATE = "constexpr int kBlock = @{ block }@;\nfloat4 v = load(row);\nout[row] = best(v);\n"
SPACE = """\
version: 1
kernel: topk
source: topk.cu
reference: topk.py
template: topk.cu.j2
axes: [T, E]
arguments:
  - {{name: x, dtype: float32, shape: [T, E], role: inout}}
workloads: {{tuned: [{{T: 16, E: 256}}, {{T: 8192, E: 256}}]}}
min_bytes: T * E * 4
baseline: {{launch: [{{kernel: topk, grid: [T], block: [32]}}]}}
parameters: {parameters}
launch: [{{kernel: topk, grid: [T], block: [block], shared_memory: {shared}}}]
tolerance: {{x: {{relative: 1.0e-3}}}}
"""
# Per candidate: its parameters, its shared memory, and how much faster than the baseline its best
# config is; the default, which is tried first, is so much slower than that.
CANDIDATES: Mapping[str, tuple[str, str, float, float]] = {
    INITIAL: ("{block: [32, 64, 96, 128]}", "4 * block", 1.15, 1.1),
    "r1": ("{block: [32, 64, 96, 128]}", "1024 + block", 1.9, 1.25),
    "r3": ("{block: [32, 64, 96, 128], rows_per_warp: [1, 2]}", "0", 2.6, 1.4),
    "r5": ("{block: [32, 64, 96, 128], rows_per_warp: [1, 2]}", "0", 2.2, 1.05),
}
BLOCKS = (128, *(32 * step for step in range(1, 17) if step != 4))


RUN = {
    "kernel": "topk_softmax",
    "space": Path("gone/topk.yaml"),
    "device": "cuda",
    "trials": 32,
    "seed": 3,
    "workloads": (SMALL, LARGE, HELD_OUT),
    "command": ("tune", "topk.cu", "--agent", "openai", "--model", "big"),
    "agent": "openai",
    "rounds": 6,
    "policy": "mcts",
    "model": "big",
}


def session_with_rounds(folder: Path, **changes: Any) -> Session:
    """Make a session of six rounds.

    Round 1 is good, round 2 refused four times, round 3 wins after one repair, round 4 is refused
    once its search has begun, round 5 disappoints, and the run ended in round 6.
    """
    environment = {"device": "NVIDIA H200", "recorded": "false"}
    session = Session.create(folder, manifest(**{**RUN, **changes}), environment)
    for workload, time_us in BASELINES_US.items():
        session.record_baseline(workload, Measurement((time_us,), 20, 4))
    _search(session, INITIAL, None)
    _profile(session, 0, INITIAL, Degree.COUNTERS)
    _good_round(session, 1, idea(INITIAL, "one warp takes a row, with packed keys", 0.6))
    _refused_round(session)
    _good_round(
        session,
        3,
        idea("r1", "16-byte loads, and two rows a warp", 0.5, reference=INITIAL),
        problems=["template.cu.j2:2: error: expected a `;`\n  2| float4 v = load(row)"],
    )
    _refused_after_its_search_began(session)
    _good_round(session, 5, idea("r3", "keep the row in shared memory", 0.8))
    _say(session, 6, 9_000, 300)
    session.record_event(Planned(6, idea("r3", "use clusters", 0.7)))
    for workload in (SMALL, LARGE, HELD_OUT):
        session.append(_result(workload, "r1" if workload == SMALL else "r3"))
    session.add_time(93.0)
    session.mark("interrupted")
    return session


def idea(base: str, change: str, factor: float, reference: str = "") -> Idea:
    """Make a plan that expects a time on one workload and two numbers on all."""
    expectations = (
        Expectation("time_us", factor, LARGE.key),
        Expectation("registers", 1.5),
        Expectation("bank_conflicts", 0.1),
    )
    hypothesis = f"A block waits for one row: {change.partition(',')[0]} should hide that latency."
    return Idea(base, hypothesis, change, expectations, reference)


def _good_round(
    session: Session, number: int, plan: Idea, problems: list[str] | None = None
) -> None:
    name, attempt = f"r{number}", len(problems or []) + 1
    _say(session, number, 12_000 * number, 2_500)
    session.record_event(Planned(number, plan))
    _say(session, number, 14_000 * number, 4_000)
    session.record_event(Said(number, {"type": "failure", "error": "HTTP 429"}))
    session.record_event(AnswerAccepted(number, attempt, TEMPLATE, "space"))
    session.record_event(CandidateMade(number, name, attempt, tuple(problems or ())))
    _search(session, name, plan.base)
    _profile(session, number, name, Degree.COUNTERS if number == 3 else Degree.TIMING)
    made = outcome(
        plan,
        baseline_us={w.key: BASELINES_US[w] for w in (SMALL, LARGE)},
        base_us=best_us(session, plan.base),
        best_us=best_us(session, name),
        default_us={w.key: _time_us(name, w, 0) for w in (SMALL, LARGE)},
        base_metrics={LARGE.key: {"registers": 32.0}},
        metrics={LARGE.key: {"registers": 30.0 if number == 5 else 44.0}},
    )
    session.record_event(RoundEnded(number, made))


def _refused_round(session: Session) -> None:
    _say(session, 2, 20_000, 2_000)
    session.record_event(Planned(2, idea("r1", "sort in registers", 0.7)))
    problems = [f"template.cu.j2:{line}: error: `keys` is undefined" for line in (8, 9, 12, 40)]
    session.record_event(RoundRefused(2, "r1", tuple(problems)))


def _refused_after_its_search_began(session: Session) -> None:
    session.record_event(Planned(4, idea("r3", "four rows a warp", 0.9)))
    session.record_event(CandidateMade(4, "r4", 1))
    text = SPACE.format(parameters="{block: [64]}", shared="0")
    session.add_candidate("r4", TEMPLATE, text, "r3")
    session.record_event(RoundRefused(4, "r3", ("grid[0] is 0 for block=64",), "r4"))


def _say(session: Session, number: int, tokens: int, written: int) -> None:
    usage = {"input_tokens": tokens, "cached_tokens": tokens // 2, "output_tokens": written}
    told = {"cost": tokens * 1e-6, "model": "big-2026-10"}
    message = {"role": "assistant", "content": "an answer"}
    entry = {"type": "reply", "message": message, "usage": usage, **told}
    session.record_event(Said(number, entry))


def _search(session: Session, name: str, parent: str | None) -> None:
    parameters, shared, _, _ = CANDIDATES[name]
    space = SPACE.format(parameters=parameters, shared=shared)
    session.add_candidate(name, TEMPLATE, space, parent)
    for workload in (SMALL, LARGE):
        for trial in _trials(name, workload):
            session.record(trial)


def _trials(name: str, workload: Workload) -> Iterator[Trial]:
    rows = (1, 2) if "rows_per_warp" in CANDIDATES[name][0] else (None,)
    configs = [(block, row) for block in BLOCKS for row in rows]
    for number, (block, row) in enumerate(configs):
        values = {"block": block} if row is None else {"block": block, "rows_per_warp": row}
        config = Config.of(values)
        if block == 512:
            reason = f"{block} is too large"
            yield Trial(name, workload, config, Status.RESOURCE_LIMIT, reason)
            continue
        time_us = _time_us(name, workload, number)
        yield Trial(
            name,
            workload,
            config,
            Status.CORRECT,
            resources=Resources(40, static_shared_bytes=16),
            occupancy=Occupancy(0.5, 4, "registers"),
            measurement=Measurement((time_us,), 20, 4),
        )


def _time_us(name: str, workload: Workload, number: int) -> float:
    _, _, speedup, slower = CANDIDATES[name]
    best = BASELINES_US[workload] / speedup
    return best * slower if number == 0 else best * (1 + 0.04 * (number * 7 % 11))


def _profile(session: Session, number: int, name: str, degree: Degree) -> None:
    findings = (
        Finding(
            "vector_width",
            "Global loads are 32 bits (8 of 8 in the code, line 2): 4 of the 16 bytes that a "
            "thread can load at once.",
            "Load 16 bytes a thread where its elements are neighbours.",
            32.0,
            "bits",
            0.6,
            line=2,
        ),
        Finding("tail", "20% of the time is lost in the last wave.", "Widen it.", 20.0, "%", 0.2,
                parameter="block"),
    )  # fmt: skip
    profiled = Profiled(
        round=number,
        candidate=name,
        workload=LARGE.key,
        config={"block": 64},
        degree=degree,
        kind=Bottleneck.MEMORY,
        metrics={"registers": 40.0, "dram_bytes": 8.4e6},
        findings=findings,
        reason="" if degree is Degree.COUNTERS else "the driver lets only root read counters",
    )
    session.record_event(profiled)


def _result(workload: Workload, name: str) -> Result:
    speedup = CANDIDATES[name][2] - 0.05
    baseline_us = BASELINES_US[workload]
    values = {"block": 64} if name == "r1" else {"block": 128, "rows_per_warp": 2}
    return Result(
        workload=workload,
        baseline_us=baseline_us,
        tuned_us=baseline_us / speedup,
        speedup=speedup,
        interval=(speedup - 0.02, speedup + 0.02),
        paired=True,
        roofline_share=0.5,
        config=Config.of(values),
        resources=Resources(40),
        occupancy=Occupancy(0.5, 4, "registers"),
        candidate=name,
    )
