"""Compiler options that only change code pass; those that name files do not."""

from __future__ import annotations

import pytest

from tuner.space.choices import refusal

PASSING = (
    "-DNAME -DPATH=a/b.h -UNAME --std=c++20 -std=c++17 --use_fast_math --ftz=true -w "
    "--maxrregcount=64 -default-device --ptxas-options=-O3 -Xptxas=-dlcm=cg --diag-suppress=177,550"
)


@pytest.mark.parametrize("option", [*PASSING.split(), "-DTWICE(x)=x + x"])
def test_an_option_that_changes_code_or_messages_passes(option: str) -> None:
    assert refusal(option) is None


@pytest.mark.parametrize(
    ("option", "found"),
    [
        ("O3", "starts with no -"),
        ("", "starts with no -"),
        ("-I/usr/include", "adds a folder"),
        ("--include-path=/usr", "adds a folder"),
        ("-include=/etc/passwd", "`-include` is not allowed"),
        ("-o", "`-o` is not allowed"),
        ("--output-file=x", "is not allowed"),
        ("-time=x", "`-time` is not allowed"),
        ("--fdevice-time-trace=x", "is not allowed"),
        ("--pch-dir=x", "is not allowed"),
        ("-arch=sm_90", "`-arch` is not allowed"),
        ("--gpu-architecture=sm_90", "is not allowed"),
        ("-Xptxas=-optf=/etc/passwd", "does not take"),
        ("--ptxas-options=-O3,-o,x", "does not take"),
        ("--ptxas-options", "does not take ''"),
        ("--ftz", "does not take ''"),
        ("--use_fast_math=true", "does not take 'true'"),
        ("-D NAME", "`-D NAME` is not allowed"),
        ("-DA=1\n-include=x", "is not allowed"),
    ],
)
def test_an_option_that_names_a_file_or_the_target_is_refused(option: str, found: str) -> None:
    refused = refusal(option)
    assert refused is not None
    assert found in refused[0]
    assert refused[1]


def test_a_misspelt_option_is_told_what_it_may_have_meant() -> None:
    refused = refusal("--use-fast-math")
    assert refused is not None
    assert refused[1].startswith("did you mean `--use_fast_math`?")
