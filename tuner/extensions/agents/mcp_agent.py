"""The agent that is the client of a server: what it submits answers what the run asks."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from threading import Condition
from typing import Any

from tuner.extensions.agents.base import AgentAnswer, Briefing, Conversation, Toolbox, Transcript
from tuner.extensions.agents.prompts import prompt
from tuner.extensions.agents.replies import MEANINGS, MOST_EXPECTATIONS, read_plan, require_whole
from tuner.model.errors import AgentError, InputError, ReplyError
from tuner.session.events import Idea, Tool


@dataclass(frozen=True, slots=True)
class Submission:
    """What answers a question: the plan as a JSON object, `{}` for none, and what was written."""

    plan: str
    answer: AgentAnswer


@dataclass(frozen=True, slots=True)
class HandoffQuestion:
    """What the run waits for: the plan, template and space of a round.

    `rules` are the same in every round, `text` is this round's. With a `problem` the last answer
    was refused for it, `refusals` of the round's answers so far. `planned` says that the plan is
    settled. `recap` tells what came of the round before.
    """

    round: int
    rules: str
    text: str
    tools: Sequence[Tool] = ()
    recap: str = ""
    planned: bool = False
    problem: str = ""
    refusals: int = 0


@dataclass(slots=True, eq=False)
class ClientCall:
    """A tool call of the client's; the thread that runs it sets its result.

    `waiting` is how many requests wait for it.
    """

    name: str
    arguments: Mapping[str, Any]
    result: Future[str] = field(default_factory=Future)
    waiting: int = 0

    @property
    def key(self) -> str:
        return json.dumps([self.name, self.arguments], sort_keys=True)


class Handoff:
    """Pass questions one way, and submissions and tool calls the other.

    The run asks, then takes what comes until it is a submission; all that touches the session or
    the device so happens in the run's own thread. The attributes are for reading.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        # What is asked; None while the run works, and when it is over.
        self.question: HandoffQuestion | None = None
        # The tools of the last question; None before the first.
        self.tools: Sequence[Tool] | None = None
        # How many questions were asked so far.
        self.turn = 0
        self.closed = self.stopping = False
        self._inbox: deque[ClientCall | Submission] = deque()
        self._calls: dict[str, ClientCall] = {}
        self._finishing = False

    # The run's side.

    def ask(self, question: HandoffQuestion) -> None:
        """Ask the client; the question is open until a submission comes or no more are wanted."""
        with self._changed:
            self.tools = question.tools
            if self._finishing:
                return
            self.question = question
            self.turn += 1
            self._calls = {k: call for k, call in self._calls.items() if not call.result.done()}
            self._changed.notify_all()

    def take(self) -> ClientCall | Submission | None:
        """Wait for what comes next; None where the client wants no more rounds.

        Raises `KeyboardInterrupt` where the run is to stop.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._inbox or self._finishing or self.stopping)
            if self.stopping:
                raise KeyboardInterrupt
            return self._inbox.popleft() if self._inbox else None

    def close(self) -> None:
        """Take back the question: the run is over. Calls that were not run are cancelled."""
        with self._changed:
            self.closed, self.question = True, None
            for call in self._calls.values():
                call.result.cancel()
            self._changed.notify_all()

    # The client's side.

    def submit(self, submission: Submission) -> int:
        """Answer the question; return the turn after which the next one comes.

        Raises `InputError` where nothing is asked.
        """
        with self._changed:
            self._require_question("nothing is asked now")
            self.question = None
            self._inbox.append(submission)
            self._changed.notify_all()
            return self.turn

    def call(self, name: str, arguments: Mapping[str, Any]) -> ClientCall:
        """Have a tool run; the same call again, before its result was taken, is no second one.

        Raises `InputError` where no round is open.
        """
        with self._changed:
            call = ClientCall(name, arguments)
            if (client_call := self._calls.get(call.key)) is not None:
                return client_call
            self._require_question(f"`{name}` is a tool of a round, and no round is open now")
            self._calls[call.key] = call
            self._inbox.append(call)
            self._changed.notify_all()
            return call

    def forget(self, call: ClientCall) -> None:
        """Forget a call: the same one again is another."""
        with self._changed:
            if self._calls.get(call.key) is call:
                del self._calls[call.key]

    def drop(self, call: ClientCall) -> None:
        """Take back a call that nobody waits for any more; one that runs is brought to its end."""
        if not call.waiting and call.result.cancel():
            self.forget(call)

    def finish(self) -> None:
        """Ask for no more rounds: what is being worked on is brought to its end."""
        with self._changed:
            self._finishing, self.question = True, None
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self.stopping = True
            self._changed.notify_all()

    def wait(self, turn: int, timeout_s: float) -> bool:
        """Wait until more than `turn` questions were asked or the run is over; tell whether."""
        with self._changed:
            return self._changed.wait_for(lambda: self.turn > turn or self.closed, timeout_s)

    def _require_question(self, problem: str) -> None:
        if self.closed:
            raise InputError(f"{problem}: the run is over", remedy="`finish` gives its results")
        if self._finishing:
            raise InputError(f"{problem}: the rounds are over", remedy="`finish` gives the results")
        if self.question is None:
            raise InputError(problem, remedy="`briefing` waits until a round is ready")


class FinishedError(AgentError):
    """Report that no more was wanted in the middle of a round, which so stays open."""


class McpAgent:
    """Ask through a handoff and wait there for the client's answers.

    `recap` tells what came of a round that is over; it may be set once there is a session to tell
    it from.
    """

    name = "mcp"

    def __init__(self, handoff: Handoff, recap: Callable[[int], str] | None = None) -> None:
        self._handoff = handoff
        self.recap = recap

    def converse(
        self, briefing: Briefing, toolbox: Toolbox, transcript: Transcript
    ) -> Conversation:
        before = briefing.round - 1
        recap = self.recap(before) if self.recap and before else ""
        return McpRound(self._handoff, briefing, toolbox, transcript, recap)


class McpRound(Conversation):
    """One round with the client: a submission holds the plan, the template and the space at once.

    A submission whose plan cannot be read, or that leaves text out, goes back at once and counts
    for no answer.
    """

    def __init__(
        self,
        handoff: Handoff,
        briefing: Briefing,
        toolbox: Toolbox,
        transcript: Transcript,
        recap: str,
    ) -> None:
        self._handoff, self._briefing = handoff, briefing
        self._toolbox, self._transcript, self._recap = toolbox, transcript, recap
        self._rules = prompt(
            "served", stable=briefing.stable, most_expectations=MOST_EXPECTATIONS, metrics=MEANINGS
        )
        self._text = prompt(
            "served_round",
            current=briefing.current,
            round=briefing.round,
            base=briefing.base,
            population=", ".join(member.name for member in briefing.population),
        )
        self._idea: Idea | None = None
        self._answer: AgentAnswer | None = None
        self._said = ""
        self._calls = self._refusals = 0

    def plan(self) -> Idea | None:
        earlier = self._next_kept("plan")
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

    def refactor(self) -> AgentAnswer:
        if self._answer is not None:
            answer, self._answer = self._answer, None
            self._keep("answer", **asdict(answer))
            return answer
        return self._earlier_answer() or self._next_answer("")

    def repair(self, problem: str) -> AgentAnswer:
        self._refusals += 1
        earlier = self._earlier_answer()
        if earlier is not None:
            return earlier
        self._say(problem)
        return self._next_answer(problem)

    def _next_answer(self, problem: str) -> AgentAnswer:
        submission = self._submission(problem)
        if submission is None:
            raise FinishedError(f"round {self._briefing.round} was ended before it had an answer")
        self._keep("answer", **asdict(submission.answer))
        return submission.answer

    def _submission(self, problem: str = "") -> Submission | None:
        while True:
            question = HandoffQuestion(
                round=self._briefing.round,
                rules=self._rules,
                text=self._text,
                tools=tuple(self._toolbox.tools()),
                recap=self._recap,
                planned=self._idea is not None,
                problem=problem,
                refusals=self._refusals,
            )
            self._handoff.ask(question)
            while isinstance(taken := self._handoff.take(), ClientCall):
                self._run(taken)
            if taken is None:
                return None
            settled = self._idea
            try:
                for kind, text in asdict(taken.answer).items():
                    require_whole(text, kind)
                if settled is None:
                    self._idea = read_plan(taken.plan, self._briefing)
                elif json.loads(taken.plan) and read_plan(taken.plan, self._briefing) != settled:
                    raise ReplyError(
                        f"the plan of round {self._briefing.round} is settled; submit a template "
                        "and a space for it, without a plan"
                    )
            except ReplyError as error:
                problem = str(error)
                self._keep("refused", plan=taken.plan, problem=problem, **asdict(taken.answer))
            else:
                return taken

    def _run(self, call: ClientCall) -> None:
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

    def _next_kept(self, kind: str) -> Mapping[str, Any] | None:
        """Take the next entry of a kind that an earlier run kept, past what was said before it."""
        while (entry := self._transcript.again()) is not None:
            if entry["type"] == kind:
                return entry
            message = entry.get("message", {})
            if message.get("role") == "user":
                self._said = message["content"]
            self._calls += message.get("role") == "tool"
        return None

    def _earlier_answer(self) -> AgentAnswer | None:
        kept = self._next_kept("answer")
        return AgentAnswer(kept["template"], kept["space"]) if kept else None

    def _say(self, text: str) -> None:
        if text != self._said:
            self._keep("message", message={"role": "user", "content": text})
            self._said = text

    def _keep(self, kind: str, **content: Any) -> None:
        self._transcript.keep({"type": kind, **content})
