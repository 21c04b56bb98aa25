"""A reference that runs in a process of its own, where no device needs its memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from tuner.device.bounded import MOST_BYTES, BoundedProcess
from tuner.device.encoding import Array, storage_dtype
from tuner.device.layout import lay_out
from tuner.device.reference import LIMIT_S
from tuner.device.verify.shared_memory import available_bytes
from tuner.device.verify.telling import TellingVerifier
from tuner.device.verify.verifier import HostMemory
from tuner.model.kernel import KernelSpec, Workload
from tuner.model.trial import Correctness


class ReferenceProcess:
    """Draw inputs and judge outputs by a reference that may stop, end or fill its process.

    All raise `KernelError` for what it does. Close it at the end.
    """

    def __init__(self, spec: KernelSpec, operators: Mapping[str, str]) -> None:
        # A right one may need much: only that something is left for others is asked of it.
        most = max(MOST_BYTES, (available_bytes() or 0) // 2)
        self._process = BoundedProcess(
            *(spec.reference, _Judge, spec, dict(operators)),
            limit_s=LIMIT_S,
            most_bytes=most,
            ahead=__name__,
        )

    def draw(self, workload: Workload, kind: str, seed: int) -> dict[str, Array]:
        """Draw what every array holds: inputs as the file says, the rest is poison."""
        return cast("dict[str, Array]", self._process.call("draw", workload, kind, seed))

    def judge(
        self, workload: Workload, kind: str, seed: int, left: Mapping[str, Array]
    ) -> Correctness:
        """Compare what a run left of the inputs drawn so with the reference."""
        return cast("Correctness", self._process.call("judge", workload, kind, seed, left))

    def require_telling(self) -> None:
        """Raise `KernelError` where an input changes nothing, or nothing changes an output."""
        self._process.call("require_telling")

    def close(self) -> None:
        self._process.close()


class _Judge(TellingVerifier):
    def __init__(self, spec: KernelSpec, operators: Mapping[str, str]) -> None:
        super().__init__(HostMemory(), spec, operators)

    def draw(self, workload: Workload, kind: str, seed: int) -> dict[str, Array]:
        if workload != self._workload:
            self.open_arena(workload, lay_out(self._spec, workload.values))
        self.prepare(workload, kind, seed)
        return {
            slot.name: self._bytes(slot).view(storage_dtype(slot.dtype)).copy()
            for slot in self._layout.slots
        }

    def judge(
        self, workload: Workload, kind: str, seed: int, left: Mapping[str, Array]
    ) -> Correctness:
        self.draw(workload, kind, seed)
        for slot in self._layout.slots:
            if slot.name in left:
                self._bytes(slot)[...] = left[slot.name].view(np.uint8)
        return self.check()
