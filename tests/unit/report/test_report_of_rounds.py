"""What `tuner.agent.rounds` itself writes becomes a report."""

from __future__ import annotations

from dataclasses import replace

from tests.support.agent_doubles import Tools
from tuner.agent.base import Answer
from tuner.agent.briefing import Briefer
from tuner.agent.rounds import Author
from tuner.agent.tree import Greedy
from tuner.analysis.base import Degree
from tuner.app.run import tune
from tuner.device.simulated import SimulatedDevice
from tuner.model.trial import INITIAL
from tuner.report.html import render_report
from tuner.report.loading import load
from tuner.session.events import Expectation, Idea

TEMPLATE = """
constexpr int kThreads = @{ threads }@;
extern "C" __global__ void scale(float* out, const float* in, int N) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i < N) out[i] = in[i] + in[i];
}
"""
SPACE = """
parameters: {threads: [64, 128]}
constraints: []
default: {threads: 128}
launch: [{kernel: scale, grid: ["ceil_div(N, threads)"], block: [threads]}]
"""


class Adding:
    """An agent that writes one good template, after one that does not compile."""

    name = "adding"

    def converse(self, briefing, toolbox, transcript):
        return self

    def plan(self):
        return Idea(INITIAL, "adding is cheap", "add", (Expectation("time_us", 0.5),))

    def refactor(self):
        return Answer(TEMPLATE.replace("+ in[i]", "+ in[i"), SPACE)

    def repair(self, problem):
        return Answer(TEMPLATE, SPACE)


def test_a_session_that_the_rounds_wrote_has_a_report(make_plan, make_session, compiler, listener):
    plan = replace(make_plan(), rounds=1)
    device = SimulatedDevice(lambda program: 10.0 + program.launches[0].threads / 64)

    def author(session, candidates):
        briefer = Briefer(plan, session, candidates, device.info, Degree.STATIC)
        return Author(Adding(), Greedy(), briefer.of, lambda *_: Tools(), None, verifies=True)

    with make_session(plan) as session:
        tune(
            plan,
            session=session,
            device=device,
            compiler=compiler,
            listener=listener,
            author=author,
        )
        folder = session.directory

    data = load(folder)

    (one,) = data.rounds
    assert (one.end, one.record.candidate, len(one.record.problems)) == ("searched", "r1", 1)
    assert data.searched == (INITIAL, "r1")
    assert data.candidates[1].speedup == one.speedup
    html = render_report(data)
    assert "1 answer refused" in html
    assert "The tree of candidates" in html
