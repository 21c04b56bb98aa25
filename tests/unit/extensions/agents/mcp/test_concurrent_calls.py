"""A client that calls while it waits: twice at once, in the middle of a run, or for nothing."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import Event

import anyio
from agent_doubles import Tools
from mcp_types import CallToolResult
from served_runs import ANSWER, PLAN, Call, led, one_round, progress, text

from tuner.extensions.agents.mcp.session_runner import RunWatch
from tuner.extensions.agents.mcp_agent import Handoff, HandoffQuestion

Results = list[CallToolResult]


async def together(*calls: Callable[[], Awaitable[CallToolResult]]) -> Results:
    """Make calls at the same time; give their results in their order."""
    results: dict[int, CallToolResult] = {}

    async def kept(number: int) -> None:
        results[number] = await calls[number]()

    async with anyio.create_task_group() as group:
        for number in range(len(calls)):
            group.start_soon(kept, number)
    return [results[number] for number in range(len(calls))]


class Held:
    """Tools that wait until they are let go, and say that they have begun."""

    def __init__(self) -> None:
        self.begun, self.free = Event(), Event()
        self.tools = Tools("compile", "measure", answer=self._answer)

    def _answer(self, name: str, given: object) -> str:
        self.begun.set()
        assert self.free.wait(10.0)
        return f"{name} {given}"

    async def until_begun(self) -> None:
        while not self.begun.is_set():
            await anyio.sleep(0.01)

    @property
    def called(self) -> list[str]:
        return [name for name, _ in self.tools.called]


def test_two_starts_at_once_start_one_run(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        first, second = await together(lambda: call("start"), lambda: call("start"))
        assert sorted([first.is_error, second.is_error]) == [False, True]
        told = text(first if first.is_error else second)
        assert "a session is open already" in told

    led(tmp_path, one_round(Tools()), work)


def test_equal_calls_at_once_are_one_and_others_come_in_turn(tmp_path: Path) -> None:
    tools = Tools("compile", "measure")

    async def work(call: Call) -> None:
        await call("start")
        results = await together(
            lambda: call("compile", block=64),
            lambda: call("compile", block=64),
            lambda: call("measure", block=64),
        )
        assert [text(one) for one in results] == [
            "compile {'block': 64}",
            "compile {'block': 64}",
            "measure {'block': 64}",
        ]
        assert sorted(name for name, _ in tools.called) == ["compile", "measure"]

    led(tmp_path, one_round(tools), work)


def test_a_result_that_is_taken_twice_does_not_forget_the_call_after_it() -> None:
    seat = Handoff()
    seat.ask(HandoffQuestion(1, "", ""))
    first = seat.call("compile", {})
    seat.forget(first)
    second = seat.call("compile", {})
    seat.forget(first)
    assert seat.call("compile", {}) is second


def test_two_submissions_at_once_are_one(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        await call("start")
        first, second = await together(
            lambda: call("submit", **PLAN, **ANSWER), lambda: call("submit", **PLAN, **ANSWER)
        )
        told = sorted([text(first), text(second)])
        assert "does not compile" in told[0]
        assert "nothing is asked now" in told[1]
        assert "repair 1 of 3" in text(await call("briefing")), "one answer was refused, not two"

    led(tmp_path, one_round(Tools()), work)


def test_while_the_run_works_tools_and_submissions_are_refused_and_the_status_is_told(
    tmp_path: Path,
) -> None:
    working, free = Event(), Event()

    def busy(watch: RunWatch) -> None:
        watch.update(progress("search"))
        working.set()
        free.wait(10.0)

    async def work(call: Call) -> None:
        await call("start")
        await call("submit", **PLAN, **ANSWER)
        assert "not ready yet" in text(await call("submit", **ANSWER))
        assert working.is_set()
        assert "no round is open now" in text(await call("compile"))
        assert "nothing is asked now" in text(await call("submit", **ANSWER))
        assert "now: a candidate is searched" in text(await call("status"))
        assert "a session is open already" in text(await call("start"))
        free.set()

    led(tmp_path, one_round(Tools("compile"), busy), work, wait_s=0.5)


def test_a_submission_waits_for_the_tool_that_runs(tmp_path: Path) -> None:
    held = Held()

    async def work(call: Call) -> None:
        await call("start")

        async def submitted() -> CallToolResult:
            await held.until_begun()
            held.free.set()
            return await call("submit", **PLAN, **ANSWER)

        compiled, answered = await together(lambda: call("compile"), submitted)
        assert text(compiled) == "compile {}"
        assert "does not compile" in text(answered)

    led(tmp_path, one_round(held.tools), work)


def test_a_cancelled_call_that_has_not_begun_is_not_run(tmp_path: Path) -> None:
    held = Held()

    async def work(call: Call) -> None:
        await call("start")

        async def cancelled() -> CallToolResult:
            await held.until_begun()
            with anyio.move_on_after(0.3):
                await call("measure")
            held.free.set()
            return await call("status")

        compiled, _ = await together(lambda: call("compile"), cancelled)
        assert text(compiled) == "compile {}"
        assert not (await call("compile", block=1)).is_error
        assert held.called == ["compile", "compile"]
        assert text(await call("measure")) == "measure {}", "it may be called again"

    led(tmp_path, one_round(held.tools), work)


def test_a_call_that_another_waits_for_is_not_cancelled(tmp_path: Path) -> None:
    held = Held()

    async def work(call: Call) -> None:
        await call("start")

        async def cancelled() -> CallToolResult:
            await held.until_begun()
            with anyio.move_on_after(0.3):
                await call("measure")
            held.free.set()
            return await call("status")

        async def waiting() -> CallToolResult:
            await held.until_begun()
            return await call("measure")

        _, _, measured = await together(lambda: call("compile"), cancelled, waiting)
        assert text(measured) == "measure {}"
        assert held.called == ["compile", "measure"]

    led(tmp_path, one_round(held.tools), work)


def test_the_result_of_a_cancelled_call_that_runs_is_there_for_the_same_call(
    tmp_path: Path,
) -> None:
    held = Held()

    async def work(call: Call) -> None:
        await call("start")
        with anyio.move_on_after(0.3):
            await call("compile")
        held.free.set()
        assert text(await call("compile")) == "compile {}"
        assert held.called == ["compile"]

    led(tmp_path, one_round(held.tools), work)


def test_a_cancelled_submission_was_made_all_the_same(tmp_path: Path) -> None:
    held = Held()

    async def work(call: Call) -> None:
        await call("start")

        async def cancelled() -> CallToolResult:
            await held.until_begun()
            with anyio.move_on_after(0.3):
                await call("submit", **PLAN, **ANSWER)
            held.free.set()
            return await call("briefing")

        _, told = await together(lambda: call("compile"), cancelled)
        assert "does not compile" in text(told)

    led(tmp_path, one_round(held.tools), work)


def test_many_calls_that_wait_hold_up_no_other(tmp_path: Path) -> None:
    free = Event()

    def busy(watch: RunWatch) -> None:
        free.wait(60.0)

    async def work(call: Call) -> None:
        await call("start")
        await call("submit", **PLAN, **ANSWER)
        await call("submit", **ANSWER)

        async def asked() -> CallToolResult:
            await anyio.sleep(0.3)
            began_s = time.monotonic()
            told = await call("status")
            await anyio.to_thread.run_sync(time.sleep, 0.0)  # as writing an answer does
            assert time.monotonic() - began_s < 7.5, "as long as the others wait"
            free.set()
            return told

        *_, told = await together(*[lambda: call("briefing")] * 300, asked)
        assert "now: " in text(told)

    led(tmp_path, one_round(Tools(), busy), work, wait_s=10.0)
