"""The loop over KernelBench-Verified: its problems by rule, a run of it on the CPU, its judge."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernelbench_verified import judge, problems, run
from kernelbench_verified.problems import Problem, Row, chosen, make_folder, read_row, rows_in
from kernelbench_verified_section import over_best, over_eager, section
from posed_problem import TWICE

KERNEL = """#define BLOCK_SIZE 128

__global__ void twice(const float* __restrict__ x, float* __restrict__ out, int rows, int width) {
  const int i = blockIdx.x * BLOCK_SIZE + threadIdx.x;
  if (i >= rows * width) return;
  out[i] = 2.0f * x[i] + (x[i] > 0.0f ? 0.5f * x[i] : 0.0f);
}

void launch(const float* x, float* out, int rows, int width) {
  twice<<<(rows * width + BLOCK_SIZE - 1) / BLOCK_SIZE, BLOCK_SIZE>>>(x, out, rows, width);
}
"""
TEMPLATE = KERNEL[: KERNEL.index("void launch")].replace("BLOCK_SIZE 128", "BLOCK_SIZE @{ block }@")
SPACE = """parameters: {block: [32, 64, 256]}
default: {block: 64}
launch: [{kernel: twice, grid: ["ceil_div(rows * width, block)"], block: [block]}]
"""


HARNESS = """import types

def eval_kernel_against_ref(original_model_src, custom_model_src, hidden_test_path, **more):
    names = {}
    exec(custom_model_src, names)
    right = names.get("right", "ModelNew" in names)
    said = {"hidden": hidden_test_path, "device": 0}
    return types.SimpleNamespace(correctness=right, metadata=said, runtime=0.5, peak_memory=100)
"""


def test_every_fifth_problem_is_tried_and_the_next_one_where_that_is_left_out() -> None:
    by_level = {level: [one.pid for one in chosen(5) if one.level == level] for level in (1, 2, 3)}
    assert by_level[1] == list(range(5, 101, 5))
    assert by_level[2] == sorted({*range(5, 101, 5)} - {80} | {81})
    assert by_level[3] == list(range(5, 51, 5))
    first_pass = chosen(10)
    assert [len([one for one in first_pass if one.level == level]) for level in (1, 2, 3)] == [
        10,
        10,
        5,
    ]
    assert {*first_pass} <= {*chosen(5)}


def test_each_arm_has_eight_problems_in_two_repetitions_and_folders_of_their_own() -> None:
    rows = problems.rows_of(5, arms=True)
    assert {one.arm for one in rows} == {"time", "profile", "template", "search", "all"}
    assert len({one.problem for one in rows}) == 8 and len({one.key for one in rows}) == 80
    assert not {one.key for one in rows} & {one.key for one in problems.rows_of(5, arms=False)}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Lay out problems of ours as the benchmark has them."""
    for level, pid, name in ((1, 10, "Twice"), (1, 20, "Wrong"), (2, 10, "Unanswered")):
        path = tmp_path / f"checkout/KernelBench/level{level}/{pid}_{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TWICE, "utf-8")
    (tmp_path / "checkout/src").mkdir()
    for name, text in (("__init__", "from . import utils\n"), ("utils", "import ten_services\n")):
        (tmp_path / f"checkout/src/{name}.py").write_text(text, "utf-8")
    (tmp_path / "checkout/src/eval.py").write_text(HARNESS, "utf-8")
    return tmp_path / "checkout"


@pytest.fixture
def call(checkout: Path) -> Callable[[], run.Call]:
    environ = os.environ | {"PYTHONPATH": str(run.ROOT), "TUNE_STORE": "none"}
    return lambda: run.Call(checkout, "host", time.monotonic() + 200, environ)


def answer(state: Path, name: str, **files: str) -> None:
    """Answer the newest request of a problem as an agent does."""
    row = read_row(state / name)
    assert row.state == "asks", row
    place = (state / name / row.request).parent
    for file, text in files.items():
        (place / file).write_text(text, "utf-8")
    (place / "agent.json").write_text('{"agent": "scripted", "tokens": 100}', "utf-8")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_problems_go_as_far_as_they_are_answered_on_one_machine_after_another(
    tmp_path: Path, call: Callable[[], run.Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(run, "ROUNDS", 1)
    monkeypatch.setattr(run, "MOST_REFUSED", 1)
    state = tmp_path / "state"
    rows = [Row(1, 10, "time"), Row(1, 20), Row(2, 10)]
    run.prepare(state, rows, [call()], "")
    assert {row.state for _, row in rows_in(state)} == {"asks"}

    answer(state, "level1_10", **{"kernel.cu": KERNEL})
    answer(state, "level1_20", **{"kernel.cu": KERNEL.replace("0.5f", "0.25f")})
    run.prepare(state, [], [call()], "1e-3")
    assert "out: {absolute: 1e-3, relative: 1e-3}" in (
        state / "level1_10/search_spaces/level1_10.yaml"
    ).read_text("utf-8")
    run.run_all(state, [call()], ())
    found = {row.key: row for _, row in rows_in(state)}
    assert found["level1_20"].state == "lost" and "wrong" in found["level1_20"].reason
    assert not found["level2_10"].steps, "nobody has answered"
    asked = found["level1_10"].request
    assert asked == "exchange/round-01/request.md"
    assert "There are no profiles" in (state / "level1_10" / asked).read_text("utf-8")

    problems.pack(state, tmp_path / "state.tar.xz")
    shutil.rmtree(state)
    problems.unpack(tmp_path / "state.tar.xz", state)
    answer(state, "level1_10", **{"template.cu.j2": TEMPLATE, "space.yaml": SPACE})
    run.run_all(state, [call()], ())
    row = read_row(state / "level1_10")
    assert row.result["rounds"][0]["end"] == "searched" and row.best_us
    assert (row.state, row.judged["correct"]) == ("judged", True), row.judged
    assert row.judged["peers"] == {}, "which the harness times on a GPU alone"

    (first, lost, _) = judge.collect(state)
    assert (first["answers"], first["tokens"], first["agents"]) == (2, 200, ["scripted"])
    assert len(first["request_words"]) == 2 and first["answer_words"] > 50
    assert lost["state"] == "lost" and lost["answers"] == 1
    judge.keep_kernels(state, tmp_path / "kernels")
    kept = {str(one.relative_to(tmp_path / "kernels")) for one in tmp_path.glob("kernels/*/**/*.*")}
    assert kept == {
        "level1_10/kernel.cu",
        "level1_10/round-01/template.cu.j2",
        "level1_10/round-01/space.yaml",
    }


def test_a_problem_that_nothing_decides_is_lost_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = json.dumps({"workloads": [], "undecided": {"N=1": "not enough memory for N=1"}})
    monkeypatch.setattr(run, "run_program", lambda *_: (0, said, ""))
    monkeypatch.setattr(run, "best_us", lambda _: 3.0)
    row = Row(1, 20, state="ready")
    (tmp_path / "exchange").mkdir()
    run.run_step(tmp_path, row, run.Call(tmp_path, "auto", time.monotonic() + 9, {}))
    assert (row.state, row.reason) == ("lost", "not enough memory for N=1")


def test_an_arm_is_options_of_the_same_run_and_a_line_for_its_agent(
    tmp_path: Path, checkout: Path
) -> None:
    state = tmp_path / "state"
    assert not make_folder(state, Row(1, 10, "all", 2), checkout).exists(), "nothing to begin with"
    first = make_folder(state, Row(1, 10, part="twice", tolerance="1e-3"), checkout)
    for name, text in (("twice.py", TWICE), ("twice.cu", KERNEL), ("search_spaces/twice.yaml", "")):
        (first / name).parent.mkdir(exist_ok=True)
        (first / name).write_text(text, "utf-8")
    (first / "templates").mkdir()
    words, told = {}, {}
    for arm in run.ARMS:
        row = Row(1, 10, arm, 2)
        folder = make_folder(state, row, checkout)
        assert (folder / "twice.cu").read_text("utf-8") == KERNEL, "all begin alike"
        assert (folder / "search_spaces/twice.yaml").exists()
        assert (row.state, row.kernel, row.tolerance) == ("ready", "twice", "1e-3")
        words[arm] = " ".join(run.words_for(folder, row, "cuda"))
        told[arm] = (folder / problems.README).read_text("utf-8")
    assert {arm for arm in words if "--no-profile" in words[arm]} == {"time", "search"}
    assert {arm for arm in words if "--trials 1 " in words[arm]} == {"time", "profile", "template"}
    assert {arm for arm in told if "every parameter one value" in told[arm]} == {"time", "profile"}
    assert all("--seed 2" in each and "--peers" in each for each in words.values())


@pytest.mark.parametrize(
    ("stated", "part", "problem", "tolerance"),
    [
        ("1e-3", "", "nn.ConvTranspose2d(3, 4)", "absolute: 1e-3, relative: 1e-3, tf32: true"),
        ("1e-3", "norm", "nn.Conv2d(3, 4)", "absolute: 1e-3, relative: 1e-3"),
        ("1e-3", "", "nn.Linear(3, 4)", "absolute: 1e-3, relative: 1e-3"),
        ("", "", "nn.Conv2d(3, 4)", ""),
    ],
)
def test_a_convolution_that_is_tuned_may_round_its_operands_to_tf32(
    stated: str, part: str, problem: str, tolerance: str
) -> None:
    assert run.choose_tolerance(stated, part, problem) == tolerance


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("right = True", ""),
        ("right = False", "level1/10_hidden.py"),
        ("import os; os._exit(7)", "the harness ended: exit code 7"),
        ("raise ValueError('no')", "the harness ended: ValueError: no"),
        ("right = True; import warnings; warnings.warn('x: PyTorch computes it')", "not ours"),
    ],
)
def test_the_benchmarks_harness_judges_in_a_process_that_may_end_in_any_way(
    tmp_path: Path, checkout: Path, text: str, why: str
) -> None:
    pytest.importorskip("torch")
    answer = tmp_path / "answer.py"
    answer.write_text(text, "utf-8")
    environ = os.environ | {"PYTHONPATH": str(run.ROOT)}
    found = judge.run_harness(Problem(1, 10), checkout, environ, 60.0, answer)
    assert found["correct"] is (not why)
    assert why in found["why"]
    assert found.get("ms") == (None if why else 0.5)


def test_what_the_harness_has_no_time_for_is_late(tmp_path: Path, checkout: Path) -> None:
    (tmp_path / "answer.py").write_text("import time; time.sleep(60)", "utf-8")
    asked = Problem(1, 10), checkout, os.environ | {"PYTHONPATH": str(run.ROOT)}, 0.5
    assert judge.run_harness(*asked, tmp_path / "answer.py") == {"late": True}
    assert judge.run_harness(*asked, None, [*judge.MODES]) == {"late": True}


@pytest.mark.parametrize(("factor", "right"), [(2.0, True), (1e7, False)])
def test_a_problem_that_roundings_decide_is_compared_with_itself(
    factor: float, right: bool
) -> None:
    torch = pytest.importorskip("torch")

    class Sine(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any, more: int) -> Any:
            return torch.sin(factor * x) + more

    read = Sine, list, lambda: [torch.rand(64), 3]
    harness = SimpleNamespace(
        load_original_model_and_inputs=lambda text, names: read,
        get_tolerance_for_precision=lambda precision: 1e-3,
        set_seed=torch.manual_seed,
    )
    found = judge._compare_apart(torch, harness, "", "cpu")
    assert found["correct"] is right
    assert (found["max"] > 1e-3) is not right


def result_of(pid: int, us: float | None, right: bool = True, **changes: Any) -> dict[str, Any]:
    peers = {"eager": 100.0, "torch.compile": 50.0, "torch.compile-max": 60.0}
    return {
        **{"level": 1, "pid": pid, "arm": "all", "repetition": 0, "tuned_us": us, "gpu_s": 90.0},
        **{"state": "judged" if us else "lost", "reason": "" if right else "it | was wrong"},
        "peers_us": peers if us else {},
        "judged": {"correct": right, "ms": 0.1, "peak_bytes": 50} if us else {},
        "whole": {"eager": {"ms": 0.2, "peak_bytes": 100}} if us else {},
        "part": "",
        **{"request_words": [1000, 2000], "answer_words": 600, "answers": 2, "tokens": None},
        **{"agents": ["somebody"], "again": pid == 20, **changes},
    }


def test_the_page_has_every_problem_and_counts_misses_as_once() -> None:
    rows = [result_of(10, 25.0), result_of(20, 25.0, right=False), result_of(30, None)]
    rows += [
        result_of(10, us, arm=arm, repetition=repetition)
        for arm, times in (("time", (50.0, 25.0)), ("all", (25.0, 25.0)))
        for repetition, us in enumerate(times, 1)
    ]
    text = "\n".join(section({"rows": rows, "environment": {"device": "a GPU"}}, "h200"))
    mean = 4.0 ** (1 / 3)
    assert f"| 1 | 3 | 1 | {mean:.2f}x | 1.3x | {2.0 ** (1 / 3):.2f}x | 1.05x | 33% |" in text
    assert (
        "| 1 10 |  | 25.0 | 100.0 | 50.0 | 60.0 | 4.00x | 2.00x | 2.00x | 0.50x | 90 |  |" in text
    )
    assert (
        "| 1 20 |  | 25.0 | 100.0 | 50.0 | 60.0 | 1x | 1x | - | - | 90 | lost: it / was wrong |"
        in text
    )
    assert "second time, with both times in *GPU s*: 1 20. Faults" in text
    assert "| 1 30 |  | - | - | - | - | 1x | 1x | - | - | 90 | lost: lost |" in text
    assert "Written by somebody: 6 requests of 1,500 words" in text
    assert "| time | 2.83x | 1.00x | 2.00x | 180 | 4 |" in text
    assert "with times alone: 1.41x (asked: 1.15x)" in text


def test_the_page_says_where_nothing_passes_but_pytorchs_own_bits() -> None:
    judged = {"correct": False, "exact": {"correct": True}}
    for apart, said in (
        ({"correct": True, "max": 1e-5}, ""),
        ({"correct": False, "max": 0.09}, "0.090"),
    ):
        row = result_of(10, 25.0, judged=judged | {judge.APART: apart})
        text = "\n".join(section({"rows": [row], "environment": {"device": "a GPU"}}, "h200"))
        assert "without TF32, else not" in text
        assert (f"eager is {said} from itself" in text) is bool(said)


def test_what_was_slower_than_pytorch_counts_as_it_is() -> None:
    assert over_eager(result_of(10, 200.0)) == 0.5
    assert over_best(result_of(10, 200.0)) == 0.25
    assert over_eager(result_of(10, 200.0, peers_us={})) == 2.0, "as the harness timed both"


def test_of_a_part_the_harness_timed_the_whole() -> None:
    timed = {"eager": 0.4, "torch.compile": 0.15, "torch.compile-max": 0.2}
    whole = {name: {"ms": ms} for name, ms in timed.items()}
    row = result_of(10, 5.0, part="bias_relu", whole=whole)
    assert (over_eager(row), over_best(row)) == (4.0, 1.5)
    del whole["torch.compile-max"]
    assert over_best(row) == 1.0, "the best may be the one that was not timed"


@pytest.mark.parametrize(
    ("flops", "part"),
    [(1e12, "norm_relu"), (1e9, "")],  # 15 ms of CUDA cores, and 15 us: less than the bytes take
)
def test_the_part_that_loses_most_is_tuned_unless_cuda_cores_compute_it_all(
    flops: float, part: str
) -> None:
    def step(name: str, problem: str, flops: float, floor_us: float, single_us: float) -> Any:
        worth = {"flops": flops, "floor_us": floor_us, "one_by_one_us": single_us}
        return {"name": name, "problem": problem, "worth": worth}

    steps = [step("conv2d", "", flops, 100.0, 100.0), step("gelu", "gelu", 1e6, 10.0, 15.0)]
    steps += [step(f"norm_relu{n}", "norm_relu", 1e6, 5.0, 9.0) for n in ("", "_1")]
    assert run.choose_part(steps) == part
