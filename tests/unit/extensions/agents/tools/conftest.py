"""A workbench for the small kernel of the tests, on a simulated device or on the CPU."""

from __future__ import annotations

from textwrap import dedent

import pytest

from tests.support.simulated_device import SimulatedDevice
from tuner.extensions.agents.profiling import Profiler, Profiling
from tuner.extensions.agents.tools.tool_session import ToolSession
from tuner.model.trial import INITIAL
from tuner.tuning.evaluator import Candidates

# Bare, as an agent writes it: two values of a parameter, and twice the work of a thread.
DRAFT = """
constexpr int kBlock = @{ block }@;
extern "C" __global__ void scale(float* out, const float* in, int N) {
  const int i = blockIdx.x * kBlock + threadIdx.x;
  if (i < N) out[i] = @{ factor }@ * in[i];
}
"""
DRAFT_SPACE = """
parameters:
  block: [64, 128]
  factor: [2.0f, 3.0f]
default: {block: 64, factor: 2.0f}
launch: [{kernel: scale, grid: ["ceil_div(N, block)"], block: [block]}]
"""


@pytest.fixture
def draft() -> dict[str, str]:
    """A draft that is right with one of its factors."""
    return {"template": dedent(DRAFT).lstrip(), "space": dedent(DRAFT_SPACE).lstrip()}


@pytest.fixture
def make_bench(make_plan, make_session, compiler):
    """Make a workbench whose session has the first candidate and the baselines' times."""
    opened = []

    def make(answer=None, *, device=None, own_compiler=None, sources=(), **options) -> ToolSession:
        plan = make_plan()
        session = make_session(plan, f"session-{len(opened)}")
        opened.append(session)
        device = device or SimulatedDevice(answer or (lambda program: 10.0))
        candidates = Candidates(plan, own_compiler or compiler, device)
        session.add_candidate(INITIAL, plan.template.text, plan.spec.path.read_text())
        for workload in plan.config.workloads:
            trial = candidates.evaluator(INITIAL).baseline(workload)
            session.record_baseline(workload, trial.measurement)
        profiling = Profiling(Profiler(device.info), candidates.of, timed=True)
        options = {"info": device.info, **options}
        return ToolSession(plan, session, candidates, profiling, sources, **options)

    yield make
    for session in opened:
        session.close()


@pytest.fixture
def make_tools(make_bench):
    """Open the tools of round 1 on the first candidate."""
    return lambda *arguments, **options: make_bench(*arguments, **options).open_round(1, None)
