"""A problem without a kernel: who may write one, and what is said where nobody can."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.app.plan import RunOptions
from tuner.extensions.agents.first_kernel import first_kernel, kernel_for
from tuner.extensions.agents.replies import read_kernel
from tuner.model.errors import (
    AgentError,
    DeviceError,
    InputError,
    KernelError,
    ReplyError,
    Untellable,
)

PROBLEM = """import torch

rows = 8


class Model(torch.nn.Module):
    def forward(self, x):
        return 2.0 * x


def get_inputs():
    return [torch.randn(rows, 16)]


def get_init_inputs():
    return []
"""


class Scripted:
    """A writer that follows a script: a source, or an error that it raises."""

    def __init__(self, *script: str | Exception) -> None:
        self._script: Iterator[str | Exception] = iter(script)
        self.heard: list[str] = []

    def write(self, request: str) -> str:
        self.heard.append(request)
        step = next(self._script)
        if isinstance(step, Exception):
            raise step
        return step

    rewrite = write


def only_right(source: str) -> None:
    if source != "right":
        raise InputError(f"{source} is wrong")


def test_it_hears_what_was_wrong_until_its_kernel_is_right() -> None:
    writer = Scripted("this", ReplyError("no block"), "right")
    refused: list[tuple[int, str, str]] = []
    source = first_kernel(writer, "write", only_right, lambda *told: refused.append(told))
    assert source == "right"
    assert writer.heard == ["write", "this is wrong", "no block"]
    assert refused == [(1, "this", "this is wrong"), (2, "", "no block")]


def test_after_four_wrong_ones_it_ends_with_the_last_reason() -> None:
    with pytest.raises(AgentError, match=r"4 attempts.*d is wrong"):
        first_kernel(Scripted("a", "b", "c", "d", "right"), "write", only_right, lambda *told: None)


def test_an_agent_that_cannot_go_on_is_not_asked_again() -> None:
    writer = Scripted(AgentError("no server"), "right")
    with pytest.raises(AgentError, match="no server"):
        first_kernel(writer, "write", only_right, lambda *told: None)


def test_a_problem_on_which_no_kernel_is_right_is_no_fault_of_the_agents() -> None:
    def lost(source: str) -> None:
        raise Untellable("zeros would pass")

    writer = Scripted("right", "other")
    with pytest.raises(Untellable, match="zeros would pass"):
        first_kernel(writer, "write", lost, lambda *told: None)
    assert writer.heard == ["write"]


def test_a_kernel_is_one_whole_block() -> None:
    assert read_kernel("Here:\n```cuda\nvoid f();\n```") == "void f();\n"
    for reply, told in (
        ("I can't.", "has no kernel"),
        ("```cuda\na\n```\n```cuda\nb\n```", "2 blocks"),
        ("```cuda\n// ... rest of the code unchanged\n```", "left out"),
    ):
        with pytest.raises(ReplyError, match=told):
            read_kernel(reply)


@pytest.fixture
def problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "twice.py").write_text(PROBLEM, encoding="utf-8")
    return Path("twice.py")


def test_somebody_has_to_be_named(problem: Path) -> None:
    with pytest.raises(InputError, match=r"no kernel for it yet.*twice\.cu") as error:
        kernel_for(problem, {}, RunOptions())
    assert "init twice.py" in str(error.value) and "--model NAME" in str(error.value)


def test_where_nothing_runs_kernels_nobody_is_asked(problem: Path) -> None:
    for device, told in (("auto", "no GPU was found"), ("recorded", "a recording")):
        with pytest.raises(DeviceError, match=told):
            kernel_for(problem, {"model": "any", "device": device}, RunOptions())


def test_a_kernel_beside_it_is_taken_and_a_half_written_one_kept(problem: Path) -> None:
    from tuner.extensions.draft.problems.kernel import skeleton
    from tuner.extensions.draft.problems.statement import statement_of

    kernel, blank = problem.with_suffix(".cu"), skeleton(statement_of(problem))
    kernel.write_text(blank, encoding="utf-8")
    with pytest.raises(InputError, match="no kernel for it yet"):
        kernel_for(problem, {}, RunOptions())
    kernel.write_text(f"// mine\n{blank}", encoding="utf-8")
    with pytest.raises(InputError, match="still to fill in"):
        kernel_for(problem, {"model": "any"}, RunOptions())
    kernel.write_text("__global__ void f();", encoding="utf-8")
    assert kernel_for(problem, {}, RunOptions()) == (kernel, None)


def test_what_states_no_problem_is_told(problem: Path) -> None:
    problem.write_text("x = 1\n", encoding="utf-8")
    with pytest.raises(KernelError, match="states no problem"):
        kernel_for(problem, {}, RunOptions())
