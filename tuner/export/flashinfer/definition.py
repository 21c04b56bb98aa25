"""A kernel as Definitions of FlashInfer-Bench: one for each set of sizes that a model fixes."""

from __future__ import annotations

import ast
import keyword
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.export.pytorch.package import python
from tuner.model.errors import InputError
from tuner.model.expressions import Expression
from tuner.model.kernel import Argument, KernelSpec, Workload

# The names of the schema, which has no others.
DTYPES = {
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float8_e4m3": "float8_e4m3fn",
    "float8_e5m2": "float8_e5m2",
    "int64": "int64",
    "int32": "int32",
    "int16": "int16",
    "int8": "int8",
    "bool": "bool",
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """An array under the name that it has in a definition; each dimension is one of its axes."""

    name: str
    argument: Argument
    shape: tuple[str, ...]

    @property
    def described(self) -> dict[str, Any]:
        """Write it as the schema has it."""
        return {"shape": list(self.shape), "dtype": DTYPES[self.argument.dtype]}


@dataclass(frozen=True, slots=True)
class Problem:
    """A kernel with all of its axes fixed, but for `varying` where that is none of `None`.

    `axes` are the definition's, as expressions in the kernel's; they are constant but for those
    that depend on the one that varies. An array that is read and written is both an input and,
    under another name, an output.
    """

    name: str
    varying: str | None
    fixed: Mapping[str, int]
    axes: Mapping[str, Expression]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    workloads: tuple[Workload, ...]

    def varies(self, axis: str) -> bool:
        """Say whether an axis of the definition has another size in each workload."""
        return self.varying is not None and _depends(self.axes[axis], self.varying)

    @property
    def place(self) -> tuple[Tensor, int]:
        """Return the input, and its dimension, that has the size of the axis that varies."""
        assert self.varying is not None
        tensor = next(one for one in self.inputs if self.varying in one.shape)
        return tensor, tensor.shape.index(self.varying)

    @property
    def described(self) -> dict[str, Any]:
        """Write axes and arrays as the schema has them."""
        return {
            "axes": {name: self._axis(name) for name in self.axes},
            "inputs": {one.name: one.described for one in self.inputs},
            "outputs": {one.name: one.described for one in self.outputs},
        }

    def _axis(self, name: str) -> dict[str, Any]:
        size = self.axes[name]
        made: dict[str, Any] = {"type": "var"}
        if not self.varies(name):
            made = {"type": "const", "value": size.integer(self.fixed)}
        return made if python(size) == name else {**made, "description": python(size)}

    def sizes(self, workload: Workload) -> dict[str, int]:
        """Return the sizes of the axes that vary."""
        return {
            name: size.integer(workload.values)
            for name, size in self.axes.items()
            if self.varies(name)
        }


def problems(
    spec: KernelSpec, choices: Mapping[str, str], workloads: Iterable[Workload]
) -> tuple[Problem, ...]:
    """Group workloads by the axes that a definition fixes: all but the first, which are tokens.

    Where FlashInfer-Bench could not tell the size of an output from those of the inputs, the first
    is fixed too. Raises `InputError` for a type that the schema has not.
    """
    _require_dtypes(spec)
    varying = _varying(spec)
    groups: dict[tuple[tuple[str, int], ...], list[Workload]] = {}
    for workload in workloads:
        key = tuple((axis, size) for axis, size in workload.axes if axis != varying)
        groups.setdefault(key, []).append(workload)
    axes, inputs, outputs = _tensors(spec)
    chosen = "".join(f"_{name}_{value}" for name, value in choices.items())
    return tuple(
        Problem(
            f"{spec.name}{chosen}{''.join(f'_{a}{size}' for a, size in key)}".lower(),
            varying,
            dict(key),
            axes,
            inputs,
            outputs,
            tuple(listed),
        )
        for key, listed in groups.items()
    )


def _require_dtypes(spec: KernelSpec) -> None:
    for one in spec.arguments:
        if not one.is_scalar and one.role != "scratch" and one.dtype not in DTYPES:
            raise InputError(
                f"{one.name!r} is {one.dtype}, which no definition of FlashInfer-Bench can be",
                path=spec.path,
                line=one.line,
                remedy=f"it knows {', '.join(DTYPES.values())}; choose another --format",
            )


def _varying(spec: KernelSpec) -> str | None:
    first = spec.axes[0]
    read = {python(size) for one in _with_role(spec, "input", "inout") for size in one.shape}
    arrays = _with_role(spec, "input", "output", "inout")
    needed = {python(size) for one in arrays for size in one.shape if _depends(size, first)}
    return first if needed | {first} <= read else None


def _depends(size: Expression, axis: str) -> bool:
    """Say whether a size depends on an axis once the operator's choices have decided."""
    written = ast.walk(ast.parse(python(size), mode="eval"))
    return any(isinstance(node, ast.Name) and node.id == axis for node in written)


def _with_role(spec: KernelSpec, *roles: str) -> Sequence[Argument]:
    return [one for one in spec.arguments if not one.is_scalar and one.role in roles]


def _tensors(
    spec: KernelSpec,
) -> tuple[dict[str, Expression], tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Name the axes: those of the kernel, and others after the first array that has them."""
    axes = {axis: Expression.parse(axis) for axis in spec.axes}
    labels = {axis: axis for axis in spec.axes}
    taken = {one.name for one in spec.arguments} | {*spec.axes}

    def tensor(one: Argument, name: str) -> Tensor:
        for place, size in enumerate(one.shape):
            if python(size) not in labels:
                label = _free(f"{one.name}_{place}", taken)
                labels[python(size)], axes[label] = label, size
        return Tensor(name, one, tuple(labels[python(size)] for size in one.shape))

    def name(one: Argument) -> str:
        return _free(f"{one.name}_", taken) if keyword.iskeyword(one.name) else one.name

    inputs = tuple(tensor(one, name(one)) for one in _with_role(spec, "input", "inout"))
    outputs = tuple(
        tensor(one, _free(f"{one.name}_out", taken) if one.role == "inout" else name(one))
        for one in _with_role(spec, "output", "inout")
    )
    return axes, inputs, outputs


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
