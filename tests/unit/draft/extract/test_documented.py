"""The example of production sources in docs/drafts.md is what `tune init` really says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tuner.cli import cli

PAGE = Path(__file__).parents[4] / "docs" / "drafts.md"
# the header that the page does not show
PACK = """\
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T values[N];
};

template <typename T>
__device__ T warp_sum(T value);
"""


def test_the_example_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Production sources")[2]
    found = re.search(r"```cuda\n(.*?)```.*?```text\n(.*?)```", section, re.DOTALL)
    assert found is not None
    (tmp_path / "csrc").mkdir()
    (tmp_path / "include").mkdir()
    (tmp_path / "csrc/scale.cu").write_text(found[1])
    (tmp_path / "include/pack.cuh").write_text(PACK)
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(cli, ["init", "csrc/scale.cu"], prog_name="tune")
    assert told.exit_code == 0, told.output
    assert told.output.startswith(found[2])
