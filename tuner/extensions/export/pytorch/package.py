"""Write sessions' variants as one Python package: cubins, tables, sources and the launcher."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from tuner.compiler.base import Compiler
from tuner.device.base import CompileTarget
from tuner.dispatch.evidence import productions
from tuner.extensions.export.folder import as_argument
from tuner.extensions.export.sources import template, times_of
from tuner.extensions.export.variants import (
    CallerScalar,
    ExportedVariant,
    caller_scalars,
    exported_variants,
)
from tuner.extensions.export.winners import Winners
from tuner.model import TUNER_VERSION
from tuner.model.errors import InputError
from tuner.model.expressions import Expression, unshare_parts
from tuner.model.kernel import (
    DEVICE_NAMES,
    DTYPE_BYTES,
    Argument,
    KernelSpec,
    Launch,
    LaunchSpec,
    Workload,
)
from tuner.model.tensor_maps import DATA_TYPES, L2_PROMOTION, TensorMapSpec

# What a table's functions call the numbers of a device.
GPU = "gpu"
# What a table's functions are written with: a parameter of the same name would hide it.
_OWN = frozenset({GPU, "Launch", "Map", "whole"})
# Shipped as they are.
RUNTIME = ("driver.py", "runtime.py")


@dataclass(frozen=True, slots=True)
class BuiltVariant:
    """A variant as its package has it: Python's text for where it fits and for its launches."""

    number: int
    title: str
    cubin: str
    symbols: Mapping[str, str]
    static_bytes: Mapping[str, int]
    fits: tuple[str, ...]
    launches: tuple[str, ...]
    fixed: tuple[str, ...]
    scratch_bytes: str


@dataclass(frozen=True, slots=True)
class DescribedOperator:
    """An operator as the package's users see it."""

    kernel: str
    parameters: str
    passed: str
    quick: str
    says: str
    axes: str
    choices: str
    measured: str


class OperatorFiles:
    """The files of one session's operator in a package, by their names in its folder.

    `with_baseline` has the baseline's source serve what else would be left to the fallback, unless
    production calls a peer there.
    """

    def __init__(
        self, winners: Winners, compiler: Compiler, *, with_baseline: bool = False
    ) -> None:
        self.winners, self._compiler = winners, compiler
        self._spec, self._dispatch = winners.spec, winners.dispatch
        if taken := _OWN.intersection(self._spec.axes):
            raise InputError(
                f"an axis is named {min(taken)}, as something in the package's own code is",
                path=self._spec.path,
                remedy="rename the axis, and tune again: a session holds to its search space",
            )
        self._target = CompileTarget(self._spec, winners.measured.operators, winners.device)
        self._scalars = caller_scalars(self._spec)
        self.files: dict[str, str | bytes] = {}
        baseline, *variants = exported_variants(self._spec, self._dispatch, self._scalars)
        left = [workload for workload, kernel in self._dispatch.table.points if not kernel]
        self._baseline = 0
        if with_baseline and not all(map(self._is_peers, left)):
            self._baseline = len(variants) + 1
            variants.append(replace(baseline, number=self._baseline))
        self._variants = tuple(map(self._build, variants))
        self.files[f"{self._spec.name}_table.py"] = self._table()

    @property
    def choices(self) -> Mapping[str, str]:
        """The operator's choices that it was tuned with."""
        return self._target.operators

    @property
    def given_axes(self) -> Sequence[str]:
        """The axes that a call has to name, as no array has them as a dimension."""
        return _given_axes(self._spec)

    @property
    def described(self) -> DescribedOperator:
        """Say how the operator is called."""
        spec = self._spec
        arrays = [_python_name(array) for array in _arrays(spec)]
        known = [(scalar, spec.arguments[scalar.position]) for scalar in self._scalars]
        numbers = [
            (_python_name(argument), _default(scalar, argument)) for scalar, argument in known
        ]
        keywords = [*_given_axes(spec), *(f"{name}={value}" for name, value in numbers)]
        passed = [*_given_axes(spec), *(name for name, _ in numbers)]
        written = ", ".join(_python_name(a) for a in _arrays(spec) if a.role != "input")
        constants = f" No launch before it that may still run writes {', '.join(spec.constants)}."
        held = constants if spec.constants else ""
        return DescribedOperator(
            spec.name,
            ", ".join([*arrays, *(["*", *keywords] if keywords else [])]),
            ", ".join([*arrays, *(f"{name}={name}" for name in passed)]),
            "" if _given_axes(spec) else ", ".join([*arrays, *passed]),
            f"Enqueue {spec.name} on the current stream; it writes {written}.{held}",
            ", ".join(spec.axes),
            ", ".join(f"{name}={value}" for name, value in self._target.operators.items()),
            self.winners.measured.date,
        )

    def _build(self, variant: ExportedVariant) -> BuiltVariant:
        spec, kernels = self._spec, self._dispatch.table.kernels
        source = (
            variant.source
            if variant.number == self._baseline
            else kernels[variant.number - 1].source
        )
        names = tuple(dict.fromkeys(launch.kernel for launch in variant.launches))
        launches = tuple(Launch(name, (1, 1, 1), (1, 1, 1)) for name in names)
        result = self._compiler.submit(self._target.request(source, launches)).result()
        if not result.ok:
            raise InputError(
                f"variant {variant.number} ({variant.title}) does not compile any more: "
                f"{result.error}",
                path=spec.path,
            )
        name = f"{spec.name}_v{variant.number}"
        self.files[f"cubins/{name}.cubin"] = result.cubin
        self.files[f"sources/{name}.cu"] = variant.source
        shapes = (" and ".join(f"{a} == {size}" for a, size in shape) for shape in variant.shapes)
        conditions = [f"({' or '.join(shapes)})"] if variant.shapes else []
        conditions += [python(condition, clause=True) for condition in variant.conditions]
        return BuiltVariant(
            variant.number,
            variant.title,
            f"cubins/{name}.cubin",
            {kernel: result.lowered[kernel] for kernel in names},
            {kernel: result.resources[kernel].static_shared_bytes for kernel in names},
            tuple(text for text in dict.fromkeys(conditions) if text != "True") or ("True",),
            tuple(text for launch in variant.launches if (text := _launch(launch, spec))),
            tuple(_python_name(spec.arguments[scalar.position]) for scalar in variant.fixed),
            _tuple(_bytes(a, variant.scratch[a.name]) for a in _scratch(spec))
            if spec.sized
            else "",
        )

    def _table(self) -> str:
        spec, table = self._spec, self._dispatch.table
        axes, given = _axis_sources(spec), _given_axes(spec)
        points = [
            (
                tuple(size for _, size in workload.axes),
                table.number(kernel) or (0 if self._is_peers(workload) else self._baseline),
                "" if kernel else productions(table.best_on(workload)),
            )
            for workload, kernel in table.points
        ]
        # What a call takes whose axes all follow from its arrays: with a `_`, so that none hides a
        # name of the function's own.
        arrays = [replace(array, name=f"{array.name}_") for array in _arrays(spec)]
        scalars = [f"{spec.arguments[scalar.position].name}_" for scalar in self._scalars]
        quick = {
            "parameters": ", ".join([*(array.name for array in arrays), *scalars]),
            "arrays": arrays,
            "types": [f"TYPE_{place}" for place in range(1, len(arrays) + 1)],
            "scalars": scalars,
            "places": [f"at_{place}" for place in range(1, len(arrays) + 1)],
            "elsewhere": " or ".join(f"{a.name}.get_device() != plan.device" for a in arrays[1:]),
        }
        return template("pytorch/table.py.j2").render(
            kernel=spec.name,
            version=TUNER_VERSION,
            device=self._target.device.name,
            capability=self._target.device.compute_capability,
            measured=self.winners.measured.date,
            choice=str(table.choice),
            surroundings=times_of(spec, table),
            variants=self._variants,
            points=points,
            axes=", ".join(spec.axes),
            axis_names=_tuple(map(repr, spec.axes)),
            given=_tuple(map(repr, given)),
            order=[
                self._argument(place, argument) for place, argument in enumerate(spec.arguments)
            ],
            shape_parameters=", ".join([*(f"{array.name}_" for array in _arrays(spec)), *given]),
            axes_read=_tuple(axes[axis] for axis in spec.axes),
            shapes=_tuple(_tuple(map(size, array.shape)) for array in _arrays(spec)),
            scratch_bytes=_tuple(
                "0" if spec.is_sized(argument) else _bytes(argument, argument.shape)
                for argument in _scratch(spec)
            ),
            scalars=_tuple(
                python(argument.value) for argument in spec.arguments if argument.value is not None
            ),
            quick=None if given else quick,
            rows=self._rows(),
            mapped=any("Map(" in text for variant in self._variants for text in variant.launches),
        )

    def _rows(self) -> int | None:
        """Find the axis on whose size no bits of any output depend; None where some may."""
        rows = self._spec.invariant
        written = {array.name for array in _arrays(self._spec) if array.role != "input"}
        if rows is None or not self._dispatch.table.keeps_rows or written - {*rows.outputs}:
            return None
        return self._spec.axes.index(rows.axis)

    def _is_peers(self, workload: Workload) -> bool:
        best = self._dispatch.table.best_on(workload)
        return best is not None and best.production is not None

    def _argument(self, place: int, argument: Argument) -> str:
        if not argument.is_scalar:
            zeroed = ", zeroed=True" if argument.zeroed else ""
            return (
                f'Array("{_python_name(argument)}", "{argument.dtype}", "{argument.role}"{zeroed})'
            )
        given = [f", {_default(s, argument)}" for s in self._scalars if s.position == place]
        return f'Scalar("{_python_name(argument)}", "{argument.dtype}"{"".join(given)})'


def package_files(
    package: str, operators: Sequence[OperatorFiles], folder: str = "."
) -> dict[str, str | bytes]:
    """Return all files of a package by their names in `folder`, which its README installs."""
    values = {**described_as(package, operators), "folder": as_argument(folder)}
    modules = module_files(package, operators, namespace=package)
    return {
        "pyproject.toml": template("pytorch/pyproject.toml.j2").render(**values),
        "README.md": template("pytorch/README.md.j2").render(**values),
        **{f"{package}/{name}": content for name, content in modules.items()},
    }


def module_files(
    package: str, operators: Sequence[OperatorFiles], *, namespace: str, layers: bool = False
) -> dict[str, str | bytes]:
    """Return the files of the package's own folder by their names in it.

    The operators are in `torch.ops.NAMESPACE`; with `layers` the package has a module of them.
    """
    values = {**described_as(package, operators), "namespace": namespace, "layers": layers}
    here = resources.files("tuner.extensions.runtime.pytorch")
    files: dict[str, str | bytes] = {"__init__.py": template("pytorch/init.py.j2").render(**values)}
    files |= {name: (here / name).read_text(encoding="utf-8") for name in RUNTIME}
    for operator in operators:
        files |= operator.files
    return files


def described_as(package: str, operators: Sequence[OperatorFiles]) -> dict[str, Any]:
    """Return what the templates of a package's files say of it."""
    described = [operator.described for operator in operators]
    return {
        "package": package,
        "version": TUNER_VERSION,
        "operators": described,
        "kernels": ", ".join(operator.kernel for operator in described),
        "device": operators[0].winners.measured.device,
    }


def capability(architecture: str) -> str:
    """Write sm_90a as 9.0a."""
    return re.sub(r"sm_(\d+)(\d)", r"\1.\2", architecture)


def python(expression: Expression, *, clause: bool = False) -> str:
    """Write an expression in Python, the numbers of the device as those of `GPU`.

    A `clause` may stand between others: it has parentheses where it must.
    """
    tree = _Shorter().visit(unshare_parts(expression.tree))
    loose = clause and isinstance(tree, ast.BoolOp | ast.IfExp)
    return f"({ast.unparse(tree)})" if loose else ast.unparse(tree)


def size(expression: Expression) -> str:
    """Write an expression that must come out whole."""
    text = python(expression)
    floats = (ast.Div, ast.Pow)
    parts = list(ast.walk(expression.tree))
    if any(isinstance(part, ast.BinOp) and isinstance(part.op, floats) for part in parts) or any(
        isinstance(part, ast.Constant) and isinstance(part.value, float) for part in parts
    ):
        return f"whole({text})"
    return text


class _Shorter(ast.NodeTransformer):
    """Leave out what a config has decided, and say what the device's numbers are of."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in DEVICE_NAMES:
            return node
        return ast.Attribute(ast.Name(GPU, ast.Load()), node.id, ast.Load())

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        decides = isinstance(node.op, ast.Or)
        if any(_is(one, decides) for one in node.values):
            return ast.Constant(decides)
        left = [one for one in node.values if not _is(one, not decides)]
        if len(left) < 2:
            return left[0] if left else ast.Constant(not decides)
        return ast.BoolOp(node.op, left)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.test, ast.Constant):
            return node.body if node.test.value else node.orelse
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.Mult):
            for one, other in ((node.left, node.right), (node.right, node.left)):
                if _is(one, 1):
                    return other
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        # The name of a function is none of the device's numbers.
        node.args = [self.visit(one) for one in node.args]
        first, *rest = node.args
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        return first if called == "ceil_div" and _is(rest[0], 1) else node


def _is(node: ast.expr, value: object) -> bool:
    return (
        isinstance(node, ast.Constant) and type(node.value) is type(value) and node.value == value
    )


def _launch(launch_spec: LaunchSpec, spec: KernelSpec) -> str:
    cluster = _tuple(map(size, launch_spec.cluster)) if launch_spec.cluster else "None"
    shared = size(launch_spec.shared_memory) if launch_spec.shared_memory else "0"
    programmatic = python(launch_spec.pdl) if launch_spec.pdl else "False"
    when = python(launch_spec.when) if launch_spec.when else "True"
    if when == "False":
        return ""
    grid, block = (_tuple(map(size, sizes)) for sizes in (launch_spec.grid, launch_spec.block))
    parts = [f'"{launch_spec.kernel}"', grid, block, cluster, shared, programmatic]
    if places := spec.places(launch_spec):
        parts.append(str(places))
    if launch_spec.maps:
        names = [argument.name for argument in spec.arguments]
        maps = _tuple(_map(each, names.index(each.of)) for each in launch_spec.maps)
        parts.append(f"maps={maps}")
    made = f"Launch({', '.join(parts)})"
    return made if when == "True" else f"{made} if {when} else None"


def _map(map_spec: TensorMapSpec, place: int) -> str:
    def product(sizes: Sequence[str]) -> str:
        factors = [text for text in sizes if text != "1"] or ["1"]
        return " * ".join(text if text.isalnum() else f"({text})" for text in factors)

    shape, width = [*map(size, reversed(map_spec.shape))], str(map_spec.element_bytes)
    steps = [[size(step)] for step in reversed(map_spec.strides)]
    steps = steps or [shape[:count] for count in range(1, len(shape))]
    strides = _tuple(product([width, *step]) for step in steps)
    swizzle = size(map_spec.swizzle) if map_spec.swizzle else "0"
    promotion = size(map_spec.l2_promotion) if map_spec.l2_promotion else str(L2_PROMOTION)
    numbers = [str(place), str(DATA_TYPES[map_spec.dtype]), width, _tuple(shape), strides]
    last = [_tuple(map(size, reversed(map_spec.box))), swizzle, promotion]
    return f"Map({', '.join([*numbers, *last, product([*map(size, map_spec.own_shape)])])})"


def _python_name(argument: Argument) -> str:
    """Name an argument in Python: C++ may call one `in`."""
    return f"{argument.name}_" if keyword.iskeyword(argument.name) else argument.name


def _default(scalar: CallerScalar, argument: Argument) -> str:
    """Write the value that a scalar of the caller's was tuned with."""
    dtype = argument.dtype
    kind = bool if dtype == "bool" else float if dtype.startswith("float") else int
    return repr(kind(scalar.value))


def _arrays(spec: KernelSpec) -> list[Argument]:
    return [
        argument
        for argument in spec.arguments
        if not argument.is_scalar and argument.role != "scratch"
    ]


def _scratch(spec: KernelSpec) -> list[Argument]:
    return [argument for argument in spec.arguments if argument.role == "scratch"]


def _bytes(argument: Argument, shape: Sequence[Expression]) -> str:
    sizes = (f"({size(dimension)})" for dimension in shape)
    return " * ".join([str(DTYPE_BYTES[argument.dtype]), *sizes])


def _given_axes(spec: KernelSpec) -> list[str]:
    """Name the axes that no array has as a dimension of its own."""
    sources = _axis_sources(spec)
    return [axis for axis in spec.axes if sources[axis] == axis]


def _axis_sources(spec: KernelSpec) -> dict[str, str]:
    found = {axis: axis for axis in spec.axes}
    for array in reversed(_arrays(spec)):
        for place, dimension in enumerate(array.shape):
            if isinstance(dimension.tree, ast.Name) and dimension.tree.id in found:
                found[dimension.tree.id] = f"{array.name}_[{place}]"
    return found


def _tuple(texts: Any) -> str:
    listed = list(texts)
    return f"({', '.join(listed)}{',' if len(listed) == 1 else ''})"
