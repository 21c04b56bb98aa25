"""`tune --step`: a run that ends wherever it needs an answer, and goes on somewhere else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_project import OWN, TEMPLATE, Bench, Ended, planned, template_of

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
STEP = ("--step", "--exchange", "exchange")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "project")
    yield bench
    bench.close()


def carry(bench: Bench) -> None:
    """Move everything to another place, as another machine would have it."""
    bench.root = shutil.move(bench.root, bench.root.with_name(f"{bench.root.name}-on"))


def write(folder: Path, template: str, **plan: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "template.cu.j2").write_text(template, encoding="utf-8")
    (folder / "space.yaml").write_text(OWN, encoding="utf-8")
    (folder / "plan.json").write_text(planned(**plan), encoding="utf-8")


def go_on(bench: Bench, *words: str) -> Ended:
    return bench.run(("scale.cu", "--space", "scale.yaml", "--resume", "mine", *STEP, *words))


@pytest.mark.slow
def test_a_run_is_carried_from_answer_to_answer(bench: Bench) -> None:
    asked = bench.run(bench.new("--rounds", 3, *STEP))
    assert (asked.code, asked.errors) == (4, 1)
    assert "no answer yet" in asked.err and "waiting for" not in asked.err
    carry(bench)
    unanswered = go_on(bench)
    assert unanswered.code == 4, "an answer that never comes costs no round"
    write(bench.root / "exchange/round-01", template_of(8))
    second = go_on(bench)
    assert second.code == 4, second.err
    assert "round-02" in second.err
    result = bench.root / "exchange/round-01/result.md"
    assert "its default config ran on N=1000" in result.read_text("utf-8")
    carry(bench)
    rounds = bench.root / "exchange/round-02"
    write(rounds / "a", template_of(4))
    write(rounds / "b", TEMPLATE.replace("= sum;", "= sun;"))
    third = go_on(bench, "--trials", "2")
    assert third.code == 4, third.err
    broken = (rounds / "b/result.md").read_text("utf-8")
    assert broken.startswith("refused: compile with block=64 on N=1000: template.cu.j2:8: error:")
    request = (bench.root / "exchange/round-03/request.md").read_text("utf-8")
    assert "- round 2a -> r2a: add fewer pieces" in request
    assert "Answer as `../round-01/request.md` says" in request
    carry(bench)
    (bench.root / "exchange/stop").touch()
    last = go_on(bench, "--json", "--quiet")
    assert last.code == 0, last.err
    ends = [(one["round"], one["answer"], one["end"]) for one in json.loads(last.out)["rounds"]]
    searched = [(1, None, "searched"), (2, "a", "searched")]
    assert ends == [*searched, (2, "b", "refused"), (3, None, "idle")]
    assert bench.candidates() == {"initial": None, "r1": "initial", "r2a": "r1"}


def test_a_session_alone_goes_on_where_its_kernel_still_is(bench: Bench, tmp_path: Path) -> None:
    assert bench.run(bench.new("--rounds", 1, *STEP)).code == 4
    away = tmp_path / "away"
    for name in ("mine", "exchange"):
        shutil.move(bench.root / name, away / name)
    own = ("--resume", str(away / "mine"), "--step", "--exchange", str(away / "exchange"))
    assert bench.run((*own, "--trust")).code == 4
    shutil.move(bench.root / "scale.yaml", away / "scale.yaml")
    lost = bench.run((*own, "--trust"))
    assert (lost.code, lost.errors) == (2, 1)
    assert "or name the kernel where it lies now" in lost.err


def test_a_step_is_for_those_who_answer_in_a_folder(bench: Bench) -> None:
    ended = bench.run(bench.new("--step", "--rounds", 1))
    assert (ended.code, ended.errors) == (2, 1)
    assert "--step is for --agent files, not for literal" in ended.err
