"""Reports as NVIDIA's module reads them, and where it is missing, another Python's, or older."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_ncu_report import ENTRY, EXECUTED, STALL, put_module

from tuner.device.base import LaunchCounts
from tuner.device.cuda import ncu_report
from tuner.device.cuda.ncu_report import ReportReader

BASE = 0x7F3A70FA00
EVERY = STALL.removesuffix("_not_issued")
Read = Callable[..., list[LaunchCounts] | None]


def by_address(counts: dict[int, int], base: int = BASE) -> dict[str, Any]:
    ids = [base + offset for offset in counts]
    return {"value": sum(counts.values()), "instances": list(counts.values()), "ids": ids}


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ncu_report, "NSIGHT_FOLDER", tmp_path / "opt")
    yield
    for name in ("ncu_report", "_ncu_report"):
        sys.modules.pop(name, None)


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    path = tmp_path / "cuda" / "bin" / "ncu"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(*ranges: list[tuple[str, dict[str, Any]]]) -> Path:
        path = tmp_path / "report.ncu-rep"
        path.write_text(json.dumps({"ranges": ranges}), encoding="utf-8")
        return path

    return write


@pytest.fixture
def read(tool: Path, write: Callable[..., Path]) -> Read:
    def read(*ranges: list[tuple[str, dict[str, Any]]], names: tuple[str, ...] = ()) -> Any:
        put_module(tool.parent)
        return ReportReader(tool).read(write(*ranges), names)

    return read


def test_launches_of_all_ranges_come_in_order_with_values_and_counts_by_offset(read: Read) -> None:
    first = {
        "dram__bytes.sum": {"value": 1234567},
        "lts__t_sector_hit_rate.pct": {"value": 12.5},
        EXECUTED: by_address({0x00: 4096, 0x10: 4096, 0x20: 0}),
        STALL.format("wait"): by_address({0x00: 2, 0x10: 50}),
        STALL.format("selected"): by_address({0x10: 0}),
        STALL.format("long_scoreboard"): by_address({0x10: 1000, 0x20: 0}),
        EVERY.format("wait"): by_address({0x00: 3, 0x10: 1100}),
        "group:smsp__pcsamp_warp_stall_reasons_not_issued": {"value": "a,b"},
    }
    other = {"dram__bytes.sum": {"value": 2500.0}}
    launches = [("scale(float *, int)", first), ("other<4>(float *)", other)]
    names = ("dram__bytes.sum", "lts__t_sector_hit_rate.pct")
    assert read(launches, [("last", other)], names=names) == [
        LaunchCounts(
            "scale(float *, int)",
            {"dram__bytes.sum": 1234567.0, "lts__t_sector_hit_rate.pct": 12.5},
            {0x00: 2, 0x10: 1050},
            {0x00: 4096, 0x10: 4096},
        ),
        LaunchCounts("other<4>(float *)", {"dram__bytes.sum": 2500.0}),
        LaunchCounts("last", {"dram__bytes.sum": 2500.0}),
    ]


def test_a_report_without_launches_has_none(read: Read) -> None:
    assert read([]) == []


@pytest.mark.parametrize("value", [None, "n/a", math.nan, math.inf])
def test_what_is_no_plain_number_is_left_out(read: Read, value: object) -> None:
    metrics = {"a__b.sum": {"value": value}, "c__d.sum": {"value": 0}}
    (launch,) = read([("k", metrics)], names=("a__b.sum", "c__d.sum", "e__f.sum")) or ()
    assert launch.values == {"c__d.sum": 0.0}


def test_counts_without_addresses_are_of_no_place(read: Read) -> None:
    metrics = {EXECUTED: {"value": 7, "instances": [3, 4]}, STALL.format("wait"): {"value": 5}}
    assert read([("k", metrics)]) == [LaunchCounts("k", {})]


def test_where_warps_were_sampled_alone_all_samples_are_taken(read: Read) -> None:
    every = {EVERY.format(reason): by_address({0x10: 1, 0x20: 4}) for reason in ("wait", "drain")}
    executed = {EXECUTED: by_address({0x00: 1})}
    assert read([("k", every | executed)], [("k", every)]) == [
        LaunchCounts("k", {}, {0x10: 2, 0x20: 8}, {0x00: 1}),
        LaunchCounts("k", {}),  # who knows where it starts
    ]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"instances": [BASE]}, {-0x40: 9, 0x00: 8}),
        ({"instances": [0]}, {0x00: 9, 0x40: 8}),
        ({"value": BASE}, {0x00: 9, 0x40: 8}),
    ],
)
def test_the_code_starts_at_the_entry_or_else_at_the_lowest_address(
    read: Read, entry: dict[str, Any], expected: dict[int, int]
) -> None:
    executed = by_address({-0x40: 9, 0x00: 8})
    (launch,) = read([("k", {EXECUTED: executed, ENTRY: entry})]) or ()
    assert launch.executed == expected


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("nsight/ncu", "nsight"),
        ("nsight/target/linux-desktop-glibc_2_11_3-x64/ncu", "nsight"),
        ("cuda/bin/ncu", "cuda/nsight-compute-2024.1.0"),
        ("cuda/bin/ncu", "opt/2025.3.1"),
    ],
)
def test_the_module_is_the_real_tools_or_the_newest(tmp_path: Path, path: str, folder: str) -> None:
    real, link = tmp_path / path, tmp_path / "links" / "ncu"
    for file in (real, link):
        file.parent.mkdir(parents=True, exist_ok=True)
    real.touch()
    link.symlink_to(real)
    before = list(sys.path)
    put_module(tmp_path / "opt" / "2022.4.0")
    place = put_module(tmp_path / folder)
    assert ReportReader(link).serves
    assert sys.path == before
    assert Path(str(sys.modules["ncu_report"].__file__)).parent == place


@pytest.mark.parametrize(
    "head", ["import another_python\n", "print 'of Python 2'\n", "raise SystemError\n"]
)
def test_a_module_that_does_not_load_makes_way_for_an_older_one(
    tool: Path, tmp_path: Path, head: str
) -> None:
    before = list(sys.path)
    put_module(tmp_path / "opt" / "2026.1.0", head=head)
    assert not ReportReader(tool).serves
    assert sys.path == before
    put_module(tmp_path / "opt" / "2025.3.1")
    assert ReportReader(tool).serves


def test_without_a_module_or_a_tool_nothing_is_read(tool: Path, tmp_path: Path) -> None:
    for reader in (ReportReader(tool), ReportReader(None)):
        assert not reader.serves
        assert reader.read(tmp_path / "report.ncu-rep", []) is None


def test_a_report_that_it_cannot_read_is_its_last(tool: Path, write: Callable[..., Path]) -> None:
    put_module(tool.parent)
    reader = ReportReader(tool)
    assert reader.read(write([]), []) == []
    path = write([])
    path.write_text("of a later version", encoding="utf-8")
    assert reader.serves
    assert reader.read(path, []) is None
    assert not reader.serves
    assert reader.read(write([]), []) is None


@pytest.mark.parametrize("name", ["NameBase_DEMANGLED", "metric_names"])
def test_a_module_of_an_older_tool_does_not_serve(
    tool: Path, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    put_module(tool.parent)
    reader = ReportReader(tool)
    assert reader.serves
    monkeypatch.delattr(sys.modules["ncu_report"].IAction, name)
    assert reader.read(write([("k", {})]), []) is None
    assert not reader.serves
