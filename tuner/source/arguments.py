"""Compare the arguments that a YAML declares with the parameters that the kernel has."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tuner.model.errors import KernelError
from tuner.model.kernel import DTYPE_BYTES, Argument, KernelSpec
from tuner.source.facts import KernelFunction, KernelParameter


def check_arguments(spec: KernelSpec, kernel: KernelFunction) -> None:
    """Raise `KernelError` where the declared arguments cannot be the kernel's parameters.

    What the source leaves open (template types, unknown typedefs, macros in the list) is accepted.
    """
    if not kernel.parameters_known:
        return
    arguments, parameters = spec.arguments, kernel.parameters
    if len(arguments) != len(parameters):
        raise _wrong_count(spec, kernel)
    declared, own = [a.name for a in arguments], [p.name for p in parameters]
    if declared != own and sorted(declared) == sorted(own):
        raise KernelError(
            f"the arguments are in another order than in kernel {kernel.name!r} ({_place(kernel)})",
            path=spec.path,
            line=_first_line(spec),
            remedy="write them in the kernel's order: " + ", ".join(own),
        )
    for argument, parameter in zip(arguments, parameters, strict=True):
        found = _mismatch(argument, parameter)
        if found is not None:
            message, remedy = found
            raise KernelError(
                f"argument {argument.name!r} {message}: kernel {kernel.name!r} takes "
                f"`{parameter.declaration}` ({_place(kernel, parameter.line)})",
                path=spec.path,
                line=argument.line,
                remedy=remedy,
            )


def _mismatch(argument: Argument, parameter: KernelParameter) -> tuple[str, str] | None:
    if parameter.pointers:
        return _pointer_mismatch(argument, parameter)
    if parameter.dtype is None:
        return None
    if not argument.is_scalar:
        return "is an array", f"give it `dtype: {parameter.dtype}` and a `value`, not a shape"
    if _same_bits(argument.dtype, parameter.dtype):
        return None
    return f"is {argument.dtype}", f"write `dtype: {parameter.dtype}`"


def _pointer_mismatch(argument: Argument, parameter: KernelParameter) -> tuple[str, str] | None:
    if argument.is_scalar:
        return None if _is_null(argument) else ("is a scalar", "give it a shape and a role")
    if parameter.const and argument.role in ("output", "inout"):
        return f"has role {argument.role}", "write `role: input`, or take another argument"
    if parameter.pointers > 1 or parameter.dtype is None:
        return None
    if _same_bits(argument.dtype, parameter.dtype) or _raw(argument.dtype, parameter.dtype):
        return None
    return f"is {argument.dtype}", f"write `dtype: {parameter.dtype}`"


def _same_bits(declared: str, own: str) -> bool:
    # signedness aside: a kernel may take `int*` where the data is thought of as unsigned
    return declared == own or (
        _is_integer(declared) and _is_integer(own) and DTYPE_BYTES[declared] == DTYPE_BYTES[own]
    )


def _raw(declared: str, own: str) -> bool:
    # kernels take fp8, half and bfloat16 as bytes or as unsigned short, and cast inside
    size = DTYPE_BYTES[own]
    return size <= 2 and size == DTYPE_BYTES[declared] and _is_integer(own)


def _is_integer(dtype: str) -> bool:
    return "int" in dtype or dtype == "bool"


def _is_null(argument: Argument) -> bool:
    # an optional pointer is passed as a 64-bit zero
    return (
        argument.dtype in ("int64", "uint64")
        and argument.value is not None
        and argument.value.text == "0"
    )


def _wrong_count(spec: KernelSpec, kernel: KernelFunction) -> KernelError:
    return KernelError(
        f"{len(spec.arguments)} arguments, but kernel {kernel.name!r} ({_place(kernel)}) has "
        f"{len(kernel.parameters)} parameters",
        path=spec.path,
        line=_first_line(spec),
        remedy="the kernel takes: " + ", ".join(p.declaration for p in kernel.parameters),
    )


def _first_line(spec: KernelSpec) -> int | None:
    return spec.arguments[0].line if spec.arguments else None


def _place(kernel: KernelFunction, line: int | None = None) -> str:
    return f"{kernel.path}:{line or kernel.line}"


_NAMES: dict[str, tuple[str, ...]] = {
    "bool": ("bool",),
    "int8": ("int8_t",),
    "uint8": ("uint8_t", "uchar", "byte", "__nv_fp8_storage_t"),
    "int16": ("int16_t",),
    "uint16": ("uint16_t", "ushort"),
    "int32": ("int32_t",),
    "uint32": ("uint32_t", "uint"),
    "int64": ("int64_t", "ptrdiff_t", "ssize_t", "intptr_t"),
    "uint64": ("uint64_t", "size_t", "uintptr_t", "ulong"),
    "float16": ("half", "__half", "nv_half", "Half", "half_t"),
    "bfloat16": ("__nv_bfloat16", "nv_bfloat16", "BFloat16", "bfloat16_t", "__bf16"),
    "float32": ("float", "float32_t"),
    "float64": ("double", "float64_t"),
    "float8_e4m3": ("__nv_fp8_e4m3", "Float8_e4m3fn", "float_e4m3_t"),
    "float8_e5m2": ("__nv_fp8_e5m2", "Float8_e5m2", "float_e5m2_t"),
}
_DTYPES = {name: dtype for dtype, names in _NAMES.items() for name in names}
_VECTORS = {
    "half2": "float16",
    "__half2": "float16",
    "nv_bfloat162": "bfloat16",
    "__nv_bfloat162": "bfloat16",
    "float": "float32",
    "double": "float64",
    "int": "int32",
    "uint": "uint32",
    "char": "int8",
    "uchar": "uint8",
    "short": "int16",
    "ushort": "uint16",
    "longlong": "int64",
    "ulonglong": "uint64",
}
_INTEGER_WORDS = frozenset(("unsigned", "signed", "long", "short", "int", "char"))
# namespaces whose members of these names are the types meant above
_NAMESPACES = re.compile(r"^(?:::)?(?:cuda::std|std|c10|at|torch|cutlass)::|^::")
_QUALIFIER = re.compile(r"\b(?:const|volatile|typename|struct)\b")
_MAX_ALIASES = 8


def dtype_of(c_type: str, aliases: Mapping[str, str]) -> str | None:
    """Name the dtype of a scalar C++ type, or None where it is not one for certain."""
    name = " ".join(_QUALIFIER.sub(" ", c_type).split())
    for _ in range(_MAX_ALIASES):
        if name not in aliases:
            break
        name = " ".join(_QUALIFIER.sub(" ", aliases[name]).split())
    name = _NAMESPACES.sub("", name.replace(" ::", "::").replace(":: ", "::"))
    words = name.split()
    if words and _INTEGER_WORDS.issuperset(words):
        return _integer(words)
    return _DTYPES.get(name)


def element_dtype(c_type: str, aliases: Mapping[str, str]) -> str | None:
    """Name the dtype of a type or, for `float4` and its like, of its elements: a guess."""
    dtype = dtype_of(c_type, aliases)
    if dtype is not None:
        return dtype
    name = aliases.get(c_type, c_type)
    return _VECTORS.get(name) or _VECTORS.get(name[:-1] if name[-1:] in "234" else "")


def _integer(words: list[str]) -> str:
    unsigned = "u" if "unsigned" in words else ""
    if "char" in words:
        return f"{unsigned}int8"
    if "short" in words:
        return f"{unsigned}int16"
    # 64 bits on every system where CUDA 13 runs but Windows
    return f"{unsigned}int64" if "long" in words else f"{unsigned}int32"
