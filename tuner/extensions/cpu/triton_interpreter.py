"""What Triton's interpreter cannot do, so that its kernels can be verified through it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from tuner.device.encoding import encode

# Read in 3.6.0: others may be built otherwise.
RELEASE = "3.6."


def mend_interpreter() -> None:
    """Make up for what Triton 3.6's interpreter cannot do; leave other releases as they are.

    It computes with the bits of bfloat16 as with whole numbers, rounds to it towards zero, has no
    constants of it, and reads a scalar in a way that NumPy 2.4 refuses. Raises `ImportError`
    without Triton.
    """
    triton: Any = import_module("triton")
    interpreter: Any = import_module("triton.runtime.interpreter")
    if not triton.__version__.startswith(RELEASE):
        return
    bfloat16, float32 = triton.language.bfloat16, triton.language.float32
    builder, handle_of = interpreter.InterpreterBuilder, interpreter.TensorHandle
    binary, dot, cast = builder.binary_op, builder.create_dot, builder.cast_impl
    patch = interpreter._patch_lang_tensor

    def widen_handle(handle: Any) -> Any:
        if handle.dtype.scalar != bfloat16:
            return handle
        return handle_of((handle.data.astype(np.uint32) << 16).view(np.float32), float32)

    def narrow_values(values: np.ndarray) -> Any:
        return handle_of(encode(np, values, "bfloat16"), bfloat16)

    def binary_op(self: Any, left: Any, right: Any, operation: Any) -> Any:
        made = binary(self, widen_handle(left), widen_handle(right), operation)
        narrow = left.dtype.scalar == bfloat16 and made.data.dtype == np.float32
        return cast_impl(self, made, bfloat16) if narrow else made

    def create_dot(self: Any, left: Any, right: Any, *others: Any) -> Any:
        return dot(self, widen_handle(left), widen_handle(right), *others)

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        if source.dtype.scalar != float32 or target.scalar != bfloat16:
            return cast(self, source, target)
        return narrow_values(source.data)

    def get_bf16(self: Any, value: float) -> Any:
        return narrow_values(np.array([value]))

    def patch_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    builder.binary_op, builder.create_dot, builder.cast_impl = binary_op, create_dot, cast_impl
    builder.get_bf16, interpreter._patch_lang_tensor = get_bf16, patch_tensor
