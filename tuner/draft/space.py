"""The files of a draft: the text of the search space, their blanks, and where they are written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from tuner.draft.blanks import BLANK, MARK, Blank
from tuner.draft.choices import MAX_THREADS, Proposals, TunableConstant
from tuner.draft.host_values import HostLaunch
from tuner.draft.inference import DraftArgument, Inference
from tuner.draft.launches import Axes, LaunchDraft, exact_divisions, launch_draft
from tuner.model.config import format_value
from tuner.model.errors import InputError, SpaceError
from tuner.model.expressions import Expression
from tuner.model.kernel import DTYPE_BYTES
from tuner.process.files import atomic_write


@dataclass(frozen=True, slots=True)
class Drafted:
    """What became of a draft: the files written, those kept as they were, and what is left.

    `space` is None where a person has to write it. `left_out` says what an extracted unit does not
    hold and why, `notes` what else there is to know.
    """

    kernel: str
    space: Path | None
    written: tuple[Path, ...]
    kept: tuple[Path, ...] = ()
    parameters: tuple[str, ...] = ()
    blanks: tuple[Blank, ...] = ()
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def require_filled(self, check: str) -> None:
        """Raise `InputError` that lists every blank; `check` is the command that comes next."""
        if not self.blanks:
            return
        listed = "".join(f"{blank}\n  " for blank in self.blanks)
        count = "1 blank is" if len(self.blanks) == 1 else f"{len(self.blanks)} blanks are"
        raise InputError(
            f"{count} left in the draft for {self.kernel}, where the source does not say enough",
            remedy=f"{listed}fill in what they ask for, then: {check}",
        )


def write_new(
    files: Mapping[Path, str], *, force: bool, more: Mapping[Path, str] | None = None
) -> None:
    """Write files that must not be there yet unless `force`, then `more`, or nothing at all."""
    existing = [path for path in files if path.exists()]
    if existing and not force:
        raise SpaceError(
            "exists already; nothing was written",
            path=existing[0],
            remedy="with `tune init`, --force overwrites it and --out DIR writes elsewhere",
        )
    for path, text in {**files, **(more or {})}.items():
        write(path, text)


def write(path: Path, text: str) -> None:
    """Write one file with its folder; raise `InputError` where that is not possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, text)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"cannot be written: {reason.lower()}",
            path=path,
            remedy="`tune init --out DIR` writes search space and template elsewhere; the "
            "reference belongs beside the kernel",
        ) from error


# Units in the last place, about: float64 has 2**-52, the others one of theirs. float32 is given
# room for sums in another order.
_RELATIVE = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}
_ABSOLUTE = {"float64": 1e-13, "float32": 1e-6, "float16": 1e-6, "bfloat16": 1e-6}
# In some rows of what production quantizes as many as 1.5 % lie halfway between two codes, and an
# inverse that is rounded in fp32 takes the other one.
_CODES = 0.02
# ld.global.v8.b32, from compute capability 10.0 on (PTX ISA 8.8, ld); 16 before
_WIDEST_LOAD_BYTES = 32
_VECTOR = re.compile(r"(?:^|_)vec(?:tor)?(?:_|$)|vec_?size")
_PLAIN = re.compile(r"[A-Za-z0-9_][\w .*/%<>()+:-]*", re.ASCII)


def space_yaml(
    launch: HostLaunch,
    proposals: Proposals,
    tuned: LaunchDraft,
    inference: Inference,
    files: Mapping[str, str],
    options: Sequence[str] = (),
) -> str:
    """Write the whole file; `files` are those that it names, by their keys in it."""
    axes, arguments = inference.axes, inference.arguments
    default = ", ".join(f"{c.name}: {format_value(c.default)}" for c in proposals.choices)
    baseline = launch_draft(launch, axes, launch.instance)
    lines = [
        f"# Drafted from {launch.source.path.name}; what it does not say is marked FILL IN.",
        "version: 1",
        f"kernel: {launch.kernel.name}",
        *(f"{key}: {_quoted(path)}" for key, path in files.items()),
        *([f"options: [{', '.join(options)}]"] if options else []),
        "",
        _axes(axes),
        "arguments:",
        *map(_argument, arguments),
        *_workloads(inference),
        _min_bytes(arguments, list(axes.names.values())),
        "",
        "baseline:",
        "  launch:",
        *_launch(baseline, "    "),
        "",
        *_parameters(proposals, arguments),
        *_constraints(launch, proposals.choices, tuned, inference),
        *([f"default: {{{default}}}  # the source as it is"] if default else []),
        "launch:",
        *_launch(tuned, "  "),
        "limits: {spills: allow}",
        *_tolerances(inference),
    ]
    return "\n".join(lines) + "\n"


def _axes(axes: Axes) -> str:
    names = ", ".join(axes.names.values())
    if not names:
        return f"axes: [{BLANK}]  {MARK} the names of the sizes, such as [T, D]"
    fixed = [f"{c.name} in line {c.line}" for c in axes.fixed.values()]
    return f"axes: [{names}]" + (f"  # fixed in the source: {', '.join(fixed)}" if fixed else "")


def _argument(argument: DraftArgument) -> str:
    name, dtype = argument.parameter.name or BLANK, argument.dtype or BLANK
    missing = [] if argument.dtype else [f"the dtype (`{argument.parameter.declaration}`)"]
    missing += [] if argument.parameter.name else ["its name"]
    if argument.role is not None:
        what = "shape"
        missing += [f"the shape of {name} over the axes"] if argument.shape is None else []
        end = f"shape: [{', '.join(argument.shape or (BLANK,))}], role: {argument.role}"
    else:
        what = "value"
        missing += [f"the value of {name}"] if argument.value is None else []
        end = f"value: {argument.value or BLANK}"
    comment = f"  {MARK} {', '.join(missing)}" if missing else ""
    if argument.origin:
        comment += f"; the {what}: {argument.origin}" if missing else f"  # {argument.origin}"
    return f"  - {{name: {name}, dtype: {dtype}, {end}}}{comment}"


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


def _min_bytes(arguments: Sequence[DraftArgument], axes: Sequence[str]) -> str:
    arrays = [argument for argument in arguments if argument.role is not None]
    known = (a.dtype is not None and a.shape is not None and a.parameter.name for a in arrays)
    if not arrays or not all(known):
        what = f"the fewest bytes it must read and write, such as {' * '.join(axes) or 'T * D'} * 4"
        return f"min_bytes: {BLANK}  {MARK} {what}"
    bytes_of: dict[str, int] = {}
    for argument in arrays:
        elements = " * ".join(
            e if e.isidentifier() or e.isdigit() or e.startswith("ceil_div(") else f"({e})"
            for e in argument.shape or ()
        )
        size = DTYPE_BYTES[argument.dtype or ""] * (2 if argument.role == "inout" else 1)
        bytes_of[elements] = bytes_of.get(elements, 0) + size
    total = " + ".join(f"{elements} * {size}" for elements, size in bytes_of.items())
    twice = any(argument.role == "inout" for argument in arrays)
    what = "read or written once" + (", what is changed in place both" if twice else "")
    return f"min_bytes: {total}  # every array {what}"


def _launch(launch: LaunchDraft, indent: str) -> Iterator[str]:
    printable = {key: "".join(filter(str.isprintable, h)) for key, h in launch.hints.items()}
    hints = {key: f"; the source says {hint}" for key, hint in printable.items() if hint}
    if launch.kernel is None:
        what = "the kernel with its template arguments, such as name<float, 4>"
        yield f"{indent}- kernel: {BLANK}  {MARK} {what}"
    else:
        yield f"{indent}- kernel: {_quoted(launch.kernel)}"
    for key, extents, unit in (("grid", launch.grid, "blocks"), ("block", launch.block, "threads")):
        if extents is None:
            what = f"{unit} in x, y, z{hints.get(key, '')}"
            yield f"{indent}  {key}: [{BLANK}]  {MARK} {what}"
        else:
            yield f"{indent}  {key}: [{', '.join(map(_quoted, extents))}]"
    if launch.shared_memory is None:
        what = f"bytes of dynamic shared memory{hints.get('shared_memory', '')}"
        yield f"{indent}  shared_memory: {BLANK}  {MARK} {what}"
    elif launch.shared_memory != "0":
        yield f"{indent}  shared_memory: {_quoted(launch.shared_memory)}"


def _parameters(proposals: Proposals, arguments: Sequence[DraftArgument]) -> Iterator[str]:
    yield "parameters:"
    for choice in proposals.choices:
        values = ", ".join(format_value(value) for value in choice.values)
        yield f"  {choice.name}: [{values}]  # {choice.note}{_most(choice, arguments)}"
    if not proposals.choices:
        yield f"  {BLANK}: [{BLANK}]  {MARK} what to tune; use it in the template as @{{ name }}@"
    yield from (f"  # {left}" for left in proposals.left)


def _most(choice: TunableConstant, arguments: Sequence[DraftArgument]) -> str:
    # who widens the range later goes no further: no load is wider
    bytes_each = [DTYPE_BYTES[a.dtype] for a in arguments if a.role and a.dtype]
    numbers = [value for value in choice.values if isinstance(value, int)]
    if not _VECTOR.search(choice.name) or not bytes_each or len(numbers) < len(choice.values):
        return ""
    return f"; at most {max(_WIDEST_LOAD_BYTES // min(bytes_each), *numbers)}"


def _constraints(
    launch: HostLaunch,
    choices: Sequence[TunableConstant],
    tuned: LaunchDraft,
    inference: Inference,
) -> Iterator[str]:
    axes, numbers = inference.axes, {c.name for c in choices if isinstance(c.default, int)}
    constraints = list(exact_divisions(launch, choices))
    names = [extent for extent in tuned.block or () if not extent.isdigit()]
    if tuned.block is not None and (len(names) > 1 or not {*names} <= numbers):
        simple = len(tuned.block) == 1
        factors = [e if simple or e.isidentifier() else f"({e})" for e in tuned.block]
        constraints.append(f"{' * '.join(factors)} <= {MAX_THREADS}")
    constraints += [f"{axes.names[c.name]} == {c.number}" for c in axes.fixed.values()]
    if constraints:
        yield "constraints:"
        yield from (f"  - {_quoted(text)}" for text in dict.fromkeys(constraints))
    else:
        yield "constraints: []"


def _tolerances(inference: Inference) -> Iterator[str]:
    outputs = [a for a in inference.arguments if a.role in ("output", "inout")]
    if not outputs:
        blank = f"{{{BLANK}: {{relative: {BLANK}}}}}"
        yield f"tolerance: {blank}  {MARK} the outputs, how exact each is"
        return
    yield "tolerance:"
    for output in outputs:
        name, dtype = output.parameter.name or BLANK, output.dtype or BLANK
        if "int" in dtype or dtype == "bool":
            yield f"  {name}: {{absolute: 0}}"
        elif dtype.startswith("float8"):
            yield f"  {name}: {{codes: {_CODES}}}  # a default: of them one code off"
        elif dtype in _RELATIVE:
            terms, over = _summed(output, inference)
            relative, absolute = _number(_RELATIVE[dtype]), _number(_ABSOLUTE[dtype] * terms)
            why = f"a default for {dtype}"
            if over:
                why += f"; the absolute one for sums of {terms} terms, over {' and '.join(over)}"
            yield f"  {name}: {{relative: {relative}, absolute: {absolute}}}  # {why}"
        else:
            what = f"how far {name} may be from the reference, such as 1.0e-5"
            yield f"  {name}: {{relative: {BLANK}}}  {MARK} {what}"


def _summed(output: DraftArgument, inference: Inference) -> tuple[int, Sequence[str]]:
    # Where the inputs have a dimension that an output lacks, its elements are taken for sums over
    # it, whose rounding grows with their number.
    if output.shape is None or not inference.complete_sizes:
        return 1, ()
    inputs = [a.shape or () for a in inference.arguments if a.role in ("input", "inout")]
    named = {name for extent in output.shape for name in Expression.parse(extent).names}
    others = (extent for shape in inputs for extent in shape if extent not in output.shape)
    over = [e for e in dict.fromkeys(others) if Expression.parse(e).names - named]
    extents = [Expression.parse(extent) for extent in over]
    sizes = ({axis: n.value for axis, n in known.items()} for known in inference.complete_sizes)
    return max(prod(extent.integer(values) for extent in extents) for values in sizes), over


def _number(value: float) -> str:
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def _quoted(text: str) -> str:
    return text if _PLAIN.fullmatch(text) and ": " not in text else f'"{text}"'
