"""Serve the client that started this process, over its standard input and output."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, cast

import anyio
from mcp.server import NotificationOptions
from mcp.server.stdio import stdio_server

from tuner.serving.desk import Desk
from tuner.serving.server import Service
from tuner.serving.wire import Lines, reserved

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

INTERRUPTED = 130
# What is being compiled or measured is brought to its end, each within its own limit.
STOPPING_S = 60.0


def serve(desk: Desk, *, wait_s: float) -> int:
    """Serve until the client goes or a signal comes, then stop the run; return the exit code."""
    with reserved() as (incoming, outgoing):
        code = anyio.run(_serve, desk, wait_s, incoming, outgoing)
        # A client that grows impatient ends in earnest soon after.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        desk.join(STOPPING_S)
    return code


async def _serve(desk: Desk, wait_s: float, incoming: int, outgoing: int) -> int:
    codes: list[int] = []
    server = Service(desk, wait_s).server()
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
        desk.stop()
    return codes[0] if codes else 0


async def _end_on_signal(group: TaskGroup, codes: list[int]) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            codes.append(INTERRUPTED)
            group.cancel_scope.cancel()
