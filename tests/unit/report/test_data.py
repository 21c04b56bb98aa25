"""A session becomes a report, with what its kernel's files add as long as they are unchanged."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from manifests import manifest

from tests.support.agent_doubles import Tools
from tests.support.simulated_device import SimulatedDevice
from tuner.analysis.base import Degree
from tuner.app.run import tune
from tuner.cli import cli
from tuner.extensions.agents.base import AgentAnswer
from tuner.extensions.agents.briefing import Briefer
from tuner.extensions.agents.open_agents import rounds_by
from tuner.extensions.agents.rounds import Author
from tuner.extensions.agents.tree import Greedy
from tuner.model.config import Config
from tuner.model.errors import SessionError
from tuner.model.kernel import Workload
from tuner.model.trial import (
    INITIAL,
    Check,
    Comparison,
    Measurement,
    Resources,
    Result,
    Status,
    Trial,
    Variant,
)
from tuner.report.data import ReportData, load
from tuner.report.html import render_report
from tuner.session.events import Expectation, Idea
from tuner.session.session import Session

SPACE = (Path(__file__).parent / "data" / "scale.yaml").read_text("utf-8")
BASELINE = "__global__ void scale(float* x) { x[blockIdx.x] *= 2; }\n"
TUNED = "__global__ void scale(float* x) { x[blockIdx.x * 64 + threadIdx.x] *= 2; }\n"
LARGE, SMALL = Workload.of({"T": 1024}), Workload.of({"T": 100}, held_out=True)
FAST, SLOW = Config.of({"block_size": 64}), Config.of({"block_size": 32})


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


ENVIRONMENT = {
    "device": "NVIDIA H200",
    "recorded": "true",
    "date": "2026-11-01",
    "streaming_gbps": "4000.0",
    "driver": "580.95",
}


def make_session(
    folder: Path, environment: Mapping[str, str] = ENVIRONMENT, **changes: object
) -> Session:
    for name, text in {
        "scale.yaml": SPACE,
        "scale.cu": BASELINE,
        "scale.py": "",
        "scale.cu.j2": TUNED,
    }.items():
        (folder / name).write_text(text)
    fields = {
        "space": folder / "scale.yaml",
        "template": folder / "scale.cu.j2",
        "space_sha": sha(folder / "scale.yaml"),
        "template_sha": sha(folder / "scale.cu.j2"),
        "source_sha": sha(folder / "scale.cu"),
        "device": "recorded",
        "searcher": "exhaustive",
        "seed": 3,
        "workloads": (LARGE, SMALL),
        "operators": {"MODE": "twice"},
        "command": ("tune", "my kernels/scale.cu"),
    }
    session = Session.create(folder / "run", manifest(**{**fields, **changes}), environment)
    session.add_candidate("initial", TUNED, SPACE)
    return session


def fill(session: Session) -> None:
    for workload in (LARGE, SMALL):
        session.record_baseline(workload, Measurement((4.0, 4.2, 4.1), 20, 4))
    made = Trial("initial", LARGE, FAST, Status.CORRECT, resources=Resources(20, 0, 0, 16))
    session.record(replace(made, measurement=Measurement((2.0, 2.1), 20, 4)))
    session.record(replace(made, config=SLOW, status=Status.RESOURCE_LIMIT, reason="too many"))
    session.record(replace(made, status=Status.CORRECT, stage="finals"))
    for workload in (LARGE, SMALL):
        session.append(Comparison(workload, (Variant(INITIAL, FAST),), ((4.1, 2.0),) * 40))
        session.append(Result(workload, 4.1, 2.0, 2.05, (2.0, 2.1), True, 0.4, FAST, None, None))
        session.write_variant(workload, Variant(INITIAL, FAST), TUNED)
    session.add_time(12.5)
    session.mark("complete")


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    with make_session(tmp_path) as session:
        fill(session)
    return tmp_path / "run"


def test_a_session_is_read_with_all_that_it_holds(finished):
    data = load(finished)
    assert (data.kernel, data.device, data.recorded) == ("scale", "NVIDIA H200", True)
    assert (data.measured_on, data.searcher, data.seed) == ("2026-11-01", "exhaustive", 3)
    assert data.command == "tune 'my kernels/scale.cu'"
    assert data.seconds == pytest.approx(12.5, abs=0.5)
    assert data.finished
    assert data.counts()[Status.CORRECT] == data.counts()[Status.RESOURCE_LIMIT] == 1
    assert [trial.stage for trial in data.finals] == ["finals"]
    assert data.baselines_us == {"T=1024": 4.1, "T=100": 4.1}
    assert [result.workload.held_out for result in data.results] == [False, True]
    assert data.environment == {"operator MODE": "twice", "driver": "580.95"}


def test_the_kernels_files_add_the_roofline_the_diff_and_shared_memory(finished):
    data = load(finished)
    assert data.notes == ()
    assert data.streaming_gbps == 4000.0
    assert data.traffic_bytes == {"T=1024": 8192, "T=100": 800}
    assert data.operations == {"T=1024": 3072, "T=100": 300}
    assert data.baseline_source == BASELINE
    assert data.shared_bytes(data.trials[0]) == 64 * 4 + 16


def with_candidate(finished: Path, space: str) -> ReportData:
    """Read the session with a candidate of this space and its trial."""
    other = Trial("r1", LARGE, FAST, Status.CORRECT, resources=Resources(20, 0, 0, 16))
    with Session.open(finished) as session:
        session.add_candidate("r1", TUNED, space, "initial")
        session.record(replace(other, measurement=Measurement((1.9,), 20, 4)))
    return load(finished)


@pytest.mark.parametrize(
    ("space", "shared_bytes"),
    [
        (SPACE.replace("block_size * 4", "1024 + block_size"), 1024 + 64 + 16),
        (SPACE.replace("block_size * 4", "block_size * 8 if MODE == 'twice' else 0"), 64 * 8 + 16),
        ("version: 99", None),
    ],
    ids=["its own", "by a choice of the operator", "of a space that cannot be read"],
)
def test_each_candidates_launches_ask_for_their_own_shared_memory(finished, space, shared_bytes):
    data = with_candidate(finished, space)
    by_candidate = {t.candidate: data.shared_bytes(t) for t in data.trials if t.config == FAST}
    assert by_candidate == {"initial": 64 * 4 + 16, "r1": shared_bytes}


def test_a_session_without_an_agent_has_no_rounds(finished):
    data = load(finished)
    assert (data.author, data.rounds, data.profiles) == (None, (), ())
    assert [one.name for one in data.candidates] == ["initial"]
    assert not data.several


def test_checks_the_mutation_score_and_what_is_declared_are_read(finished, monkeypatch):
    monkeypatch.setattr("tuner.report.data._TELLS_HOST", re.compile("__global__"))
    score = {
        "kernel": "scale",
        "subject": "baseline",
        "mutants": 50,
        "killed": 39,
        "survived": 1,
        "equivalent": 4,
        "stillborn": 6,
        "survivors": ["one"],
        "source_sha": "00",
        "date": "2026-11-20",
        "device": "host",
    }
    (finished / "mutation.json").write_text(json.dumps(score))
    check = Check("edge_cases", Workload.of({"T": 7}), FAST, True, "", "NVIDIA H200")
    with Session.open(finished) as session:
        session.append(check)

    data = load(finished)

    assert data.checks == (check,)
    assert data.mutation is not None
    assert data.mutation.share == 39 / 40
    assert data.declared is not None
    assert data.declared.edge_cases == (Workload.of({"T": 7}),)
    assert data.declared.varying == ("x",)
    assert data.declared.asking == ("scale.cu", "template initial")


def test_a_damaged_mutation_score_is_named(finished):
    (finished / "mutation.json").write_text("{}")
    with pytest.raises(SessionError, match="is not the score"):
        load(finished)


def test_variants_are_read_without_the_lines_that_tell_them_apart(finished):
    assert load(finished).tuned_sources == {"T=1024": TUNED, "T=100": TUNED}


@pytest.mark.parametrize("name", ["scale.yaml", "scale.cu"])
def test_a_changed_file_is_not_compared_with(finished, name):
    changed = finished.parent / name
    changed.write_text(changed.read_text() + "\n")
    data = load(finished)
    assert (data.traffic_bytes, data.baseline_source) == ({}, "")
    assert str(changed) in data.notes[0]
    assert len(data.results) == 2


def test_a_session_outlives_its_kernel(finished, tmp_path_factory):
    moved = shutil.move(finished, tmp_path_factory.mktemp("kept") / "run")
    shutil.rmtree(finished.parent)
    data = load(Path(moved))
    assert "cannot be read any more" in data.notes[0]
    assert len(data.results) == 2
    assert data.shared_bytes(data.trials[0]) == 64 * 4 + 16


def test_a_live_session_is_dated_by_its_own_start(tmp_path):
    make_session(tmp_path, {"device": "NVIDIA L4", "recorded": "false"}, device="cuda").close()
    data = load(tmp_path / "run")
    assert (data.device, data.recorded, data.measured_on) == ("NVIDIA L4", False, "2026-11-20")
    assert (data.streaming_gbps, data.finished) == (None, False)


def test_the_command_writes_the_report_and_prints_where(finished):
    (finished / "report.html").write_text("old")
    result = CliRunner().invoke(cli, ["report", str(finished)])
    assert (result.exit_code, result.stdout) == (0, f"{finished / 'report.html'}\n")
    assert "2.05x faster than the baseline" in (finished / "report.html").read_text()


def test_the_command_writes_where_it_is_told_and_prints_json_alone(finished, tmp_path):
    out = tmp_path / "elsewhere" / "mine.html"
    result = CliRunner().invoke(cli, ["report", str(finished), "--out", str(out), "--json"])
    assert result.exit_code == 0
    made = json.loads(result.stdout)
    assert made["workloads"][0]["speedup"] == 2.05
    assert made["recorded"] is True
    assert made["session"] == str(finished)
    assert out.exists()


def test_an_unfinished_session_has_a_report_too(tmp_path):
    make_session(tmp_path).close()
    result = CliRunner().invoke(cli, ["report", str(tmp_path / "run")])
    assert result.exit_code == 0
    assert "no config was tried" in (tmp_path / "run" / "report.html").read_text()


def test_what_is_no_session_is_refused(tmp_path):
    with pytest.raises(SessionError):
        load(tmp_path)
    result = CliRunner().invoke(cli, ["report", str(tmp_path / "missing")])
    assert result.exit_code == 2
    assert "missing" in result.stderr


def test_a_place_that_cannot_be_written_is_named(finished):
    (finished.parent / "file").write_text("")
    out = finished.parent / "file" / "report.html"
    result = CliRunner().invoke(cli, ["report", str(finished), "--out", str(out)])
    assert result.exit_code == 2
    assert "choose another place with --out" in result.stderr


AGENT_TEMPLATE = """
constexpr int kThreads = @{ threads }@;
extern "C" __global__ void scale(float* out, const float* in, int N) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i < N) out[i] = in[i] + in[i];
}
"""
AGENT_SPACE = """
parameters: {threads: [64, 128]}
constraints: []
default: {threads: 128}
launch: [{kernel: scale, grid: ["ceil_div(N, threads)"], block: [threads]}]
"""


class Adding:
    """An agent that writes one good template, after one that does not compile."""

    name = "adding"

    def converse(self, briefing, toolbox, transcript):
        return self

    def plan(self):
        return Idea(INITIAL, "adding is cheap", "add", (Expectation("time_us", 0.5),))

    def refactor(self):
        return AgentAnswer(AGENT_TEMPLATE.replace("+ in[i]", "+ in[i"), AGENT_SPACE)

    def tell(self, text):
        pass

    def repair(self, problem):
        return AgentAnswer(AGENT_TEMPLATE, AGENT_SPACE)


def test_a_session_that_the_rounds_wrote_has_a_report(make_plan, make_session, compiler, listener):
    plan = make_plan(rounds=1)
    device = SimulatedDevice(lambda program: 10.0 + program.launches[0].threads / 64)

    def author(session, candidates):
        briefer = Briefer(plan, session, candidates, device.info, Degree.STATIC)
        return Author(Adding(), Greedy(), briefer.of, lambda *_: Tools(), None, verifies=True)

    with make_session(plan) as session:
        tune(
            plan,
            session=session,
            device=device,
            compiler=compiler,
            listener=listener,
            run_rounds=rounds_by(author),
        )
        folder = session.directory

    data = load(folder)

    (one,) = data.rounds
    assert (one.end, one.record.candidate, len(one.record.problems)) == ("searched", "r1", 1)
    assert data.searched == (INITIAL, "r1")
    assert data.candidates[1].speedup == one.speedup
    html = render_report(data)
    assert "1 answer refused" in html
    assert "The tree of candidates" in html
