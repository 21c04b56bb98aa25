"""Compare the arguments that a YAML declares with the parameters that the kernel has."""

from __future__ import annotations

from tuner.errors import KernelError
from tuner.kernel import DTYPE_BYTES, Argument, KernelSpec
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
