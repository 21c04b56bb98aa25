"""What a draft proposes by itself is right on the CPU, for every value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from slow import mostly_slow

from tuner.cli import cli

SOURCE = """\
__global__ void gate(float* out, const float* x, const float* g, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float v = x[i];
  out[i] = v * g[i];
}
__global__ void weigh(float* out, const float* x, const float* w, int cols) {
  const float* row = x + blockIdx.x * cols;
  __shared__ float most[32];
  float own = 0.0f;
  for (int c = threadIdx.x; c < cols; c += blockDim.x) own = fmaxf(own, fabsf(row[c]));
  for (int step = 16; step > 0; step /= 2) own = fmaxf(own, __shfl_xor_sync(~0u, own, step));
  if (threadIdx.x % 32 == 0) most[threadIdx.x / 32] = own;
  __syncthreads();
  own = 1.0f;
  for (int warp = 0; warp < blockDim.x / 32; ++warp) own = fmaxf(own, most[warp]);
  for (int c = threadIdx.x; c < cols; c += blockDim.x) {
    float v = row[c] / own;
    out[blockIdx.x * cols + c] = v * w[c];
  }
}
int main() {
  const int n = 8192 + 64, rows = 5, cols = 264;
  float *x, *y, *z, *w, *out;
  cudaMalloc(&x, n * sizeof(float));
  gate<<<(n + 255) / 256, 256>>>(z, x, x, n);
  cudaMalloc(&y, rows * cols * sizeof(float));
  cudaMalloc(&out, rows * cols * sizeof(float));
  weigh<<<rows, 128>>>(out, y, w, cols);
}
"""
REFERENCES = {
    "gate": "return {'out': inputs['x'].astype('float64') * inputs['g']}",
    "weigh": "x = inputs['x'].astype('float64')\n"
    "    return {'out': x / xp.maximum(abs(x).max(1, keepdims=True), 1) * inputs['w']}",
}


PARAMETERS = {
    "gate": {"block_size", "min_blocks", "vec", "streaming", "items"},
    "weigh": {"block_size", "min_blocks", "vec", "streaming", "unroll"},
}
CASES = [(kernel, trials) for trials in (4, 12) for kernel in PARAMETERS]


@pytest.mark.parametrize(("kernel", "trials"), mostly_slow(CASES, CASES[:1], []))
def test_every_config_of_a_draft_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str, trials: int
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    Path("two.cu").write_text(SOURCE)
    body = f"def reference(xp, inputs, axes):\n    {REFERENCES[kernel]}\n"
    Path("two.py").write_text(body)
    words = ["two.cu", "--kernel", kernel, "--device", "host", "--no-mutants"]
    words += ["--trials", str(trials)]
    done = CliRunner().invoke(cli, [*words, "--json", "--quiet"], prog_name="tune")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert set(found["workloads"][0]["config"]) == PARAMETERS[kernel]
    bad = ("incorrect", "launch", "compile", "timeout")
    assert found["trials"]["correct"] >= trials - 2
    assert [found["trials"][status] for status in bad] == [0, 0, 0, 0]
