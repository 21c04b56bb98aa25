"""`tune problem.py`: an agent writes the kernel that a problem has not got yet."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_project import Bench
from fake_openai import MODEL, FakeOpenAI, Request
from posed_problem import TWICE

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

KERNEL = """#define BLOCK_SIZE 128

__global__ void twice_kernel(const float* __restrict__ x, float* __restrict__ out, int rows,
                             int width) {
  const int i = blockIdx.x * BLOCK_SIZE + threadIdx.x;
  if (i >= rows * width) return;
  out[i] = 2.0f * x[i] + (x[i] > 0.0f ? 0.5f * x[i] : 0.0f);
}

void launch(const float* x, float* out, int rows, int width) {
  twice_kernel<<<(rows * width + BLOCK_SIZE - 1) / BLOCK_SIZE, BLOCK_SIZE>>>(x, out, rows, width);
}
"""
WRONG = KERNEL.replace("0.5f", "0.25f")
BROKEN = KERNEL.replace("2.0f * x[i]", "2.0f * y[i]")
TUNE = (
    "twice.py",
    "--device",
    "host",
    "--no-mutants",
    "--session",
    "mine",
    "--trials",
    "2",
    "--searcher",
    "random",
)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "project")
    (made.root / "twice.py").write_text(TWICE, encoding="utf-8")
    yield made
    made.close()


def fenced(source: str) -> str:
    return f"A plain one:\n\n```cuda\n{source}```\n"


def test_a_model_mends_its_kernel_until_it_computes_what_the_problem_states(bench: Bench) -> None:
    def last(request: Request) -> str:
        assert "`out` is not what the reference says" in request.last
        return fenced(KERNEL)

    def second(request: Request) -> str:
        assert "y" in request.last and "twice.cu" in request.last
        return fenced(WRONG)

    script = ["I would use Triton.", fenced(BROKEN), second, last]
    with FakeOpenAI(script) as server:
        ended = bench.run((*TUNE, "--model", MODEL, "--rounds", "0"), server.environ)
        asked = server.chats[0].said
    assert ended.code == 0, ended.err
    assert "2.0 * x + 0.5 * torch.relu(x)" in asked and "rows=8, width=96" in asked
    assert (bench.root / "twice.cu").read_text("utf-8") == KERNEL
    refused = sorted(path.name for path in (bench.root / "sessions").glob("*refused*"))
    assert refused == ["twice-refused-2.cu", "twice-refused-3.cu"], "the first had no source"
    assert bench.results().keys() == {"rows=8,width=96"}


def test_somebody_writes_it_in_a_folder(bench: Bench) -> None:
    folder = bench.root / "there" / "kernel-twice"
    stepping = ("twice.py", "--exchange", "there", "--step")
    asked = bench.run(stepping)
    assert asked.code == 4 and "kernel.cu is to be written" in asked.err, "asking needs no GPU"
    words = (*TUNE, "--exchange", "there", "--rounds", "0", "--wait", "0.1s")
    waiting = bench.run(words)
    assert waiting.code == 4 and "kernel.cu is to be written" in waiting.err
    request = (folder / "request.md").read_text("utf-8")
    assert "Keep the parameters" in request and "There is no scratch memory" in request
    (folder / "kernel.cu").write_text(KERNEL, encoding="utf-8")
    unable = bench.run(stepping)
    assert unable.code == 2 and "no GPU was found" in unable.err
    assert (folder / "kernel.cu").exists(), "it is checked where there is one"
    ended = bench.run(words)
    assert ended.code == 0, ended.err
    resumed = bench.run(("twice.py", "--resume", "mine"))
    assert resumed.code == 0, "the problem stands for its kernel"
    assert (bench.root / "twice.cu").read_text("utf-8") == KERNEL
