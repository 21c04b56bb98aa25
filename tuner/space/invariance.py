"""Read `invariant`: whose rows must have the same bits, however many there are."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.model.errors import SpaceError
from tuner.model.kernel import Argument, Invariance
from tuner.space.schema import SpaceModel
from tuner.space.yaml import Document

INVARIANT = "invariant"


def read_invariance(
    document: Document, model: SpaceModel, arguments: Sequence[Argument]
) -> Invariance | None:
    """Read and check the axis and its outputs; raise `SpaceError` with the line."""
    if not model.invariant:
        return None
    ((axis, names),) = model.invariant.items()
    rows = Invariance(axis, tuple(names), document.line(INVARIANT, axis))
    outputs = {a.name: a for a in arguments if a.role in ("output", "inout")}
    if axis not in model.axes:
        remedy = f"the axes are {', '.join(model.axes)}"
        raise document.error(f"`{axis}` is not an axis", INVARIANT, axis, remedy=remedy)
    if not names:
        remedy = f"name the outputs whose rows it counts: {', '.join(outputs)}"
        raise document.error(f"`{axis}` has no outputs", INVARIANT, axis, remedy=remedy)
    for n, name in enumerate(names):
        if name not in outputs:
            message, remedy = f"`{name}` is not an output", f"outputs: {', '.join(outputs)}"
        elif rows.dimension(outputs[name]) is None:
            message = f"{_written(outputs[name])} has no rows of `{axis}`"
            remedy = "leave it out, or name an axis that is one of its dimensions"
        elif not outputs[name].deterministic:
            message = f"the bits of `{name}` may differ from call to call (`deterministic: false`)"
            remedy = "require them to repeat, or leave it out of `invariant`"
        else:
            continue
        raise document.error(message, INVARIANT, axis, n, remedy=remedy)
    if all(rows.dimension(outputs[name]) for name in names):
        message = f"`{axis}` is no batch: {', '.join(_written(outputs[name]) for name in names)}"
        leading = dict.fromkeys(outputs[name].shape[0].text for name in names)
        remedy = f"rows are counted by the first dimension of an output: {', '.join(leading)}"
        raise document.error(message, INVARIANT, axis, remedy=remedy)
    for argument in arguments:
        _check_rows(document, rows, argument)
    return rows


def _check_rows(document: Document, rows: Invariance, argument: Argument) -> None:
    """Refuse what has rows that nobody finds: none could be placed in it among others."""
    unnamed = argument.role == "output" and argument.name not in rows.outputs
    if argument.role == "scratch" or unnamed:
        return
    counted = [size.text for size in argument.shape if rows.axis in size.names]
    pointing = any(rows.axis in bound.names for bound in argument.fill_bounds)
    if pointing or counted not in ([], [rows.axis]):
        what = f"its fill `{argument.fill}` points at rows" if pointing else "no row can be found"
        message = f"`{rows.axis}` is no batch of {_written(argument)}: {what}"
        remedy = f"one dimension of it may be `{rows.axis}`, and nothing else may depend on that"
        raise SpaceError(message, path=document.path, line=argument.line, remedy=remedy)


def _written(argument: Argument) -> str:
    return f"`{argument.name}` [{', '.join(size.text for size in argument.shape)}]"
