"""What times a call of a Triton kernel, and says on what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

# Written before each call, so that no cache of a GPU holds its inputs.
FLUSHED_BYTES = 256 << 20


class Stopwatch(Protocol):
    """Time calls one by one, with caches as cold as each other."""

    def identify(self) -> Mapping[str, str]:
        """Name the hardware and the versions that times depend on."""

    def time_us(self, call: Callable[[], Any]) -> float:
        """Run a call once; return what it took."""


@dataclass
class GpuStopwatch:
    """Time calls on PyTorch's current GPU by its events."""

    _flushed: Any = field(default=None, init=False)

    def identify(self) -> Mapping[str, str]:
        torch, triton = import_module("torch"), import_module("triton")
        return {
            "gpu": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "cuda": str(torch.version.cuda or torch.version.hip),
        }

    def time_us(self, call: Callable[[], Any]) -> float:
        torch = import_module("torch")
        if self._flushed is None:
            self._flushed = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device="cuda")
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flushed.zero_()
        start.record()
        call()
        end.record()
        end.synchronize()
        return 1000.0 * float(start.elapsed_time(end))


@dataclass
class ScriptedStopwatch:
    """Tell times that a test has written down, and count the calls."""

    read_us: Callable[[], float]
    hardware: Mapping[str, str] = field(default_factory=lambda: {"gpu": "none"})
    calls: int = field(default=0, init=False)

    def identify(self) -> Mapping[str, str]:
        return self.hardware

    def time_us(self, call: Callable[[], Any]) -> float:
        self.calls += 1
        call()
        return self.read_us()
