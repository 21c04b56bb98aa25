"""The compiler's sanitizers as a tool that watches every access of a kernel on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.device.base import Device, Outcome, Program


class HostWatcher:
    """Verify programs on a `host` device that runs sanitized code; implements `Watcher`."""

    kind = "sanitizers"

    def __init__(self, device: Device) -> None:
        self._device = device

    def watch(self, programs: Sequence[Program]) -> Sequence[Outcome]:
        """Verify each with every fill; the first access out of bounds ends it."""
        return [self._device.verify(program) for program in programs]

    def close(self) -> None:
        """End the device's processes."""
        self._device.close()
