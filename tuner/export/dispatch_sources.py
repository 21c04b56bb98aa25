"""The header and the variants' sources of a dispatch table, as text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import log

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from tuner.dispatch.kernels import Applicability, Kernel
from tuner.dispatch.of_session import SessionDispatch
from tuner.export.cpp import (
    ARRAY_TYPES,
    FORWARD_DECLARED,
    SCALAR_TYPES,
    cpp_name,
    hidden_by,
    in_namespace,
    integer,
    truth,
    value,
)
from tuner.model.expressions import Expression
from tuner.model.kernel import DEVICE_NAMES, DTYPE_BYTES, Argument, KernelSpec, LaunchSpec
from tuner.model.version import TUNER_VERSION
from tuner.source import hide_host_code, read_source

_DEFINED = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
DEVICE = {name: f"device.{name}" for name in sorted(DEVICE_NAMES)}


@dataclass(frozen=True, slots=True)
class Measured:
    """What the sources say of where they come from."""

    device: str
    architecture: str
    date: str
    operators: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LaunchCode:
    """A launch in C++: `when` is empty where it is always made."""

    kernel: str
    geometry: str
    when: str


@dataclass(frozen=True, slots=True)
class Unit:
    """One variant as its template needs it; number 0 is the baseline."""

    number: int
    title: str
    source: str
    launches: tuple[LaunchCode, ...]
    conditions: tuple[str, ...] = ()
    static_bytes: int = 0

    def any_launch(self, before: str) -> str:
        """Write a condition that holds where a launch is made; `before` begins their names."""
        used = [f"{before}{i}" for i, one in enumerate(self.launches, start=1) if one.when]
        return f"({' || '.join(used)})" if len(used) == len(self.launches) else "true"


class Sources:
    """Write the C++ of one kernel's dispatch; raises `InputError` for what C++ cannot say."""

    def __init__(self, spec: KernelSpec, dispatch: SessionDispatch, measured: Measured) -> None:
        self._spec, self._dispatch, self._measured = spec, dispatch, measured
        self._names = {axis: cpp_name(axis) for axis in spec.axes}
        self._arrays = [one for one in spec.arguments if not one.is_scalar]
        table = dispatch.table
        kernels = enumerate(table.kernels, start=1)
        self.units = (self._baseline(), *(self._unit(i, kernel) for i, kernel in kernels))

    def header(self) -> str:
        """Write the header."""
        table = self._dispatch.table
        points = [
            {
                "logs": ", ".join(repr(log(size)) for _, size in workload.axes),
                "number": table.number(kernel),
                "shape": str(workload),
            }
            for workload, kernel in table.points
        ]
        axes = list(self._names.values())
        return template("dispatch.h.j2").render(
            **self._common(),
            choice=str(table.choice),
            measured=self._measured.date,
            variants=self.units,
            points=points,
            axes=axes,
            axes_parameters=", ".join(f"std::int64_t {axis}" for axis in axes),
            axes_logs=", ".join(f"std::log(static_cast<double>({axis}))" for axis in axes),
            forward=sorted(
                {FORWARD_DECLARED[a.dtype] for a in self._arrays if a.dtype in FORWARD_DECLARED}
            ),
            pointers=self._arrays,
            scratches=[self._scratch(one) for one in self._arrays if one.role == "scratch"],
        )

    def variant(self, unit: Unit) -> str:
        """Write the source of one variant with its launch."""
        space = f"{self._spec.name}_v{unit.number}_code"
        scalars = [self._scalar(one) for one in self._spec.arguments if one.is_scalar]
        arguments = (
            f"&tune_{one.name}" if one.is_scalar else f"&{cpp_name(one.name)}"
            for one in self._spec.arguments
        )
        return template("variant.cu.j2").render(
            **self._common(),
            variant=unit,
            macros=[f"{name} {text}" for name, text in self._measured.operators.items()],
            body=in_namespace(unit.source, space),
            hidden=self._hidden(unit.source),
            space=space,
            definition_parameters=self._parameters("[[maybe_unused]] "),
            scalars=scalars,
            arguments=", ".join(arguments),
        )

    def _hidden(self, source: str) -> tuple[str, ...]:
        names = [*self._names.values(), *(cpp_name(one.name) for one in self._arrays)]
        return hidden_by(_DEFINED.findall(source), names)

    def _common(self) -> Mapping[str, str]:
        arrays = (cpp_name(one.name) for one in self._arrays)
        return {
            "parameters": self._parameters(""),
            "passed": ", ".join([*arrays, *self._names.values(), "stream"]),
            "kernel": self._spec.name,
            "version": TUNER_VERSION,
            "device": self._measured.device,
            "architecture": self._measured.architecture,
        }

    def _parameters(self, before_axes: str) -> str:
        arrays = (f"{_array_type(one)} {cpp_name(one.name)}" for one in self._arrays)
        axes = (f"{before_axes}std::int64_t {axis}" for axis in self._names.values())
        return ", ".join([*arrays, *axes, "cudaStream_t stream"])

    def _scratch(self, argument: Argument) -> Mapping[str, str]:
        text = str(DTYPE_BYTES[argument.dtype])
        for dimension in argument.shape:
            text = f"product({text}, {integer(dimension, self._names)})"
        return {"name": argument.name, "bytes": text}

    def _scalar(self, argument: Argument) -> Mapping[str, str]:
        assert argument.value is not None
        kind = SCALAR_TYPES[argument.dtype]
        if argument.dtype == "bool":
            text = truth(argument.value, self._names)
        elif argument.dtype.startswith("float"):
            text = f"static_cast<{kind}>({value(argument.value, self._names).text})"
        else:
            text = f"narrow<{kind}>({integer(argument.value, self._names)})"
        return {"type": kind, "local": f"tune_{argument.name}", "text": text}

    def _baseline(self) -> Unit:
        source = hide_host_code(read_source(self._spec.source))
        return Unit(0, "the baseline", source, self._launches(self._spec.baseline))

    def _unit(self, number: int, kernel: Kernel) -> Unit:
        reach = self._dispatch.reach(kernel)
        return Unit(
            number,
            str(kernel.variant),
            kernel.source,
            self._launches(reach.launches),
            self._conditions(reach),
            reach.static_bytes,
        )

    def _conditions(self, reach: Applicability) -> tuple[str, ...]:
        known = {**self._names, **DEVICE}
        found = [truth(condition, known) for condition in reach.conditions]
        shapes = (
            " && ".join(
                f"{self._names[a]} == {size}" for a, size in zip(reach.written, one, strict=True)
            )
            for one in reach.shapes
        )
        written = [f"({' || '.join(f'({shape})' for shape in shapes)})"] if reach.written else []
        return tuple(dict.fromkeys(text for text in (*written, *found) if text != "true"))

    def _launches(self, specs: Sequence[LaunchSpec]) -> tuple[LaunchCode, ...]:
        return tuple(self._launch(one) for one in specs)

    def _launch(self, spec: LaunchSpec) -> LaunchCode:
        known = {**self._names, **DEVICE}

        def dimensions(sizes: Sequence[Expression], otherwise: str) -> str:
            texts = [integer(one, known) for one in sizes]
            return "{" + ", ".join([*texts, otherwise, otherwise, otherwise][:3]) + "}"

        shared = integer(spec.shared_memory, known) if spec.shared_memory else "0"
        programmatic = truth(spec.pdl, known) if spec.pdl else "false"
        cluster = dimensions(spec.cluster, "1") if spec.cluster else "{0, 0, 0}"
        parts = (dimensions(spec.grid, "1"), dimensions(spec.block, "1"), cluster)
        when = truth(spec.when, known) if spec.when else "true"
        geometry = f"Launch{{{', '.join(parts)}, {shared}, {programmatic}}}"
        return LaunchCode(spec.kernel, geometry, "" if when == "true" else when)


def _array_type(argument: Argument) -> str:
    const = "const " if argument.role == "input" else ""
    return f"{const}{ARRAY_TYPES[argument.dtype]}*"


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("tuner", "export"),
        autoescape=False,
        undefined=StrictUndefined,
        variable_start_string="@{",
        variable_end_string="}@",
        line_statement_prefix="//%",
        keep_trailing_newline=True,
    )


def template(name: str) -> Template:
    """Load a template of this package."""
    return _environment().get_template(name)
