"""Small operators for kernels that cheat, or look as if they did: a spec, a workload, a launch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tuner.model.expressions import Expression
from tuner.model.kernel import Argument, KernelSpec, Launch, Tolerance, Workload

_FOLDER = Path(__file__).parents[1] / "adversarial"
REFERENCES, KERNELS = _FOLDER / "references", _FOLDER / "kernels"
EXACT = Tolerance(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Operator:
    """What a kernel has to compute, where it is checked, and how it is launched."""

    name: str
    arguments: tuple[Argument, ...]
    tolerance: Tolerance
    workload: Workload
    launches: tuple[Launch, ...]
    reference: str = ""
    # Whose folder its kernels lie in, where it is not its own.
    kernels: str = ""

    @property
    def plain(self) -> str:
        """The source of a kernel that does the work plainly."""
        return self.kernel("plain").read_text("utf-8")

    def kernel(self, name: str) -> Path:
        return (
            KERNELS / (self.kernels or self.name) / f"{name.replace(',', '').replace(' ', '_')}.cu"
        )

    @property
    def spec(self) -> KernelSpec:
        """The operator as a device takes it."""
        path = REFERENCES / f"{self.reference or self.name}.py"
        written = [a.name for a in self.arguments if a.role in ("output", "inout")]
        return KernelSpec(
            name=self.name,
            path=path.with_suffix(".yaml"),
            source=path.with_suffix(".cu"),
            reference=path,
            template=path.with_suffix(".cu.j2"),
            axes=tuple(self.workload.values),
            arguments=self.arguments,
            tuned=(self.workload,),
            held_out=(),
            min_bytes=Expression.parse("1"),
            baseline=(),
            launch=(),
            tolerances=dict.fromkeys(written, self.tolerance),
        )


class Kernel:
    """A kernel under its name in tests/adversarial/kernels, and how it is launched."""

    name: str
    operator: Operator
    launches: tuple[Launch, ...]

    @property
    def launched(self) -> tuple[Launch, ...]:
        """Its launches: the operator's own where it does not say otherwise."""
        return self.launches or self.operator.launches

    @property
    def source(self) -> str:
        """The file of its name, else the operator's plain kernel, which it launches otherwise."""
        own = self.operator.kernel(self.name)
        return own.read_text("utf-8") if own.exists() else self.operator.plain


def launch(grid: int, block: int, *, kernel: str = "run", shared_bytes: int = 0) -> Launch:
    """Make a launch of one dimension."""
    return Launch(kernel, (grid, 1, 1), (block, 1, 1), shared_bytes)


def rows(count: int, columns: int) -> Workload:
    """Make a workload of two axes."""
    return Workload.of({"T": count, "D": columns})


def array(name: str, dtype: str, shape: str, role: str = "input", **more: bool) -> Argument:
    sizes = tuple(Expression.parse(size) for size in shape.split())
    return Argument(name, dtype, sizes, role, **more)  # type: ignore[arg-type]


def axes(*names: str) -> tuple[Argument, ...]:
    return tuple(Argument(name, "int32", value=Expression.parse(name)) for name in names)


SCALE = Operator(
    "scale",
    (array("y", "float32", "T", "output"), array("x", "float32", "T", nonfinite=True), *axes("T")),
    EXACT,
    Workload.of({"T": 1000}),
    (launch(4, 128),),
)
DRAWN_SCALE = Operator(
    "drawn_scale",
    (array("y", "float32", "T", "output"), array("x", "float32", "T"), *axes("T")),
    EXACT,
    Workload.of({"T": 1000}),
    (launch(4, 128),),
    kernels="scale",
)
LOOSE_SCALE = Operator(
    "loose_scale",
    (
        array("y", "float32", "T", "output", deterministic=False),
        array("x", "float32", "T"),
        *axes("T"),
    ),
    EXACT,
    Workload.of({"T": 1000}),
    (launch(4, 128),),
    reference="scale",
)
ENERGY = Operator(
    "energy",
    (array("y", "float32", "T", "output"), array("x", "float16", "T D"), *axes("T", "D")),
    Tolerance(2e-5, 0.0),
    rows(24, 2048),
    (launch(24, 32),),
)
STAGED_ENERGY = Operator(
    "staged_energy",
    (
        array("y", "float32", "T", "output"),
        array("partial", "float32", "T 8", "scratch"),
        array("x", "float16", "T D"),
        *axes("T", "D"),
    ),
    Tolerance(2e-5, 0.0),
    rows(24, 1000),
    (launch(24, 8, kernel="gather"), launch(1, 32, kernel="finish")),
    reference="energy",
)
WEIGHTED = Operator(
    "weighted",
    (
        array("y", "float32", "T", "output"),
        array("x", "float32", "T"),
        array("w", "float32", "T", constant=True),
        *axes("T"),
    ),
    Tolerance(1e-6, 1e-30),
    Workload.of({"T": 1000}),
    (replace(launch(8, 128), pdl=True),),
)
COUNTED_ENERGY = Operator(
    "counted_energy",
    (
        array("y", "float32", "T", "output"),
        array("partial", "float32", "T 8", "scratch"),
        array("done", "uint32", "T", "scratch", zeroed=True),
        array("x", "float16", "T D"),
        *axes("T", "D"),
    ),
    Tolerance(2e-5, 0.0),
    rows(24, 1000),
    (launch(24 * 8, 32),),
    reference="energy",
)
UNIT_ROWS = Operator(
    "unit_rows",
    (array("y", "float32", "T D", "output"), array("x", "float16", "T D"), *axes("T", "D")),
    Tolerance(1e-6, 0.0),
    rows(24, 64),
    (launch(24, 32),),
)
SOFTMAX = Operator(
    "softmax",
    (array("y", "float32", "T D", "output"), array("x", "float32", "T D"), *axes("T", "D")),
    Tolerance(2e-5, 1e-9),
    rows(12, 100),
    (launch(12, 32),),
)
COLUMN_ENERGY = Operator(
    "column_energy",
    (
        array("y", "float32", "D", "output", deterministic=False),
        array("x", "float16", "T D"),
        *axes("T", "D"),
    ),
    Tolerance(1e-5, 0.0),
    rows(300, 64),
    (launch(30, 64),),
)
HISTOGRAM = Operator(
    "histogram",
    (array("y", "int32", "64", "output"), array("x", "int32", "T"), *axes("T")),
    EXACT,
    Workload.of({"T": 1000}),
    (launch(5, 64),),
)
# How long it takes is decided by an input, and by nothing else.
WAIT = Operator(
    "wait",
    (
        array("y", "float32", "T", "output"),
        array("x", "float32", "T"),
        replace(
            array("turns", "int32", "1"), fill="indices", fill_bounds=(Expression.parse("64"),)
        ),
        *axes("T"),
    ),
    EXACT,
    Workload.of({"T": 1000}),
    (launch(4, 256),),
    reference="scale",
)
ACCUMULATE = Operator(
    "accumulate",
    (array("total", "float32", "T", "inout"), array("x", "float16", "T"), *axes("T")),
    Tolerance(1e-6, 1e-6),
    Workload.of({"T": 1000}),
    (launch(8, 128),),
)
QUANTIZE = Operator(
    "quantize",
    (array("y", "int8", "T", "output"), array("x", "float16", "T"), *axes("T")),
    Tolerance(codes=0.02),
    Workload.of({"T": 1000}),
    (launch(8, 128),),
)
TO_FP8 = Operator(
    "to_fp8",
    (array("y", "float8_e4m3", "T", "output"), array("x", "float32", "T"), *axes("T")),
    Tolerance(codes=0.001),
    Workload.of({"T": 1000}),
    (launch(8, 128),),
)
LOGARITHM = Operator(
    "logarithm",
    (array("y", "float32", "T", "output"), array("x", "float32", "T", nonfinite=True), *axes("T")),
    Tolerance(1e-6, 1e-6),
    Workload.of({"T": 1000}),
    (launch(8, 128),),
)
