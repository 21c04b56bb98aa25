"""Sections with rules of their own: launches, tensor maps, rows, and a reference in PyTorch."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import product

from tuner.model.errors import SpaceError, suggest_name
from tuner.model.expressions import map_expressions
from tuner.model.kernel import DTYPE_BYTES, Argument, Invariance, KernelSpec, LaunchSpec, TorchText
from tuner.model.tensor_maps import RANKS, TensorMapSpec
from tuner.space.choices import ExpressionReader
from tuner.space.schema import LaunchModel, SpaceModel, TensorMapModel
from tuner.space.yaml import Document

_FUNCTION = re.compile(r"[A-Za-z_]\w*(::[A-Za-z_]\w*)*(<[^\n;{}]*>)?", re.ASCII)
# Where rows lie, for who asks with --invariant that their bits repeat; and that they always do.
ROWS, INVARIANT = "rows", "invariant"
_HERE = ("reference", "torch")
# What may be named beside the arguments.
LIBRARIES = ("torch", "F", "math")
_EXAMPLE = "write an expression, such as `torch.nn.functional.silu(x)`"


def read_launch(
    reader: ExpressionReader, item: LaunchModel, arguments: Sequence[Argument], *here: str | int
) -> LaunchSpec:
    """Read the launch at `here`; raise `SpaceError` with the line of what is wrong in it."""
    document = reader.document
    if not _FUNCTION.fullmatch(item.kernel):
        remedy = "write a function, `scale_rows`, or an instantiation, `scale_rows<8>`"
        message = f"`{item.kernel}` is not a kernel's name"
        raise document.error(message, *here, "kernel", remedy=remedy)
    declared, taken = [argument.name for argument in arguments], item.arguments or []
    for i, name in enumerate(taken):
        if name not in declared or name in taken[:i]:
            what = "stands there twice" if name in declared else "is not declared"
            remedy = (
                suggest_name(name, set(declared) - set(taken)) + f"arguments: {', '.join(declared)}"
            )
            message = f"`{name}`, an argument of `{item.kernel}`, {what}"
            raise document.error(message, *here, "arguments", i, remedy=remedy)
    return LaunchSpec(
        kernel=item.kernel,
        grid=reader.all(item.grid, *here, "grid"),
        block=reader.all(item.block, *here, "block"),
        shared_memory=reader.optional(item.shared_memory, *here, "shared_memory"),
        cluster=reader.all(item.cluster, *here, "cluster"),
        pdl=reader.optional(item.pdl, *here, "pdl"),
        when=reader.optional(item.when, *here, "when"),
        line=document.line(*here),
        arguments=tuple(taken),
        maps=tuple(
            _tensor_map(reader, tensor_map, arguments, *here, "maps", i)
            for i, tensor_map in enumerate(item.maps or ())
        ),
    )


def _tensor_map(
    reader: ExpressionReader, item: TensorMapModel, arguments: Sequence[Argument], *here: str | int
) -> TensorMapSpec:
    document = reader.document
    arrays = {argument.name: argument for argument in arguments if not argument.is_scalar}
    if item.of not in arrays:
        what = (
            "a scalar" if item.of in {argument.name for argument in arguments} else "not declared"
        )
        remedy = suggest_name(item.of, arrays) + f"arrays: {', '.join(arrays)}"
        raise document.error(f"`{item.of}` is {what}", *here, "of", remedy=remedy)
    array, shape = arrays[item.of], reader.all(item.shape, *here, "shape")
    rank = len(shape or array.shape)
    if rank not in RANKS:
        message = f"`{item.of}` has {rank} dimension{'s' * (rank > 1)}, and a tensor map 2 or 3"
        remedy = "give another view of the same memory with `shape: [...]`"
        raise document.error(message, *here, "of", remedy=remedy)
    for key, given, wanted in (
        ("box", item.box, rank),
        ("strides", item.strides, rank - 1),
    ):
        if given is not None and len(given) != wanted:
            message = f"`{key}` of the map of `{item.of}` has {len(given)} sizes"
            remedy = f"{wanted} are needed, in the order of the {rank} dimensions of its shape"
            raise document.error(message, *here, key, remedy=remedy)
    return TensorMapSpec(
        of=array.name,
        dtype=array.dtype,
        element_bytes=DTYPE_BYTES[array.dtype],
        own_shape=array.shape,
        shape=shape or array.shape,
        box=reader.all(item.box, *here, "box"),
        strides=reader.all(item.strides, *here, "strides"),
        swizzle=reader.optional(item.swizzle, *here, "swizzle"),
        l2_promotion=reader.optional(item.l2_promotion, *here, "l2_promotion"),
        line=document.line(*here),
    )


def check_maps(document: Document, spec: KernelSpec) -> None:
    """Raise `SpaceError` for what the hardware takes of a map with no config, or on a workload."""
    workloads = (*spec.tuned, *spec.held_out, *spec.edge_cases)
    for launches, here in ((spec.baseline, ("baseline", "launch")), (spec.launch, ("launch",))):
        for i, launch in enumerate(launches):
            for j, map_spec in enumerate(launch.maps):
                refused, on = map_spec.refusal({}), ""
                for workload in workloads if launch.when is None else ():
                    if refused is None and (refused := map_spec.refusal(workload.values)):
                        on = f" on the workload {workload}"
                if refused:
                    message, remedy = refused
                    place = (*here, i, "maps", j)
                    raise document.error(f"{message}{on}", *place, remedy=remedy)


def check_taken(document: Document, spec: KernelSpec) -> None:
    """Raise `SpaceError` where no launch takes an output, or the baseline what a config sizes."""
    for i, launch in enumerate(spec.baseline):
        for argument in filter(spec.is_sized, spec.reached(launch)):
            message = f"the baseline takes `{argument.name}`, whose shape a config chooses"
            remedy = "list the `arguments` of this launch without it: the baseline has no config"
            raise document.error(message, "baseline", "launch", i, remedy=remedy)
    for launches, here in ((spec.baseline, ("baseline", "launch")), (spec.launch, ("launch",))):
        taken = {argument.name for launch in launches for argument in spec.reached(launch)}
        for argument in spec.arguments:
            if argument.is_written and argument.name not in taken:
                message = f"no launch takes the {argument.role} `{argument.name}`"
                remedy = "name it among the `arguments` of the launch that writes it"
                raise document.error(message, *here, remedy=remedy)


# Beside the axis: the parameters that decide bits.
BY = "by"


def require_rows(spec: KernelSpec, parameters: Collection[str]) -> KernelSpec:
    """Ask that the bits of rows repeat; raise `SpaceError` where the file says of no rows.

    And where a parameter that decides bits is none: what decides them in a template that has
    another would not be known.
    """
    if spec.rows is None:
        raise SpaceError(
            f"--invariant: {spec.name} says of no output that it has rows",
            path=spec.path,
            remedy="write `rows: {AXIS: [OUTPUT, ...]}`, the axis that counts them, or leave "
            "--invariant out",
        )
    if unknown := [name for name in spec.rows.by if name not in parameters]:
        raise SpaceError(
            f"bits of rows are decided by `{unknown[0]}`, which is no parameter",
            path=spec.path,
            line=spec.rows.line,
            remedy=f"have one of this name that decides them; there are: {', '.join(parameters)}",
        )
    return replace(spec, invariant=spec.rows)


def read_rows(
    document: Document, model: SpaceModel, arguments: Sequence[Argument]
) -> Invariance | None:
    """Read the axis and its outputs; raise `SpaceError` with the line for what can't hold.

    Checked for every choice of the operator's variants, as arrays may depend on them.
    """
    if model.rows and model.invariant:
        remedy = "delete `rows`: `invariant` says the same, and that it always holds"
        raise document.error("`rows` beside `invariant`", ROWS, remedy=remedy)
    key = ROWS if model.rows else INVARIANT
    if not (declared := getattr(model, key)):
        return None
    by = tuple(declared.get(BY, ()))
    axis, *more = [name for name in declared if name != BY] or [BY]
    if more:
        remedy = "name the one axis that counts rows"
        raise document.error(f"`{key}` has the axes {axis}, {more[0]}", key, more[0], remedy=remedy)
    rows = Invariance(axis, tuple(declared[axis]), document.line(key, axis), by)
    if axis not in model.axes:
        remedy = f"the axes are {', '.join(model.axes)}"
        raise document.error(f"`{axis}` is not an axis", key, axis, remedy=remedy)
    for choice in product(*model.operator.values()):
        chosen = dict(zip(model.operator, choice, strict=True))
        bound = [map_expressions(one, lambda size: size.bind(chosen)) for one in arguments]  # noqa: B023
        _check_outputs(document, rows, bound, key)
        for argument in bound:
            _check_rows(document, rows, argument)
    return rows


def _check_outputs(
    document: Document, rows: Invariance, arguments: Sequence[Argument], key: str
) -> None:
    axis, names = rows.axis, rows.outputs
    outputs = {a.name: a for a in arguments if a.is_written}
    if not names:
        remedy = f"name the outputs whose rows it counts: {', '.join(outputs)}"
        raise document.error(f"`{axis}` has no outputs", key, axis, remedy=remedy)
    for n, name in enumerate(names):
        if name not in outputs:
            message, remedy = f"`{name}` is not an output", f"outputs: {', '.join(outputs)}"
        elif rows.dimension(outputs[name]) is None:
            message = f"{_write_argument(outputs[name])} has no rows of `{axis}`"
            remedy = "leave it out, or name an axis that is one of its dimensions"
        elif not outputs[name].deterministic:
            message = f"the bits of `{name}` may differ from call to call (`deterministic: false`)"
            remedy = f"require them to repeat, or leave it out of `{key}`"
        else:
            continue
        raise document.error(message, key, axis, n, remedy=remedy)
    if all(rows.dimension(outputs[name]) for name in names):
        message = (
            f"`{axis}` is no batch: {', '.join(_write_argument(outputs[name]) for name in names)}"
        )
        leading = dict.fromkeys(outputs[name].shape[0].text for name in names)
        remedy = f"rows are counted by the first dimension of an output: {', '.join(leading)}"
        raise document.error(message, key, axis, remedy=remedy)


def _check_rows(document: Document, rows: Invariance, argument: Argument) -> None:
    """Refuse what has rows that nobody finds: none could be placed in it among others."""
    unnamed = argument.role == "output" and argument.name not in rows.outputs
    if argument.role == "scratch" or unnamed:
        return
    varying = [n for n, size in enumerate(argument.shape) if rows.varies(size)]
    pointing = any(rows.axis in bound.names for bound in argument.fill_bounds)
    if pointing or (varying and varying != [rows.dimension(argument)]):
        what = f"its fill `{argument.fill}` points at rows" if pointing else "no row can be found"
        message = f"`{rows.axis}` is no batch of {_write_argument(argument)}: {what}"
        remedy = f"one dimension of it may be `{rows.axis}`, and nothing else may depend on that"
        raise SpaceError(message, path=document.path, line=argument.line, remedy=remedy)


def _write_argument(argument: Argument) -> str:
    return f"`{argument.name}` [{', '.join(size.text for size in argument.shape)}]"


def torch_text(
    document: Document, text: str, arguments: Sequence[Argument], sizes: Sequence[str]
) -> TorchText:
    """Check what a reference says in PyTorch; raise `SpaceError` with the line.

    `sizes` are the axes and the operator's choices, which it may name beside the arguments.
    """
    place, first = document.places.get(_HERE), document.line(*_HERE)
    if place is not None:
        first = document.text.count("\n", 0, place.start) + 1
        first += document.text[place.start : place.start + 1] in ("|", ">")

    def error(what: str, line: int | None = 1, remedy: str = _EXAMPLE) -> SpaceError:
        message, line = f"`reference.torch` {what}", first + (line or 1) - 1
        return SpaceError(message, path=document.path, line=line, remedy=remedy)

    try:
        tree = ast.parse(text)
    except SyntaxError as mistake:
        raise error(f"is no Python: {mistake.msg}", mistake.lineno) from mistake
    if not tree.body:
        raise error("is empty")
    nodes, assigned, declared = [*ast.walk(tree)], set[str](), set[str]()
    for node in nodes:
        match node:
            case ast.Import() | ast.ImportFrom():
                remedy = f"{', '.join(LIBRARIES)} are there; what needs more goes into a .py file"
                raise error("imports something", node.lineno, remedy)
            case ast.Name(id=name, ctx=ast.Store()):
                assigned.add(name)
            case ast.FunctionDef(name=name) | ast.arg(arg=name):
                declared.add(name)
    read = [argument.name for argument in arguments if argument.is_read]
    given = list(dict.fromkeys([*read, *sizes]))
    known = {*given, *LIBRARIES, *dir(builtins), *assigned, *declared}
    for node in nodes:
        if isinstance(node, ast.Name) and node.id not in known:
            remedy = suggest_name(node.id, given) + f"names here: {', '.join([*given, *LIBRARIES])}"
            raise error(f"names `{node.id}`, which is no input", node.lineno, remedy)
    outputs = [argument.name for argument in arguments if argument.is_written]
    missing, last = [name for name in outputs if name not in assigned], tree.body[-1]
    if missing and not isinstance(last, ast.Expr):
        remedy = f"end with an expression, or assign to {', '.join(outputs)}"
        raise error(f"gives nothing for the output `{missing[0]}`", last.lineno, remedy)
    return TorchText(text, first)
