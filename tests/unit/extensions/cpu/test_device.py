"""The `host` device: CUDA sources that run on the CPU, and what it says of those that can't."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tuner.compiler.base import CompileRequest, CompileResult
from tuner.device.base import Outcome, Program
from tuner.device.encoding import encode, storage_dtype
from tuner.device.layout import UNCHANGED, lay_out
from tuner.device.verify.shared_memory import SharedMemory
from tuner.device.verify.verifier import Verifier
from tuner.extensions.cpu.child import LaunchEnd
from tuner.extensions.cpu.compiler import HostCompiler
from tuner.extensions.cpu.device import HostWatcher
from tuner.extensions.cpu.worker import HostRunError, HostWorker
from tuner.model.kernel import KernelSpec, Launch, Tolerance, Workload
from tuner.model.trial import Correctness, Status

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

MakeSpec = Callable[..., KernelSpec]
DATA = Path(__file__).parent / "data"
WORKLOAD = Workload.of({"T": 300})
EXACT = {"y": Tolerance(0.0, 0.0)}
DOUBLE = (("y", "float32", ("T",), "output"), ("x", "float32", ("T",), "input"))
KERNEL = 'extern "C" __global__ void run(float* y, const float* x) {{ {} }}'


@pytest.fixture(scope="module")
def worker() -> Iterator[HostWorker]:
    worker = HostWorker(1.0)
    yield worker
    worker.kill()


def compiled(compiler: HostCompiler, source: str, *kernels: str, **more: object) -> CompileResult:
    request = CompileRequest(source, kernels or ("run",), "sm_90a", **more)  # type: ignore[arg-type]
    return compiler.submit(request).result()


class Bench:
    """Compile a source, run it in the worker, verify it here."""

    def __init__(self, compiler: HostCompiler, worker: HostWorker) -> None:
        self._compiler, self._worker = compiler, worker
        self.verifier: Verifier | None = None
        self.memory = SharedMemory()

    def program(self, source: str, workload: Workload, *launches: Launch) -> Program:
        result = compiled(self._compiler, source, *{launch.kernel for launch in launches})
        assert result.ok, result.error
        return Program("key", workload, launches, result.cubin, result.lowered)

    def run(
        self, spec: KernelSpec, source: str, workload: Workload, *launches: Launch, order: int = 0
    ) -> Correctness:
        program = self.program(source, workload, *launches)
        self.verifier = Verifier(self.memory, spec, {})
        arena = self.verifier.open_arena(workload, lay_out(spec, workload.values, by_pages=True))
        self._worker.attach(arena)
        self.verifier.prepare(workload, "normal", 1)
        self._worker.memory.renew(UNCHANGED)
        self._worker.run(program, order, 0xFF)
        self._worker.memory.show()
        return self.verifier.check()

    def output(self, spec: KernelSpec, name: str, workload: Workload) -> np.ndarray:
        slots = lay_out(spec, workload.values, by_pages=True).slots
        slot = next(slot for slot in slots if slot.name == name)
        piece = self.memory.data[slot.offset : slot.offset + slot.size_bytes]
        return piece.view(storage_dtype(slot.dtype)).reshape(slot.shape).copy()


@pytest.fixture
def bench(compiler: HostCompiler, worker: HostWorker) -> Iterator[Bench]:
    bench = Bench(compiler, worker)
    yield bench
    worker.detach()
    if bench.verifier is not None:
        bench.verifier.close_arena()


def launch(
    grid: tuple[int, ...] = (1,), block: tuple[int, ...] = (32,), shared: int = 0, name: str = "run"
) -> Launch:
    def three(sizes: tuple[int, ...]) -> tuple[int, int, int]:
        x, y, z = (*sizes, 1, 1)[:3]
        return x, y, z

    return Launch(name, three(grid), three(block), shared)


class TestKernels:
    def test_a_histogram_with_atomics_and_dynamic_shared_memory(
        self, bench: Bench, make_spec: MakeSpec
    ) -> None:
        source = (DATA / "histogram.cu").read_text(encoding="utf-8")
        reference = """
def inputs(xp, rng, axes, fill):
    return {"x": rng.integers(0, 64, axes["T"]).astype(xp.int32)}

def reference(xp, inputs, axes):
    return {"y": xp.bincount(inputs["x"].astype(int), minlength=64).astype(float)}
"""
        spec = make_spec(
            ("y", "int32", ("64",), "output"),
            ("x", "int32", ("T",), "input"),
            ("n", "int32", "T"),
            reference=reference,
            tolerances=EXACT,
        )
        clear, count = launch((1,), (64,), name="clear"), launch((5,), (64,), shared=256)
        verdict = bench.run(spec, source, WORKLOAD, clear, count)
        assert verdict.passed, verdict.reason

    def test_a_grid_and_blocks_of_three_dimensions(self, bench: Bench, make_spec: MakeSpec) -> None:
        source = """
        extern "C" __global__ void run(int* y) {
          const dim3 n(gridDim.x * blockDim.x, gridDim.y * blockDim.y, gridDim.z * blockDim.z);
          const int x = blockIdx.x * blockDim.x + threadIdx.x;
          const int column = blockIdx.y * blockDim.y + threadIdx.y;
          const int z = blockIdx.z * blockDim.z + threadIdx.z;
          const int i = (z * n.y + column) * n.x + x;
          y[i] = 3 * i;
        }
        """
        spec = make_spec(
            ("y", "int32", ("T",), "output"),
            reference="def reference(xp, inputs, axes):\n"
            "    return {'y': 3.0 * xp.arange(axes['T'])}\n",
            tolerances=EXACT,
        )
        workload = Workload.of({"T": 4 * 6 * 8 * 6})
        verdict = bench.run(spec, source, workload, launch((2, 3, 4), (4, 4, 2)))
        assert not verdict.passed
        verdict = bench.run(spec, source, workload, launch((2, 3, 4), (4, 4, 3)))
        assert verdict.passed, verdict.reason


def test_warp_operations_of_every_kind(bench: Bench, make_spec: MakeSpec) -> None:
    lane = np.arange(32)
    group = lane // 8 * 8
    rows = [
        group + (lane + 3) % 8,
        np.where(lane - 3 >= group, lane - 3, lane),
        np.where(lane + 3 < group + 8, lane + 3, lane),
        lane ^ 5,
        np.where((lane ^ 12) < group + 8, lane ^ 12, lane),
        *np.broadcast_to([[1], [1], [11], [2], [31 * 16 - 640], [-20], [31], [1]], (8, 32)),
        np.where(lane < 16, 16, 32),
        np.ones(32),
        np.full(32, 16),
    ]
    spec = make_spec(("y", "int32", ("T",), "output"), tolerances=EXACT)
    workload = Workload.of({"T": len(rows) * 32})
    program = bench.program((DATA / "warp.cu").read_text("utf-8"), workload, launch())
    bench.verifier = Verifier(bench.memory, spec, {})
    arena = bench.verifier.open_arena(workload, lay_out(spec, workload.values, by_pages=True))
    bench._worker.attach(arena)
    bench._worker.memory.renew(UNCHANGED)
    bench._worker.run(program, 0, 0xFF)
    bench._worker.memory.show()
    np.testing.assert_array_equal(bench.output(spec, "y", workload).reshape(-1, 32), rows)


@pytest.mark.parametrize(
    ("dtype", "convert"),
    [
        ("bfloat16", "__bfloat16_as_ushort(__float2bfloat16_rn(x[i]))"),
        ("float16", "__half_as_ushort(__float2half_rn(x[i]))"),
        ("float8_e4m3", "__nv_cvt_float_to_fp8(x[i], __NV_SATFINITE, __NV_E4M3)"),
        ("float8_e5m2", "__nv_cvt_float_to_fp8(x[i], __NV_SATFINITE, __NV_E5M2)"),
    ],
)
def test_conversions_round_as_the_reference_formats_do(
    bench: Bench, make_spec: MakeSpec, dtype: str, convert: str
) -> None:
    back = {
        "bfloat16": "__bfloat162float(__ushort_as_bfloat16(y[i]))",
        "float16": "__half2float(__ushort_as_half(y[i]))",
        "float8_e4m3": "decoded<__nv_fp8_e4m3>(y[i])",
        "float8_e5m2": "decoded<__nv_fp8_e5m2>(y[i])",
    }[dtype]
    stored = storage_dtype(dtype).itemsize * 8
    source = f"""
    #include <cuda_bf16.h>
    #include <cuda_fp16.h>
    #include <cuda_fp8.h>
    template <class T> float decoded(unsigned char c) {{ T v; v.__x = c; return float(v); }}
    extern "C" __global__ void run(uint{stored}_t* y, const float* x, int n) {{
      for (int i = threadIdx.x; i < n; i += 32) {{
        const float value = x[i];
        y[i] = {convert};
        const float again = {back};
        if (fabsf(again) < 1e30f && !(fabsf(again - value) <= 0.13f * fabsf(value) + 2e-3f) &&
            fabsf(value) < 400) y[i] = 0;
      }}
    }}
    """
    reference = """
def inputs(xp, rng, axes, fill):
    bits = rng.integers(0, 2**32, axes["T"], dtype=xp.uint32)
    x = bits.view(xp.float32)
    x[: axes["T"] // 2] = rng.standard_normal(axes["T"] // 2) * 2.0 ** rng.integers(-20, 9)
    ties = xp.arange(1, 4097) / 256.0
    x[: len(ties)] = ties
    return {"x": xp.where(xp.isnan(x), 1.0, x)}
"""
    spec = make_spec(
        ("y", f"uint{stored}", ("T",), "output"),
        ("x", "float32", ("T",), "input"),
        ("n", "int32", "T"),
        reference=reference + "\ndef reference(xp, inputs, axes):\n    return {'y': inputs['x']}\n",
        tolerances={"y": Tolerance(codes=1.0)},
    )
    workload = Workload.of({"T": 30000})
    with np.errstate(all="ignore"):
        bench.run(spec, source, workload, launch())
        x = bench.output(spec, "x", workload)
        expected = encode(np, x, dtype)
    found = bench.output(spec, "y", workload)
    if dtype == "float16":
        expected = expected.view(np.uint16)
    np.testing.assert_array_equal(found, expected)


class TestFaults:
    def test_a_write_just_after_a_buffer_breaks_a_guard(
        self, bench: Bench, make_spec: MakeSpec
    ) -> None:
        source = KERNEL.format(
            "for (int i = threadIdx.x; i <= 300; i += 32) y[i] = i < 300 ? 2 * x[i] : 1;"
        )
        verdict = bench.run(make_spec(*DOUBLE), source, WORKLOAD, launch())
        assert "wrote outside its buffers" in verdict.reason

    @pytest.mark.parametrize(
        ("body", "code", "message"),
        [
            ("if (threadIdx.x < 8)\n__syncthreads();\nelse\n__syncthreads();", LaunchEnd.STUCK,
             r"8 wait at __syncthreads \(line 2\), 24 wait at __syncthreads \(line 4\)"),
            ("if (threadIdx.x < 8) __syncthreads(); else __syncwarp();", LaunchEnd.STUCK,
             "divergent barrier.* 8 wait at __syncthreads .*, 24 wait at __syncwarp"),
            ("__syncwarp(1);", LaunchEnd.STUCK, r"__syncwarp \(line 1\) with the mask 0x00000001"),
            ("for (;;) {}", LaunchEnd.TIMEOUT,
             r"thread \(0,0,0\) of block \(0,0,0\) had not ended"),
            ("for (;;) __syncthreads();", LaunchEnd.TIMEOUT, "had not ended in time"),
            ("y[1ll << 44] = 1;", LaunchEnd.FAULT, r"thread \(0,0,0\) .* uses an illegal address"),
            ("y[0] = 7 / int(threadIdx.y);", LaunchEnd.FAULT, "divides an integer by zero"),
        ],
    )  # fmt: skip
    def test_a_launch_that_cannot_end_well_is_explained(
        self, bench: Bench, make_spec: MakeSpec, body: str, code: LaunchEnd, message: str
    ) -> None:
        with pytest.raises(HostRunError, match=message) as caught:
            bench.run(make_spec(*DOUBLE), KERNEL.format(body), WORKLOAD, launch(shared=64))
        assert caught.value.code is code

    def test_arguments_that_differ_from_the_parameters_are_refused(
        self, bench: Bench, make_spec: MakeSpec
    ) -> None:
        source = 'extern "C" __global__ void run(float* y, const float* x, long n) {}'
        with pytest.raises(HostRunError, match="3 parameters, but 2 arguments"):
            bench.run(make_spec(*DOUBLE), source, WORKLOAD, launch())
        with pytest.raises(HostRunError, match=r"parameter 3 .* has 8 bytes, .* has 4"):
            spec = make_spec(*DOUBLE, ("n", "int32", "T"))
            bench.run(spec, source, WORKLOAD, launch())

    def test_a_race_between_warps_gives_wrong_results_in_one_of_the_orders(
        self, bench: Bench, make_spec: MakeSpec
    ) -> None:
        source = KERNEL.format("""
          __shared__ float staged[64];
          for (int i = 0; i < 300; i += 64) {
            if (i + threadIdx.x < 300) staged[threadIdx.x] = x[i + threadIdx.x];
            __syncwarp();  // would have to be __syncthreads
            const int other = 63 - threadIdx.x;
            if (i + other < 300) y[i + other] = 2 * staged[other];
            __syncthreads();
          }""")
        spec = make_spec(*DOUBLE, tolerances=EXACT)
        orders = [
            bench.run(spec, source, WORKLOAD, launch(block=(64,)), order=order).passed
            for order in (0, 1)
        ]
        assert not all(orders)


def test_who_is_inexact_under_the_sanitizers_gets_extremes_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = Outcome(Status.CORRECT)
    inexact = Outcome(Status.INCORRECT, "y[0] is nan, expected 1 (inf times the tolerance)")
    outside = Outcome(Status.INCORRECT, "wrote outside its buffers")
    verified: list[str] = []

    def verify(program: str) -> Outcome:
        verified.append(program)
        return right

    monkeypatch.setattr(
        "tuner.extensions.cpu.device.verify_all", lambda device, programs: [right, inexact, outside]
    )
    watcher: Any = HostWatcher(lambda: SimpleNamespace(verify=verify))  # type: ignore[arg-type, return-value]
    assert watcher.watch(["a", "b", "c"]) == [right, right, outside]
    assert verified == ["b"]
