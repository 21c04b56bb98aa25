"""The agent that is the client of a server: what it submits answers what the run asks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from tuner.agent.base import Answer, Briefing, Conversation, Idea, Toolbox, Transcript
from tuner.agent.handoff import Call, Handoff, Question, Submission
from tuner.agent.prompts import prompt
from tuner.agent.replies import MOST_EXPECTATIONS, read_plan, require_whole
from tuner.analysis.base import METRICS
from tuner.model.errors import AgentError, ReplyError

NAME = "mcp"


class FinishedError(AgentError):
    """Report that no more was wanted in the middle of a round, which so stays open."""


class McpAgent:
    """Ask at a seat and wait there for the answers of whoever has taken it.

    `recap` tells what came of a round that is over; it may be set once there is a session to tell
    it from.
    """

    name = NAME

    def __init__(self, seat: Handoff, recap: Callable[[int], str] | None = None) -> None:
        self._seat = seat
        self.recap = recap

    def converse(
        self, briefing: Briefing, toolbox: Toolbox, transcript: Transcript
    ) -> Conversation:
        """Open the conversation of one round; nothing is asked before `plan`."""
        before = briefing.round - 1
        recap = self.recap(before) if self.recap and before else ""
        return McpRound(self._seat, briefing, toolbox, transcript, recap)


class McpRound:
    """One round at a seat: a submission holds the plan, the template and the space at once.

    A submission whose plan cannot be read, or that leaves text out, goes back at once and counts
    for no answer.
    """

    def __init__(
        self,
        seat: Handoff,
        briefing: Briefing,
        toolbox: Toolbox,
        transcript: Transcript,
        recap: str,
    ) -> None:
        self._seat, self._briefing = seat, briefing
        self._toolbox, self._transcript, self._recap = toolbox, transcript, recap
        self._rules = _rules(briefing)
        self._text = _text(briefing)
        self._idea: Idea | None = None
        self._answer: Answer | None = None
        self._said = ""
        self._calls = self._refusals = 0

    def plan(self) -> Idea | None:
        """Ask, and wait for the submission whose plan this is; None where no more are wanted."""
        earlier = self._heard("plan")
        if earlier is not None:
            self._idea = read_plan(earlier["text"], self._briefing)
            return self._idea
        self._say(f"{self._rules}\n\n{self._text}")
        submission = self._submission()
        if submission is None:
            return None
        self._keep("plan", text=submission.plan)
        self._answer = submission.answer
        return self._idea

    def refactor(self) -> Answer:
        """Give the template and the space that came with the plan."""
        if self._answer is not None:
            answer, self._answer = self._answer, None
            self._keep_answer(answer)
            return answer
        return self._earlier_answer() or self._next_answer("")

    def repair(self, problem: str) -> Answer:
        """Tell what was wrong, and wait for another template and space."""
        self._refusals += 1
        earlier = self._earlier_answer()
        if earlier is not None:
            return earlier
        self._say(problem)
        return self._next_answer(problem)

    def _next_answer(self, problem: str) -> Answer:
        submission = self._submission(problem)
        if submission is None:
            raise FinishedError(f"round {self._briefing.round} was ended before it had an answer")
        self._keep_answer(submission.answer)
        return submission.answer

    def _submission(self, problem: str = "") -> Submission | None:
        """Ask until a submission can be read; tools are run in between."""
        while True:
            self._seat.ask(self._question(problem))
            while isinstance(taken := self._seat.take(), Call):
                self._run(taken)
            if taken is None:
                return None
            try:
                self._read(taken)
            except ReplyError as error:
                problem = str(error)
                self._keep("refused", plan=taken.plan, problem=problem, **_json(taken.answer))
            else:
                return taken

    def _question(self, problem: str) -> Question:
        return Question(
            round=self._briefing.round,
            rules=self._rules,
            text=self._text,
            tools=tuple(self._toolbox.tools()),
            recap=self._recap,
            planned=self._idea is not None,
            problem=problem,
            refusals=self._refusals,
        )

    def _read(self, submission: Submission) -> None:
        """Settle the plan; raise `ReplyError` for what cannot be read."""
        for kind, text in _json(submission.answer).items():
            require_whole(text, kind)
        if self._idea is None:
            self._idea = read_plan(submission.plan, self._briefing)
        elif json.loads(submission.plan) and read_plan(submission.plan, self._briefing) != (
            self._idea
        ):
            raise ReplyError(
                f"the plan of round {self._briefing.round} is settled; submit a template and a "
                "space for it, without a plan"
            )

    def _run(self, call: Call) -> None:
        if not call.result.set_running_or_notify_cancel():
            return
        try:
            text = self._toolbox.call(call.name, call.arguments)
        except BaseException as error:
            call.result.set_exception(error)
            raise
        self._calls += 1
        number = f"call-{self._calls}"
        written = {"name": call.name, "arguments": json.dumps(call.arguments)}
        asked = {"id": number, "type": "function", "function": written}
        self._keep("message", message={"role": "assistant", "content": "", "tool_calls": [asked]})
        answered = {"role": "tool", "tool_call_id": number, "name": call.name, "content": text}
        self._keep("message", message=answered)
        call.result.set_result(text)

    def _heard(self, kind: str) -> Mapping[str, Any] | None:
        """Take the next entry of a kind that an earlier run kept, past what was said before it."""
        while (entry := self._transcript.again()) is not None:
            if entry["type"] == kind:
                return entry
            message = entry.get("message", {})
            if message.get("role") == "user":
                self._said = message["content"]
            self._calls += message.get("role") == "tool"
        return None

    def _earlier_answer(self) -> Answer | None:
        kept = self._heard("answer")
        return Answer(kept["template"], kept["space"]) if kept else None

    def _say(self, text: str) -> None:
        if text != self._said:
            self._keep("message", message={"role": "user", "content": text})
            self._said = text

    def _keep_answer(self, answer: Answer) -> None:
        self._keep("answer", **_json(answer))

    def _keep(self, kind: str, **content: Any) -> None:
        self._transcript.keep({"type": kind, **content})


def _json(answer: Answer) -> dict[str, str]:
    return {"template": answer.template, "space": answer.space}


def _rules(briefing: Briefing) -> str:
    return prompt(
        "served",
        stable=briefing.stable,
        most_expectations=MOST_EXPECTATIONS,
        metrics=[
            (name, f"{meaning}, in {unit}" if unit else meaning)
            for name, (unit, meaning) in METRICS.items()
        ],
    )


def _text(briefing: Briefing) -> str:
    return prompt(
        "served_round",
        current=briefing.current,
        round=briefing.round,
        base=briefing.base,
        population=", ".join(member.name for member in briefing.population),
    )
