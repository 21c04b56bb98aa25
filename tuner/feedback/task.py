"""The part of what an agent reads that stays the same in every round of a session."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tuner.device.base import DeviceInfo
from tuner.feedback.wording import clipped, fenced, microseconds, size, table
from tuner.hardware import KIB, limits_for
from tuner.kernel import Argument, KernelSpec, LaunchSpec, Limits, Tolerance, Workload
from tuner.profiler.base import Degree
from tuner.space_sections import NEEDED_SECTIONS, OWN_SECTIONS
from tuner.statistics import floor_us

# Characters; a longer text is cut, and says so.
MOST_SOURCE, MOST_REFERENCE = 10_000, 4_000

_DEGREES = {
    Degree.COUNTERS: "Profiles have Nsight Compute's counters, times, the machine code and the "
    "compiler's report. Findings from them were measured.",
    Degree.TIMING: "Profiles have times, the machine code and the compiler's report, and no "
    "counters: they may not be read here. What a finding says of caches, stalls or conflicts is "
    "reasoned from the code, not measured.",
    Degree.STATIC: "Profiles have the machine code and the compiler's report alone, for there is "
    "no GPU here to profile on. What a finding says of speed is reasoned from the code.",
}
_TEMPLATE_RULES = """\
- `@{ expression }@` writes a value; a boolean comes out as `true` or `false`.
- `//% if x`, `//% elif y`, `//% else`, `//% endif` stand alone on their lines, as do `//% for i in
  range(n)`, `//% set name = value` and `//% macro f(a)` with their ends; `/*% ... %*/` is a
  statement anywhere, `/*# ... #*/` a comment that is left out. Nothing else of Jinja's delimiters
  means anything, so CUDA's own braces are safe.
- Expressions: `+ - * / // % **`, `~` to join texts, comparisons, `in`, `and`, `or`, `not`,
  `a if c else b`; the functions `min`, `max`, `abs`, `ceil_div`, `range`; the filters `abs`,
  `float`, `int`, `join`, `length`, `lower`, `max`, `min`, `round`, `upper`; `loop.index0` and its
  kin. No include, import, attributes or other calls.
- Every declared parameter is used by the template or a launch, and every name that is used is a
  parameter, an axis or an operator's macro; none of them is set again.
- Prefer a head of `constexpr` lines and `if constexpr` below it to templated bodies."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is tuned, where, and how much a profile can know there.

    `source` is the baseline's text, `reference` that of the float64 reference, "" to leave it out.
    `operators` has the value chosen for each of the operator's macros.
    """

    spec: KernelSpec
    source: str
    info: DeviceInfo
    degree: Degree
    operators: Mapping[str, str] = field(default_factory=dict)
    reference: str = ""

    def floor_us(self, workload: Workload) -> float:
        """Compute the time that the declared minimum of traffic takes at the streaming rate."""
        traffic = self.spec.traffic.integer(workload.values)
        return floor_us(traffic, self.info.streaming_gbps)


def stable_text(task: Task) -> str:
    """Write the task, the kernel, the formats and the hardware, in under 20 kB."""
    return "\n\n".join(
        f"# {title}\n\n{text}"
        for title, text in (
            ("Task", _task(task)),
            ("The kernel", _kernel(task)),
            ("Workloads", _workloads(task)),
            ("The search space", _space_rules(task.spec)),
            ("The template", _TEMPLATE_RULES),
            ("Hardware", _hardware(task.info)),
            ("Profiles", _DEGREES[task.degree]),
        )
    )


def _task(task: Task) -> str:
    return (
        f"Make the CUDA kernel `{task.spec.name}` faster on {task.info.name}. Write a template "
        "with explicit parameters and the search space beside it; a program checks both, searches "
        "the space on every tuned workload, profiles what wins, and reports in the next round. "
        "What counts is the geometric mean over the tuned workloads of the baseline's time over "
        "yours, each with its own best config. Results must stay within the tolerances on every "
        "kind of input, on held-out and boundary sizes too."
    )


def _kernel(task: Task) -> str:
    spec = task.spec
    source = clipped(task.source, MOST_SOURCE, "the baseline's source is longer")
    parts = [fenced(source, "cuda", f"The baseline, `{spec.source.name}`")]
    parts.append("The baseline is launched so:\n" + "\n".join(_launches(spec.baseline)))
    if task.reference:
        text = clipped(task.reference, MOST_REFERENCE, "the reference is longer")
        what = f"The reference in float64, `{spec.reference.name}`, which decides what is right"
        parts.append(fenced(text, "python", what))
    parts.append(
        "Arguments, in the kernel's order; neither they nor their meaning may change:\n\n"
        + table(["name", "dtype", "shape or value", "role"], map(_argument, spec.arguments))
    )
    if task.operators:
        chosen = ", ".join(f"{name}={value}" for name, value in task.operators.items())
        parts.append(f"Macros that belong to the operator, defined for every source: {chosen}.")
    parts.append("Tolerances:\n" + "\n".join(_tolerances(spec.tolerances)))
    return "\n\n".join(parts)


def _launches(launches: Iterable[LaunchSpec]) -> Iterator[str]:
    for launch in launches:
        grid = ", ".join(one.text for one in launch.grid)
        block = ", ".join(one.text for one in launch.block)
        shared = f", shared_memory {launch.shared_memory.text}" if launch.shared_memory else ""
        when = f", when {launch.when.text}" if launch.when else ""
        yield f"- `{launch.kernel}`: grid [{grid}], block [{block}]{shared}{when}"


def _argument(argument: Argument) -> list[str]:
    notes: str = argument.role
    if argument.value is not None:
        return [argument.name, argument.dtype, f"= {argument.value.text}", "scalar"]
    if argument.nonfinite:
        notes += ", may hold NaN and infinities"
    if not argument.deterministic:
        notes += ", bits may differ between runs"
    return [argument.name, argument.dtype, f"[{', '.join(d.text for d in argument.shape)}]", notes]


def _tolerances(tolerances: Mapping[str, Tolerance]) -> Iterator[str]:
    for name, one in tolerances.items():
        codes = "" if one.codes is None else f", {one.codes:g} of the codes may be off by one"
        yield f"- {name}: |out - ref| <= {one.absolute:g} + {one.relative:g} * |ref|{codes}"


def _workloads(task: Task) -> str:
    spec = task.spec
    rows = [_workload(task, workload, "tuned") for workload in spec.tuned]
    rows += [_workload(task, workload, "held out") for workload in spec.held_out]
    head = ["workload", "kind", "traffic", "floor us"]
    if spec.operations is not None:
        head.append("operations")
    boundary = "; ".join(workload.key for workload in spec.boundary)
    parts = [
        f"The operator must move at least `{spec.traffic.text}` bytes. The floor is the time that "
        f"takes at the {task.info.streaming_gbps:,.0f} GB/s measured here; a launch adds its own.",
        table(head, rows),
    ]
    if boundary:
        parts.append(f"Verified and never timed: {boundary}.")
    return "\n\n".join(parts)


def _workload(task: Task, workload: Workload, kind: str) -> list[str]:
    traffic = task.spec.traffic.integer(workload.values)
    row = [workload.key, kind, size(traffic), microseconds(task.floor_us(workload))]
    if task.spec.operations is not None:
        row.append(f"{task.spec.operations.integer(workload.values):.3g}")
    return row


def _space_rules(spec: KernelSpec) -> str:
    own = ", ".join(f"`{name}`" for name in OWN_SECTIONS)
    needed = ", ".join(f"`{name}`" for name in NEEDED_SECTIONS)
    axes = ", ".join(spec.axes)
    macros = "".join(f", {operator.name}" for operator in spec.operators)
    return (
        f"A YAML file. Yours are {own}; {needed} are needed. Every other key is the user's: copy "
        "it as it stands in the base's space, or leave it out; a changed one is refused. "
        f"{_limits(spec.limits)}\n\n"
        "- `parameters`: `name: [values]`, numbers, texts or booleans; few values each. The "
        "program says where the first or last value of a list wins.\n"
        "- `constraints`: expressions over parameters, axes and the device's numbers that every "
        "config satisfies; Python's syntax with `+ - * / // % ** << >> & | ^`, comparisons, "
        "`in (...)`, `and`, `or`, `not`, `a if c else b`, `min`, `max`, `abs`, `ceil_div`; "
        "booleans are `True` and `False`. What a constraint rules out costs nothing; what fails "
        "to compile, to launch or to be right costs a trial.\n"
        "- `default`: one value for each parameter, valid on a tuned workload: your best guess.\n"
        "- `suggestions`: a list of other configs that are tried next, each by what differs from "
        "the default; may be left out.\n"
        "- `launch`: a list of `{kernel, grid, block}` with `shared_memory`, `cluster`, "
        "`programmatic` and `when` where needed, all of them such expressions. The launches run "
        "in order, and all take the same arguments.\n"
        f"- Names: the parameters; the axes {axes}; `max_threads`, `max_shared_bytes` (of a "
        "block), `multiprocessors`, `warp_size`. In the template: the parameters, the axes"
        f"{macros}."
    )


def _limits(limits: Limits) -> str:
    known = []
    if limits.max_registers is not None:
        known.append(f"at most {limits.max_registers} registers")
    if limits.max_shared_bytes is not None:
        known.append(f"at most {limits.max_shared_bytes} bytes of shared memory")
    if limits.min_occupancy is not None:
        known.append(f"an occupancy of at least {limits.min_occupancy:g}")
    if limits.spills == "forbid":
        known.append("no spills")
    if not known:
        return "The user sets no `limits`."
    return f"The user's `limits` are {', '.join(known)}: yours may be stricter, not looser."


def _hardware(info: DeviceInfo) -> str:
    limits = limits_for(info.compute_capability)
    major, minor = info.compute_capability
    if info.on_cpu:
        return (
            f"{info.name}: kernels run on a CPU, through headers that stand for CUDA's, to see "
            f"whether they are right. Its times say nothing of a GPU's. {info.multiprocessors} "
            f"processors stand for multiprocessors; limits are those of compute capability "
            f"{major}.{minor}."
        )
    answers = ", answered from a recording" if info.recorded else ""
    clusters = f"up to {limits.cluster_blocks} blocks" if limits.cluster_blocks > 1 else "none"
    rows = [
        ["compute capability", f"{major}.{minor}, compiled for {info.architecture}"],
        ["multiprocessors", f"{info.multiprocessors}"],
        ["streaming rate", f"{info.streaming_gbps:,.0f} GB/s, read and written, measured"],
        ["L2", size(info.l2_bytes)],
        ["registers", f"{limits.registers_per_multiprocessor} a multiprocessor, "
                      f"{limits.registers_per_thread} a thread at most"],
        ["shared memory", f"{limits.shared_bytes_per_multiprocessor // KIB} KiB a multiprocessor, "
                          f"{limits.shared_bytes_per_block} bytes a block at most"],
        ["threads", f"{limits.threads_per_block} a block at most; "
                    f"{limits.warps_per_multiprocessor} warps and "
                    f"{limits.blocks_per_multiprocessor} blocks a multiprocessor"],
        ["clusters", clusters],
    ]  # fmt: skip
    return f"{info.name}{answers}.\n\n" + table(["what", "how much"], rows)
