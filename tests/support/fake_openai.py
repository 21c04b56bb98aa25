"""An OpenAI-compatible server over a real socket, whose model follows a script.

    with FakeOpenAI([calls(("render", {"block": 64})), failure(429), "the plan"]) as server:
        run(..., env=server.environ)
    assert server.chats[1].messages[-1]["role"] == "tool"

Each chat request takes the next step: a text, a `Reply`, or a function of the request that returns
one, so that a scripted model can react to what it is told.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import takewhile, zip_longest
from typing import Any

MODEL = "fake-model"
KEY = "sk-fake-0123456789abcdef"
PIECE_CHARS = 20
CHARS_PER_TOKEN = 4


@dataclass(frozen=True)
class Reply:
    """What the server does with one request; `calls`, `dropped` and the like below make some.

    `drop_after` closes the connection after so many chunks, or sends `stream_error` there.
    `usage` is (input, cached, output) tokens; by default they are counted from the characters,
    as cached what the request has in common with the beginning of the one before.
    """

    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    finish: str = ""
    reasoning: str = ""
    refusal: str = ""
    usage: tuple[int, int, int] | None = None
    drop_after: int | None = None
    ends_quietly: bool = False
    stream_error: str = ""
    status: int = 200
    error: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0


def calls(*wanted: tuple[str, Mapping[str, Any] | str], text: str = "") -> Reply:
    """Call tools, in parallel where there are several; arguments that are text are sent as such."""
    written = tuple((n, a if isinstance(a, str) else json.dumps(a)) for n, a in wanted)
    return Reply(text=text, calls=written)


def truncated(text: str) -> Reply:
    return Reply(text=text, finish="length")


def dropped(text: str, after: int = 2, *, quietly: bool = False) -> Reply:
    """Close the connection in mid-stream; quietly, as servers without chunked encoding do."""
    return Reply(text=text, drop_after=after, ends_quietly=quietly)


def failure(
    status: int,
    message: str = "failed",
    *,
    retry_after: float | None = None,
    code: str = "",
    param: str = "",
) -> Reply:
    # Tests wait no longer than they say.
    headers = {"Retry-After-Ms": "1"} if retry_after is None else {"Retry-After": f"{retry_after}"}
    error = {"message": message, "code": code or None, "param": param or None}
    return Reply(status=status, error=error, headers=headers)


@dataclass(frozen=True)
class Request:
    """One request as it came in; of the headers only the names."""

    method: str
    path: str
    header_names: tuple[str, ...]
    body: Mapping[str, Any]

    @property
    def messages(self) -> list[dict[str, Any]]:
        return list(self.body["messages"])

    @property
    def said(self) -> str:
        return "\n".join(str(message.get("content")) for message in self.messages)

    @property
    def last(self) -> str:
        return str(self.messages[-1]["content"])


Step = str | Reply | Callable[[Request], str | Reply]


class FakeOpenAI:
    """Serve a script; `refuses` names parameters that are answered with 400.

    A name with a value, `response_format=json_schema`, refuses only that value. `models` is what
    /models lists, None for a server without the list; `key` is asked for where it is not empty.
    """

    def __init__(
        self,
        script: Sequence[Step],
        *,
        models: Sequence[str] | None = (MODEL,),
        key: str = KEY,
        refuses: Sequence[str] = (),
        refusal: Callable[[str], Reply] | None = None,
    ) -> None:
        self.script = list(script)
        self.models = models
        self.key = key
        self.refuses = tuple(refuses)
        self.refusal = refusal or (
            lambda name: failure(
                400,
                f"Unsupported parameter: '{name}' is not supported",
                code="unsupported_parameter",
                param=name,
            )
        )
        self.requests: list[Request] = []
        self.chats: list[Request] = []  # those that took a step of the script
        self.errors: list[Exception] = []
        self.lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def environ(self) -> dict[str, str]:
        key = {"OPENAI_API_KEY": self.key} if self.key else {}
        return {"OPENAI_BASE_URL": self.url, **key}

    @property
    def left(self) -> int:
        return len(self.script) - len(self.chats)

    def __enter__(self) -> FakeOpenAI:
        fake = self

        class Handler(_Handler):
            owner = fake

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        if self.errors and kind is None:
            raise self.errors[0]

    def answer(self, request: Request, authorization: str) -> Reply | list[str]:
        """Choose what to do with a request; a list is that of the models."""
        self.requests.append(request)
        if self.key and authorization != f"Bearer {self.key}":
            given = authorization.removeprefix("Bearer ")
            return failure(401, f"Incorrect API key provided: {given}", code="invalid_api_key")
        if request.path == "/v1/models" and self.models is not None:
            return list(self.models)
        if request.path != "/v1/chat/completions":
            return failure(404, "Not Found")
        if self.models and request.body["model"] not in self.models:
            message = f"The model `{request.body['model']}` does not exist"
            return failure(404, message, code="model_not_found")
        for name in self.refuses:
            if _has(request.body, name):
                return self.refusal(name.partition("=")[0])
        with self.lock:
            if not self.left:
                return failure(410, "the script is over")
            self.chats.append(request)
            step = self.script[len(self.chats) - 1]
        return self._played(step, request)

    def _played(self, step: Step, request: Request) -> Reply:
        try:
            made = step(request) if callable(step) else step
        except Exception as error:  # noqa: BLE001
            self.errors.append(error)
            return failure(410, f"the script failed: {error!r}")
        reply = Reply(text=made) if isinstance(made, str) else made
        return reply if reply.usage else replace(reply, usage=self._usage(request, reply))

    def _usage(self, request: Request, reply: Reply) -> tuple[int, int, int]:
        at = next(i for i, chat in enumerate(self.chats) if chat is request)
        sent = json.dumps(request.body["messages"])
        before = json.dumps(self.chats[at - 1].body["messages"]) if at else ""
        pairs = zip(sent, before, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        written = len(reply.text) + len(reply.reasoning) + sum(len(a) for _, a in reply.calls)
        return len(sent) // CHARS_PER_TOKEN, same // CHARS_PER_TOKEN, written // CHARS_PER_TOKEN


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that hang up, which they may."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: FakeOpenAI

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._serve({})

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        self._serve(json.loads(self.rfile.read(length)))

    def _serve(self, body: Mapping[str, Any]) -> None:
        names = tuple(name.lower() for name in self.headers)
        request = Request(self.command, self.path, names, body)
        answer = self.owner.answer(request, self.headers.get("Authorization", ""))
        if isinstance(answer, list):
            listed = [{"id": name, "object": "model"} for name in answer]
            self._json(200, {"object": "list", "data": listed})
        elif answer.status != 200:
            self._json(answer.status, {"error": dict(answer.error)}, answer.headers)
        elif body.get("stream"):
            self._stream(answer, body)
        else:
            self._json(200, _whole(answer, body))

    def _json(self, status: int, value: object, headers: Mapping[str, str] | None = None) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, reply: Reply, body: Mapping[str, Any]) -> None:
        chunked = not reply.ends_quietly
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header(
            *(("Transfer-Encoding", "chunked") if chunked else ("Connection", "close"))
        )
        self.end_headers()
        threading.Event().wait(reply.delay_s)
        try:
            for count, chunk in enumerate(_chunks(reply, body)):
                if count == reply.drop_after and reply.stream_error:
                    error = {"error": {"message": reply.stream_error, "code": None}}
                    self._event(json.dumps(error), chunked)
                    break
                if count == reply.drop_after:
                    self._drop(chunked)
                    return
                self._event(json.dumps(chunk), chunked)
            self._event("[DONE]", chunked)
            if chunked:
                self.wfile.write(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client has read enough

    def _event(self, data: str, chunked: bool) -> None:
        event = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event) if chunked else event)
        self.wfile.flush()

    def _drop(self, abruptly: bool) -> None:
        self.close_connection = True
        if abruptly:  # a reset instead of an end
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _has(body: Mapping[str, Any], refused: str) -> bool:
    name, equals, value = refused.partition("=")
    if name not in body:
        return False
    found = body[name]
    return not equals or value == str(found.get("type") if isinstance(found, Mapping) else found)


def _finish(reply: Reply) -> str:
    return reply.finish or ("tool_calls" if reply.calls else "stop")


def _usage(reply: Reply) -> dict[str, Any]:
    assert reply.usage is not None
    sent, cached, written = reply.usage
    return {
        "prompt_tokens": sent,
        "completion_tokens": written,
        "total_tokens": sent + written,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _whole(reply: Reply, body: Mapping[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.calls:
        message["tool_calls"] = [
            {"id": f"id{i}", "type": "function", "function": {"name": n, "arguments": a}}
            for i, (n, a) in enumerate(reply.calls)
        ]
    choice = {"index": 0, "message": message, "finish_reason": _finish(reply)}
    head = {"id": "chat", "object": "chat.completion", "created": 0, "model": body["model"]}
    return {**head, "choices": [choice], "usage": _usage(reply)}


def _chunks(reply: Reply, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    head = {"id": "chat", "object": "chat.completion.chunk", "created": 0, "model": body["model"]}

    def chunk(delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
        choices = [{"index": 0, "delta": dict(delta), "finish_reason": finish}]
        return {**head, "choices": choices}

    yield chunk({"role": "assistant", "content": ""})
    for key, text in (
        ("reasoning_content", reply.reasoning),
        ("refusal", reply.refusal),
        ("content", reply.text),
    ):
        yield from (chunk({key: piece}) for piece in _pieces(text))
    yield from (chunk({"tool_calls": [delta]}) for delta in _call_deltas(reply.calls))
    yield chunk({}, _finish(reply))
    if (body.get("stream_options") or {}).get("include_usage"):
        yield {**head, "choices": [], "usage": _usage(reply)}


def _call_deltas(wanted: Sequence[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    for i, (name, _) in enumerate(wanted):
        function = {"name": name, "arguments": ""}
        yield {"index": i, "id": f"id{i}", "type": "function", "function": function}
    for round_of_pieces in zip_longest(*(_pieces(arguments) for _, arguments in wanted)):
        for i, piece in enumerate(round_of_pieces):
            if piece is not None:
                yield {"index": i, "function": {"arguments": piece}}


def _pieces(text: str) -> list[str]:
    return [text[i : i + PIECE_CHARS] for i in range(0, len(text), PIECE_CHARS)]
