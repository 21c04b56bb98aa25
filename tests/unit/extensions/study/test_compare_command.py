"""`tune compare` as a user sees it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.caches import cache, written
from tuner.device.recorded.recording import SUFFIX
from tuner.extensions.study import comparison

KEYS = {"score", "share_50", "share_100", "within_95", "seconds_per_run"}


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of 20 configs, in the current folder."""
    monkeypatch.chdir(tmp_path)
    return written(tmp_path / "a100.json.gz", cache())


def test_it_prints_the_table_and_draws_the_curves(tune, recording: Path) -> None:
    words = ("--searchers", "random,exhaustive", "--seeds", 3, "--trials", 10)
    result = tune("compare", "--recording", recording, *words)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    titles = "recording searcher score at 5 at 10 within 95 % s a run"
    assert " ".join(lines[0].split()) == titles
    assert [line.split()[:1] for line in lines[1:3]] == [["a100"], ["exhaustive"]]
    assert lines[-1] == "comparisons/a100/compare.html"
    assert "<svg" in Path(lines[-1]).read_text()
    assert "a100: random, 3 runs" in result.stderr


def test_json_is_one_object_on_standard_output(tune, recording: Path, tmp_path: Path) -> None:
    words = ("--searchers", "random,optuna,random", "--seeds", 2, "--trials", 6, "--json")
    result = tune("compare", "--recording", recording, *words, "--out", tmp_path / "out")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert list(found) == ["random", "optuna"]
    assert all(set(scores) == KEYS for scores in found.values())
    assert (tmp_path / "out/compare.html").exists()


def test_several_recordings_have_a_row_each_and_their_mean(tune, recording, tmp_path) -> None:
    other = written(tmp_path / "h100.json", cache())
    words = ("--searchers", "random", "--seeds", 2, "--trials", 5)
    result = tune("compare", "--recording", recording, "--recording", other, *words)
    assert [line.split()[0] for line in result.stdout.splitlines()[1:4]] == ["a100", "h100", "all"]
    assert result.stdout.splitlines()[-1] == "comparisons/a100-and-1-more/compare.html"


def test_recordings_of_one_name_are_told_apart_by_their_folders(tune, recording, tmp_path) -> None:
    for gpu in ("a100", "h100"):
        (tmp_path / gpu).mkdir()
        written(tmp_path / gpu / "gemm.json", cache())
    given = [word for gpu in ("a100", "h100") for word in ("--recording", f"{gpu}/gemm.json")]
    words = ("--searchers", "random", "--seeds", 2, "--trials", 5)
    result = tune("compare", *given, "--recording", recording, *words)
    names = ["a100/gemm", "h100/gemm", "a100"]
    assert [line.split()[0] for line in result.stdout.splitlines()[1:5]] == [*names, "all"]
    page = Path(result.stdout.splitlines()[-1]).read_text()
    assert all(f"<h3>{name}</h3>" in page for name in names)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--searchers", "magic"), "'magic' is none of"),
        (("--searchers", "random,"), "'' is none of"),
        (("--searchers", "kernel_tuner:magic"), "strategy 'magic' is not available"),
        (("--seeds", "0"), "0 is not in the range"),
        (("--trials", "0"), "0 is not in the range"),
        (("--trials", "21"), "has 20 configs, fewer than 21 trials"),
        (("--workload", "N=1000"), "holds one workload"),
        (("--recording", "none.json"), "'none.json' does not exist"),
        (("--out", "a100.json.gz"), "is no folder"),
        (("--out", "a100.json.gz/below"), "is no folder"),
    ],
)
def test_bad_input_is_one_error(tune, recording: Path, words, message: str) -> None:
    result = tune("compare", "--recording", recording, "--seeds", 1, "--trials", 5, *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not Path("comparisons").exists()


def test_a_space_of_fewer_than_100_configs_is_searched_by_half(tune, recording: Path) -> None:
    result = tune("compare", "--recording", recording, "--searchers", "random", "--seeds", 1)
    assert "at 5  at 10" in result.stdout


def test_no_recording_is_a_usage_error(tune) -> None:
    result = tune("compare")
    assert result.exit_code == 2
    assert "Missing option '--recording'" in result.stderr


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("cut.json", '{"cache": {', "is damaged: `tune_params_keys`"),
        ("text.json", "time,block\n", "is not a recording: it is not compressed with xz"),
        ("list.json", "[]", "holds a JSON list, not an object"),
        ("word.json", '"[]"', "holds a JSON str, not an object"),
        ("nothing.json", "", "is not a recording: it is empty"),
        ("other.json", '{"trials": []}', "neither a Kernel Tuner cache nor T4 results"),
        ("failed.json", None, "none of its 1 configs is correct"),
        (f"ours{SUFFIX}", "no", "is not a recording"),
    ],
)
def test_a_damaged_file_is_one_error(tune, recording, tmp_path, name, content, message) -> None:
    failed = cache(cache={"a": {"block": 32, "items": 1, "time": "InvalidConfig"}})
    path = written(tmp_path / name, failed if content is None else content)
    result = tune("compare", "--recording", path)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to_is_found_before_the_runs(tune, recording) -> None:
    locked = recording.parent / "locked"
    locked.mkdir(mode=0o555)
    result = tune("compare", "--recording", recording, "--trials", 5, "--out", locked / "out")
    assert (result.exit_code, "cannot be written to" in result.stderr) == (2, True)


def test_an_interruption_ends_it_with_130(tune, recording, monkeypatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison, "replay", interrupt)
    result = tune("compare", "--recording", recording, "--trials", 5, "--json")
    assert (result.exit_code, result.stdout) == (130, "")
    assert "interrupted" in result.stderr


ROOT = Path(__file__).parents[4]


def test_our_own_recording_is_read_with_the_search_space_beside_it(tune, tmp_path) -> None:
    path = ROOT / "kernels/sglang/recordings/h200/silu_and_mul.json.xz"
    words = ("--workload", "T=1,D=11008", "--seeds", 2, "--trials", 20, "--searchers", "random")
    result = tune("compare", "--recording", path, *words, "--json", "--out", tmp_path)
    assert result.exit_code == 0, result.stderr
    assert 0.5 < json.loads(result.stdout)["random"]["share_100"] <= 1.0


def test_a_recording_without_a_search_space_asks_for_one(tune, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept = ROOT / "kernels/sglang/recordings/h200/silu_and_mul.json.xz"
    path = tmp_path / f"alone{SUFFIX}"
    path.write_bytes(kept.read_bytes())
    words = ("--seeds", 1, "--trials", 2, "--searchers", "random", "--workload", "T=1,D=11008")
    result = tune("compare", "--recording", path, *words)
    assert result.exit_code == 2
    assert "no search space named alone.yaml" in result.stderr
    space = ROOT / "search_spaces/sglang/silu_and_mul.yaml"
    assert tune("compare", "--recording", path, *words, "--space", space).exit_code == 0
