"""What a run prints at its end: the results on one screen, the verdict last."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from tuner.cli.console import Console, fit_to_file
from tuner.cli.ending import print_end, print_so_far
from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import Measurement, Occupancy, Resources, Result, Status, Trial
from tuner.report.data import ReportData

NAMES = ("layout", "block_size", "vector_bytes", "vectors_per_thread", "persistent", "streaming")


def config(index: int) -> Config:
    return Config.of({name: f"{name}_{index}" for name in NAMES})


def result(index: int, workload: Workload) -> Result:
    speedup = 1.0 + index / 100
    return Result(
        workload=workload,
        baseline_us=100.0 * speedup,
        tuned_us=100.0,
        speedup=speedup,
        interval=(speedup - 0.005, speedup + 0.005),
        paired=True,
        roofline_share=0.5,
        config=config(index),
        resources=Resources(32),
        occupancy=Occupancy(1.0, 8, "shared memory"),
        surroundings="decode" if index % 2 else "",
        alone_us=90.0,
        alone_baseline_us=99.0,
    )


@pytest.fixture
def many() -> ReportData:
    """34 results, 13 of them held out, as of the kernel that the README tunes."""
    workloads = [
        Workload.of({"T": 2**index if index < 13 else index + 100, "D": 14336}, held_out=index > 20)
        for index in range(34)
    ]
    results = tuple(result(index - 5, workload) for index, workload in enumerate(workloads))
    return ReportData(
        kernel="silu_and_mul",
        device="NVIDIA H200",
        recorded=True,
        results=results,
        surroundings={"decode": "decode: " + "after gemm T x 2 * D x 4096 at input, " * 4},
        environment={"protocol": "1"},
        session="sessions/x",
    )


def printed(data: ReportData, width: int, height: int, **options: bool) -> list[str]:
    file = StringIO()
    console = Console(file=file, width=width, height=height, force_terminal=True, color_system=None)
    print_end(data, Path("sessions/x"), console, **options)
    return file.getvalue().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 50), (100, 30)])
def test_a_result_of_34_workloads_fits_the_screen(
    many: ReportData, width: int, height: int
) -> None:
    lines = printed(many, width, height)
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)


def test_on_24_lines_are_eight_rows_the_best_the_worst_and_the_median_first(
    many: ReportData,
) -> None:
    lines = printed(many, 80, 24)
    rows = [line for line in lines if re.search(r"T=\d+ D=14336 +[\d.]+ +[\d.]+", line)]
    assert len(rows) == 8
    assert [row.split()[0] for row in rows[:3]] == ["best", "worst", "median"]
    assert [re.search(r"[\d.]+x", row)[0] for row in rows[:3]] == ["1.15x", "0.95x", "1.05x"]
    assert any(line.startswith("26 more") and "`tune show sessions/x`" in line for line in lines)


def test_the_verdict_is_last_and_the_paths_are_before_it(many: ReportData, tmp_path: Path) -> None:
    lines = printed(many, 80, 24)
    text = " ".join(lines)
    assert text.endswith("proved on 15 of 21, slower on 5.") or "faster than" in lines[-2]
    assert text.index("sessions/x/tuned") < text.index("faster than the baseline")


def test_wider_screens_have_more_columns_and_never_a_word_that_is_cut(many: ReportData) -> None:
    heads = {width: " ".join(printed(many, width, 50)[:2]) for width in (80, 120, 300)}
    assert "speedup" in heads[80]
    assert "occupancy," not in heads[80]
    assert "occupancy," in heads[120]
    assert "config" not in heads[120]
    assert "config" in heads[300]
    assert "streaming=streaming_-4" in "\n".join(printed(many, 300, 50))


def test_what_is_noisy_is_neither_the_best_nor_the_worst(many: ReportData) -> None:
    first, *others = many.results
    noisy = replace(first, speedup=3.0, interval=(0.5, 9.0))
    lines = printed(replace(many, results=(noisy, *others)), 80, 24)
    assert "1.15x" in next(line for line in lines if line.startswith("best"))


def test_nothing_is_left_out_of_a_file_or_where_the_whole_is_wanted(
    many: ReportData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("LINES", raising=False)
    file = StringIO()
    console = Console(file=file)
    fit_to_file(console)
    assert console.width == 140
    print_end(many, Path("sessions/x"), console)
    whole = "\n".join(printed(many, 80, 24, whole=True))
    for text in (file.getvalue(), whole):
        assert "tune show" not in text
        assert text.count("D=14336") >= 34
        assert "streaming_28" in text


def test_lines_in_the_environment_say_how_high_a_screen_is_that_is_no_terminal(
    many: ReportData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    file = StringIO()
    console = Console(file=file)
    fit_to_file(console)
    print_end(many, Path("sessions/x"), console)
    lines = file.getvalue().splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80


def test_long_names_of_workloads_leave_room_for_the_rest(many: ReportData) -> None:
    axes = {f"a_long_name_{n}": 128 for n in range(3)}
    results = [
        replace(one, workload=Workload.of({"T": n, **{k: v + n for k, v in axes.items()}}))
        for n, one in enumerate(many.results)
    ]
    lines = printed(replace(many, results=tuple(results)), 80, 24)
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80


def test_on_a_cpu_there_is_no_ratio(many: ReportData) -> None:
    of_cpu = [
        replace(one, resources=Resources(None), occupancy=None, surroundings="")
        for one in many.results
    ]
    data = replace(many, on_cpu=True, recorded=False, results=tuple(of_cpu))
    for width in (80, 120, 240):
        text = "\n".join(printed(data, width, 40))
        assert not re.search(r"\d\.\d+x|speedup|faster than|\[\d", text)
        assert "verified; a GPU has to time it" in text


def test_without_an_agent_nothing_is_said_of_rounds(many: ReportData) -> None:
    assert not re.search(r"\brounds?\b", "\n".join(printed(many, 120, 60, whole=True)))


def test_what_an_interrupted_search_found_is_shown_best_first(many: ReportData) -> None:
    def trial(index: int, workload: Workload) -> Trial:
        return Trial(
            "initial",
            workload,
            config(index),
            Status.CORRECT,
            measurement=Measurement((10.0 + index,), 20, 4),
        )

    workloads = [one.workload for one in many.results if not one.workload.held_out]
    records = tuple((trial(i, workload), 0.1) for i, workload in enumerate(workloads))
    baselines = {workload.key: 20.0 for workload in workloads}
    data = replace(many, results=(), records=records, baselines_us=baselines, finished=False)
    lines = printed(data, 80, 24)
    assert len(lines) < 24
    assert lines[1].startswith("best so far")
    assert lines[2].split() == ["T=1", "D=14336", "10.00", "2.00x"]
    assert any(line.startswith("13 more") for line in lines), lines
    on_cpu = "\n".join(printed(replace(data, on_cpu=True), 80, 24))
    assert "2.00x" not in on_cpu


def test_of_a_session_that_cannot_be_read_nothing_is_shown(tmp_path: Path) -> None:
    file = StringIO()
    print_so_far(tmp_path, Console(file=file))
    assert file.getvalue() == ""
