"""`tune kernel.py`: a Python function from its file to a session, on the CPU."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from callable_project import KERNEL, SPACE, callable_project
from click.testing import CliRunner, Result

from tuner.cli import cli

TRITON = Path(__file__).parents[1] / "unit/extensions/draft/python/data/vector_add.py"


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words), prog_name="tune")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("torch")
    monkeypatch.chdir(callable_project(tmp_path))
    return tmp_path


def test_a_python_kernel_is_checked_tuned_verified_and_resumed(project: Path) -> None:
    assert "no mistakes found" in run("check", str(SPACE)).output
    session = project / "s"
    command = [str(KERNEL), "--device", "host", "--session", str(session), "--json"]
    done = run(*command)
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["trials"]["correct"] >= 12  # without the shift some inputs overflow
    axes_of = {
        "row_softmax-T16-D256.py": {"T": 16, "D": 256},
        "row_softmax-T64-D100.py": {"T": 64, "D": 100},
    }
    # On a busy CPU the untuned kernel may win a workload, which then has no file.
    for path in (session / "tuned").glob("*"):
        names: dict[str, object] = {}
        exec(compile(path.read_text(), path, "exec"), names)  # noqa: S102
        assert names["AXES"] == axes_of[path.name]
    assert "<h2" in (session / "report.html").read_text()
    assert run("verify", str(session), "--device", "host").exit_code == 0
    assert run("--resume", str(session), "--quiet").exit_code == 0


def test_a_choice_of_the_operator_reaches_launch_and_reference(project: Path) -> None:
    words = ("--operator", "TEMPERATURE=two", "--trials", "3", "--device", "host")
    done = run(str(KERNEL), *words, "--session", str(project / "s"), "--json")
    assert done.exit_code == 0, done.stderr


def test_it_says_what_cannot_be_done_with_it(project: Path) -> None:
    assert "no GPU here and no recording" in run(str(KERNEL)).output
    assert "row_softmax.py: `tune mutate` is not for Python" in run("mutate", str(SPACE)).output
    (project / "other.py").write_text("x = 1\n")
    told = run("other.py").output
    assert "states no problem" in told
    assert "launch(config, tensors, axes)" in told


def test_a_triton_file_is_drafted_and_says_what_to_fill_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(TRITON, tmp_path / "vector_add.py")
    done = run("vector_add.py")
    assert done.exit_code != 0
    assert "drafted search_spaces/vector_add.yaml" in done.output
    assert "the body of reference(), in float64" in done.output
    module = tmp_path / "vector_add_tune.py"
    text = module.read_text()
    cut = text.index("    raise ValueError(")
    module.write_text(f"{text[:cut]}    return {{'output': inputs['x'] + inputs['y']}}\n")
    assert "no mistakes found" in run("check", "search_spaces/vector_add.yaml").output
    if find_spec("triton") is None and find_spec("torch") is not None:
        told = run("vector_add.py", "--device", "host").output
        assert "No module named 'triton'" in told
        assert "install what it imports" in told
