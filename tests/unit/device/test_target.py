"""What a kernel is compiled for: the options, and the key that a recording knows a program by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.simulated_device import H200_LIKE
from tuner.app.check import target_info
from tuner.compiler.base import CompileResult
from tuner.device.base import CompileTarget


@pytest.fixture
def target(make_plan) -> CompileTarget:
    spec = replace(make_plan().spec, compile_options=("-O1",))
    return CompileTarget(spec, {"MODE": "fast"}, target_info("sm_90a"))


@pytest.fixture
def launches(target):
    workload = target.spec.tuned[0]
    return target.spec.baseline_launches(target.names(workload))


def test_a_request_names_each_kernel_once_and_the_operators_choices(target, launches):
    request = target.request("source", (*launches, *launches))
    assert request.kernels == ("scale",)
    assert request.options == ("-O1", "-DMODE=fast")
    assert request.architecture == "sm_90a"


def test_the_key_is_known_before_a_source_is_compiled(target, launches):
    workload = target.spec.tuned[0]
    result = CompileResult(cubin=b"\x7fELF", lowered={"scale": "scale"})
    program = target.program("int x;", workload, launches, result)
    assert (program.cubin, program.lowered) == (result.cubin, result.lowered)
    assert program.key == target.key("int x; // said", workload, launches)


@pytest.mark.parametrize(
    "changes",
    [{"operators": {"MODE": "exact"}}, {"device": target_info("sm_80")}],
    ids=["an operator's choice", "the architecture"],
)
def test_the_key_tells_what_decides_the_machine_code_apart(target, launches, changes):
    workload = target.spec.tuned[0]
    other = replace(target, **changes)
    assert other.key("int x;", workload, launches) != target.key("int x;", workload, launches)


@pytest.mark.parametrize(
    ("time_us", "hot", "on_cpu", "too_fast"),
    [
        (250.0, False, False, False),
        (213.0, False, False, False),
        (212.0, False, False, True),
        (4.0, True, False, False),
        (3.0, True, False, True),
        (0.3, True, True, False),
        (0.2, True, True, True),
    ],
    ids=[
        "as fast as memory",
        "by 15 %",
        "by more",
        "a cache",
        "no cache",
        "of 16 cores",
        "nor these",
    ],
)
def test_nothing_is_faster_than_physics(
    time_us: float, hot: bool, on_cpu: bool, too_fast: bool
) -> None:
    info = replace(H200_LIKE, streaming_gbps=4000.0, on_cpu=on_cpu, multiprocessors=16)
    assert info.is_too_fast(time_us, 1e9, hot=hot) is too_fast
    assert not replace(info, streaming_gbps=0.0).is_too_fast(time_us, 1e9, hot=hot)
