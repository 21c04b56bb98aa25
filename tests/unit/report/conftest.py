"""Made-up runs of a small kernel: numbers with a plausible shape, the same every time."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.support.rounds_sample import session_with_rounds
from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import Comparison, Measurement, Occupancy, Resources, Result, Status, Trial
from tuner.report.data import ReportData, load

TOKENS = (1, 16, 128, 1024, 8192)
WIDTHS = (11008, 14336)
BASELINE = "// baseline\n__global__ void scale(float* x) {\n  x[threadIdx.x] *= 2.0f;\n}\n"
TUNED = "// tuned\n__global__ void scale(float4* x) {\n  x[threadIdx.x].x *= 2.0f;\n}\n"


def traffic(workload: Workload) -> int:
    axes = workload.values
    return axes["T"] * axes["D"] * 6


def model_us(workload: Workload, config: Config) -> float:
    block, vector = int(config["block_size"]), int(config["vector_bytes"])
    penalty = 1 + 4 / vector + abs(block - 256) / 1024 + (0.02 if config["keep_row"] else 0)
    return 2.0 + traffic(workload) / 4.2e6 * penalty


def measured(times_us: tuple[float, ...], *, stopped_early: bool = False) -> Measurement:
    return Measurement(times_us, 20, 4, stopped_early)


def make_trial(workload: Workload, config: Config, noise: random.Random) -> Trial:
    block, vector = config["block_size"], config["vector_bytes"]
    made = Trial("t0", workload, config, Status.CORRECT)
    if vector == 16 and block == 1024:
        reason = "spills 48 bytes a thread, and spills are forbidden"
        return replace(made, status=Status.RESOURCE_LIMIT, reason=reason)
    if vector == 2 and config["keep_row"]:
        reason = f"block_size % {block} == 0 is false for block_size={block}"
        return replace(made, status=Status.CONSTRAINT, reason=reason)
    center = model_us(workload, config)
    times = tuple(center * noise.uniform(0.995, 1.01) for _ in range(5))
    registers = 16 + int(vector) * 2
    return replace(
        made,
        resources=Resources(registers, static_shared_bytes=1024),
        occupancy=Occupancy(0.75, 6, "registers"),
        measurement=measured(times, stopped_early=vector == 2),
    )


def make_result(workload: Workload, speedup: float, half: float = 0.01) -> Result:
    best = Config.of({"block_size": 256, "vector_bytes": 16, "keep_row": False})
    tuned = model_us(workload, best)
    return Result(
        workload=workload,
        baseline_us=tuned * speedup,
        tuned_us=tuned,
        speedup=speedup,
        interval=(speedup - half, speedup + half),
        paired=True,
        roofline_share=traffic(workload) / 4.2e6 / tuned,
        config=best,
        resources=Resources(48, static_shared_bytes=1024),
        occupancy=Occupancy(0.75, 6, "registers"),
    )


def make_data() -> ReportData:
    noise = random.Random(1)  # noqa: S311
    tuned = [Workload.of({"T": t, "D": d}) for t in TOKENS for d in WIDTHS]
    held_out = [Workload.of({"T": t, "D": 4096}, held_out=True) for t in (3, 100, 3000)]
    configs = [
        Config.of({"block_size": block, "vector_bytes": vector, "keep_row": keep})
        for block in (64, 128, 256, 512, 1024)
        for vector in (2, 4, 8, 16)
        for keep in (False, True)
    ]
    records = []
    for workload in tuned:
        noise.shuffle(configs)
        records += [make_trial(workload, config, noise) for config in configs]
    results = tuple(make_result(w, 1.3 + 0.1 * (i % 5)) for i, w in enumerate(tuned))
    results += tuple(
        make_result(w, speedup) for w, speedup in zip(held_out, (1.4, 1.0, 1.2), strict=True)
    )
    workloads = (*tuned, *held_out)
    return ReportData(
        kernel="scale",
        device="NVIDIA H200",
        recorded=True,
        results=results,
        records=tuple((trial, 0.1 * index) for index, trial in enumerate(records)),
        comparisons=tuple(
            Comparison(r.workload, (r.variant,), ((r.baseline_us, r.tuned_us),) * 30)
            for r in results
        ),
        baselines_us={r.workload.key: r.baseline_us for r in results},
        baseline_source=BASELINE,
        tuned_sources={w.key: TUNED for w in workloads},
        streaming_gbps=4200.0,
        traffic_bytes={w.key: traffic(w) for w in workloads},
        environment={"driver": "580.95", "compiler": "NVRTC 13.3", "clock": "1980 MHz"},
        command="tune kernels/sglang/scale.cu --device recorded --seed 7",
        searcher="optuna",
        seed=7,
        seconds=41.3,
        measured_on="2026-11-20",
        session="sessions/scale-1",
    )


@pytest.fixture(scope="session")
def data() -> ReportData:
    return make_data()


@pytest.fixture(scope="session")
def with_rounds(tmp_path_factory: pytest.TempPathFactory) -> ReportData:
    """Six rounds with a model, read from a session."""
    folder = tmp_path_factory.mktemp("rounds") / "run"
    session_with_rounds(folder).close()
    return load(folder)
