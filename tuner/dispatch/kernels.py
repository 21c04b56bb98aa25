"""A session's variants as sources: what each workload would run, and where else that holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf, log
from pathlib import Path
from typing import TypeVar

from tuner.device.base import device_names
from tuner.model.errors import ExpressionError, InputError, SessionError
from tuner.model.expressions import Expression, Value, map_expressions, substitute
from tuner.model.hardware import CUDA_BLOCK, CUDA_GRID, limits_for
from tuner.model.kernel import Launch, LaunchSpec, Workload
from tuner.model.trial import Variant
from tuner.session.records import CandidateRecord
from tuner.space.choices import bind
from tuner.space.load import Definition, read_definition
from tuner.space.template import Template
from tuner.space.yaml import parse

# A shape halfway between two has the first of them whatever the last bit of a logarithm says.
TIE = 1e-9

Served = TypeVar("Served")


@dataclass(frozen=True, slots=True)
class Applicability:
    """Where one source of a variant holds.

    `written` are the axes that the source depends on, and `shapes` the values of these for which
    it is the right one. `conditions` and `launches` have no parameters left in them.
    `static_bytes` is the shared memory that each launch's code takes by itself at most, `choices`
    are those of the operator that the template wrote into it, `scratch` the shapes of all scratch.
    """

    written: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    conditions: tuple[Expression, ...]
    launches: tuple[LaunchSpec, ...]
    static_bytes: tuple[int, ...] = ()
    choices: tuple[str, ...] = ()
    scratch: Mapping[str, tuple[Expression, ...]] = field(default_factory=dict)

    def holds(self, names: Mapping[str, Value]) -> bool:
        """Tell whether the kernel may run; `names` holds the axes and the device's numbers."""
        if self.written and tuple(names[axis] for axis in self.written) not in self.shapes:
            return False
        try:
            if not all(condition.evaluate(names) for condition in self.conditions):
                return False
            static_bytes = self.static_bytes or (0,) * len(self.launches)
            resolved = zip(self.launches, static_bytes, strict=True)
            launches = [
                (spec, launch, static)
                for spec, static in resolved
                if (launch := spec.resolve(names)) is not None
            ]
            mappable = not any(m.refusal(names) for spec, *_ in launches for m in spec.maps)
        except ExpressionError:
            return False
        launchable = all(_launchable(launch, static, names) for _, launch, static in launches)
        return bool(launches) and mappable and launchable


def _launchable(launch: Launch, static_bytes: int, names: Mapping[str, Value]) -> bool:
    shared_bytes = launch.shared_bytes + static_bytes
    return (
        all(
            1 <= size <= most
            for sizes, limits in ((launch.grid, CUDA_GRID), (launch.block, CUDA_BLOCK))
            for size, most in zip(sizes, limits, strict=True)
        )
        and launch.threads <= int(names["max_threads"])
        and static_bytes <= shared_bytes <= int(names["max_shared_bytes"])
        and launch.clusters_divide_grid
    )


def nearest(
    points: Iterable[tuple[Workload, Served]],
    shape: Mapping[str, int],
    holds: Callable[[Served], bool],
) -> tuple[Workload, Served] | None:
    """Find the nearest point in log axes whose kernel holds, as dispatch.h.j2 does."""
    logs = {axis: log(size) for axis, size in shape.items()}
    least, found = inf, None
    for workload, served in points:
        distance = sum((logs[axis] - log(size)) ** 2 for axis, size in workload.axes)
        if distance < least * (1.0 - TIE) and holds(served):
            least, found = distance, (workload, served)
    return found


@dataclass(frozen=True, slots=True)
class VariantKernel:
    """A variant in one of its sources: a template may write an axis into the code."""

    variant: Variant
    source: str


class VariantRenderer:
    """Render candidates from the texts of a session; `device` has the numbers of the device."""

    def __init__(
        self,
        candidates: Iterable[CandidateRecord],
        operators: Mapping[str, str],
        device: Mapping[str, Value],
    ) -> None:
        self._texts = {candidate.name: candidate for candidate in candidates}
        self._operators, self._device = operators, device
        self._read: dict[str, tuple[Template, Definition]] = {}
        self._known: dict[tuple[Workload, Variant], VariantKernel | None] = {}

    def names(self, workload: Workload) -> dict[str, Value]:
        return {**workload.values, **self._device}

    def definition(self, candidate: str) -> Definition:
        return self._candidate(candidate)[1]

    def of(self, workload: Workload, variant: Variant) -> VariantKernel | None:
        """Render a variant for a workload; None where a constraint or the template forbids it."""
        key = workload, variant
        if key not in self._known:
            source = None
            with suppress(InputError):
                _, definition = self._candidate(variant.candidate)
                if definition.space.violated(variant.config, self.names(workload)) is None:
                    source = self._source(variant, workload.values)
            self._known[key] = None if source is None else VariantKernel(variant, source)
        return self._known[key]

    def applicability(
        self, kernel: VariantKernel, workload: Workload, others: Sequence[Workload]
    ) -> Applicability:
        """Find out for which shapes, also of `others`, a kernel of `workload` is the source."""
        _, definition = self._candidate(kernel.variant.candidate)
        spec, config = definition.spec, kernel.variant.config

        def with_config(expression: Expression) -> Expression:
            return substitute(expression, config)

        axes = workload.values

        def suffices(kept: Iterable[str]) -> bool:
            return self._source(kernel.variant, {k: axes[k] for k in kept}) == kernel.source

        # The axes that the source depends on: without them it cannot be rendered so.
        written = tuple(axis for axis in axes if not suffices(k for k in axes if k != axis))
        written = written if suffices(written) else tuple(axes)
        # Once each: a template that writes no axis has one for all.
        values = (tuple(served.values[axis] for axis in written) for served in (workload, *others))
        shapes = (
            shape
            for shape in dict.fromkeys(values)
            if self._source(kernel.variant, dict(zip(written, shape, strict=True))) == kernel.source
        )
        return Applicability(
            written=written,
            shapes=tuple(shapes),
            conditions=map_expressions(definition.space.constraints, with_config),
            launches=() if spec.is_callable else map_expressions(spec.launch, with_config),
            scratch={
                argument.name: map_expressions(argument.shape, with_config)
                for argument in spec.arguments
                if argument.role == "scratch" and argument.shape
            },
            choices=tuple(
                operator.name
                for operator in spec.operators
                if any(
                    self._source(kernel.variant, workload.values, {operator.name: value})
                    != kernel.source
                    for value in operator.values
                )
            ),
        )

    def _source(
        self, variant: Variant, axes: Mapping[str, int], others: Mapping[str, str] | None = None
    ) -> str | None:
        """Render a variant, with `others` in the place of some of the operator's choices."""
        template, definition = self._candidate(variant.candidate)
        operators = {**self._operators, **(others or {})}
        derived = bind(definition.space.derived, operators)
        try:
            names = {**axes, **operators, **variant.config}
            return template.render(names, derived).source
        except InputError:
            return None

    def _candidate(self, name: str) -> tuple[Template, Definition]:
        if name not in self._read:
            candidate, path = self._texts[name], Path(name)
            definition = read_definition(parse(candidate.space_text, path), self._operators)
            self._read[name] = Template.from_text(candidate.template_text, path), definition
        return self._read[name]


def capability_of(environment: Mapping[str, str]) -> tuple[int, int]:
    """Read the compute capability from a session; raise `SessionError` where it names no GPU."""
    architecture = re.fullmatch(r"sm_(\d+)(\d)a?", environment.get("architecture", ""))
    if architecture is None or not environment.get("multiprocessors", "").isdecimal():
        raise SessionError(
            "does not say which GPU it was measured on",
            remedy="only what was tuned for a GPU can be exported: with --device cuda or recorded",
        )
    return int(architecture[1]), int(architecture[2])


def device_numbers(environment: Mapping[str, str]) -> dict[str, Value]:
    """Read the device's numbers from a session; raise `SessionError` where it names no GPU."""
    limits = limits_for(capability_of(environment))
    return device_names(limits, int(environment["multiprocessors"]))
