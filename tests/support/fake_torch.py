"""As much of PyTorch as a peer's launcher uses, on host memory; it notes what it is asked."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import numpy as np

STORED = {"bfloat16": "uint16", "float8_e4m3fn": "uint8"}
DTYPES = ("float32", "float16", "int32", "bool", *STORED)


class Tensor:
    """An array with PyTorch's name of its type."""

    def __init__(self, array: np.ndarray, dtype: str, device: str = "cuda") -> None:
        self.array, self.dtype = array, dtype
        self.device = SimpleNamespace(type=device)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def untyped_storage(self) -> np.ndarray:
        return self.array

    def set_(
        self, storage: np.ndarray, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Tensor:
        stored = np.dtype(STORED.get(self.dtype, self.dtype))
        self.array = storage[offset:].view(stored).reshape(shape)
        assert tuple(one // stored.itemsize for one in self.array.strides) == strides
        return self

    def copy_(self, other: Tensor) -> Tensor:
        self.array[...] = other.array
        return self

    def contiguous(self) -> Tensor:
        return Tensor(np.ascontiguousarray(self.array), self.dtype)

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)


class FakeTorch(ModuleType):
    """Stands in `sys.modules` as `torch`."""

    Tensor = Tensor

    def __init__(self) -> None:
        super().__init__("torch")
        self.on_stream: list[int] = []
        self.emptied = self.reset = 0
        self.share = 1.0
        for name in DTYPES:
            setattr(self, name, name)
        self.compiler = SimpleNamespace(reset=self._reset)
        self.cuda = SimpleNamespace(
            set_device=lambda ordinal: None,
            set_per_process_memory_fraction=self._set_share,
            ExternalStream=lambda stream, device: SimpleNamespace(
                address=stream, cuda_stream=stream, device=device
            ),
            stream=self._stream,
            empty_cache=self._empty_cache,
        )

    def _set_share(self, share: float, ordinal: int) -> None:
        self.share = share

    def as_tensor(self, data, device):
        interface = data.__cuda_array_interface__
        assert interface["typestr"] == "|u1"
        (size,), (address, read_only) = interface["shape"], interface["data"]
        assert not read_only
        return Tensor(np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address)), "uint8")

    def empty(self, size, dtype, device):
        return Tensor(np.empty(size, np.dtype(STORED.get(dtype, dtype))), dtype)

    @contextmanager
    def no_grad(self) -> Iterator[None]:
        yield

    @contextmanager
    def _stream(self, stream) -> Iterator[None]:
        self.on_stream.append(stream.address)
        yield

    def _empty_cache(self) -> None:
        self.emptied += 1

    def _reset(self) -> None:
        self.reset += 1
