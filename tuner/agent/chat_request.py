"""What a request to a model's server holds, as far as the server takes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.agent.base import Tool
from tuner.agent.capabilities import Capabilities


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked: the messages so far, the tools, and the JSON schema of the reply if any.

    `may_call` is False where the tools stay listed, for the server's cache, and may not be used.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Tool] = ()
    schema: Mapping[str, Any] | None = None
    may_call: bool = True


def build(ask: Ask, model: str, can: Capabilities) -> dict[str, Any]:
    """Build a request of what the server is known or hoped to take."""
    messages = _with_plain_roles(ask.messages) if can.plain_roles else list(ask.messages)
    request: dict[str, Any] = {"model": model, "messages": messages, "stream": can.stream}
    if can.stream and can.stream_options:
        request["stream_options"] = {"include_usage": True}
    if can.tools and ask.tools:
        request["tools"] = [_function(tool) for tool in ask.tools]
        if not ask.may_call:
            request["tool_choice"] = "none"
    if ask.schema is not None and can.response_format != "text":
        request["response_format"] = _response_format(can.response_format, ask.schema)
    return request


def prompt_chars(request: Mapping[str, Any]) -> int:
    """Count the characters of a request that become tokens."""
    counted = [request["messages"], request.get("tools"), request.get("response_format")]
    return len(json.dumps(counted, ensure_ascii=False))


def described(request: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a request without its messages, which are kept as they are said."""
    short = {key: value for key, value in request.items() if key != "messages"}
    if "tools" in short:
        short["tools"] = [tool["function"]["name"] for tool in short["tools"]]
    if "response_format" in short:
        short["response_format"] = short["response_format"]["type"]
    return short


def _function(tool: Tool) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }
    return {"type": "function", "function": function}


def _response_format(rung: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    if rung == "json_object":
        return {"type": rung}
    return {"type": rung, "json_schema": {"name": "plan", "strict": True, "schema": dict(schema)}}


def _with_plain_roles(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Merge neighbours that a user wrote, the system's text among them.

    The chat templates of some open models know no system message and want roles to alternate.
    """
    merged: list[dict[str, Any]] = []
    for message in messages:
        role = "user" if message["role"] == "system" else message["role"]
        if merged and role == "user" and merged[-1]["role"] == "user":
            merged[-1]["content"] += f"\n\n{message['content']}"
        else:
            merged.append({**message, "role": role})
    return merged
