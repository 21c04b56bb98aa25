"""What Dask calls on a worker, and what carries the worker's slot to it."""

from __future__ import annotations

from typing import Protocol

from distributed import WorkerPlugin, get_worker

NAME = "tune"


class Answers(Protocol):
    def answer(self, sealed: bytes) -> bytes: ...


class SlotPlugin(WorkerPlugin):  # type: ignore[misc]
    """Holds a slot for the tasks of its worker."""

    name = NAME

    def __init__(self, slot: Answers) -> None:
        self.slot = slot


def answer(sealed: bytes) -> bytes:
    """Answer a signed request on the worker that runs this.

    The scheduler imports this module too, when it unpickles a task: it imports nothing else of us.
    """
    slot: Answers = get_worker().plugins[NAME].slot
    return slot.answer(sealed)
