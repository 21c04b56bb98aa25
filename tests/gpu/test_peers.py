"""Peers on a GPU: PyTorch on the timed buffers, verified and captured as kernels are."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from silu_kernels import WORKLOAD

from tuner.device.base import Program
from tuner.device.cuda.device import CudaDevice
from tuner.device.reference import peer_program
from tuner.model.kernel import KernelSpec, Workload
from tuner.model.trial import Status
from tuner.space.load import Definition

Build = Callable[..., Program]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"
)
OPERATORS = {"ACTIVATION": "silu"}
LARGER = Workload.of({"T": 300, "D": 4096})
PEERS = """

from functools import cache as _cache


def silu_of(tensors):
    import torch

    gate, up = tensors["input"].float().chunk(2, dim=1)
    return torch.nn.functional.silu(gate) * up


def returning(tensors, axes, ACTIVATION):
    assert tensors["input"].shape == (axes["T"], 2 * axes["D"])
    return {"out": silu_of(tensors).bfloat16()}


def in_place(tensors, axes, ACTIVATION):
    tensors["out"].copy_(silu_of(tensors))


@_cache
def compiled_silu():
    import torch

    def plain(x):
        gate, up = x.float().chunk(2, dim=1)
        return (torch.nn.functional.silu(gate) * up).bfloat16()

    return torch.compile(plain, dynamic=False)


def compiled(tensors, axes, ACTIVATION):
    return {"out": compiled_silu()(tensors["input"])}


def wrong(tensors, axes, ACTIVATION):
    return {"out": (silu_of(tensors) * 1.5).bfloat16()}


def other_type(tensors, axes, ACTIVATION):
    return {"out": silu_of(tensors)}


def absent(tensors, axes, ACTIVATION):
    import a_package_that_is_not_installed


def reading(tensors, axes, ACTIVATION):
    out = silu_of(tensors).bfloat16()
    if float(out.float().abs().max()) < 0:
        raise ValueError("a read by the host, which no graph can hold")
    return {"out": out}


def crashing(tensors, axes, ACTIVATION):
    import torch

    index = torch.full((1,), 1 << 40, device="cuda", dtype=torch.int64)
    return {"out": tensors["input"].reshape(-1)[index].expand(tensors["out"].shape).contiguous()}


def spoiling(tensors, axes, ACTIVATION):
    out = silu_of(tensors).bfloat16()
    tensors["input"].zero_()
    return {"out": out}


peers = {
    "returning": returning, "in_place": in_place, "compiled": compiled, "wrong": wrong,
    "other_type": other_type, "absent": absent, "reading": reading, "crashing": crashing,
    "spoiling": spoiling,
}
"""


@pytest.fixture(scope="module")
def spec(definition: Definition, tmp_path_factory: pytest.TempPathFactory) -> KernelSpec:
    """The kernel's own reference with the peers of this file."""
    path = tmp_path_factory.mktemp("peers") / "silu_and_mul.py"
    path.write_text(definition.spec.reference.read_text() + PEERS)
    return replace(definition.spec, reference=path)


@pytest.fixture(scope="module")
def device(spec: KernelSpec) -> Iterator[CudaDevice]:
    device = CudaDevice(0, spec, OPERATORS)
    yield device
    device.close()


@pytest.fixture
def peer(spec: KernelSpec) -> Callable[..., Program]:
    return lambda name, workload=WORKLOAD: peer_program(name, spec.reference, workload)


@pytest.mark.parametrize("name", ["returning", "in_place", "compiled"])
def test_a_right_one_is_verified_with_every_fill_and_timed(
    device: CudaDevice, peer: Callable[..., Program], name: str
) -> None:
    outcome = device.verify(peer(name))
    assert outcome.status is Status.CORRECT, outcome.reason
    assert outcome.correctness is not None
    assert {"normal", "extreme", "negated"} <= set(outcome.correctness.input_kinds)
    timed = device.run(peer(name), full_verification=True)
    assert timed.status is Status.CORRECT, timed.reason
    assert timed.measurement is not None
    assert timed.measurement.median_us > 0.1


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("wrong", Status.INCORRECT, "out["),
        ("other_type", Status.INCORRECT, "returns 'out' as torch.float32"),
        ("absent", Status.NOT_RECORDED, "No module named 'a_package_that_is_not_installed'"),
        ("spoiling", Status.INCORRECT, "changed its input 'input'"),
        ("crashing", Status.LAUNCH, ""),
        ("unknown", Status.LAUNCH, "has no peer named 'unknown'"),
    ],
)
def test_one_that_fails_has_a_status_and_costs_nobody_else(
    device: CudaDevice,
    peer: Callable[..., Program],
    honest: Program,
    name: str,
    status: Status,
    reason: str,
) -> None:
    outcome = device.verify(peer(name))
    assert outcome.status is status, outcome.reason
    assert reason in outcome.reason
    assert device.run(honest).status is Status.CORRECT
    assert device.verify(peer("in_place")).status is Status.CORRECT


def test_one_that_reads_on_the_host_cannot_be_captured(
    device: CudaDevice, peer: Callable[..., Program], honest: Program
) -> None:
    outcome = device.verify(peer("reading"))
    assert outcome.status is Status.LAUNCH
    assert "silu_and_mul.py:" in outcome.reason
    assert device.run(honest).status is Status.CORRECT


def test_they_are_compared_with_a_kernel_in_the_same_rounds(
    device: CudaDevice, peer: Callable[..., Program], honest: Program
) -> None:
    assert device.run(honest).status is Status.CORRECT
    peers = [peer(name) for name in ("returning", "in_place", "compiled")]
    rounds = device.compare([honest, *peers, honest], rounds=11)
    assert rounds.paired
    assert rounds.faults == ("",) * 5
    assert rounds.isolated_us == (None,) * 5
    columns = [statistics.median(column) for column in zip(*rounds.times_us, strict=True)]
    assert columns[4] == pytest.approx(columns[0], rel=0.1), "they don't disturb a kernel"
    assert columns[3] < columns[1], "compiled, one kernel takes the place of several"


def test_one_that_is_wrong_is_found_out_in_a_comparison_too(
    device: CudaDevice, peer: Callable[..., Program], honest: Program
) -> None:
    assert device.run(honest).status is Status.CORRECT
    rounds = device.compare([honest, peer("wrong"), peer("in_place")], rounds=3)
    assert rounds.faults[0] == rounds.faults[2] == ""
    assert "out[" in rounds.faults[1]


def test_a_kernel_is_timed_alike_before_and_after(
    device: CudaDevice, peer: Callable[..., Program], honest: Program
) -> None:
    def median_us() -> float:
        outcome = device.run(honest, full_verification=True)
        assert outcome.measurement is not None, outcome.reason
        return outcome.measurement.median_us

    before = median_us()
    assert device.verify(peer("compiled")).status is Status.CORRECT
    assert median_us() == pytest.approx(before, rel=0.05)


def test_workloads_may_alternate(device: CudaDevice, peer: Callable[..., Program]) -> None:
    for workload in (WORKLOAD, LARGER, WORKLOAD):
        for name in ("returning", "compiled"):
            outcome = device.verify(peer(name, workload))
            assert outcome.status is Status.CORRECT, (workload, name, outcome.reason)
