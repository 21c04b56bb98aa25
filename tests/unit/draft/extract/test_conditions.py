"""Preprocessor conditions: true, false, or the compiler's to decide."""

from __future__ import annotations

import pytest

from tuner.draft.extract.reading import PREDEFINED, holds

MACROS: dict[str, str | None] = {**PREDEFINED, "WIDTH": "4", "TWICE": "(WIDTH * 2)", "MAYBE": None}


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ("defined(USE_ROCM)", False),
        ("!defined(USE_ROCM) && defined(WIDTH)", True),
        ("defined __CUDACC__", True),
        ("WIDTH == 4", True),
        ("TWICE > 0x7u", True),
        ("WIDTH * 2 % 3 == 010 - 6", True),
        ("SOMETHING_UNSET", False),
        ("CUDA_VERSION >= 12000", True),
        ("__CUDA_ARCH__ >= 900", None),
        ("defined(__CUDA_ARCH__) && defined(USE_ROCM)", False),
        ("defined(__CUDA_ARCH__) || defined(WIDTH)", True),
        ("defined(__CUDA_ARCH__) && WIDTH == 4", None),
        ("defined(MAYBE)", None),
        ("HAS(1)", None),
        ("1 / 0", None),
        ("WIDTH ==", None),
        ("", None),
    ],
)
def test_a_condition_holds_or_not_or_stays_open(condition: str, value: bool | None) -> None:
    assert holds(condition, MACROS) is value
