"""A client and a server in one process, before a run that is made up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
from agent_doubles import Kept, Tools, briefing
from mcp.client import Client
from mcp_types import CallToolResult

from tuner.extensions.agents.mcp.arguments import Ending, StartArguments
from tuner.extensions.agents.mcp.server import Service
from tuner.extensions.agents.mcp.session_runner import RunWatch, SessionRunner, Tuning
from tuner.extensions.agents.mcp_agent import Handoff, McpAgent
from tuner.model.kernel import Workload
from tuner.model.progress import Phase, Progress, WorkloadProgress

PLAN = {"hypothesis": "why", "change": "what", "expectations": [{"metric": "time_us", "factor": 1}]}
ANSWER = {"template": "__global__ void f() {}", "space": "version: 1"}
Call = Callable[..., Awaitable[CallToolResult]]


class Quiet:
    def update(self, progress: Progress) -> None:
        """Show nothing."""


def led(
    root: Path, tuning: Tuning, work: Callable[[Call], Awaitable[None]], wait_s: float = 10.0
) -> None:
    """Let a client in this process work with a server."""

    def stoppable(wish: StartArguments, seat: Handoff, watch: RunWatch) -> Ending:
        try:
            return tuning(wish, seat, watch)
        except KeyboardInterrupt:
            return Ending("stopped", failed=True)

    desk = SessionRunner(root, stoppable, Quiet())

    async def main() -> None:
        async with Client(Service(desk, wait_s).server()) as client:

            async def call(name: str, **arguments: Any) -> CallToolResult:
                return await client.call_tool(name, arguments)

            await work(call)

    anyio.run(main)
    desk.stop()
    assert desk.join(10.0)


def text(result: CallToolResult) -> str:
    (part,) = result.content
    assert part.type == "text"
    return part.text


def progress(phase: Phase, note: str = "") -> Progress:
    workload = Workload((("N", 64),))
    one = WorkloadProgress(workload, 10, baseline_us=12.0, best_us=4.0)
    return Progress("scale", "a GPU", phase, (one,), None, 3.0, 1.0, note=note)


def one_round(
    tools: Tools, after: Callable[[RunWatch], None] = lambda watch: None
) -> Callable[[StartArguments, Handoff, RunWatch], Ending]:
    """Make a run of one round whose first answer is refused."""

    def tuning(wish: StartArguments, seat: Handoff, watch: RunWatch) -> Ending:
        watch.update(progress("agent"))
        conversation = McpAgent(seat).converse(briefing(), tools, Kept())
        if conversation.plan() is None:
            return Ending("no round", {"workloads": []})
        conversation.refactor()
        conversation.repair("does not compile")
        watch.update(progress("agent", "round 1: 1.20x over the baseline"))
        after(watch)
        return Ending("it is done", {"workloads": [1]})

    return tuning
