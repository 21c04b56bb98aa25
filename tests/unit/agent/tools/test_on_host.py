"""Tools with kernels that really run, on the CPU."""

from __future__ import annotations

import pytest
from host_programs import cached_compiler

from tuner.app.check import UnavailableDevice, target_info
from tuner.device.cpu.device import HostDevice
from tuner.tuning.evaluator import Candidate, Evaluator


@pytest.fixture(scope="module")
def host_compiler(tmp_path_factory):
    with cached_compiler(tmp_path_factory) as host:
        yield host


@pytest.fixture
def host_tools(make_bench, make_plan, host_compiler):
    device = HostDevice(make_plan().spec, {}, run_timeout_s=1.0)

    def make(**options):
        return make_bench(device=device, own_compiler=host_compiler, **options).opened(1, None)

    yield make
    device.close()


def test_a_right_draft_is_verified_with_all_fills(host_tools, draft):
    text = host_tools().call("verify", draft)
    assert "correct with the inputs" in text
    assert "zeros" in text


def test_a_wrong_config_is_told_by_its_numbers(host_tools, draft):
    text = host_tools().call("verify", {**draft, "config": {"factor": "3.0f"}})
    assert "wrong: with inputs" in text
    assert "expected" in text


@pytest.mark.parametrize(
    ("spoiled", "said"),
    [
        ("while (out != nullptr) {}", "timeout: thread (0,0,0) of block"),
        ("*(volatile int*)0 = 0;", "launch:"),
        ("out[N] = 0.0f;", "incorrect"),
    ],
)
def test_a_draft_that_hangs_or_crashes_is_text_and_the_next_call_works(
    host_tools, draft, spoiled, said
):
    tools = host_tools()
    template = draft["template"].replace("if (i < N)", f"{spoiled}\n  if (i < N)")
    for tool in ("verify", "measure"):
        assert said in tools.call(tool, {**draft, "template": template})
    assert "correct" in tools.call("verify", draft)


def test_a_time_is_said_to_be_the_cpus(host_tools, draft):
    tools = host_tools()
    assert "This is the time of a CPU" in tools.call("measure", draft)
    assert "This is the time of a CPU" in tools.call("search", {**draft, "configs": 2})
    measure = next(tool for tool in tools.tools() if tool.name == "measure")
    assert "The times are a CPU's." in measure.description


def test_a_search_counts_what_is_wrong(host_tools, draft):
    text = host_tools().call("search", draft)
    assert "4 of 4 valid configs tried, 2 correct" in text
    assert "failed, 2: the first with" in text


def test_the_cpus_compiler_knows_no_registers(host_tools, draft):
    text = host_tools().call("compile", draft)
    assert "compiled for a CPU" in text
    assert "registers and occupancy are not known" in text


def test_the_compilers_report_may_be_that_of_a_gpu(host_tools, draft, compiler):
    def reporting(plan):
        candidate = Candidate(plan.candidate, plan.space, plan.template)
        gpu = UnavailableDevice(target_info("sm_90a"))
        return Evaluator(plan.spec, candidate, plan.config.operators, compiler, gpu)

    text = host_tools(reporting=reporting).call("compile", draft)
    assert "compiled for sm_90a" in text
    assert "- registers: " in text


def test_a_file_outside_cannot_be_included_by_a_draft(host_tools, draft, tmp_path):
    (tmp_path / "secret.h").write_text("constexpr int secret = nothing;\n")
    template = f'#include "{tmp_path}/secret.h"\n{draft["template"]}'
    text = host_tools().call("compile", {**draft, "template": template})
    assert "absolute path" in text
    assert "nothing" not in text
