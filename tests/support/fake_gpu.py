"""Tensors and GPUs as an exported package's launcher sees them, without either."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

H200 = SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    shared_memory_per_block_optin=232448,
)


class FakeTensor:
    """As much of a tensor on a GPU as the launcher looks at."""

    def __init__(self, *shape: int, dtype: Any = torch.bfloat16, at: int = 4096, device: int = 0):
        self.shape, self.dtype, self._at, self._device = torch.Size(shape), dtype, at, device
        self.device, self.contiguous = f"cuda:{device}", True

    def data_ptr(self) -> int:
        return self._at

    def get_device(self) -> int:
        return self._device

    def is_contiguous(self) -> bool:
        return self.contiguous


def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Two H200s; the first is current."""
    found = SimpleNamespace(current=0, entered=[], properties=H200)

    class Guard:
        def __init__(self, device: int) -> None:
            self.device = device

        def __enter__(self) -> None:
            found.entered.append(self.device)
            self.before, found.current = found.current, self.device

        def __exit__(self, *_: object) -> None:
            found.current = self.before

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found.properties)
    monkeypatch.setattr(torch.cuda, "device", Guard)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: found.current, raising=False)
    monkeypatch.setattr(
        torch._C, "_cuda_getCurrentRawStream", lambda device: 900 + device, raising=False
    )
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda size, dtype, device: empty(size, dtype=dtype))
    return found
