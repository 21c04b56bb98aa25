"""The tools of a round: drafts that are tried, on a simulated device and on the CPU."""

from __future__ import annotations

import pytest
from host_programs import cached_compiler

from tests.support.simulated_device import SimulatedDevice
from tuner.analysis.sass import find_nvdisasm
from tuner.app.check import UnavailableDevice, target_info
from tuner.extensions.agents.base import AgentAnswer
from tuner.extensions.agents.gate import read_draft
from tuner.extensions.cpu.device import HostDevice
from tuner.model.errors import SessionError, WorkerError
from tuner.model.trial import INITIAL, Status
from tuner.session.events import Event
from tuner.tuning.evaluator import Candidate, Evaluator


def by_block(program) -> float:
    return 10.0 + program.launches[0].threads / 64


def test_a_candidate_renders_with_its_default_and_numbered_lines(make_tools):
    text = make_tools().call("render", {})
    assert "`initial`, block=128 items=1, on N=1000" in text
    assert "    1| constexpr int kBlock = 128;" in text


def test_some_lines_are_shown_with_how_many_there_are(make_tools):
    text = make_tools().call("render", {"first_line": 2, "last_line": 3})
    assert text.splitlines()[1:] == [
        "    2| constexpr int kItems = 1;",
        '    3| extern "C" __global__ void scale(float* out, const float* in, int N) {',
        "[lines 2 to 3 of 8]",
    ]


def test_a_template_alone_is_tried_with_the_space_of_its_candidate(make_tools):
    tools = make_tools()
    template = tools.call("read_source", {"path": "template"})
    bare = "\n".join(line.partition("| ")[2] for line in template.splitlines()) + "\n"
    text = tools.call("compile", {"template": bare.replace("2.0f", "4.0f / 2.0f")})
    assert "the draft, block=128 items=1, on N=1000, compiled for sm_90a" in text


def test_compiling_tells_registers_occupancy_and_limiter_of_each_kernel(make_tools, draft):
    text = make_tools().call("compile", {**draft, "config": {"block": 128}})
    assert "within all limits" in text
    assert "kernel scale, grid 8x1x1, block 128x1x1" in text
    assert "a thread, no spills" in text
    assert "occupancy: 100%, 16 blocks a multiprocessor, limited by warps" in text


@pytest.mark.skipif(find_nvdisasm() is None, reason="there is no disassembler")
def test_compiling_sums_up_the_machine_code(make_tools, draft):
    text = make_tools().call("compile", draft)
    assert "machine code of scale:" in text
    assert "- global loads: 1 of 32 bits" in text
    wide = draft["template"].replace("out[i] =", "((float4*)out)[i] = ((float4*)in)[i], out[i] =")
    assert "1 of 128 bits" in make_tools().call("compile", {**draft, "template": wide})


def test_a_compile_error_comes_with_the_line_of_the_template(make_tools, draft):
    wrong = draft["template"].replace("in[i]", "inn[i]")
    text = make_tools().call("compile", {**draft, "template": wrong})
    assert 'template.cu.j2:4: error: identifier "inn" is undefined' in text
    assert "    4 |   if (i < N) out[i] = @{ factor }@ * inn[i];" in text


def test_a_config_over_a_limit_is_shown_with_what_it_uses(make_tools, draft):
    limited = draft["space"] + "limits: {max_registers: 4}\n"
    text = make_tools().call("compile", {**draft, "space": limited})
    assert "over a limit:" in text
    assert "`max_registers: 4`" in text
    assert "- occupancy:" in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("float* out, const", "const"), "3 arguments, but kernel 'scale'"),
        (("int N)", "int N, int M)"), "has 4 parameters"),
        (("void scale(", "void other("), "no __global__ function named 'scale'"),
        (("@{ factor }@", "@{ faktor }@"), "`faktor` is not declared"),
        (("@{ factor }@", "@{ factor"), "template.cu.j2:5"),
    ],
)
@pytest.mark.parametrize("tool", ["compile", "verify", "measure", "search", "profile"])
def test_no_tool_runs_a_draft_that_does_not_fit(make_tools, draft, tool, change, said):
    device = SimulatedDevice(by_block)
    tools = make_tools(device=device)
    before = len(device.ran)
    assert said in tools.call(tool, {**draft, "template": draft["template"].replace(*change)})
    assert len(device.ran) == before


def test_what_is_the_users_cannot_be_changed_by_a_draft(make_tools, draft):
    for section, said in (
        ("workloads: {tuned: [{N: 5}]}\n", "`workloads` has been changed"),
        ("surprise: 1\n", "`surprise` is not in the user's file"),
    ):
        assert said in make_tools().call("verify", {**draft, "space": draft["space"] + section})


def test_a_wrong_config_is_told_why_and_not_profiled(make_tools, draft):
    tools = make_tools(
        lambda program: 10.0 if program.launches[0].threads > 64 else Status.INCORRECT
    )
    assert "incorrect: simulated: incorrect" in tools.call("verify", draft)
    assert "not profiled: incorrect" in tools.call("profile", draft)
    assert "correct" in tools.call("verify", {**draft, "config": {"block": 128}})


def test_a_time_stands_beside_the_baselines_with_how_it_was_taken(make_tools, draft):
    text = make_tools(by_block).call("measure", {**draft, "workload": "N=100000"})
    assert "on N=100000: 11 us; the baseline 12 us: 1.09x" in text
    assert "median of 5 times of 20 calls each" in text
    assert "on simulated H200" in text


def test_held_out_workloads_are_verified_and_never_timed(make_tools):
    tools = make_tools()
    assert "correct" in tools.call("verify", {"workload": "N=3000"})
    assert "N=3000 is not tuned" in tools.call("measure", {"workload": "N=3000"})
    assert "N=3000 is not tuned" in tools.call("search", {"workload": "N=3000"})


def test_no_workload_is_larger_than_the_users(make_tools):
    tools = make_tools()
    assert "correct" in tools.call("verify", {"workload": "N=7"})
    text = tools.call("verify", {"workload": "N=100001"})
    assert "N=100001 takes 800008 bytes, over the 800000 of N=100000" in text


def test_a_profile_has_its_degree_metrics_and_findings(make_tools, draft):
    text = make_tools().call("profile", draft)
    assert "from timing" in text
    assert "(registers per thread)" in text
    assert "The grid has 16 blocks for 132 multiprocessors" in text


def test_a_search_lists_the_best_and_the_failed(make_tools, draft):
    def answer(program):
        return Status.INCORRECT if program.launches[0].threads == 256 else by_block(program)

    text = make_tools(answer).call("search", {"configs": 16, "searcher": "random"})
    rows = [line for line in text.splitlines() if line.startswith("- ")]
    assert "`initial` on N=1000: 16 of 19 valid configs tried" in text
    assert len(rows) == 5
    assert rows[0].startswith("- 10.5 us, ")
    assert "block=32" in rows[0]
    assert "incorrect: simulated: incorrect" in text


@pytest.mark.parametrize("searcher", ["optuna", "random"])
def test_the_same_search_tries_the_same_configs(make_bench, searcher):
    texts = {
        make_bench(by_block)
        .open_round(1, None)
        .call("search", {"configs": 6, "searcher": searcher})
        for _ in range(2)
    }
    assert len(texts) == 1


@pytest.mark.parametrize("searcher", ["optuna", "random"])
def test_nothing_that_is_tried_is_recorded(make_bench, draft, searcher):
    bench = make_bench(by_block)
    tools = bench.open_round(1, None)
    tools.call("search", {**draft, "searcher": searcher})
    tools.call("search", {"searcher": searcher})
    tools.call("measure", {})
    tools.call("profile", {})
    session = bench.session
    assert session.trials(stage=None) == []
    assert session.events(Event) == []
    assert session.checks() == []
    assert [one.name for one in session.candidates()] == [INITIAL]
    assert not (session.directory / "optuna.journal").exists()


def test_the_configs_of_a_round_run_out(make_tools):
    tools = make_tools(by_block)
    for _ in range(4):
        text = tools.call("search", {"configs": 1000})
        assert "16 of 19 valid configs tried" in text
        assert "[1000 were asked for, 16 could be had]" in text
    assert "the 64 configs of this round are used up" in tools.call("search", {})


def test_a_space_without_a_valid_config_says_which_constraint(make_tools, draft):
    space = draft["space"] + "constraints: [block > N // 5]\n"
    text = make_tools().call("search", {**draft, "space": space})
    assert "no config satisfies `block > N // 5`" in text


def test_drafts_are_kept_by_the_number_of_their_call(make_bench, draft):
    bench = make_bench()
    tools = bench.open_round(3, None)
    tools.call("read_notes", {})
    tools.call("compile", draft)
    folder = bench.session.directory / "rounds" / "03"
    assert (folder / "tool-2" / "template.cu.j2").read_text() == draft["template"]
    again = bench.open_round(3, None)
    again.call("compile", draft)
    assert sorted(one.name for one in folder.iterdir()) == ["tool-2", "tool-3"]


def test_a_later_candidate_lends_its_space_and_its_template(make_bench, draft):
    bench = make_bench()
    folder = bench.session.directory / "rounds" / "01" / "attempt-1"
    plan = read_draft(AgentAnswer(draft["template"], draft["space"]), bench.plan, folder, "r1")
    bench.candidates.add(plan)
    bench.session.add_candidate("r1", plan.template.text, plan.spec.path.read_text(), INITIAL)
    tools = bench.open_round(2, "r1")
    wanted = "block=64 factor=2.0f, on N=1000, compiled for sm_90a"
    assert f"`r1`, {wanted}" in tools.call("compile", {})
    changed = draft["template"].replace("* in[i]", "* in[i] * 1.0f")
    assert f"the draft, {wanted}" in tools.call("compile", {"template": changed})
    other = draft["space"].replace("[64, 128]", "[32, 64]")
    assert f"the draft, {wanted}" in tools.call("compile", {"space": other})
    shown = tools.call("read_source", {"path": "space"})
    whole = "\n".join(line.partition("| ")[2] for line in shown.splitlines())
    assert f"the draft, {wanted}" in tools.call("compile", {"space": whole + "\n"})


def test_a_folder_that_cannot_be_written_ends_the_session(make_bench, draft):
    bench = make_bench()
    (bench.session.directory / "rounds").write_text("in the way")
    with pytest.raises(SessionError, match="cannot write a draft"):
        bench.open_round(1, None).call("compile", draft)


def test_ctrl_c_and_dead_processes_are_not_answers(make_tools):
    def interrupted(program):
        if program.launches[0].threads == 256:
            raise KeyboardInterrupt
        if program.launches[0].threads == 512:
            raise WorkerError("the verifier died")
        return 10.0

    tools = make_tools(interrupted)
    with pytest.raises(KeyboardInterrupt):
        tools.call("verify", {"config": {"block": 256}})
    with pytest.raises(WorkerError):
        tools.call("measure", {"config": {"block": 512}})
    assert "correct" in tools.call("verify", {})


@pytest.fixture(scope="module")
def host_compiler():
    with cached_compiler() as host:
        yield host


@pytest.fixture
def host_tools(make_bench, make_plan, host_compiler):
    device = HostDevice(make_plan().spec, {}, run_timeout_s=1.0)

    def make(**options):
        return make_bench(device=device, own_compiler=host_compiler, **options).open_round(1, None)

    yield make
    device.close()


def test_a_draft_is_verified_with_all_inputs_and_a_wrong_config_told_by_its_numbers(
    host_tools, draft
):
    tools = host_tools()
    right = tools.call("verify", draft)
    assert "correct with the inputs" in right
    assert "zeros" in right
    wrong = tools.call("verify", {**draft, "config": {"factor": "3.0f"}})
    assert "incorrect: with inputs" in wrong
    assert "expected" in wrong


@pytest.mark.parametrize(
    ("spoiled", "said"),
    [
        ("while (out != nullptr) {}", "timeout: thread ("),
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
    text = tools.call("compile", draft)
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
