"""Where a run in its thread meets a client: one asks, the other answers, neither in a hurry."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition
from typing import Any

from tuner.agent.base import Answer, Tool
from tuner.model.errors import InputError


@dataclass(frozen=True, slots=True)
class Submission:
    """What answers a question: the plan as a JSON object, `{}` for none, and what was written."""

    plan: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class Question:
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


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of the client's; whoever runs it sets its result."""

    name: str
    arguments: Mapping[str, Any]
    result: Future[str] = field(default_factory=Future)

    @property
    def key(self) -> str:
        """The same text for the same call."""
        return json.dumps([self.name, self.arguments], sort_keys=True)


class Handoff:
    """Pass questions one way, and submissions and tool calls the other.

    The run asks, then takes what comes until it is a submission; all that touches the session or
    the device so happens in the run's own thread.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._question: Question | None = None
        self._tools: Sequence[Tool] | None = None
        self._turn = 0
        self._inbox: deque[Call | Submission] = deque()
        self._calls: dict[str, Call] = {}
        self._finishing = self._stopping = self._closed = False

    # The run's side.

    def ask(self, question: Question) -> None:
        """Put a question; it stands until a submission is made, or no more are wanted."""
        with self._changed:
            self._tools = question.tools
            if self._finishing:
                return
            self._question = question
            self._turn += 1
            self._calls = {k: call for k, call in self._calls.items() if not call.result.done()}
            self._changed.notify_all()

    def take(self) -> Call | Submission | None:
        """Wait for what comes next; None where the client wants no more rounds.

        Raises `KeyboardInterrupt` where the run is to stop.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._inbox or self._finishing or self._stopping)
            if self._stopping:
                raise KeyboardInterrupt
            return self._inbox.popleft() if self._inbox else None

    def close(self) -> None:
        """Take back the question: the run is over. Calls that were not run are cancelled."""
        with self._changed:
            self._closed, self._question = True, None
            for call in self._calls.values():
                call.result.cancel()
            self._changed.notify_all()

    # The client's side.

    @property
    def question(self) -> Question | None:
        """What is asked; None while the run works, and when it is over."""
        with self._changed:
            return self._question

    @property
    def tools(self) -> Sequence[Tool] | None:
        """The tools of the last question; None before the first."""
        with self._changed:
            return self._tools

    @property
    def turn(self) -> int:
        """How many questions were asked so far."""
        with self._changed:
            return self._turn

    @property
    def closed(self) -> bool:
        """Whether the run is over."""
        with self._changed:
            return self._closed

    @property
    def stopping(self) -> bool:
        """Whether the run is to stop as soon as it can."""
        with self._changed:
            return self._stopping

    def submit(self, submission: Submission) -> int:
        """Answer the question; return the turn after which the next one comes.

        Raises `InputError` where nothing is asked.
        """
        with self._changed:
            self._require_question("nothing is asked now")
            self._question = None
            self._inbox.append(submission)
            self._changed.notify_all()
            return self._turn

    def call(self, name: str, arguments: Mapping[str, Any]) -> Call:
        """Have a tool run; the same call again, before its result was taken, is no second one.

        Raises `InputError` where no round is open.
        """
        with self._changed:
            call = Call(name, arguments)
            if (known := self._calls.get(call.key)) is not None:
                return known
            self._require_question(f"`{name}` is a tool of a round, and no round is open now")
            self._calls[call.key] = call
            self._inbox.append(call)
            self._changed.notify_all()
            return call

    def taken(self, call: Call) -> None:
        """Forget a call whose result has reached the client."""
        with self._changed:
            self._calls.pop(call.key, None)

    def finish(self) -> None:
        """Ask for no more rounds: what is being worked on is brought to its end."""
        with self._changed:
            self._finishing, self._question = True, None
            self._changed.notify_all()

    def stop(self) -> None:
        """Have the run stop as Ctrl-C does."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def wait(self, turn: int, timeout_s: float) -> bool:
        """Wait until more than `turn` questions were asked or the run is over; tell whether."""
        with self._changed:
            return self._changed.wait_for(lambda: self._turn > turn or self._closed, timeout_s)

    def _require_question(self, problem: str) -> None:
        if self._closed:
            raise InputError(f"{problem}: the run is over", remedy="`finish` gives its results")
        if self._finishing:
            raise InputError(f"{problem}: the rounds are over", remedy="`finish` gives the results")
        if self._question is None:
            raise InputError(problem, remedy="`briefing` waits until a round is ready")
