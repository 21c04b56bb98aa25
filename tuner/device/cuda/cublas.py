"""The one product of cuBLAS that stands beside an operator, called through `ctypes`."""

from __future__ import annotations

import ctypes
from typing import Any

from tuner.device.cuda.driver import allocate
from tuner.model.errors import WorkerError

# cublas_api.h and library_types.h of CUDA 12 and 13.
_TRANSPOSED, _AS_IT_IS = 1, 0
_BF16 = 14
_COMPUTE_FLOAT32 = 68
_DEFAULT_ALGORITHM = -1
# What cuBLAS asks for on Hopper; in a capture it could not allocate its own (cuBLAS, 2.1.7).
_WORKSPACE_BYTES = 32 << 20


class CublasError(WorkerError):
    """Report that cuBLAS is missing, or refused a call."""


class Cublas:
    """A handle on one stream; its calls may be captured."""

    def __init__(self, stream: Any) -> None:
        self._library = _library()
        self._handle = ctypes.c_void_p()
        self._call("cublasCreate_v2", ctypes.byref(self._handle))
        self._call("cublasSetStream_v2", self._handle, ctypes.c_void_p(int(stream)))
        self._workspace = ctypes.c_void_p(allocate(_WORKSPACE_BYTES))
        size_bytes = ctypes.c_size_t(_WORKSPACE_BYTES)
        self._call("cublasSetWorkspace_v2", self._handle, self._workspace, size_bytes)

    def product(
        self,
        sizes: tuple[int, ...],
        addresses: tuple[int, int, int],
    ) -> None:
        """Enqueue C = A B^T in bf16, all by rows: A (M x K), B (N x K), C (M x N).

        `sizes` are M, N and K, `addresses` those of A, B and C.
        """
        m, n, k = sizes
        a, b, c = map(ctypes.c_void_p, addresses)
        # By columns, as cuBLAS has them, C is N x M: B A^T with B transposed.
        scale = [ctypes.byref(ctypes.c_float(factor)) for factor in (1.0, 0.0)]
        self._call(
            "cublasGemmEx",
            *(self._handle, _TRANSPOSED, _AS_IT_IS, n, m, k, scale[0]),
            *(b, _BF16, k, a, _BF16, k, scale[1], c, _BF16, n),
            *(_COMPUTE_FLOAT32, _DEFAULT_ALGORITHM),
        )

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise CublasError(f"{name} failed with status {status}")


def _library() -> ctypes.CDLL:
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    try:
        return ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path)
    except (DynamicLibNotFoundError, OSError) as error:
        raise CublasError(f"cuBLAS is not installed: {error}") from error
