"""The tools that need no device: `render` and `compile`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from tuner.agent.tools.drafts import Choice, Draft, in_words, require_arguments
from tuner.analysis.base import MachineCode
from tuner.analysis.sass import codes, disassemble
from tuner.compiler.base import CompileResult
from tuner.device.base import DeviceInfo, Outcome
from tuner.model.hardware import limits_for, occupancy
from tuner.model.kernel import Launch
from tuner.model.trial import Resources, Status
from tuner.space.plan import Plan
from tuner.space.template import Template
from tuner.tuning.evaluator import Evaluator, Pending

# Lines that an error is shown with.
MOST_PLACES = 6
# Classes of instructions; what is rarer says little.
MOST_CLASSES = 12


def rendered(choice: Choice, first_line: int, last_line: int | None) -> str:
    """Show the CUDA of a config, with numbered lines."""
    source = choice.draft.evaluator.render(choice.workload, choice.config).source
    return f"{choice}:\n{lines_of(source, first_line, last_line)}"


def lines_of(text: str, first_line: int, last_line: int | None) -> str:
    """Number the lines of a text and show some of them."""
    # As compilers count them; `splitlines` also ends one at a form feed.
    lines = text.removesuffix("\n").split("\n")
    last = min(last_line or len(lines), len(lines))
    if first_line > last:
        return f"[no line from {first_line} to {last_line or 'the last'}: there are {len(lines)}]"
    shown = [f"{number:5}| {lines[number - 1]}" for number in range(first_line, last + 1)]
    if len(shown) < len(lines):
        shown.append(f"[lines {first_line} to {last} of {len(lines)}]")
    return "\n".join(shown)


def compiled(choice: Choice, reporting: Callable[[Plan], Evaluator], info: DeviceInfo) -> str:
    """Compile a config and write what the compiler and the machine code say of each kernel.

    `reporting` makes the evaluator whose compiler is asked, for the hardware of `info`.
    """
    require_arguments(choice)
    plan = choice.draft.plan
    asked = replace(choice, draft=Draft(plan, reporting(plan)))
    pending = asked.draft.evaluator.start(choice.workload, choice.config)
    made = asked.draft.evaluator.ready(pending)
    if isinstance(made, Outcome) and made.status is not Status.RESOURCE_LIMIT:
        return f"{choice}: {failure(choice, made.status, made.reason)}"
    assert pending.compilation is not None
    result = pending.compilation.result()
    verdict = f"over a limit: {made.reason}" if isinstance(made, Outcome) else "within all limits"
    on_cpu = any(one.registers is None for one in result.resources.values())
    target = "a CPU" if on_cpu else info.architecture
    parts = [f"{choice}, compiled for {target}: {verdict}"]
    parts += _kernels(pending, result, info)
    parts += map(_code, _codes(pending, result))
    return "\n".join(parts)


def failure(choice: Choice, status: Status, reason: str) -> str:
    """Write why a config failed, with the lines of the template that the reason names."""
    plan = choice.draft.plan
    text = f"{status}: {in_words(reason, plan)}"
    return "\n".join([text, *_places(text, plan.template)])


def _places(text: str, template: Template) -> Iterator[str]:
    lines = template.text.split("\n")
    found = re.findall(rf"(?:^|\s){re.escape(template.path.name)}:(\d+)", text)
    for number in list(dict.fromkeys(map(int, found)))[:MOST_PLACES]:
        if 0 < number <= len(lines):
            yield f"{number:5}| {lines[number - 1]}"


def _kernels(pending: Pending, result: CompileResult, info: DeviceInfo) -> Iterator[str]:
    for launch in dict.fromkeys(pending.launches):
        resources = result.resources[launch.kernel]
        grid, block = ("x".join(map(str, size)) for size in (launch.grid, launch.block))
        shared = f"{resources.static_shared_bytes} static and {launch.shared_bytes} dynamic"
        yield f"kernel {launch.kernel}, grid {grid}, block {block}"
        yield f"- shared memory: {shared} bytes a block"
        yield from _resources(resources, launch, info)


def _resources(resources: Resources, launch: Launch, info: DeviceInfo) -> Iterator[str]:
    if resources.registers is None:
        yield "- registers and occupancy are not known for a CPU"
        return
    spills = (
        f"spills {resources.spill_store_bytes} bytes of stores and "
        f"{resources.spill_load_bytes} of loads a thread"
        if resources.spills
        else "no spills"
    )
    yield f"- registers: {resources.registers} a thread, {spills}, stack {resources.stack_bytes} B"
    share = occupancy(limits_for(info.compute_capability), resources, launch)
    assert share is not None
    yield (
        f"- occupancy: {share.share:.0%}, {share.blocks} blocks a multiprocessor, limited by "
        f"{share.limiter}"
    )


def _codes(pending: Pending, result: CompileResult) -> tuple[MachineCode, ...]:
    names = dict.fromkeys(launch.kernel for launch in pending.launches)
    symbols = {name: result.lowered[name] for name in names}
    return codes(disassemble(result.cubin), symbols, ())


def _code(code: MachineCode) -> str:
    parts = [
        f"machine code of {code.kernel}: {code.instructions} instructions",
        f"- all: {_mix(code.mix)}",
    ]
    if code.loop_mix:
        parts.append(f"- in the innermost loops: {_mix(code.loop_mix)}")
    for what, bits in (("loads", code.load_bits), ("stores", code.store_bits)):
        widths = ", ".join(f"{count} of {width} bits" for width, count in sorted(bits.items()))
        parts.append(f"- global {what}: {widths or 'none'}")
    return "\n".join(parts)


def _mix(mix: Mapping[str, int]) -> str:
    counted = Counter(mix)
    shown = [f"{name} {count}" for name, count in counted.most_common(MOST_CLASSES)]
    rest = counted.total() - sum(count for _, count in counted.most_common(MOST_CLASSES))
    return ", ".join(shown + ([f"others {rest}"] if rest else []))
