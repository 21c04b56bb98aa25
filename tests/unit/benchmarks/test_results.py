"""From a recording's session to its result file, and from result files to the page."""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import environment
import pytest
import results_page
from dispatch_sample import ENVIRONMENT, ONE, SOME, A, B, comparison, write_project, write_session
from operators_section import AgainstPeer, _against, cells
from summarize_session import summary

from tuner.dispatch.evidence import compare_with_baseline
from tuner.model.trial import Check, Comparison, PeerTrial, Result, Status, Variant
from tuner.session.session import Session

CLEAN = "0123456789ab"


def beside_peers(one: Comparison, peers_us: dict[str, float], production: str = "") -> Comparison:
    """Add peers as columns, each a share of the baseline's time, and times alone."""
    rows = tuple((*row, *(row[0] * us / 10.0 for us in peers_us.values())) for row in one.rounds)
    alone = tuple(2.0 * us for us in rows[0])
    return replace(
        one,
        rounds=rows,
        peers=tuple(peers_us),
        surroundings="decode",
        alone_us=alone,
        production=production,
    )


def result_of(one: Comparison, variant: Variant) -> Result:
    found = compare_with_baseline(one, one.column(variant), 0)
    return Result(
        *(one.workload, found.baseline_us, found.time_us, found.speedup, found.interval),
        *(True, 0.5, variant.config, None, None),
        candidate=variant.candidate,
        surroundings="decode",
    )


@pytest.fixture
def found(tmp_path: Path) -> dict[str, Any]:
    """What is kept of a session: ours is ahead on one workload, and 5 % behind on the other."""
    ahead = beside_peers(comparison(ONE, {A: 5.0, B: 9.0}), {"sgl-aot": 6.0}, "sgl-aot")
    behind = beside_peers(comparison(SOME, {A: 8.0}), {"sgl-aot": 7.6, "sgl-jit": 9.0}, "sgl-aot")
    folder = write_session(
        tmp_path / "session",
        write_project(tmp_path / "project"),
        (ahead, behind),
        environment={**ENVIRONMENT, "commit": CLEAN},
    )
    with Session.open(folder) as session:
        session.append(result_of(ahead, A))
        session.append(result_of(behind, A))
        session.append(Check("memcheck", ONE, A.config, True))
        session.append(Check("edge_cases", ONE, B.config, False, "out[0]"))
        session.append(PeerTrial(ONE, "sgl-aot", Status.CORRECT, "fails: extreme"))
        session.append(PeerTrial(ONE, "sgl-jit", Status.NOT_RECORDED, "not installed"))
    return summary(folder)


def written(folder: Path, name: str, content: dict[str, Any], gpu: str = "h200") -> None:
    environment.write_result(folder / gpu / f"{name}.json", content)


def test_a_session_that_knew_no_commit_gets_none_when_it_is_summarized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNE_COMMIT", CLEAN)
    folder = write_session(tmp_path / "session", write_project(tmp_path / "project"))
    environment.write_result(tmp_path / "kept.json", summary(folder))
    with pytest.raises(SystemExit, match="of commit unknown"):
        results_page.read(tmp_path / "kept.json")


def test_every_program_has_its_cost_and_its_ratio_to_the_winner(found: dict[str, Any]) -> None:
    one, _ = found["workloads"]
    programs = {program["name"]: program for program in one["programs"]}
    assert list(programs) == ["baseline", str(A), str(B), "sgl-aot"]
    assert programs[str(A)]["over_winner"] == 1.0
    assert programs["sgl-aot"]["over_winner"] == pytest.approx(1.2, abs=0.01)
    low, high = programs["sgl-aot"]["over_winner_interval"]
    assert 1.0 < low <= programs["sgl-aot"]["over_winner"] <= high
    low, high = programs["baseline"]["interval_us"]
    assert low <= programs["baseline"]["us"] <= high
    assert programs["baseline"]["alone_us"] == pytest.approx(20.0, rel=0.01)


def test_the_checks_that_ran_are_counted_and_failures_listed(found: dict[str, Any]) -> None:
    assert found["checks"]["kinds"]["memcheck"] == {"passed": 1, "failed": 0, "not_run": 0}
    (failure,) = found["checks"]["failures"]
    assert failure["kind"] == "edge_cases"
    assert failure["reason"] == "out[0]"


def test_peers_that_fail_or_are_missing_say_why(found: dict[str, Any]) -> None:
    assert found["workloads"][0]["peers"] == {
        "sgl-aot": {"status": "correct", "reason": "fails: extreme"},
        "sgl-jit": {"status": "not_recorded", "reason": "not installed"},
    }


def test_the_page_lists_each_cell_that_is_behind(found: dict[str, Any], tmp_path: Path) -> None:
    written(tmp_path, "blend", found)
    text = results_page.page(tmp_path)
    assert "| cells behind the best peer by more than 2 % | 0 | 1 of 2 **missed** |" in text
    assert "\n- blend T=64,D=4096: 0.95x" in text
    assert "blend T=1,D=4096:" not in text
    assert "- sgl-aot, 1 of 2 workloads: compared: fails: extreme" in text
    assert "memcheck 1" in text
    marks = "".join(results_page.MARKS)
    said = " ".join(results_page.readme(f"before\n{marks}after\n", tmp_path).split())
    assert said.startswith("before <!-- results --> On an NVIDIA H200")
    assert "on 0 shapes between products of a model, on 2 between stand-ins" in said
    assert "On 1 of them the best peer is more than 2 % ahead." in said
    assert said.endswith("They are to be measured again. <!-- end of results --> after")


def test_the_page_is_made_of_the_files_that_are_there(tmp_path: Path) -> None:
    text = results_page.page(tmp_path)
    assert "being measured anew" in text
    assert "## " not in text
    rows = [{"workload": "T=1", "same": False, "regret": 0.004}]
    operators = [{"kernel": "rmsnorm", "seconds": [9.0, 10.0], "workloads": rows}]
    content = {"environment": {"commit": CLEAN}, "operators": operators}
    written(tmp_path, "two_seeds", content)
    assert "| rmsnorm | 1 | 0 | 0.40% | 0.40% | 0.00% | 9, 10 |" in results_page.page(tmp_path)


@pytest.mark.parametrize("commit", ["", "0123456789ab-dirty", None])
def test_a_result_of_no_clean_commit_is_refused(
    found: dict[str, Any], tmp_path: Path, commit: str | None
) -> None:
    written(tmp_path, "blend", {**found, "environment": {"commit": commit, "device": "H200"}})
    with pytest.raises(SystemExit, match=r"blend\.json: is of commit .*clean commit"):
        results_page.page(tmp_path)


def test_a_replay_of_a_recording_is_refused(found: dict[str, Any], tmp_path: Path) -> None:
    replayed = {**found["environment"], "recorded": "true"}
    written(tmp_path, "blend", {**found, "environment": replayed})
    with pytest.raises(SystemExit, match="is a replay"):
        results_page.page(tmp_path)


def test_a_result_that_was_edited_by_hand_is_refused(found: dict[str, Any], tmp_path: Path) -> None:
    written(tmp_path, "blend", found)
    path = tmp_path / "h200/blend.json"
    text = path.read_text(encoding="utf-8")
    results_page.read(path)
    assert '"rounds": ' in text
    for edited in (text.replace('"rounds": ', '"rounds": 1'), text.replace('"digest"', '"was"')):
        path.write_text(edited, encoding="utf-8")
        with pytest.raises(SystemExit, match=r"blend\.json: was edited by hand.*git checkout"):
            results_page.page(tmp_path)


def test_a_figure_over_one_peer_names_what_was_not_measured(found: dict[str, Any]) -> None:
    asked = AgainstPeer("blend", {"T": (1, 2), "D": (4096,)}, "sgl-aot", 1.12)
    (figure,) = _against(asked, cells([found]))
    assert figure.got.startswith("1.20x (1.")
    assert figure.got.endswith("; 1 not measured")
    assert figure.met is False


def test_every_result_file_names_a_clean_commit() -> None:
    for path in results_page.RESULTS.rglob("*.json"):
        results_page.read(path)


def test_the_commit_is_stated_where_git_knows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNE_COMMIT", CLEAN)
    assert environment.require_clean() == CLEAN
    monkeypatch.setenv("TUNE_COMMIT", f"{CLEAN}-dirty")
    with pytest.raises(SystemExit, match="commit what was changed"):
        environment.require_clean()
    monkeypatch.delenv("TUNE_COMMIT")
    monkeypatch.setattr(environment, "ROOT", Path("/"))
    with pytest.raises(SystemExit, match="TUNE_COMMIT"):
        environment.require_clean()


def commits_of(content: Any) -> set[str]:
    """Collect every commit that a result names."""
    if isinstance(content, dict):
        own = {content["commit"]} if isinstance(content.get("commit"), str) else set()
        return own.union(*map(commits_of, content.values()))
    return set().union(*map(commits_of, content)) if isinstance(content, list) else set()


def git(*words: str) -> bytes:
    """Ask git of this history; skip where the checkout has none."""
    root = results_page.ROOT
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, check=False)
    if done.returncode or (root / ".git/shallow").exists():
        pytest.skip("this checkout has no history")
    return done.stdout


def test_a_result_names_the_files_of_its_commit() -> None:
    results = results_page.RESULTS
    for gpu in (results_page.GPU, *results_page.other_gpus(results)):
        for linear in (False, True):
            for one in results_page.operator_results(results, linear, gpu):
                files, commit = one["files"], one["environment"]["commit"]
                for kind, path in (
                    ("space", f"search_spaces/sglang/{one['kernel']}.yaml"),
                    ("template", f"templates/sglang/{one['kernel']}.cu.j2"),
                ):
                    content = git("show", f"{commit}:{path}")
                    assert hashlib.sha256(content).hexdigest()[:12] == files[kind], path


def test_a_result_names_commits_of_this_history_or_is_told_as_lost() -> None:
    history = git("rev-list", "HEAD").decode().split()
    for path in sorted(results_page.RESULTS.rglob("*.json")):
        named = commits_of(json.loads(path.read_text(encoding="utf-8"))) - {""}
        unknown = {one for one in named if not any(full.startswith(one) for full in history)}
        assert unknown <= environment.LOST, path
