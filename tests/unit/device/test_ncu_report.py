"""What Nsight Compute prints: tables among other lines, numbers in several forms, reasons."""

from __future__ import annotations

import pytest

from tuner.device.cuda.counters import (
    PERMISSION_TEXT,
    raw_counters,
    source_samples,
    trouble,
    unknown_counters,
)

RAW = """\
==PROF== Connected to process 411 (/usr/bin/python3.12)
==PROF== Profiling "scale" - 0: 0%....50%....100% - 19 passes
a line that the program printed
"ID","Process ID","Kernel Name","Block Size","CC","dram__bytes.sum","lts__t_sector_hit_rate.pct","n"
"","","","","","byte","%",""
"0","411","scale(float *, const float *, int)","(256, 1, 1)","9.0","1,234,567","12.5","7"
"1","411","other<4>(float *)","(256, 1, 1)","9.0","2.5e+03","n/a","7"
==PROF== Disconnected from process 411
"""
SOURCE = """\
"Kernel Name","scale(float *, const float *, int)"
"Address","Source","Warp Stall Sampling (All Samples)","Warp Stall Sampling (Not-issued Samples)"
"0x7f3a70fa00","      LDC R1, c[0x0][0x28] ","3","2"
"0x7f3a70fa10","      LDG.E R0, desc[UR4][R2.64], !PT ","1,100","1,050"
"0x7f3a70fa20","@P0   EXIT ","0","0"
"Kernel Name","other<4>(float *)"
"Address","Source","# Samples"
"0x7f3a710000","      EXIT ","4"
"""
NO_PERMISSION = """\
==PROF== Connected to process 411 (/usr/bin/python3.12)
==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance \
Counters on the target device 0. For instructions on enabling permissions see https://example.com
==PROF== Disconnected from process 411
==WARNING== No kernels were profiled.
"""


def test_each_launch_has_its_counters() -> None:
    assert raw_counters(RAW) == [
        (
            "scale(float *, const float *, int)",
            {"dram__bytes.sum": 1234567.0, "lts__t_sector_hit_rate.pct": 12.5},
        ),
        ("other<4>(float *)", {"dram__bytes.sum": 2500.0}),
    ]


@pytest.mark.parametrize("cell", ["n/a", "", "nan", "inf", "65,77", "(1, 2, 3)", "1.234.567"])
def test_what_is_no_plain_number_is_left_out(cell: str) -> None:
    ((_, counters), _) = raw_counters(RAW.replace("1,234,567", cell))
    assert "dram__bytes.sum" not in counters


@pytest.mark.parametrize("text", ["", NO_PERMISSION, RAW.partition('"0"')[0]])
def test_a_text_without_launches_has_none(text: str) -> None:
    assert raw_counters(text) == []
    assert source_samples(text) == []


def test_samples_are_counted_from_the_start_of_the_code() -> None:
    assert source_samples(SOURCE) == [
        ("scale(float *, const float *, int)", {0x00: 2, 0x10: 1050}),
        ("other<4>(float *)", {0x00: 4}),
    ]


def test_missing_permission_is_told_with_its_remedy() -> None:
    assert trouble(NO_PERMISSION) == PERMISSION_TEXT
    assert "NVreg_RestrictProfilingToAdminUsers=0" in PERMISSION_TEXT


def test_the_first_error_that_explains_something_is_given() -> None:
    cause = "Profiling failed because a driver resource was unavailable."
    text = (
        "==WARNING== Backing up device memory in system memory.\n"
        '==ERROR== Failed to profile "scale" in process 411\n'
        f"==ERROR== {cause}\n"
        "==WARNING== No kernels were profiled.\n"
    )
    assert trouble(text) == cause
    assert trouble(RAW) == ""


@pytest.mark.parametrize(
    "name", ["regex:^sm__no_such\\.sum$", "regex:^sm__no_such.sum", "sm__no_such.sum"]
)
def test_a_counter_that_a_chip_lacks_is_named(name: str) -> None:
    assert unknown_counters(f"==ERROR== Failed to find metric {name}\n") == ["sm__no_such.sum"]
    assert unknown_counters(RAW) == []
