"""A stand-in of AMD's driver: a runtime that runs host code, and what Linux tells of a GPU."""

from __future__ import annotations

import os
from pathlib import Path
from shutil import copy

import kept
import pytest

PROPERTIES = """\
cpu_cores_count 0
simd_count 1216
gfx_target_version 90402
location_id 49408
domain 0
"""


def install_fake_hip(folder: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]) -> Path:
    """Let processes that are started from now on find it; return the folder of its GPUs."""
    copy(Path(__file__).with_name("fake_hip.c"), folder)
    command = ["gcc", "-O1", "-fPIC", "-shared", "-o", "libamdhip64.so", "fake_hip.c", "-ldl"]
    kept.build(command, folder)
    searched = [str(folder), *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))]
    monkeypatch.setenv("LD_LIBRARY_PATH", ":".join(searched))
    monkeypatch.setenv("FAKE_HIP_SIZES", ",".join(map(str, sizes)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    cpu, gpu = folder / "nodes/0", folder / "nodes/1"
    for node, text in ((cpu, "cpu_cores_count 2\nsimd_count 0\n"), (gpu, PROPERTIES)):
        node.mkdir(parents=True)
        (node / "properties").write_text(text)
    return folder / "nodes"
