"""Where tools are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.compiler.command import candidates, executable, list_pip_paths, version_of


def test_versions_are_compared_as_numbers() -> None:
    names = ["cuda-9.2", "cuda-13.0", "cuda-12.9", "cuda", "cuda-13.10"]
    ordered = sorted(map(Path, names), key=version_of, reverse=True)
    assert [path.name for path in ordered] == [
        "cuda",
        "cuda-13.10",
        "cuda-13.0",
        "cuda-12.9",
        "cuda-9.2",
    ]


def test_path_comes_before_the_cuda_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "found" / "ncu"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n", encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    listed = list(candidates("ncu"))
    assert listed[:2] == [tool, tmp_path / "cuda" / "bin" / "ncu"]


def test_pip_brings_a_disassembler() -> None:
    assert any(map(executable, list_pip_paths("nvdisasm")))
