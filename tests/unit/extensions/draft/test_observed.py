"""What a run on the CPU shows of a fresh draft."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.extensions.draft.test_inference import snippet
from tuner.cli import cli
from tuner.extensions.draft import observed
from tuner.extensions.draft.observed import Observed, observe

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

RIGHT = (
    "__global__ void k(float* y, const float* x, float by, int n, int d) {\n"
    "  for (int c = threadIdx.x; c < d; c += 64)\n"
    "    y[blockIdx.x * d + c] = by * x[blockIdx.x * d + c]; }\n"
    "void f(float* p, int n, int d) { k<<<n, 64>>>(p, p, 0.5f, n, d); }\n"
)
# every second element stays
WRONG = RIGHT.replace("    y[blockIdx", "    if (c % 2) y[blockIdx")


@pytest.fixture(autouse=True)
def _enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed, "LIMIT_S", 60.0)


def test_what_two_sizes_show_is_confirmed() -> None:
    assert observe(snippet(RIGHT).space_yaml, RIGHT) == Observed(frozenset("xy"), {}, is_whole=True)


def test_what_two_sizes_contradict_is_a_guess_with_the_right_role() -> None:
    seen = observe(snippet(WRONG).space_yaml, WRONG)
    assert not seen.is_whole
    assert {name: finding.role for name, finding in seen.wrong.items()} == {"y": "inout"}


def test_nothing_is_seen_of_what_does_not_run_or_has_blanks() -> None:
    assembly = RIGHT.replace("{\n", '{ asm volatile("mystery.op;");\n', 1)
    blank = RIGHT.replace("y[blockIdx.x * d + c]", "y[at(c)]")
    for text in (assembly, blank):
        assert observe(snippet(text).space_yaml, text) == Observed()


@pytest.mark.parametrize(("options", "word"), [([], "sure"), (["--no-run"], "likely")])
def test_a_draft_is_sure_of_what_ran(
    options: list[str], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("k.cu").write_text(RIGHT)
    assert CliRunner().invoke(cli, ["init", "k.cu", *options]).exit_code == 0
    text = Path("search_spaces/k.yaml").read_text()
    assert f"shape: [n, d], role: output}}  # {word}: " in text
    assert f"value: 0.5}}  # {word}: passed in line 4" in text
    assert f"launch:  # {word}: line 4" in text


def test_a_draft_says_what_a_run_contradicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("k.cu").write_text(WRONG)
    assert CliRunner().invoke(cli, ["init", "k.cu"]).exit_code == 0
    text = Path("search_spaces/k.yaml").read_text()
    assert "role: inout}  # guessed: " in text
    assert re.search(r"the CPU shows, with n=\d+ d=\d+, that `y` is output, and ", text)
    assert "launch:  # likely: " in text
