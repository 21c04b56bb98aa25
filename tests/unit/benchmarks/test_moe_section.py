"""The page's part on the files of SGLang's fused MoE kernel."""

from __future__ import annotations

import json
import lzma
import math
import sys
from pathlib import Path
from typing import Any

import fused_moe
import fused_moe_figures
import fused_moe_seeds
import measured_again
import moe_section
import pytest
from manifests import manifest, plan_of

from tuner.extensions.engines.configs.winners import Tables
from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import Comparison, Measurement, Status, Trial, Variant
from tuner.session.session import Session

ROUNDS = tuple((10.0 + 0.01 * n, 8.0 + 0.01 * n, 9.0, 16.0 + 0.02 * n) for n in range(20))
WORKLOAD = Workload.of({"M": 16, "E": 128})
RESULT = "benchmarks/results/h200/fused_moe.json"


def comparison() -> Comparison:
    finalists = tuple(Variant("initial", Config.of({"BLOCK_SIZE_M": m})) for m in (16, 32))
    return Comparison(WORKLOAD, finalists, ROUNDS, peers=("without_file",))


def test_what_is_written_is_compared_with_the_engine_and_with_its_guess() -> None:
    row = fused_moe_figures.row(comparison(), Tables(own={16: {"BLOCK_SIZE_M": 32}}), 24)
    assert (row["tokens"], row["us"], row["config"]) == (16, 9.0, {"BLOCK_SIZE_M": 32})
    assert row["over_engine"][0] == 1.1217
    assert row["over_default"][0] == 1.7989


def test_where_nothing_is_proved_faster_the_engine_s_own_is_what_is_written() -> None:
    table = Tables(own={16: {"BLOCK_SIZE_M": 16}}, undecided={16: "nothing is proved faster"})
    row = fused_moe_figures.row(comparison(), table, 24)
    assert (row["config"], row["over_engine"]) == (None, [1.0, 1.0, 1.0])
    assert row["us"] == row["engine_us"]


def test_trials_are_counted_until_one_percent_of_the_best() -> None:
    assert fused_moe_figures.needed((3.0, 2.0, 1.01, 1.0), 1.0) == 3
    assert fused_moe_figures.needed((3.0, 2.0), 1.0) is None


def test_the_trials_of_a_space_can_be_counted_again_from_what_is_kept_of_it() -> None:
    result = json.loads(fused_moe_figures.ROOT.joinpath(RESULT).read_text(encoding="utf-8"))
    said = {(one["weights"], one["columns"], one["tokens"]): one for one in result["searches"]}
    kept = fused_moe_figures.read_measured()
    most = [one for one in kept if len(one["us"]) >= fused_moe_figures.FEWEST_CONFIGS]
    assert len(most) >= 4
    for one in most:
        space = fused_moe_figures.space_of(one)
        axes = space.workload.values
        found = said[one["weights"], axes["N"], axes["M"]]
        assert (len(space.pool), round(space.optimum_us, 3)) == (found["configs"], found["best_us"])
    # Of the last, with the first of its seeds.
    assert fused_moe_figures.searched(space, one["weights"], 1)["trials"] == found["trials"][:1]


def recorded(folder: Path, workload: Workload, us: dict[int, float | None]) -> Path:
    """A session of `record`, with times by BLOCK_SIZE_M; its baseline takes 8 us."""
    written = manifest(operators={"WEIGHTS": "bf16"}, workloads=(workload, Workload.of({"M": 2})))
    with Session.create(folder, written, {"commit": "abc"}) as session:
        session.add_candidate("initial", "", "")
        session.record_baseline(workload, Measurement((8.0,), 8, 8))
        for size, one in us.items():
            timed = None if one is None else Measurement((one,), 8, 8)
            status = Status.LAUNCH if one is None else Status.CORRECT
            values = Config.of({"BLOCK_SIZE_M": size})
            session.record(Trial("initial", workload, values, status, measurement=timed))
    return folder


def named(size: int) -> str:
    return f'{{"BLOCK_SIZE_M":{size}}}'


@pytest.mark.parametrize("anew", [False, True])
def test_what_sessions_measured_of_a_space_is_added_to_what_is_kept_of_it(
    tmp_path: Path, anew: bool
) -> None:
    workload = Workload.of({"M": 16, "E": 128})
    folder = recorded(tmp_path / "run", workload, {16: 3.00049, 32: None, 64: 4.0})
    path = tmp_path / "spaces.json.xz"
    other = {"workload": "M=1,E=128", "weights": "bf16", "commit": "abb", "us": {"{}": 1.0}}
    before = {named(16): 2.0, named(128): 5.0}
    known = {**other, "workload": workload.key, "baseline_us": 10.0, "us": before}
    path.write_bytes(lzma.compress(json.dumps([other, known]).encode()))
    (own,) = fused_moe_figures.kept([folder], path, anew=anew)
    if anew:
        us = {named(16): 3.0, named(32): None, named(64): 4.0}
        assert own == {**known, "commit": "abc", "baseline_us": 8.0, "us": us}
    else:
        # The baseline took 10 us when the first part was measured, and now takes 8.
        us = {**before, named(32): None, named(64): 5.0}
        assert own == {**known, "commit": "abb abc", "us": us}
    assert fused_moe_figures.read_measured(path) == [other, own]


def test_a_session_that_was_stopped_before_its_baseline_has_measured_nothing(
    tmp_path: Path,
) -> None:
    begun = Workload.of({"M": 2})  # of the session too, with a trial that was known before
    folder = recorded(tmp_path / "run", Workload.of({"M": 16, "E": 128}), {16: 3.0})
    with Session.open(folder) as session:
        session.record(Trial("initial", begun, Config.of({"BLOCK_SIZE_M": 16}), Status.LAUNCH))
    own = fused_moe_figures.kept([folder], tmp_path / "spaces.json.xz")
    assert [one["workload"] for one in own] == ["M=16,E=128"]


def test_a_space_that_is_only_begun_is_not_searched() -> None:
    (kept,) = (one for one in fused_moe_figures.read_measured() if is_least(one))
    begun = {**kept, "us": dict(list(kept["us"].items())[: fused_moe_figures.FEWEST_CONFIGS - 1])}
    assert fused_moe_figures.searches([], [begun], 1) == []


def is_least(kept: dict[str, Any]) -> bool:
    return kept["weights"] == "fp8_block" and kept["workload"].startswith("M=1,")


def test_a_record_goes_on_with_what_is_kept_of_its_space(tmp_path: Path) -> None:
    (kept,) = (one for one in fused_moe_figures.read_measured() if is_least(one))
    workload = fused_moe_figures.space_of(kept).workload
    plan = plan_of(fused_moe.SPACE, workloads=(workload,), operators={"WEIGHTS": kept["weights"]})
    written = manifest(operators=plan.config.operators, workloads=plan.config.workloads)
    with Session.create(tmp_path / "run", written, {"commit": "abc"}) as session:
        for _ in range(2):
            fused_moe.know(session, plan)
        found = session.trials("initial", workload)
    assert {trial.config.key: trial.time_us for trial in found} == kept["us"]


def test_a_folder_without_a_fleet_is_refused_before_searches_are_replayed_for_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fused_moe_figures, "searches", lambda *_: pytest.fail("replayed"))
    monkeypatch.setattr(sys, "argv", ["fused_moe_figures.py", str(tmp_path), "--replay"])
    with pytest.raises(SystemExit):
        fused_moe_figures.main()
    assert f"{tmp_path}: has no session of a fleet" in capsys.readouterr().err


def fleet(seed: int, *rows: tuple[int, int, float]) -> dict[str, Any]:
    worth = [
        {
            **{"tokens": tokens, "trials": 24, "us": 9.0, "engine_us": 10.0},
            "config": {"BLOCK_SIZE_M": size},
            "over_engine": [ratio, ratio - 0.01, ratio + 0.01],
        }
        for tokens, size, ratio in rows
    ]
    return {"columns": 768, "seed": seed, "seconds": None, "asked": 4, "rows": worth}


def test_where_two_seeds_differ_their_configs_are_timed_against_each_other() -> None:
    first, second = fleet(0, (1, 16, 1.1), (16, 32, 1.1)), fleet(1, (1, 16, 1.1), (16, 16, 1.2))
    fleets = [{**one, "two": False} for one in (first, second)]
    shared, pairs = fused_moe_seeds.differing({"fleets": fleets}, 768)
    assert shared == 2
    assert pairs == {16: ({"BLOCK_SIZE_M": 32}, {"BLOCK_SIZE_M": 16})}
    # A result lists the fleet that was made last first.
    assert fused_moe_seeds.differing({"fleets": fleets[::-1]}, 768) == (shared, pairs)
    with pytest.raises(SystemExit, match="1 fleets have 768 columns"):
        fused_moe_seeds.differing({"fleets": fleets[:1]}, 768)


def test_where_two_seeds_are_of_one_mind_that_is_the_result_and_nothing_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleets = [{**fleet(seed, (1, 16, 1.1)), "two": False} for seed in (0, 1)]
    result, out = tmp_path / "result.json", tmp_path / "out.json"
    about = {"device": "NVIDIA H200"}
    result.write_text(json.dumps({"fleets": fleets, "environment": about}), encoding="utf-8")
    words = ["fused_moe_seeds.py", "--result", str(result), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(fused_moe_seeds, "measured", lambda *_: pytest.fail("timed"))
    fused_moe_seeds.main()
    found = json.loads(out.read_text(encoding="utf-8"))
    assert (found["shared"], found["rows"]) == (1, [])
    assert "of 0 they differ" in "\n".join(moe_section.seeds(found))


def test_an_interval_is_that_of_draws_not_of_rounds() -> None:
    sure = fused_moe_seeds.summary([1.02] * 12)
    assert (sure["ratio"], sure["interval"]) == (1.02, [1.02, 1.02])
    unsure = fused_moe_seeds.summary([0.97, 1.03] * 6)
    low, high = unsure["interval"]
    assert low < 0.99
    assert high > 1.01


def test_numbers_of_tokens_that_were_not_made_again_are_kept_with_their_commit(tmp_path) -> None:
    def made(commit: str, *tokens: int) -> dict[str, Any]:
        return {"commit": commit, **fleet(0, *((number, 16, 1.1) for number in tokens))}

    path = tmp_path / "result.json"
    other = {**made("c0", 8), "seed": 1}
    earlier = {"fleets": [made("c1", 1, 16), other], "environment": {"commit": "c1"}}
    path.write_text(json.dumps(earlier), encoding="utf-8")
    found, kept = fused_moe_figures.with_fleets(path, [made("c2", 16, 64)])
    assert kept == other
    assert [(row["tokens"], row.get("commit")) for row in found["rows"]] == [
        (1, "c1"),
        (16, None),
        (64, None),
    ]
    experts = {"experts": 32, "hidden": 7168, "ep": 8, "weights": "fp8_block"}
    assert len(fused_moe_figures.with_fleets(path, [{**made("c3", 64), **experts}])) == 3
    qwen3 = {**made("c3", 1, 16), **fused_moe_figures.UNSAID}
    assert fused_moe_figures.with_fleets(path, [qwen3]) == [qwen3, other]


def test_two_sessions_are_compared_by_the_configs_that_both_have() -> None:
    found = measured_again.logs(comparison())
    (low, high) = found.values()
    assert low[0] == pytest.approx(math.log(8.0 / 10.0), abs=0.01)
    assert high[0] == pytest.approx(math.log(9.0 / 10.0), abs=0.01)


def test_what_differs_between_processes_is_told_from_what_draws_do() -> None:
    """Of one config: no draw differs, processes by 0.02 and GPUs by 0.1."""
    rows = [
        {"workload": "M=1", "configs": ["a"], "gpu": gpu, "draws": [[level]] * 4}
        for gpu, levels in {0: (0.0, 0.02), 1: (0.1, 0.12)}.items()
        for level in levels
    ]
    said = measured_again.summary(rows)["deviations"]
    assert said["draw"] == said["error_of_a_process"] == 0.0
    assert said["process"] == pytest.approx(0.02 / 2**0.5, abs=1e-4)
    assert said["gpu"] == pytest.approx((0.1**2 / 2 - 0.02**2 / 4) ** 0.5, abs=1e-4)
