"""Compiler options that only change code pass; those that name files do not."""

from __future__ import annotations

import pytest

from tuner.model.languages import CUDA, HIP, OPENCL, Language
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


@pytest.mark.parametrize(
    ("language", "options"),
    [
        (OPENCL, "-DN=3 -UNAME -w -cl-std=CL1.2 -cl-fast-relaxed-math -cl-nv-maxrregcount=64"),
        (HIP, "-DN=3 -UNAME -std=c++20 -O2 -ffast-math -ffp-contract=fast"),
    ],
)
def test_each_language_has_options_of_its_own(language: Language, options: str) -> None:
    for option in options.split():
        assert refusal(option, language) is None, option
    assert refusal("--use_fast_math", CUDA) is None
    refused = refusal("--use_fast_math", language)
    assert refused is not None
    assert f"is not allowed for {language.name}" in refused[0]
    assert "-DNAME=value" in refused[1]


@pytest.mark.parametrize(
    ("language", "option"),
    [
        (OPENCL, "-DA=1 -I/etc"),  # OpenCL splits what it is given
        (OPENCL, '-DA="1 2"'),
        (OPENCL, "-I/etc"),
        (OPENCL, "-include=/etc/hostname"),
        (OPENCL, "-cl-std=CL1.2 -I/etc"),
        (HIP, "-I/etc"),
        (HIP, "-include=/etc/hostname"),
        (HIP, "-fplugin=x.so"),
        (HIP, "-mwavefrontsize64"),
        (HIP, "-DA=1\n-I/etc"),
    ],
)
def test_what_names_files_is_refused_in_every_language(language: Language, option: str) -> None:
    assert refusal(option, language) is not None
