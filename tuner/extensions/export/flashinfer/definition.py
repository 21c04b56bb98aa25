"""A kernel as Definitions of FlashInfer-Bench: one for each set of sizes that a model fixes.

A definition has axes, arrays, and the reference in Python that it is checked with.
"""

from __future__ import annotations

import ast
import keyword
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.device.problems import is_problem
from tuner.extensions.export.pytorch.package import python
from tuner.extensions.export.sources import template
from tuner.model.errors import InputError
from tuner.model.expressions import Expression
from tuner.model.kernel import Argument, KernelSpec, Workload
from tuner.process.files import read_regular

# By our names those of the schema, which has no others, of dlpack.h and of safetensors' headers.
DTYPES = {
    "float32": ("float32", "kDLFloat, 32", "F32"),
    "float16": ("float16", "kDLFloat, 16", "F16"),
    "bfloat16": ("bfloat16", "kDLBfloat, 16", "BF16"),
    "float8_e4m3": ("float8_e4m3fn", "kDLFloat8_e4m3fn, 8", "F8_E4M3"),
    "float8_e5m2": ("float8_e5m2", "kDLFloat8_e5m2, 8", "F8_E5M2"),
    "int64": ("int64", "kDLInt, 64", "I64"),
    "int32": ("int32", "kDLInt, 32", "I32"),
    "int16": ("int16", "kDLInt, 16", "I16"),
    "int8": ("int8", "kDLInt, 8", "I8"),
    "bool": ("bool", "kDLBool, 8", "BOOL"),
}
# What a reference may import wherever FlashInfer-Bench runs.
IMPORTED = frozenset({*sys.stdlib_module_names, "numpy", "scipy", "cupy", "cupyx", "torch"})


@dataclass(frozen=True, slots=True)
class DefinedTensor:
    """An array under the name that it has in a definition; each dimension is one of its axes."""

    name: str
    argument: Argument
    shape: tuple[str, ...]

    @property
    def described(self) -> dict[str, Any]:
        """Write it as the schema has it."""
        return {"shape": list(self.shape), "dtype": DTYPES[self.argument.dtype][0]}


@dataclass(frozen=True, slots=True)
class Problem:
    """A kernel with all of its axes fixed but for `varying`, which is None where that one is too.

    `axes` are the definition's, as expressions in the kernel's; they are constant but for those
    that depend on the one that varies. An array that is read and written is both an input and,
    under another name, an output.
    """

    name: str
    varying: str | None
    fixed: Mapping[str, int]
    axes: Mapping[str, Expression]
    inputs: tuple[DefinedTensor, ...]
    outputs: tuple[DefinedTensor, ...]
    workloads: tuple[Workload, ...]

    def varies(self, axis: str) -> bool:
        """Say whether an axis of the definition has another size in each workload."""
        return self.varying is not None and _depends(self.axes[axis], self.varying)

    @property
    def place(self) -> tuple[DefinedTensor, int]:
        """Return the input, and its dimension, that has the size of the axis that varies."""
        assert self.varying is not None
        tensor = next(
            defined_tensor for defined_tensor in self.inputs if self.varying in defined_tensor.shape
        )
        return tensor, tensor.shape.index(self.varying)

    @property
    def described(self) -> dict[str, Any]:
        """Write axes and arrays as the schema has them."""
        axes: dict[str, dict[str, Any]] = {}
        for name, size in self.axes.items():
            axes[name] = {"type": "var"}
            if not self.varies(name):
                axes[name] = {"type": "const", "value": size.integer(self.fixed)}
            if python(size) != name:
                axes[name]["description"] = python(size)
        return {
            "axes": axes,
            "inputs": {tensor.name: tensor.described for tensor in self.inputs},
            "outputs": {output.name: output.described for output in self.outputs},
        }

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
    is fixed too. Raises `InputError` for a type that the schema has not, and without any input.
    """
    if not _with_role(spec, "input", "inout"):
        raise InputError(
            f"{spec.name} has no input, by which FlashInfer-Bench finds device and sizes",
            path=spec.path,
            remedy="choose another --format for it",
        )
    for argument in spec.arguments:
        if not argument.is_scalar and argument.role != "scratch" and argument.dtype not in DTYPES:
            raise InputError(
                f"{argument.name!r} is {argument.dtype}, which no definition of FlashInfer-Bench "
                "can be",
                path=spec.path,
                line=argument.line,
                remedy=f"it knows {', '.join(one for one, *_ in DTYPES.values())}; choose "
                "another --format",
            )
    first = spec.axes[0]
    read = {
        python(size) for argument in _with_role(spec, "input", "inout") for size in argument.shape
    }
    arrays = _with_role(spec, "input", "output", "inout")
    needed = {python(size) for array in arrays for size in array.shape if _depends(size, first)}
    varying = first if needed | {first} <= read else None
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


def _depends(size: Expression, axis: str) -> bool:
    """Say whether a size depends on an axis once the operator's choices have decided."""
    written = ast.walk(ast.parse(python(size), mode="eval"))
    return any(isinstance(node, ast.Name) and node.id == axis for node in written)


def _with_role(spec: KernelSpec, *roles: str) -> Sequence[Argument]:
    return [
        argument for argument in spec.arguments if not argument.is_scalar and argument.role in roles
    ]


def _tensors(
    spec: KernelSpec,
) -> tuple[dict[str, Expression], tuple[DefinedTensor, ...], tuple[DefinedTensor, ...]]:
    """Name the axes: those of the kernel, and others after the first array that has them."""
    axes = {axis: Expression.parse(axis) for axis in spec.axes}
    labels = {axis: axis for axis in spec.axes}
    taken = {argument.name for argument in spec.arguments} | {*spec.axes}

    def tensor(argument: Argument, name: str) -> DefinedTensor:
        for place, size in enumerate(argument.shape):
            if python(size) not in labels:
                label = _free(f"{argument.name}_{place}", taken)
                labels[python(size)], axes[label] = label, size
        return DefinedTensor(name, argument, tuple(labels[python(size)] for size in argument.shape))

    def name(argument: Argument) -> str:
        return (
            _free(f"{argument.name}_", taken) if keyword.iskeyword(argument.name) else argument.name
        )

    inputs = tuple(
        tensor(argument, name(argument)) for argument in _with_role(spec, "input", "inout")
    )
    outputs = tuple(
        tensor(
            argument,
            _free(f"{argument.name}_out", taken) if argument.role == "inout" else name(argument),
        )
        for argument in _with_role(spec, "output", "inout")
    )
    return axes, inputs, outputs


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def reference_code(spec: KernelSpec) -> str:
    """Return what `reference` needs of its file; raise `InputError` where that is not enough."""
    own = spec.reference.suffix == ".py" and not is_problem(spec.reference)
    if spec.torch is not None or not own:
        raise InputError(
            "its reference is no Python file of its own, which a definition is written from",
            path=spec.reference,
            remedy="write reference(xp, inputs, axes) into a .py file, or choose another --format",
        )
    code, names, modules = needed_code(read_regular(spec.reference).decode(), "reference")
    if "run" in names:
        raise InputError(
            "`reference` needs another function `run`, which is what a definition is called by",
            path=spec.reference,
            remedy="give it another name",
        )
    if foreign := sorted(modules - IMPORTED):
        raise InputError(
            f"`reference` imports {', '.join(foreign)}, which a definition cannot bring along",
            path=spec.reference,
            remedy="write what it needs into the file itself",
        )
    return code


def run_text(problem: Problem, kernel: str, code: str, choices: Mapping[str, str]) -> str:
    """Write the module whose `run` takes a definition's inputs and returns its outputs."""
    sizes = {axis: str(size) for axis, size in problem.fixed.items()}
    if problem.varying:
        tensor, place = problem.place
        sizes[problem.varying] = f"{tensor.name}.shape[{place}]"
    return template("flashinfer/run.py.j2").render(
        kernel=kernel,
        code=code,
        inputs=problem.inputs,
        outputs=problem.outputs,
        axes=", ".join(f'"{axis}": {size}' for axis, size in sizes.items()),
        choices="".join(f", {name}={value!r}" for name, value in choices.items()),
    )


def needed_code(text: str, function: str) -> tuple[str, frozenset[str], frozenset[str]]:
    """Return what a function of a module needs of it, what that defines, and what it imports."""
    lines, body = text.splitlines(), ast.parse(text).body
    wanted, kept = {function}, set[int]()
    while more := {
        at for at, one in enumerate(body) if at not in kept and _list_definitions(one) & wanted
    }:
        kept |= more
        for at in more:
            nodes = list(ast.walk(body[at]))
            names = [node for node in nodes if isinstance(node, ast.Name)]
            # What a function assigns is its own.
            own = {node.arg for node in nodes if isinstance(node, ast.arg)}
            own |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
            wanted |= {node.id for node in names} - own
    parts, defined, modules = [], set[str](), set[str]()
    for at in sorted(kept):
        statement = body[at]
        first = statement.lineno
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            first = min([first, *(one.lineno for one in statement.decorator_list)])
        parts.append("\n".join(lines[first - 1 : statement.end_lineno]))
        defined |= _list_definitions(statement)
        for node in ast.walk(statement):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):  # one of a neighbour has a dot alone
                modules.add("." if node.level else (node.module or "").partition(".")[0])
    return "\n\n\n".join(parts), frozenset(defined), frozenset(modules)


def _list_definitions(statement: ast.stmt) -> set[str]:
    """Name what a statement of a module defines."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    found: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return found
