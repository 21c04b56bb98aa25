"""`tune init` as a user sees it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copy

import pytest
from click.testing import Result
from torch_here import needs_torch

Tune = Callable[..., Result]
DATA = Path(__file__).parents[2] / "data"
TWO = "__global__ void first(int n) { }\n__global__ void second(int n) { }\n"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    copy(DATA / "saxpy.cu", tmp_path)
    return Path("saxpy.cu")


def test_it_writes_three_files_and_says_what_is_left_to_do(tune: Tune, kernel: Path) -> None:
    before = kernel.read_bytes()
    result = tune("init", kernel)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[:5] == [
        "wrote search_spaces/saxpy.yaml",
        "wrote templates/saxpy.cu.j2",
        "wrote saxpy.py",
        "parameters: block_size, min_blocks, vec, streaming, items",
        "to fill in (1):",
    ]
    assert "  saxpy.py:15: the body of reference(), in float64" in lines
    assert lines[-1] == "then: tune check search_spaces/saxpy.yaml"
    assert all(Path(line.split()[1]).is_file() for line in lines[:3])
    assert kernel.read_bytes() == before


def test_json_is_one_object_and_nothing_else(tune: Tune, kernel: Path) -> None:
    found = json.loads(tune("init", kernel, "--json").stdout)
    assert list(found) == ["kernel", "written", "kept", "parameters", "blanks", "next"]
    assert found["kernel"] == "saxpy"
    assert found["parameters"] == ["block_size", "min_blocks", "vec", "streaming", "items"]
    assert found["kept"] == []
    (blank,) = found["blanks"]
    assert blank == {"file": "saxpy.py", "line": 15, "what": "the body of reference(), in float64"}
    row = Path(blank["file"]).read_text().splitlines()[blank["line"] - 1]
    assert "fill in reference()" in row


def test_it_overwrites_nothing_unless_told_to(tune: Tune, kernel: Path) -> None:
    tune("init", kernel)
    space, template = Path("search_spaces/saxpy.yaml"), Path("templates/saxpy.cu.j2")
    space.write_text("mine")
    template.unlink()
    result = tune("init", kernel)
    assert result.exit_code == 2
    assert "search_spaces/saxpy.yaml: exists already; nothing was written" in result.stderr
    assert "--force overwrites it" in result.stderr
    assert space.read_text() == "mine"
    assert not template.exists()
    assert tune("init", kernel, "--force").exit_code == 0
    assert space.read_text() != "mine"


def test_a_reference_that_is_there_is_kept_even_by_force(tune: Tune, kernel: Path) -> None:
    mine = "def reference(xp, inputs, axes): ...  # mine\n"
    Path("saxpy.py").write_text(mine)
    result = tune("init", kernel, "--force")
    assert "kept saxpy.py" in result.stdout
    assert Path("saxpy.py").read_text() == mine
    assert "nothing to fill in" in result.stdout.splitlines()


def test_a_blank_of_the_space_is_told_with_its_line(tune: Tune, tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text("__global__ void k(float* x, float a, int n) { if (n) x[n] = a; }\n")
    found = json.loads(tune("init", path, "--out", tmp_path, "--json").stdout)["blanks"]
    first = next(blank for blank in found if blank["what"].startswith("the shape of x"))
    assert "FILL_IN" in Path(first["file"]).read_text().splitlines()[first["line"] - 1]


def test_the_reference_stub_says_what_to_return(tune: Tune, kernel: Path) -> None:
    tune("init", kernel)
    names: dict[str, object] = {}
    exec(compile(Path("saxpy.py").read_text(), "saxpy.py", "exec"), names)  # noqa: S102
    reference = names["reference"]
    assert callable(reference)
    with pytest.raises(ValueError, match=r"fill in reference\(\) in saxpy.py: return {'y': ...}"):
        reference(None, {}, {})


def test_out_chooses_the_folder_and_paths_in_the_draft_lead_back(tune: Tune, kernel: Path) -> None:
    assert tune("init", kernel, "--out", "a/b").exit_code == 0
    space = Path("a/b/search_spaces/saxpy.yaml")
    rows = dict(row.split(": ", 1) for row in space.read_text().splitlines()[2:6])
    for key in ("source", "reference", "template"):
        assert (space.parent / rows[key].strip('"')).is_file()


def test_several_kernels_are_listed(tune: Tune, tmp_path: Path) -> None:
    path = tmp_path / "two.cu"
    path.write_text(TWO)
    result = tune("init", path, "--out", tmp_path)
    assert result.exit_code == 2
    assert f"{path}: has 2 kernels: first, second" in result.stderr
    assert "--kernel first" in result.stderr
    chosen = tune("init", path, "--out", tmp_path, "--kernel", "second", "--json")
    assert json.loads(chosen.stdout)["kernel"] == "second"


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no such file"), (b"int x;", "no __global__ function"), (b"\0\1", "binary file")],
)
def test_a_file_without_a_kernel_is_one_message(tune: Tune, tmp_path: Path, content, message):
    path = tmp_path / "k.cu"
    if content is not None:
        path.write_bytes(content)
    result = tune("init", path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_folder_that_cannot_be_made_is_one_message(tune: Tune, kernel: Path) -> None:
    Path("taken").write_text("")
    result = tune("init", kernel, "--out", "taken")
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr


PROBLEM = """\
import torch

rows = 64
columns = 48


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(rows, columns)]
"""
BODY = "  out[i] = x[i] > 0 ? x[i] : 0;"


@needs_torch
def test_a_problem_becomes_a_skeleton_and_then_a_checked_search_space(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("relu.py").write_text(PROBLEM)
    first = tune("init", "relu.py")
    assert first.stdout.splitlines() == [
        "wrote relu.cu",
        "write the kernel's body in relu.cu, line 7; then `tune init relu.py` again drafts its "
        "search space",
    ]
    unfilled = tune("init", "relu.py")
    assert unfilled.exit_code == 2
    assert "relu.cu:7: still to fill in: out[i], one element a thread" in unfilled.stderr
    source = Path("relu.cu").read_text().splitlines()
    Path("relu.cu").write_text("\n".join([*source[:6], BODY, *source[7:]]))
    result = tune("init", "relu.py")
    assert result.exit_code == 0, result.output
    assert "nothing to fill in" in result.stdout
    assert "no mistakes found" in tune("check", "search_spaces/relu.yaml").stdout


@needs_torch
def test_a_kernel_takes_a_problem_of_another_name(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("stated.py").write_text(PROBLEM)
    Path("k.cu").write_text(
        "__global__ void k(const float* a, float* b, int columns) {\n"
        "  for (int c = threadIdx.x; c < columns; c += blockDim.x)\n"
        "    b[blockIdx.x * columns + c] = fmaxf(a[blockIdx.x * columns + c], 0);\n}\n"
        "void launch(const float* a, float* b, int rows, int columns) {\n"
        "  k<<<rows, 128>>>(a, b, columns);\n}\n"
    )
    result = tune("init", "k.cu", "--problem", "stated.py")
    assert "nothing to fill in" in result.stdout, result.output
    space = Path("search_spaces/k.yaml").read_text()
    assert 'reference: "../stated.py"' in space
    assert "{name: x, dtype: float32, shape: [rows, columns], role: input, fill: normal}" in space
    assert "{name: out, dtype: float32, shape: [rows, columns], role: output}" in space


@needs_torch
def test_a_kernel_that_does_not_fit_its_problem_is_told(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("k.py").write_text(PROBLEM)
    Path("k.cu").write_text("__global__ void k(float* a) { a[threadIdx.x] = 0; }\n")
    result = tune("init", "k.cu")
    assert result.exit_code == 2
    assert "k.cu:1: k does not fit k.py: of the problem's inputs x [rows, columns]" in result.stderr
    assert "give the kernel a parameter for each array of the problem" in result.stderr


def test_a_file_of_triton_gives_a_space_and_a_launch(tune: Tune, tmp_path: Path) -> None:
    data = DATA.parent / "extensions/draft/python/data" / "vector_add.py"
    path = Path(copy(data, tmp_path))
    before = path.read_bytes()
    found = json.loads(tune("init", path, "--out", tmp_path, "--json").stdout)
    assert found["kernel"] == "add_kernel"
    assert [Path(one).name for one in found["written"]] == ["vector_add.yaml", "vector_add_tune.py"]
    assert found["parameters"] == ["BLOCK_SIZE", "num_warps"]
    assert path.read_bytes() == before


def test_a_python_file_with_neither_kernel_nor_problem_is_one_sentence(
    tune: Tune, tmp_path: Path
) -> None:
    path = tmp_path / "k.py"
    path.write_text("print('never run')\n")
    result = tune("init", path)
    assert result.exit_code == 2
    assert f"{path}: holds neither a kernel of Triton (@triton.jit) or Helion" in result.stderr
    assert "never run" not in result.stdout
