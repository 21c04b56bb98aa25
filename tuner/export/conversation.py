"""What was said in a round as the messages that chat templates read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from tuner.agent.prompts import fenced
from tuner.history import CANDIDATE, IDEA, REFUSED
from tuner.session_records import Note
from tuner.transcript import SAID

# The kind of the note that holds the tools as they were declared to the agent.
TOOLS = "tools"

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
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
        """All that follows the opening: the agent's messages and what they were answered."""
        return (self.planning + self.writing)[len(self.opening) :]

    @property
    def request(self) -> tuple[Message, ...]:
        """All up to the request for a template, with the plan; empty where it was never asked."""
        return self.planning + _opening(self.writing) if self.writing else ()


def conversation_of(notes: Sequence[Note]) -> Conversation:
    """Read the notes of one round, in their order.

    The agent of files has its two files told as one message with fenced blocks, the plan before
    them. Failed tries, which nobody heard of, are left out.
    """
    planned = next((n for n, note in enumerate(notes) if note.kind == IDEA), len(notes))
    before, after = ([n.content for n in part if n.kind == SAID] for part in _split(notes, planned))
    entries = [*before, *after]
    replies = [entry for entry in entries if entry["type"] == "reply"]
    if any(entry["type"] in ("plan", "answer") for entry in entries):
        return _of_files(before, after, _problems(notes))
    return Conversation(
        planning=tuple(_messages(before)),
        writing=tuple(_messages(after)),
        tools=_tools(notes, replies),
        model=replies[-1]["model"] if replies else "",
    )


def _messages(entries: Iterable[Mapping[str, Any]]) -> Iterator[Message]:
    # Some servers count their calls from the start in every reply.
    names: Mapping[str, str] = {}
    for entry in entries:
        if entry["type"] == "message":
            yield _heard(entry["message"], names)
        elif entry["type"] == "reply":
            calls = entry["message"].get("tool_calls", ())
            names = {call["id"]: call["function"]["name"] for call in calls}
            yield _spoken(entry)


def _heard(message: Mapping[str, Any], names: Mapping[str, str]) -> Message:
    if message["role"] != "tool":
        return dict(message)
    # Templates of chats tell results apart by the tool's name, servers by the call's id.
    return {**message, "name": names[message["tool_call_id"]]}


def _spoken(entry: Mapping[str, Any]) -> Message:
    said = entry["message"]
    message: Message = {"role": "assistant", "content": said["content"] or ""}
    if reasoning := entry.get("reasoning"):
        message["reasoning_content"] = reasoning
    if calls := said.get("tool_calls"):
        message["tool_calls"] = [_call(call) for call in calls]
    return message


def _said(message: Mapping[str, Any]) -> Message:
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [_call(call) for call in calls]} if calls else dict(message)


def _call(call: Mapping[str, Any]) -> Message:
    """Write the arguments as an object: templates of chats write the JSON themselves."""
    function = call["function"]
    arguments = _object(function["arguments"])
    return {
        "id": call["id"],
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _object(written: str) -> dict[str, Any]:
    """Read a call's arguments; malformed ones are none, as when they went back to the server."""
    try:
        arguments = json.loads(written or "{}")
    except (ValueError, RecursionError):
        return {}
    return arguments if isinstance(arguments, dict) else {}


def _tools(
    notes: Iterable[Note], replies: Iterable[Mapping[str, Any]]
) -> tuple[Mapping[str, Any], ...] | None:
    """Take the declared tools that a request of the round offered."""
    offered = {name for reply in replies for name in reply["request"].get("tools", ())}
    declared = [tool for note in notes if note.kind == TOOLS for tool in note.content["tools"]]
    functions = [dict(tool) for tool in declared if tool["name"] in offered]
    return tuple({"type": "function", "function": one} for one in functions) or None


def _of_files(
    before: Sequence[Mapping[str, Any]],
    after: Sequence[Mapping[str, Any]],
    problems: Sequence[str],
) -> Conversation:
    asked = [_said(entry["message"]) for entry in before if entry["type"] == "message"]
    plans = [fenced(e["text"], "json") for e in before if e["type"] == "plan" and e["text"]]
    answers = [
        f"{fenced(entry['template'], 'cuda')}\n\n{fenced(entry['space'], 'yaml')}"
        for entry in after
        if entry["type"] == "answer"
    ]
    if not answers:
        return Conversation(tuple(asked) + tuple(map(_assistant, plans)), ())
    writing = [_assistant("\n\n".join([*plans, answers[0]]))]
    for problem, answer in zip(problems, answers[1:], strict=False):
        writing += [{"role": "user", "content": problem}, _assistant(answer)]
    return Conversation(tuple(asked), tuple(writing))


def _problems(notes: Iterable[Note]) -> list[str]:
    """List what was wrong with each answer, in order; the last one may have been right."""
    contents = [note.content for note in notes if note.kind in (CANDIDATE, REFUSED)]
    return list(contents[0]["problems"]) if contents else []


def _assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


def _opening(messages: Sequence[Message]) -> tuple[Message, ...]:
    return tuple(takewhile(lambda message: message["role"] != "assistant", messages))


def _split(notes: Sequence[Note], index: int) -> tuple[Sequence[Note], Sequence[Note]]:
    return notes[:index], notes[index:]
