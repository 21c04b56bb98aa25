"""The search-space file of a draft, with marked blanks for what the source does not say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tuner.draft.choices import MAX_THREADS, Choice
from tuner.draft.host_launch import HostLaunch
from tuner.draft.launches import (
    LaunchDraft,
    baseline_launch,
    exact_divisions,
    template_launch,
)
from tuner.draft.proposals import Proposals
from tuner.source import KernelParameter
from tuner.source.dtypes import element_dtype
from tuner.space import format_value

BLANK = "FILL_IN"
MARK = "# FILL IN:"
_PLAIN = re.compile(r"[A-Za-z0-9_][\w .*/%<>()+:-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Paths:
    """The kernel's files as the search-space file names them: relative to its folder."""

    source: str
    reference: str
    template: str


def space_yaml(
    launch: HostLaunch, proposals: Proposals, axes: Mapping[str, str], paths: Paths
) -> str:
    """Write the whole file."""
    arguments = [_Argument.of(p, launch, axes) for p in launch.kernel.parameters]
    baseline = baseline_launch(launch, axes)
    tuned = template_launch(launch, axes, proposals)
    size = " * ".join(axes.values()) or "T * D"
    bytes_moved = f"{size} * 4"
    lines = [
        f"# Drafted from {launch.source.path.name}; what it does not say is marked FILL IN.",
        "version: 1",
        f"kernel: {launch.kernel.name}",
        f"source: {_quoted(paths.source)}",
        f"reference: {_quoted(paths.reference)}",
        f"template: {_quoted(paths.template)}",
        "",
        *_axes(axes),
        "arguments:",
        *(argument.line(axes) for argument in arguments),
        *_workloads(axes),
        f"traffic: {BLANK}  {MARK} the fewest bytes it must read and write, such as {bytes_moved}",
        "",
        "baseline:",
        "  launch:",
        *_launch(baseline, "    "),
        "",
        *_parameters(proposals),
        *_constraints(launch, proposals, tuned),
        *_default(proposals.choices),
        "launch:",
        *_launch(tuned, "  "),
        "limits: {spills: allow}",
        *_tolerances(arguments),
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class _Argument:
    parameter: KernelParameter
    dtype: str
    role: str | None

    @classmethod
    def of(cls, p: KernelParameter, launch: HostLaunch, axes: Mapping[str, str]) -> _Argument:
        dtype = element_dtype(p.c_type, launch.types()) if p.pointers < 2 else None
        role = _role(p, launch) if p.pointers else None
        return cls(p, dtype or BLANK, role)

    def line(self, axes: Mapping[str, str]) -> str:
        name, p = self.parameter.name or BLANK, self.parameter
        missing = [f"the dtype (`{p.declaration}`)"] if self.dtype == BLANK else []
        missing += ["its name"] if name == BLANK else []
        if self.role is not None:
            missing.append(f"the shape of {name} over the axes")
            end = f"shape: [{BLANK}], role: {self.role}"
        elif p.name in axes:
            end = f"value: {axes[p.name]}"
        else:
            missing.append(f"the value of {name}")
            end = f"value: {BLANK}"
        hint = f"  {MARK} {', '.join(missing)}" if missing else ""
        return f"  - {{name: {name}, dtype: {self.dtype}, {end}}}{hint}"


def _role(parameter: KernelParameter, launch: HostLaunch) -> str:
    if parameter.const:
        return "input"
    body = launch.source.masked[slice(*launch.kernel.body)]
    element = rf"\b{re.escape(parameter.name)}\s*\[(?:[^\[\]]|\[[^\]]*\])*\]"
    touched = re.findall(rf"{element}\s*(=(?!=)|\S)", body)
    atomic = re.search(rf"\batomic\w+\s*\(\s*&?\s*{re.escape(parameter.name)}\b", body)
    return "inout" if atomic or any(after != "=" for after in touched) else "output"


def _axes(axes: Mapping[str, str]) -> list[str]:
    if axes:
        return [f"axes: [{', '.join(axes.values())}]"]
    return [f"axes: [{BLANK}]  {MARK} the names of the sizes, such as [T, D]"]


def _workloads(axes: Mapping[str, str]) -> list[str]:
    names = list(axes.values()) or [BLANK]
    workload = ", ".join(f"{name}: {BLANK}" for name in names)
    return [
        "workloads:",
        f"  tuned: [{{{workload}}}]  {MARK} the sizes to tune for, one {{...}} each",
        f"  held_out: [{{{workload}}}]  {MARK} other sizes, which only check the result",
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


def _parameters(proposals: Proposals) -> Iterator[str]:
    yield "parameters:"
    for choice in proposals.choices:
        values = ", ".join(format_value(value) for value in choice.values)
        yield f"  {choice.name}: [{values}]  # {choice.note}"
    if not proposals.choices:
        yield f"  {BLANK}: [{BLANK}]  {MARK} what to tune; use it in the template as @{{ name }}@"
    for left in proposals.left:
        yield f"  # {left.name} = {left.value} (line {left.line}) is left out: {left.reason}"


def _constraints(launch: HostLaunch, proposals: Proposals, tuned: LaunchDraft) -> Iterator[str]:
    defaults = {c.name: c.default for c in proposals.choices if isinstance(c.default, int)}
    constraints = list(exact_divisions(launch, proposals.choices))
    names = [extent for extent in tuned.block or () if not extent.isdigit()]
    if tuned.block is not None and (len(names) > 1 or not {*names} <= {*defaults}):
        simple = len(tuned.block) == 1
        factors = [e if simple or e.isidentifier() else f"({e})" for e in tuned.block]
        constraints.append(f"{' * '.join(factors)} <= {MAX_THREADS}")
    if constraints:
        yield "constraints:"
        yield from (f"  - {_quoted(text)}" for text in dict.fromkeys(constraints))
    else:
        yield "constraints: []"


def _default(choices: Iterable[Choice]) -> Iterator[str]:
    values = ", ".join(f"{choice.name}: {format_value(choice.default)}" for choice in choices)
    if values:
        yield f"default: {{{values}}}  # the source as it is"


def _tolerances(arguments: list[_Argument]) -> Iterator[str]:
    outputs = [a for a in arguments if a.role in ("output", "inout")]
    if not outputs:
        blank = f"{{{BLANK}: {{relative: {BLANK}}}}}"
        yield f"tolerance: {blank}  {MARK} the outputs, how exact each is"
        return
    yield "tolerance:"
    for argument in outputs:
        name = argument.parameter.name or BLANK
        if "int" in argument.dtype or argument.dtype == "bool":
            yield f"  {name}: {{absolute: 0}}"
        else:
            what = f"how far {name} may be from the reference, such as 1.0e-5"
            yield f"  {name}: {{relative: {BLANK}}}  {MARK} {what}"


def _quoted(text: str) -> str:
    return text if _PLAIN.fullmatch(text) and ": " not in text else f'"{text}"'
