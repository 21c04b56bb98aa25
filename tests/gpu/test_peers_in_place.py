"""A peer that writes in place: apart from the others, for two devices on one GPU are refused."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tuner.device.cuda.device import CudaDevice
from tuner.device.peers import peer_program
from tuner.model.trial import Status
from tuner.space.load import load_definition

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"
)
SPACE = """
version: 1
kernel: accumulate
source: accumulate.cu
reference: accumulate.py
template: accumulate.cu
axes: [N]
arguments:
  - {name: total, dtype: float32, shape: [N], role: inout}
  - {name: code, dtype: float8_e4m3, shape: [N], role: output}
  - {name: x, dtype: float16, shape: [N]}
workloads: {tuned: [{N: 1000}]}
min_bytes: N * 11
baseline: {launch: [{kernel: accumulate, grid: [8], block: [128]}]}
parameters: {block: [128]}
launch: [{kernel: accumulate, grid: [8], block: [block]}]
tolerance: {total: {relative: 1.0e-5, absolute: 1.0e-5}, code: {codes: 0.01}}
"""
ACCUMULATE = """
def reference(xp, inputs, axes):
    total = inputs["total"] + inputs["x"]
    return {"total": total, "code": inputs["x"]}


def adding(tensors, axes):
    import torch

    tensors["total"].add_(tensors["x"].float())
    # To fp8 it does not saturate by itself.
    values = tensors["x"].float().clamp(-448.0, 448.0)
    return {"code": values.to(torch.float8_e4m3fn)}


peers = {"adding": adding}
"""


def test_what_is_written_in_place_starts_anew_in_every_call(tmp_path: Path) -> None:
    (tmp_path / "accumulate.py").write_text(ACCUMULATE)
    (tmp_path / "accumulate.cu").write_text(
        'extern "C" __global__ void accumulate(float* total, unsigned char* code, void* x) {}\n'
    )
    space = tmp_path / "accumulate.yaml"
    space.write_text(SPACE)
    definition = load_definition(space)
    device = CudaDevice(0, definition.spec, {})
    try:
        program = peer_program("adding", definition.spec.reference, definition.spec.tuned[0])
        outcome = device.run(program, thorough=True)
        assert outcome.status is Status.CORRECT, outcome.reason
    finally:
        device.close()
