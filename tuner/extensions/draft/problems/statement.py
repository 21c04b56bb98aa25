"""What a problem states: arrays with their shapes over axes, scalars, workloads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any, cast

from tuner.device.problems import BenchProblem, dtype_name, is_problem, own_dtype
from tuner.device.reference import blamed_on
from tuner.device.torch_reference import NUMBERS, Definition
from tuner.device.verify.reference_process import BoundedProcess
from tuner.extensions.draft.problems.axes import (
    MOST_LONG,
    Extents,
    Sizes,
    find_axes,
    long_sizes,
    medium_sizes,
    shrink_sizes,
    small_sizes,
)
from tuner.extensions.draft.problems.notes import find_notes
from tuner.model.config import RESERVED_NAMES
from tuner.model.errors import InputError, KernelError
from tuner.model.expressions import Expression
from tuner.model.kernel import DTYPE_BYTES
from tuner.process.files import parse_json, read_regular

_MOST_TUNED = 8
# Of a first reading that takes longer only the inputs are drawn again, to see that shapes stay.
_SLOW_TRACE_S = 2.0
# What is run to see that it can be; a larger problem is left alone.
_LARGEST_RUN_BYTES = 64 << 20
_MOST_KNOBS = 100
# Of what is run to see that each input matters, and all of these runs together.
_MOST_TRIED_BYTES, _TRYING_S = 4 << 20, 10.0
# What reading a line of JSON raises that holds something else than a workload.
_OF_ANY_KIND = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
# What a problem may take to be read, all its runs together.
LIMIT_S = 120.0
# Sizes of an axis that a definition leaves open and no workload says.
_GUESSED = (1, 64, 4096)


@dataclass(frozen=True, slots=True)
class StatedArray:
    """An input or an output; `fill` names what an input is drawn from where that is known.

    A `constant` one, such as a layer's weights, no launch before the kernel's writes. `note` says
    what is always true of an input.
    """

    name: str
    dtype: str
    shape: tuple[str, ...]
    role: str
    fill: str = ""
    constant: bool = False
    note: str = ""


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


def states_problem(path: Path) -> bool:
    """Tell whether a file states a problem: KernelBench's module, or FlashInfer's definition."""
    return path.suffix == ".json" or (path.suffix == ".py" and is_problem(path))


def statement_of(path: Path) -> Statement:
    """Read what a problem states in a process that it may stop, end or fill.

    A problem that has not changed is read once. Raises `KernelError` in one sentence for what
    cannot be said.
    """
    if not is_problem(path):  # a definition, whose workloads are other files, or a mistake
        return cast("Statement", read_apart(read_statement, path, LIMIT_S))
    asked = path.resolve(), read_regular(path)
    if asked not in _READ:
        _READ[asked] = cast("Statement", read_apart(read_statement, path, LIMIT_S))
    return replace(_READ[asked], path=path)


_READ: dict[tuple[Path, bytes], Statement] = {}


def read_apart(read: Callable[..., object], path: Path, limit_s: float, *asked: object) -> object:
    """Call `read` of a problem in a process of its own; raise as `statement_of` does."""
    process = BoundedProcess(path, _Reader, read, limit_s=limit_s, ahead="torch")
    try:
        return process.call("read", path, *asked)
    finally:
        process.close()


@dataclass(frozen=True, slots=True)
class _Reader:
    function: Callable[..., object]

    def read(self, path: Path, *asked: object) -> object:
        with blamed_on(path, "cannot be read"):
            return self.function(path, *asked)


def read_statement(path: Path) -> Statement:
    """Read what a problem states in this process; raise as `statement_of` does."""
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
_WEIGHT = "weight"  # the role of an input that the model holds


def _of_module(problem: BenchProblem) -> Statement:
    base = {knob.name: knob.value for knob in problem.knobs.values()}
    if len(base) > _MOST_KNOBS:
        raise KernelError(
            f"has {len(base)} numbers that may be sizes, each of which is tried: at most "
            f"{_MOST_KNOBS}",
            path=problem.path,
            remedy="keep other constants within functions",
        )
    started_s = time.monotonic()
    tensors = [*_tensors(problem, base)]
    shapes = [tuple(tensor.shape) for _, _, tensor in tensors]
    is_slow = time.monotonic() - started_s > _SLOW_TRACE_S

    @cache
    def extents_of(changed: frozenset[tuple[str, int]]) -> tuple[int, ...] | None:
        sizes = {**base, **dict(changed)}
        try:
            repeats = is_slow and sizes == base
            again = tensors if repeats else _tensors(problem, sizes)
            found = [tuple(tensor.shape) for _, _, tensor in again]
        except KernelError as error:  # the problem does not take these sizes
            if sizes == base:
                message = f"runs once and not again: {error.message}"
                raise KernelError(message, path=problem.path) from error
            return None
        same = [len(shape) for shape in found] == [len(shape) for shape in shapes]
        if sizes == base and not same:
            raise KernelError("gives other arrays when it is run again", path=problem.path)
        return tuple(n for shape in found for n in shape) if same else None

    def extents(sizes: Sizes) -> tuple[int, ...] | None:
        return extents_of(frozenset(sizes.items() - base.items()))

    # At once, for both may change from run to run; a slow machine sees the inputs change too.
    inputs = [shape for (_, role, _), shape in zip(tensors, shapes, strict=True) if role == "input"]
    if _input_shapes(problem, base) != inputs:
        raise KernelError("gives other inputs when it is run again", path=problem.path)
    extents(base)
    taken = {name for name, _, _ in tensors} | RESERVED_NAMES
    # What sizes the inputs comes first: a filter's width gives way to that of an image.
    names = [name for name in base if name not in taken]
    inner = dict.fromkeys(names, True)
    for name in names:
        with suppress(KernelError):
            doubled = {name: 2 * problem.knobs[name].value}
            inner[name] = _input_shapes(problem, doubled) == _input_shapes(problem, {})
    names.sort(key=inner.__getitem__)
    found = find_axes(names, inner, base, extents)
    axes = found.names
    if not axes:
        raise KernelError(
            "has no size that could be another: an axis is a number in its inputs' shapes",
            path=problem.path,
            remedy="write the sizes as constants of the module that get_inputs uses",
        )

    def followed(sizes: Sizes) -> tuple[int, ...] | None:
        return extents(found.with_followers(sizes))

    _, fills = problem.at({}).inputs(device="meta")
    arrays = tuple(_state_arrays(tensors, found.extents, fills))

    cases = _find_edge_cases(axes, base, followed, arrays)
    sizes: Sizes = {axis: base[axis] for axis in axes}
    fitting = [case for case in cases if _fits(arrays, case, followed({**base, **case}))]
    sizes, *fitting = map(found.with_followers, (sizes, *fitting))
    _require_to_run(problem, arrays, [sizes, *fitting])
    fitting = _without_silent(problem, arrays, fitting)
    notes = find_notes(problem, [sizes, *fitting])
    noted = {a.name: notes.get(a.name, "") for a in arrays if a.role == "input"}
    arrays = tuple(replace(a, note=noted.get(a.name, "")) for a in arrays)
    return Statement(
        path=problem.path,
        name=problem.path.stem,
        axes=tuple(sizes),
        arrays=arrays,
        scalars=_scalars(problem),
        tuned=(sizes,),
        edge_cases=tuple(case for n, case in enumerate(fitting) if case not in fitting[:n]),
        sizes_from=f"{problem.path.name}, "
        + ", ".join(f"{axis} in line {problem.knobs[axis].line}" for axis in sizes),
    )


def _input_shapes(problem: BenchProblem, sizes: Sizes) -> list[tuple[int, ...]]:
    found, _ = problem.at(sizes).inputs(device="meta")
    return [tuple(one.shape) for one in found.values() if hasattr(one, "shape")]


def _tensors(problem: BenchProblem, sizes: Sizes) -> Iterator[tuple[str, str, Any]]:
    posed = problem.at(sizes)
    inputs, model, found = posed.trace()
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
    averages = posed.averages(model)
    for name, (_, tensor) in posed.weights(model).items():
        if name not in averages:
            _require_dtype(problem, name, tensor)
            yield name, _WEIGHT, tensor
    results = found if isinstance(found, tuple | list) else (found,)
    if not results:
        raise KernelError("its `forward` returns nothing", path=problem.path)
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
        is_weight = role == _WEIGHT
        yield StatedArray(
            name,
            dtype_name(tensor),
            tuple(shape) or ("1",),  # one number is an array of one
            "input" if is_weight else role,
            fills.get(name, ""),
            is_weight,
        )


def _find_edge_cases(
    axes: Sequence[str], base: Sizes, extents: Extents, arrays: Sequence[StatedArray]
) -> list[Sizes]:
    def footprint(sizes: Sizes) -> int:
        return _bytes(arrays, sizes)

    small = [one for start in (0, 3) if (one := small_sizes(axes, base, extents, start))]
    small = [shrink_sizes(one, axes, extents, footprint) for one in small]
    cases = [*small]
    if small:
        contiguous = _find_contiguous(arrays)
        cases.append(medium_sizes(axes, contiguous, base, extents, small[0], footprint))
        cases += islice(long_sizes(axes[::-1], base, extents, small[0], footprint), MOST_LONG)
    return [{axis: case[axis] for axis in axes} for case in cases]


def _find_contiguous(arrays: Sequence[StatedArray]) -> frozenset[str]:
    """Find the axes along which arrays lie, those of several extents where there are any."""
    several = [array for array in arrays if len(array.shape) > 1]
    lasts = [Expression.parse(array.shape[-1]) for array in several or arrays]
    return frozenset(name for last in lasts for name in last.names)


def _fits(arrays: Sequence[StatedArray], case: Sizes, found: tuple[int, ...] | None) -> bool:
    """Check the expressions on sizes that they were not made from."""
    said = [Expression.parse(text).integer(case) for array in arrays for text in array.shape]
    return found is not None and [n for n in said if n > 1] == [n for n in found if n > 1]


def _scalars(problem: BenchProblem) -> dict[str, tuple[str, str | None]]:
    kinds = {bool: "bool", int: "int32", float: "float32"}
    values, _ = problem.at({}).inputs(device="meta")
    return {
        name: (kinds[type(value)], str(value).lower() if isinstance(value, bool) else repr(value))
        for name, value in values.items()
        if isinstance(value, NUMBERS)
    }


def _require_to_run(
    problem: BenchProblem, arrays: Sequence[StatedArray], cases: Sequence[Sizes]
) -> None:
    """Run the problem in float64 on the smallest of some sizes that it takes.

    Raises `KernelError` where it does not run, or draws random numbers while it does.
    """
    small = [case for case in cases if _bytes(arrays, case) <= _LARGEST_RUN_BYTES]
    small.sort(key=lambda case: _bytes(arrays, case))
    for case in small[:-1]:
        with suppress(KernelError):
            _run_in_float64(problem, case)
            return
    if small:
        _run_in_float64(problem, small[-1])


def _run_in_float64(problem: BenchProblem, case: Sizes) -> None:
    posed = problem.at(case)
    values, _ = posed.inputs()
    tensors = {name: value for name, value in values.items() if hasattr(value, "shape")}
    wide = {n: t.double() if t.is_floating_point() else t for n, t in tensors.items()}
    with blamed_on(problem.path, "`forward` fails in float64"):
        posed.run(wide, wide=True)


def _without_silent(
    problem: BenchProblem, arrays: Sequence[StatedArray], cases: Sequence[Sizes]
) -> list[Sizes]:
    """Leave out small sizes at which an input changes nothing, unless it changes nothing at any.

    So it is where a norm is of one number: a kernel that reads nothing is right there, and where
    the extremes are drawn a reference's own roundings decide.
    """
    ends_s = time.monotonic() + _TRYING_S
    small = [case for case in cases if _bytes(arrays, case) <= _MOST_TRIED_BYTES]
    silent: list[Sizes] = []
    tried = 0
    with suppress(KernelError, RuntimeError, TimeoutError):
        for case in small:
            silent += [] if _each_input_matters(problem, case, ends_s) else [case]
            tried += 1
    return [*cases] if len(silent) == tried else [one for one in cases if one not in silent]


def _each_input_matters(problem: BenchProblem, case: Sizes, ends_s: float) -> bool:
    posed = problem.at(case)
    drawn = (posed.inputs(seed)[0].items() for seed in (1, 2))
    first, second = (
        {n: v.double() for n, v in one if hasattr(v, "shape") and v.is_floating_point()}
        for one in drawn
    )
    known = posed.run(first, wide=True)
    for name, other in second.items():
        if time.monotonic() > ends_s:
            raise TimeoutError
        if _same(first[name], other):
            continue
        if _same(known, posed.run({**first, name: other}, wide=True)):
            return False
    return True


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple | list):
        return all(map(_same, one, other))
    return bool((one == other).all())


def _bytes(arrays: Sequence[StatedArray], case: Sizes) -> int:
    counts = (prod(Expression.parse(text).integer(case) for text in a.shape) for a in arrays)
    return sum(count * DTYPE_BYTES[a.dtype] for count, a in zip(counts, arrays, strict=True))


def _of_definition(problem: Definition) -> Statement:
    data = problem.data
    tensors = [*data.inputs.items(), *data.outputs.items()]
    for size in (size for _, tensor in tensors for size in tensor.shape or ()):
        known = size in data.axes if isinstance(size, str) else 0 < size < 1 << 63
        if not known:
            message = f"a shape has {size!r:.100}, which is no axis and no size"
            raise KernelError(message, path=problem.path)
    if twice := sorted(data.inputs.keys() & data.outputs.keys()):
        raise KernelError(f"`{twice[0]}` is an input and an output", path=problem.path)
    if all(output.shape is None for output in data.outputs.values()):
        raise KernelError("none of its outputs is an array", path=problem.path)
    fixed = {name: axis.value for name, axis in data.axes.items()}
    arrays, scalars, notes = [], dict[str, tuple[str, str | None]](), []
    for role, group in (("input", data.inputs), ("output", data.outputs)):
        for name, tensor in group.items():
            dtype = own_dtype(tensor.dtype)
            if dtype not in DTYPE_BYTES:
                message = f"`{name}` is {dtype}, which no kernel argument can be"
                remedy = f"dtypes: {', '.join(DTYPE_BYTES)}"
                raise KernelError(message, path=problem.path, remedy=remedy)
            if tensor.shape is None:
                scalars[name] = (dtype, None)
                continue
            shape = tuple(map(str, tensor.shape)) or ("1",)
            whole = role == "input" and "int" in dtype
            arrays.append(StatedArray(name, dtype, shape, role, "uniform(0, 8)" if whole else ""))
            if whole:
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
    found: dict[tuple[int, ...], Sizes] = {}
    scalars: dict[str, str] = {}
    for number, row in enumerate(read_regular(file).splitlines() if file else (), 1):
        try:
            one = parse_json(row.decode())["workload"]
            sizes = {axis: size or int(one["axes"][axis]) for axis, size in fixed.items()}
            if not all(0 < size < 1 << 63 for size in sizes.values()):
                raise ValueError("a size is below 1, or 2**63 and more")
            inputs = one.get("inputs", {}).items()
            scalars |= {n: repr(v["value"]) for n, v in inputs if v.get("type") == "scalar"}
        except _OF_ANY_KIND as error:
            message = f"is no workload of {name}: {type(error).__name__}: {error}"
            raise InputError(message, path=file, line=number) from error
        found.setdefault(tuple(sizes.values()), sizes)
    return [found[key] for key in sorted(found)], scalars, file.name if file else ""
