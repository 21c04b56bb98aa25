"""A model's server that sends without end, slowly, or what no server should: nothing is kept up."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import ssl
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hostile_server import GIB, MIB, Bytes, HostileServer, chunk, filled, head
from slow import mostly_slow

from tuner.extensions.agents.budget import TokenBudget, Usage
from tuner.extensions.agents.client import MOST_CALLS_AT_ONCE, Ask, ChatClient, Completion
from tuner.extensions.agents.endpoint import ROLES, STREAM, Endpoint
from tuner.model.errors import AgentError, BudgetError

JSON = "application/json"
DONE = b"data: [DONE]\n\n"
OK = chunk({"content": "ok"}).replace(b'"finish_reason": null', b'"finish_reason": "stop"')
QUESTION = ({"role": "user", "content": "a question of thirty letters"},)


def client(server: HostileServer, *, stream: bool = True, **options: Any) -> ChatClient:
    fields = {"budget": TokenBudget(), "timeout_s": 5.0, "retries": 1, "pause_s": 0.0, **options}
    made = ChatClient(Endpoint(server.url), "m", **fields)
    made.capabilities.given_up |= set() if stream else {STREAM}
    return made


def complete(asking: ChatClient) -> Completion:
    return asking.complete(Ask(QUESTION), lambda *_: None)


def streamed(*events: bytes) -> Callable[[str, bytes], Bytes]:
    return lambda path, body: iter([head(), *events])


def bombed(count: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    pieces = [packer.compress(b"x" * MIB) for _ in range(count // MIB)]
    return b"".join([*pieces, packer.flush()])


def long_line(path: str, body: bytes) -> Bytes:
    yield head()
    yield from filled(b'data: {"choices": [{"delta": {"content": "')


def long_body(path: str, body: bytes) -> Bytes:
    yield head(200, JSON)
    yield from filled(b'{"choices": [{"message": {"content": "')


def packed_line(path: str, body: bytes) -> Bytes:
    yield head(200, "text/event-stream", "Content-Encoding: gzip")
    yield bombed(GIB // 16)


def packed_twice(path: str, body: bytes) -> Bytes:
    yield head(200, "text/event-stream", "Content-Encoding: gzip, gzip")
    yield gzip.compress(bombed(GIB // 16))


def event_of_lines(path: str, body: bytes) -> Bytes:
    yield head()
    for end in (b"\n", b"\r", b"\r\n"):
        yield from (b"data: " + b"x" * 990 + end for _ in range(2 * MIB // 1000))


def comments(path: str, body: bytes) -> Bytes:
    yield head()
    comment = b": still there" + b" " * 10_000 + b"\n\n"
    yield from (comment * 100 for _ in range(GIB // MIB))


def test_a_list_of_models_without_an_end_fails_the_check() -> None:
    told = pytest.raises(AgentError, match="sent more than 4 MiB without an end")
    with HostileServer(long_body) as server, told:
        client(server).check()


@pytest.mark.parametrize(
    ("status", "requests", "said"),
    [(503, 2, "no reply after 2 tries: .* answered 503: x"), (400, 1, "answered 400: x")],
)
def test_of_an_error_without_an_end_the_beginning_is_read(
    status: int, requests: int, said: str
) -> None:
    def answer(path: str, body: bytes) -> Bytes:
        yield head(status, JSON)
        yield from filled(b"x")

    with HostileServer(answer) as server, pytest.raises(AgentError, match=said) as caught:
        asking = client(server, stream=False)
        asking.capabilities.given_up.add(ROLES)
        complete(asking)
    assert len(str(caught.value)) < 1000
    assert len(server.requests) == requests
    assert server.sent_bytes < 32 * MIB


def test_redirects_end_and_take_no_key_to_another_server() -> None:
    with HostileServer(streamed(OK, DONE)) as other:

        def answer(path: str, body: bytes) -> Bytes:
            place = f"{other.url}/chat" if path.endswith("3") else f"/v1/{path[-1:]}{len(path)}"
            yield head(307, "text/plain", f"Location: {place}")
            yield from filled(b"moved")

        with HostileServer(answer) as server:
            asking = client(server)
            asking.endpoint = Endpoint(server.url, "sk-0123456789abcdef")
            with pytest.raises(AgentError, match="Exceeded maximum allowed redirects"):
                complete(asking)
        assert len(server.requests) == 2 * 4
        assert server.sent_bytes < 64 * MIB

        def moved(path: str, body: bytes) -> Bytes:
            yield head(307, "text/plain", f"Location: {other.url}/chat")

        with HostileServer(moved) as server:
            asking = client(server)
            asking.endpoint = Endpoint(server.url, "sk-0123456789abcdef")
            assert complete(asking).message["content"] == "ok"
        assert "sk-0123456789abcdef" in server.requests[0]
        assert "sk-0123456789abcdef" not in other.requests[0]


def dribbling(*first: bytes, then: bytes) -> Callable[[str, bytes], Bytes]:
    def answer(path: str, body: bytes) -> Bytes:
        yield from first
        while True:
            time.sleep(0.02)
            yield then

    return answer


@pytest.mark.parametrize(
    ("answer", "stream"),
    [
        pytest.param(dribbling(b"HTTP/1.1 200 OK\r\nX: ", then=b"x"), True, id="a header"),
        pytest.param(dribbling(then=b"HTTP/1.1 100 Continue\r\n\r\n"), True, id="100 Continue"),
        pytest.param(dribbling(head(), b"data: ", then=b" "), True, id="a line"),
        pytest.param(dribbling(head(), then=b": wait\n\n"), True, id="comments"),
        pytest.param(dribbling(head(200, JSON), then=b" "), False, id="a body"),
        pytest.param(dribbling(head(503, JSON), then=b" "), True, id="an error"),
    ],
)
def test_a_byte_now_and_then_is_not_listened_to_for_ever(
    answer: Callable[[str, bytes], Bytes], stream: bool
) -> None:
    with HostileServer(answer) as server:
        asking = client(server, stream=stream, longest_s=0.3)
        asking._open()  # which takes long to load
        began_s = time.monotonic()
        with pytest.raises(AgentError, match=r"had not ended its reply after 0\.3 s"):
            complete(asking)
    assert time.monotonic() - began_s < 30
    assert len(server.requests) == 1, "an hour is not waited for once more"


@pytest.fixture
def secure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """Make a certificate for localhost that clients of this process believe."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = [
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=localhost",
    ]
    names = ["-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", *words, *names, *files], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_an_encrypted_connection_is_cut_as_well(secure: ssl.SSLContext) -> None:
    with HostileServer(streamed(OK, DONE), secure) as server:
        assert complete(client(server)).message["content"] == "ok"
    late = pytest.raises(AgentError, match="had not ended its reply")
    with HostileServer(dribbling(head(), b"data: ", then=b" "), secure) as server, late:
        complete(client(server, longest_s=0.5))


def test_a_connection_through_a_proxy_is_cut_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    late = pytest.raises(AgentError, match="had not ended its reply")
    with HostileServer(dribbling(b"HTTP/1.1 200 OK\r\nX: ", then=b"x")) as proxy, late:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
        asking = client(proxy, longest_s=0.5)
        asking.endpoint = Endpoint("http://model.invalid/v1")
        complete(asking)
    assert "http://model.invalid/v1/chat/completions" in proxy.requests[0]


def test_a_whole_reply_in_place_of_a_stream_is_read_with_its_count_of_tokens() -> None:
    call = {"id": "i", "type": "function", "function": {"name": "render", "arguments": "{}"}}
    choice = {"message": {"content": "ok", "tool_calls": [call]}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 31, "completion_tokens": 7}
    whole = json.dumps({"choices": [choice], "usage": usage}).encode()
    with HostileServer(lambda *_: iter([head(200, JSON), whole])) as server:
        asking = client(server)
        completions = [complete(asking), complete(asking)]
    assert [reply.request["stream"] for reply in completions] == [True, False]
    for reply in completions:
        assert (reply.message["content"], reply.message["tool_calls"]) == ("ok", [call])
        assert reply.usage == Usage(31, 0, 7)


@pytest.mark.parametrize("streamed_bytes", [b"", DONE])
def test_a_server_whose_stream_is_empty_is_asked_for_the_whole_reply(streamed_bytes: bytes) -> None:
    choice = {"message": {"content": "ok"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 31, "completion_tokens": 7}
    whole = json.dumps({"choices": [choice], "usage": usage}).encode()

    def answer(_: str, body: bytes) -> Bytes:
        streams = json.loads(body)["stream"]
        yield head(200, "text/event-stream" if streams else JSON)
        yield streamed_bytes if streams else whole

    with HostileServer(answer) as server:
        asking = client(server, pause_s=0.0)
        completions = [complete(asking), complete(asking)]
        assert len(server.requests) == 3
    assert [reply.request["stream"] for reply in completions] == [False, False]
    assert {reply.usage for reply in completions} == {Usage(31, 0, 7)}


@pytest.mark.parametrize("stream", [True, False])
def test_a_compressed_reply_is_read(stream: bool) -> None:
    whole = json.dumps({"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]})
    packed = gzip.compress(OK + DONE if stream else whole.encode())
    kind = "text/event-stream" if stream else JSON
    more = ("Content-Encoding: gzip", f"Content-Length: {len(packed)}")
    with HostileServer(lambda *_: iter([head(200, kind, *more), packed])) as server:
        assert complete(client(server, stream=stream)).message["content"] == "ok"


def test_a_reply_that_goes_on_too_long_ends_there() -> None:
    with HostileServer(dribbling(head(), then=chunk({"content": "word "}))) as server:
        completion = complete(client(server, longest_s=0.5))
    assert completion.finish_reason == "length"
    assert completion.message["content"].startswith("word word ")


def test_what_follows_the_end_of_a_reply_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tuner.extensions.agents.client.USAGE_TIMEOUT_S", 0.2)
    with HostileServer(dribbling(head(), OK, then=b": wait\n\n")) as server:
        completion = complete(client(server, longest_s=60.0))
    assert (completion.message["content"], completion.finish_reason) == ("ok", "stop")
    assert completion.seconds < 30


def test_the_time_of_one_reply_is_not_that_of_the_next() -> None:
    def answer(path: str, body: bytes) -> Bytes:
        time.sleep(0.2)
        yield from (head(), OK, DONE)

    with HostileServer(answer) as server:
        asking = client(server, longest_s=0.5)
        for _ in range(4):
            assert complete(asking).message["content"] == "ok"


def endless(piece: str) -> Callable[[str, bytes], Bytes]:
    def answer(path: str, body: bytes) -> Bytes:
        yield head()
        while True:
            yield chunk({"content": piece})

    return answer


@pytest.mark.parametrize(
    ("piece", "most"), [("word ", 10_000), ("word " * 400, 300_000), ("word " * 20_000, 300_000)]
)
def test_a_stream_without_an_end_spends_no_more_than_the_budget(piece: str, most: int) -> None:
    budget = TokenBudget(max_tokens=most)
    read = 0
    with HostileServer(endless(piece)) as server:
        asking = client(server, budget=budget)
        with pytest.raises(BudgetError, match=f"{most} tokens is used up"):
            while True:
                read += len(complete(asking).message["content"])
    assert budget.spent.total <= most * 1.01
    assert read / 4 <= most * 1.01, "by another count, four characters a token"


def told(usage: str) -> Callable[[str, bytes], Bytes]:
    return streamed(OK, b'data: {"choices": [], "usage": ' + usage.encode() + b"}\n\n", DONE)


@pytest.mark.parametrize(
    "usage",
    [
        '{"prompt_tokens": -900000, "completion_tokens": -5}',
        '{"prompt_tokens": 0, "completion_tokens": 0}',
        '{"prompt_tokens": 1e999, "completion_tokens": 3}',
        '{"prompt_tokens": [1], "completion_tokens": 3}',
        '{"prompt_tokens": NaN, "completion_tokens": "3"}',
        '{"prompt_tokens": 30, "completion_tokens": -1}',
        "7",
    ],
)
def test_a_count_of_tokens_that_cannot_be_is_not_believed(usage: str) -> None:
    budget = TokenBudget(max_tokens=400)
    with HostileServer(told(usage)) as server:
        asking = client(server, budget=budget)
        with pytest.raises(BudgetError):
            for _ in range(40):
                complete(asking)
    assert 100 < budget.spent.total <= 400


@pytest.mark.parametrize("stream", [True, False])
def test_more_calls_than_anybody_makes_are_left_out(stream: bool) -> None:
    many = [{"index": n, "id": f"i{n}", "function": {"name": "f"}} for n in range(1000)]

    def answer(path: str, body: bytes) -> Bytes:
        if stream:
            yield from (head(), chunk({"tool_calls": many}), DONE)
        else:
            yield head(200, JSON)
            yield json.dumps({"choices": [{"message": {"tool_calls": many}}]}).encode()

    with HostileServer(answer) as server:
        completion = complete(client(server, stream=stream))
    assert len(completion.message["tool_calls"]) == MOST_CALLS_AT_ONCE
    assert completion.finish_reason == "length"


def odd(text: str) -> bytes:
    return f"data: {text}\n\n".encode()


@pytest.mark.parametrize(
    "event",
    [
        odd("[" * 100_000),
        odd('{"choices": [], "created": ' + "9" * 5000 + "}"),
        odd("5"),
        odd("[]"),
        odd("null"),
        odd('{"choices": 5}'),
        odd('{"choices": ["x", null, []]}'),
        odd('{"error": 5}'),
        odd('{"error": {"message": [], "param": [1], "code": {}}}'),
        odd('{"model": 5, "choices": [{"finish_reason": 7, "delta": {"content": [1]}}]}'),
        b"data: \xff\xfe\n\n",
        chunk("text"),
        chunk({"tool_calls": 5}),
        chunk({"tool_calls": ["x", None]}),
        chunk({"tool_calls": [{"index": "a", "id": 5, "function": "x"}]}),
        chunk({"tool_calls": [{"index": [0], "function": {"name": 5, "arguments": 7}}]}),
        chunk({"content": "x"}, usage={"prompt_tokens": {}}),
    ],
)
def test_what_is_no_reply_is_passed_over_or_told(event: bytes) -> None:
    with HostileServer(streamed(event, OK, DONE)) as server:
        try:
            assert complete(client(server)).message["role"] == "assistant"
        except AgentError as error:
            assert server.url in error.message


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ((), b'{"error": {"message": 5, "param": 5, "code": [1], "type": {}}}'),
        ((), b"[" * 50_000),
        (("Retry-After: nan",), b"{}"),
        (("Retry-After: Fri, 31 Dec 9999 23:59:59 -2359",), b"{}"),
    ],
)
@pytest.mark.parametrize("status", [400, 429])
def test_an_odd_error_is_told_like_another(
    more: tuple[str, ...], error: bytes, status: int
) -> None:
    told = pytest.raises(AgentError, match=f"answered {status}")
    with HostileServer(lambda *_: iter([head(status, JSON, *more), error])) as server, told:
        complete(client(server, retries=0))


def test_no_command_to_a_terminal_is_passed_on() -> None:
    evil = "red \x1b[31m bell \x07 clear \x9b2J end"
    listed = json.dumps({"data": [{"id": evil}]}).encode()
    error = json.dumps({"error": {"message": evil}}).encode()
    for pieces in ([head(200, JSON), listed], [head(403, JSON), error]):
        told = pytest.raises(AgentError, match=r"red  ?\[31m bell")
        with HostileServer(lambda *_, sent=pieces: iter(sent)) as server, told as caught:
            client(server).check()
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", str(caught.value))


def names(count: int, chars: int) -> Callable[[str, bytes], Bytes]:
    listed = json.dumps({"data": [{"id": "x" * chars}] * count}).encode()
    return lambda path, body: iter([head(200, JSON), listed])


@pytest.mark.parametrize(("count", "chars"), [(150_000, 8), (1, 3_000_000)])
def test_a_long_list_of_models_takes_no_long_time(count: int, chars: int) -> None:
    with HostileServer(names(count, chars)) as server:
        asking = client(server)
        asking._open()
        began_s = time.monotonic()
        try:
            asking.check()
        except AgentError as error:
            assert len(error.remedy or "") < 2000
    assert time.monotonic() - began_s < 5


def asked(server: HostileServer, **options: object) -> dict[str, Any]:
    """Ask in a process of its own and say what it took."""
    path = Path(__file__).parents[3] / "support/asking_child.py"
    words = [sys.executable, str(path), server.url, json.dumps(options)]
    return dict(json.loads(subprocess.check_output(words, timeout=300)))


HOSTILE = [long_line, long_body, packed_line, packed_twice, event_of_lines, comments]
# Each answer in the form that was asked for: of a stream lines, otherwise a body.
AS_ASKED = [(answer, answer is not long_body) for answer in HOSTILE]


@pytest.mark.parametrize(
    ("answer", "stream"), mostly_slow(product(HOSTILE, [True, False]), [], AS_ASKED)
)
def test_a_gibibyte_without_an_end_is_not_read_to_its_end_and_costs_little_memory(
    answer: Callable[[str, bytes], Bytes], stream: bool
) -> None:
    with HostileServer(answer) as server:
        found = asked(server, stream=stream)
    most_mib = 64 if (answer, stream) == (comments, True) else 4
    assert f"sent more than {most_mib} MiB without an end" in found["said"]
    assert len(server.requests) == 2, "it is tried again, as often as another failure"
    assert server.sent_bytes < 4 * most_mib * MIB + 32 * MIB, "what the sockets hold was sent too"
    assert found["rss_mb"] < 300
