"""A session's variants as sources: what each workload would run, and where else that holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, log
from pathlib import Path
from typing import TypeVar

from tuner.model.errors import ExpressionError, InputError, SessionError
from tuner.model.expressions import Expression, Value
from tuner.model.hardware import limits_for
from tuner.model.kernel import Launch, LaunchSpec, Workload
from tuner.model.trial import Variant
from tuner.search.counting import substitute
from tuner.session.records import Candidate
from tuner.space.schema import LaunchModel, validated
from tuner.space.template import Template
from tuner.space.yaml import parse

# The same for every compute capability (CUDA C++ Programming Guide, technical specifications).
GRID_LIMITS = (2**31 - 1, 65535, 65535)
# A shape halfway between two has the first of them whatever the last bit of a logarithm says.
TIE = 1e-9

Served = TypeVar("Served")


@dataclass(frozen=True, slots=True)
class Applicability:
    """Where one source of a variant holds.

    `written` are the axes that the source depends on, and `shapes` the values of these for which
    it is the right one. `conditions` and `launches` have no parameters left in them.
    `static_bytes` is the shared memory that the code takes by itself.
    """

    written: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    conditions: tuple[Expression, ...]
    launches: tuple[LaunchSpec, ...]
    static_bytes: int = 0

    def holds(self, names: Mapping[str, Value]) -> bool:
        """Tell whether the kernel may run; `names` holds the axes and the device's numbers."""
        if self.written and tuple(names[axis] for axis in self.written) not in self.shapes:
            return False
        try:
            if not all(condition.evaluate(names) for condition in self.conditions):
                return False
            launches = [launch.resolve(names) for launch in self.launches]
        except ExpressionError:
            return False
        made = [launch for launch in launches if launch is not None]
        return bool(made) and all(self._launchable(launch, names) for launch in made)

    def _launchable(self, launch: Launch, names: Mapping[str, Value]) -> bool:
        shared = launch.shared_bytes + self.static_bytes
        return (
            all(1 <= size <= most for size, most in zip(launch.grid, GRID_LIMITS, strict=True))
            and min(launch.block) >= 1
            and launch.threads <= int(names["max_threads"])
            and launch.shared_bytes >= 0
            and shared <= int(names["max_shared_bytes"])
        )


def nearest(
    points: Iterable[tuple[Workload, Served]],
    shape: Mapping[str, int],
    holds: Callable[[Served], bool],
) -> tuple[Workload, Served] | None:
    """Find the point nearest in log axes whose kernel holds; of equally near ones the first.

    The header's dispatch function does the same in C++ (tuner/export/dispatch.h.j2).
    """
    logs = {axis: log(size) for axis, size in shape.items()}
    least, found = inf, None
    for workload, served in points:
        distance = sum((logs[axis] - log(size)) ** 2 for axis, size in workload.axes)
        if distance < least * (1.0 - TIE) and holds(served):
            least, found = distance, (workload, served)
    return found


@dataclass(frozen=True, slots=True)
class Kernel:
    """A variant in one of its sources: a template may write an axis into the code."""

    variant: Variant
    source: str


@dataclass(frozen=True, slots=True)
class _Read:
    template: Template
    constraints: tuple[Expression, ...]
    launches: tuple[LaunchSpec, ...]


class Kernels:
    """Render the candidates of a session from the texts it keeps; no device, no other file.

    `device` has the numbers of the device that constraints and launches may use.
    """

    def __init__(
        self,
        candidates: Iterable[Candidate],
        operators: Mapping[str, str],
        device: Mapping[str, Value],
    ) -> None:
        self._texts = {one.name: one for one in candidates}
        self._operators, self._device = operators, device
        self._read: dict[str, _Read] = {}
        self._known: dict[tuple[Workload, Variant], Kernel | None] = {}

    def names(self, workload: Workload) -> dict[str, Value]:
        """Collect what constraints and launches may use besides parameters."""
        return {**workload.values, **self._device}

    def of(self, workload: Workload, variant: Variant) -> Kernel | None:
        """Render a variant for a workload; None where a constraint or the template forbids it."""
        key = workload, variant
        if key not in self._known:
            self._known[key] = self._made(workload, variant)
        return self._known[key]

    def reach(
        self, kernel: Kernel, workload: Workload, others: Sequence[Workload], static_bytes: int = 0
    ) -> Applicability:
        """Find out for which shapes a kernel of `workload` is the right source.

        `others` are known workloads: those that it would be rendered alike for are among its
        shapes. `static_bytes` is the shared memory that the code takes by itself.
        """
        read, config = self._candidate(kernel.variant.candidate), kernel.variant.config
        written = self._written(kernel, workload)
        shapes = (
            tuple(one.values[axis] for axis in written)
            for one in (workload, *others)
            if self._source(kernel.variant, {axis: one.values[axis] for axis in written})
            == kernel.source
        )
        return Applicability(
            written=written,
            shapes=tuple(dict.fromkeys(shapes)),
            conditions=tuple(substitute(one, config) for one in read.constraints),
            launches=tuple(with_config(launch, config) for launch in read.launches),
            static_bytes=static_bytes,
        )

    def _made(self, workload: Workload, variant: Variant) -> Kernel | None:
        names = {**self.names(workload), **variant.config}
        try:
            if not all(one.evaluate(names) for one in self._constraints(variant)):
                return None
        except InputError:
            return None
        source = self._source(variant, workload.values)
        return None if source is None else Kernel(variant, source)

    def _constraints(self, variant: Variant) -> tuple[Expression, ...]:
        return self._candidate(variant.candidate).constraints

    def _written(self, kernel: Kernel, workload: Workload) -> tuple[str, ...]:
        """Name the axes that the source depends on: without them it cannot be rendered so."""
        axes = workload.values
        written = tuple(
            axis
            for axis in axes
            if self._source(kernel.variant, {k: v for k, v in axes.items() if k != axis})
            != kernel.source
        )
        alone = self._source(kernel.variant, {axis: axes[axis] for axis in written})
        return written if alone == kernel.source else tuple(axes)

    def _source(self, variant: Variant, axes: Mapping[str, int]) -> str | None:
        template = self._candidate(variant.candidate).template
        try:
            return template.render({**axes, **self._operators, **variant.config}).source
        except InputError:
            return None

    def _candidate(self, name: str) -> _Read:
        if name not in self._read:
            self._read[name] = _read(self._texts[name])
        return self._read[name]


def config_of(kernel: Kernel) -> Variant:
    """Return the variant that a kernel is one source of."""
    return kernel.variant


def device_numbers(environment: Mapping[str, str]) -> dict[str, Value]:
    """Read the numbers of a session's device from its environment.

    Raises `SessionError` where it names no GPU.
    """
    architecture = re.fullmatch(r"sm_(\d+)(\d)a?", environment.get("architecture", ""))
    multiprocessors = environment.get("multiprocessors", "")
    if architecture is None or not multiprocessors.isdecimal():
        raise SessionError(
            "does not say which GPU it was measured on",
            remedy="only what was tuned for a GPU can be exported: with --device cuda or recorded",
        )
    limits = limits_for((int(architecture[1]), int(architecture[2])))
    return {
        "max_threads": limits.threads_per_block,
        "max_shared_bytes": limits.shared_bytes_per_block,
        "multiprocessors": int(multiprocessors),
        "warp_size": limits.threads_per_warp,
    }


def with_config(launch: LaunchSpec, config: Mapping[str, Value]) -> LaunchSpec:
    """Put a config's values into a launch's expressions."""

    def put(expressions: Sequence[Expression]) -> tuple[Expression, ...]:
        return tuple(substitute(one, config) for one in expressions)

    def put_one(expression: Expression | None) -> Expression | None:
        return None if expression is None else substitute(expression, config)

    return LaunchSpec(
        kernel=launch.kernel,
        grid=put(launch.grid),
        block=put(launch.block),
        shared_memory=put_one(launch.shared_memory),
        cluster=put(launch.cluster),
        pdl=put_one(launch.pdl),
        when=put_one(launch.when),
        line=launch.line,
    )


def _read(candidate: Candidate) -> _Read:
    path = Path(candidate.name)
    model = validated(parse(candidate.space_text, path))
    return _Read(
        template=Template.from_text(candidate.template_text, path),
        constraints=tuple(map(_expression, model.constraints)),
        launches=tuple(map(_launch, model.launch)),
    )


def _launch(model: LaunchModel) -> LaunchSpec:
    def single(value: object) -> Expression | None:
        return None if value is None else _expression(value)

    return LaunchSpec(
        kernel=model.kernel,
        grid=tuple(map(_expression, model.grid)),
        block=tuple(map(_expression, model.block)),
        shared_memory=single(model.shared_memory),
        cluster=tuple(map(_expression, model.cluster or ())),
        pdl=single(model.pdl),
        when=single(model.when),
    )


def _expression(value: object) -> Expression:
    return Expression.parse(value if isinstance(value, bool | int | float) else str(value))
