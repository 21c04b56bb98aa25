"""What an answer is worth: refusals, speedups, no fault of its own, and the trainer's side."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import replace
from math import isfinite, log

import pytest

import tuner.extensions.agents.reward
from tests.support.simulated_device import SimulatedDevice
from tuner import GrpoReward, reward
from tuner.device.base import ComparisonRounds, Outcome
from tuner.extensions.agents.base import AgentAnswer
from tuner.extensions.agents.reward import Effort, Scorer
from tuner.extensions.agents.training import REFUSED_REWARD, SLOWEST
from tuner.model.errors import DeviceError, InputError, KernelError
from tuner.model.trial import Status

BASELINE_THREADS = 128
TEMPLATE = """
constexpr int kThreads = @{ threads }@;
extern "C" __global__ void scale(float* out, const float* in, int N) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i < N) out[i] = in[i] + in[i];
}
"""
SPACE = """
parameters: {threads: [64, 256]}
default: {threads: 64}
launch: [{kernel: scale, grid: ["ceil_div(N, threads)"], block: [threads]}]
"""
GOOD = AgentAnswer(TEMPLATE, SPACE)
HOST = Effort(device="host", workloads=("N=1000",), trials=2, rounds=2)


def text_of(answer: AgentAnswer) -> str:
    return f"Here.\n\n```cuda\n{answer.template}\n```\n\n```yaml\n{answer.space}\n```\n"


def by_threads(program):
    """Say 12 us for the baseline, and fewer for larger blocks."""
    threads = program.launches[0].threads
    return {64: 8.0, BASELINE_THREADS: 12.0, 256: 6.0}[threads]


@pytest.fixture
def scorer(project, monkeypatch):
    """Open a scorer on a simulated device that answers as it is told."""
    opened = []

    def make(answer=by_threads, device=None, **effort) -> Scorer:
        device = device or SimulatedDevice(answer)
        monkeypatch.setattr(tuner.extensions.agents.reward, "open_device", lambda *_: device)
        opened.append(Scorer(project / "scale.yaml", Effort(device="cuda", **effort)))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def test_the_best_config_is_compared_with_the_baseline_on_every_workload(scorer):
    score = scorer().score(text_of(GOOD))
    assert (score.speedup, score.problem) == (2.0, "")
    assert score.reward == pytest.approx(log(2.0))


class Unmeasured(SimulatedDevice):
    """A device on which nothing but the baseline can be timed on the large workload."""

    def run(self, program, *, incumbent_us=None, full_verification=False):
        made = super().run(program, incumbent_us=incumbent_us, full_verification=full_verification)
        small = program.workload.values["N"] < 50_000
        if small or program.launches[0].threads == BASELINE_THREADS:
            return made
        return Outcome(Status.TIMEOUT, "no answer within 10 s")

    def verify(self, program):
        return replace(super().run(program), measurement=None)


def test_workloads_are_averaged_geometrically_and_the_baseline_serves_where_nothing_is_right(
    scorer,
):
    score = scorer(device=Unmeasured(by_threads)).score(GOOD)
    assert score.speedup == pytest.approx(2.0**0.5)


def test_only_the_workloads_asked_for_are_measured(scorer):
    device = SimulatedDevice(by_threads)
    scorer(device=device, workloads=("N=1000",)).score(GOOD)
    timed = {p.workload.values["N"] for p in device.ran if p.launches[0].threads == 256}
    assert 100_000 not in timed


def test_no_more_configs_are_tried_than_asked_for(scorer):
    assert scorer(trials=1).score(GOOD).speedup == pytest.approx(1.5), "the default alone"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("I would rather not.", "no template"),
        (text_of(GOOD).removesuffix("```\n"), "not closed"),
        (AgentAnswer("constexpr int k = @{ nothing }@;", SPACE), "nothing"),
        (AgentAnswer(TEMPLATE.replace("int N", "float N"), SPACE), "float"),
        (AgentAnswer(TEMPLATE.replace("+ in[i];", "+;"), SPACE), "expected"),
        (AgentAnswer(TEMPLATE, SPACE + "workloads: {tuned: [{N: 1}]}\n"), "workloads"),
        (AgentAnswer(TEMPLATE, "parameters: ["), "space.yaml:1: not YAML"),
        (AgentAnswer(TEMPLATE + "// \ud800", SPACE), "half a character"),
        (AgentAnswer("/" * 500_000, SPACE), "500000 characters"),
        (AgentAnswer("//% for i in range(10 ** 9)\nint x;\n//% endfor", SPACE), "template.cu.j2"),
    ],
    ids=lambda value: None if isinstance(value, AgentAnswer) else str(value)[:20],
)
def test_a_bad_answer_is_refused_and_told_why(scorer, answer, problem):
    score = scorer().score(answer)
    assert (score.reward, score.speedup) == (REFUSED_REWARD, None)
    assert problem in score.problem
    assert score.problem


@pytest.mark.parametrize("status", [Status.INCORRECT, Status.LAUNCH, Status.TIMEOUT])
def test_a_kernel_that_fails_wherever_it_runs_is_refused(scorer, status):
    def answer(program):
        return by_threads(program) if program.launches[0].threads == BASELINE_THREADS else status

    score = scorer(answer).score(GOOD)
    assert (score.reward, score.speedup) == (REFUSED_REWARD, None)


class Late(SimulatedDevice):
    """A device whose comparison finds what no check before had found."""

    faults: tuple[str, ...] = ()
    broken = False

    def compare(self, programs, *, rounds):
        if self.broken:
            raise DeviceError("a verified program failed when timed again")
        made = super().compare(programs, rounds=rounds)
        return ComparisonRounds(made.times_us, True, made.isolated_us, self.faults)


def test_a_kernel_that_is_wrong_once_it_was_timed_is_refused(scorer):
    device = Late(by_threads)
    device.faults = ("", "out[3] is 0")
    assert "out[3] is 0" in scorer(device=device).score(GOOD).problem


def test_a_baseline_that_is_wrong_once_it_was_timed_is_no_answers_fault(scorer):
    device = Late(by_threads)
    device.faults = ("out[3] is 0", "")
    with pytest.raises(KernelError, match="the baseline is wrong"):
        scorer(device=device).score(GOOD)


def test_a_kernel_that_dies_in_the_comparison_is_refused_where_the_baseline_lives(scorer):
    device = Late(by_threads)
    device.broken = True
    assert "failed when timed again" in scorer(device=device).score(GOOD).problem


def test_the_same_answer_has_the_same_reward_on_the_same_times(scorer):
    one = scorer()
    assert one.score(GOOD) == one.score(GOOD) == scorer().score(GOOD)


def test_closing_ends_the_device_and_removes_what_was_written(scorer):
    device = SimulatedDevice(by_threads)
    one = scorer(device=device)
    one.score(GOOD)
    folder = one._folder
    assert list(folder.rglob("template.cu.j2"))
    one.close()
    assert device.closed
    assert not folder.exists()


def test_a_mistake_in_the_users_own_files_is_raised(project):
    (project / "scale.cu").write_text("int x;\n")
    with pytest.raises(InputError):
        Scorer(project / "scale.yaml", HOST)


def test_a_baseline_that_is_wrong_is_raised_before_anything_is_scored(project):
    source = project / "scale.cu"
    source.write_text(source.read_text().replace("2.0f", "3.0f"))
    with pytest.raises(KernelError, match="the baseline is wrong"):
        Scorer(project / "scale.yaml", HOST)


def test_the_cpu_is_never_taken_for_a_gpu(project, monkeypatch):
    monkeypatch.setattr(tuner.extensions.agents.reward, "gpu_count", lambda: 0)
    with pytest.raises(DeviceError, match="no NVIDIA GPU was found") as caught:
        Scorer(project / "scale.yaml")
    assert "host" in str(caught.value)


def test_on_the_cpu_a_correct_template_is_rewarded_and_a_wrong_one_is_not(project, monkeypatch):
    folder = project / "search_spaces"
    folder.mkdir()
    space = (project / "scale.yaml").read_text().replace(": scale.", ": ../scale.")
    (folder / "scale.yaml").write_text(space)
    monkeypatch.chdir(project)
    # The space is found by the kernel's name, as the program finds it.
    assert reward("scale.cu", text_of(GOOD), HOST) >= SLOWEST
    assert isfinite(reward(project / "scale.yaml", GOOD, HOST))
    wrong = AgentAnswer(TEMPLATE.replace("+ in[i]", "* 1.1f"), SPACE)
    assert reward("scale.cu", wrong, HOST) == REFUSED_REWARD


@pytest.fixture
def grpo(project, scorer):
    scorer()
    made = GrpoReward(project / "scale.yaml", Effort(device="cuda"))
    yield made
    made.close()


def test_every_completion_of_a_batch_is_scored_be_it_text_or_messages(grpo):
    messages = [
        {"role": "assistant", "content": "no template"},
        {"role": "tool", "name": "render", "content": "x"},
        {"role": "assistant", "content": text_of(GOOD)},
    ]
    completions = ["no template", messages, messages[:1], [], text_of(GOOD)]
    found = grpo(
        prompts=["p"] * 5, completions=completions, completion_ids=[[1]] * 5, round=[1] * 5
    )
    good = found[1]
    assert found == [REFUSED_REWARD, good, REFUSED_REWARD, REFUSED_REWARD, good]
    assert good == grpo(prompts=["q"], completions=[text_of(GOOD)])[0] > SLOWEST


def test_rows_of_another_kernel_are_left_to_its_own_reward(grpo):
    found = grpo(prompts=["p"] * 2, completions=["none"] * 2, kernel=["other", "scale"])
    assert found == [None, REFUSED_REWARD]


def test_it_is_a_plain_function_to_the_trainer(grpo):
    assert grpo.__name__ == "reward_of_scale"
    assert not inspect.iscoroutinefunction(grpo.__call__)


def test_the_package_hands_the_rewards_out_and_loads_nothing_until_asked():
    with pytest.raises(AttributeError, match="no attribute 'rewrad'"):
        tuner.rewrad  # noqa: B018
    code = "import sys, tuner; print(*(name for name in sys.modules if name.startswith('tuner.')))"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.split() == ["tuner.model"]
