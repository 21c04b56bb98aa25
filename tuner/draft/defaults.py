"""What a draft assumes where no source could say it: traffic, and how exact results have to be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from tuner.draft.arguments import WRITTEN, DraftArgument
from tuner.draft.inference import Inference
from tuner.draft.marks import BLANK, MARK
from tuner.expressions import Expression
from tuner.kernel import DTYPE_BYTES

# Units in the last place, about: float64 has 2**-52, the others one of theirs. float32 is given
# room for sums in another order.
_RELATIVE = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}
_ABSOLUTE = {"float64": 1e-13, "float32": 1e-6, "float16": 1e-6, "bfloat16": 1e-6}
# In some rows of what production quantizes as many as 1.5 % lie halfway between two codes, and an
# inverse that is rounded in fp32 takes the other one.
_CODES = 0.02


def traffic(arguments: Sequence[DraftArgument], axes: Sequence[str]) -> str:
    """Write the line of the traffic: every array once, those written in place twice."""
    arrays = [argument for argument in arguments if argument.role is not None]
    if not arrays or not all(argument.known for argument in arrays):
        such_as = f"{' * '.join(axes) or 'T * D'} * 4"
        return (
            f"traffic: {BLANK}  {MARK} the fewest bytes it must read and write, such as {such_as}"
        )
    bytes_of: dict[str, int] = {}
    for argument in arrays:
        elements = " * ".join(_factor(extent) for extent in argument.shape or ())
        size = DTYPE_BYTES[argument.dtype or ""] * (2 if argument.role == "inout" else 1)
        bytes_of[elements] = bytes_of.get(elements, 0) + size
    total = " + ".join(f"{elements} * {size}" for elements, size in bytes_of.items())
    twice = any(argument.role == "inout" for argument in arrays)
    what = "read or written once" + (", what is changed in place both" if twice else "")
    return f"traffic: {total}  # every array {what}"


def tolerances(arguments: Sequence[DraftArgument], inference: Inference) -> Iterator[str]:
    """Write the lines of the tolerance: exact for integers, else what the dtype can hold.

    Where the inputs have a dimension that an output lacks, its elements are taken for sums over
    it, whose rounding grows with their number.
    """
    outputs = [argument for argument in arguments if argument.role in WRITTEN]
    if not outputs:
        blank = f"{{{BLANK}: {{relative: {BLANK}}}}}"
        yield f"tolerance: {blank}  {MARK} the outputs, how exact each is"
        return
    yield "tolerance:"
    for output in outputs:
        dtype = output.dtype or BLANK
        if "int" in dtype or dtype == "bool":
            yield f"  {output.name}: {{absolute: 0}}"
        elif dtype.startswith("float8"):
            yield f"  {output.name}: {{codes: {_CODES}}}  # a default: of them one code off"
        elif dtype not in _RELATIVE:
            what = f"how far {output.name} may be from the reference, such as 1.0e-5"
            yield f"  {output.name}: {{relative: {BLANK}}}  {MARK} {what}"
        else:
            yield _floating(output, dtype, arguments, inference)


def _floating(
    output: DraftArgument, dtype: str, arguments: Sequence[DraftArgument], inference: Inference
) -> str:
    terms, over = _summed(output, arguments, inference)
    relative, absolute = _RELATIVE[dtype], _ABSOLUTE[dtype] * terms
    why = f"a default for {dtype}"
    if over:
        why += f"; the absolute one for sums of {terms} terms, over {' and '.join(over)}"
    numbers = f"relative: {_number(relative)}, absolute: {_number(absolute)}"
    return f"  {output.name}: {{{numbers}}}  # {why}"


def _summed(
    output: DraftArgument, arguments: Sequence[DraftArgument], inference: Inference
) -> tuple[int, tuple[str, ...]]:
    if output.shape is None or not inference.complete_sizes:
        return 1, ()
    inputs = [a.shape or () for a in arguments if a.role in ("input", "inout")]
    named = {name for extent in output.shape for name in Expression.parse(extent).names}
    extents = (extent for shape in inputs for extent in shape if extent not in output.shape)
    over = tuple(dict.fromkeys(e for e in extents if Expression.parse(e).names - named))
    largest = max(
        prod(Expression.parse(extent).integer(values) for extent in over)
        for values in (
            {axis: number.value for axis, number in sizes.items()}
            for sizes in inference.complete_sizes
        )
    )
    return largest, over


def _factor(extent: str) -> str:
    simple = extent.isidentifier() or extent.isdigit() or extent.startswith("ceil_div(")
    return extent if simple else f"({extent})"


def _number(value: float) -> str:
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa}e{int(exponent)}"
