"""Read a search-space file: what to tune, what may be chosen, with a line in every error."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Literal

from tuner.model.config import SearchSpace
from tuner.model.errors import ExpressionError, KernelError, suggest_name
from tuner.model.expressions import Expression
from tuner.model.kernel import (
    DEVICE_NAMES,
    DTYPE_BYTES,
    FILLS,
    FLOAT_DTYPES,
    MEASURED_DTYPES,
    PYTHON_OPTION,
    WHOLE_FILLS,
    Argument,
    DtypeChoice,
    ExtremeLimit,
    KernelSpec,
    Limits,
    Operator,
    Tolerance,
    Workload,
)
from tuner.model.languages import language_of, require_same_language
from tuner.space.callables import CALLED
from tuner.space.choices import (
    ExpressionReader,
    bind,
    bind_dtypes,
    check_names,
    chosen_operators,
    identifier,
    refusal,
    search_space,
)
from tuner.space.launches import (
    check_maps,
    check_taken,
    read_launch,
    read_rows,
    require_rows,
    torch_text,
)
from tuner.space.schema import LARGEST, ArgumentModel, SpaceModel, ToleranceModel, validate_space
from tuner.space.surroundings import check_sizes, surroundings
from tuner.space.yaml import Document, read

_FILL = re.compile(r"([a-z][a-z0-9_]*)\s*(?:\((.*)\))?")
NEAR = "near"
_NEXT = re.compile(r",(?![^()]*\))")
_EARLIER = {"held_out": "as tuned", "edge_cases": "as tuned or held out"}
_ALONE = {
    "held_out": "a held-out workload is one that nothing was tuned on",
    "edge_cases": "an edge case is one that is verified and never timed",
}


@dataclass(frozen=True, slots=True)
class Definition:
    """What one search-space file declares, for one choice of the operator's variants."""

    spec: KernelSpec
    space: SearchSpace

    def chosen(self, operators: Mapping[str, str], *, invariant: bool = False) -> Definition:
        """Make another choice; of what `operators` leaves out, the default.

        With `invariant` the bits of rows have to repeat; raises `SpaceError` where there are none.
        """
        chosen = chosen_operators(self.spec, operators)
        spec = bind_dtypes(bind(self.spec, chosen), chosen)
        definition = Definition(spec, bind(self.space, chosen))
        return definition.keeping_rows() if invariant or spec.invariant else definition

    def keeping_rows(self) -> Definition:
        """Ask that the bits of rows repeat; raise `SpaceError` where they can't be asked for."""
        return replace(self, spec=require_rows(self.spec, self.space.names))


def load_definition(
    path: Path, operators: Mapping[str, str] | None = None, *, invariant: bool = False
) -> Definition:
    """Read and check a search-space file; raise `SpaceError` or `ExpressionError` with its line.

    `operators` are choices of the operator's variants; the others are the defaults.
    """
    document = read(path)
    definition = read_definition(document, operators or {})
    spec, source = definition.spec, document.data
    for key, file in (
        ("source", spec.source),
        ("reference", spec.reference),
        ("template", spec.template),
    ):
        if isinstance(source.get(key), str) and not file.is_file():
            found = "a folder" if file.is_dir() else "no such file"
            remedy = f"looked at {file}; a path starts from the folder of this file"
            raise document.error(f"`{key}`: {source[key]!r} is {found}", key, remedy=remedy)
    require_same_language(spec.source, spec.template)
    for i, folder in enumerate(spec.include_dirs):
        if not folder.is_dir():
            remedy = f"looked at {folder}; a path starts from the folder of this file"
            named = document.data["include"]
            assert isinstance(named, list)
            message = f"`include`: {named[i]!r} is no folder"
            raise document.error(message, "include", i, remedy=remedy)
    return definition.keeping_rows() if invariant else definition


def read_definition(document: Document, operators: Mapping[str, str]) -> Definition:
    """Read and check the text of a search-space file; the files that it names may be missing."""
    model = validate_space(document)
    check_names(document, model)
    space = search_space(document, model)
    spec = _spec(document, model, space)
    check_taken(document, spec)
    chosen = Definition(spec, space).chosen(operators)
    spec, space = chosen.spec, chosen.space
    check_maps(document, spec)
    groups = {"tuned": spec.tuned, "held_out": spec.held_out, "edge_cases": spec.edge_cases}
    for key, group in groups.items():
        for index, workload in enumerate(group):
            _check_sizes(spec, workload)
            if key != "edge_cases":
                check_sizes(spec, workload)
                weight = spec.weight_of(workload)
                if not 0.0 < weight < inf:
                    message = f"the weight of {workload} is {weight:g}"
                    remedy = "what counts less than others has a smaller number above 0"
                    raise document.error(message, "workloads", "weight", remedy=remedy)
            for limit in space.constraints:
                if limit.names <= set(spec.axes) and not limit.evaluate(workload.values):
                    message = f"the workload {workload} breaks the constraint `{limit.text}`"
                    remedy = f"change the workload, or the constraint on line {limit.line}"
                    raise document.error(message, "workloads", key, index, remedy=remedy)
    return chosen


def workload_from_text(spec: KernelSpec, text: str) -> Workload:
    """Read `T=1024,D=14336`; raise `KernelError` unless it gives every axis a positive number."""
    sizes: dict[str, int] = {}
    wrong = ""
    for part in text.split(","):
        axis, equals, number = (piece.strip() for piece in part.partition("="))
        if not equals:
            wrong = f": {part!r} is not name=number"
        elif axis not in spec.axes:
            wrong = f": no axis is named {axis!r}"
        elif axis in sizes:
            wrong = f": {axis} is given twice"
        elif not re.fullmatch("[1-9][0-9]*", number):
            wrong = f": {axis} is {number!r}, not a positive whole number"
        elif len(number) > len(str(LARGEST)) or int(number) > LARGEST:
            wrong = f": {axis} is over {LARGEST}, the largest size"
        if wrong:
            break
        sizes[axis] = int(number)
    missing = [axis for axis in spec.axes if axis not in sizes]
    if wrong or missing:
        message = f"workload {text!r}" + (wrong or f" gives no value for {', '.join(missing)}")
        remedy = f"write {','.join(f'{axis}=1' for axis in spec.axes)}, with numbers of your own"
        raise KernelError(message, remedy=remedy)
    workload = Workload.of({axis: sizes[axis] for axis in spec.axes})
    _check_sizes(spec, workload)
    return workload


def _spec(document: Document, model: SpaceModel, space: SearchSpace) -> KernelSpec:
    names = frozenset({*model.axes, *model.operator})
    of_axes = ExpressionReader(document, names)
    of_launches = ExpressionReader(document, names | DEVICE_NAMES)
    defined = {derived.name: derived.expression for derived in space.derived}
    of_configs = ExpressionReader(document, names | DEVICE_NAMES | set(space.names), defined)
    arguments = _arguments(of_axes, model, space)
    users = tuple(argument for argument in arguments if not argument.added)
    folder = document.path.parent
    for i, option in enumerate(model.options):
        if wrong := refusal(option, language_of(Path(model.source))):
            raise document.error(wrong[0], "options", i, remedy=wrong[1])
    tuned = _workloads(document, model, "tuned", ())
    held_out = _workloads(document, model, "held_out", tuned)
    torch = None
    if not isinstance(model.reference, str):
        text = model.reference["torch"]
        torch = torch_text(document, text, arguments, [*model.axes, *model.operator])
    if model.peak and model.operations is None:
        remedy = "say with `operations:` how many there are, or leave `peak` out"
        raise document.error("`peak` without `operations`", "peak", remedy=remedy)
    rows = read_rows(document, model, users)
    return KernelSpec(
        name=model.kernel,
        path=_resolve_path(document.path),
        source=_resolve_path(folder / model.source),
        reference=_resolve_path(document.path if torch else folder / model.reference),
        template=_resolve_path(folder / (model.template or model.source)),  # Python may be its own
        axes=tuple(model.axes),
        arguments=arguments,
        tuned=tuned,
        held_out=held_out,
        edge_cases=_workloads(document, model, "edge_cases", (*tuned, *held_out)),
        tries_near=model.workloads.edge_cases == NEAR,
        min_bytes=of_axes.optional(model.min_bytes, "min_bytes") or _sum_moved_bytes(arguments),
        operations=of_axes.optional(model.operations, "operations"),
        peak=model.peak or "",
        baseline=tuple(
            read_launch(of_launches, item, users, "baseline", "launch", i)
            for i, item in enumerate(model.baseline.launch)
        )
        if model.baseline
        else CALLED,
        launch=tuple(
            read_launch(of_configs, item, arguments, "launch", i)
            for i, item in enumerate(model.launch)
        )
        or CALLED,
        tolerances=_tolerances(document, model, arguments),
        limits=Limits(**model.limits.model_dump()),
        operators=tuple(Operator(n, tuple(values)) for n, values in model.operator.items()),
        include_dirs=tuple(_resolve_path(folder / one) for one in model.include),
        compile_options=tuple(model.options) if model.baseline else (*model.options, PYTHON_OPTION),
        surroundings=surroundings(of_axes, model, arguments),
        torch=torch,
        rows=rows,
        weight=of_axes.optional(model.workloads.weight, "workloads", "weight"),
        invariant=rows if model.invariant else None,
    ).with_added([argument for argument in arguments if argument.added])


def _arguments(
    reader: ExpressionReader, model: SpaceModel, space: SearchSpace
) -> tuple[Argument, ...]:
    document, arguments = reader.document, list[Argument]()
    scratch = [item.model_copy(update={"role": item.role or "scratch"}) for item in model.scratch]
    for key, items in (("arguments", model.arguments), ("scratch", scratch)):
        for i, item in enumerate(items):
            argument = _argument(reader, model, item, space, (key, i))
            if argument.name in {other.name for other in arguments}:
                message = f"the argument `{argument.name}` is listed twice"
                remedy = "an argument is listed once; written in place, its role is inout"
                raise document.error(message, key, i, "name", remedy=remedy)
            if key == "scratch" and (item.role != "scratch" or not model.baseline):
                message = f"`{argument.name}` cannot be added to the arguments"
                remedy = "only scratch of kernels in CUDA may: Python allocates its own"
                raise document.error(message, key, i, remedy=remedy)
            arguments.append(replace(argument, added=key == "scratch"))
    if not any(argument.is_written for argument in arguments):
        message = "no argument is an output"
        remedy = "give the arrays that the kernel writes `role: output` or `role: inout`"
        raise document.error(message, "arguments", remedy=remedy)
    return tuple(arguments)


def _argument(
    reader: ExpressionReader,
    model: SpaceModel,
    item: ArgumentModel,
    space: SearchSpace,
    here: tuple[str, int],
) -> Argument:
    document = reader.document
    name, role = item.name, item.role or "input"
    identifier(document, name, *here, "name")
    dtype_by = _dtype_choice(document, model, item, here)
    dtypes = [item.dtype] if dtype_by is None else [*dtype_by.dtypes.values()]
    for dtype in dtypes:
        if dtype not in DTYPE_BYTES:
            remedy = suggest_name(dtype, DTYPE_BYTES) + f"dtypes: {', '.join(DTYPE_BYTES)}"
            raise document.error(f"`{dtype}` is not a dtype", *here, "dtype", remedy=remedy)
    if (item.shape is None) == (item.value is None):
        both = "both a `shape` and a `value`" if item.shape else "neither a `shape` nor a `value`"
        remedy = "an array has `shape: [T, K]`, a scalar has `value: K`"
        raise document.error(f"the argument `{name}` has {both}", *here, remedy=remedy)
    if item.shape is None and role != "input":
        remedy = "delete the role; what the kernel writes is an array with a shape"
        raise document.error(f"the scalar `{name}` cannot be {role}", *here, "role", remedy=remedy)
    _check_content(document, item, role, dtypes, here)
    fill, bounds = _fill(reader, item, dtypes, here)
    limit = item.extreme
    return Argument(
        name=name,
        dtype=dtypes[0],
        shape=_shape(reader, item, space, here),
        role=role,
        fill=fill,
        value=reader.optional(item.value, *here, "value"),
        line=document.line(*here),
        nonfinite=bool(item.nonfinite),
        deterministic=item.deterministic is not False,
        dtype_by=dtype_by,
        fill_bounds=bounds,
        zeroed=bool(item.zeroed),
        constant=bool(item.constant),
        idle=item.idle or "",
        note=item.note or "",
        extreme=None if limit is None else ExtremeLimit(limit.reason, limit.largest),
    )


def _shape(
    reader: ExpressionReader, item: ArgumentModel, space: SearchSpace, place: tuple[str, int]
) -> tuple[Expression, ...]:
    document, axes = reader.document, frozenset(reader.known)
    defined = {one.name: one.expression for one in space.derived}
    of_configs = ExpressionReader(document, {*axes, *space.names, *defined})
    sizes = []
    for n, size in enumerate(item.shape or ()):
        here = (*place, "shape", n)
        written = of_configs.read(size, *here)
        sizes.append(written.define(defined))
        of_config, of_device = written.names - axes, sizes[-1].names & DEVICE_NAMES
        if of_device:
            message = f"the shape of `{item.name}` depends on `{min(of_device)}`"
            remedy = "a number of the device cannot size an array: use an axis or a parameter"
            raise document.error(message, *here, remedy=remedy)
        if of_config and item.role != "scratch":
            message = f"the shape of `{item.name}` depends on `{min(of_config)}`, which is tuned"
            remedy = f"only scratch may; others go by the axes: {', '.join(sorted(axes))}"
            raise document.error(message, *here, remedy=remedy)
    return tuple(sizes)


def _fill(
    reader: ExpressionReader, item: ArgumentModel, dtypes: Sequence[str], place: tuple[str, int]
) -> tuple[str, tuple[Expression, ...]]:
    match = _FILL.fullmatch((item.fill or "normal").strip())
    name, inside = (match[1], match[2]) if match else ("", None)
    given = [piece.strip() for piece in _NEXT.split(inside)] if inside else []
    document, here = reader.document, (*place, "fill")
    if name not in FILLS:
        remedy = suggest_name(name, FILLS) + f"fills: {', '.join(FILLS)}; "
        remedy += "or define inputs(xp, rng, axes, fill) in the reference file"
        raise document.error(f"{item.fill!r} is not a fill", *here, remedy=remedy)
    least, most = FILLS[name]
    if not least <= len(given) <= most or (name == "uniform" and len(given) == 1):
        needed = {"uniform": "uniform, or uniform(0, 8)", "probabilities": "probabilities(0)"}
        example = needed.get(name, f"{name}({item.name.upper()})" if most else name)
        message = f"the fill {item.fill!r} has {len(given)} numbers in parentheses"
        raise document.error(message, *here, remedy=f"write `fill: {example}`")
    whole = FLOAT_DTYPES.isdisjoint(dtypes)
    if (name in WHOLE_FILLS and not whole) or (name == "probabilities" and whole):
        message = f"the fill {item.fill!r} is not for {dtypes[0]}"
        remedy = f"{name} are {'whole numbers' if name in WHOLE_FILLS else 'floats'}"
        raise document.error(message, *here, remedy=remedy)
    return name, tuple(reader.read(text, *here) for text in given)


def _dtype_choice(
    document: Document, model: SpaceModel, item: ArgumentModel, place: tuple[str, int]
) -> DtypeChoice | None:
    if isinstance(item.dtype, str):
        return None
    ((operator, dtypes),) = item.dtype.items()
    if operator not in model.operator:
        message = f"`{operator}` is none of the operator's choices"
        remedy = f"choices: {', '.join(model.operator) or 'none; declare it under `operator`'}"
        raise document.error(message, *place, "dtype", remedy=remedy)
    if set(dtypes) != set(model.operator[operator]):
        message = f"the dtype of `{item.name}` is given for {', '.join(dtypes)}"
        remedy = f"give one for each of {', '.join(model.operator[operator])}"
        raise document.error(message, *place, "dtype", remedy=remedy)
    return DtypeChoice(operator, {value: dtypes[value] for value in model.operator[operator]})


def _check_content(
    document: Document,
    item: ArgumentModel,
    role: str,
    dtypes: Sequence[str],
    place: tuple[str, int],
) -> None:
    read, written = role in ("input", "inout"), role in ("output", "inout")
    floats = FLOAT_DTYPES.issuperset(dtypes)
    if item.fill is not None and (item.shape is None or not read):
        what = "a scalar" if item.shape is None else f"of role {role}"
        message, key = f"`{item.name}` is {what}: nothing fills it", "fill"
        remedy = "write `zeroed: true` for zeros" if role == "scratch" else "delete `fill`"
    elif item.extreme is not None and not (read and item.shape and floats):
        message, key = f"`{item.name}` has no extreme inputs", "extreme"
        remedy = "`extreme` is for an input array of floating-point numbers: delete it"
    elif item.nonfinite is not None and not (read and item.shape and floats):
        message, key = f"`{item.name}` has no NaN or infinity to read", "nonfinite"
        remedy = "`nonfinite` is for an input array of floating-point numbers: delete it"
    elif item.deterministic is not None and not (written and item.shape):
        message, key = f"`{item.name}` is not written by the kernel", "deterministic"
        remedy = "`deterministic` is for an array of role output or inout: delete it"
    elif item.constant is not None and not (role == "input" and item.shape):
        message, key = f"`{item.name}` is not an input array", "constant"
        remedy = "`constant` is for weights and the like, of role input: delete it"
    elif item.note is not None and not (read and item.shape):
        message, key = f"`{item.name}` is no array that is read", "note"
        remedy = "`note` is for the content of an input array: delete it"
    elif item.zeroed is not None and role != "scratch":
        message, key = f"`{item.name}` is not scratch", "zeroed"
        remedy = "`zeroed` is for counters and the like, of role scratch: delete it"
    elif item.idle is not None and (role == "scratch" or not item.shape):
        message, key = f"`{item.name}` is neither read from a caller nor given back", "idle"
        remedy = "`idle` is for arrays of role input, output or inout: delete it"
    else:
        return
    raise document.error(message, *place, key, remedy=remedy)


def _workloads(
    document: Document,
    model: SpaceModel,
    key: Literal["tuned", "held_out", "edge_cases"],
    others: tuple[Workload, ...],
) -> tuple[Workload, ...]:
    workloads: list[Workload] = []
    stated = getattr(model.workloads, key)
    for i, sizes in enumerate(() if stated == NEAR else stated):
        here = ("workloads", key, i)
        if set(sizes) != set(model.axes):
            given, axes = ", ".join(sizes) or "nothing", ", ".join(model.axes)
            message = f"this workload gives {given}, and the axes are {axes}"
            raise document.error(message, *here, remedy="give every axis one size")
        held_out = key == "held_out"
        workload = Workload.of({axis: sizes[axis] for axis in model.axes}, held_out=held_out)
        if workload in workloads or workload in others:
            where = _EARLIER[key] if workload in others else "twice"
            message = f"the workload {workload} is listed {where}"
            raise document.error(message, *here, remedy=_ALONE.get(key, "delete one"))
        workloads.append(workload)
    return tuple(workloads)


def _tolerances(
    document: Document, model: SpaceModel, arguments: tuple[Argument, ...]
) -> dict[str, Tolerance]:
    outputs = {a.name: a.dtype for a in arguments if a.is_written}
    for name, item in model.tolerance.items():
        if name not in outputs:
            remedy = f"outputs: {', '.join(outputs)}"
            raise document.error(f"`{name}` is not an output", "tolerance", name, remedy=remedy)
        if not item.model_fields_set:
            remedy = "write measured, {relative: 4.0e-3}, or {absolute: 0} for an exact output"
            message = f"the tolerance of `{name}` is empty"
            raise document.error(message, "tolerance", name, remedy=remedy)
        if item.tf32 and not (item.relative or item.absolute):
            message = f"`tf32` without `relative` or `absolute` for `{name}`"
            remedy = "write {absolute: 1e-3, relative: 1e-3, tf32: true}"
            raise document.error(message, "tolerance", name, remedy=remedy)
        if item.measured and outputs[name] not in MEASURED_DTYPES:
            message = f"the tolerance of `{name}`, {outputs[name]}, cannot be measured"
            remedy = "write {codes: 0.02}" if "float" in outputs[name] else "write {absolute: 0}"
            raise document.error(message, "tolerance", name, remedy=remedy)
    quantized = (name for name, dtype in outputs.items() if dtype.startswith("float8"))
    for name in quantized:
        if name not in model.tolerance:
            message = f"no tolerance for the output `{name}` of 8 bits"
            raise document.error(message, "tolerance", remedy=f"add `{name}: {{codes: 0.02}}`")
    return {n: _tolerance(model.tolerance.get(n), dtype) for n, dtype in outputs.items()}


def _tolerance(item: ToleranceModel | None, dtype: str) -> Tolerance:
    if item is None or item.measured:  # whole numbers are exact
        return Tolerance(measured=dtype in MEASURED_DTYPES)
    stated = item.relative or 0.0, item.absolute or 0.0, item.codes
    return Tolerance(*stated, tf32=item.tf32)


def _sum_moved_bytes(arguments: Sequence[Argument]) -> Expression:
    # Of a table that indices point into nobody knows how much is read.
    pointed = {
        b.text for a in arguments if a.fill in ("indices", "distinct") for b in a.fill_bounds
    }
    outputs = [a for a in arguments if a.is_written]
    read = [
        a
        for a in arguments
        if a.shape and a.role == "input" and not {size.text for size in a.shape} & pointed
    ]
    terms = []
    for argument in (*read, *outputs):
        dtypes = (
            [argument.dtype] if argument.dtype_by is None else [*argument.dtype_by.dtypes.values()]
        )
        size = min(DTYPE_BYTES[dtype] for dtype in dtypes) * (2 if argument.role == "inout" else 1)
        terms.append(" * ".join(f"({n})" for n in (*(e.text for e in argument.shape), str(size))))
    return Expression.parse(" + ".join(terms))


def _check_sizes(spec: KernelSpec, workload: Workload) -> None:
    for argument in spec.arguments:
        for size in () if spec.is_sized(argument) else argument.shape:
            _check_positive(size, workload)
        if argument.value is not None:
            argument.value.evaluate(workload.values)
    for amount in (spec.min_bytes, spec.operations):
        if amount is not None:
            _check_positive(amount, workload)
    for launch in spec.baseline:
        if launch.when is None:
            for size in (*launch.grid, *launch.block, *launch.cluster):
                _check_positive(size, workload)


def _check_positive(amount: Expression, workload: Workload) -> None:
    if amount.names & DEVICE_NAMES:
        return
    value = amount.integer(workload.values)
    if value < 1:
        message = f"`{amount.text}` gives {value} for the workload {workload}"
        remedy = "it must be 1 or more"
        raise ExpressionError(message, path=amount.path, line=amount.line, remedy=remedy)


def _resolve_path(path: Path) -> Path:
    # Unlike `Path.resolve`, for links in a circle too.
    return Path(os.path.realpath(path))
