"""A block reduction with a tail guard, and what is needed to break it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from host_programs import cached_compiler

from tuner.compiler.host import HostCompiler
from tuner.device.base import DeviceInfo
from tuner.model.config import Config
from tuner.mutation.subject import MutationSubject
from tuner.space.load import load_definition

SOURCE = """\
// Each block sums its part of a row; the last one has fewer elements than threads.
extern "C" __global__ void row_sums(float* out, const float* in, int N) {
  __shared__ float parts[64];
  const int row = blockIdx.x;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < N; i += 64) {
    sum += in[row * N + i];
  }
  parts[threadIdx.x] = sum;
  __syncthreads();
  for (int half = 32; half > 0; half /= 2) {
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[row] = parts[0];
}

__global__ void unused(float* out) { out[threadIdx.x] = 1.0f; }

int on_the_host(int n) { return n + 1; }
"""
TEMPLATE = """\
constexpr int kThreads = @{ threads }@;

extern "C" __global__ void row_sums(float* out, const float* in, int N) {
  __shared__ float parts[kThreads];
  float sum = 0.0f;
  constexpr int kWidth = @{ N }@;
  for (int i = threadIdx.x; i < kWidth; i += kThreads) sum += in[blockIdx.x * N + i];
  parts[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int k = 1; k < kThreads; ++k) sum += parts[k];
  out[blockIdx.x] = sum;
}
"""
REFERENCE = """\
def inputs(xp, rng, axes, fill):
    scale = {"x3": 3.0, "x0.01": 0.01, "negated": -1.0}.get(fill, 1.0)
    return {"in": scale * rng.standard_normal((axes["T"], axes["N"]))}


def reference(xp, inputs, axes):
    return {"out": inputs["in"].sum(axis=1)}
"""
SPACE = """\
version: 1
kernel: row_sums
source: row_sums.cu
reference: row_sums.py
template: row_sums.cu.j2
axes: [T, N]
arguments:
  - {name: out, dtype: float32, shape: [T], role: output}
  - {name: in, dtype: float32, shape: [T, N]}
  - {name: N, dtype: int32, value: N}
workloads: {tuned: [{T: 4, N: 256}, {T: 1024, N: 8192}], held_out: [{T: 3, N: 100}]}
min_bytes: T * N * 4
baseline: {launch: [{kernel: row_sums, grid: [T], block: [64]}]}
parameters: {threads: [32, 64]}
default: {threads: 64}
launch: [{kernel: row_sums, grid: [T], block: [threads]}]
tolerance: {out: {relative: 1.0e-4, absolute: 1.0e-5}}
"""
INFO = DeviceInfo("host CPU", "sm_90a", (9, 0), 2, 1 << 20, 10.0, recorded=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that holds the kernel's four files."""
    files = {"cu": SOURCE, "cu.j2": TEMPLATE, "py": REFERENCE, "yaml": SPACE}
    for ending, text in files.items():
        (tmp_path / f"row_sums.{ending}").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def make_subject(folder: Path) -> Callable[..., MutationSubject]:
    """Make a subject of the folder's kernel: the baseline, or the template at a config."""

    def make(**config: int) -> MutationSubject:
        definition = load_definition(folder / "row_sums.yaml")
        chosen = Config.of(config) if config else None
        return MutationSubject(definition.spec, definition.space, {}, INFO, chosen)

    return make


@pytest.fixture(scope="session")
def host_compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostCompiler]:
    with cached_compiler(tmp_path_factory) as compiler:
        yield compiler
