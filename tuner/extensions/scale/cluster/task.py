"""How a request reaches a worker's slot: by a connection of its own, or as a task of Dask's."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from distributed import WorkerPlugin, get_worker
from distributed.threadpoolexecutor import ThreadPoolExecutor

NAME = "tune"
# Opening a kernel takes long, and who asks for a slot that is held shall not wait for it.
OTHERS = 4


class Answers(Protocol):
    def answer(self, sealed: bytes) -> bytes: ...


class SlotPlugin(WorkerPlugin):  # type: ignore[misc]
    """Holds a slot for the requests to its worker, with a pool of threads for each kind of them."""

    name = NAME

    def __init__(self, slot: Answers, compilers: int) -> None:
        self.slot = slot
        self._sizes = {"device": 1, "compile": compilers, "other": OTHERS}

    def setup(self, worker: Any) -> None:
        """Take requests that come straight from a coordinator, beside Dask's own messages."""
        # Dask's threads don't keep a process from ending, as a call that hangs would.
        self._pools = {
            pool: ThreadPoolExecutor(size, thread_name_prefix=f"tune-{pool}")
            for pool, size in self._sizes.items()
        }
        # Dask ends them with the worker.
        worker.executors.update({f"tune-{pool}": made for pool, made in self._pools.items()})
        worker.handlers[NAME] = self.call

    async def call(self, comm: Any, pool: str, sealed: bytes) -> bytes:
        """Answer a signed request once a thread is free, if anybody still waits for the answer."""

        def answered() -> bytes:
            return b"" if comm.closed() else self.slot.answer(sealed)

        return await asyncio.get_running_loop().run_in_executor(self._pools[pool], answered)


def answer(sealed: bytes) -> bytes:
    """Answer a signed request on the worker that runs this task.

    The scheduler imports this module too, when it unpickles a task: it imports nothing else of us.
    """
    slot: Answers = get_worker().plugins[NAME].slot
    return slot.answer(sealed)
