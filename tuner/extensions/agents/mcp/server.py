"""Serve the rounds over the Model Context Protocol: list the tools, and pass calls to the run."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server import NotificationOptions, Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from tuner.extensions.agents.mcp.arguments import (
    LEADING,
    BriefingArguments,
    FinishArguments,
    StartArguments,
    StatusArguments,
    SubmitArguments,
)
from tuner.extensions.agents.mcp.session_runner import ServedRun, SessionRunner
from tuner.extensions.agents.rounds import REPAIRS
from tuner.extensions.agents.tools.arguments import check_arguments
from tuner.model import TUNER_VERSION
from tuner.model.errors import InputError, TunerError
from tuner.session.events import Tool

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

# How long a call sleeps before it says again how far the run is.
SLICE_S = 0.5
MOST_THREADS = 16
INSTRUCTIONS = (
    "Tune a CUDA kernel: `start`, then in every round read the `briefing`, try ideas with the "
    "tools, and `submit` a plan, a template and its search space; `finish` gives the results. A "
    "call that waits too long says so: repeat it."
)
Context = ServerRequestContext[Any, Any]


class Service:
    """Answer a client's requests; `wait_s` is the longest that a call waits for the run."""

    def __init__(self, runner: SessionRunner, wait_s: float) -> None:
        self._runner, self._wait_s = runner, wait_s
        self._opening = anyio.Lock()
        # Not those that answers are written in: however many calls wait, others are answered.
        self._threads = anyio.CapacityLimiter(MOST_THREADS)
        self._bus = InMemorySubscriptionBus()
        self._listed: tuple[Tool, ...] | None = None
        self._briefed: object = None

    def server(self) -> Server[Any]:
        """Make the protocol's side of it."""
        return Server(
            "tune",
            version=TUNER_VERSION,
            instructions=INSTRUCTIONS,
            on_list_tools=self._list,
            on_call_tool=self._call,
            on_subscriptions_listen=ListenHandler(self._bus),
        )

    async def _list(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        self._listed = self._runner.tools()
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool.name, description=tool.description, input_schema=dict(tool.parameters)
                )
                for tool in self._listed
            ]
        )

    async def _call(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        name, arguments = params.name, params.arguments or {}
        leading: dict[str, Callable[..., Awaitable[types.CallToolResult]]] = {
            "start": self._start,
            "status": self._status,
            "briefing": self._briefing,
            "submit": self._submit,
            "finish": self._finish,
        }
        try:
            if name in LEADING:
                given = check_arguments(LEADING[name], name, arguments)
                result = await leading[name](context, given)
            else:
                result = await self._try(context, name, arguments)
        except TunerError as error:
            result = _result(str(error), failed=True)
        # Tell a client that has read the list that it is another one now.
        tools = self._runner.tools()
        if self._listed is not None and tools != self._listed:
            self._listed = tools
            await self._bus.publish(ToolsListChanged())
            if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
                await context.session.send_tool_list_changed()
        return result

    async def _start(self, context: Context, given: StartArguments) -> types.CallToolResult:
        async with self._opening:
            run = self._runner.start(given)
        await self._until(context, run, 0)
        if run.over:
            return _result_of_end(run)
        if run.handoff.question is None:
            return _result(f"started; {_busy(run)}")
        return _result(f"{run.watch.text()}\n\nRound {run.handoff.question.round} is open. {_READ}")

    async def _briefing(self, context: Context, given: BriefingArguments) -> types.CallToolResult:
        run = self._runner.current
        if run.handoff.question is None:

            def can_answer() -> bool:
                return run.handoff.question is not None or run.over or run.watch.deciding

            await self._until(context, run, run.handoff.turn, can_answer)
        question = run.handoff.question
        if question is None:
            return _result_of_end(run) if run.over else _result(_busy(run))
        new = self._briefed is not run
        self._briefed = run
        parts = [question.rules] if new or given.whole else []
        parts.append(question.text)
        if not parts[1:]:
            parts.append("(The rules and formats are as before; `briefing` with whole repeats.)")
        if question.problem:
            parts.append(_refusal(question.problem, question.refusals))
        elif question.planned:
            parts.append("The plan is settled; `submit` a template and a space for it.")
        return _result("\n\n".join(parts))

    async def _submit(self, context: Context, given: SubmitArguments) -> types.CallToolResult:
        run = self._runner.current
        asked = run.handoff.question
        noted = len(run.watch.notes)
        turn = run.handoff.submit(given.submission())
        await self._until(context, run, turn)
        question = run.handoff.question
        if question is not None and asked is not None and question.round == asked.round:
            return _result(_refusal(question.problem, question.refusals), failed=True)
        if question is not None:
            return _result(f"{question.recap}\n\nRound {question.round} is open. {_READ}")
        if run.over:
            return _result_of_end(run)
        notes = "\n".join(f"- {note}" for note in run.watch.notes[noted:])
        return _result(f"{notes}\n\n{_busy(run)}")

    async def _finish(self, context: Context, given: FinishArguments) -> types.CallToolResult:
        run = self._runner.current
        run.handoff.finish()
        await self._until(context, run, run.handoff.turn, lambda: run.over)
        return _result_of_end(run) if run.over else _result(_busy(run, "finish"))

    async def _status(self, context: Context, given: StatusArguments) -> types.CallToolResult:
        run = self._runner.current
        if run.over:
            return _result_of_end(run)
        question = run.handoff.question
        if question is None:
            doing = f"now: {run.watch.line()}"
        else:
            doing = f"now: round {question.round} waits for `submit`"
        return _result(f"{run.watch.text()}\n{doing}")

    async def _try(
        self, context: Context, name: str, arguments: Mapping[str, Any]
    ) -> types.CallToolResult:
        known = [tool.name for tool in self._runner.tools()]
        if name not in known:
            raise InputError(f"there is no tool {name[:80]!r}", remedy=f"tools: {', '.join(known)}")
        run = self._runner.current
        call = run.handoff.call(name, arguments)
        call.waiting += 1
        try:
            await self._wait(
                context, lambda: bool(wait_for([call.result], SLICE_S).done), lambda: f"{name} runs"
            )
        except anyio.get_cancelled_exc_class():
            call.waiting -= 1
            run.handoff.drop(call)
            raise
        call.waiting -= 1
        if not call.result.done():
            return _result(
                f"{name} is not done yet; call it again with the same arguments to wait on",
                failed=True,
            )
        run.handoff.forget(call)
        try:
            return _result(call.result.result())
        except CancelledError:
            return _result_of_end(run)

    async def _until(
        self, context: Context, run: ServedRun, turn: int, reached: Callable[[], bool] | None = None
    ) -> None:
        """Wait for the next question or the end of the rounds, and no longer than is allowed."""
        is_over = reached or (lambda: run.handoff.turn > turn or run.over or run.watch.deciding)

        def wait() -> bool:
            return is_over() or (run.handoff.wait(turn, SLICE_S) and is_over())

        await self._wait(context, wait, run.watch.line)

    async def _wait(
        self, context: Context, wait: Callable[[], bool], line: Callable[[], str]
    ) -> None:
        """Wait until `wait`, which sleeps a slice, says so; tell the client how far it is."""
        seconds = 0.0
        with anyio.move_on_after(self._wait_s):
            while not await anyio.to_thread.run_sync(
                wait, abandon_on_cancel=True, limiter=self._threads
            ):
                seconds += SLICE_S
                await context.session.report_progress(seconds, None, line())


_READ = "Read its `briefing`."


def _refusal(problem: str, refusals: int) -> str:
    left = f" (repair {refusals} of {REPAIRS})" if refusals else ""
    return f"Refused:\n{problem}\n\n`submit` the whole template and space again{left}."


def _busy(run: ServedRun, again: str = "briefing") -> str:
    if run.watch.deciding:
        return f"not ready yet: {run.watch.line()}; call `finish` to wait for the results"
    return f"not ready yet: {run.watch.line()}; call `{again}` to wait on"


def _result_of_end(run: ServedRun) -> types.CallToolResult:
    ending = run.ending
    said = ending.text if ending.data is None else f"The run is over.\n\n{ending.text}"
    return types.CallToolResult(
        content=[types.TextContent(text=said)],
        structured_content=None if ending.data is None else dict(ending.data),
        is_error=ending.failed,
    )


def _result(text: str, *, failed: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=failed)


CHUNK_BYTES = 1 << 16
# Many times the largest template and space; what is left of a longer line is no message.
MOST_LINE_BYTES = 16 << 20


@contextmanager
def reserve_stdio() -> Iterator[tuple[int, int]]:
    """Give copies of standard input and output that nothing else in the process knows.

    Until the end, whoever reads standard input finds it empty, and what is printed goes to
    standard error, that of kernels and child processes too.
    """
    sys.stdout.flush()
    kept = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    try:
        yield kept
    finally:
        sys.stdout.flush()
        for number, copy in enumerate(kept):
            os.dup2(copy, number)


class Lines:
    """The lines that come in at a descriptor, for `async for`.

    A thread reads them that is never waited for: a read cannot be interrupted, and on Ctrl-C there
    is nothing more to read.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        Thread(target=self._read, name="standard input", daemon=True).start()

    def __aiter__(self) -> Lines:
        return self

    async def __anext__(self) -> str:
        line = await self._lines.get()
        if line is None:
            raise StopAsyncIteration
        return line

    def _read(self) -> None:
        line = bytearray()
        while chunk := os.read(self._descriptor, CHUNK_BYTES):
            first, *others = chunk.split(b"\n")
            line += first[: MOST_LINE_BYTES - len(line)]
            for other in others:
                self._put(line.decode("utf-8", errors="replace"))
                line = bytearray(other)
        self._put(None)

    def _put(self, line: str | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)


INTERRUPTED = 130
# What is being compiled or measured is brought to its end, each within its own limit.
STOPPING_S = 60.0


def serve(runner: SessionRunner, *, wait_s: float) -> int:
    """Serve until the client goes or a signal comes, then stop the run; return the exit code."""
    with reserve_stdio() as (incoming, outgoing):
        code = anyio.run(_serve, runner, wait_s, incoming, outgoing)
        # A client that grows impatient ends in earnest soon after.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        runner.join(STOPPING_S)
    return code


async def _serve(runner: SessionRunner, wait_s: float, incoming: int, outgoing: int) -> int:
    codes: list[int] = []
    server = Service(runner, wait_s).server()
    options = server.create_initialization_options(NotificationOptions(tools_changed=True))
    # Read one by one, they are all that the transport wants of a file.
    lines = cast("anyio.AsyncFile[str]", Lines(incoming))
    out = anyio.wrap_file(os.fdopen(outgoing, "w", encoding="utf-8", closefd=False))
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_end_on_signal, group, codes)
            async with stdio_server(stdin=lines, stdout=out) as (reading, writing):
                await server.run(reading, writing, options)
            group.cancel_scope.cancel()
    finally:
        runner.stop()
    return codes[0] if codes else 0


async def _end_on_signal(group: TaskGroup, codes: list[int]) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            codes.append(INTERRUPTED)
            group.cancel_scope.cancel()
