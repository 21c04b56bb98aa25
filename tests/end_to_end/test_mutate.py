"""`tune mutate` from the command line, with every mutant compiled and run on the CPU."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner
from manifests import plan_of

from tuner.app.session_plan import manifest_of
from tuner.cli import cli
from tuner.report.mutation_score import load_score
from tuner.session.session import Session

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
SILU = Path(__file__).parents[2] / "search_spaces/sglang/silu_and_mul.yaml"
MARKS = """\
version: 1
baseline:
  - operator: statement
    line: "spare(out);"
    change: "spare(out); -> ;"
    reason: "it does nothing"
"""


@pytest.fixture
def small(project):
    """The project with sizes that a CPU verifies at once, one of them with a tail."""
    project.edit(project.space, "tuned: [{N: 4096}, {N: 1048576}]", "tuned: [{N: 512}]")
    project.edit(project.space, "held_out: [{N: 100000}]", "held_out: [{N: 1000}]")
    return project


def session_of(project, folder: Path) -> Path:
    plan = plan_of(project.space)
    with Session.create(folder, manifest_of(plan, ("tune",)), {}):
        return folder


def test_the_share_the_counts_and_every_verdict_are_one_json_object(small, tune) -> None:
    done = tune("mutate", small.space, "--json", "--at-least", "100")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["kernel"], found["subject"], found["device"]) == ("scale", "baseline", "host")
    assert (found["share"], found["complete"], found["survivors"]) == (1.0, True, [])
    assert found["workloads"] == [{"N": 512}, {"N": 1000}]
    assert sum(found["counts"].values()) == found["examined"] == found["mutants"]
    by_id = {verdict["id"]: verdict for verdict in found["verdicts"]}
    tail = by_id["comparison `< -> <=` in `if (i < N) out[i] = 2.0f * in[i];`"]
    assert (tail["fate"], tail["workload"], tail["line"]) == ("killed", {"N": 1000}, 3)
    assert tail["reason"].startswith("incorrect: ")


def test_a_survivor_is_shown_with_its_diff_and_a_mark_to_paste(small, tune) -> None:
    small.edit(small.space, "held_out: [{N: 1000}]", "held_out: [{N: 1024}]")
    done = tune("mutate", small.space, "--at-least", "97")
    assert done.exit_code == 1
    assert "survived: " in done.stdout
    assert "+  if (i <= N) out[i] = 2.0f * in[i];" in done.stdout
    assert "put this under `baseline:` in " in done.stdout
    assert done.stderr.startswith("Error: ")
    assert "of the mutants caught, below the 97 % asked for" in done.stderr


@pytest.mark.parametrize("words", [("--equivalent", "marks.yaml"), ()], ids=str)
def test_a_mark_that_matches_nothing_is_an_error_with_its_line(small, tune, words) -> None:
    marks = small.root / "marks.yaml" if words else small.space.with_name("scale.mutants.yaml")
    marks.write_text(MARKS, encoding="utf-8")
    done = tune("mutate", small.space, *words)
    assert done.exit_code == 2
    expected = f"{marks.name}:3: no mutant of the baseline is statement `spare(out); -> ;`"
    assert expected in done.stderr
    assert "the nearest is:" in done.stderr


def test_a_score_is_stored_in_the_session_of_the_same_kernel_alone(small, tune) -> None:
    folder = session_of(small, small.root / "session")
    done = tune("mutate", small.space, "--session", folder, "--limit", "3", "--seed", "2")
    assert done.exit_code == 0, done.output
    score = load_score(folder)
    assert score is not None
    assert (score.kernel, score.subject, score.examined) == ("scale", "baseline", 3)
    assert f"3 of {score.mutants} mutants in " in done.stdout
    other = session_of(small, small.root / "other")
    small.edit(small.kernel, "2.0f", "2.00f")
    done = tune("mutate", small.space, "--session", other)
    assert done.exit_code == 2
    said = "the session is of another kernel than the one to mutate: kernels/scale.cu"
    assert said in done.stderr
    assert load_score(other) is None


def test_the_template_is_mutated_at_a_config(small, tune) -> None:
    words = ("--config", "block_size=64,per_thread=2", "--limit", "2", "--json")
    found = json.loads(tune("mutate", small.space, *words).stdout)
    assert found["subject"] == "block_size=64 per_thread=2"
    assert found["source"].endswith("templates/scale.cu.j2")
    assert found["examined"] == 2


def test_an_interruption_shows_what_is_known(small, start) -> None:
    process = start("mutate", small.space, "--json")
    while not process.stderr.readline().endswith(" mutants\n"):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == "interrupted"
    found = json.loads(output)
    assert found["complete"] is False
    assert found["examined"] < found["mutants"]


@pytest.mark.exhaustive
def test_a_sample_of_silu_and_mul_is_caught() -> None:
    words = ["mutate", str(SILU), "--limit", "6", "--at-least", "90", "--json"]
    done = CliRunner().invoke(cli, words, prog_name="tune")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["examined"] == 6
    assert found["wrong_marks"] == []
