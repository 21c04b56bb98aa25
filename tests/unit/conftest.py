"""A small kernel with its template and space, and what is needed to tune it without a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from textwrap import dedent

import pytest
from manifests import manifest, plan_of

from tuner.compiler.cache import Cache
from tuner.compiler.pool import NvrtcPool
from tuner.model.run_config import RunConfig
from tuner.session.session import Session
from tuner.space.plan import Plan

SOURCE = """
extern "C" __global__ void scale(float* out, const float* in, int N) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i < N) out[i] = 2.0f * in[i];
}
"""
TEMPLATE = """
constexpr int kBlock = @{ block }@;
constexpr int kItems = @{ items }@;
extern "C" __global__ void scale(float* out, const float* in, int N) {
  for (int k = 0; k < kItems; ++k) {
    const int i = (blockIdx.x * kItems + k) * kBlock + threadIdx.x;
    if (i < N) out[i] = 2.0f * in[i];
  }
}
"""
REFERENCE = """
def reference(xp, inputs, axes):
    return {"out": 2.0 * inputs["in"]}
"""
SPACE = """
version: 1
kernel: scale
source: scale.cu
reference: scale.py
template: scale.cu.j2
axes: [N]
arguments:
  - {name: out, dtype: float32, shape: [N], role: output}
  - {name: in, dtype: float32, shape: [N]}
  - {name: N, dtype: int32, value: N}
workloads: {tuned: [{N: 1000}, {N: 100000}], held_out: [{N: 3000}]}
min_bytes: N * 8
baseline: {launch: [{kernel: scale, grid: ["ceil_div(N, 128)"], block: [128]}]}
parameters:
  block: [32, 64, 128, 256, 512]
  items: [1, 2, 4, 8]
constraints: ["block * items <= 2048"]
default: {block: 128, items: 1}
launch: [{kernel: scale, grid: ["ceil_div(N, block * items)"], block: [block]}]
tolerance: {out: {relative: 1.0e-6}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The folder that holds the kernel's four files; tests edit them before loading."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name, text in {
        "scale.cu": SOURCE,
        "scale.cu.j2": TEMPLATE,
        "scale.py": REFERENCE,
        "scale.yaml": SPACE,
    }.items():
        (folder / name).write_text(dedent(text).lstrip())
    return folder


@pytest.fixture
def make_plan(project: Path):
    """Load the project into a plan; keyword arguments replace the plan's fields."""

    def make(**changes) -> Plan:
        return plan_of(project / "scale.yaml", **changes)

    return make


@pytest.fixture
def make_session(tmp_path: Path):
    """Create or reopen the session of a plan."""

    def make(plan: Plan, name: str = "session") -> Session:
        folder = tmp_path / name
        if folder.exists():
            return Session.open(folder)
        made = manifest(
            **{f.name: getattr(plan.config, f.name) for f in fields(RunConfig)},
            kernel=plan.spec.name,
            tuner_version="0",
            created="2026-01-01T00:00:00+00:00",
        )
        return Session.create(folder, made, {})

    return make


@pytest.fixture(scope="session")
def compiler():
    """Two compilers over what is kept between runs."""
    with NvrtcPool(workers=2, cache=Cache()) as pool:
        yield pool


class Snapshots:
    """A listener that keeps every snapshot."""

    def __init__(self) -> None:
        self.seen = []

    def update(self, progress) -> None:
        self.seen.append(progress)


@pytest.fixture
def listener() -> Snapshots:
    return Snapshots()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with its golden file; `UPDATE_GOLDEN=1` writes the files anew."""

    def compare(name: str, text: str) -> None:
        path = request.path.parent / "golden" / name
        if os.environ.get("UPDATE_GOLDEN"):
            path.write_text(text + "\n", encoding="utf-8")
        assert text + "\n" == path.read_text(encoding="utf-8")

    return compare
