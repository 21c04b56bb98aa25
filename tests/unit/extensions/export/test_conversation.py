"""The messages of a round: what was said, in the form that chat templates read."""

from __future__ import annotations

import pytest

from tuner.extensions.agents.base import AgentAnswer
from tuner.extensions.agents.replies import read_answer
from tuner.extensions.agents.training import conversation_of
from tuner.session.events import Event


@pytest.fixture
def read(session):
    return lambda number=1: conversation_of(session.events(Event, number))


def roles(messages) -> list[str]:
    return [message["role"] for message in messages]


def test_what_was_said_before_the_agent_answered_is_the_opening(model_round, read):
    model_round()
    conversation = read()
    assert roles(conversation.opening) == ["system", "user", "user"]
    assert roles(conversation.rest) == ["assistant", "tool", "assistant", "user", "assistant"]


def test_the_request_for_a_template_follows_the_plan(model_round, read):
    model_round()
    contents = [message["content"] for message in read().request]
    assert contents == ["be fast", "the task", "plan", "", "the source", "the plan", "write it"]


def test_a_round_without_a_plan_has_no_request_for_a_template(note, read):
    note().says("user", "plan").replies("no").says("user", "again").replies("no").is_refused("no")
    assert read().request == ()
    assert roles(read().rest) == ["assistant", "user", "assistant"]


def test_tool_calls_have_their_arguments_as_objects_and_results_their_tools_name(model_round, read):
    model_round()
    asked, answered = read().rest[:2]
    (call,) = asked["tool_calls"]
    assert call == {
        "id": "c0",
        "type": "function",
        "function": {"name": "render", "arguments": {"config": {"block": 64}}},
    }
    assert (answered["name"], answered["tool_call_id"]) == ("render", "c0")


def test_results_belong_to_the_calls_before_them_where_a_server_repeats_its_ids(note, read):
    entries = note().says("user", "plan")
    for name in ("render", "measure"):
        entries.replies("", ("0", name, "{}")).says("tool", name, tool_call_id="0")
    told = [m for m in read().rest if m["role"] == "tool"]
    assert [message["name"] for message in told] == ["render", "measure"]


@pytest.mark.parametrize("written", ["{", "[1]", '"text"', "[" * 100_000])
def test_malformed_arguments_are_none_as_they_went_back_to_the_server(note, read, written):
    note().says("user", "plan").replies("", ("c0", "render", written))
    assert read().rest[0]["tool_calls"][0]["function"]["arguments"] == {}


def test_only_the_tools_that_were_offered_are_declared(model_round, read):
    model_round()
    tools = read().tools
    assert [tool["function"]["name"] for tool in tools] == ["render", "measure"]
    assert all(tool["type"] == "function" for tool in tools)
    assert tools[0]["function"]["description"] == "render it"


def test_a_server_that_took_no_tools_was_offered_none(note, read):
    note().declares().says("user", "plan").replies("the plan", offered=[])
    assert read().tools is None


def test_reasoning_stands_beside_what_was_said(model_round, read):
    model_round()
    said = [message for message in read().rest if message["role"] == "assistant"]
    assert [message.get("reasoning_content") for message in said] == [None, "hm", None]


def test_failed_tries_and_what_they_cost_are_no_messages(model_round, read):
    model_round()
    conversation = read()
    assert "429" not in str(conversation.planning + conversation.writing)
    assert "usage" not in str(conversation.rest)


def test_answers_in_files_are_one_message_of_the_plan_and_two_blocks(note, read):
    template, space = "// a ``` in a comment\nint x;\n", "version: 1\n"
    note().says("user", "the request").writes("plan", text='{"change": "x"}').plans().writes(
        "answer", template=template, space=space
    )
    conversation = read()
    assert conversation.request == conversation.opening
    (message,) = conversation.rest
    assert message["content"].startswith('```json\n{"change": "x"}\n```')
    assert read_answer(message["content"]) == AgentAnswer(template, space)


def test_a_plan_may_be_missing_among_the_files(note, read):
    note().says("user", "the request").writes("plan", text="").plans().writes(
        "answer", template="int x;", space="version: 1"
    )
    (message,) = read().rest
    assert message["content"].startswith("```cuda\nint x;")


def test_what_was_wrong_with_files_stands_between_them(note, read):
    entries = note().says("user", "the request").writes("plan", text="{}").plans()
    for text in ("one", "two", "three"):
        entries.writes("answer", template=text, space="version: 1")
    entries.adds("line 1: one", "line 2: two")
    rest = read().rest
    assert roles(rest) == ["assistant", "user", "assistant", "user", "assistant"]
    assert [m["content"] for m in rest if m["role"] == "user"] == ["line 1: one", "line 2: two"]


def test_a_plan_in_files_that_cannot_be_read_stands_alone(note, read):
    note().says("user", "the request").writes("plan", text="{}").is_refused("no `change`")
    assert roles(read().rest) == ["assistant"]
    assert read().request == ()


def test_a_client_of_the_server_has_its_calls_as_objects_too(note, read):
    call = {"id": "1", "type": "function", "function": {"name": "render", "arguments": '{"a": 1}'}}
    entries = note().says("user", "the request").says("assistant", "", tool_calls=[call])
    entries.says("tool", "the source", tool_call_id="1", name="render")
    entries.writes("plan", text="{}").plans().writes("answer", template="int x;", space="v: 1")
    asked, answered = read().planning[1:]
    assert asked["tool_calls"][0]["function"] == {"name": "render", "arguments": {"a": 1}}
    assert answered["name"] == "render"
