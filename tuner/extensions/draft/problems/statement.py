"""What a problem states: arrays with their shapes over axes, scalars, workloads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from tuner.device.definitions import Definition
from tuner.device.problems import BenchProblem, dtype_name, is_problem, own_dtype
from tuner.device.reference import blamed_on
from tuner.device.torch_reference import NUMBERS
from tuner.extensions.draft.problems.sizes import Sizes, shapes_over, small_sizes
from tuner.model.config import RESERVED_NAMES
from tuner.model.errors import InputError, KernelError
from tuner.model.expressions import Expression
from tuner.model.kernel import DTYPE_BYTES
from tuner.process.files import read_regular

_MOST_TUNED = 8
# What is run to see how large outputs are; a larger problem is left alone.
_LARGEST_RUN_BYTES = 64 << 20
# Sizes of an axis that a definition leaves open and no workload says.
_GUESSED = (1, 64, 4096)


@dataclass(frozen=True, slots=True)
class StatedArray:
    """An input or an output; `fill` names what an input is drawn from where that is known.

    `scale` is the median magnitude of an output's elements that are not 0, where it was computed.
    """

    name: str
    dtype: str
    shape: tuple[str, ...]
    role: str
    fill: str = ""
    scale: float | None = None


@dataclass(frozen=True, slots=True)
class Statement:
    """A problem as a search space needs it.

    `tuned`, `held_out` and `edge_cases` are workloads, and `sizes_from` says where they stand. A
    scalar without a value is one that the problem does not say.
    """

    path: Path
    name: str
    axes: tuple[str, ...]
    arrays: tuple[StatedArray, ...]
    scalars: Mapping[str, tuple[str, str | None]]
    tuned: tuple[Sizes, ...]
    held_out: tuple[Sizes, ...] = ()
    edge_cases: tuple[Sizes, ...] = ()
    sizes_from: str = ""
    notes: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[StatedArray, ...]:
        return tuple(array for array in self.arrays if array.role == "input")

    @property
    def outputs(self) -> tuple[StatedArray, ...]:
        return tuple(array for array in self.arrays if array.role == "output")


def is_stated(path: Path) -> bool:
    """Tell whether a file states a problem: KernelBench's module, or FlashInfer's definition."""
    return path.suffix == ".json" or (path.suffix == ".py" and is_problem(path))


def statement_of(path: Path) -> Statement:
    """Read what a problem states; raise `KernelError` in one sentence for what cannot be said."""
    if path.suffix == ".json":
        return _of_definition(Definition(path))
    if not is_problem(path):
        raise KernelError(
            "states no problem",
            path=path,
            remedy="a KernelBench problem is a module with `class Model`, `get_inputs()` and, "
            "where the model takes arguments, `get_init_inputs()`; a kernel in Python defines "
            "launch(config, tensors, axes), or is of Triton or Helion",
        )
    return _of_module(BenchProblem(path))


Tensors = list[tuple[str, str, Any]]  # name, role, tensor


def _of_module(problem: BenchProblem) -> Statement:
    base = {knob.name: knob.value for knob in problem.knobs.values()}
    tensors = [*_tensors(problem, base)]
    ranks = [tuple(tensor.shape) for _, _, tensor in tensors]

    def extents(sizes: Sizes) -> tuple[int, ...] | None:
        try:
            found = [tuple(tensor.shape) for _, _, tensor in _tensors(problem, sizes)]
        except KernelError:  # the problem does not take these sizes
            return None
        same = [len(shape) for shape in found] == [len(shape) for shape in ranks]
        return tuple(n for shape in found for n in shape) if same else None

    taken = {name for name, _, _ in tensors} | RESERVED_NAMES
    # What sizes the inputs comes first: a filter's width gives way to that of an image.
    names = [name for name in base if name not in taken]
    names.sort(key=lambda name: not _sizes_inputs(problem, name))
    axes, texts = shapes_over(names, base, extents)
    axes = [name for name in base if name in axes]
    if not axes:
        raise KernelError(
            "has no size that could be another: an axis is a number in its inputs' shapes",
            path=problem.path,
            remedy="write the sizes as constants of the module that get_inputs uses",
        )
    sizes = {axis: base[axis] for axis in axes}
    small = (small_sizes(axes, base, extents, start) for start in (0, 3))
    cases = [{axis: found[axis] for axis in axes} for found in small if found]
    _, fills = problem.at({}).inputs(device="meta")
    arrays = tuple(_state_arrays(tensors, texts, fills))
    fitting = [case for case in cases if _fits(arrays, case, extents({**base, **case}))]
    arrays = _add_scales(problem, arrays, [sizes, *fitting])
    return Statement(
        path=problem.path,
        name=problem.path.stem,
        axes=tuple(axes),
        arrays=arrays,
        scalars=_scalars(problem),
        tuned=(sizes,),
        edge_cases=tuple(case for n, case in enumerate(fitting) if case not in fitting[:n]),
        sizes_from=f"{problem.path.name}, "
        + ", ".join(f"{axis} in line {problem.knobs[axis].line}" for axis in axes),
    )


def _sizes_inputs(problem: BenchProblem, name: str) -> bool:
    def shapes(sizes: Sizes) -> list[tuple[int, ...]]:
        found, _ = problem.at(sizes).inputs(device="meta")
        return [tuple(one.shape) for one in found.values() if hasattr(one, "shape")]

    try:
        return shapes({name: 2 * problem.knobs[name].value}) != shapes({})
    except KernelError:
        return False


def _tensors(problem: BenchProblem, sizes: Sizes) -> Tensors:
    """Run the problem on tensors without content, or with where it needs that."""
    failed: KernelError | None = None
    for device in ("meta", "cpu"):
        try:
            with blamed_on(problem.path, "`forward` fails"):
                return [*_run(problem, sizes, device)]
        except KernelError as error:
            failed = error
    assert failed is not None
    raise failed


def _run(problem: BenchProblem, sizes: Sizes, device: str) -> Iterator[tuple[str, str, Any]]:
    posed, torch = problem.at(sizes), problem.torch
    inputs, _ = posed.inputs(device=device)
    for name, value in inputs.items():
        if hasattr(value, "shape"):
            _require_dtype(problem, name, value)
            yield name, "input", value
        elif not isinstance(value, NUMBERS):
            raise KernelError(
                f"its input `{name}` is a {type(value).__name__}, and a kernel takes arrays and "
                "numbers",
                path=problem.path,
                remedy="give each tensor of it an argument of `forward`",
            )
    model = posed.model(wide=False, device=device)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        found = model(*inputs.values())
    changed = _state(model, posed)
    for name, (_, tensor) in posed.weights(model).items():
        if name not in changed:
            _require_dtype(problem, name, tensor)
            yield name, "input", tensor
    results = found if isinstance(found, tuple | list) else (found,)
    for place, tensor in enumerate(results):
        if not hasattr(tensor, "shape"):
            raise KernelError(
                f"its `forward` returns a {type(tensor).__name__}, and a kernel writes arrays",
                path=problem.path,
                remedy="let it return a tensor, or a tuple of tensors",
            )
        name = "out" if len(results) == 1 else f"out{place}"
        _require_dtype(problem, name, tensor)
        yield (f"{name}_" if name in inputs else name), "output", tensor


def _state(model: Any, posed: Any) -> set[str]:
    """Name buffers that training only counts and averages: running statistics are no inputs."""
    names = [name for name, _ in model.named_buffers()]
    homes = [name.rpartition(".")[0] for name in names if name.endswith("num_batches_tracked")]
    training = {home for home in homes if model.get_submodule(home).training}
    return {name.replace(".", "_") for name in names if name.rpartition(".")[0] in training}


def _require_dtype(problem: BenchProblem, name: str, tensor: Any) -> None:
    if dtype_name(tensor) not in DTYPE_BYTES:
        raise KernelError(
            f"`{name}` is {dtype_name(tensor)}, which no kernel argument can be",
            path=problem.path,
            remedy=f"dtypes: {', '.join(DTYPE_BYTES)}",
        )


def _state_arrays(
    tensors: Tensors, texts: Sequence[str], fills: Mapping[str, str]
) -> Iterator[StatedArray]:
    left = [*texts]
    for name, role, tensor in tensors:
        shape, left = left[: tensor.dim()], left[tensor.dim() :]
        # one number is an array of one
        yield StatedArray(
            name, dtype_name(tensor), tuple(shape) or ("1",), role, fills.get(name, "")
        )


def _fits(arrays: Sequence[StatedArray], case: Sizes, found: tuple[int, ...] | None) -> bool:
    """Check the expressions on sizes that they were not made from."""
    said = [Expression.parse(text).integer(case) for one in arrays for text in one.shape]
    return found is not None and [n for n in said if n > 1] == [n for n in found if n > 1]


def _scalars(problem: BenchProblem) -> dict[str, tuple[str, str | None]]:
    kinds = {bool: "bool", int: "int32", float: "float32"}
    values, _ = problem.at({}).inputs(device="meta")
    return {
        name: (kinds[type(value)], str(value).lower() if isinstance(value, bool) else repr(value))
        for name, value in values.items()
        if isinstance(value, NUMBERS)
    }


def _add_scales(
    problem: BenchProblem, arrays: Sequence[StatedArray], cases: Sequence[Sizes]
) -> tuple[StatedArray, ...]:
    """Run the problem in float64 on the first of some sizes that is small enough; add the scales.

    Raises `KernelError` where it does not run, or draws random numbers while it does.
    """
    first = cases[0] if _bytes(arrays, cases[0]) <= _LARGEST_RUN_BYTES else None
    case = next((one for one in (first, *cases[1:]) if one is not None), None)
    if case is None:
        return tuple(arrays)
    posed = problem.at(case)
    values, _ = posed.inputs()
    tensors = {name: value for name, value in values.items() if hasattr(value, "shape")}
    wide = {n: t.double() if t.is_floating_point() else t for n, t in tensors.items()}
    with blamed_on(problem.path, "`forward` fails in float64"):
        found = posed.run(wide, wide=True)
    results = iter(found if isinstance(found, tuple | list) else (found,))
    scaled = (
        replace(one, scale=_usual(next(results))) if one.role == "output" else one for one in arrays
    )
    return tuple(scaled) if case is first else tuple(arrays)


def _bytes(arrays: Sequence[StatedArray], case: Sizes) -> int:
    counts = (prod(Expression.parse(text).integer(case) for text in a.shape) for a in arrays)
    return sum(count * DTYPE_BYTES[a.dtype] for count, a in zip(counts, arrays, strict=True))


def _usual(tensor: Any) -> float | None:
    values = tensor.double().abs().flatten()
    values = values[values > 0]
    return float(values.median()) if values.numel() else None


def _of_definition(problem: Definition) -> Statement:
    data = problem.data
    fixed = {name: one.value for name, one in data.axes.items()}
    arrays, scalars, notes = [], dict[str, tuple[str, str | None]](), []
    for role, group in (("input", data.inputs), ("output", data.outputs)):
        for name, one in group.items():
            dtype = own_dtype(one.dtype)
            if dtype not in DTYPE_BYTES:
                raise _refuse(problem, f"`{name}` is {dtype}, which no kernel argument can be")
            if one.shape is None:
                scalars[name] = (dtype, None)
                continue
            shape = tuple(map(str, one.shape)) or ("1",)
            arrays.append(StatedArray(name, dtype, shape, role))
            if role == "input" and "int" in dtype:
                notes.append(
                    f"{name} holds whole numbers: a definition does not say which, and they are "
                    "drawn small; if it is an index, take a reference of your own that draws it"
                )
    sizes, values, sizes_from = _workloads(problem, fixed)
    if not sizes:
        sizes_from = "a guess: no workloads are beside the definition"
        sizes = [{n: v or size for n, v in fixed.items()} for size in _GUESSED]
        notes.append("no workloads are beside the definition: the sizes to tune for are guesses")
    scalars = {name: (dtype, values.get(name)) for name, (dtype, _) in scalars.items()}
    tuned = sizes[:: -(-len(sizes) // _MOST_TUNED)]
    return Statement(
        path=problem.path,
        name=data.name,
        axes=tuple(fixed),
        arrays=tuple(arrays),
        scalars=scalars,
        tuned=tuple(tuned),
        held_out=tuple(one for one in sizes if one not in tuned),
        sizes_from=sizes_from,
        notes=tuple(notes),
    )


def _workloads(
    problem: Definition, fixed: Mapping[str, int | None]
) -> tuple[list[Sizes], dict[str, str], str]:
    """Read a trace set's workloads of a definition: sizes in order, scalars' values, the file."""
    path, name = problem.path, problem.data.name
    places = [path.with_suffix(".jsonl")]
    parts = [n for n, part in enumerate(path.parts) if part == "definitions"]
    if parts:
        of = Path(*path.parts[: parts[-1]], "workloads", *path.parts[parts[-1] + 1 : -1])
        places.append(of / f"{name}.jsonl")
    file = next((place for place in places if place.is_file()), None)
    found: list[Sizes] = []
    scalars: dict[str, str] = {}
    for number, row in enumerate(read_regular(file).decode().splitlines() if file else (), 1):
        try:
            one = json.loads(row)["workload"]
            sizes = {axis: size or int(one["axes"][axis]) for axis, size in fixed.items()}
            inputs = one.get("inputs", {}).items()
        except (ValueError, TypeError, KeyError) as error:
            message = f"is no workload of {name}: {type(error).__name__}: {error}"
            raise InputError(message, path=file, line=number) from error
        scalars |= {n: repr(v["value"]) for n, v in inputs if v.get("type") == "scalar"}
        found += [sizes] if sizes not in found else []
    return sorted(found, key=lambda sizes: [*sizes.values()]), scalars, file.name if file else ""


def _refuse(problem: Definition, message: str) -> KernelError:
    return KernelError(message, path=problem.path, remedy=f"dtypes: {', '.join(DTYPE_BYTES)}")
