"""What was said in a round as the messages that chat templates read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from math import log
from pathlib import Path
from typing import Any, Literal

from tuner.extensions.agents.prompts import fence_text
from tuner.model.errors import InputError, SessionError
from tuner.process.files import atomic_write
from tuner.session.events import (
    AgentIdle,
    CandidateMade,
    Event,
    Planned,
    RoundRefused,
    Said,
    ToolsDeclared,
)
from tuner.session.rounds import RoundRecord, list_rounds, over
from tuner.session.session import Session

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChatConversation:
    """The messages of one round, those of the plan apart from those of the template.

    `tools` are declared as in a request to a model, None where it was offered none. `model` is
    what the server called itself, "" where there was none.
    """

    planning: tuple[Message, ...]
    writing: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] | None = None
    model: str = ""

    @property
    def opening(self) -> tuple[Message, ...]:
        """What was said before the agent said anything."""
        return _opening(self.planning + self.writing)

    @property
    def rest(self) -> tuple[Message, ...]:
        return (self.planning + self.writing)[len(self.opening) :]

    @property
    def request(self) -> tuple[Message, ...]:
        """All up to the request for a template, with the plan; empty where it was never asked."""
        return self.planning + _opening(self.writing) if self.writing else ()


def conversation_of(events: Sequence[Event]) -> ChatConversation:
    """Read the events of one round, in their order.

    The agent of files has its two files as one message with fenced blocks, the plan before them.
    Failed tries, which nobody heard of, are left out.
    """
    kinds = [type(event) for event in events]
    planned = kinds.index(Planned) if Planned in kinds else len(events)
    before, after = (
        [event.entry for event in part if isinstance(event, Said)]
        for part in (events[:planned], events[planned:])
    )
    entries = [*before, *after]
    replies = [entry for entry in entries if entry["type"] == "reply"]
    if any(entry["type"] in ("plan", "answer") for entry in entries):
        asked = tuple(_messages(entry for entry in before if entry["type"] == "message"))
        plans = [fence_text(e["text"], "json") for e in before if e["type"] == "plan" and e["text"]]
        answers = [
            f"{fence_text(entry['template'], 'cuda')}\n\n{fence_text(entry['space'], 'yaml')}"
            for entry in after
            if entry["type"] == "answer"
        ]
        if not answers:
            return ChatConversation((*asked, *map(_assistant, plans)), ())
        writing = [_assistant("\n\n".join([*plans, answers[0]]))]
        ends = (one for one in events if isinstance(one, CandidateMade | RoundRefused))
        for problem, answer in zip(
            next((list(one.problems) for one in ends), []), answers[1:], strict=False
        ):
            writing += [{"role": "user", "content": problem}, _assistant(answer)]
        return ChatConversation(asked, tuple(writing))
    return ChatConversation(
        planning=tuple(_messages(before)),
        writing=tuple(_messages(after)),
        tools=_tools(events, replies),
        model=replies[-1]["model"] if replies else "",
    )


def _messages(entries: Iterable[Mapping[str, Any]]) -> Iterator[Message]:
    # Some servers count their calls from the start in every reply.
    names: Mapping[str, str] = {}
    for entry in entries:
        message = entry.get("message", {})
        calls = message.get("tool_calls") or ()
        called = {"tool_calls": [_call(call) for call in calls]} if calls else {}
        if entry["type"] == "reply":
            names = {call["id"]: call["function"]["name"] for call in calls}
            thought = {"reasoning_content": entry["reasoning"]} if entry.get("reasoning") else {}
            yield _assistant(message["content"] or "", **thought, **called)
        elif entry["type"] == "message" and message["role"] == "tool":
            # Templates of chats tell results apart by the tool's name, servers by the call's id.
            name = message.get("name") or names.get(message.get("tool_call_id", ""), "")
            yield {**message, "name": name}
        elif entry["type"] == "message":
            yield {**message, **called}


def _call(call: Mapping[str, Any]) -> Message:
    """Write the arguments as an object: templates of chats write the JSON themselves.

    Malformed ones are none, as when they went back to the server.
    """
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        arguments = {}
    return {
        "id": call["id"],
        "type": "function",
        "function": {
            "name": function["name"],
            "arguments": arguments if isinstance(arguments, dict) else {},
        },
    }


def _tools(
    events: Iterable[Event], replies: Iterable[Mapping[str, Any]]
) -> tuple[Mapping[str, Any], ...] | None:
    offered = {name for reply in replies for name in reply["request"].get("tools", ())}
    declared = [
        tool for event in events if isinstance(event, ToolsDeclared) for tool in event.tools
    ]
    functions = [asdict(tool) for tool in declared if tool.name in offered]
    return tuple({"type": "function", "function": function} for function in functions) or None


def _assistant(content: str, **more: Any) -> Message:
    return {"role": "assistant", "content": content, **more}


def _opening(messages: Sequence[Message]) -> tuple[Message, ...]:
    return tuple(takewhile(lambda message: message["role"] != "assistant", messages))


# What no candidate came of, or a wrong one.
REFUSED_REWARD = -1.0
# Whatever runs correctly is worth more than what was refused, however slow: the baseline stands
# in for it, so that ten times slower harms nobody more than two times.
SLOWEST = log(1 / 2)


def reward_of(speedup: float | None) -> float:
    """Return the natural logarithm of a speedup over the baseline, at least `SLOWEST`.

    `REFUSED` for None, which means that nothing ran correctly. The logarithm is what the tree of
    candidates is grown by as well: 2x faster and 2x slower are equally far from 0.
    """
    return REFUSED_REWARD if speedup is None else max(log(speedup), SLOWEST)


Format = Literal["sft", "grpo"]
Row = Mapping[str, Any]

# Formats and column names: TRL 1.16, "Dataset formats and types". A column that its trainers give
# a meaning of their own (`messages`, `label`, `images`, `environment`, `input_ids`) must not be
# among ours.
FORMATS: tuple[Format, ...] = ("sft", "grpo")


@dataclass(frozen=True, slots=True)
class Trajectories:
    """The rows of a session's rounds, and why each of the other rounds has none."""

    rows: tuple[Row, ...]
    left_out: Mapping[int, str]


def trajectories(session: Session, form: Format) -> Trajectories:
    """Make the rows of all rounds that are over and in which something was said.

    `sft` gives `prompt`, what was said before the agent answered, `completion`, all that
    followed, and `tools`. `grpo` gives as `prompt` all up to the request for a template, with the
    plan that was made then. Both have the reward and what came of the round beside them.
    """
    rows: list[Row] = []
    left_out: dict[int, str] = {}
    for record in list_rounds(session):
        number = record.number
        if not over(session, number):
            idle = session.events(AgentIdle, number)
            left_out[number] = "the agent had nothing to try" if idle else "it is not over"
            continue
        conversation = conversation_of(session.events(Event, number))
        if record.answer:
            left_out[number] = "several answers at once"
        elif not conversation.rest:
            left_out[number] = "no messages: its agent is not a model"
        elif form == "grpo" and not conversation.request:
            left_out[number] = "no template was asked for: the plan could not be read"
        else:
            shown: Row = {"prompt": list(conversation.request)}
            if form == "sft":
                shown = {
                    "prompt": list(conversation.opening),
                    "completion": list(conversation.rest),
                    # None, not empty: some templates of chats introduce tools for an empty list.
                    "tools": conversation.tools and list(conversation.tools),
                }
            rows.append({**shown, **_result(session, record, conversation)})
    return Trajectories(tuple(rows), left_out)


def write_trajectories(directory: Path, path: Path, form: Format) -> Trajectories:
    """Write the rows of the session in a folder to a file, one a line.

    Raises `SessionError` where there is no session or not one row, and `InputError` where the
    file cannot be written.
    """
    with Session.open(directory, read_only=True) as session:
        made = trajectories(session, form)
    if not made.rows:
        raise SessionError(
            f"no round can be exported: {explain_left_out(made.left_out) or 'there was none'}",
            path=directory,
            remedy="rounds are run by `tune KERNEL.cu` with --agent openai or --agent files",
        )
    # ASCII: line separators inside of texts would end a line for some readers.
    text = "".join(f"{json.dumps(row)}\n" for row in made.rows)
    try:
        atomic_write(path, text)
    except OSError as error:
        raise InputError(
            f"the trajectories cannot be written: {error.strerror or error}",
            path=path,
            remedy="choose another place with --trajectories",
        ) from error
    return made


def explain_left_out(left_out: Mapping[int, str]) -> str:
    """Say which rounds are left out and why: `rounds 1 and 2: nothing was said in them`."""
    by_reason: dict[str, list[str]] = {}
    for number, reason in left_out.items():
        by_reason.setdefault(reason, []).append(str(number))
    return "; ".join(
        f"round{'s' * (len(numbers) > 1)} {', '.join(numbers)}: {reason}"
        for reason, numbers in by_reason.items()
    )


def _result(session: Session, record: RoundRecord, conversation: ChatConversation) -> Row:
    """Say what came of a round, in columns that have the same type in every row."""
    speedup = record.outcome.speedup if record.outcome else None
    came_of_it = "incorrect" if speedup is None else "measured"
    if record.candidate is None or record.outcome is None:
        came_of_it = "slow" if record.outcome else "refused"
    manifest = session.manifest
    return {
        "reward": reward_of(speedup),
        "speedup": speedup,
        "outcome": "unplanned" if record.idea is None else came_of_it,
        "kernel": manifest.kernel,
        "device": session.environment.get("device", manifest.config.device),
        "agent": manifest.config.agent,
        "model": conversation.model,
        "round": record.number,
        "base": record.base,
        "candidate": record.candidate or "",
        "problems": list(record.problems),
    }


def export_trajectories(directory: Path, path: Path, form: str) -> Iterator[tuple[str, bool]]:
    """Write the rows, and say what was written and what was left out: texts, the latter notes."""
    (chosen,) = (one for one in FORMATS if one == form)
    trajectories = write_trajectories(directory, path, chosen)
    count = len(trajectories.rows)
    yield f"{path} ({count} round{'s' * (count != 1)})", False
    if trajectories.left_out:
        yield f"left out: {explain_left_out(trajectories.left_out)}", True
