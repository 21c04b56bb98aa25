"""References in PyTorch: its float64, a search space's expression, and FlashInfer's definitions."""

from __future__ import annotations

import ast
import builtins
import math
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from tuner.device.encoding import Array
from tuner.device.reference import Reference, blamed_on
from tuner.device.torch_modes import computing
from tuner.model.errors import KernelError
from tuner.model.expressions import Value
from tuner.model.kernel import FLOAT_DTYPES, Argument, KernelSpec
from tuner.process.files import read_regular

# What numbers beside a tensor may be in Python.
NUMBERS = (bool, int, float)
# They stand in search spaces and in CUDA.
Name = Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$", max_length=100)]
Size = Annotated[int, Field(gt=0, lt=1 << 63)]
_MOST = 100


def require_torch(path: Path, line: int | None = None) -> Any:
    """Import PyTorch; raise `KernelError` for whoever asks for it where it is missing."""
    try:
        return import_module("torch")
    except ImportError as error:
        raise KernelError(
            f"needs PyTorch, which cannot be imported: {error}",
            path=path,
            line=line,
            remedy="pip install torch (its build for CPUs is enough: the judge takes a GPU where "
            "PyTorch sees one), or write the reference with NumPy in a .py file",
        ) from error


def tensor_of(torch: Any, values: Array, dtype: str) -> Any:
    """Make a tensor of an array: float64 of floats, int64 of whole numbers, bool of truths."""
    if isinstance(values, np.ndarray):
        tensor = torch.from_numpy(np.ascontiguousarray(values))
    elif torch.cuda.is_available():
        tensor = torch.from_dlpack(values)
    else:
        tensor = torch.from_numpy(values.get())
    if dtype in FLOAT_DTYPES:
        return tensor
    return tensor.to(torch.bool if dtype == "bool" else torch.int64)


def array_of(xp: Any, tensor: Any) -> Array:
    """Make a float64 array of a tensor, wherever the two lie."""
    wide = tensor.detach().double().contiguous()
    if xp is not np and wide.is_cuda:
        return xp.from_dlpack(wide)
    return xp.asarray(wide.cpu().numpy())


class Results:
    """What a reference in PyTorch gave, against the outputs that the search space declares."""

    def __init__(self, spec: KernelSpec, path: Path, line: int | None, what: str) -> None:
        self._spec, self._path, self._line, self._what = spec, path, line, what
        self.outputs = [*spec.outputs]

    def arrays(self, xp: Any, outputs: Any, names: Mapping[str, Any]) -> dict[str, Array]:
        """Give the outputs by name; raise `KernelError` unless number, shapes and kinds fit."""
        results = outputs if isinstance(outputs, tuple | list) else (outputs,)
        wanted = [output.name for output in self.outputs]
        if len(results) != len(wanted):
            raise self._error(
                f"gives {len(results)} results for the outputs {', '.join(wanted)}",
                "give one tensor for each, in the order of `arguments`",
            )
        pairs = zip(self.outputs, results, strict=True)
        return {output.name: self._array(xp, output, result, names) for output, result in pairs}

    def _array(self, xp: Any, output: Argument, result: Any, names: Mapping[str, Any]) -> Array:
        shape = output.dimensions(names)
        if isinstance(result, NUMBERS):
            result = import_module("torch").tensor(result)
        if not hasattr(result, "detach"):
            raise self._error(
                f"gives a {type(result).__name__} for {output.name!r}", "a tensor is needed"
            )
        # One number is one number, with a dimension or without.
        single = math.prod(shape) == 1 == result.numel()
        if tuple(result.shape) != shape and not single:
            raise self._error(
                f"gives shape {tuple(result.shape)} for {output.name!r}, which is {shape}",
                f"mend {self._what}, or the shape of {output.name!r} "
                f"({self._spec.path}:{output.line})",
            )
        if result.is_complex():
            raise self._error(f"gives complex numbers for {output.name!r}", "take `.real`")
        whole = output.dtype not in FLOAT_DTYPES
        if whole and result.is_floating_point() and not bool((result == result.round()).all()):
            raise self._error(
                f"gives fractions for {output.name!r}, which is {output.dtype}",
                "end with torch.round(...), torch.floor(...) or what the kernel does",
            )
        return array_of(xp, result.reshape(shape))

    def _error(self, message: str, remedy: str) -> KernelError:
        return KernelError(
            f"{self._what} {message}", path=self._path, line=self._line, remedy=remedy
        )


def expression_reference(spec: KernelSpec) -> Reference:
    """Make the reference of a search space that says it as `torch:`, an expression or a few lines.

    Inputs and scalars have their names in it, axes and choices of the operator theirs; floats are
    float64, whole numbers int64. Raises `KernelError` where PyTorch is missing.
    """
    assert spec.torch is not None
    line = spec.torch.line
    torch = require_torch(spec.path, line)
    run = expression(spec, torch)
    results = Results(spec, spec.path, line, "the reference")
    dtypes = {argument.name: argument.dtype for argument in spec.arguments}
    scalars = {a.name: a.value for a in spec.arguments if a.value is not None}

    def compute(
        xp: Any,
        inputs: Mapping[str, Array],
        axes: Mapping[str, int],
        *,
        rounded: bool = False,
        **operator: str,
    ) -> Mapping[str, Array]:
        sizes: dict[str, Value] = {**axes, **operator}
        names: dict[str, Any] = {**sizes}
        names |= {name: value.evaluate(sizes) for name, value in scalars.items()}
        names |= {name: tensor_of(torch, array, dtypes[name]) for name, array in inputs.items()}
        with computing(torch, rounded=rounded):
            return results.arrays(xp, run(**names), sizes)

    return Reference(compute, rounded=partial(compute, rounded=True))


def expression(spec: KernelSpec, torch: Any) -> Callable[..., Any]:
    """Make a function of what a search space says as `torch:`, which takes all names that it knows.

    It returns the expression's value, or the outputs that the lines assign, in their order.
    """
    assert spec.torch is not None
    tree = ast.parse(spec.torch.text)
    axes_and_arguments = [*spec.axes, *(operator.name for operator in spec.operators)]
    axes_and_arguments += [argument.name for argument in spec.arguments]
    outputs = [a.name for a in spec.outputs]
    body, last = tree.body, tree.body[-1]
    if isinstance(last, ast.Expr):
        body = [*body[:-1], ast.copy_location(ast.Return(last.value), last)]
    else:
        body = [*body, *ast.parse(f"return ({', '.join(outputs)},)").body]
    sayable = [f"{name}=None" for name in axes_and_arguments if not iskeyword(name)]
    module = ast.parse(f"def expression({', '.join([*sayable, '**_'])}): pass")
    function = module.body[0]
    assert isinstance(function, ast.FunctionDef)
    function.body = body
    ast.fix_missing_locations(module)
    # The lines of the file, so that an error is blamed on its own.
    for statement in body:
        ast.increment_lineno(statement, spec.torch.line - 1)
    functional = import_module("torch.nn.functional")
    names = {"__builtins__": builtins, "torch": torch, "F": functional, "math": math}
    exec(compile(module, str(spec.path), "exec"), names)  # noqa: S102
    call: Callable[..., Any] = names["expression"]
    return call


class AxisModel(BaseModel):
    """An axis of a definition: of one value, or open."""

    value: Size | None = None


class TensorModel(BaseModel):
    """An array of a definition, or a scalar where its shape is null."""

    shape: Annotated[list[str | int], Field(max_length=_MOST)] | None
    dtype: Annotated[str, Field(max_length=_MOST)]


class DefinitionModel(BaseModel):
    """As much of FlashInfer-trace's schema as a kernel is judged by; the rest is not read."""

    name: Annotated[str, Field(max_length=_MOST)]
    axes: Annotated[dict[Name, AxisModel], Field(max_length=_MOST)]
    inputs: Annotated[dict[Name, TensorModel], Field(max_length=_MOST)]
    outputs: Annotated[dict[Name, TensorModel], Field(min_length=1, max_length=_MOST)]
    # A syntax tree is a hundred times as large.
    reference: Annotated[str, Field(max_length=1_000_000)]


class Definition:
    """A FlashInfer-trace definition: axes, inputs, outputs and the text of a reference, `run`."""

    # It says nothing of how wide its inputs are.
    spreads: Mapping[str, float] = MappingProxyType({})

    def __init__(self, path: Path) -> None:
        self.path, self.what = path, "the definition's reference"
        self.torch = require_torch(path)
        try:
            self.data = DefinitionModel.model_validate_json(read_regular(path))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise KernelError(
                f"is no definition of a FlashInfer trace: {where}: {first['msg']}",
                path=path,
                remedy="it is a JSON object with name, axes, inputs, outputs and reference",
            ) from error
        self._names: dict[str, Any] = {"__name__": f"definition_{path.stem}"}
        with blamed_on(path, "its reference cannot be imported"):
            exec(compile(self.data.reference, str(path), "exec"), self._names)  # noqa: S102
        if not callable(self._names.get("run")):
            raise KernelError("its reference defines no `run`", path=path)
        self.passed = frozenset(self.data.inputs)

    def at(self, sizes: Mapping[str, int]) -> Definition:
        """Pose it for some sizes: the reference takes them from its inputs."""
        return self

    def run(self, tensors: Mapping[str, Any], *, wide: bool, rounded: bool = False) -> Any:
        """Call the reference with the inputs of its signature."""
        widened = computing(self.torch, widened=True, rounded=rounded)
        around = widened if wide else self.torch.no_grad()
        with around:
            outputs = self._names["run"](**tensors)
        if isinstance(outputs, Mapping):
            return tuple(outputs[name] for name in self.data.outputs)
        return outputs

    def drawn(self, seed: int, device: str = "cpu") -> Mapping[str, Any]:
        """Draw nothing: a definition says no more than dtypes."""
        return {}
