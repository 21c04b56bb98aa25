"""Small operators for kernels that cheat, or look as if they did: a spec, a workload, a launch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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


def in_scale(*, before: str = "", each: str = "", after: str = "", top: str = "") -> str:
    """Write a kernel for `scale` with statements above it, before, in and after its loop."""
    return f"""\
{top}
extern "C" __global__ void run(float* y, const float* x, int T) {{
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  {before}
  for (int i = thread; i < T; i += gridDim.x * blockDim.x) {{
    float result = 2.0f * x[i];
    {each}
    y[i] = result;
  }}
  {after}
}}
"""


def in_energy(
    *,
    top: str = "",
    before: str = "",
    zero: str = "float sum = 0.0f;",
    add: str = "sum += value * value;",
    after: str = "",
    store: str = "y[row] = sum;",
) -> str:
    """Write a kernel for `energy`, one warp a row, that sums with shuffles."""
    return f"""\
#include <cuda_bf16.h>
#include <cuda_fp16.h>
{top}
extern "C" __global__ void run(float* y, const __half* x, int T, int D) {{
  const int row = blockIdx.x, lane = threadIdx.x;
  if (row >= T) return;
  {before}
  {zero}
  for (int i = lane; i < D; i += 32) {{
    const float value = __half2float(x[row * D + i]);
    {add}
  }}
  {after}
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (lane == 0) {{ {store} }}
}}
"""


_UNIT_ROWS = """\
#include <cuda_fp16.h>

extern "C" __global__ void run(float* y, const __half* x, int T, int D) {
  const int row = blockIdx.x, lane = threadIdx.x;
  float largest = 0.0f;
  for (int i = lane; i < D; i += 32) largest = fmaxf(largest, fabsf(__half2float(x[row * D + i])));
  for (int step = 16; step > 0; step /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
  const float scale = LARGEST;
  for (int i = lane; i < D; i += 32) y[row * D + i] = __half2float(x[row * D + i]) / scale;
}
"""
_SOFTMAX = """\
extern "C" __global__ void run(float* y, const float* x, int T, int D) {
  const int row = blockIdx.x, lane = threadIdx.x;
  float largest = x[row * D + lane % D];
  for (int i = lane; i < D; i += 32) largest = fmaxf(largest, x[row * D + i]);
  for (int step = 16; step > 0; step /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
  const float shift = SHIFT;
  float sum = 0.0f;
  for (int i = lane; i < D; i += 32) sum += expf(x[row * D + i] - shift);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  for (int i = lane; i < D; i += 32) {
    float result = expf(x[row * D + i] - shift) / sum;
    EACH
    y[row * D + i] = result;
  }
}
"""


def in_unit_rows(scale: str = "largest == 0.0f ? 1.0f : largest") -> str:
    """Write a kernel for `unit_rows` that divides by `scale`."""
    return _UNIT_ROWS.replace("LARGEST", scale)


def in_softmax(*, shift: str = "largest", each: str = "") -> str:
    """Write a kernel for `softmax` that takes `shift` off before it exponentiates."""
    return _SOFTMAX.replace("SHIFT", shift).replace("EACH", each)


_STAGED = """\
#include <cuda_fp16.h>

constexpr int kParts = 8;

extern "C" __global__ void gather(float* y, float* partial, const __half* x, int T, int D) {
  const int row = blockIdx.x, part = threadIdx.x;
  float sum = START;
  for (int i = part; i < D; i += kParts) {
    const float value = __half2float(x[row * D + i]);
    sum += value * value;
  }
  partial[row * kParts + part] = sum;
}

extern "C" __global__ void finish(float* y, float* partial, const __half* x, int T, int D) {
  const int row = threadIdx.x;
  if (row >= T) return;
  float sum = 0.0f;
  for (int part = 0; part < kParts; ++part) sum += partial[row * kParts + part];
  y[row] = sum;
}
"""


_ACCUMULATE = """\
#include <cuda_fp16.h>

__device__ float* first;

extern "C" __global__ void run(float* total, const __half* x, int T) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  BEFORE
  if (i < T) total[i] += 0.5f * __half2float(x[i]);
}
"""


def in_staged_energy(start: str = "0.0f") -> str:
    """Write the two kernels for `staged_energy`; each part's sum begins with `start`."""
    return _STAGED.replace("START", start)


def in_accumulate(before: str = "") -> str:
    """Write a kernel for `accumulate` with statements before its only one."""
    return _ACCUMULATE.replace("BEFORE", before)


SCALE = Operator(
    "scale",
    (
        array("y", "float32", "T", "output"),
        array("x", "float32", "T", nonfinite=True),
        *axes("T"),
    ),
    EXACT,
    Workload.of({"T": 1000}),
    (launch(4, 128),),
    in_scale(),
)
ENERGY = Operator(
    "energy",
    (array("y", "float32", "T", "output"), array("x", "float16", "T D"), *axes("T", "D")),
    Tolerance(2e-5, 0.0),
    rows(24, 2048),
    (launch(24, 32),),
    in_energy(),
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
    in_staged_energy(),
    reference="energy",
)
UNIT_ROWS = Operator(
    "unit_rows",
    (array("y", "float32", "T D", "output"), array("x", "float16", "T D"), *axes("T", "D")),
    Tolerance(1e-6, 0.0),
    rows(24, 64),
    (launch(24, 32),),
    in_unit_rows(),
)
SOFTMAX = Operator(
    "softmax",
    (array("y", "float32", "T D", "output"), array("x", "float32", "T D"), *axes("T", "D")),
    Tolerance(2e-5, 1e-9),
    rows(12, 100),
    (launch(12, 32),),
    in_softmax(),
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
ACCUMULATE = Operator(
    "accumulate",
    (array("total", "float32", "T", "inout"), array("x", "float16", "T"), *axes("T")),
    Tolerance(1e-6, 1e-6),
    Workload.of({"T": 1000}),
    (launch(8, 128),),
    in_accumulate(),
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
    (
        array("y", "float32", "T", "output"),
        array("x", "float32", "T", nonfinite=True),
        *axes("T"),
    ),
    Tolerance(1e-6, 1e-6),
    Workload.of({"T": 1000}),
    (launch(8, 128),),
)
