"""A reference that is wrong is found by a run of the baseline on the CPU, however it is wrong."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tuner.app.check import target_info
from tuner.app.proofs import Proof
from tuner.device.verify.reference_process import ReferenceProcess
from tuner.extensions.cpu import proof as proving
from tuner.extensions.cpu.proof import prove
from tuner.space.load import load_definition

GEMM = """extern "C" __global__ void gemm(float* c, const float* a, const float* b, int M, int N,
                                int K) {
  const int n = blockIdx.x * blockDim.x + threadIdx.x, m = blockIdx.y;
  if (n >= N) return;
  float sum = 0.0f;
  for (int k = 0; k < K; ++k) sum += a[m * K + k] * b[k * N + n];
  c[m * N + n] = 1.5f * sum + 1.0f;
}
"""
GEMM_SPACE = """version: 1
kernel: gemm
source: gemm.cu
reference: gemm.py
template: gemm.cu.j2
axes: [M, N, K]
arguments:
  - {name: c, dtype: float32, shape: [M, N], role: output}
  - {name: a, dtype: float32, shape: [M, K], extreme: {reason: products overflow}}
  - {name: b, dtype: float32, shape: [K, N], extreme: {reason: products overflow}}
  - {name: M, dtype: int32, value: M}
  - {name: N, dtype: int32, value: N}
  - {name: K, dtype: int32, value: K}
workloads: {tuned: [{M: %d, N: %d, K: %d}]}
baseline: {launch: [{kernel: gemm, grid: [ceil_div(N, 64), M], block: [64]}]}
parameters: {block_size: [64]}
launch: [{kernel: gemm, grid: [ceil_div(N, block_size), M], block: [block_size]}]
tolerance: {c: {relative: 1.0e-4, absolute: 1.0e-3}}
"""
NORM = """// y = (x - mean of the row) * scale + shift
extern "C" __global__ void centre(float* y, const float* x, const float* scale, const float* shift,
                                  int K) {
  const float* row = x + blockIdx.x * K;
  float sum = 0.0f;
  for (int k = 0; k < K; ++k) sum += row[k];
  for (int k = threadIdx.x; k < K; k += blockDim.x)
    y[blockIdx.x * K + k] = (row[k] - sum / K) * scale[k] + shift[k];
}
"""
NORM_SPACE = """version: 1
kernel: centre
source: centre.cu
reference: centre.py
template: centre.cu.j2
axes: [T, K]
arguments:
  - {name: y, dtype: float32, shape: [T, K], role: output}
  - {name: x, dtype: float32, shape: [T, K], extreme: {reason: numbers are summed}}
  - {name: scale, dtype: float32, shape: [K], extreme: {reason: numbers are summed}}
  - {name: shift, dtype: float32, shape: [K], extreme: {reason: numbers are summed}}
  - {name: K, dtype: int32, value: K}
workloads: {tuned: [{T: 12, K: 12}]}
baseline: {launch: [{kernel: centre, grid: [T], block: [32]}]}
parameters: {block_size: [32]}
launch: [{kernel: centre, grid: [T], block: [block_size]}]
tolerance: {y: {relative: 1.0e-4, absolute: 1.0e-4}}
"""
KERNELS = {
    "gemm": (GEMM, GEMM_SPACE % (24, 24, 24), "1.5 * (a @ b) + 1"),
    "centre": (NORM, NORM_SPACE, "(x - x.mean(axis=1, keepdims=True)) * scale + shift"),
}
READ = {"gemm": "a, b = inputs['a'], inputs['b']"}
READ["centre"] = "x, scale, shift = inputs['x'], inputs['scale'], inputs['shift']"
OUTPUT = {"gemm": "c", "centre": "y"}
WRONG = {
    "gemm": {
        "factor": "a @ b + 1",
        "offset": "1.5 * (a @ b)",
        "transposed": "1.5 * (a @ b).T + 1",
        "an input transposed": "1.5 * (a @ b.T) + 1",
        "wrong axis": "1.5 * (a * b.sum(axis=0)) + 1",
        "wrong dtype": "(1.5 * (a @ b) + 1).astype(xp.int32).astype(xp.float64)",
        "half precision": "(1.5 * (a @ b) + 1).astype(xp.float16).astype(xp.float64)",
        "off by one element": "xp.roll(1.5 * (a @ b) + 1, 1, axis=1)",
        "swapped inputs": "1.5 * (b @ a) + 1",
        "missing term": "1.5 * (a[:, 1:] @ b[1:]) + 1",
        "absolute value": "1.5 * xp.abs(a @ b) + 1",
        "cut at zero": "xp.maximum(1.5 * (a @ b) + 1, 0)",
    },
    "centre": {
        "factor": "0.99 * ((x - x.mean(axis=1, keepdims=True)) * scale + shift)",
        "offset": "(x - x.mean(axis=1, keepdims=True)) * scale + shift + 0.01",
        "transposed": "((x - x.mean(axis=1, keepdims=True)) * scale + shift).T",
        "wrong axis": "(x - x.mean(axis=0, keepdims=True)) * scale + shift",
        "scale by rows": "(x - x.mean(axis=1, keepdims=True)) * scale[:, None] + shift",
        "wrong dtype": "xp.rint((x - x.mean(axis=1, keepdims=True)) * scale + shift)",
        "off by one element": "(xp.roll(x, 1) - x.mean(axis=1, keepdims=True)) * scale + shift",
        "swapped inputs": "(x - x.mean(axis=1, keepdims=True)) * shift + scale",
        "missing term": "(x - x.mean(axis=1, keepdims=True)) * scale",
        "mean of K - 1": "(x - x.sum(axis=1, keepdims=True) / (axes['K'] - 1)) * scale + shift",
        "absolute value": "(x - x.mean(axis=1, keepdims=True)) * scale + xp.abs(shift)",
    },
}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proving, "BUDGET_S", 300.0)


def proofs(folder: Path, name: str, gives: str, **changes: str) -> tuple[Proof, ...]:
    source, space, _ = KERNELS[name]
    for old, new in changes.items():
        assert old in space or old in source
        source, space = source.replace(old, new), space.replace(old, new)
    body = f"    {READ[name]}\n    return {{'{OUTPUT[name]}': {gives}}}\n"
    reference = f"def reference(xp, inputs, axes):\n{body}"
    files = {"cu": source, "cu.j2": source, "yaml": space, "py": reference}
    for suffix, text in files.items():
        (folder / f"{name}.{suffix}").write_text(text, encoding="utf-8")
    spec = load_definition(folder / f"{name}.yaml").spec
    with closing(ReferenceProcess(spec, {})) as reference:
        return prove(spec, {}, target_info("sm_90a"), reference)


@pytest.mark.parametrize("name", KERNELS)
def test_a_right_reference_agrees_on_every_kind_of_input(tmp_path: Path, name: str) -> None:
    (proof,) = proofs(tmp_path, name, KERNELS[name][2])
    assert (proof.mistakes, proof.open_because, proof.smaller) == ((), "", False)
    assert proof.compared == ("normal", "x3", "x0.01", "negated", "zeros")


@pytest.mark.parametrize(("name", "how"), [(name, how) for name in WRONG for how in WRONG[name]])
def test_a_wrong_reference_is_found(tmp_path: Path, name: str, how: str) -> None:
    (proof,) = proofs(tmp_path, name, WRONG[name][how])
    (mistake,) = proof.mistakes
    output = OUTPUT[name]
    assert mistake.text.startswith(f"`{output}` is not what the reference says with inputs '")
    assert ", expected " in mistake.text
    assert f"mend {name}.py, {name}.cu or its `tolerance`" in mistake.text
    assert (mistake.argument, mistake.line) == (output, 8)


@pytest.mark.parametrize("gives", ["1.5 * (a @ b) + 1", "a @ b"])
def test_sizes_are_cut_until_the_reference_can_be_compared(tmp_path: Path, gives: str) -> None:
    sizes = {"{M: 24, N: 24, K: 24}": "{M: 4096, N: 4096, K: 4096}"}
    (proof,) = proofs(tmp_path, "gemm", gives, **sizes)
    assert (str(proof.workload), proof.smaller) == ("M=128 N=64 K=256", True)
    assert (bool(proof.mistakes), bool(proof.compared)) == (gives == "a @ b", gives != "a @ b")


def test_sizes_that_are_macros_are_cut_with_the_axis(tmp_path: Path) -> None:
    macro = "#define K_DIM 8192\nextern"
    changes = {"extern": macro, "int N,\n                                int K)": "int N)"}
    changes |= {"k < K;": "k < K_DIM;", "m * K + k": "m * K_DIM + k"}
    changes |= {"  - {name: K, dtype: int32, value: K}\n": ""}
    changes |= {
        "{M: 24, N: 24, K: 24}": "{M: 4096, N: 4096, K_DIM: 8192}",
        "[M, N, K]": "[M, N, K_DIM]",
    }
    changes |= {"[M, K]": "[M, K_DIM]", "[K, N]": "[K_DIM, N]"}
    (proof,) = proofs(tmp_path, "gemm", KERNELS["gemm"][2], **changes)
    assert (str(proof.workload), proof.mistakes) == ("M=128 N=64 K_DIM=256", ())
    assert proof.compared[0] == "normal"


def test_what_no_size_can_show_is_told_with_what_would_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proving, "RUN_TIMEOUT_S", 1.0)
    # a loop that never ends, whatever the sizes
    never = {"float sum = 0.0f;": "float sum = 0.0f; while (c[0] == c[0] || K) K = 1;"}
    found = proofs(tmp_path, "gemm", KERNELS["gemm"][2], **never)
    assert not any(one.compared or one.mistakes for one in found)
    assert "(1 s)" in found[-1].open_because
    assert "among `edge_cases`" in found[-1].open_because


def test_a_kernel_that_no_cpu_runs_is_told_once_and_asks_for_no_other_sizes(tmp_path: Path) -> None:
    code = {"float sum = 0.0f;": 'float sum = 0.0f; asm volatile("wgmma.fence.sync.aligned;" ::);'}
    code |= {"{M: 24, N: 24, K: 24}": "{M: 4096, N: 4096, K: 4096}"}
    (proof,) = proofs(tmp_path, "gemm", KERNELS["gemm"][2], **code)
    assert "inline PTX" in proof.open_because
    assert "edge_cases" not in proof.open_because
