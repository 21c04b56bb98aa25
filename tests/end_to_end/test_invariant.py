"""`invariant`, on the CPU: honest kernels come to one class, and no trick of a kernel wins."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from row_sums import ORDERS, UNSEEN, row_sums

from tuner.cli import cli
from tuner.model.trial import Status
from tuner.session.session import Session

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
ROOT = Path(__file__).parents[2]
TRICKS = [name for name in ORDERS if name != "alone"]
DECLARED = ("invariant: {T: [y]}", "rows: {T: [y], by: [chunk]}")
FLAGS = ("--device", "host", "--searcher", "exhaustive", "--no-mutants")


def tune(kernel: Path, session: Path, *more: str) -> Result:
    space = kernel.with_suffix(".yaml")
    words = [kernel, "--space", space, "--session", session, *FLAGS, *more]
    return CliRunner().invoke(cli, [str(word) for word in words], prog_name="tune")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session in which one order is honest, with chunks that decide its bits."""
    folder = tmp_path_factory.mktemp("rows")
    done = tune(row_sums(folder, "alone", *TRICKS, "atomics"), folder / "session", "--json")
    assert done.exit_code == 0, done.stderr
    (folder / "said.json").write_text(done.stdout, encoding="utf-8")
    return folder / "session"


def said(session: Path) -> Any:
    return json.loads(session.with_name("said.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("trick", [*TRICKS, "atomics"])
def test_an_order_that_depends_on_other_rows_is_found_out(session: Path, trick: str) -> None:
    with Session.open(session, read_only=True) as opened:
        trials = [one for one in opened.trials() if one.config["order"] == trick]
    # Atomics also differ from call to call; few rows are right until they are among many, or have
    # the bits of a class that was not chosen.
    few = {Status.CORRECT, Status.OTHER_BITS}
    also = {"atomics": {Status.INCORRECT}, "many_rows": few}
    expected = {Status.NOT_INVARIANT} | also.get(trick, set())
    assert trials
    statuses = {one.status for one in trials}
    assert statuses <= expected
    assert statuses != {Status.CORRECT}
    assert all(one.reason for one in trials if one.status is not Status.CORRECT)


def test_a_trick_that_shows_at_33_rows_alone_says_so(session: Path) -> None:
    with Session.open(session, read_only=True) as opened:
        reasons = {t.reason for t in opened.trials() if t.config["order"] == "odd_sizes"}
    assert "a row gives other bits on T=4 K=100 than on T=33 K=100" in reasons


@pytest.mark.parametrize("trick", UNSEEN)
def test_what_no_size_of_the_search_shows_is_found_out_in_the_finals(
    tmp_path: Path, trick: str
) -> None:
    kernel = row_sums(tmp_path, trick, edit=("[1, 8, 32]\n  block: [32, 64]", "[8]\n  block: [32]"))
    done = tune(kernel, tmp_path / "session")
    assert done.exit_code == 0, done.stderr
    assert "No result: the only finalist failed a check that comes after the search" in done.stdout
    assert "gives other bits than" in done.stdout
    with Session.open(tmp_path / "session", read_only=True) as opened:
        assert {one.status for one in opened.trials()} == {Status.CORRECT}
        assert not opened.results()


def test_all_sizes_are_served_by_one_class_and_the_finals_looked_again(session: Path) -> None:
    with Session.open(session, read_only=True) as opened:
        results, checks, kept = opened.results(), opened.checks(), opened.kept_rows
        trials = opened.trials()
    assert len(results) == 3, "the held-out one too"
    assert len({one.config["chunk"] for one in results}) == 1
    assert not any(one.baseline_wins for one in results)
    assert len({*kept.values()}) == 1
    assert {one.workload.key for one in results} == {*kept}
    looked = {(c.workload, c.variant) for c in checks if c.kind == "bits" and c.passed}
    assert {(one.workload, one.variant) for one in results} <= looked
    honest = [one for one in trials if one.config["order"] == "alone"]
    statuses = {one.config["chunk"]: set[Status]() for one in honest}
    for one in honest:
        statuses[one.config["chunk"]].add(one.status)
    assert sorted(map(sorted, statuses.values())) == [["correct"], ["other_bits"], ["other_bits"]]


def test_the_json_object_the_report_and_the_tuned_files_say_so(session: Path) -> None:
    bits = said(session)["bits"]
    assert bits["rows_kept"] is True
    assert said(session)["trials"]["not_invariant"] >= len(TRICKS)
    for on in bits["workloads"]:
        chosen = [one for one in on["classes"] if one["chosen"]]
        assert [one["configs"] for one in chosen] == [2]
    page = (session / "report.html").read_text(encoding="utf-8")
    assert "One class serves all sizes of a problem" in page
    assert "the chosen one" in page
    for file in (session / "tuned").iterdir():
        first = file.read_text(encoding="utf-8").splitlines()[0]
        assert first.endswith(", with rows of the same bits at every size")


def test_an_rmsnorm_whose_block_decides_its_bits_comes_to_one_class(tmp_path: Path) -> None:
    text = (ROOT / "search_spaces/portable/rmsnorm.cu.yaml").read_text(encoding="utf-8")
    before, _, after = text.partition("workloads:")
    _, _, after = after.partition("min_bytes:")
    sizes = "workloads: {tuned: [{T: 1, H: 516}, {T: 40, H: 516}], held_out: [{T: 9, H: 516}]}"
    text = f"{before}{sizes}\nmin_bytes:{after}invariant: {{T: [out]}}\n"
    text = text.replace("[64, 128, 256, 512, 1024]", "[64, 128]").replace("256, vec", "64, vec")
    text = text.replace("keep_row: [false, true]", "keep_row: [false]")
    space = tmp_path / "rmsnorm.yaml"
    space.write_text(text.replace("../../", f"{ROOT}/"), encoding="utf-8")
    kernel = ROOT / "kernels/portable/rmsnorm.cu"
    words = [kernel, "--space", space, "--session", tmp_path / "session", *FLAGS]
    done = CliRunner().invoke(cli, [str(word) for word in words], prog_name="tune")
    assert done.exit_code == 0, done.stderr
    with Session.open(tmp_path / "session", read_only=True) as opened:
        results, trials, kept = opened.results(), opened.trials(), opened.kept_rows
    right = [one for one in trials if one.status in (Status.CORRECT, Status.OTHER_BITS)]
    classes = {
        workload: {one.correctness.bits for one in right if one.workload == workload}
        for workload in {one.workload for one in right}
    }
    assert len({frozenset(of) for of in classes.values()}) == 1, "the same at every size"
    assert len(classes.popitem()[1]) > 1, "its block and its vectors decide"
    (bits,) = {*kept.values()}
    winners = {one.variant for one in results}
    assert len(results) == 3
    assert {one.correctness.bits for one in right if one.variant in winners} == {bits}


def test_keep_bits_keeps_the_default_configs_rows(tmp_path: Path) -> None:
    kernel = row_sums(tmp_path, "alone", edit=("block: [32, 64]", "block: [32]"))
    done = tune(kernel, tmp_path / "session", "--keep-bits")
    assert done.exit_code == 0, done.stderr
    with Session.open(tmp_path / "session", read_only=True) as opened:
        results, kept = opened.results(), opened.kept_rows
    assert {one.config["chunk"] for one in results} == {8}
    assert len({*kept.values()}) == 1


def test_who_declares_rows_keeps_them_where_that_is_asked_for(tmp_path: Path) -> None:
    kernel = row_sums(tmp_path, "alone", "split_by_m", edit=DECLARED)
    for name, flags in (("free", ()), ("kept", ("--invariant",))):
        done = tune(kernel, tmp_path / name, *flags)
        assert done.exit_code == 0, done.stderr
        with Session.open(tmp_path / name, read_only=True) as opened:
            varying = {t.status for t in opened.trials() if t.config["order"] == "split_by_m"}
            assert (varying == {Status.NOT_INVARIANT}) is (bool(opened.kept_rows)) is bool(flags)
    page = (tmp_path / "kept/report.html").read_text(encoding="utf-8")
    assert "One class serves all sizes of a problem" in page
    again = ["verify", str(tmp_path / "kept"), "--device", "host"]
    done = CliRunner().invoke(cli, again, prog_name="tune")
    assert done.exit_code == 0, done.output
    to = tmp_path / "out"
    done = CliRunner().invoke(cli, ["export", str(tmp_path / "kept"), "--to", str(to)])
    assert done.exit_code == 0, done.output
    assert json.loads((to / "dispatch.json").read_text())["invariant"] == {
        "T": ["y"],
        "by": ["chunk"],
    }
    text = kernel.with_suffix(".yaml").read_text(encoding="utf-8")
    kernel.with_suffix(".yaml").write_text(
        text.replace("rows: {T: [y], by: [chunk]}\n", ""), "utf-8"
    )
    done = tune(kernel, tmp_path / "none", "--invariant")
    assert done.exit_code == 2
    assert "--invariant: sum_rows says of no output that it has rows" in done.stderr


def test_a_default_whose_rows_vary_is_no_model_for_keep_bits(tmp_path: Path) -> None:
    done = tune(row_sums(tmp_path, "split_by_m"), tmp_path / "session", "--keep-bits")
    assert done.exit_code == 2
    assert "is no model on T=" in done.stderr
    assert "not_invariant: " in done.stderr


def test_the_gate_of_an_answer_runs_rows_at_several_sizes(tmp_path: Path) -> None:
    kernel = row_sums(tmp_path, "alone", "split_by_m", edit=DECLARED)
    answer = tmp_path / "answer"
    answer.mkdir()
    template = (tmp_path / "sum_rows.cu.j2").read_text(encoding="utf-8")
    (answer / "template.cu.j2").write_text(template, encoding="utf-8")
    launch = {"kernel": "sum_rows", "grid": ["ceil_div(T, block)"], "block": ["block"]}
    for order in ("alone", "split_by_m"):
        default = {"order": order, "chunk": 8, "block": 32}
        values = {name: [value] for name, value in default.items()}
        space = {"parameters": values, "default": default, "launch": [launch]}
        lines = [f"{key}: {json.dumps(value)}\n" for key, value in space.items()]
        (answer / "space.yaml").write_text("".join(lines), encoding="utf-8")
        words = ["gate", str(answer), str(kernel), "--space", str(kernel.with_suffix(".yaml"))]
        done = CliRunner().invoke(cli, [*words, "--invariant"], prog_name="tune")
        assert done.exit_code == (0 if order == "alone" else 2), done.output
    assert (
        "refused: not_invariant with order=split_by_m chunk=8 block=32 on T=33 K=100" in done.stderr
    )
    assert "a row gives other bits on T=33 K=100 than on T=1 K=100" in done.stderr
    text = (answer / "space.yaml").read_text(encoding="utf-8").replace("chunk", "parts")
    (answer / "space.yaml").write_text(text, encoding="utf-8")
    done = CliRunner().invoke(cli, [*words, "--invariant"], prog_name="tune")
    assert done.exit_code == 2
    assert "bits of rows are decided by `chunk`, which is no parameter" in done.stderr


@pytest.mark.parametrize(
    ("order", "why"),
    [("neighbour", "gives other bits"), ("atomics", "differs between timed calls")],
)
def test_a_space_that_cannot_hold_it_is_one_error(tmp_path: Path, order: str, why: str) -> None:
    done = tune(row_sums(tmp_path, order), tmp_path / "session")
    assert done.exit_code == 2
    message = done.stderr.strip().splitlines()[-2:]
    assert "sum_rows.yaml:15: `invariant: {T: [y]}`: no config keeps it on T=" in message[0]
    assert why in message[0]
    assert done.stderr.count("Error: ") == 1
    assert "add up a row in an order" in message[1]
