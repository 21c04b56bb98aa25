"""Rounds with an agent: what it reads, what is refused, what is kept, and where a run goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from tests.support.simulated_device import SimulatedDevice
from tuner.analysis.base import Degree
from tuner.app.run import tune
from tuner.device.base import Outcome
from tuner.extensions.agents.base import AgentAnswer
from tuner.extensions.agents.briefing import Briefer
from tuner.extensions.agents.history import tree_of
from tuner.extensions.agents.open_agents import rounds_by
from tuner.extensions.agents.rounds import Author
from tuner.extensions.agents.tree import Greedy
from tuner.model.errors import AgentError, AwaitedError, BudgetError, OutOfMemory, ReplyError
from tuner.model.trial import INITIAL, Status
from tuner.session.events import Expectation, Idea, RoundRefused
from tuner.session.rounds import history

FASTER = """
constexpr int kThreads = @{ threads }@;
extern "C" __global__ void scale(float* out, const float* in, int N) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i < N) out[i] = in[i] + in[i];
}
"""
SPACE = """
parameters: {threads: [64, 128, 256]}
constraints: []
default: {threads: 128}
launch: [{kernel: scale, grid: ["ceil_div(N, threads)"], block: [threads]}]
"""
GOOD = AgentAnswer(FASTER, SPACE)
# However slow they are.
ALL_COMPARED = {"finalists": 30, "variants_within": 9.0}


class NoTools:
    """A toolbox without tools."""

    def tools(self):
        return ()

    def call(self, name, arguments):
        raise AssertionError(name)


@dataclass
class Scripted:
    """An agent that says what it was told to say, and remembers what it read."""

    rounds: list[list[object]]
    name: str = "scripted"
    briefings: list[object] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def converse(self, briefing, toolbox, transcript):
        self.briefings.append(briefing)
        steps = iter(self.rounds[briefing.round - 1])
        agent = self

        class Conversation:
            def plan(self):
                return take(steps)

            refactor = plan

            def tell(self, text):
                agent.told.append(text)

            def repair(self, problem):
                agent.problems.append(problem)
                return take(steps)

        return Conversation()


def take(steps):
    step = next(steps)
    if isinstance(step, BaseException):
        raise step
    return step


def idea(base=INITIAL, **changes) -> Idea:
    return Idea(base, "adding is cheap", "add instead of multiplying", **changes)


@pytest.fixture
def run(make_plan, make_session, compiler, listener):
    def start(agent, rounds=1, device=None, name="session", **changes):
        plan = make_plan(rounds=rounds, **changes)
        device = device or SimulatedDevice(lambda program: 10.0 + program.launches[0].threads / 64)

        def author(session, candidates):
            briefer = Briefer(plan, session, candidates, device.info, Degree.STATIC)
            return Author(agent, Greedy(), briefer.of, lambda *_: NoTools(), None, verifies=True)

        with make_session(plan, name) as session:
            try:
                doers = {"device": device, "compiler": compiler, "listener": listener}
                return session, tune(plan, session=session, run_rounds=rounds_by(author), **doers)
            except AgentError as error:
                return session, error

    return start


def test_a_good_answer_becomes_a_candidate_that_is_searched_and_compared(run):
    expected = idea(expectations=(Expectation("time_us", 0.9), Expectation("registers", 0.5)))
    session, results = run(Scripted([[expected, GOOD]]))
    assert [one.name for one in session.candidates()] == [INITIAL, "r1"]
    assert session.candidates()[1].parent == INITIAL
    assert len(session.trials("r1")) == 6, "three configs on two workloads"
    (record,) = history(session)
    assert record.candidate == "r1"
    assert record.outcome.over_base == pytest.approx(10.5 / 11.0)
    assert [one.actual for one in record.outcome.moved] == [pytest.approx(11.0 / 10.5), None]
    assert record.outcome.default_us == {"N=1000": 12.0, "N=100000": 12.0}
    assert {result.candidate for result in results} == {INITIAL}, "the fastest of both wins"


FAST = AgentAnswer(FASTER, SPACE.replace("default: {threads: 128}", "default: {threads: 64}"))
SLOW = AgentAnswer(FASTER, SPACE.replace("default: {threads: 128}", "default: {threads: 256}"))


class Steep(SimulatedDevice):
    """Half the threads, half the time, down to 64; counts how often it verifies."""

    def __init__(self) -> None:
        super().__init__(lambda program: max(program.launches[0].threads, 64) / 8)
        self.verified = 0

    def verify(self, program):
        self.verified += 1
        return super().verify(program)


def test_an_answer_whose_default_is_far_slower_is_timed_and_told_and_that_is_all(run):
    agent, device = Scripted([[idea(), SLOW], [None]]), Steep()
    session, results = run(agent, rounds=2, device=device)
    assert results, "no failure: it was answered"
    assert [one.name for one in session.candidates()] == [INITIAL]
    (record,) = history(session)
    assert (record.candidate, record.failed) == (None, True)
    assert (record.timed.workload, record.timed.factor) == ("N=100000", 4.0)
    said = "its default config took 32.00 us on N=100000, x4.00 the 8.000 of its base's best"
    assert agent.told == [f"{said}: not searched, for its plan does not `insist`"]
    assert f"not searched: {said}" in agent.briefings[1].current
    assert device.verified == 0
    assert tree_of(session)[INITIAL].failures == 1
    again, _ = run(Scripted([[], [None]]), rounds=2, device=Steep())
    assert len(history(again)) == 1


def test_a_plan_that_insists_has_a_slow_default_searched(run):
    agent, device = Scripted([[idea(insist=True), SLOW]]), Steep()
    session, _ = run(agent, device=device)
    (record,) = history(session)
    assert record.candidate == "r1"
    assert record.outcome.over_base == pytest.approx(1.0), "the search found what is fast"
    assert "checked and searched" in agent.told[0]


def part(*steps):
    """Give one of several answers: an idea, then an answer, or errors."""
    agent = Scripted([list(steps)])
    conversation = agent.converse(SimpleNamespace(round=1), None, None)
    conversation.agent = agent
    return conversation


def test_several_answers_are_checked_each_and_searched_with_the_trials_of_one(run):
    several = {
        "a": part(idea(), FAST),
        "b": part(idea(), AgentAnswer(BROKEN.template, FAST.space)),
        "c": part(ReplyError("the plan is no JSON")),
        "d": part(idea(), SLOW),
        "e": part(idea(), AgentAnswer(FASTER.replace("in[i] + in[i]", "2.0f * in[i]"), FAST.space)),
    }
    agent = Scripted([[several], [None]])
    session, results = run(agent, rounds=2, device=Steep(), trials=4)
    assert results
    assert [one.name for one in session.candidates()] == [INITIAL, "r1a", "r1e"]
    assert {len(session.trials(name)) for name in ("r1a", "r1e")} == {4}, "two on each workload"
    assert [record.label for record in history(session)] == ["1a", "1b", "1c", "1d", "1e"]
    assert "template.cu.j2:5: error" in several["b"].agent.told[-1]
    assert several["c"].agent.told == ["refused: the plan is no JSON"]
    assert [one.name for one in agent.briefings[1].population] == [INITIAL, "r1a", "r1e"]
    for label in ("1a -> r1a", "1b failed", "1c failed", "1d failed", "1e -> r1e"):
        assert f"- round {label}" in agent.briefings[1].current
    again, _ = run(Scripted([[], [None]]), rounds=2, device=Steep(), trials=4)
    assert len(history(again)) == 5


def test_a_run_that_stopped_between_several_answers_goes_on_with_the_rest(run):
    stopped = part(idea(), KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run(Scripted([[{"a": part(idea(), GOOD), "b": stopped}]]))
    other = template("in[i] + in[i]", "2.0f * in[i]")
    parts = {"a": part(idea()), "b": part(idea(), other)}
    session, results = run(Scripted([[parts]]))
    assert results
    assert [record.candidate for record in history(session)] == ["r1a", "r1b"]


def test_the_next_round_reads_what_came_of_the_last(run):
    agent = Scripted([[idea(), GOOD], [None]])
    run(agent, rounds=2)
    second = agent.briefings[1].current
    assert "add instead of multiplying" in second
    assert [member.name for member in agent.briefings[1].population] == [INITIAL, "r1"]


def template(old: str, new: str) -> AgentAnswer:
    return AgentAnswer(FASTER.replace(old, new), SPACE)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (template("+ in[i]", "+ in[i"), "template.cu.j2:5: error"),
        (template("in[i] + in[i]", "3 * in[i]"), "incorrect"),
        (template("@{ threads }@", "@{ other }@"), "template.cu.j2:2: `other` is not declared"),
        (SPACE + "workloads: {tuned: [{N: 1000}]}", "`workloads` has been changed"),
        (SPACE + "tolerance: {out: {relative: 0.1}}", "`tolerance` has been changed"),
        (SPACE + "reference: other.py", "`reference` has been changed"),
        (
            SPACE + "arguments: [{name: half, dtype: float32, shape: [N], role: output}]",
            "`arguments` has been changed",
        ),
        (SPACE.replace("[]", '["N > 1000"]'), "the workload N=1000 breaks the constraint"),
        (
            SPACE.replace("[]", '["N in (1000, 100000) or threads < 0"]'),
            "no config satisfies `N in (1000, 100000) or threads < 0` for workload N=3000",
        ),
        ("default: {}", "`parameters` is missing"),
    ],
)
def test_what_is_wrong_is_told_in_the_lines_of_the_answer_and_can_be_repaired(run, answer, said):
    wrong = answer if isinstance(answer, AgentAnswer) else AgentAnswer(FASTER, answer)
    agent = Scripted([[idea(), wrong, GOOD]])
    session, _ = run(agent, device=WrongDevice())
    (problem,) = agent.problems
    assert said in problem
    assert str(session.directory) not in problem
    (record,) = history(session)
    assert record.candidate == "r1"
    assert record.problems == (problem,)


class WrongDevice(SimulatedDevice):
    """Find every kernel wrong that multiplies by three."""

    def __init__(self) -> None:
        super().__init__(lambda program: 10.0 + program.launches[0].threads / 64)

    def verify(self, program):
        three = b"\x00\x00\x40\x40"  # 3.0f as the machine code holds it
        if three in program.cubin:
            return Outcome(Status.INCORRECT, "out[0] is 3, expected 2")
        return super().verify(program)


BROKEN = template("+ in[i]", "+ in[i")


def test_after_three_repairs_the_round_is_given_up(run):
    agent = Scripted([[idea(), BROKEN, BROKEN, ReplyError("no block"), BROKEN]])
    session, error = run(agent)
    assert isinstance(error, AgentError)
    assert error.exit_code == 4
    assert "wrote no valid template in 1 rounds" in str(error)
    (record,) = history(session)
    assert record.candidate is None
    assert len(record.problems) == 4
    assert session.results(), "the best so far is reported"
    assert tree_of(session)[INITIAL].failures == 1


def test_a_round_without_a_plan_fails_and_the_next_goes_on(run):
    agent = Scripted([[ReplyError("the plan is no JSON")], [idea(), GOOD]])
    session, results = run(agent, rounds=2)
    assert [record.candidate for record in history(session)] == [None, "r2"]
    assert results


def test_an_agent_that_cannot_go_on_ends_the_rounds_with_the_best_so_far(run):
    agent = Scripted([[idea(), GOOD], [AgentError("the server is gone")]])
    session, error = run(agent, rounds=3)
    assert isinstance(error, AgentError)
    assert {result.workload.key for result in session.results()} >= {"N=1000", "N=100000"}
    assert session.state == "interrupted"


def test_a_budget_that_ends_after_a_candidate_is_no_failure(run):
    spent = BudgetError("the budget of 10 tokens is used up")
    _, results = run(Scripted([[idea(), GOOD], [spent]]), rounds=2)
    assert results
    _, error = run(Scripted([[spent]]), rounds=1, name="other")
    assert isinstance(error, BudgetError)


def test_a_run_goes_on_in_the_round_where_it_stopped(run, listener):
    first = Scripted([[idea(), GOOD], [AwaitedError("no answer yet")]])
    session, error = run(first, rounds=3)
    assert isinstance(error, AwaitedError)
    assert not session.results(), "the finals wait for the answer"
    trials = session.trials("r1")
    second = Scripted([[], [idea("r1"), GOOD], [None]])
    session, _ = run(second, rounds=3)
    assert [briefing.round for briefing in second.briefings] == [2, 3]
    assert session.trials("r1") == trials
    assert session.candidates()[2].parent == "r1"


def test_results_are_decided_again_when_a_candidate_comes_after_them(run):
    run(Scripted([[AgentError("gone")]]))
    session, results = run(Scripted([[idea(), GOOD]]), **ALL_COMPARED)
    assert len(results) == 3
    finalists = {one.candidate for made in session.comparisons() for one in made.finalists}
    assert finalists == {INITIAL, "r1"}


def test_a_template_that_fails_in_the_search_alone_ends_its_round_only(run):
    # The gate tries both ends, the default and a few at random: 224 is none of them.
    odd = FASTER.replace("threadIdx.x;", "threadIdx.x + @{ 0 // (threads - 224) }@;")
    values = ", ".join(map(str, range(32, 416, 32)))
    answer = AgentAnswer(odd, SPACE.replace("64, 128, 256", values))
    session, error = run(Scripted([[idea(), answer]]))
    (record,) = history(session)
    assert record.candidate is None
    assert "template.cu.j2:4: does not render" in record.problems[-1]
    assert isinstance(error, AgentError)
    assert session.results(), "the initial candidate serves"


class Interrupted(SimulatedDevice):
    """Stop the run as Ctrl-C does at the second trial after the gate."""

    def __init__(self) -> None:
        super().__init__(lambda program: 10.0 + program.launches[0].threads / 64)
        self.gated, self.trials = False, 0

    def verify(self, program):
        outcome = super().verify(program)
        self.gated, self.trials = True, 0
        return outcome

    def run(self, program, **options):
        self.trials += self.gated
        if self.trials > 1:
            raise KeyboardInterrupt
        return super().run(program, **options)


def test_a_candidate_whose_search_was_interrupted_is_searched_on_without_asking_again(run):
    with pytest.raises(KeyboardInterrupt):
        run(Scripted([[idea(), GOOD]]), device=Interrupted())
    silent = Scripted([])
    session, results = run(silent)
    assert silent.briefings == []
    (record,) = history(session)
    assert (record.candidate, record.idea.change) == ("r1", idea().change)
    assert len(session.trials("r1")) == 6
    assert results


class Narrow(SimulatedDevice):
    """Has no memory for trials on one workload, nor for verifying what an agent wrote there."""

    def __init__(self, too_large: str = "") -> None:
        super().__init__(lambda program: 10.0 + program.launches[0].threads / 64)
        self.too_large = too_large

    def run(self, program, *, full_verification=False, **options):
        if program.workload.key == self.too_large and not full_verification:
            raise OutOfMemory("no room", self.too_large)
        return super().run(program, full_verification=full_verification, **options)


def test_candidates_are_searched_later_where_memory_ended(run):
    steps = [[idea(), GOOD]]
    session, _ = run(Scripted(steps), device=Narrow("N=100000"), **ALL_COMPARED)
    decided = {one.workload.key for one in session.results()}
    assert decided == {"N=1000", "N=3000"}
    assert len(session.trials("r1")) == 3
    (record,) = (one for one in history(session) if one.candidate)
    assert record.candidate == "r1"
    silent = Scripted([])
    session, results = run(silent, device=Narrow(), **ALL_COMPARED)
    assert silent.briefings == []
    assert len(session.trials("r1")) == 6
    assert len(results) == 3
    large = (one for one in session.comparisons() if one.workload.key == "N=100000")
    assert {one.candidate for one in next(large).finalists} == {INITIAL, "r1"}


def test_a_candidate_that_renders_no_more_once_memory_is_back_ends_its_round_alone(run):
    # The gate tries both ends, the default and a few at random: 288 is none of them.
    values = ", ".join(map(str, range(32, 416, 32)))
    odd = "threadIdx.x + @{ 0 // (abs(threads - 288) + abs(N - 100000)) }@;"
    answer = AgentAnswer(FASTER.replace("threadIdx.x;", odd), SPACE.replace("64, 128, 256", values))
    session, _ = run(Scripted([[idea(), answer]]), device=Narrow("N=100000"))
    assert not session.events(RoundRefused)
    for _ in range(2):
        session, results = run(Scripted([]), device=Narrow())
        assert len(results) == 3
        (refused,) = session.events(RoundRefused)
        assert refused.candidate == "r1"
        assert "does not render" in refused.problems[0]


@pytest.mark.parametrize("size", [3000, 7], ids=["held out", "edge_cases"])
def test_a_winner_that_fails_on_a_workload_of_nobody_is_left_out(run, project, size):
    path = project / "scale.yaml"
    path.write_text(path.read_text().replace("3000}]", "3000}], edge_cases: [{N: 7}]"))
    # The gate tries both ends, the default and a few at random: 224 is none of them.
    values = ", ".join(map(str, range(32, 416, 32)))
    odd = f"threadIdx.x + @{{ 0 // (abs(threads - 224) + abs(N - {size})) }}@;"
    answer = AgentAnswer(FASTER.replace("threadIdx.x;", odd), SPACE.replace("64, 128, 256", values))
    best = SimulatedDevice(lambda program: 5.0 + abs(program.launches[0].threads - 224))
    session, results = run(Scripted([[idea(insist=True), answer]]), device=best)
    assert len(results) == 3
    assert all(result.config["threads"] != 224 for result in results if result.candidate == "r1")
    (check,) = [check for check in session.checks() if check.passed is False]
    assert check.workload.key == f"N={size}"
    assert "does not render" in check.reason
