"""The agent at a seat: what it asks, what it takes, and what a resumed round hears again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from concurrent.futures import Future as Task
from typing import Any

import pytest
from agent_doubles import Kept, Tools, briefing, plan

from tuner.extensions.agents.base import AgentAnswer, Briefing
from tuner.extensions.agents.mcp_agent import (
    FinishedError,
    Handoff,
    HandoffQuestion,
    McpAgent,
    McpRound,
    Submission,
)
from tuner.model.errors import InputError, SessionError
from tuner.session.events import Idea

WAIT_S = 10.0
GOOD = AgentAnswer("__global__ void f() {}", "version: 1")


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


class Table:
    """A seat with one round at it: the run's side is called in a thread, as it is in earnest."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self.threads = threads
        self.seat = Handoff()
        self.transcript = Kept()
        self.tools = Tools("compile", "measure")
        self.round = self.opened(briefing())

    def opened(self, asked: Briefing, recap: Callable[[int], str] | None = None) -> McpRound:
        made = McpAgent(self.seat, recap).converse(asked, self.tools, self.transcript)
        assert isinstance(made, McpRound)
        return made

    def run(self, step: Callable[..., Any], *arguments: object) -> Task[Any]:
        """Let the run take a step, and wait until it asks or is done with it."""
        turn = self.seat.turn
        task = self.threads.submit(step, *arguments)
        task.add_done_callback(lambda done: done.exception() and self.seat.close())
        assert self.seat.wait(turn, WAIT_S)
        return task

    def submit(self, answer: AgentAnswer = GOOD, plan: str = "{}") -> None:
        self.seat.submit(Submission(plan, answer))

    def refused(self, answer: AgentAnswer = GOOD, plan: str = "{}") -> str:
        turn = self.seat.submit(Submission(plan, answer))
        assert self.seat.wait(turn, WAIT_S)
        return self.question.problem

    @property
    def question(self) -> HandoffQuestion:
        assert self.seat.question is not None
        return self.seat.question


@pytest.fixture
def table(threads: ThreadPoolExecutor) -> Iterator[Table]:
    made = Table(threads)
    yield made
    made.seat.stop()


def test_one_submission_is_the_plan_and_the_answer(table: Table) -> None:
    task = table.run(table.round.plan)
    assert "the findings" in table.question.text
    assert "the task" in table.question.rules
    table.submit(plan=plan())
    idea: Idea = task.result(WAIT_S)
    assert (idea.base, idea.change) == ("c0", "load 16 bytes a thread")
    assert table.round.refactor() == GOOD
    assert [entry["type"] for entry in table.transcript.entries] == ["message", "plan", "answer"]


def test_nothing_is_asked_while_the_run_works(table: Table) -> None:
    task = table.run(table.round.plan)
    table.submit(plan=plan())
    task.result(WAIT_S)
    assert table.seat.question is None
    with pytest.raises(InputError, match="nothing is asked now"):
        table.submit(plan=plan())
    with pytest.raises(InputError, match="`compile` is a tool of a round, and no round is open"):
        table.seat.call("compile", {})


@pytest.mark.parametrize(
    ("answer", "written", "problem"),
    [
        (GOOD, "{}", "the key `hypothesis` is missing"),
        (GOOD, plan(base="c7"), "this round builds on 'c0'"),
        (GOOD, plan(expectations=[{"metric": "speed", "factor": 2}]), "metric` is 'speed'"),
        (AgentAnswer("// ... rest unchanged", "x"), plan(), "line 1 of the template stands for"),
        (AgentAnswer("x", "a: 1\n# as before ..."), plan(), "line 2 of the space stands for"),
    ],
)
def test_what_cannot_be_read_goes_back_at_once_and_counts_for_no_answer(
    table: Table, answer: AgentAnswer, written: str, problem: str
) -> None:
    task = table.run(table.round.plan)
    assert problem in table.refused(answer, written)
    assert table.question.refusals == 0
    table.submit(plan=plan())
    assert task.result(WAIT_S) is not None
    (kept,) = table.transcript.of("refused")
    assert problem in kept["problem"]


def test_a_repair_is_asked_with_its_problem_and_needs_no_plan(table: Table) -> None:
    planned(table)
    task = table.run(table.round.repair, "it does not compile")
    asked = table.question
    assert (asked.problem, asked.refusals, asked.planned) == ("it does not compile", 1, True)
    better = AgentAnswer("__global__ void g() {}", "version: 1")
    table.submit(better)
    assert task.result(WAIT_S) == better


def test_a_repair_may_repeat_the_plan_and_may_not_change_it(table: Table) -> None:
    planned(table)
    task = table.run(table.round.repair, "it does not compile")
    assert "the plan of round 1 is settled" in table.refused(plan=plan(change="another"))
    table.submit(plan=plan())
    assert task.result(WAIT_S) == GOOD


def test_tools_run_in_the_run_s_own_thread_and_are_kept_as_messages(table: Table) -> None:
    task = table.run(table.round.plan)
    first, second = (table.seat.call(name, {"block": 64}) for name in ("compile", "measure"))
    assert first.result.result(WAIT_S) == "compile {'block': 64}"
    assert second.result.result(WAIT_S) == "measure {'block': 64}"
    assert table.tools.called == [("compile", {"block": 64}), ("measure", {"block": 64})]
    table.submit(plan=plan())
    task.result(WAIT_S)
    asked, answered = (entry["message"] for entry in table.transcript.of("message")[1:3])
    (call,) = asked["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"block": 64}
    assert (answered["tool_call_id"], answered["content"]) == (call["id"], "compile {'block': 64}")


def test_a_tool_that_ends_the_program_ends_the_run_and_tells_the_client(table: Table) -> None:
    def broken(name: str, given: Mapping[str, Any]) -> str:
        raise SessionError("the disk is full")

    table.tools.answer = broken
    task = table.run(table.round.plan)
    call = table.seat.call("compile", {})
    for waiting in (call.result, task):
        with pytest.raises(SessionError, match="the disk is full"):
            waiting.result(WAIT_S)


def test_a_run_that_is_over_cancels_the_calls_that_wait(table: Table) -> None:
    table.seat.ask(HandoffQuestion(1, "", ""))
    call = table.seat.call("compile", {})
    table.seat.close()
    with pytest.raises(CancelledError):
        call.result.result(WAIT_S)
    with pytest.raises(InputError, match="the run is over"):
        table.submit()


def test_a_client_that_has_finished_is_asked_for_no_plan(table: Table) -> None:
    task = table.run(table.round.plan)
    table.seat.finish()
    assert task.result(WAIT_S) is None
    assert table.opened(briefing(round=2)).plan() is None
    with pytest.raises(InputError, match="the rounds are over"):
        table.submit(plan=plan())


def test_a_round_that_is_finished_in_its_middle_stays_open(table: Table) -> None:
    planned(table)
    task = table.run(table.round.repair, "it does not compile")
    table.seat.finish()
    with pytest.raises(FinishedError, match="round 1 was ended"):
        task.result(WAIT_S)


def test_a_run_that_is_stopped_is_interrupted_where_it_waits(table: Table) -> None:
    task = table.threads.submit(table.round.plan)
    table.seat.stop()
    with pytest.raises(KeyboardInterrupt):
        task.result(WAIT_S)


def test_a_resumed_round_hears_its_submissions_again_and_asks_for_what_is_missing(
    table: Table,
) -> None:
    planned(table)
    table.run(table.round.repair, "it does not compile")
    table.seat.call("compile", {}).result.result(WAIT_S)
    kept = table.transcript.entries
    table.seat.stop()

    again = Table(table.threads)
    again.transcript = Kept(kept)
    again.round = again.opened(briefing())
    assert again.round.plan() == table.round._idea
    assert again.round.refactor() == GOOD
    task = again.run(again.round.repair, "it does not compile")
    assert again.question.problem == "it does not compile"
    again.submit()
    assert task.result(WAIT_S) == GOOD
    # What was said then is not said twice, and tool calls are numbered on.
    assert [entry["type"] for entry in again.transcript.entries] == ["answer"]


def test_a_plan_that_was_kept_without_its_answer_is_settled(table: Table) -> None:
    table.transcript.earlier = [
        {"type": "message", "message": {"role": "user", "content": "what was asked"}},
        {"type": "plan", "text": plan()},
    ]
    assert table.round.plan() is not None
    task = table.run(table.round.refactor)
    assert table.question.planned
    table.submit()
    assert task.result(WAIT_S) == GOOD


def planned(table: Table) -> None:
    """Bring the round to where its first answer was given."""
    task = table.run(table.round.plan)
    table.submit(plan=plan())
    task.result(WAIT_S)
    table.round.refactor()
