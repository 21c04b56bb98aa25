"""`tune timeline` as a user sees it: the table, what is missing, the commands."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from dispatch_sample import comparison, with_production
from operator_sessions import choices, write_operator_session
from timelines import LAYER, SILU, eager_layer, kernel, nsys_export, replayed_layer, torch_trace

from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Variant
from tuner.session.session import Session
from tuner.space.load import load_definition, workload_from_text

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "timeline.md"


@pytest.fixture(autouse=True)
def in_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "130")


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    return replayed_layer(tmp_path / "graph.json")


@pytest.fixture
def eager(tmp_path: Path) -> Path:
    return eager_layer(tmp_path / "eager.json")


def test_the_page_shows_what_the_program_prints(tune, graph: Path, eager: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    (line, shown) = re.findall(r"^\$ (tune timeline .*)\n((?:.*\n)*?)```", page, re.MULTILINE)[0]
    files = {"graph.json": graph, "eager.json": eager}
    result = tune(*(files.get(word, word) for word in shlex.split(line)[1:]))
    said = [text.rstrip() for text in result.output.splitlines()]
    assert said == [text.rstrip() for text in shown.splitlines()]


def test_the_object_has_the_rows_whose_shares_add_up(tune, graph: Path, eager: Path) -> None:
    found = json.loads(tune("timeline", graph, "--shapes", eager, "--json").stdout)
    assert sum(row["share"] for row in found["rows"]) == pytest.approx(1.0)
    assert (found["gpu"], found["gbps"]) == ("NVIDIA H200", 4800.0)
    rows = {row["operator"] or row["kind"]: row for row in found["rows"]}
    assert rows["silu_and_mul"]["workload"] == {"T": 64, "D": 14336}
    assert rows["fused_add_rmsnorm"]["workload"] is None
    assert rows["fused_add_rmsnorm"]["calls"] == 2
    assert rows["GEMM"]["at_most"] is None


def test_the_page_lists_the_keys_of_the_object(tune, graph: Path) -> None:
    found = json.loads(tune("timeline", graph, "--json").stdout)
    table = (
        PAGE.read_text(encoding="utf-8").partition("## The JSON object")[2].partition("\n## ")[0]
    )
    rows = [re.findall(r"`(\w+)`", line) for line in table.splitlines() if line.startswith("| `")]
    keys = {name for row in rows for name in row}
    kernels = found["rows"][0]["kernels"][0]
    assert keys == {*found, *found["rows"][0], *kernels, *("command", "at_most")}


def test_every_command_names_a_kernel_and_workloads_that_tune_takes(
    tune, graph: Path, eager: Path
) -> None:
    stated = ("--workload", "fused_add_rmsnorm:T=64,H=4096")
    found = json.loads(tune("timeline", graph, "--shapes", eager, *stated, "--json").stdout)
    assert len(found["commands"]) == 2
    for one in found["commands"]:
        program, source, option, workload = shlex.split(one["command"])
        assert (program, option) == ("tune", "--workload")
        assert Path(source).is_file()
        space = ROOT / "search_spaces" / "sglang" / f"{Path(source).stem}.yaml"
        workload_from_text(load_definition(space).spec, workload)


def test_replays_alone_say_how_to_get_the_shapes(tune, graph: Path) -> None:
    said = tune("timeline", graph).stdout
    assert "shapes not known: fused_add_rmsnorm, silu_and_mul" in said
    assert "name it with --shapes" in said
    assert "most to gain first" not in said


def test_with_shapes_only_what_has_none_anywhere_is_asked_for(
    tune, graph: Path, eager: Path
) -> None:
    said = tune("timeline", graph, "--shapes", eager).stdout
    assert "shapes not known: fused_add_rmsnorm\n" in said
    assert "name it with --shapes" not in said
    assert "--workload fused_add_rmsnorm:T=...,H=...\n" in said


def test_the_shapes_of_torch_serve_a_trace_of_nsys(tune, tmp_path: Path, eager: Path) -> None:
    name = "void <unnamed>::act_and_mul_kernel<__nv_bfloat16, (<unnamed>::ActivationKind)0>(P)"
    trace = nsys_export(tmp_path / "trace.sqlite", [(name, 0, 2160, 448)])
    assert "T=64,D=14336" in tune("timeline", trace, "--shapes", eager).stdout


def test_a_narrow_terminal_shows_everything_but_the_kernels_names(
    tune, graph: Path, eager: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = tune("timeline", graph, "--shapes", eager).stdout
    assert re.search(
        r"^silu_and_mul +T=64,D=14336 +1 +0\.9% +2\.16 +1\.15 +0\.4%$", said, re.MULTILINE
    )
    assert "nvjet" not in said


def test_the_rows_beyond_the_top_are_one(tune, graph: Path) -> None:
    said = tune("timeline", graph, "--top", "2").stdout
    assert re.search(r"^4 more rows +5 +4\.8%", said, re.MULTILINE)
    assert re.search(r"^all +100\.0%", said, re.MULTILINE)


def test_a_trace_that_was_to_have_shapes_and_has_none_is_refused(tune, graph: Path) -> None:
    result = tune("timeline", graph, "--shapes", graph)
    assert result.exit_code == 2
    assert "graph.json: no shapes of any operator in it" in result.stderr


def test_kernels_beside_others_are_said_to_be(tune, tmp_path: Path) -> None:
    events = [kernel("a", 0.0, 10.0), kernel("b", 5.0, 10.0, stream=8)]
    said = tune("timeline", torch_trace(tmp_path / "trace.json", events)).stdout
    assert "5.0 us ran beside others" in said


def write_silu_session(folder: Path, *peers: str) -> Path:
    """Write a session in which a config takes half of the baseline's time at T=64."""
    session = write_operator_session(folder, "silu_and_mul", choices("silu_and_mul")[0])
    space = load_definition(ROOT / "search_spaces/sglang/silu_and_mul.yaml").space
    assert space.default is not None
    workload = Workload.of({"T": 64, "D": 14336})
    made = comparison(workload, {Variant(INITIAL, space.default): 5.0})
    # As long as in the trace, or nearly so.
    made = replace(made, rounds=tuple(tuple(us / 5 for us in row) for row in made.rounds))
    with Session.open(session) as opened:
        for name in peers:
            made = with_production(made, 4.0, name)
        opened.append(replace(made, production=""))
    return session


@pytest.mark.parametrize(
    ("peers", "best", "speedup"), [((), "config", 2.0), (("fast",), "fast", 2.5)]
)
def test_the_best_that_sessions_know_says_what_the_step_gains(
    tune, graph: Path, eager: Path, tmp_path: Path, peers: tuple[str, ...], best: str,
    speedup: float,
) -> None:  # fmt: skip
    write_silu_session(tmp_path / "sessions" / "one", *peers)
    words = ("timeline", graph, "--shapes", eager, "--sessions", tmp_path / "sessions")
    found = json.loads(tune(*words, "--json").stdout)
    (row,) = [one for one in found["rows"] if one["best"]]
    assert (row["operator"], row["best"]["name"]) == ("silu_and_mul", best)
    assert row["best"]["speedup"] == pytest.approx(speedup, rel=1e-3)
    saved = 1 - 1 / speedup
    assert row["gain"]["share"] == pytest.approx(row["share"] * saved, rel=1e-3)
    gain = found["predicted"]
    assert gain["low"] <= gain["share"] <= gain["high"]
    assert gain["share"] == pytest.approx(saved * 2.16 / found["span_us"], rel=1e-3)
    said = tune(*words).stdout
    assert re.search(rf"{speedup:.2f}x {best} +0\.[45]% \(0\.[45]% to 0\.[45]%\)", said)
    assert "with the best that is known the step takes 0." in said


def test_a_session_of_another_gpu_or_choice_says_nothing(
    tune, graph: Path, eager: Path, tmp_path: Path
) -> None:
    gelu = {**choices("silu_and_mul")[0], "ACTIVATION": "gelu"}
    write_operator_session(tmp_path / "gelu", "silu_and_mul", gelu)
    words = ("timeline", graph, "--shapes", eager, "--sessions", tmp_path / "gelu")
    assert json.loads(tune(*words, "--json").stdout)["predicted"] is None
    result = tune(*words, "--gpu", "NVIDIA L4")
    assert result.exit_code == 2
    assert "no session in it compared anything on NVIDIA L4" in result.stderr


def test_what_was_gained_stands_beside_what_was_predicted(
    tune, graph: Path, eager: Path, tmp_path: Path
) -> None:
    events, now = [], 100.0
    for name, grid, us, _, _ in 2 * LAYER:
        took = 1.16 if name == SILU else us
        events.append(kernel(name, now, took, grid=[grid, 1, 1]))
        now += took + 0.6
    after = torch_trace(tmp_path / "after.json", events)
    write_silu_session(tmp_path / "one")
    words = ("timeline", graph, "--shapes", eager, "--sessions", tmp_path / "one", "--after", after)
    found = json.loads(tune(*words, "--json").stdout)
    rows = {row["operator"] or row["kind"]: row for row in found["rows"]}
    assert rows["silu_and_mul"]["after_us"] == pytest.approx(1.16)
    assert rows["silu_and_mul"]["gained"] == pytest.approx(1.0 / found["kernel_us"])
    assert rows["attention"]["gained"] == pytest.approx(0.0)
    assert found["measured"] == pytest.approx(1.0 / found["span_us"], abs=2e-3), (
        "of one step of two"
    )
    assert "afterwards it took 0." in tune(*words).stdout


def test_files_that_the_engine_looked_for_are_listed(tune, graph: Path, tmp_path: Path) -> None:
    name = "E=128,N=192,device_name=NVIDIA_H200.json"
    used = "E=8,N=192,device_name=NVIDIA_H200.json"
    (log := tmp_path / "log").write_text(
        f"Config file not found at /x/configs/{name}, you can\n"
        f"Using MoE kernel config from /x/configs/{used}.\n"
    )
    said = tune("timeline", graph, "--log", log).stdout
    assert f"`tune fleet MODEL --log`):\n  {name}\n" in said
    assert used not in said


def test_outside_the_tree_there_are_shares_and_no_floors(
    tune, tmp_path: Path, graph: Path, eager: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = tune("timeline", graph, "--shapes", eager).stdout
    assert "no search space found from here: fused_add_rmsnorm, silu_and_mul" in said
    assert "100.0%" in said


@pytest.mark.parametrize(
    ("gpu", "gbps"), [("H200", 4800.0), ("8000", 8000.0), ("NVIDIA L4", 300.0)]
)
def test_a_gpu_is_a_name_or_a_bandwidth(tune, graph: Path, gpu: str, gbps: float) -> None:
    assert json.loads(tune("timeline", graph, "--gpu", gpu, "--json").stdout)["gbps"] == gbps


@pytest.mark.parametrize("gpu", ["H2000", "0", "nan", "-5"])
def test_an_unknown_gpu_is_refused(tune, graph: Path, gpu: str) -> None:
    result = tune("timeline", graph, "--gpu", gpu)
    assert result.exit_code == 2
    assert "is no known GPU and no number of GB/s; known are t4" in result.stderr


def test_a_gpu_that_is_not_known_gives_no_floors(tune, tmp_path: Path) -> None:
    trace = torch_trace(tmp_path / "trace.json", [kernel("a", 0.0, 1.0)], gpu="NVIDIA B200")
    assert "NVIDIA B200, bandwidth not known: name it with --gpu" in tune("timeline", trace).stdout


@pytest.mark.parametrize("words", [["--shapes"], []])
def test_what_is_no_timeline_ends_with_code_2(
    tune, graph: Path, tmp_path: Path, words: list[str]
) -> None:
    other = tmp_path / "other.json"
    other.write_text("[1, 2]")
    result = tune("timeline", *([graph, *words] if words else []), other)
    assert result.exit_code == 2
    assert "other.json: a trace of 2 events, none of them on a GPU" in result.stderr
