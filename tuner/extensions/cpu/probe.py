"""A kernel that runs on the CPU with content of our own, each array with a gap behind it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tuner.device.base import Program
from tuner.device.encoding import Array
from tuner.device.inputs import NORMAL
from tuner.device.layout import PAGE_BYTES, UNCHANGED, lay_out
from tuner.device.verify.reference_process import ReferenceProcess
from tuner.device.verify.shared_memory import SharedMemory
from tuner.extensions.cpu.worker import HostRunError, HostWorker
from tuner.model.kernel import KernelSpec, Workload
from tuner.model.trial import Correctness

Contents = Mapping[str, Array]
_GUARD = 0x5A
_MOST_GAP_BYTES = 1 << 20
_BEYOND = re.compile(
    r"(\d+) bytes from the start of parameter (\d+), beyond its end(?:.*, in launch (\d+)$)?"
)
_LINE = re.compile(r"\((\d+)\): (?:read|write|misaligned|SEGV)")


class BeyondError(Exception):
    """Report an access outside an array: which one, how far from its start, and the source's line.

    `array` is None where no array is near.
    """

    def __init__(self, message: str, array: str | None, byte: int, line: int | None) -> None:
        super().__init__(message)
        self.message, self.array, self.byte, self.line = message, array, byte, line


class Probe:
    """Run one program on one workload; close it at the end.

    The program was compiled with the sanitizer of addresses, and `environment` loads that
    (`preload`). All arrays may be read and written, whatever the file declares.
    """

    def __init__(
        self,
        spec: KernelSpec,
        reference: ReferenceProcess,
        workload: Workload,
        environment: Mapping[str, str],
        timeout_s: float,
    ) -> None:
        users = [a for a in spec.arguments if not a.added]
        arguments = tuple(a if a.is_scalar else replace(a, role="inout") for a in users)
        self._spec = replace(spec, arguments=arguments)
        self._reference, self._workload = reference, workload
        self._written = [a.name for a in users if a.role in ("output", "scratch") and not a.zeroed]
        self._layout = lay_out(self._spec, workload.values, by_pages=True)
        self._rooms: dict[str, int] = {}
        self._memory = SharedMemory()
        self._worker = HostWorker(timeout_s, environment)

    def draw(self, seed: int, kind: str = NORMAL) -> dict[str, Array]:
        """Draw what every array holds: inputs as the file says, what is written any bits."""
        drawn = self._reference.draw(self._workload, kind, seed)
        rng = np.random.default_rng(seed)
        for name in self._written:
            drawn[name].view(np.uint8)[...] = rng.integers(0, 256, drawn[name].nbytes, np.uint8)
        return drawn

    def judge(self, seed: int, kind: str, left: Contents) -> Correctness:
        """Compare what a run left of the inputs drawn so with the reference."""
        return self._reference.judge(self._workload, kind, seed, left)

    def redraw(self, before: Contents, seed: int) -> Contents:
        """Draw other content; of what is written all bits turn, so that none agrees by chance."""
        turned = {name: ~before[name].view(np.uint8) for name in self._written}
        return self.draw(seed) | {n: bits.view(before[n].dtype) for n, bits in turned.items()}

    def run(self, program: Program, contents: Contents) -> Contents:
        """Run the program once; return what the arrays hold then.

        An array is as large as its content. Raises `BeyondError` for the first access outside all
        of them, and `HostRunError` where the program does not end as it should.
        """
        slots, end = [], 0
        for slot in self._layout.slots:
            size = contents[slot.name].nbytes
            # A smaller one leaves its room empty: what is beyond it stays beyond it.
            room = self._rooms[slot.name] = max(size, self._rooms.get(slot.name, 0))
            offset = _pages(end + PAGE_BYTES)
            slots.append(replace(slot, offset=offset, size_bytes=size, shape=(size,)))
            end = offset + room + min(room, _MOST_GAP_BYTES)
        layout = replace(self._layout, slots=tuple(slots), total_bytes=_pages(end + PAGE_BYTES))
        arena = self._memory.open(self._workload.key, layout)
        data = self._memory.data
        data[...] = _GUARD
        spans = {s.name: slice(s.offset, s.offset + s.size_bytes) for s in layout.slots}
        for name, span in spans.items():
            data[span] = contents[name].view(np.uint8)
        self._worker.attach(arena)
        self._worker.memory.renew(UNCHANGED)
        try:
            self._worker.run(program, 0, _GUARD)
            self._worker.memory.show()
        except HostRunError as error:
            raise self._beyond(error, program) or error from error
        finally:
            found = {n: data[span].view(contents[n].dtype).copy() for n, span in spans.items()}
            del data
        return found

    def close(self) -> None:
        self._worker.kill()
        self._memory.close()

    def _beyond(self, error: HostRunError, program: Program) -> BeyondError | None:
        match, line = _BEYOND.search(error.message), _LINE.search(error.message)
        at = int(line[1]) if line else None
        if match is None:
            is_access = "outside" in error.message or "SEGV" in error.message
            return BeyondError(error.message, None, 0, at) if is_access else None
        launch = program.launches[int(match[3] or 1) - 1]
        arguments = self._spec.taken(launch) if match[3] else self._spec.arguments
        argument = arguments[int(match[2]) - 1]
        return BeyondError(error.message, argument.name, int(match[1]), at)


def _pages(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES
