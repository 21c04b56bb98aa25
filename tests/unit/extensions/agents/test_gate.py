"""The gate of a new candidate: attacks on it, and mistakes that must come back as words."""

from __future__ import annotations

from pathlib import Path

import pytest
from callable_project import KERNEL, callable_project
from callable_project import SPACE as PYTHON

from tests.support.simulated_device import SimulatedDevice
from tuner.analysis.sass import find_nvdisasm
from tuner.app.plan import new_plan
from tuner.device.base import Outcome
from tuner.extensions.agents.base import AgentAnswer
from tuner.extensions.agents.gate import RefusedError, read_draft, validate_candidate
from tuner.model.trial import Status
from tuner.tuning.evaluator import Candidates

TEMPLATE = """\
extern "C" __global__ void scale(float* out, const float* in, int N) {
  const int i = blockIdx.x * @{ threads }@ + threadIdx.x;
  if (i < N) out[i] = in[i] + in[i];
}
"""
SPACE = """\
parameters: {threads: [64, 128]}
default: {threads: 128}
launch: [{kernel: scale, grid: ["ceil_div(N, threads)"], block: [threads]}]
"""
INDEX = "blockIdx.x * @{ threads }@"


@pytest.fixture
def device():
    return SimulatedDevice(lambda program: 10.0)


@pytest.fixture
def gate(make_plan, compiler, device, tmp_path):
    def judge(template: str = TEMPLATE, space: str = SPACE, boundary=(), verify: bool = False):
        plan = make_plan()
        if boundary:
            text = plan.spec.path.read_text()
            sizes = ", ".join(f"{{N: {size}}}" for size in boundary)
            plan.spec.path.write_text(
                text.replace("{N: 3000}]", f"{{N: 3000}}], edge_cases: [{sizes}]")
            )
            plan = make_plan()
        candidates = Candidates(plan, compiler, device)
        made = read_draft(AgentAnswer(template, space), plan, tmp_path / "answer", "r1")
        validate_candidate(made, candidates.of(made), verify=verify, seed=1)
        return made

    return judge


def test_a_sound_answer_becomes_a_plan_with_the_users_workloads_and_tolerances(gate, make_plan):
    made = gate()
    assert made.candidate == "r1"
    assert made.spec.workloads == make_plan().spec.workloads
    assert made.spec.tolerances == make_plan().spec.tolerances


PYTHON_SPACE = "parameters:\n  pieces: [1, 2]\ndefault: {pieces: 1}\n"


def test_an_answer_for_a_python_kernel_is_python_and_its_own_template(tmp_path):
    project = callable_project(tmp_path / "project")
    plan = new_plan(project / KERNEL, {"space": project / PYTHON, "device": "host"})
    text = (project / KERNEL).read_text(encoding="utf-8")
    made = read_draft(AgentAnswer(text, PYTHON_SPACE), plan, tmp_path / "answer", "r1")
    assert made.template.path == tmp_path / "answer/template.py.j2"
    assert made.spec.template == made.template.path
    assert "CONFIG = {'pieces': @{ pieces }@}" in made.template.text


def test_an_answer_for_a_hip_kernel_is_in_hip(tmp_path):
    root = Path(__file__).parents[4]
    space, kernel = (
        root / f"{at}/row_sum.hip" for at in ("search_spaces/portable", "kernels/portable")
    )
    plan = new_plan(kernel, {"space": f"{space}.yaml", "device": "host"})
    words = plan.spec.path.read_text(encoding="utf-8")
    answer = AgentAnswer(plan.spec.template.read_text(encoding="utf-8"), words)
    assert read_draft(answer, plan, tmp_path, "r1").template.path.name == "template.hip.j2"


def test_a_byte_order_mark_in_the_users_file_does_not_refuse_every_answer(gate, project):
    path = project / "scale.yaml"
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert gate().candidate == "r1"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        pytest.param("ceil_div(N, threads)", "N // (threads - 64)", "zero", id="divides by zero"),
        pytest.param(
            "ceil_div(N, threads)", "N // (N - 3000)", "zero", id="by zero on a held-out workload"
        ),
        pytest.param("ceil_div(N, threads)", "0", "grid", id="an empty grid"),
        pytest.param("ceil_div(N, threads)", "'a'", "'a'", id="a text as grid"),
        pytest.param("[threads]}", "[threads], when: N < 0}", "`when`", id="nothing is launched"),
        pytest.param(
            "[threads]}", "[threads], when: N > 1000}", "`when`", id="nothing on one workload"
        ),
        pytest.param("[threads]}]", "[threads]}, {kernel: other, grid: [1], block: [1]}]", "other",
                     id="another kernel"),
        pytest.param("[threads]}", "[threads], shared_memory: 1 << 40}", "limit", id="memory"),
        pytest.param("{threads: 128}", "{threads: 256}", "256", id="a default out of range"),
        pytest.param("[64, 128]", "[]", "threads", id="no values"),
        pytest.param(
            "default:", "constraints: ['N < 5000 or threads < 0']\ndefault:", "N=100000",
            id="a constraint that leaves a workload nothing",
        ),
    ],
)  # fmt: skip
def test_a_space_that_cannot_be_run_is_refused_in_words(gate, old, new, said):
    assert old in SPACE
    with pytest.raises(RefusedError, match=said):
        gate(space=SPACE.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        pytest.param(INDEX, f"{INDEX} + @{{ 1 // (N - 3000) }}@", "does not render",
                     id="fails on a held-out workload alone"),
        pytest.param(INDEX, f"{INDEX} + @{{ 1 // (N - 7) }}@", "does not render",
                     id="fails on an edge case alone"),
        pytest.param('extern "C"', '#include "/etc/passwd"\nextern "C"', "absolute path",
                     id="includes a file of the machine"),
        pytest.param('extern "C"', '#include "../../scale.cu"\nextern "C"', r"`\.\.`",
                     id="includes a file above"),
        pytest.param("const float* in, int N", "int N, const float* in", "another order",
                     id="swaps arguments"),
        pytest.param("const float* in", "const double* in", "float32", id="changes a type"),
        pytest.param(TEMPLATE[:6], "\ud800extern", "UTF-16", id="half of a character"),
        pytest.param(INDEX, "@{ ''.__class__ }@ + @{ threads }@", "template.cu.j2:2", id="escapes"),
    ],
)  # fmt: skip
def test_a_template_that_is_wrong_somewhere_is_refused_in_words(gate, old, new, said):
    assert old in TEMPLATE
    with pytest.raises(RefusedError, match=said):
        gate(template=TEMPLATE.replace(old, new), boundary=(7,))


@pytest.mark.skipif(find_nvdisasm() is None, reason="nvdisasm is not installed")
@pytest.mark.parametrize("waits_first", [True, False])
def test_what_touches_memory_before_its_wait_is_refused_before_it_is_searched(gate, waits_first):
    wait, load = 'asm volatile("griddepcontrol.wait;" ::: "memory");', "float x = in[i % N];"
    first, second = (wait, load) if waits_first else (load, wait)
    body = f"{first} {second} if (i < N) out[i] = x + x;"
    template = TEMPLATE.replace("if (i < N) out[i] = in[i] + in[i];", body)
    space = SPACE.replace("block: [threads]", "block: [threads], pdl: true")
    if waits_first:
        assert gate(template, space)
        return
    with pytest.raises(RefusedError, match="machine code touches global memory before griddep"):
        gate(template, space)


def test_a_kernel_in_a_namespace_is_found(gate):
    template = TEMPLATE.replace('extern "C"', "namespace fast {").rstrip() + "\n}\n"
    assert gate(template, SPACE.replace("kernel: scale", 'kernel: "fast::scale"'))


def test_a_template_that_is_wrong_only_where_nothing_is_tuned_is_found(gate, device, monkeypatch):
    tried = []

    def verify(program):
        tried.append(program.workload.key)
        wrong = program.workload.key == "N=7"
        return Outcome(Status.INCORRECT, "out[0] is 3") if wrong else Outcome(Status.CORRECT)

    monkeypatch.setattr(device, "verify", verify)
    with pytest.raises(RefusedError, match="incorrect with threads=128 on N=7, and 1 like it: out"):
        gate(boundary=(7,), verify=True)
    assert "N=1000" in tried


def test_more_combinations_than_can_be_looked_at_are_refused_at_once_and_in_short(gate):
    many = [*range(1, 217)]
    space = SPACE.replace("[64, 128]}", f"{many}, offset: {many}, shift: {many}}}").replace(
        "128}", "128, offset: 1, shift: 1}"
    )
    space += "constraints: ['threads * offset * shift % 9973 == 128']\n"
    added = "threadIdx.x + @{ offset }@ - @{ shift }@"
    with pytest.raises(RefusedError, match="10077696 combinations") as caught:
        gate(TEMPLATE.replace("threadIdx.x", added), space)
    assert max(map(len, str(caught.value).splitlines())) < 300
