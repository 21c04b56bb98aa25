"""Kernels of other shapes: in place, with work that inputs decide, and on GPUs without CUDA IPC."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from statistics import median

import pytest
from on_trial import CONFIG
from operators import WAIT
from silu_kernels import LAUNCH, WORKLOAD, silu

from tuner.device.base import Program
from tuner.device.cuda.device import CudaDevice, CudaMemory
from tuner.device.cuda.worker import CudaWorker
from tuner.device.layout import lay_out
from tuner.device.timing import SEARCH
from tuner.device.verify.verifier import Verifier
from tuner.model.errors import KernelError
from tuner.model.kernel import KernelSpec, Launch, Workload
from tuner.model.trial import Status
from tuner.space.load import Definition, load_definition

Build = Callable[..., Program]

ROWS = Workload.of({"N": 10007})
BLOCKS = Launch("accumulate", (40, 1, 1), (256, 1, 1))


@pytest.fixture
def accumulate(tmp_path: Path) -> KernelSpec:
    folder = copytree(Path(__file__).parent / "data/accumulate", tmp_path / "accumulate")
    return load_definition(folder / "accumulate.yaml").spec


def test_a_kernel_may_work_in_place(accumulate: KernelSpec, build: Build) -> None:
    source = accumulate.source.read_text(encoding="utf-8")
    right = build(source, ROWS, BLOCKS)
    forgetful = build(source.replace("sum[i] = total;", ""), ROWS, BLOCKS)
    # Of a baseline extremes would be left out: only those of a config are wrong.
    overflows = build(source.replace("__NV_SATFINITE", "__NV_NOSAT"), ROWS, BLOCKS)
    unsaturated = replace(overflows, config=CONFIG)
    with closing(CudaDevice(0, accumulate, {})) as device:
        for full_verification in (False, True):
            outcome = device.run(right, full_verification=full_verification)
            assert outcome.status is Status.CORRECT, outcome.reason
        lost = device.run(forgetful)
        assert lost.status is Status.INCORRECT
        assert "sum[" in lost.reason
        overflowing = device.run(unsaturated, full_verification=True)
        assert overflowing.status is Status.INCORRECT
        assert "inputs 'extreme'" in overflowing.reason
        assert len(device.compare([right, right], rounds=7).times_us) == 7
        assert device.run(right).status is Status.CORRECT


def test_where_inputs_decide_how_long_it_takes_each_row_has_its_own(build: Build) -> None:
    source = """
      extern "C" __global__ void run(float* y, const float* x, const int* turns, int T) {
        for (int turn = 0; turn <= turns[0]; turn++) __nanosleep(NANOSECONDS);
        const int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < T) y[i] = 2.0f * x[i];
      }
    """
    # Right for the first inputs that it meets, and for no others.
    keeps = "__device__ float kept[1024]; __device__ int full[4];" + source.replace(
        "y[i] = 2.0f * x[i];",
        "{ if (full[blockIdx.x] < 256) { kept[i] = 2.0f * x[i]; atomicAdd(full + blockIdx.x, 1); }"
        " y[i] = kept[i]; }",
    )
    sources = [source.replace("NANOSECONDS", f"{1000 * k}u") for k in (1, 2)]
    sources.append(keeps.replace("NANOSECONDS", "1000u"))
    programs = [build(one, WAIT.workload, *WAIT.launches) for one in sources]
    with closing(CudaDevice(0, WAIT.spec, {})) as device:
        compared = device.compare(programs[:2], rounds=48)
        ranked = device.rank(programs, rounds=12)
        again = device.compare(programs[:2], rounds=48)
    assert compared.faults == again.faults == ("", "")
    for rows in (compared.times_us, again.times_us):
        assert len(rows) == 24
        assert max(us for us, _ in rows) > 3 * min(us for us, _ in rows)
        ratios = [slow / fast for fast, slow in rows]
        assert 1.5 < median(ratios) < 2.5, "what inputs decide cancels in a row"
    assert len(ranked) == 12
    assert all(None not in (first, second) and third is None for first, second, third in ranked)


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
    verifier = Verifier(CudaMemory(0), definition.spec, {"ACTIVATION": "silu"})
    arena = verifier.open_arena(WORKLOAD, lay_out(definition.spec, WORKLOAD.values))
    assert arena.ipc_handle is None
    worker, right = CudaWorker(0), build(silu(), WORKLOAD, LAUNCH)
    wrong = build(silu(each="result = gate;"), WORKLOAD, LAUNCH)
    worker.attach(arena)
    verifier.prepare(WORKLOAD, "normal", 1)
    worker.run_once(right)
    assert verifier.check().passed
    assert worker.time(right, SEARCH).times_us
    assert verifier.check().passed
    verifier.poison()
    worker.run_once(wrong)
    assert not verifier.check().passed
    worker.detach()
    verifier.close_arena()
