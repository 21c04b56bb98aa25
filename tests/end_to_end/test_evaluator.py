"""`tune --device command:PROGRAM`: a program of the user's compiles, times and may verify."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_project import Bench, fewer_pieces, planned
from click.testing import CliRunner, Result
from fake_openai import FakeOpenAI, Request

from tuner.app.trust import trust
from tuner.cli import cli
from tuner.extensions.agents.reward import Effort, Scorer
from tuner.model.errors import DeviceError
from tuner.session.events import Profiled
from tuner.session.session import Session

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs/examples/evaluator"
FAKE = Path(__file__).parents[1] / "support/fake_evaluator.py"
Tune = Callable[..., Result]


def fake(*words: object) -> str:
    return "command:" + shlex.join([sys.executable, str(FAKE), *map(str, words)])


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the example, with a template whose times are made up."""
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project)
    template = project / "scale_rows.cu.j2"
    text = template.read_text(encoding="utf-8")
    made_up = '// us=@{ 10 + 100 // items + (0 if whole_rows else 3) }@ "@{ block_size }@"\n'
    template.write_text(made_up + text, encoding="utf-8")
    monkeypatch.chdir(project)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return project


def tune(*words: object) -> Result:
    result = CliRunner().invoke(cli, [str(word) for word in words], prog_name="tune")
    assert isinstance(result.exception, SystemExit | None), result.exc_info
    return result


def new_words(session: str) -> tuple[str, ...]:
    return ("scale_rows.cu", "--space", "scale_rows.yaml", "--session", session)


def new(device: str, *words: object) -> Result:
    return tune(*new_words("s"), "--device", device, *words)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_example_of_the_docs_tunes_and_verifies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "example")
    monkeypatch.chdir(tmp_path / "example")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)  # its first line asks for the Python that has NumPy
    done = new("command:./measure.py", "--trials", 4, "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["device"] == "one core, by measure.py"
    assert found["verified_by"] == "./measure.py"
    assert found["trials"]["correct"] == 4
    assert found["checks"]["edge_cases"] == {"passed": 1, "failed": 0, "not_run": 0}
    (result,) = found["workloads"]
    assert result["registers"] is None
    assert result["speedup"] > 0
    report = Path("s/report.html").read_text(encoding="utf-8")
    assert "Verified by ./measure.py, not by tune." in report
    assert "CUDA graph" not in report


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_what_nobody_verified_is_said_to_be_so_everywhere(project: Path) -> None:
    done = new(fake("compares"))
    assert done.exit_code == 0, done.stderr
    assert "compiles and times, not tune; NOTHING IS VERIFIED" in done.output
    assert "NOT VERIFIED: nobody has compared" in done.output
    assert "Measured alone, cold" not in done.output
    found = json.loads(tune("report", "s", "--json").stdout)
    assert found["verified_by"] is None
    assert found["checks"] == {}
    (result,) = found["workloads"]
    assert result["config"]["items"] == 64
    assert result["speedup"] == pytest.approx(50 / 11, rel=1e-3)
    report = Path("s/report.html").read_text(encoding="utf-8")
    assert "NOT VERIFIED: nobody has compared" in report
    assert "does not verify" in report
    assert "Only configs whose outputs matched" not in report
    # What it timed can be verified here later.
    verified = tune("verify", "s", "--device", "host")
    assert verified.exit_code == 0, verified.output
    found = json.loads(tune("report", "s", "--json").stdout)
    assert found["checks"]["verify"] == {"passed": 1, "failed": 0, "not_run": 0}


def test_an_export_says_whose_word_it_is(project: Path) -> None:
    near = 'describe={"architecture": "sm_90a", "multiprocessors": 132}'
    for session, words, warning in (
        ("unverified", ("compares",), "NOT VERIFIED by anybody"),
        ("verified", ("compares", "verifies"), ", not by tune"),
    ):
        device = fake(near, *words)
        done = tune(*new_words(session), "--device", device, "--trials", 3)
        assert done.exit_code == 0, done.stderr
        folder = Path(f"{session}-out")
        exported = tune("export", session, "--to", folder)
        assert exported.exit_code == 0, exported.output
        table = json.loads((folder / "dispatch.json").read_text(encoding="utf-8"))
        (of_device,) = table["devices"].values()
        verified_by = device.removeprefix("command:") if "verifies" in words else None
        assert of_device["verified_by"] == verified_by
        for name in ("README.md", "variants/scale_rows_v1.cu"):
            assert warning in (folder / name).read_text(encoding="utf-8")


def test_without_a_comparison_of_its_own_results_are_unpaired(project: Path) -> None:
    done = new(fake("verifies", 'describe={"parallel": 3}'), "--json")
    assert done.exit_code == 0, done.stderr
    with Session.open(Path("s"), read_only=True) as session:
        (comparison,) = session.comparisons()
        (result,) = session.results()
    assert not comparison.paired
    assert len(comparison.finalists) > 1
    assert not result.paired
    assert result.config["items"] == 64
    assert "verifies" in json.loads(done.stdout)["verified_by"]


def test_a_language_that_nothing_here_reads_is_passed_on(project: Path) -> None:
    Path("scale_rows.cu").rename("scale_rows.metal")
    Path("scale_rows.cu.j2").rename("scale_rows.metal.j2")
    space = Path("scale_rows.yaml")
    space.write_text(space.read_text(encoding="utf-8").replace(".cu", ".metal"), encoding="utf-8")
    Path("scale_rows.metal").write_text("kernel void scale_rows() {} // us=40\n", encoding="utf-8")
    words = ("scale_rows.metal", "--space", space, "--session", "s", "--store", "none")
    assert "no mistakes found" in tune("check", space).output
    done = tune(*words, "--device", fake("compares", "log=log"), "--json")
    assert done.exit_code == 0, done.stderr
    last = Path("log").read_text(encoding="utf-8").splitlines()[-1]
    assert json.loads(last)["language"] == "Metal"
    (made,) = Path("s/tuned").iterdir()
    assert made.suffix == ".metal"
    assert "us=11" in made.read_text(encoding="utf-8")
    refused = tune("scale_rows.metal", "--space", space, "--device", "host")
    assert refused.exit_code == 2
    assert "Metal is compiled and run by no device" in refused.output
    assert "--device command:PROGRAM" in refused.output


def test_a_broken_evaluator_ends_the_run_and_it_can_go_on(project: Path) -> None:
    ended = new(fake("nonsense", "after=6", "log=log"))
    assert ended.exit_code == 2
    assert ended.output.count("Error: ") == 1
    assert "failed 3 times in a row" in ended.output
    assert "srun: job 17 queued" in ended.output
    assert "Traceback" not in ended.output
    with Session.open(Path("s"), read_only=True) as session:
        kept = session.trials()
    assert [trial.status for trial in kept[:4]] == ["correct"] * 4
    assert [trial.status for trial in kept[4:]] == ["launch"] * 2
    # Mended: the session's command stays the same, and so does what it has measured.
    log = Path("log")
    log.write_text("", encoding="utf-8")
    ended = tune("--resume", "s", "--json")
    assert ended.exit_code == 2, "it breaks again, six requests later"
    with Session.open(Path("s"), read_only=True) as session:
        assert session.trials()[:6] == kept
        assert len(session.trials()) > 6


def test_limits_hold_for_the_resources_that_it_states(project: Path) -> None:
    space = Path("scale_rows.yaml")
    text = space.read_text(encoding="utf-8") + "limits: {max_registers: 32}\n"
    space.write_text(text, encoding="utf-8")
    done = new(fake('answer={"resources": {"registers": 40}}'), "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["trials"]["resource_limit"] == 12


def test_a_strangers_session_asks_before_it_runs_its_program(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = fake("compares", "log=log")
    assert new(device, "--trials", 2).exit_code == 0
    assert tune("--resume", "s").exit_code == 0, "its own user is not asked"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    # The reference asks first, and a yes to it is none to the program.
    trust(Path("scale_rows.py"))
    Path("log").unlink()
    refused = tune("--resume", "s")
    assert refused.exit_code == 2
    assert "its device is a program, which would run with your rights" in refused.output
    assert not Path("log").exists()
    assert tune("--resume", "s", "--trust").exit_code == 0


def test_what_it_cannot_do_is_refused_in_a_sentence(project: Path) -> None:
    of_kernel = ("scale_rows.cu", "--space", "scale_rows.yaml", "--device", fake())
    start = (*of_kernel, "--session", "s")
    for words, told in (
        ((*start, "--objective", "energy"), "says times, but no energy"),
        ((*start, "--gpus", "2"), "--gpus 2 shares work among devices of tune's own"),
        ((*start, "--peers"), "peers run on a GPU only, not on --device command:"),
        (("record", *of_kernel), "cannot be recorded"),
    ):
        done = tune(*words)
        assert done.exit_code == 2
        assert told in done.output
    with pytest.raises(DeviceError, match="cannot rest on what"):
        Scorer("scale_rows.yaml", Effort(device=fake()))
    kernel = Path("scale_rows.cu")
    kernel.write_text(f"// status=compile\n{kernel.read_text(encoding='utf-8')}", encoding="utf-8")
    done = tune(*start)
    assert done.exit_code == 2
    assert "the baseline does not run" in done.output
    assert "it is said to be compile" in done.output
    assert not Path("s").exists()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "project")  # whose pieces the fake takes for microseconds
    yield bench
    bench.close()


def test_rounds_with_a_model_go_by_times_alone(bench: Bench) -> None:
    asked: list[Request] = []

    def noting(request: Request) -> str:
        asked.append(request)
        return fewer_pieces(request)

    device = fake("compares")
    with FakeOpenAI([planned(), noting]) as server:
        words = [*bench.asking("--rounds", 1)]
        words[words.index("host")] = device
        ended = bench.run(tuple(words), server.environ)
    assert ended.code == 0, ended.err
    assert list(bench.candidates()) == ["initial", "r1"]
    assert bench.events(Profiled) == []
    assert "There are no profiles" in asked[0].said
    tools = {one["function"]["name"] for one in asked[0].body["tools"]}
    assert {"render", "measure", "search"} <= tools
    assert not {"compile", "profile", "verify"} & tools
    assert set(bench.results().values()) == {"r1"}
