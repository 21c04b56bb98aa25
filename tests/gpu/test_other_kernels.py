"""Kernels of other shapes: in place, with scalars and fp8, and on GPUs without CUDA IPC."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from silu_kernels import LAUNCH, WORKLOAD, silu

from tuner.device.base import Program
from tuner.device.cuda.device import CudaDevice
from tuner.device.cuda.worker import Worker
from tuner.device.layout import lay_out
from tuner.device.timing import SEARCH
from tuner.device.verify.arena import CudaMemory
from tuner.device.verify.verifier import Verifier
from tuner.model.errors import KernelError
from tuner.model.kernel import KernelSpec, Launch, Workload
from tuner.model.trial import Status
from tuner.space.load import Definition, load_definition

Build = Callable[..., Program]

SPACE = """\
version: 1
kernel: accumulate
source: accumulate.cu
reference: accumulate.py
template: accumulate.cu.j2
axes: [N]
arguments:
  - {name: sum, dtype: float32, shape: [N], role: inout}
  - {name: q, dtype: float8_e4m3, shape: [N], role: output}
  - {name: x, dtype: bfloat16, shape: [N], role: input}
  - {name: N, dtype: int64, value: N}
  - {name: factor, dtype: float32, value: 0.25}
workloads:
  tuned: [{N: 10007}]
min_bytes: 11 * N
baseline:
  launch: [{kernel: accumulate, grid: ["ceil_div(N, 256)"], block: [256]}]
parameters:
  block_size: [256]
launch:
  - {kernel: accumulate, grid: ["ceil_div(N, block_size)"], block: [block_size]}
tolerance:
  sum: {relative: 1.0e-6, absolute: 1.0e-30}
  q: {codes: 0.001}
"""
REFERENCE = """\
def reference(xp, inputs, axes):
    total = inputs["sum"] + 0.25 * inputs["x"]
    return {"sum": total, "q": total}
"""
SOURCE = """\
#include <cuda_bf16.h>
#include <cuda_fp8.h>

extern "C" __global__ void accumulate(float* sum, __nv_fp8_storage_t* q, const __nv_bfloat16* x,
                                      long long N, float factor) {
  const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  if (i >= N) return;
  const float total = fmaf(factor, __bfloat162float(x[i]), sum[i]);
  sum[i] = total;
  q[i] = __nv_cvt_float_to_fp8(total, __NV_SATFINITE, __NV_E4M3);
}
"""
ROWS = Workload.of({"N": 10007})
BLOCKS = Launch("accumulate", (40, 1, 1), (256, 1, 1))


@pytest.fixture
def accumulate(tmp_path: Path) -> KernelSpec:
    files = {
        "accumulate.yaml": SPACE,
        "accumulate.cu": SOURCE,
        "accumulate.cu.j2": SOURCE,
        "accumulate.py": REFERENCE,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return load_definition(tmp_path / "accumulate.yaml").spec


def test_a_kernel_may_work_in_place(accumulate: KernelSpec, build: Build) -> None:
    right = build(SOURCE, ROWS, BLOCKS)
    forgetful = build(SOURCE.replace("sum[i] = total;", ""), ROWS, BLOCKS)
    unsaturated = build(SOURCE.replace("__NV_SATFINITE", "__NV_NOSAT"), ROWS, BLOCKS)
    with closing(CudaDevice(0, accumulate, {})) as device:
        for thorough in (False, True):
            outcome = device.run(right, thorough=thorough)
            assert outcome.status is Status.CORRECT, outcome.reason
        lost = device.run(forgetful)
        assert lost.status is Status.INCORRECT
        assert "sum[" in lost.reason
        overflowing = device.run(unsaturated, thorough=True)
        assert overflowing.status is Status.INCORRECT
        assert "inputs 'extreme'" in overflowing.reason
        assert len(device.compare([right, right], rounds=7).times_us) == 7
        assert device.run(right).status is Status.CORRECT


def test_a_reference_that_cannot_serve_leaves_the_gpu_to_others(
    accumulate: KernelSpec, definition: Definition
) -> None:
    accumulate.reference.write_text("reference = 3\n", encoding="utf-8")
    with pytest.raises(KernelError, match="defines no `reference` function"):
        CudaDevice(0, accumulate, {})
    CudaDevice(0, definition.spec, {"ACTIVATION": "silu"}).close()


def test_without_cuda_ipc_the_arena_goes_through_host_memory(
    definition: Definition, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cupy

    def unsupported(address: int) -> bytes:
        raise cupy.cuda.runtime.CUDARuntimeError(801)  # cudaErrorNotSupported

    monkeypatch.setattr(cupy.cuda.runtime, "ipcGetMemHandle", unsupported)
    judge = Verifier(CudaMemory(0), definition.spec, {"ACTIVATION": "silu"})
    arena = judge.open_arena(WORKLOAD, lay_out(definition.spec, WORKLOAD.values))
    assert arena.ipc_handle is None
    worker, right = Worker(0), build(silu(), WORKLOAD, LAUNCH)
    wrong = build(silu(each="result = gate;"), WORKLOAD, LAUNCH)
    worker.attach(arena)
    judge.prepare(WORKLOAD, "normal", 1)
    worker.run_once(right)
    assert judge.check().passed
    assert worker.time(right, SEARCH).times_us
    assert judge.check().passed
    judge.poison()
    worker.run_once(wrong)
    assert not judge.check().passed
    worker.detach()
    judge.close_arena()
