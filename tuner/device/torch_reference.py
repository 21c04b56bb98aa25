"""References in PyTorch: its float64, tensors and arrays, and the expression of a search space."""

from __future__ import annotations

import ast
import builtins
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from typing import Any

import numpy as np

from tuner.device.encoding import Array
from tuner.device.reference import Reference
from tuner.model.errors import KernelError
from tuner.model.expressions import Value
from tuner.model.kernel import FLOAT_DTYPES, Argument, KernelSpec

# What numbers beside a tensor may be in Python.
NUMBERS = (bool, int, float)


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


@contextmanager
def computing(torch: Any, *, widened: bool = False) -> Iterator[None]:
    """Compute without gradients and with float64 as PyTorch's default.

    `widened` makes float64 of whatever the code casts to a smaller float, but for 8 bits: code that
    was written for a kernel's dtype rounds where the reference must not.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            if widened:
                with _widening(torch)():
                    yield
            else:
                yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def tf32(torch: Any, *, allowed: bool) -> Iterator[None]:
    """Allow TF32 in products and convolutions, or not: cuDNN takes it unless it is told not to."""
    libraries = torch.backends.cudnn, torch.backends.cuda.matmul
    before = [library.allow_tf32 for library in libraries]
    for library in libraries:
        library.allow_tf32 = allowed
    try:
        yield
    finally:
        for library, was_allowed in zip(libraries, before, strict=True):
            library.allow_tf32 = was_allowed


@cache
def _widening(torch: Any) -> Any:
    small = {torch.float16, torch.bfloat16, torch.float32}
    casts = {torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16}

    def wide(value: Any) -> Any:
        return torch.float64 if isinstance(value, torch.dtype) and value in small else value

    class Widening(torch.overrides.TorchFunctionMode):  # type: ignore[misc, unused-ignore]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function in casts:
                return args[0].double()
            named = {key: wide(value) for key, value in (kwargs or {}).items()}
            return function(*map(wide, args), **named)

    return Widening


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
        self.outputs = [a for a in spec.arguments if a.role in ("output", "inout")]

    def arrays(self, xp: Any, found: Any, names: Mapping[str, Any]) -> dict[str, Array]:
        """Give the outputs by name; raise `KernelError` unless number, shapes and kinds fit."""
        results = found if isinstance(found, tuple | list) else (found,)
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
        xp: Any, inputs: Mapping[str, Array], axes: Mapping[str, int], **operator: str
    ) -> Mapping[str, Array]:
        sizes: dict[str, Value] = {**axes, **operator}
        names: dict[str, Any] = {**sizes}
        names |= {name: value.evaluate(sizes) for name, value in scalars.items()}
        names |= {name: tensor_of(torch, array, dtypes[name]) for name, array in inputs.items()}
        with computing(torch):
            return results.arrays(xp, run(**names), sizes)

    return Reference(compute)


def expression(spec: KernelSpec, torch: Any) -> Callable[..., Any]:
    """Make a function of what a search space says as `torch:`, which takes all names that it knows.

    It returns the expression's value, or the outputs that the lines assign, in their order.
    """
    assert spec.torch is not None
    tree = ast.parse(spec.torch.text)
    axes_and_arguments = [*spec.axes, *(operator.name for operator in spec.operators)]
    axes_and_arguments += [argument.name for argument in spec.arguments]
    outputs = [a.name for a in spec.arguments if a.role in ("output", "inout")]
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
