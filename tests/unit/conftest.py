"""A small kernel with its template and space, and what is needed to tune it without a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner, Result
from manifests import manifest, plan_of

from tuner.cli import cli
from tuner.compiler.cache import Cache
from tuner.compiler.pool import NvrtcPool
from tuner.model.expressions import Expression
from tuner.model.kernel import Argument, KernelSpec, Tolerance
from tuner.model.settings import RunConfig
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


DOUBLING = """\
def reference(xp, inputs, axes):
    return {"y": 2.0 * inputs["x"]}
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


def _array(name: str, dtype: str, shape: tuple[object, ...], role: str, fill: str) -> Argument:
    dimensions = tuple(Expression.parse(str(size)) for size in shape)
    return Argument(name, dtype, dimensions, role, fill)  # type: ignore[arg-type]


def _scalar(name: str, dtype: str, value: str) -> Argument:
    return Argument(name, dtype, value=Expression.parse(value), line=12)


@pytest.fixture
def make_spec(tmp_path: Path) -> Callable[..., KernelSpec]:
    """Make a spec of arrays (name, dtype, shape, role[, fill]) and scalars (name, dtype, value)."""

    def make(
        *arguments: tuple[object, ...],
        axes: tuple[str, ...] = ("T",),
        reference: str = DOUBLING,
        tolerances: Mapping[str, Tolerance] | None = None,
    ) -> KernelSpec:
        made = [
            _scalar(*item) if len(item) == 3 else _array(*item, *["normal"][len(item) - 4 :])
            for item in arguments
        ]
        path = tmp_path / "reference.py"
        path.write_text(reference, encoding="utf-8")
        written = [item.name for item in made if item.role in ("output", "inout")]
        return KernelSpec(
            name="example",
            path=tmp_path / "example.yaml",
            source=tmp_path / "example.cu",
            reference=path,
            template=tmp_path / "example.cu.j2",
            axes=axes,
            arguments=tuple(made),
            tuned=(),
            held_out=(),
            min_bytes=Expression.parse("1"),
            baseline=(),
            launch=(),
            tolerances=tolerances or {name: Tolerance(8e-3, 1e-6) for name in written},
        )

    return make


@pytest.fixture
def tune() -> Callable[..., Result]:
    """Run `tune` on some words, without starting a process."""

    def run(*words: object) -> Result:
        return CliRunner().invoke(cli, [str(word) for word in words], prog_name="tune")

    return run


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
