"""Rewards for training, with kernels that really run, on the CPU."""

from __future__ import annotations

import inspect
import subprocess
import sys
from math import isfinite

import pytest

import tuner
from tuner import Effort, GrpoReward, reward
from tuner.agent.base import Answer
from tuner.export.training import REFUSED_REWARD, SLOWEST

HOST = Effort(device="host", workloads=("N=1000",), trials=2, rounds=4)
TEMPLATE = """
extern "C" __global__ void scale(float* out, const float* in, int N) {
  const int i = blockIdx.x * @{ threads }@ + threadIdx.x;
  if (i < N) out[i] = in[i] * FACTOR;
}
"""
SPACE = """
parameters: {threads: [64, 256]}
default: {threads: 64}
launch: [{kernel: scale, grid: ["ceil_div(N, threads)"], block: [threads]}]
"""
RIGHT = Answer(TEMPLATE.replace("FACTOR", "2.0f"), SPACE)
WRONG = Answer(TEMPLATE.replace("FACTOR", "2.1f"), SPACE)


def text_of(answer: Answer) -> str:
    return f"```cuda\n{answer.template}\n```\n\n```yaml\n{answer.space}\n```\n"


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNER_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def grpo(project):
    made = GrpoReward(project / "scale.yaml", HOST)
    yield made
    made.close()


def test_a_correct_template_is_rewarded_with_a_measured_speedup(project):
    found = reward(project / "scale.yaml", text_of(RIGHT), HOST)
    assert isfinite(found)
    assert found >= SLOWEST


@pytest.mark.parametrize("template", [WRONG, "no template"], ids=["wrong", "none"])
def test_a_template_that_is_no_good_gets_the_penalty(project, template):
    assert reward(project / "scale.yaml", template, HOST) == REFUSED_REWARD


def test_a_kernel_is_found_with_its_space_as_the_program_finds_it(project, monkeypatch):
    folder = project / "search_spaces"
    folder.mkdir()
    space = (project / "scale.yaml").read_text().replace(": scale.", ": ../scale.")
    (folder / "scale.yaml").write_text(space)
    monkeypatch.chdir(project)
    assert reward("scale.cu", WRONG, HOST) == REFUSED_REWARD


def test_every_completion_of_a_batch_is_scored_be_it_text_or_messages(grpo):
    messages = [
        {"role": "assistant", "content": text_of(WRONG)},
        {"role": "tool", "name": "render", "content": "x"},
        {"role": "assistant", "content": text_of(RIGHT)},
    ]
    completions = [text_of(WRONG), messages, messages[:1], []]
    found = grpo(
        prompts=["p"] * 4, completions=completions, completion_ids=[[1]] * 4, round=[1] * 4
    )
    assert [one == REFUSED_REWARD for one in found] == [True, False, True, True]


def test_equal_answers_have_equal_rewards(grpo):
    first = grpo(prompts=["p"] * 2, completions=[text_of(RIGHT)] * 2)
    assert first[0] == first[1] == grpo(prompts=["q"], completions=[text_of(RIGHT)])[0]


def test_rows_of_another_kernel_are_left_to_its_own_reward(grpo):
    kernels = ["other", "scale"]
    assert grpo(prompts=["p"] * 2, completions=["none"] * 2, kernel=kernels) == [
        None,
        REFUSED_REWARD,
    ]


def test_it_is_a_plain_function_to_the_trainer(grpo):
    assert grpo.__name__ == "reward_of_scale"
    assert not inspect.iscoroutinefunction(grpo.__call__)


def test_the_package_hands_the_rewards_out_and_nothing_else():
    assert callable(tuner.reward)
    with pytest.raises(AttributeError, match="no attribute 'rewrad'"):
        tuner.rewrad  # noqa: B018


def test_importing_the_package_alone_loads_nothing_of_it():
    code = "import sys, tuner; print(*(name for name in sys.modules if name.startswith('tuner.')))"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.split() == ["tuner.model", "tuner.model.version"]
