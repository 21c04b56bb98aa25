"""As much of the GPU's worker process as needs no GPU: it loads Python kernels and calls them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from tuner.device.base import Program
from tuner.device.cuda.peers import PeerHome, PeerLaunchers
from tuner.device.layout import Arena


class CallingWorker:
    """Stands for `CudaWorker`; what it calls gets no tensors."""

    def __init__(self, ordinal: int, home: PeerHome, deterministic: frozenset[str]) -> None:
        self._peers = PeerLaunchers(ordinal, 0, home)

    def describe(self) -> Mapping[str, Any]:
        return {"pid": os.getpid(), "imported": "slow_engine" in sys.modules}

    def attach(self, arena: Arena, surroundings: None) -> None: ...

    def detach(self) -> None: ...

    def import_ahead(self, program: Program) -> None:
        self._peers.import_ahead(program)

    def run_once(self, program: Program, neighbour: str) -> bool:
        with self._peers._blame(program):
            self._peers._make_launcher(program).function({}, {})
        return False
