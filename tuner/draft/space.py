"""The search-space file of a draft, with marked blanks for what the source does not say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tuner.draft.arguments import WRITTEN, DraftArgument
from tuner.draft.axes import Axes
from tuner.draft.choices import MAX_THREADS, Choice
from tuner.draft.host_values import HostLaunch
from tuner.draft.inference import Inference
from tuner.draft.launches import LaunchDraft, baseline_launch, exact_divisions, template_launch
from tuner.draft.marks import BLANK, MARK
from tuner.draft.proposals import Proposals
from tuner.model.config import format_value
from tuner.model.expressions import Expression
from tuner.model.kernel import DTYPE_BYTES

# Units in the last place, about: float64 has 2**-52, the others one of theirs. float32 is given
# room for sums in another order.
_RELATIVE = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}
_ABSOLUTE = {"float64": 1e-13, "float32": 1e-6, "float16": 1e-6, "bfloat16": 1e-6}
# In some rows of what production quantizes as many as 1.5 % lie halfway between two codes, and an
# inverse that is rounded in fp32 takes the other one.
_CODES = 0.02


def min_bytes(arguments: Sequence[DraftArgument], axes: Sequence[str]) -> str:
    """Write the line `min_bytes`: every array once, those written in place twice."""
    arrays = [argument for argument in arguments if argument.role is not None]
    if not arrays or not all(argument.known for argument in arrays):
        such_as = f"{' * '.join(axes) or 'T * D'} * 4"
        return (
            f"min_bytes: {BLANK}  {MARK} the fewest bytes it must read and write, such as {such_as}"
        )
    bytes_of: dict[str, int] = {}
    for argument in arrays:
        elements = " * ".join(_factor(extent) for extent in argument.shape or ())
        size = DTYPE_BYTES[argument.dtype or ""] * (2 if argument.role == "inout" else 1)
        bytes_of[elements] = bytes_of.get(elements, 0) + size
    total = " + ".join(f"{elements} * {size}" for elements, size in bytes_of.items())
    twice = any(argument.role == "inout" for argument in arrays)
    what = "read or written once" + (", what is changed in place both" if twice else "")
    return f"min_bytes: {total}  # every array {what}"


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


# ld.global.v8.b32, from compute capability 10.0 on (PTX ISA 8.8, ld); 16 before
WIDEST_LOAD_BYTES = 32
_VECTOR = re.compile(r"(?:^|_)vec(?:tor)?(?:_|$)|vec_?size")
_PLAIN = re.compile(r"[A-Za-z0-9_][\w .*/%<>()+:-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Paths:
    """The kernel's files as the search-space file names them: relative to its folder."""

    source: str
    reference: str
    template: str


def space_yaml(
    launch: HostLaunch,
    proposals: Proposals,
    inference: Inference,
    paths: Paths,
    options: tuple[str, ...] = (),
) -> str:
    """Write the whole file."""
    axes, types = inference.axes, launch.types()
    arguments = [DraftArgument.of(p, types, inference) for p in launch.kernel.parameters]
    baseline = baseline_launch(launch, axes)
    tuned = template_launch(launch, axes, proposals)
    lines = [
        f"# Drafted from {launch.source.path.name}; what it does not say is marked FILL IN.",
        "version: 1",
        f"kernel: {launch.kernel.name}",
        f"source: {_quoted(paths.source)}",
        f"reference: {_quoted(paths.reference)}",
        f"template: {_quoted(paths.template)}",
        *([f"options: [{', '.join(options)}]"] if options else []),
        "",
        *_axes(axes),
        "arguments:",
        *(argument.line() for argument in arguments),
        *_workloads(inference),
        min_bytes(arguments, tuple(axes.names.values())),
        "",
        "baseline:",
        "  launch:",
        *_launch(baseline, "    "),
        "",
        *_parameters(proposals, arguments),
        *_constraints(launch, proposals, tuned, axes),
        *_default(proposals.choices),
        "launch:",
        *_launch(tuned, "  "),
        "limits: {spills: allow}",
        *tolerances(arguments, inference),
    ]
    return "\n".join(lines) + "\n"


def _axes(axes: Axes) -> list[str]:
    names = ", ".join(axes.names.values())
    if not names:
        return [f"axes: [{BLANK}]  {MARK} the names of the sizes, such as [T, D]"]
    fixed = [f"{c.name} in line {c.line}" for c in axes.fixed.values()]
    why = f"  # fixed in the source: {', '.join(fixed)}" if fixed else ""
    return [f"axes: [{names}]{why}"]


def _workloads(inference: Inference) -> list[str]:
    names = list(inference.axes.names.values()) or [BLANK]
    known = inference.complete_sizes
    told = [", ".join(f"{axis}: {sizes[axis].value}" for axis in names) for sizes in known]
    lines = {axis: {sizes[axis].line for sizes in known} for axis in names}
    comment = "# " + ", ".join(
        f"{axis} from line {' and '.join(map(str, sorted(where)))}" for axis, where in lines.items()
    )
    if not told:
        some = next(iter(inference.sizes), {})
        told = [", ".join(f"{a}: {some[a].value if a in some else BLANK}" for a in names)]
        comment = f"{MARK} the sizes to tune for, one {{...}} each"
    return [
        "workloads:",
        f"  tuned: [{', '.join(f'{{{sizes}}}' for sizes in told)}]  {comment}",
        "  held_out: []  # other sizes that the kernel takes, to check the result on",
    ]


def _launch(launch: LaunchDraft, indent: str) -> Iterator[str]:
    if launch.kernel is None:
        what = "the kernel with its template arguments, such as name<float, 4>"
        yield f"{indent}- kernel: {BLANK}  {MARK} {what}"
    else:
        yield f"{indent}- kernel: {_quoted(launch.kernel)}"
    yield _sizes("grid", launch.grid, launch.hints, indent)
    yield _sizes("block", launch.block, launch.hints, indent)
    if launch.shared_memory is None:
        hint = _in_source(launch.hints, "shared_memory")
        yield f"{indent}  shared_memory: {BLANK}  {MARK} bytes of dynamic shared memory{hint}"
    elif launch.shared_memory != "0":
        yield f"{indent}  shared_memory: {_quoted(launch.shared_memory)}"


def _sizes(key: str, extents: tuple[str, ...] | None, hints: Mapping[str, str], indent: str) -> str:
    if extents is None:
        unit = "blocks" if key == "grid" else "threads"
        what = f"{unit} in x, y, z{_in_source(hints, key)}"
        return f"{indent}  {key}: [{BLANK}]  {MARK} {what}"
    return f"{indent}  {key}: [{', '.join(_quoted(extent) for extent in extents)}]"


def _in_source(hints: Mapping[str, str], key: str) -> str:
    hint = "".join(c for c in hints.get(key, "") if c.isprintable())
    return f"; the source says {hint}" if hint else ""


def _parameters(proposals: Proposals, arguments: list[DraftArgument]) -> Iterator[str]:
    yield "parameters:"
    for choice in proposals.choices:
        values = ", ".join(format_value(value) for value in choice.values)
        yield f"  {choice.name}: [{values}]  # {choice.note}{_most(choice, arguments)}"
    if not proposals.choices:
        yield f"  {BLANK}: [{BLANK}]  {MARK} what to tune; use it in the template as @{{ name }}@"
    for left in proposals.left:
        yield f"  # {left.name} = {left.value} (line {left.line}) is left out: {left.reason}"


def _most(choice: Choice, arguments: list[DraftArgument]) -> str:
    # who widens the range later goes no further: no load is wider
    bytes_each = [DTYPE_BYTES[a.dtype] for a in arguments if a.role and a.dtype]
    numbers = [value for value in choice.values if isinstance(value, int)]
    if not _VECTOR.search(choice.name) or not bytes_each or len(numbers) < len(choice.values):
        return ""
    return f"; at most {max(WIDEST_LOAD_BYTES // min(bytes_each), *numbers)}"


def _constraints(
    launch: HostLaunch, proposals: Proposals, tuned: LaunchDraft, axes: Axes
) -> Iterator[str]:
    defaults = {c.name: c.default for c in proposals.choices if isinstance(c.default, int)}
    constraints = list(exact_divisions(launch, proposals.choices))
    names = [extent for extent in tuned.block or () if not extent.isdigit()]
    if tuned.block is not None and (len(names) > 1 or not {*names} <= {*defaults}):
        simple = len(tuned.block) == 1
        factors = [e if simple or e.isidentifier() else f"({e})" for e in tuned.block]
        constraints.append(f"{' * '.join(factors)} <= {MAX_THREADS}")
    constraints += [f"{axes.names[c.name]} == {c.number}" for c in axes.fixed.values()]
    if constraints:
        yield "constraints:"
        yield from (f"  - {_quoted(text)}" for text in dict.fromkeys(constraints))
    else:
        yield "constraints: []"


def _default(choices: Iterable[Choice]) -> Iterator[str]:
    values = ", ".join(f"{choice.name}: {format_value(choice.default)}" for choice in choices)
    if values:
        yield f"default: {{{values}}}  # the source as it is"


def _quoted(text: str) -> str:
    return text if _PLAIN.fullmatch(text) and ": " not in text else f'"{text}"'
