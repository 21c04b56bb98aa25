"""The files of a draft: the text of the search space, their blanks, and where they are written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from tuner.extensions.draft.constraints import conditions_kept, exact_divisions
from tuner.extensions.draft.host_values import HostLaunch
from tuner.extensions.draft.inference import DraftArgument, Inference
from tuner.extensions.draft.launches import Axes, LaunchDraft, launch_draft
from tuner.extensions.draft.meaning import MAX_THREADS
from tuner.extensions.draft.tensor_maps import Handed
from tuner.extensions.draft.tunables import Proposals, TunableConstant
from tuner.model.config import format_value
from tuner.model.errors import InputError, SpaceError
from tuner.model.kernel import DTYPE_BYTES, MEASURED_DTYPES
from tuner.process.files import atomic_write
from tuner.source.facts import KernelFunction
from tuner.space.blanks import BLANK, MARK, UNWRITTEN, Blank


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
    handed: Handed | None = None,
    origin: str = "",
) -> str:
    """Write the whole file; `files` are those that it names, by their keys in it.

    `origin` says where the launch is from, and how sure that is.
    """
    maps = handed.maps if handed else ()
    axes, arguments, choices = inference.axes, inference.arguments, proposals.choices
    sizes, sizes_from = workloads_text(inference)
    outputs = [a for a in arguments if a.role in ("output", "inout")]
    return render(
        "space.yaml.j2",
        launch=launch,
        origin=origin,
        files=files,
        options=options,
        axes=_axes(axes),
        arguments=arguments,
        constant_memory=inference.constant_memory,
        sizes=sizes,
        sizes_from=sizes_from,
        held_out=_write_workloads(inference.held_out),
        edge_cases=_write_workloads(inference.edge_cases),
        min_bytes=min_bytes_text(arguments),
        baseline=launch_draft(launch, axes, launch.instance),
        choices=choices,
        most=partial(_most, arguments),
        left=proposals.left,
        constraints=_constraints(launch, choices, tuned, axes),
        default=[f"{c.name}: {format_value(c.default)}" for c in choices],
        tuned=tuned,
        own=handed.own if handed else (),
        baseline_maps=[draft_map.text(launch, axes, ()) for draft_map in maps],
        tuned_maps=[draft_map.text(launch, axes, choices) for draft_map in maps],
        tolerances=[(a.parameter.name or BLANK, tolerance_text(a)) for a in outputs],
    )


def reference_stub(kernel: KernelFunction, stem: str) -> str:
    """Write a reference whose body a person has to write, for the source named `stem`."""
    arrays = [parameter for parameter in kernel.parameters if parameter.pointers]
    inputs = ", ".join(parameter.name for parameter in arrays if parameter.const)
    return render(
        "reference.py.j2",
        kernel=kernel.name,
        stem=stem,
        unwritten=UNWRITTEN,
        names=f": {inputs}" if inputs else "",
        outputs=", ".join(f"'{p.name}': ..." for p in arrays if not p.const) or "'name': ...",
    )


def render(template: str, **values: object) -> str:
    """Write one of the templates beside this module with these values."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("tuner.extensions", "draft"),
        autoescape=False,
        undefined=StrictUndefined,
        variable_start_string="@{",
        variable_end_string="}@",
        line_statement_prefix="%",
        keep_trailing_newline=True,
    )
    made.filters |= {"quoted": _quote, "value": format_value}
    made.globals |= {"argument": _argument, "hints": _hints}
    return made


def _axes(axes: Axes) -> str:
    names = ", ".join(axes.names.values())
    if not names:
        return f"[{BLANK}]  {MARK} the names of the sizes, such as [T, D]"
    fixed = [f"{c.name} in line {c.line}" if c.line else c.name for c in axes.fixed.values()]
    return f"[{names}]" + (f"  # fixed in the source: {', '.join(fixed)}" if fixed else "")


def _argument(argument: DraftArgument) -> str:
    name, dtype = argument.parameter.name or BLANK, argument.dtype or BLANK
    missing = [] if argument.dtype else [f"the dtype (`{argument.parameter.declaration}`)"]
    if missing and argument.role:
        missing[0] += "; of a struct the bytes: uint8, its last extent sizeof, filled by inputs()"
    missing += [] if argument.parameter.name else ["its name"]
    if argument.role is not None:
        missing += [f"the shape of {name} over the axes"] if argument.shape is None else []
        end = f"shape: [{', '.join(argument.shape or (BLANK,))}], role: {argument.role}"
        end += f", fill: {argument.fill}" if argument.fill else ""
        end += "" if argument.deterministic else ", deterministic: false"
        end += ", constant: true" if argument.constant else ""
        end += f', note: "{argument.note}"' if argument.note else ""
    else:
        missing += [f"the value of {name}"] if argument.value is None else []
        end = f"value: {argument.value or BLANK}"
    said = f"{argument.certainty}: {'; '.join(evidence.text for evidence in argument.evidence)}"
    comment = f"  {MARK} {', '.join(missing)}" if missing else ""
    if argument.evidence:
        comment += f"; {said}" if missing else f"  # {said}"
    return f"{{name: {name}, dtype: {dtype}, {end}}}{comment}"


def workloads_text(inference: Inference) -> tuple[list[str], str]:
    """Write the workloads to tune for, and a comment that says where they are from."""
    names = list(inference.axes.names.values()) or [BLANK]
    known = inference.complete_sizes
    if not known:
        some = next(iter(inference.sizes), {})
        sizes = ", ".join(f"{a}: {some[a].value if a in some else BLANK}" for a in names)
        return [f"{{{sizes}}}"], f"{MARK} the sizes to tune for, one {{...}} each"
    lines = {axis: sorted({sizes[axis].line for sizes in known}) for axis in names}
    origins = [f"{axis} from line {' and '.join(map(str, at))}" for axis, at in lines.items()]
    if inference.sizes_from:
        origins = [inference.sizes_from]
    told = (", ".join(f"{axis}: {sizes[axis].value}" for axis in names) for sizes in known)
    return [f"{{{sizes}}}" for sizes in told], f"# {', '.join(origins)}"


def _write_workloads(workloads: Sequence[Mapping[str, int]]) -> str:
    each = (", ".join(f"{axis}: {n}" for axis, n in sizes.items()) for sizes in workloads)
    return ", ".join(f"{{{sizes}}}" for sizes in each)


def min_bytes_text(arguments: Sequence[DraftArgument]) -> str | None:
    """Write how many bytes all arrays have, where every shape is known."""
    arrays = [argument for argument in arguments if argument.role is not None]
    known = (a.dtype is not None and a.shape is not None and a.parameter.name for a in arrays)
    if not arrays or not all(known):
        return None
    bytes_of: dict[str, int] = {}
    pointing = [a.fill for a in arrays if a.fill.startswith(("indices(", "distinct("))]
    tables = {fill.partition("(")[2].rstrip(")") for fill in pointing}
    whole = [a for a in arrays if a.role != "input" or not tables & {*(a.shape or ())}]
    for argument in whole:
        elements = " * ".join(
            e if e.isidentifier() or e.isdigit() or e.startswith("ceil_div(") else f"({e})"
            for e in argument.shape or ()
        )
        size = DTYPE_BYTES[argument.dtype or ""] * (2 if argument.role == "inout" else 1)
        bytes_of[elements] = bytes_of.get(elements, 0) + size
    total = " + ".join(f"{elements} * {size}" for elements, size in bytes_of.items())
    twice = any(argument.role == "inout" for argument in arrays)
    rest = "" if len(whole) == len(arrays) else "; of a table nobody knows how much"
    what = "read or written once" + (", what is changed in place both" if twice else "")
    return f"{total}  # every array {what}{rest}"


def _hints(launch: LaunchDraft) -> dict[str, str]:
    printable = {key: "".join(filter(str.isprintable, h)) for key, h in launch.hints.items()}
    hints = {key: f"; the source says {hint}" for key, hint in printable.items() if hint}
    return {"grid": "", "block": "", "shared_memory": "", "cluster": "", **hints}


def _most(arguments: Sequence[DraftArgument], choice: TunableConstant) -> str:
    # who widens the range later goes no further: no load is wider
    bytes_each = [DTYPE_BYTES[a.dtype] for a in arguments if a.role and a.dtype]
    numbers = [value for value in choice.values if isinstance(value, int)]
    if isinstance(choice.default, bool):
        return ""
    if not _VECTOR.search(choice.name) or not bytes_each or len(numbers) < len(choice.values):
        return ""
    return f"; at most {max(_WIDEST_LOAD_BYTES // min(bytes_each), *numbers)}"


def _constraints(
    launch: HostLaunch, choices: Sequence[TunableConstant], tuned: LaunchDraft, axes: Axes
) -> list[str]:
    numbers = {c.name for c in choices if isinstance(c.default, int)}
    constraints = list(exact_divisions(launch, choices))
    constraints += [text for choice in choices for text in choice.constraints]
    constraints += conditions_kept(launch, axes, choices, tuned)
    names = [extent for extent in tuned.block or () if not extent.isdigit()]
    limited = len(names) == 1 and names[0].startswith("min(") and any(c.is_block for c in choices)
    if tuned.block is not None and not limited and (len(names) > 1 or not {*names} <= numbers):
        simple = len(tuned.block) == 1
        bare = (e.isidentifier() or (simple and " if " not in e) for e in tuned.block)
        factors = [e if alone else f"({e})" for e, alone in zip(tuned.block, bare, strict=True)]
        constraints.append(f"{' * '.join(factors)} <= {MAX_THREADS}")
    constraints += [f"{axes.names[c.name]} == {c.number}" for c in axes.fixed.values()]
    # the source launches no block for what is left of a division
    divided = re.compile(r"(?:ceil_div\()?(\w+) // ([\w/ ]+?)(?:, [\w *]+\))?")
    for match in filter(None, map(divided.fullmatch, tuned.grid or ())):
        parts = match[2].split(" // ")
        if {*parts} & {choice.name for choice in choices}:
            by = f"({' * '.join(parts)})" if len(parts) > 1 else parts[0]
            constraints.append(f"{match[1]} % {by} == 0")
    return list(dict.fromkeys(constraints))


def tolerance_text(output: DraftArgument) -> str:
    """Write how far an output may be from the reference, by its dtype."""
    dtype = output.dtype or BLANK
    if dtype in MEASURED_DTYPES:
        return "measured  # 8 times as far off as the baseline, and as sums in any order"
    if "int" in dtype or dtype == "bool":
        return "{absolute: 0}"
    if dtype.startswith("float8"):
        return f"{{codes: {_CODES}}}  # a default: of them one code off"
    what = f"measured for floats, {{absolute: 0}} for whole numbers ({output.parameter.name})"
    return f"{BLANK}  {MARK} {what}"


def _quote(text: str) -> str:
    return text if _PLAIN.fullmatch(text) and ": " not in text else f'"{text}"'
