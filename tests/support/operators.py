"""Small operators for kernels that cheat, or look as if they did: a spec, a workload, a launch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from string import Template

from tuner.model.expressions import Expression
from tuner.model.kernel import Argument, KernelSpec, Launch, Tolerance, Workload

REFERENCES = Path(__file__).parents[1] / "adversarial" / "references"
EXACT = Tolerance(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Operator:
    """What a kernel has to compute, where it is checked, and a kernel that does it plainly."""

    name: str
    arguments: tuple[Argument, ...]
    tolerance: Tolerance
    workload: Workload
    launches: tuple[Launch, ...]
    honest: str = ""
    reference: str = ""

    @property
    def spec(self) -> KernelSpec:
        """The operator as a device takes it."""
        path = REFERENCES / f"{self.reference or self.name}.py"
        outputs = [a.name for a in self.arguments if a.role in ("output", "inout")]
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
            tolerances=dict.fromkeys(outputs, self.tolerance),
        )


def launch(grid: int, block: int, *, kernel: str = "run", shared_bytes: int = 0) -> Launch:
    """Make a launch of one dimension."""
    return Launch(kernel, (grid, 1, 1), (block, 1, 1), shared_bytes)


def rows(count: int, columns: int) -> Workload:
    """Make a workload of two axes."""
    return Workload.of({"T": count, "D": columns})


def _array(name: str, dtype: str, shape: str, role: str = "input", **more: bool) -> Argument:
    sizes = tuple(Expression.parse(size) for size in shape.split())
    return Argument(name, dtype, sizes, role, **more)  # type: ignore[arg-type]


def _axes(*names: str) -> tuple[Argument, ...]:
    return tuple(Argument(name, "int32", value=Expression.parse(name)) for name in names)


def written(kernel: str, **parts: str) -> str:
    """Fill the places of a kernel in tests/support/kernels."""
    path = Path(__file__).with_name("kernels") / f"{kernel}.cu"
    return Template(path.read_text(encoding="utf-8")).substitute(parts)


def in_scale(*, before: str = "", each: str = "", after: str = "", top: str = "") -> str:
    """Write a kernel for `scale` with statements above it, before, in and after its loop."""
    return written("scale", top=top, before=before, each=each, after=after)


def in_energy(**parts: str) -> str:
    """Write a kernel for `energy`, one warp a row, that sums with shuffles."""
    plain = {"zero": "float sum = 0.0f;", "add": "sum += value * value;", "store": "y[row] = sum;"}
    return written("energy", **{"top": "", "before": "", "after": "", **plain, **parts})


def in_unit_rows(scale: str = "largest == 0.0f ? 1.0f : largest") -> str:
    """Write a kernel for `unit_rows` that divides by `scale`."""
    return written("unit_rows", scale=scale)


def in_softmax(*, shift: str = "largest", each: str = "") -> str:
    """Write a kernel for `softmax` that takes `shift` off before it exponentiates."""
    return written("softmax", shift=shift, each=each)


def in_staged_energy(start: str = "0.0f") -> str:
    """Write the two kernels for `staged_energy`; each part's sum begins with `start`."""
    return written("staged_energy", start=start)


def in_accumulate(before: str = "") -> str:
    """Write a kernel for `accumulate` with statements before its only one."""
    return written("accumulate", before=before)


SCALE = Operator(
    "scale",
    (
        _array("y", "float32", "T", "output"),
        _array("x", "float32", "T", nonfinite=True),
        *_axes("T"),
    ),
    EXACT,
    Workload.of({"T": 1000}),
    (launch(4, 128),),
    in_scale(),
)
ENERGY = Operator(
    "energy",
    (_array("y", "float32", "T", "output"), _array("x", "float16", "T D"), *_axes("T", "D")),
    Tolerance(2e-5, 0.0),
    rows(24, 2048),
    (launch(24, 32),),
    in_energy(),
)
STAGED_ENERGY = Operator(
    "staged_energy",
    (
        _array("y", "float32", "T", "output"),
        _array("partial", "float32", "T 8", "scratch"),
        _array("x", "float16", "T D"),
        *_axes("T", "D"),
    ),
    Tolerance(2e-5, 0.0),
    rows(24, 1000),
    (launch(24, 8, kernel="gather"), launch(1, 32, kernel="finish")),
    in_staged_energy(),
    reference="energy",
)
UNIT_ROWS = Operator(
    "unit_rows",
    (_array("y", "float32", "T D", "output"), _array("x", "float16", "T D"), *_axes("T", "D")),
    Tolerance(1e-6, 0.0),
    rows(24, 64),
    (launch(24, 32),),
    in_unit_rows(),
)
SOFTMAX = Operator(
    "softmax",
    (_array("y", "float32", "T D", "output"), _array("x", "float32", "T D"), *_axes("T", "D")),
    Tolerance(2e-5, 1e-9),
    rows(12, 100),
    (launch(12, 32),),
    in_softmax(),
)
COLUMN_ENERGY = Operator(
    "column_energy",
    (
        _array("y", "float32", "D", "output", deterministic=False),
        _array("x", "float16", "T D"),
        *_axes("T", "D"),
    ),
    Tolerance(1e-5, 0.0),
    rows(300, 64),
    (launch(30, 64),),
)
HISTOGRAM = Operator(
    "histogram",
    (_array("y", "int32", "64", "output"), _array("x", "int32", "T"), *_axes("T")),
    EXACT,
    Workload.of({"T": 1000}),
    (launch(5, 64),),
)
ACCUMULATE = Operator(
    "accumulate",
    (_array("total", "float32", "T", "inout"), _array("x", "float16", "T"), *_axes("T")),
    Tolerance(1e-6, 1e-6),
    Workload.of({"T": 1000}),
    (launch(8, 128),),
    in_accumulate(),
)
QUANTIZE = Operator(
    "quantize",
    (_array("y", "int8", "T", "output"), _array("x", "float16", "T"), *_axes("T")),
    Tolerance(codes=0.02),
    Workload.of({"T": 1000}),
    (launch(8, 128),),
)
TO_FP8 = Operator(
    "to_fp8",
    (_array("y", "float8_e4m3", "T", "output"), _array("x", "float32", "T"), *_axes("T")),
    Tolerance(codes=0.001),
    Workload.of({"T": 1000}),
    (launch(8, 128),),
)
LOGARITHM = Operator(
    "logarithm",
    (
        _array("y", "float32", "T", "output"),
        _array("x", "float32", "T", nonfinite=True),
        *_axes("T"),
    ),
    Tolerance(1e-6, 1e-6),
    Workload.of({"T": 1000}),
    (launch(8, 128),),
)
