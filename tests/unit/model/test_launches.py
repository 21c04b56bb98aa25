"""Launches that take arguments of their own, and what they are recorded by."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.app.plan import check_signature
from tuner.device.base import Program
from tuner.device.layout import lay_out
from tuner.model.errors import KernelError
from tuner.model.kernel import KernelSpec, Launch, Workload
from tuner.model.tensor_maps import TensorMap
from tuner.space.load import load_definition

SPACE = Path(__file__).parents[2] / "support" / "weighted_sum" / "weighted_sum.yaml"
WORKLOAD = Workload.of({"T": 5, "K": 1024})
LAUNCH = Launch("run", (5, 1, 1), (32, 1, 1))


@pytest.fixture(scope="module")
def spec() -> KernelSpec:
    return load_definition(SPACE).spec


def test_a_launch_takes_what_it_names_in_that_order_and_otherwise_all(spec: KernelSpec) -> None:
    second = spec.launch[1]
    assert [one.name for one in spec.taken(second)] == ["partial", "out", "T"]
    assert [spec.arguments[place].name for place in spec.places(second)] == ["partial", "out", "T"]
    assert spec.taken(LAUNCH) == spec.arguments
    layout = lay_out(spec, WORKLOAD.values)
    taken = [layout.order[place] for place in layout.places(second.arguments)]
    assert taken == ["partial", "out", ("int32", 5)]
    assert layout.places(()) == [*range(len(spec.arguments))]


def test_a_program_without_arguments_of_its_own_keeps_the_key_that_recordings_know() -> None:
    launches = [
        {
            "kernel": "run",
            "grid": [5, 1, 1],
            "block": [32, 1, 1],
            "shared_bytes": 0,
            "cluster": None,
            "pdl": False,
        }
    ]
    content = json.dumps(["source", WORKLOAD.key, launches], sort_keys=True)
    known = hashlib.sha256(content.encode()).hexdigest()[:24]
    assert Program("source", WORKLOAD, (LAUNCH,)).key == known
    one = TensorMap("x", "float32", 4, (5, 1024), (4096,), (8, 32), 128)
    for other in (replace(LAUNCH, arguments=("out", "x")), replace(LAUNCH, maps=(one,))):
        assert Program("source", WORKLOAD, (other,)).key != known


def test_each_launch_is_compared_with_its_own_kernels_parameters(spec: KernelSpec) -> None:
    check_signature(spec)
    (launch,) = spec.baseline
    wrong = replace(launch, arguments=("out", "w", "x", "K"))
    with pytest.raises(KernelError, match="another order") as caught:
        check_signature(replace(spec, baseline=(wrong,)))
    assert "out, x, w, K" in str(caught.value.remedy)
    with pytest.raises(KernelError, match="7 arguments, but kernel 'weighted_sum'"):
        check_signature(replace(spec, baseline=(replace(launch, arguments=()),)))
