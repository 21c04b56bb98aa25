"""Read `rows` and `invariant`: whose rows have the same bits, however many there are."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import product

from tuner.model.errors import SpaceError
from tuner.model.expressions import map_expressions
from tuner.model.kernel import Argument, Invariance, KernelSpec
from tuner.space.schema import SpaceModel
from tuner.space.yaml import Document

# Where rows lie, for who asks with --invariant that their bits repeat; and that they always do.
ROWS, INVARIANT = "rows", "invariant"
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
    outputs = {a.name: a for a in arguments if a.role in ("output", "inout")}
    if not names:
        remedy = f"name the outputs whose rows it counts: {', '.join(outputs)}"
        raise document.error(f"`{axis}` has no outputs", key, axis, remedy=remedy)
    for n, name in enumerate(names):
        if name not in outputs:
            message, remedy = f"`{name}` is not an output", f"outputs: {', '.join(outputs)}"
        elif rows.dimension(outputs[name]) is None:
            message = f"{_written(outputs[name])} has no rows of `{axis}`"
            remedy = "leave it out, or name an axis that is one of its dimensions"
        elif not outputs[name].deterministic:
            message = f"the bits of `{name}` may differ from call to call (`deterministic: false`)"
            remedy = f"require them to repeat, or leave it out of `{key}`"
        else:
            continue
        raise document.error(message, key, axis, n, remedy=remedy)
    if all(rows.dimension(outputs[name]) for name in names):
        message = f"`{axis}` is no batch: {', '.join(_written(outputs[name]) for name in names)}"
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
        message = f"`{rows.axis}` is no batch of {_written(argument)}: {what}"
        remedy = f"one dimension of it may be `{rows.axis}`, and nothing else may depend on that"
        raise SpaceError(message, path=document.path, line=argument.line, remedy=remedy)


def _written(argument: Argument) -> str:
    return f"`{argument.name}` [{', '.join(size.text for size in argument.shape)}]"
