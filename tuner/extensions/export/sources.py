"""One kernel's dispatch in C++: the header, and the source of each variant."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from math import log
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from tuner.dispatch.evidence import productions
from tuner.dispatch.table import DispatchTable, SessionDispatch
from tuner.extensions.export.cpp import (
    ARRAY_TYPES,
    FORWARD_DECLARED,
    cpp_name,
    hidden_by,
    in_namespace,
    integer,
    real,
    truth,
    unusable_name,
)
from tuner.extensions.export.variants import (
    ExportedVariant,
    caller_scalars,
    exported_variants,
    scalar_type,
)
from tuner.model import TUNER_VERSION
from tuner.model.errors import ExpressionError, InputError
from tuner.model.expressions import Expression
from tuner.model.kernel import (
    DEVICE_NAMES,
    DTYPE_BYTES,
    Argument,
    KernelSpec,
    LaunchSpec,
)
from tuner.model.languages import refuse_opencl
from tuner.model.tensor_maps import DATA_TYPES, L2_PROMOTION, RANKS, TensorMapSpec
from tuner.model.trial import INITIAL, TUNE

_DEFINED = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
MOST_RANK = max(RANKS)
DEVICE = {name: f"device.{name}" for name in sorted(DEVICE_NAMES)}


@dataclass(frozen=True, slots=True)
class Measured:
    device: str
    architecture: str
    date: str
    recorded: bool
    operators: Mapping[str, str]
    verified_by: str = TUNE

    @property
    def warning(self) -> str:
        """Say whose word it is that variants are right; "" where they were verified here."""
        if self.verified_by == TUNE:
            return ""
        by = f"verified by `{self.verified_by}`, not by tune"
        return by if self.verified_by else "NOT VERIFIED by anybody"


@dataclass(frozen=True, slots=True)
class CppLaunch:
    """A launch in C++: `when` is empty where it is always made, `taken` where it takes all.

    `maps` are its tensor maps, each the name of an array and a `Map` of the header's.
    """

    kernel: str
    geometry: str
    when: str
    taken: tuple[str, ...] = ()
    maps: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class VariantSource:
    """One variant as its template needs it; number 0 is the baseline.

    `conditions` are on the shape, the device and the scalars that are `fixed` in the source;
    `scratch` has the bytes of what a config sizes.
    """

    number: int
    title: str
    source: str
    launches: tuple[CppLaunch, ...]
    conditions: tuple[str, ...] = ()
    static_bytes: tuple[int, ...] = ()
    fixed: tuple[str, ...] = ()
    scratch: Mapping[str, str] = field(default_factory=dict)

    def any_launch(self, before: str) -> str:
        """Write a condition that holds where a launch is made; `before` begins their names."""
        used = [f"{before}{i}" for i, launch in enumerate(self.launches, start=1) if launch.when]
        return f"({' || '.join(used)})" if len(used) == len(self.launches) else "true"


class CppSources:
    """Write the C++ of one kernel's dispatch; raises `InputError` for what C++ cannot say."""

    def __init__(self, spec: KernelSpec, dispatch: SessionDispatch, measured: Measured) -> None:
        refuse_opencl(spec.source, "an export of C++")
        self.spec, self._dispatch, self._measured = spec, dispatch, measured
        self._names = {axis: cpp_name(axis) for axis in spec.axes}
        self._arrays = [argument for argument in spec.arguments if not argument.is_scalar]
        self.scalars = caller_scalars(spec)
        parameters = [
            *(cpp_name(array.name) for array in self._arrays),
            *self._names.values(),
            *(scalar.name for scalar in self.scalars),
        ]
        if wrong := unusable_name(spec.name, parameters):
            raise InputError(wrong[0], path=spec.path, remedy=wrong[1])
        exported = exported_variants(spec, dispatch, self.scalars)
        self.variants = tuple(map(self._translate, exported))

    def header(self) -> str:
        table = self._dispatch.table
        points = [
            {
                "logs": ", ".join(repr(log(size)) for _, size in workload.axes),
                "number": table.number(kernel),
                "shape": str(workload),
                "served": productions(table.best_on(workload)) if kernel is None else "",
            }
            for workload, kernel in table.points
        ]
        axes = list(self._names.values())
        return template("dispatch.h.j2").render(
            **self._common(),
            choice=str(table.choice),
            surroundings=times_of(self.spec, table),
            measured=self._measured.date,
            variants=self.variants,
            points=points,
            axes=axes,
            axes_parameters=", ".join(f"std::int64_t {axis}" for axis in axes),
            scalars=self.scalars,
            scalar_parameters="".join(f", {scalar.kind} {scalar.name}" for scalar in self.scalars),
            scalar_defaults="".join(
                f", {scalar.kind} {scalar.name} = {scalar.default}" for scalar in self.scalars
            ),
            asked=", ".join([*axes, *(scalar.name for scalar in self.scalars)]),
            axes_logs=", ".join(f"std::log(static_cast<double>({axis}))" for axis in axes),
            forward=sorted(
                {FORWARD_DECLARED[a.dtype] for a in self._arrays if a.dtype in FORWARD_DECLARED}
            ),
            pointers=self._arrays,
            scratches=[
                {"name": array.name, "bytes": self._bytes(array, array.shape)}
                for array in self._arrays
                if array.role == "scratch" and not self.spec.is_sized(array)
            ],
            sized=[argument.name for argument in self.spec.sized],
            zeroed=[array.name for array in self._arrays if array.zeroed],
            constants=", ".join(self.spec.constants),
            mapped=any(launch.maps for variant in self.variants for launch in variant.launches),
        )

    def variant(self, source: VariantSource) -> str:
        space = f"{self.spec.name}_v{source.number}_code"
        passed = {scalar.position for scalar in self.scalars}
        own = list(enumerate(self.spec.arguments))
        mapped = (name for launch in source.launches for name, _ in launch.maps)
        taken = {*mapped, *(name for launch in source.launches for name in launch.taken)}
        if not all(launch.taken for launch in source.launches):
            taken = {argument.name for _, argument in own}
        computed = {a.name: a for at, a in own if a.is_scalar and at not in passed}
        places = {
            a.name: f"&tune_{a.name}" if a.name in computed else f"&{cpp_name(a.name)}"
            for _, a in own
        }
        return template("variant.cu.j2").render(
            **self._common(),
            variant=source,
            macros=[f"{name} {text}" for name, text in self._measured.operators.items()],
            body=in_namespace(source.source, space),
            hidden=hidden_by(
                _DEFINED.findall(source.source),
                [*self._names.values(), *(cpp_name(one.name) for one in self.spec.arguments)],
            ),
            space=space,
            definition_parameters=self._parameters("[[maybe_unused]] ", taken),
            scalar_parameters="".join(
                f", {_unless(self.spec.arguments[s.position].name in taken)}{s.kind} {s.name}"
                for s in self.scalars
            ),
            computed=[self._scalar(a) for name, a in computed.items() if name in taken],
            taken=[
                ", ".join(
                    (
                        *(places[name] for name in launch.taken or places),
                        *(f"&tune_map_{i}" for i in range(1, len(launch.maps) + 1)),
                    )
                )
                for launch in source.launches
            ],
            local={a.name: cpp_name(a.name) for a in self._arrays},
        )

    def _common(self) -> Mapping[str, str]:
        arrays = (cpp_name(array.name) for array in self._arrays)
        return {
            "parameters": self._parameters(""),
            "passed": ", ".join(
                [
                    *arrays,
                    *self._names.values(),
                    "stream",
                    *(scalar.name for scalar in self.scalars),
                ]
            ),
            "kernel": self.spec.name,
            "version": TUNER_VERSION,
            "device": self._measured.device,
            "architecture": self._measured.architecture,
            "warning": self._measured.warning,
        }

    def _parameters(self, before_axes: str, taken: Collection[str] | None = None) -> str:
        arrays = (
            f"{_unless(taken is None or a.name in taken)}"
            f"{'const ' * (a.role == 'input')}{ARRAY_TYPES[a.dtype]}* {cpp_name(a.name)}"
            for a in self._arrays
        )
        axes = (f"{before_axes}std::int64_t {axis}" for axis in self._names.values())
        return ", ".join([*arrays, *axes, "cudaStream_t stream"])

    def _bytes(self, argument: Argument, shape: Sequence[Expression]) -> str:
        text = str(DTYPE_BYTES[argument.dtype])
        for dimension in shape:
            text = f"product({text}, {integer(dimension, self._names)})"
        return text

    def _scalar(self, argument: Argument) -> Mapping[str, str]:
        assert argument.value is not None
        kind = scalar_type(self.spec, argument)
        if argument.dtype == "bool":
            text = truth(argument.value, self._names)
        elif argument.dtype.startswith("float"):
            text = f"static_cast<{kind}>({real(argument.value, self._names)})"
        else:
            text = f"narrow<{kind}>({integer(argument.value, self._names)})"
        return {"type": kind, "local": f"tune_{argument.name}", "text": text}

    def _translate(self, variant: ExportedVariant) -> VariantSource:
        try:
            known = {**self._names, **DEVICE}
            shapes = (
                " && ".join(f"{self._names[axis]} == {size}" for axis, size in shape)
                for shape in variant.shapes
            )
            conditions = (
                [f"({' || '.join(f'({text})' for text in shapes)})"] if variant.shapes else []
            )
            conditions += [truth(condition, known) for condition in variant.conditions]
            decided = dict.fromkeys(text for text in conditions if text != "true")
            return VariantSource(
                variant.number,
                variant.title,
                variant.source,
                tuple(map(self._launch, variant.launches)),
                (*decided, *(scalar.is_default for scalar in variant.fixed)),
                variant.static_bytes,
                tuple(scalar.name for scalar in variant.fixed),
                {
                    a.name: self._bytes(a, variant.scratch[a.name])
                    for a in self.spec.sized
                    if variant.number
                },
            )
        except ExpressionError as error:
            # A candidate's search space stands in the session; the first one's is the user's.
            path = self.spec.path if variant.candidate == INITIAL else Path(variant.candidate)
            raise ExpressionError(
                error.message, path=path, line=error.line, remedy=error.remedy
            ) from error

    def _launch(self, spec: LaunchSpec) -> CppLaunch:
        known = {**self._names, **DEVICE}

        def dimensions(sizes: Sequence[Expression], otherwise: str) -> str:
            texts = [integer(size, known) for size in sizes]
            return "{" + ", ".join([*texts, otherwise, otherwise, otherwise][:3]) + "}"

        shared = integer(spec.shared_memory, known) if spec.shared_memory else "0"
        programmatic = truth(spec.pdl, known) if spec.pdl else "false"
        cluster = dimensions(spec.cluster, "1") if spec.cluster else "{0, 0, 0}"
        parts = (dimensions(spec.grid, "1"), dimensions(spec.block, "1"), cluster)
        when = truth(spec.when, known) if spec.when else "true"
        geometry = f"Launch{{{', '.join(parts)}, {shared}, {programmatic}}}"
        maps = tuple((map_spec.of, self._map(map_spec)) for map_spec in spec.maps)
        when = "" if when == "true" else when
        return CppLaunch(spec.kernel, geometry, when, spec.arguments, maps)

    def _map(self, map_spec: TensorMapSpec) -> str:
        """Write a `Map` of the header's, whose dimensions begin with the innermost."""
        known = {**self._names, **DEVICE}

        def whole(sizes: Sequence[Expression]) -> list[str]:
            return [integer(size, known) for size in reversed(sizes)]

        def padded(sizes: Sequence[str]) -> str:
            return "{" + ", ".join([*sizes, *["1"] * (MOST_RANK - len(sizes))]) + "}"

        def product(sizes: Sequence[str]) -> str:
            return reduce(lambda a, b: f"product({a}, {b})", sizes)

        size, shape = str(map_spec.element_bytes), whole(map_spec.shape)
        steps = whole(map_spec.strides) or [product(shape[:n]) for n in range(1, len(shape))]
        numbers = (str(DATA_TYPES[map_spec.dtype]), size, str(len(shape)))
        lists = (shape, ["0", *(product([size, step]) for step in steps)], whole(map_spec.box))
        swizzle = "0" if map_spec.swizzle is None else integer(map_spec.swizzle, known)
        promotion = (
            L2_PROMOTION if map_spec.l2_promotion is None else integer(map_spec.l2_promotion, known)
        )
        last = (swizzle, str(promotion), product(whole(map_spec.own_shape)))
        return f"Map{{{', '.join([*numbers, *map(padded, lists), *last])}}}"


def _unless(used: bool) -> str:
    return "" if used else "[[maybe_unused]] "


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("tuner.extensions", "export"),
        autoescape=False,
        undefined=StrictUndefined,
        variable_start_string="@{",
        variable_end_string="}@",
        line_statement_prefix="//%",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def template(name: str) -> Template:
    """Load a template of an export's file, by its place under extensions/export."""
    return _environment().get_template(name)


def describe_surroundings(spec: KernelSpec, table: DispatchTable) -> dict[str, str]:
    """Say what each of the surroundings is that times were measured in, by name."""
    named = {surrounding.name: str(surrounding) for surrounding in spec.surroundings}
    best = [entry.best for entry in table.entries] + [held_out.best for held_out in table.held_out]
    used = [one.surroundings for one in best if one is not None]
    return {name: named.get(name, name) for name in used if name}


def times_of(spec: KernelSpec, table: DispatchTable) -> list[str]:
    """Say what the times are, in lines."""
    around = list(describe_surroundings(spec, table).values())
    if not around:
        return [
            "Times are those of the operator alone, one call after the other, with cold caches."
        ]
    return [
        "Times are costs between the neighbours that run before and after:",
        *(f"- {one}" for one in around),
    ]
