"""What FlashInfer-Bench calls in a Solution: C++ that checks arrays and enqueues the dispatch."""

from __future__ import annotations

from typing import Any

from tuner.export.cpp import ARRAY_TYPES, cpp_name, integer
from tuner.export.flashinfer.definition import Problem, Tensor
from tuner.export.pytorch.package import template
from tuner.export.sources import Measured
from tuner.model import TUNER_VERSION
from tuner.model.kernel import DTYPE_BYTES, KernelSpec

FILE = "binding.cu"
ENTRY_POINT = f"{FILE}::run"
# Of dlpack.h.
_DLPACK = {
    "float32": "kDLFloat, 32",
    "float16": "kDLFloat, 16",
    "bfloat16": "kDLBfloat, 16",
    "float8_e4m3": "kDLFloat8_e4m3fn, 8",
    "float8_e5m2": "kDLFloat8_e5m2, 8",
    "int64": "kDLInt, 64",
    "int32": "kDLInt, 32",
    "int16": "kDLInt, 16",
    "int8": "kDLInt, 8",
    "bool": "kDLBool, 8",
}


def binding(problem: Problem, spec: KernelSpec, measured: Measured) -> str:
    """Write the source with the entry point; raises `ExpressionError` for what C++ cannot say."""
    names = {axis: cpp_name(axis) for axis in spec.axes}
    tensors = (*problem.inputs, *problem.outputs)
    # The kernel works on the outputs, where it reads and writes one array.
    known = {one.argument.name: cpp_name(one.name) for one in tensors}
    arrays = [one for one in spec.arguments if not one.is_scalar]
    scratch = [one.name for one in arrays if one.role == "scratch"]
    known |= {name: cpp_name(name) for name in scratch}
    pointers = (
        f"static_cast<{ARRAY_TYPES[one.dtype]}*>({known[one.name]}.data_ptr())" for one in arrays
    )
    return template("flashinfer/binding.cu.j2").render(
        name=problem.name,
        kernel=spec.name,
        version=TUNER_VERSION,
        device=measured.device,
        architecture=measured.architecture,
        parameters=", ".join(f"TensorView {cpp_name(one.name)}" for one in tensors),
        first=_found(problem),
        sizes=[(names[axis], _size(problem, axis)) for axis in spec.axes],
        tensors=[_checked(one, names) for one in tensors],
        copied=[
            (cpp_name(one.argument.name), cpp_name(one.name), DTYPE_BYTES[one.argument.dtype])
            for one in problem.outputs
            if one.argument.role == "inout"
        ],
        scratch=[(name, known[name]) for name in scratch],
        passed=", ".join([*pointers, *names.values(), "tuned_stream"]),
        axes=", ".join(names.values()),
    )


def _found(problem: Problem) -> tuple[str, str, int] | None:
    """Say where the size of the axis that varies is found: name, name in C++ and dimension."""
    if problem.varying is None:
        return None
    tensor, place = problem.place
    return tensor.name, cpp_name(tensor.name), place


def _size(problem: Problem, axis: str) -> str:
    if axis != problem.varying:
        return str(problem.fixed[axis])
    tensor, place = problem.place
    return f"{cpp_name(tensor.name)}.size({place})"


def _checked(one: Tensor, names: dict[str, str]) -> dict[str, Any]:
    return {
        "name": one.name,
        "local": cpp_name(one.name),
        "type": _DLPACK[one.argument.dtype],
        "shape": ", ".join(integer(size, names) for size in one.argument.shape),
    }
