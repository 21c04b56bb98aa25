"""What is tuned: the kernel's files, arguments, launches, workloads, limits and tolerances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan, prod
from pathlib import Path
from typing import Literal, NamedTuple

from tuner.model.bounds import Axis, Count
from tuner.model.errors import KernelError
from tuner.model.expressions import Expression, Value
from tuner.model.languages import PYTHON, Language, language_of
from tuner.model.surroundings import Surroundings, SurroundingsSpec
from tuner.model.tensor_maps import TensorMap, TensorMapSpec

Role = Literal["input", "output", "inout", "scratch"]

# The only launch of a kernel in Python: a call of its function. No kernel in CUDA has this name.
CALL = "launch()"
# Among the compiler's options for one.
PYTHON_OPTION = "--language=python"
Dim3 = tuple[int, int, int]

# bytes per element; the names are NumPy's where NumPy has the type
DTYPE_BYTES: dict[str, int] = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "float8_e4m3": 1,
    "float8_e5m2": 1,
}
FLOAT_DTYPES = frozenset(name for name in DTYPE_BYTES if "float" in name)
# Those whose rounding is small beside what they hold: of 8 bits codes are counted.
MEASURED_DTYPES = frozenset(name for name in FLOAT_DTYPES if not name.startswith("float8"))

# A config whose scratch is larger is over a limit: no operator is worth it, and it has to be timed
# beside copies of itself.
MOST_SCRATCH_BYTES = 1 << 30

# what constraints and launches may ask of the device and of the launch after the kernel's; whoever
# evaluates them supplies the values
DEVICE_NAMES = frozenset(
    {"max_threads", "max_shared_bytes", "multiprocessors", "warp_size", "wave", "successor_waits"}
)


@dataclass(frozen=True, slots=True)
class Workload:
    """One problem size: a value for every axis, in the order of the axes."""

    axes: tuple[tuple[Axis, Count], ...]
    held_out: bool = field(default=False, compare=False)

    @classmethod
    def of(cls, axes: Mapping[str, int], *, held_out: bool = False) -> Workload:
        return cls(tuple(axes.items()), held_out)

    @property
    def values(self) -> dict[str, int]:
        return dict(self.axes)

    @property
    def key(self) -> str:
        """`T=1024,D=14336`: what `--workload` accepts and what files are keyed by."""
        return ",".join(f"{name}={value}" for name, value in self.axes)

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.axes)


@dataclass(frozen=True, slots=True)
class DtypeChoice:
    """A dtype that depends on one of the operator's choices."""

    operator: str
    dtypes: Mapping[str, str]


# what an input may hold, and how many expressions stand in parentheses behind it: least, most
FILLS: dict[str, tuple[int, int]] = {
    "normal": (0, 0),
    "uniform": (0, 2),
    "zeros": (0, 0),
    "ones": (0, 0),
    "positive": (0, 0),
    "sorted": (0, 0),
    "probabilities": (0, 1),
    "indices": (1, 1),
    "distinct": (1, 1),
    "offsets": (1, 1),
}
WHOLE_FILLS = frozenset({"indices", "distinct", "offsets"})
# One number of them cannot be changed without others.
COUPLED_FILLS = frozenset({"sorted", "probabilities", "distinct", "offsets"})


@dataclass(frozen=True, slots=True)
class ExtremeLimit:
    """How far an input's extremes go, and why not to the ends of its dtype.

    Without `largest` the input has none at all.
    """

    reason: str
    largest: float | None = None

    def __str__(self) -> str:
        what = "none" if self.largest is None else f"up to {self.largest:g}"
        return f"{what} ({self.reason})"


@dataclass(frozen=True, slots=True)
class Argument:
    """One kernel parameter: an array with a shape and a role, or a scalar with a value.

    `fill_bounds` are the expressions in parentheses behind `fill`, as N in `indices(N)`.
    `nonfinite` says that the operator defines what NaN and infinities in this input give;
    `deterministic` is False for an output whose bits may differ from run to run. `zeroed` scratch
    is all zeros before the first call, and has to be after each. Nothing that may still run when
    the kernel begins has written a `constant` input, such as a model's weights. `idle` says why
    nothing depends on an input, or why a part of an output, or all of it, never changes. `note` is
    what else is true of an input's content, whatever is drawn.
    """

    name: str
    dtype: str
    shape: tuple[Expression, ...] = ()
    role: Role = "input"
    fill: str = "normal"
    value: Expression | None = None
    line: int | None = None
    nonfinite: bool = False
    deterministic: bool = True
    dtype_by: DtypeChoice | None = None
    fill_bounds: tuple[Expression, ...] = ()
    extreme: ExtremeLimit | None = None
    zeroed: bool = False
    constant: bool = False
    idle: str = ""
    note: str = ""
    # Scratch that comes with a template: the baseline doesn't take it.
    added: bool = False

    @property
    def is_scalar(self) -> bool:
        return self.value is not None

    @property
    def is_read(self) -> bool:
        return self.role in ("input", "inout")

    @property
    def is_written(self) -> bool:
        return self.role in ("output", "inout")

    def dimensions(self, names: Mapping[str, Value]) -> tuple[int, ...]:
        return tuple(dimension.integer(names) for dimension in self.shape)

    def size_bytes(self, names: Mapping[str, Value]) -> int:
        return DTYPE_BYTES[self.dtype] * prod(self.dimensions(names))


class ChosenScratch(NamedTuple):
    """Scratch as a config chose it; `added` is the dtype of what came with a template, and whether
    it is zeroed.
    """

    name: str
    shape: tuple[int, ...]
    added: tuple[str, bool] | None = None

    @property
    def argument(self) -> Argument | None:
        """The argument that the file does not declare; None where it does."""
        if self.added is None:
            return None
        dtype, zeroed = self.added
        return Argument(self.name, dtype, role="scratch", zeroed=zeroed, added=True)


@dataclass(frozen=True, slots=True)
class Launch:
    """A resolved launch: plain numbers, ready for the driver, or the `CALL` of a Python kernel.

    `arguments` names what the kernel takes, in its order; where it is empty, all there are. Its
    parameters for `maps` come after them.
    """

    kernel: str
    grid: Dim3
    block: Dim3
    shared_bytes: int = 0
    cluster: Dim3 | None = None
    pdl: bool = False
    arguments: tuple[str, ...] = ()
    maps: tuple[TensorMap, ...] = ()

    @property
    def threads(self) -> int:
        return prod(self.block)

    @property
    def clusters_divide_grid(self) -> bool:
        """Tell whether the grid is made of whole clusters, as the device asks."""
        cluster = self.cluster or (1, 1, 1)
        return all(c >= 1 and g % c == 0 for g, c in zip(self.grid, cluster, strict=True))


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """A launch as the file states it: expressions over axes and parameters.

    `arguments` and `maps` are as in `Launch`.
    """

    kernel: str
    grid: tuple[Expression, ...]
    block: tuple[Expression, ...]
    shared_memory: Expression | None = None
    cluster: tuple[Expression, ...] = ()
    pdl: Expression | None = None
    when: Expression | None = None
    line: int | None = None
    arguments: tuple[str, ...] = ()
    maps: tuple[TensorMapSpec, ...] = ()

    def expressions(self) -> tuple[Expression, ...]:
        optional = (one for one in (self.shared_memory, self.pdl, self.when) if one)
        mapped = (expression for tensor_map in self.maps for expression in tensor_map.expressions())
        return (*self.grid, *self.block, *self.cluster, *optional, *mapped)

    def resolve(self, names: Mapping[str, Value]) -> Launch | None:
        """Evaluate every expression; None where `when` is false."""
        if self.when is not None and not self.when.evaluate(names):
            return None
        return Launch(
            kernel=self.kernel,
            grid=_dim3(self.grid, names),
            block=_dim3(self.block, names),
            shared_bytes=self.shared_memory.integer(names) if self.shared_memory else 0,
            cluster=_dim3(self.cluster, names) if self.cluster else None,
            pdl=bool(self.pdl and self.pdl.evaluate(names)),
            arguments=self.arguments,
            maps=tuple(tensor_map.resolve(names) for tensor_map in self.maps),
        )


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far one output may be from the float64 reference.

    `relative` and `absolute` combine as `|out - ref| <= absolute + relative * |ref|`. `codes` is
    the share of elements of a quantized output that may differ by one code. A `measured` one is
    what the baseline's own rounding comes to, several times over (`device.verify.accuracy`). With
    `tf32` what products multiply may be rounded to it: right is all between both answers.
    """

    relative: float = 0.0
    absolute: float = 0.0
    codes: float | None = None
    measured: bool = False
    tf32: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """What the user allows of a compiled kernel, beyond what the device does."""

    max_registers: int | None = None
    max_shared_bytes: int | None = None
    min_occupancy: float | None = None
    spills: Literal["allow", "forbid"] = "allow"
    serialized_wgmma: Literal["allow", "forbid"] = "allow"


# Numbers of rows that show how a size depends on them.
_ROWS = (1, 2, 3, 8, 33, 1 << 20)


@dataclass(frozen=True, slots=True)
class Invariance:
    """What the bits of a row may not depend on: how many rows an axis has, and the other rows.

    The row of an array is found in the dimension that is the axis, or a multiple of it, so many
    elements for each row, or the axis rounded up; an array that has none is shared by all rows.
    `outputs` are those whose rows are compared. Where parameters `by` which bits are decided have
    other values, so have bits, whether a run shows it or not.
    """

    axis: str
    outputs: tuple[str, ...]
    line: int
    by: tuple[str, ...] = ()

    def class_of(self, digest: str, config: Mapping[str, Value]) -> str:
        """Name the class of a config whose rows have this digest, "" where nobody looked."""
        decided = (f"{name}={config[name]}" for name in self.by if name in config)
        return ", ".join((digest, *decided)) if digest else ""

    def dimension(self, argument: Argument) -> int | None:
        """Find the dimension that counts rows; None where the array has no rows."""
        return next((n for n, size in enumerate(argument.shape) if self._counts(size)), None)

    def varies(self, size: Expression) -> bool:
        return len({*self._sizes_of(size).values()}) > 1

    def pads(self, size: Expression) -> bool:
        """Tell whether a dimension that counts rows has more than there are, at its end."""
        sizes = self._sizes_of(size)
        return sizes[1] == sizes[2]

    def _counts(self, size: Expression) -> bool:
        sizes = self._sizes_of(size)
        if len({*sizes.values()}) == 1:
            return False
        first = max(1, sizes[1])
        multiple = all(found == rows * first for rows, found in sizes.items())
        return multiple or all(found == -(-rows // first) * first for rows, found in sizes.items())

    def _sizes_of(self, size: Expression) -> dict[int, float]:
        """Compute a size for some numbers of rows; the other axes are whatever they are."""
        others = dict.fromkeys(size.names, 1024)
        return {rows: float(size.evaluate({**others, self.axis: rows})) for rows in _ROWS}

    def sized(self, workload: Workload, rows: int) -> Workload:
        """Give the same problem with so many rows."""
        return Workload.of({**workload.values, self.axis: rows})


@dataclass(frozen=True, slots=True)
class Operator:
    """A choice that belongs to the operator, not to the tuner: the same macro in every source.

    `name` is defined as a macro with the chosen value when baseline and template are compiled,
    stands for it as a text in every expression, and is a keyword argument of the reference. The
    first value is the default.
    """

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TorchText:
    """Python over PyTorch that a search space gives as its reference, and the line it begins in."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One kernel to tune, as its search-space file declares it; all paths are absolute.

    Expressions and dtypes are those of one choice of operators (tuner/space/choices.py).
    `edge_cases` lists workloads that are verified and never timed; with `tries_near` they are sizes
    near the tuned ones that the baseline turns out to take. `surroundings` is what times are
    measured in: on each workload the first ones that hold. Where `torch` is the reference, the
    file `reference` is the search space itself. `rows` says where they are, and `invariant`, where
    that is asked for, whose bits repeat; by `weight` sizes count in that.
    """

    name: str
    path: Path
    source: Path
    reference: Path
    template: Path
    axes: tuple[str, ...]
    arguments: tuple[Argument, ...]
    tuned: tuple[Workload, ...]
    held_out: tuple[Workload, ...]
    min_bytes: Expression
    baseline: tuple[LaunchSpec, ...]
    launch: tuple[LaunchSpec, ...]
    tolerances: Mapping[str, Tolerance]
    limits: Limits = Limits()
    operators: tuple[Operator, ...] = ()
    operations: Expression | None = None
    peak: str = ""
    include_dirs: tuple[Path, ...] = ()
    compile_options: tuple[str, ...] = ()
    edge_cases: tuple[Workload, ...] = ()
    tries_near: bool = False
    surroundings: tuple[SurroundingsSpec, ...] = ()
    torch: TorchText | None = None
    rows: Invariance | None = None
    invariant: Invariance | None = None
    weight: Expression | None = None
    _around: dict[Workload, Surroundings | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def language(self) -> Language:
        return language_of(self.source)

    @property
    def is_callable(self) -> bool:
        """Tell whether the kernel is a Python function, `launch(config, tensors, axes)`."""
        return self.language is PYTHON

    @property
    def workloads(self) -> tuple[Workload, ...]:
        return (*self.tuned, *self.held_out)

    @property
    def outputs(self) -> tuple[Argument, ...]:
        """The arguments that the kernel writes, those that it reads too among them."""
        return tuple(argument for argument in self.arguments if argument.is_written)

    @property
    def deterministic(self) -> frozenset[str]:
        """The arguments whose bits may not differ between runs on the same inputs."""
        return frozenset(argument.name for argument in self.arguments if argument.deterministic)

    @property
    def work_depends_on_inputs(self) -> bool:
        """Tell whether inputs are places or lengths: then they decide how much a call has to do."""
        return any(argument.fill in WHOLE_FILLS for argument in self.arguments)

    @property
    def constants(self) -> tuple[str, ...]:
        """The inputs that a programmatic launch may read before it waits."""
        return tuple(argument.name for argument in self.arguments if argument.constant)

    @property
    def extreme_limits(self) -> dict[str, ExtremeLimit]:
        """The inputs whose extremes the file limits or leaves out."""
        return {a.name: a.extreme for a in self.arguments if a.extreme is not None}

    def argument(self, name: str) -> Argument:
        """Find an argument by name; raise `KernelError` for an unknown one."""
        arguments = {argument.name: argument for argument in self.arguments}
        if name in arguments:
            return arguments[name]
        raise KernelError(
            f"no argument named {name!r}",
            path=self.path,
            remedy="arguments: " + ", ".join(arguments),
        )

    def taken(self, launch: Launch | LaunchSpec) -> tuple[Argument, ...]:
        """List the arguments that a launch takes, in the order of its kernel's parameters."""
        return tuple(map(self.argument, launch.arguments)) or self.arguments

    def places(self, launch: Launch | LaunchSpec) -> tuple[int, ...]:
        """Find what a launch takes among the arguments; empty where it takes all as they stand."""
        names = [argument.name for argument in self.arguments]
        return tuple(map(names.index, launch.arguments))

    def reached(self, launch: LaunchSpec) -> tuple[Argument, ...]:
        """List the arguments that a launch takes, and those that it takes by a tensor map alone."""
        taken = self.taken(launch)
        names = {argument.name for argument in taken}
        mapped = dict.fromkeys(map_spec.of for map_spec in launch.maps if map_spec.of not in names)
        return (*taken, *map(self.argument, mapped))

    def with_added(self, scratch: Sequence[Argument]) -> KernelSpec:
        """Take scratch that templates brought along; what takes all arguments takes none of it."""
        users = tuple(argument for argument in self.arguments if not argument.added)
        if not scratch:
            return self
        return replace(
            self,
            arguments=(*users, *scratch),
            baseline=name_arguments(self.baseline, users),
            launch=name_arguments(self.launch, self.arguments),
        )

    def is_sized(self, argument: Argument) -> bool:
        """Tell whether a config chooses the argument's shape, or that it is there; of scratch."""
        known = {*self.axes, *(operator.name for operator in self.operators)}
        return argument.added or any(dimension.names - known for dimension in argument.shape)

    @property
    def sized(self) -> tuple[Argument, ...]:
        """The scratch whose shape a config chooses."""
        return tuple(argument for argument in self.arguments if self.is_sized(argument))

    def scratch_refusal(self, names: Mapping[str, Value]) -> str:
        """Say what is wrong with a config's scratch, "" where nothing is."""
        total = 0
        for argument in self.sized:
            shape = argument.dimensions(names)
            if min(shape) < 1:
                return f"its scratch `{argument.name}` has the shape {shape}"
            total += argument.size_bytes(names)
        if total <= MOST_SCRATCH_BYTES:
            return ""
        return f"its scratch takes {total:,} bytes, and the most is {MOST_SCRATCH_BYTES:,}"

    def map_refusal(self, launches: Sequence[LaunchSpec], names: Mapping[str, Value]) -> str:
        """Say what is wrong with the tensor maps of these launches, "" where nothing is."""
        specs = (
            launch for launch in launches if launch.when is None or launch.when.evaluate(names)
        )
        refusals = (tensor_map.refusal(names) for launch in specs for tensor_map in launch.maps)
        return next((": ".join(refused) for refused in refusals if refused), "")

    def problem_of(self, workload: Workload) -> Workload:
        """Give what configs must have equal bits on: the other axes where rows are invariant."""
        rows = self.invariant.axis if self.invariant else ""
        return Workload(tuple(pair for pair in workload.axes if pair[0] != rows))

    def weight_of(self, workload: Workload) -> float:
        """Say how much a size counts among those of its problem."""
        weight = 1.0 if self.weight is None else self.weight.evaluate(workload.values)
        return nan if isinstance(weight, str) else float(weight)

    def footprint_bytes(self, workload: Workload) -> int:
        """Add up all arrays, but for scratch whose shape a config chooses."""
        names = workload.values
        arrays = (a for a in self.arguments if not a.is_scalar and not self.is_sized(a))
        return sum(argument.size_bytes(names) for argument in arrays)

    def surroundings_of(self, workload: Workload) -> Surroundings | None:
        """Return, made once, what the time is measured in; None where it is measured alone."""
        if workload not in self._around:
            names = workload.values
            around = (s.on(names) for s in self.surroundings if s.holds(names))
            self._around[workload] = next(around, None)
        return self._around[workload]

    def baseline_launches(self, names: Mapping[str, Value]) -> tuple[Launch, ...]:
        """Resolve the baseline's launches; `names` holds the axes and the device's numbers."""
        return _resolve(self.baseline, names)

    def candidate_launches(self, names: Mapping[str, Value]) -> tuple[Launch, ...]:
        """Resolve the template's launches; `names` holds axes, device numbers and the config."""
        return _resolve(self.launch, names)


def name_arguments(
    launches: Sequence[LaunchSpec], arguments: Sequence[Argument]
) -> tuple[LaunchSpec, ...]:
    """Have launches that take all arguments list them."""
    names = tuple(argument.name for argument in arguments)
    return tuple(
        launch if launch.arguments else replace(launch, arguments=names) for launch in launches
    )


def _resolve(specs: tuple[LaunchSpec, ...], names: Mapping[str, Value]) -> tuple[Launch, ...]:
    launches = (spec.resolve(names) for spec in specs)
    return tuple(launch for launch in launches if launch is not None)


def _dim3(expressions: tuple[Expression, ...], names: Mapping[str, Value]) -> Dim3:
    sizes = [expression.integer(names) for expression in expressions] + [1, 1]
    return sizes[0], sizes[1], sizes[2]
