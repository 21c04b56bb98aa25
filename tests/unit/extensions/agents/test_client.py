"""Requests to a server over a socket: asked in another way, asked again, or given up."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from agent_doubles import Tools
from fake_openai import KEY, MODEL, PIECE_CHARS, FakeOpenAI, Reply, Step, calls, dropped, failure

from tuner.extensions.agents.budget import Price, TokenBudget, Usage
from tuner.extensions.agents.client import Ask, ChatClient, Completion, ToolsRefusedError
from tuner.extensions.agents.endpoint import FIRST_CEILING, Endpoint
from tuner.model.errors import AgentError, ReplyError

QUESTION = ({"role": "system", "content": "be brief"}, {"role": "user", "content": "hello?"})
SCHEMA = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
RATE_LIMIT = failure(429, "Rate limit reached")


class Asking:
    """A client of a fake server, with the failures it had."""

    def __init__(self, server: FakeOpenAI, **options: Any) -> None:
        self.failures: list[tuple[str, Usage | None, float | None]] = []
        environ = {**server.environ, **options.pop("environ", {})}
        fields = {"model": MODEL, "budget": TokenBudget(), "pause_s": 0.0, **options}
        self.client = ChatClient(Endpoint.of(environ), **fields)

    def ask(self, **changes: Any) -> Completion:
        return self.client.complete(
            Ask(**{"messages": QUESTION, **changes}), lambda *what: self.failures.append(what)
        )


def ask(script: Sequence[Step], **options: Any) -> tuple[Completion, Asking, FakeOpenAI]:
    with FakeOpenAI(script) as server:
        asking = Asking(server, **options)
        return asking.ask(), asking, server


def test_a_streamed_reply_is_put_together() -> None:
    text = "a reply of several pieces, with ünïcode and\nlines " * 5
    completion, _, server = ask([Reply(text=text, reasoning="hm, let me see what it is")])
    assert completion.message["content"] == text
    assert completion.reasoning == "hm, let me see what it is"
    assert completion.finish_reason == "stop"
    assert completion.model == MODEL
    assert server.chats[0].body["stream"] is True
    assert server.chats[0].body["stream_options"] == {"include_usage": True}
    assert server.chats[0].messages == list(QUESTION)
    assert "max_completion_tokens" not in server.chats[0].body, "there is no budget"


def test_parallel_calls_are_put_together_from_interleaved_pieces() -> None:
    wanted = (("render", {"config": "block=64, items=4, a long one"}), ("measure", {"block": 1}))
    reply = ask([calls(*wanted, text="Let me look.")])[0]
    assert reply.message["content"] == "Let me look."
    made = reply.message["tool_calls"]
    assert [call["id"] for call in made] == ["id0", "id1"]
    assert [call["function"]["name"] for call in made] == ["render", "measure"]
    assert made[0]["function"]["arguments"] == '{"config": "block=64, items=4, a long one"}'


def test_usage_and_cost_are_the_servers() -> None:
    budget = TokenBudget(price=Price(input=2.0, cached_input=1.0, output=10.0))
    completion, _, _ = ask([Reply(text="ok", usage=(1_000, 400, 100))], budget=budget)
    assert completion.usage == Usage(1_000, 400, 100)
    assert completion.cost == pytest.approx((600 * 2 + 400 * 1 + 100 * 10) / 1e6)
    assert budget.spent == completion.usage


def test_usage_is_estimated_where_the_server_does_not_tell() -> None:
    with FakeOpenAI(["four by four by"], refuses=["stream_options"]) as server:
        completion = Asking(server).ask()
    assert 10 < completion.usage.input_tokens < 40
    assert completion.usage.output_tokens == 5


def test_the_request_is_described_without_its_messages() -> None:
    with FakeOpenAI(["ok"]) as server:
        tools = Tools("render", "measure").tools()
        budget = TokenBudget(max_tokens=9_000)
        request = Asking(server, budget=budget).ask(tools=tools, schema=SCHEMA, may_call=False)
    limit = server.chats[0].body["max_completion_tokens"]
    sent = server.chats[0].body["response_format"]["json_schema"]
    assert sent == {"name": "plan", "strict": True, "schema": SCHEMA}
    assert request.request == {
        "model": MODEL,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": ["render", "measure"],
        "tool_choice": "none",
        "response_format": "json_schema",
        "max_completion_tokens": limit,
    }


@pytest.mark.parametrize(
    ("refused", "rung"),
    [
        ([], "json_schema"),
        (["response_format=json_schema"], "json_object"),
        (["response_format"], None),
    ],
)
def test_the_format_of_the_reply_goes_down_the_ladder_once(
    refused: list[str], rung: str | None
) -> None:
    with FakeOpenAI(["one", "two"], refuses=refused) as server:
        asking = Asking(server)
        asking.ask(schema=SCHEMA)
        refusals = len(server.requests) - 1
        asking.ask(schema=SCHEMA)
    assert len(server.requests) == refusals + 2
    assert len(asking.failures) == refusals
    for chat in server.chats:
        assert chat.body.get("response_format", {}).get("type") == rung


@pytest.mark.parametrize(
    ("status", "param"),
    [(400, "response_format"), (422, "response_format.json_schema"), (400, ""), (501, "")],
)
def test_a_refused_format_is_given_up_before_the_tools(status: int, param: str) -> None:
    with FakeOpenAI(
        ["ok"],
        refuses=["response_format"],
        refusal=lambda _: failure(status, "Bad Request", param=param),
    ) as server:
        asking = Asking(server)
        asking.ask(schema=SCHEMA, tools=Tools("render").tools())
    assert "response_format" not in server.chats[0].body
    assert {"tools", "stream_options"} <= server.chats[0].body.keys()


@pytest.mark.parametrize("param", ["tools", "tool_choice", ""])
def test_a_server_without_tools_is_told_of_once(param: str) -> None:
    tools = Tools("render").tools()
    message = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser'
    with FakeOpenAI(
        ["ok"], refuses=["tools"], refusal=lambda _: failure(400, message, param=param)
    ) as server:
        asking = Asking(server)
        with pytest.raises(ToolsRefusedError):
            asking.ask(tools=tools)
        asking.ask(tools=tools)
    assert [bool(request.body.get("tools")) for request in server.requests][-2:] == [True, False]


@pytest.mark.parametrize(
    ("refused", "kept"),
    [
        ("stream_options", {"stream": True}),
        ("stream=True", {"stream": False}),
        ("max_completion_tokens", {"max_tokens": FIRST_CEILING}),
    ],
)
def test_a_parameter_that_the_server_does_not_know_is_given_up(
    refused: str, kept: dict[str, object]
) -> None:
    with FakeOpenAI(["one", "two"], refuses=[refused]) as server:
        asking = Asking(server, budget=TokenBudget(max_tokens=50_000))
        assert [asking.ask().message["content"], asking.ask().message["content"]] == ["one", "two"]
    assert len(server.requests) == 3
    for chat in server.chats:
        assert refused.partition("=")[0] not in chat.body or not chat.body["stream"]
        assert kept.items() <= chat.body.items()


def test_a_reply_that_is_not_streamed_is_read_as_well() -> None:
    wanted = calls(("render", {"a": 1}), ("render", {"a": 2}), text="both")
    with FakeOpenAI([wanted], refuses=["stream=True"]) as server:
        completion = Asking(server).ask()
    written = [call["function"]["arguments"] for call in completion.message["tool_calls"]]
    assert written == ['{"a": 1}', '{"a": 2}']
    assert (completion.message["content"], completion.finish_reason) == ("both", "tool_calls")
    assert completion.usage.input_tokens > 0


def test_roles_are_made_plain_for_templates_that_want_them_so() -> None:
    message = "Conversation roles must alternate user/assistant/user/assistant"
    with FakeOpenAI([failure(400, message)] * 2 + ["ok"]) as server:
        Asking(server).ask()
    assert server.chats[2].messages == [{"role": "user", "content": "be brief\n\nhello?"}]


def test_a_limit_above_the_models_own_is_lowered() -> None:
    budget = TokenBudget(max_tokens=10**6)
    too_large = failure(400, "too large: at most 16384", param="max_tokens")
    with FakeOpenAI([too_large, "ok", "again"]) as server:
        asking = Asking(server, budget=budget)
        asking.ask()
        asking.ask()
    limits = [chat.body["max_completion_tokens"] for chat in server.chats]
    assert limits == [FIRST_CEILING, FIRST_CEILING // 2, FIRST_CEILING // 2]


def open_sockets() -> int:
    found = 0
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found += str(path.readlink()).startswith("socket:")
    return found


def test_no_connection_stays_open_between_requests() -> None:
    before = open_sockets()
    with FakeOpenAI(["ok"], refuses=["stream=True"]) as server:
        asking = Asking(server)
        asking.client.check()
        asking.ask()
    ends_s = time.monotonic() + 5
    while open_sockets() > before and time.monotonic() < ends_s:
        time.sleep(0.02)  # the server's threads close their side when they see ours closed
    assert open_sockets() == before
    assert asking.client.model == MODEL  # the client itself is still there


def test_a_server_that_ignores_the_limit_is_not_listened_to() -> None:
    budget = TokenBudget(max_tokens=400)
    completion, _, server = ask([Reply(text="x" * 20 * 2_000)], budget=budget)
    limit = server.chats[0].body["max_completion_tokens"]
    assert completion.finish_reason == "length"
    assert 3 * limit < len(completion.message["content"]) <= 3 * limit + PIECE_CHARS
    assert budget.spent.total <= 400


def test_a_conversation_too_long_for_the_model_is_told() -> None:
    too_long = failure(400, "This model's maximum is 8192", code="context_length_exceeded")
    refused = pytest.raises(ReplyError, match=r"too long for the model: .*maximum is 8192")
    with FakeOpenAI([too_long]) as server, refused:
        Asking(server).ask(schema=SCHEMA)
    assert len(server.requests) == 1


def test_a_server_that_refuses_everything_is_given_up() -> None:
    refused = pytest.raises(AgentError, match="answered 400: no")
    with FakeOpenAI([failure(400, "no")] * 20) as server, refused:
        Asking(server).ask(schema=SCHEMA)
    assert len(server.requests) < 10


def test_what_a_server_once_took_is_not_given_up_for_a_conversation_that_it_refuses() -> None:
    script = ["ok", failure(400, "our filter minds this text")]
    refused = pytest.raises(ReplyError, match="our filter minds this text")
    with FakeOpenAI(script) as server:
        asking = Asking(server)
        asking.ask(schema=SCHEMA, tools=Tools("render").tools())
        with refused:
            asking.ask(schema=SCHEMA, tools=Tools("render").tools())
    assert len(server.requests) == 2


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_a_passing_failure_is_tried_again(status: int) -> None:
    completion, _, server = ask([failure(status), failure(status), "at last"])
    assert completion.message["content"] == "at last"
    assert len(server.requests) == 3


def test_a_server_that_goes_on_failing_is_given_up() -> None:
    with FakeOpenAI([RATE_LIMIT] * 9) as server:
        asking = Asking(server)
        with pytest.raises(AgentError, match=r"no reply after 4 tries: .*429: Rate limit reached"):
            asking.ask()
    assert len(server.requests) == 4
    assert len(asking.failures) == 1


def test_the_wait_that_a_server_asks_for_is_kept() -> None:
    began_s = time.monotonic()
    ask([failure(429, retry_after=0.5), "ok"])
    assert 0.5 <= time.monotonic() - began_s < 5


def test_an_account_without_credit_is_told() -> None:
    script = [failure(429, "You exceeded it", code="insufficient_quota")] * 4
    with FakeOpenAI(script) as server, pytest.raises(AgentError, match="no credit left"):
        Asking(server).ask()


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (dropped("half of the reply that never ends"), "broke off|connection"),
        (dropped("half of the reply that never ends", quietly=True), "broke off|connection"),
        (Reply(text="half of it " * 4, drop_after=2, stream_error="it died"), "it died"),
    ],
)
def test_a_reply_that_breaks_off_is_asked_for_again_and_paid(broken: Reply, told: str) -> None:
    budget = TokenBudget(price=Price(1.0, 1.0))
    completion, asking, _ = ask([broken, "the whole reply"], budget=budget)
    assert completion.message["content"] == "the whole reply"
    [(text, usage, cost)] = asking.failures
    assert re.search(told, text)
    assert usage is not None and cost is not None
    assert usage.output_tokens > 0
    assert budget.spent == usage + completion.usage


def test_halves_of_characters_are_joined_and_single_ones_replaced() -> None:
    text = "x" * (PIECE_CHARS - 1) + "\ud83d" + "\ude00 \ud83d!"
    reply = ask([text])[0]
    assert reply.message["content"] == "x" * (PIECE_CHARS - 1) + "\U0001f600 \ufffd!"


def test_a_drop_after_the_end_costs_only_the_count() -> None:
    # its chunks: role, one piece, finish; the usage is lost
    completion, asking, _ = ask([dropped("short", 3)])
    assert completion.message["content"] == "short"
    assert completion.usage.output_tokens == 2
    assert not asking.failures


def test_silence_is_given_up_and_tried_again() -> None:
    completion, asking, _ = ask([Reply(text="late", delay_s=0.6), "in time"], timeout_s=0.2)
    assert completion.message["content"] == "in time"
    assert "in time" in asking.failures[0][0]


def test_an_unknown_model_is_told_at_once() -> None:
    with FakeOpenAI([]) as server, pytest.raises(AgentError, match="no model 'gpt-9'") as caught:
        Asking(server, model="gpt-9").ask()
    assert f"{server.url}/models" in str(caught.value)
    assert len(server.requests) == 1


def test_a_wrong_path_is_told_with_the_remedy() -> None:
    with FakeOpenAI([]) as server:
        asking = Asking(server, environ={"OPENAI_BASE_URL": server.url.removesuffix("/v1")})
        with pytest.raises(AgentError, match="404") as caught:
            asking.ask()
    assert "ends in /v1" in str(caught.value)


def test_a_refused_key_is_told_and_not_shown() -> None:
    wrong = "sk-wrong-9876543210zyx"
    with FakeOpenAI([]) as server:
        asking = Asking(server, environ={"OPENAI_API_KEY": wrong})
        with pytest.raises(AgentError, match="401") as caught:
            asking.ask()
    assert "OPENAI_API_KEY" in str(caught.value)
    assert wrong not in str(caught.value) + repr(asking.client) + repr(asking.failures)
    assert "[key]" in str(caught.value)


def test_a_local_server_needs_no_key() -> None:
    with FakeOpenAI(["ok"], key="") as server:
        assert "OPENAI_API_KEY" not in server.environ
        assert Asking(server).ask().message["content"] == "ok"


def closed_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


@pytest.mark.parametrize("method", ["complete", "check"])
def test_a_server_that_is_not_there_is_told_soon(method: str) -> None:
    url = f"http://127.0.0.1:{closed_port()}/v1"
    client = ChatClient(Endpoint.of({"OPENAI_BASE_URL": url}), MODEL, TokenBudget())
    began_s = time.monotonic()
    with pytest.raises(AgentError) as caught:
        client.complete(Ask(QUESTION), lambda *_: None) if method == "complete" else client.check()
    assert url in str(caught.value)
    assert time.monotonic() - began_s < 4


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, "there is no model to talk to"),
        ({"OPENAI_API_KEY": " "}, "there is no model to talk to"),
        ({"OPENAI_BASE_URL": "localhost:8000"}, "'localhost:8000' is no http address"),
        ({"OPENAI_BASE_URL": "http://"}, "is no http address"),
        ({"OPENAI_BASE_URL": "http://host:port/v1"}, "is no http address"),
    ],
)
def test_an_environment_without_a_server_is_told_with_both_remedies(
    environ: dict[str, str], said: str
) -> None:
    with pytest.raises(AgentError, match=said) as caught:
        Endpoint.of(environ)
    assert "OPENAI_API_KEY" in str(caught.value)
    assert "OPENAI_BASE_URL" in str(caught.value)


def test_secrets_of_the_address_are_not_shown() -> None:
    assert Endpoint.of({"OPENAI_API_KEY": KEY}).shown == "https://api.openai.com/v1"
    url = "http://me:pass-word-1@host:8000/v1?token=abcdefgh"
    endpoint = Endpoint.of({"OPENAI_BASE_URL": url, "OPENAI_API_KEY": KEY})
    assert endpoint.shown == "http://host:8000/v1"
    told = endpoint.redact(f"{url} {KEY} sk-ab**yz")
    for secret in ("pass-word-1", "abcdefgh", KEY, "sk-ab"):
        assert secret not in told + repr(endpoint)
    assert endpoint.redacted_entry({"a": [KEY, 1, None]}) == {"a": ["[key]", 1, None]}


def check(**options: Any) -> None:
    with FakeOpenAI([], **options) as server:
        Asking(server).client.check()


@pytest.mark.parametrize("models", [["other", MODEL], [f"{MODEL}:latest"], None, []])
def test_a_listed_model_and_a_server_without_a_list_pass_the_check(
    models: list[str] | None,
) -> None:
    check(models=models)


def test_a_model_that_is_not_listed_fails_the_check() -> None:
    with pytest.raises(AgentError, match=f"no model '{MODEL}'") as caught:
        check(models=["fake-model-2", "other"])
    assert "fake-model-2" in str(caught.value)
