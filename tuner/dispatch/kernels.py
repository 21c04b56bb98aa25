"""A session's variants as sources: what each workload would run, and where else that holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, log
from pathlib import Path
from typing import TypeVar

from tuner.model.config import SearchSpace
from tuner.model.errors import ExpressionError, InputError, SessionError
from tuner.model.expressions import Expression, Value, substitute
from tuner.model.hardware import CUDA_BLOCK, CUDA_GRID, limits_for
from tuner.model.kernel import DTYPE_BYTES, Launch, LaunchSpec, Workload
from tuner.model.tensor_maps import TensorMapSpec
from tuner.model.trial import Variant
from tuner.session.records import CandidateRecord
from tuner.space.choices import bound_derived, bound_space, search_space
from tuner.space.schema import ArgumentModel, LaunchModel, TensorMapModel, validated
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
    `static_bytes` is the shared memory that the code takes by itself, `choices` are those of the
    operator that the template wrote into it, `scratch` the shapes of all scratch.
    """

    written: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    conditions: tuple[Expression, ...]
    launches: tuple[LaunchSpec, ...]
    static_bytes: int = 0
    choices: tuple[str, ...] = ()
    scratch: Mapping[str, tuple[Expression, ...]] = field(default_factory=dict)

    def holds(self, names: Mapping[str, Value]) -> bool:
        """Tell whether the kernel may run; `names` holds the axes and the device's numbers."""
        if self.written and tuple(names[axis] for axis in self.written) not in self.shapes:
            return False
        try:
            if not all(condition.evaluate(names) for condition in self.conditions):
                return False
            resolved = [(one, one.resolve(names)) for one in self.launches]
            made = [(one, launch) for one, launch in resolved if launch is not None]
            mappable = not any(each.refusal(names) for one, _ in made for each in one.maps)
        except ExpressionError:
            return False
        return bool(made) and mappable and all(self._launchable(one, names) for _, one in made)

    def _launchable(self, launch: Launch, names: Mapping[str, Value]) -> bool:
        shared_bytes = launch.shared_bytes + self.static_bytes
        return (
            all(
                1 <= size <= most
                for sizes, limits in ((launch.grid, CUDA_GRID), (launch.block, CUDA_BLOCK))
                for size, most in zip(sizes, limits, strict=True)
            )
            and launch.threads <= int(names["max_threads"])
            and self.static_bytes <= shared_bytes <= int(names["max_shared_bytes"])
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


@dataclass(frozen=True, slots=True)
class _Read:
    template: Template
    space: SearchSpace
    launches: tuple[tuple[LaunchModel, int | None], ...]
    choices: Mapping[str, Sequence[str]]
    arrays: Mapping[str, tuple[ArgumentModel, int | None]]


class VariantRenderer:
    """Render candidates from the texts of a session; `device` has the numbers of the device."""

    def __init__(
        self,
        candidates: Iterable[CandidateRecord],
        operators: Mapping[str, str],
        device: Mapping[str, Value],
    ) -> None:
        self._texts = {one.name: one for one in candidates}
        self._operators, self._device = operators, device
        self._read: dict[str, _Read] = {}
        self._known: dict[tuple[Workload, Variant], VariantKernel | None] = {}

    def names(self, workload: Workload) -> dict[str, Value]:
        return {**workload.values, **self._device}

    def of(self, workload: Workload, variant: Variant) -> VariantKernel | None:
        """Render a variant for a workload; None where a constraint or the template forbids it."""
        key = workload, variant
        if key not in self._known:
            source = self._source(variant, workload.values) if self._allows(*key) else None
            self._known[key] = None if source is None else VariantKernel(variant, source)
        return self._known[key]

    def applicability(
        self,
        kernel: VariantKernel,
        workload: Workload,
        others: Sequence[Workload],
        static_bytes: int = 0,
    ) -> Applicability:
        """Find out for which shapes, also of `others`, a kernel of `workload` is the source."""
        read, config = self._candidate(kernel.variant.candidate), kernel.variant.config
        written = self._written(kernel, workload.values)
        # Once each: a template that writes no axis has one for all.
        known = (tuple(one.values[axis] for axis in written) for one in (workload, *others))
        shapes = (
            shape
            for shape in dict.fromkeys(known)
            if self._source(kernel.variant, dict(zip(written, shape, strict=True))) == kernel.source
        )
        return Applicability(
            written=written,
            shapes=tuple(shapes),
            conditions=tuple(substitute(one, config) for one in read.space.constraints),
            launches=tuple(
                _launch(model, read, line, {**self._operators, **config})
                for model, line in read.launches
            ),
            scratch={
                name: tuple(
                    _chosen(size, read, line, {**self._operators, **config})
                    for size in array.shape or ()
                )
                for name, (array, line) in read.arrays.items()
                if array.role == "scratch"
            },
            static_bytes=static_bytes,
            choices=tuple(
                name
                for name, values in read.choices.items()
                if any(
                    self._source(kernel.variant, workload.values, {name: value}) != kernel.source
                    for value in values
                )
            ),
        )

    def _allows(self, workload: Workload, variant: Variant) -> bool:
        try:
            space = self._candidate(variant.candidate).space
            return space.violated(variant.config, self.names(workload)) is None
        except InputError:
            return False

    def _written(self, kernel: VariantKernel, axes: Mapping[str, int]) -> tuple[str, ...]:
        """Name the axes that the source depends on: without them it cannot be rendered so."""

        def suffices(kept: Iterable[str]) -> bool:
            return self._source(kernel.variant, {k: axes[k] for k in kept}) == kernel.source

        written = tuple(axis for axis in axes if not suffices(k for k in axes if k != axis))
        return written if suffices(written) else tuple(axes)

    def _source(
        self, variant: Variant, axes: Mapping[str, int], others: Mapping[str, str] | None = None
    ) -> str | None:
        """Render a variant, with `others` in the place of some of the operator's choices."""
        read = self._candidate(variant.candidate)
        operators = {**self._operators, **(others or {})}
        derived = bound_derived(read.space.derived, operators) if others else read.space.derived
        try:
            names = {**axes, **operators, **variant.config}
            return read.template.render(names, derived).source
        except InputError:
            return None

    def _candidate(self, name: str) -> _Read:
        if name not in self._read:
            text, path = self._texts[name], Path(name)
            document = parse(text.space_text, path)
            model = validated(document)
            self._read[name] = _Read(
                template=Template.from_text(text.template_text, path),
                space=bound_space(search_space(document, model), self._operators),
                launches=tuple(
                    (one, document.line("launch", i)) for i, one in enumerate(model.launch)
                ),
                choices=model.operator,
                arrays={
                    one.name: (one, document.line("arguments", i))
                    for i, one in enumerate(model.arguments)
                    if one.shape
                },
            )
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
    return {
        "max_threads": limits.threads_per_block,
        "max_shared_bytes": limits.shared_bytes_per_block,
        "multiprocessors": int(environment["multiprocessors"]),
        "warp_size": limits.threads_per_warp,
        "wave": limits.threads_per_warp,
        "successor_waits": False,
    }


def _chosen(
    value: object, read: _Read, line: int | None, config: Mapping[str, Value]
) -> Expression:
    """Read an expression of a candidate's space with a config in it."""
    defined = {one.name: one.expression for one in read.space.derived}
    text = value if isinstance(value, bool | int | float) else str(value)
    parsed = Expression.parse(text, path=read.template.path, line=line)
    return substitute(parsed.define(defined), config)


def _launch(
    model: LaunchModel, read: _Read, line: int | None, config: Mapping[str, Value]
) -> LaunchSpec:
    def chosen(value: object) -> Expression:
        return _chosen(value, read, line, config)

    def single(value: object) -> Expression | None:
        return None if value is None else chosen(value)

    def sizes(values: Sequence[object] | None) -> tuple[Expression, ...]:
        return tuple(map(chosen, values or ()))

    return LaunchSpec(
        kernel=model.kernel,
        grid=sizes(model.grid),
        block=sizes(model.block),
        shared_memory=single(model.shared_memory),
        cluster=sizes(model.cluster),
        pdl=single(model.pdl),
        when=single(model.when),
        arguments=tuple(model.arguments or ()),
        maps=tuple(_tensor_map(one, read, line, config) for one in model.maps or ()),
    )


def _tensor_map(
    model: TensorMapModel, read: _Read, line: int | None, config: Mapping[str, Value]
) -> TensorMapSpec:
    def sizes(values: Sequence[object] | None) -> tuple[Expression, ...]:
        return tuple(_chosen(one, read, line, config) for one in values or ())

    def single(value: object) -> Expression | None:
        return None if value is None else _chosen(value, read, line, config)

    array, _ = read.arrays[model.of]
    dtype = array.dtype
    if not isinstance(dtype, str):
        ((operator, dtypes),) = dtype.items()
        dtype = dtypes[config[operator]]
    own = sizes(array.shape)
    return TensorMapSpec(
        of=model.of,
        dtype=dtype,
        element_bytes=DTYPE_BYTES[dtype],
        own_shape=own,
        shape=sizes(model.shape) or own,
        box=sizes(model.box),
        strides=sizes(model.strides),
        swizzle=single(model.swizzle),
        l2_promotion=single(model.l2_promotion),
    )
