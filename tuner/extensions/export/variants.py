"""What every format of an export starts from: a kernel's variants, and scalars such as eps."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tuner.compiler.includes import own_headers
from tuner.dispatch.table import SessionDispatch
from tuner.extensions.export.cpp import SCALAR_TYPES, cpp_name
from tuner.model.errors import InputError
from tuner.model.expressions import Expression, Value
from tuner.model.kernel import Argument, KernelSpec, LaunchSpec, name_arguments
from tuner.model.trial import INITIAL
from tuner.source import hide_host_code, parse_source, read_source
from tuner.source.facts import IDENTIFIER, KernelFunction, KernelParameter, SourceFile

_LARGEST = 2**63 - 1
_OWN_INCLUDE = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*[<\"](tune/\w+\.h)[>\"][^\n]*$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class CallerScalar:
    """A number that the caller passes: the kernel's parameter at `position`.

    `name`, `kind` and `default` are C++; the default is the `value` that was tuned and verified.
    `choices` are those of the operator from which it was computed.
    """

    name: str
    kind: str
    default: str
    position: int
    choices: frozenset[str]
    value: Value

    @property
    def is_default(self) -> str:
        """Write the condition that the caller passed the default."""
        return f"({self.name} == {self.default})"


_NOTHING = Expression.parse("0")


@dataclass(frozen=True, slots=True)
class ExportedVariant:
    """A variant in the language of the search space, without its parameters; 0 is the baseline.

    `shapes` has the axes and sizes for which alone the source is right, and none where it is for
    all. `fixed` are the scalars whose defaults are in the source, which has our own headers within.
    `static_bytes` is the shared memory that each launch's code takes at most, `scratch` the shapes
    of what a config sizes, `candidate` whose search space it stands in.
    """

    number: int
    title: str
    source: str
    launches: tuple[LaunchSpec, ...]
    fixed: tuple[CallerScalar, ...]
    conditions: tuple[Expression, ...] = ()
    shapes: tuple[tuple[tuple[str, int], ...], ...] = ()
    static_bytes: tuple[int, ...] = ()
    scratch: Mapping[str, Sequence[Expression]] = field(default_factory=dict)
    candidate: str = INITIAL


def exported_variants(
    spec: KernelSpec, dispatch: SessionDispatch, scalars: Sequence[CallerScalar]
) -> Iterator[ExportedVariant]:
    """Give the baseline, then the variants of a session by their numbers."""

    def find_fixed(
        source: str, launches: Sequence[LaunchSpec], choices: Collection[str]
    ) -> tuple[CallerScalar, ...]:
        kernels = [(launch.kernel, spec.places(launch)) for launch in launches]
        return fixed_scalars(scalars, source, kernels, choices)

    source = with_own_headers(hide_host_code(read_source(spec.source)))
    in_baseline = find_fixed(source, spec.baseline, ())
    yield ExportedVariant(0, "the baseline", source, tuple(spec.baseline), in_baseline)
    for number, kernel in enumerate(dispatch.table.kernels, start=1):
        reach, source = dispatch.applicability(kernel), with_own_headers(kernel.source)
        added = [argument for argument in spec.arguments if argument.added]
        users = [argument for argument in spec.arguments if not argument.added]
        launches = name_arguments(reach.launches, users) if added else tuple(reach.launches)
        yield ExportedVariant(
            number,
            str(kernel.variant),
            source,
            launches,
            find_fixed(source, launches, reach.choices),
            tuple(reach.conditions),
            tuple(tuple(zip(reach.written, shape, strict=True)) for shape in reach.shapes)
            if reach.written
            else (),
            reach.static_bytes,
            {**{argument.name: (_NOTHING,) for argument in added}, **reach.scratch},
            kernel.variant.candidate,
        )


def caller_scalars(spec: KernelSpec) -> tuple[CallerScalar, ...]:
    """List the scalars whose value is a number, whatever the shape.

    Raises `InputError` for a number that its type cannot hold.
    """
    source = read_source(spec.source)
    # An optional pointer is a scalar of 0.
    pointers = {
        position
        for launch in spec.baseline
        for position, parameter in _parameters(source, launch.kernel, spec.places(launch))
        if parameter.pointers
    }
    return tuple(
        CallerScalar(
            cpp_name(argument.name),
            scalar_type(spec, argument),
            _literal(spec, argument),
            position,
            _names_in(argument) & {operator.name for operator in spec.operators},
            argument.value.evaluate({}),
        )
        for position, argument in enumerate(spec.arguments)
        if argument.value is not None and not argument.value.names and position not in pointers
    )


def fixed_scalars(
    scalars: Sequence[CallerScalar],
    source: str,
    kernels: Sequence[tuple[str, Sequence[int]]],
    written: Collection[str],
) -> tuple[CallerScalar, ...]:
    """Name the scalars whose default is in a source, so that it is wrong for every other value.

    That is where no launched kernel names the parameter in its body, and where the default was
    computed from a choice that is `written` into the source, or named in it. What cannot be told
    counts as fixed. `kernels` have the positions of the arguments that they take, none for all.
    """
    if not scalars:
        return ()
    parsed = parse_source(source, Path("variant.cu"))
    macros = {*written, *IDENTIFIER.findall(parsed.masked)}
    read = set[int]()
    for name, places in kernels:
        kernel = _kernel(parsed, name)
        words = {*IDENTIFIER.findall(parsed.masked, *kernel.body)} if kernel else set()
        read |= {
            at for at, parameter in _parameters(parsed, name, places) if parameter.name in words
        }
    return tuple(
        scalar for scalar in scalars if scalar.position not in read or scalar.choices & macros
    )


def scalar_type(spec: KernelSpec, argument: Argument) -> str:
    """Name the C++ type of a scalar; raise `InputError` where none can be passed by value."""
    if argument.dtype in SCALAR_TYPES:
        return SCALAR_TYPES[argument.dtype]
    raise InputError(
        f"the scalar {argument.name!r} is {argument.dtype}, which cannot be passed by value",
        path=spec.path,
        line=argument.line,
        remedy="make it float32, in the kernel too",
    )


def _kernel(parsed: SourceFile, name: str) -> KernelFunction | None:
    """Find a kernel whose parameters are known."""
    try:
        function = parsed.kernel(name)
    except InputError:
        return None
    return function if function.parameters_known else None


def _parameters(
    parsed: SourceFile, name: str, places: Sequence[int]
) -> Sequence[tuple[int, KernelParameter]]:
    """List a kernel's parameters, each with the position of the argument that it is."""
    kernel = _kernel(parsed, name)
    parameters = kernel.parameters if kernel else ()
    return list(zip(places or range(len(parameters)), parameters, strict=False))


def _names_in(argument: Argument) -> frozenset[str]:
    assert argument.value is not None
    tree = argument.value.unbound or argument.value.tree
    return frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))


def _literal(spec: KernelSpec, argument: Argument) -> str:
    assert argument.value is not None
    dtype = argument.dtype
    number = argument.value.evaluate({})
    if dtype == "bool":
        return str(bool(number)).lower()
    if dtype.startswith("float") and not isinstance(number, str):
        with np.errstate(over="ignore"):
            real = np.dtype(dtype).type(number)
        if np.isfinite(real):
            # The shortest decimal that gives the same bits.
            text = str(real)
            return text + "f" if dtype == "float32" else text
    elif not isinstance(number, str):
        whole, bounds = argument.value.integer({}), np.iinfo(dtype)
        if max(bounds.min, -_LARGEST) <= whole <= bounds.max:
            return f"{whole}{'U' if dtype == 'uint64' else ''}{'LL' if '64' in dtype else ''}"
    raise InputError(
        f"the scalar {argument.name!r} is {number!r}, which {dtype} cannot hold",
        path=spec.path,
        line=argument.line,
        remedy="give it another value, or another type in the kernel too",
    )


def with_own_headers(source: str) -> str:
    """Put our headers in the place of their directives, each once: for who has no `tune`."""
    texts, given = own_headers(), set[str]()

    def text(match: re.Match[str]) -> str:
        name = match[1]
        if name in given or name not in texts:
            return "" if name in given else match[0]
        given.add(name)
        return _OWN_INCLUDE.sub(text, texts[name].replace("#pragma once\n", ""))

    return _OWN_INCLUDE.sub(text, source)
