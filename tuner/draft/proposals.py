"""What a draft proposes to tune in one kernel, found in its constants, template and launch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from tuner.draft.axes import problem_sizes
from tuner.draft.choices import (
    MAX_THREADS,
    Choice,
    Names,
    block_values,
    is_block,
    values_for,
    why_fixed,
)
from tuner.draft.host_values import HostLaunch
from tuner.model.expressions import Value
from tuner.source import Constant, Edit, TemplateParameter
from tuner.source.facts import IDENTIFIER, Span
from tuner.source.syntax import number

_MIN_BLOCKS = (1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class Left:
    """A constant that stays as it is, with the reason."""

    name: str
    value: str
    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Proposals:
    """The proposed parameters, the numbers left alone, and what else changes in the source.

    `instance` lists the template arguments that a launch of the template states, the same for
    every config; None where they are unknown.
    """

    choices: tuple[Choice, ...]
    left: tuple[Left, ...]
    edits: tuple[Edit, ...]
    instance: tuple[str, ...] | None


def propose(launch: HostLaunch, axes: tuple[str, ...]) -> Proposals:
    """Find what could be tuned in the kernel of `launch`; parameters get no name of an axis."""
    names = Names(axes)
    reached = launch.source.reachable([launch.kernel])
    choices, left = _constants(launch, reached, names)
    template, edits, instance = _template(launch, choices, names)
    choices += template
    choices += _block(launch, choices, names)
    choices = _bounded(launch, choices)
    choices += _min_blocks(launch, names)
    choices += _unrolls(launch, reached, names)
    return Proposals(tuple(choices), left, edits, instance)


def _constants(
    launch: HostLaunch, reached: tuple[Span, ...], names: Names
) -> tuple[list[Choice], tuple[Left, ...]]:
    source = launch.source
    often = Counter(constant.name for constant in source.constants)
    used = {name for span in reached for name in IDENTIFIER.findall(source.masked, *span)}
    sized = problem_sizes(launch)
    choices, left = [], []
    for constant in source.constants:
        if constant.number is None or constant.name not in used | launch.names:
            continue
        if _is_elsewhere(constant, launch, reached):
            continue
        reason = why_fixed(constant.name, constant.number)
        if constant.name in sized:
            reason = reason or "it is a size of the problem"
        if often[constant.name] > 1:
            reason = reason or "it is defined more than once"
        if reason is None:
            choices.append(_constant(constant, constant.number, launch, names))
        else:
            left.append(Left(constant.name, constant.value, constant.line, reason))
    return choices, tuple(left)


def _is_elsewhere(constant: Constant, launch: HostLaunch, reached: tuple[Span, ...]) -> bool:
    place = constant.span[0]
    if place >= len(launch.source.own_text):
        return True
    functions = (d.span for d in launch.source.definitions if d.kind == "function")
    local = any(start <= place < end for start, end in functions)
    if not local:
        return False
    # a plain `const int` in a function is a value with a name more often than a choice
    plain = constant.kind == "const" and constant.name.islower()
    return plain or not any(start <= place < end for start, end in reached)


def _constant(constant: Constant, value: Value, launch: HostLaunch, names: Names) -> Choice:
    block = launch.block_names == (constant.name,) or is_block(constant.name, value)
    name = names.of(constant.name)
    return Choice(
        name=name,
        values=values_for(constant.name, value, block=block),
        default=value,
        note=f"{constant.name}, line {constant.line}",
        edits=(Edit(*constant.span, _hole(name)),),
        origin=constant.name,
        is_block=block,
    )


def _template(
    launch: HostLaunch, constants: list[Choice], names: Names
) -> tuple[list[Choice], tuple[Edit, ...], tuple[str, ...] | None]:
    # The instantiation in the launch must be the same for every config, so the values go into the
    # defaults; C++ then wants a default for every parameter that follows.
    instance = launch.instance
    if instance is None:
        return [], (), None
    named = {choice.origin for choice in constants}
    parameters = list(zip(launch.kernel.template, instance, strict=True))
    lifted = [p for p, text in parameters if text not in named and _is_liftable(p, text, launch)]
    varying = [i for i, (p, text) in enumerate(parameters) if p in lifted or text in named]
    if not varying:
        return [], (), instance
    choices, edits = [], []
    for index in range(varying[0], len(parameters)):
        parameter, text = parameters[index]
        if parameter in lifted:
            choices.append(_template_choice(parameter, index, launch, names))
        elif parameter.default != text:
            edits.append(_default(parameter, text))
    return choices, tuple(edits), instance[: varying[0]]


def _is_liftable(parameter: TemplateParameter, text: str, launch: HostLaunch) -> bool:
    value = number(launch.value(text))
    return not parameter.is_type and value is not None and why_fixed(parameter.name, value) is None


def _template_choice(
    parameter: TemplateParameter, index: int, launch: HostLaunch, names: Names
) -> Choice:
    instance = launch.instance or ()
    value: Value = number(launch.value(instance[index])) or 0
    stated = {number(text) for text in launch.stated(index)} - {None}
    block = is_block(parameter.name, value) or (value,) == launch.block
    name = names.of(parameter.name)
    near = values_for(parameter.name, value, block=block)
    return Choice(
        name=name,
        values=tuple(sorted(v for v in stated if v is not None)) if len(stated) > 2 else near,
        default=bool(value) if parameter.kind == "bool" else value,
        note=f"{parameter.name}, line {parameter.line}",
        edits=(_default(parameter, _hole(name)),),
        origin=parameter.name,
        is_block=block,
    )


def _block(launch: HostLaunch, choices: list[Choice], names: Names) -> Iterator[Choice]:
    extents, threads = launch.block, prod(launch.block)
    if not extents or threads > MAX_THREADS:
        return
    stated = {choice.origin for choice in choices} & {*launch.block_names}
    if stated or any(choice.is_block and choice.default == threads for choice in choices):
        return
    if any(f"blockDim.{axis}" not in launch.kernel.builtins for axis in "xyz"[: len(extents)]):
        return
    note = f"the block of the launch, line {launch.line}"
    if len(extents) == 1:
        name = names.of("block_size")
        yield Choice(name, block_values(threads), threads, note, (), is_block=True, axis=0)
        return
    for axis, extent in enumerate(extents):
        if extent > 1:
            name = names.of(f"block_{'xyz'[axis]}")
            near = values_for(name, extent, block=False)
            yield Choice(name, near, extent, note, (), axis=axis)


def _bounded(launch: HostLaunch, choices: list[Choice]) -> list[Choice]:
    # Every parameter shows in the source: a recording tells configs apart by it, and the compiler
    # needs to know the block's size to give it all the registers it may have.
    bounds = launch.kernel.bounds
    free = [choice for choice in choices if not choice.edits]
    if bounds is not None and not free:
        threads = number(bounds.max_threads)
        free = [c for c in choices if c.is_block and c.default == threads][:1]
    if not free:
        return choices
    hole = _hole(" * ".join(choice.name for choice in free))
    at = launch.kernel.name_at
    edit = Edit(at, at, f"__launch_bounds__({hole}) ")
    if bounds is not None:
        edit = Edit(*bounds.max_threads_span, hole)
    return [replace(c, edits=(*c.edits, edit)) if c is free[0] else c for c in choices]


def _min_blocks(launch: HostLaunch, names: Names) -> Iterator[Choice]:
    bounds = launch.kernel.bounds
    if bounds is None or bounds.min_blocks_span is None:
        return
    blocks = number(bounds.min_blocks or "")
    if isinstance(blocks, int) and blocks > 0:
        name = names.of("min_blocks")
        values = tuple(sorted({*_MIN_BLOCKS, blocks}))
        note = f"__launch_bounds__, line {bounds.line}"
        yield Choice(name, values, blocks, note, (Edit(*bounds.min_blocks_span, _hole(name)),))


def _unrolls(launch: HostLaunch, reached: tuple[Span, ...], names: Names) -> Iterator[Choice]:
    for unroll in launch.source.unrolls:
        factor, span = number(unroll.factor or ""), unroll.span
        if span is None or not factor or not any(a <= span[0] < b for a, b in reached):
            continue
        name = names.of("unroll")
        values = values_for(name, factor, block=False)
        note = f"#pragma unroll, line {unroll.line}"
        yield Choice(name, values, factor, note, (Edit(*span, _hole(name)),))


def _hole(expression: str) -> str:
    return f"@{{ {expression} }}@"


def _default(parameter: TemplateParameter, text: str) -> Edit:
    if parameter.default_span is not None:
        return Edit(*parameter.default_span, text)
    return Edit(parameter.span[1], parameter.span[1], f" = {text}")
