"""`tune verify` from the command line: the winners of a session once more, on the CPU."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result as Done
from manifests import plan_of

from tuner.app.session_plan import manifest_of
from tuner.app.trust import trust
from tuner.model.config import Config
from tuner.model.trial import Result
from tuner.session.session import Session
from tuner.space.load import load_definition

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
Tune = Callable[..., Done]
Project = Any  # of conftest.py
RESULT = {
    "baseline_us": 2.0,
    "tuned_us": 1.0,
    "speedup": 2.0,
    "interval": (1.9, 2.1),
    "paired": True,
    "roofline_share": 0.5,
    "resources": None,
    "occupancy": None,
}


@pytest.fixture
def small(project: Project) -> Project:
    """The project with sizes that a CPU verifies at once, and one that is only verified."""
    project.edit(project.space, "tuned: [{N: 4096}, {N: 1048576}]", "tuned: [{N: 512}]")
    held_out = "held_out: [{N: 1000}]\n  edge_cases: [{N: 127}]"
    project.edit(project.space, "held_out: [{N: 100000}]", held_out)
    return project


def session_of(project: Project, config: Config | None = None) -> Path:
    """Make a session whose one winner is a config, the default one unless another is given."""
    plan = plan_of(project.space, device="cuda")
    spec, space = plan.spec, plan.space
    folder = project.root / "session"
    trust(spec.reference)
    with Session.create(folder, manifest_of(plan, ("tune",)), {}) as session:
        session.add_candidate("initial", plan.template.text, spec.path.read_text("utf-8"))
        winner = config or space.default
        session.append(Result(workload=spec.tuned[0], config=winner, **RESULT))
    return folder


def test_every_check_of_the_winner_is_repeated_and_kept(small: Project, tune: Tune) -> None:
    folder = session_of(small)
    done = tune("verify", folder, "--device", "host", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["passed"]
    made = {(check["kind"], check["workload"]["N"]) for check in found["checks"]}
    assert {("verify", 512), ("edge_cases", 127)} <= made
    assert {("sanitizers", 512), ("sanitizers", 127)} <= made
    assert all(check["passed"] and "CPU" in check["device"] for check in found["checks"])
    with Session.open(folder, read_only=True) as session:
        assert len(session.checks()) == len(found["checks"])


def test_what_the_reference_prints_is_kept_out_of_the_json(
    small: Project, tune: Tune, capfd: pytest.CaptureFixture[str]
) -> None:
    reference = small.kernel.with_suffix(".py")
    reference.write_text("print('read by nobody')\n" + reference.read_text("utf-8"), "utf-8")
    checked = tune("check", small.space, "--json", "--sample", "1")
    assert json.loads(checked.stdout)["kernel"] == "scale"
    capfd.readouterr()
    assert json.loads(tune("verify", session_of(small), "--device", "host", "--json").stdout)
    assert "read by nobody" not in capfd.readouterr().out


def test_a_winner_that_is_wrong_is_told_and_ends_with_an_exit_code_of_its_own(
    small: Project, tune: Tune
) -> None:
    small.edit(small.template, "if (first + k < N) out", "out")
    done = tune("verify", session_of(small), "--device", "host")
    assert done.exit_code == 3, done.output
    assert "FAILED" in done.stdout
    assert "N=512 is not to be trusted" in done.stdout
    assert "edge_cases N=127 FAILED" in done.stdout
    assert "uses an illegal address" in done.stdout
    assert f"{small.template}:" in done.stdout, "the sanitizers name the line"


def test_a_session_that_was_copied_elsewhere_is_told_where_its_files_are(
    small: Project, tune: Tune, tmp_path: Path
) -> None:
    folder = session_of(small)
    moved = tmp_path / "moved"
    shutil.copytree(small.root, moved)
    for path in (small.kernel, small.template, small.space):
        path.unlink()
    lost = tune("verify", folder, "--device", "host")
    assert lost.exit_code == 2
    assert "--space" in lost.stderr
    space = moved / small.space.relative_to(small.root)
    done = tune("verify", folder, "--device", "host", "--space", space)
    assert done.exit_code == 0, done.output


def test_what_cannot_be_verified_is_one_message(small: Project, tune: Tune) -> None:
    folder = session_of(small)
    reference = small.kernel.with_suffix(".py")
    text = reference.read_text(encoding="utf-8")
    reference.write_text(f"{text}\n# kinder\n", encoding="utf-8")
    done = tune("verify", folder, "--device", "host")
    assert done.exit_code == 2
    assert reference.name in done.stderr, "a file has changed since"
    reference.write_text(text, encoding="utf-8")
    with Session.open(folder) as session:
        session.withdraw_result(load_definition(small.space).spec.tuned[0])
    for words, told in (
        ((small.root / "nowhere",), "no such session"),
        ((folder, "--device", "host"), "has no winner to verify"),
        ((folder, "--device", "tpu"), "has no winner to verify"),
    ):
        done = tune("verify", *words)
        assert done.exit_code == 2
        assert told in done.stderr
