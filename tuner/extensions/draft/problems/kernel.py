"""A kernel for a problem: which of its parameters are which arrays, and a skeleton of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tuner.extensions.draft.host_path import Number
from tuner.extensions.draft.host_values import HostLaunch
from tuner.extensions.draft.inference import DraftArgument, Inference
from tuner.extensions.draft.launches import Axes
from tuner.extensions.draft.problems.statement import StatedArray, Statement
from tuner.extensions.draft.space import render
from tuner.model.errors import KernelError
from tuner.source.facts import Constant, KernelFunction, KernelParameter
from tuner.space.blanks import MARK

_C_TYPES = {
    "bool": "bool",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int16": "short",
    "uint16": "unsigned short",
    "int32": "int",
    "uint32": "unsigned",
    "int64": "long long",
    "uint64": "unsigned long long",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float32": "float",
    "float64": "double",
    "float8_e4m3": "__nv_fp8_e4m3",
    "float8_e5m2": "__nv_fp8_e5m2",
}
_HEADERS = {"__half": "cuda_fp16.h", "__nv_bfloat16": "cuda_bf16.h", "__nv_fp8": "cuda_fp8.h"}


def axes_for(statement: Statement, launch: HostLaunch) -> Axes:
    """Map the kernel's names of the axes to the problem's, by name in any case."""
    names = {axis: axis for axis in statement.axes}
    lowered = {axis.lower(): axis for axis in statement.axes}
    for parameter in launch.kernel.parameters:
        axis = lowered.get(parameter.name.lower())
        if axis is not None and not parameter.pointers:
            names.setdefault(parameter.name, axis)
    return Axes(names)


def inference_for(statement: Statement, launch: HostLaunch, axes: Axes) -> Inference:
    """Give a kernel's parameters what the problem says of them; raise `KernelError` for misfits."""
    kernel = launch.kernel
    pointers = [parameter for parameter in kernel.parameters if parameter.pointers]
    by_name = {array.name.lower(): array for array in statement.arrays}
    named = {p.name: by_name[p.name.lower()] for p in pointers if p.name.lower() in by_name}
    arrays = dict(named)
    for role, const in (("input", True), ("output", False)):
        left = [a for a in statement.arrays if a.role == role and a not in named.values()]
        open_ = [p for p in pointers if p.const is const and p.name not in named]
        if len(left) != len(open_):
            raise _misfit(statement, kernel, role, left, open_)
        arrays |= {p.name: array for p, array in zip(open_, left, strict=True)}
    arguments = tuple(
        DraftArgument(
            *(replace(p, name=a.name), a.dtype, a.role, a.shape),
            fill=a.fill,
            constant=a.constant,
            note=a.note,
        )
        if p.pointers and (a := arrays[p.name])
        else _scalar(statement, axes, p)
        for p in kernel.parameters
    )
    sizes = tuple({axis: Number(size, 0) for axis, size in one.items()} for one in statement.tuned)
    fixed = _find_fixed_axes(statement, launch, axes, arguments)
    distinct = Axes(dict(zip(statement.axes, statement.axes, strict=True)), fixed)
    held_out, edge_cases = (
        tuple(one for one in group if all(one[axis] == c.number for axis, c in fixed.items()))
        for group in (statement.held_out, statement.edge_cases)
    )
    return Inference(
        distinct,
        arguments,
        sizes,
        held_out=held_out,
        edge_cases=edge_cases,
        sizes_from=statement.sizes_from,
    )


def _find_fixed_axes(
    statement: Statement, launch: HostLaunch, axes: Axes, arguments: Sequence[DraftArgument]
) -> dict[str, Constant]:
    """Find the axes that a kernel is told by nothing: it is right for their one size alone."""
    if any(argument.role is None and argument.value is None for argument in arguments):
        return {}  # what it is told nobody knows yet
    told = {argument.value for argument in arguments if argument.role is None}
    told |= {axis for name, axis in axes.names.items() if name in launch.names}
    fixed = {}
    for axis in statement.axes:
        sizes = {one[axis] for one in statement.tuned}
        if axis not in told and len(sizes) == 1:
            size = sizes.pop()
            fixed[axis] = Constant(axis, "constexpr", str(size), (0, 0), 0, size)
    return fixed


def _misfit(
    statement: Statement,
    kernel: KernelFunction,
    role: str,
    arrays: Sequence[StatedArray],
    parameters: Sequence[KernelParameter],
) -> KernelError:
    wanted = _write_arrays(arrays) or "no other"
    found = ", ".join(p.declaration for p in parameters) or "no other"
    pointers = "const pointers" if role == "input" else "pointers that are not const"
    return KernelError(
        f"{kernel.name} does not fit {statement.path}: of the problem's {role}s {wanted} "
        f"{'are' if len(arrays) > 1 else 'is'} left, and of the kernel's {pointers} {found}",
        path=kernel.path,
        line=kernel.line,
        remedy="give the kernel a parameter for each array of the problem, of its name: "
        + ", ".join(array.name for array in statement.arrays),
    )


def _scalar(statement: Statement, axes: Axes, parameter: KernelParameter) -> DraftArgument:
    dtype, axis = parameter.dtype, axes.names.get(parameter.name)
    if axis is not None:
        return DraftArgument(parameter, dtype, value=axis)
    if parameter.name in statement.scalars:
        return DraftArgument(parameter, dtype, value=statement.scalars[parameter.name][1])
    return DraftArgument(parameter, dtype, origin=f"an expression over {', '.join(statement.axes)}")


def skeleton(statement: Statement) -> str:
    """Write a kernel with the problem's signature and a launch, whose body is left to write."""
    output = statement.outputs[0]
    dims = (extent for extent in output.shape if extent != "1")
    factors = [e if e.isidentifier() or e.isdigit() else f"({e.replace('//', '/')})" for e in dims]
    axes = [axis for axis in statement.axes if axis not in statement.scalars]
    declared = [
        f"{'const ' * (a.role == 'input')}{_C_TYPES[a.dtype]}* __restrict__ {a.name}"
        for a in statement.arrays
    ]
    declared += [f"{_C_TYPES[dtype]} {name}" for name, (dtype, _) in statement.scalars.items()]
    declared += [f"int {axis}" for axis in axes]
    names = [*(array.name for array in statement.arrays), *statement.scalars, *axes]
    types = " ".join(_C_TYPES[array.dtype] for array in statement.arrays)
    return render(
        "problems/kernel.cu.j2",
        problem=statement.path.name,
        wanted=_write_arrays(statement.outputs),
        given=_write_arrays(statement.inputs),
        headers=sorted(header for start, header in _HEADERS.items() if start in types),
        name=kernel_name(statement),
        declared=", ".join(declared),
        count=" * ".join(factors) or "1",
        mark=MARK.replace("#", "//"),
        output=output.name,
        names=", ".join(names),
    )


def _write_arrays(arrays: Sequence[StatedArray]) -> str:
    return ", ".join(f"{array.name} [{', '.join(array.shape)}]" for array in arrays)


def kernel_name(statement: Statement) -> str:
    """Make an identifier of the problem's name."""
    name = "".join(c if c.isalnum() and c.isascii() else "_" for c in statement.name).strip("_")
    return name if name[:1].isalpha() else f"problem_{name}".rstrip("_")
