"""Every value of an operator's choices exports, builds by its README, and waits first."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import kept
import pytest
from click.testing import CliRunner
from dispatch_sample import COMPARISONS, write_project, write_session
from operator_sessions import OPERATORS, SPACES, write_operator_session
from shipped_kernels import shipped_definition
from slow import mostly_slow

from tuner.analysis.sass import disassemble, read
from tuner.analysis.waits import before_wait
from tuner.cli import cli
from tuner.dispatch.table import SetSelection
from tuner.extensions.export.dispatch import export_dispatch
from tuner.model.kernel import KernelSpec
from tuner.space.load import load_definition

ROOT = Path(__file__).parents[4]
# One that launches twice, and one that has choices; of the others what won is made up.
RECORDED = ("moe_align_block_size", "fused_add_rmsnorm")
QUICK = ("topk_softmax", 1)
# Together they include and launch what the others do: float8, tensor maps, clusters, two GEMMs.
SAMPLE = [("gemm_fp8", 1), ("gate_up_silu", 0)]


@cache
def every_value(name: str) -> list[Mapping[str, str]]:
    """Choose each value of each of an operator's choices once, in as few choices as that takes.

    NVRTC compiles all that go together, in test_export_package.py.
    """
    operators = shipped_definition(name).spec.operators
    most = max((len(one.values) for one in operators), default=1)
    return [{one.name: one.values[n % len(one.values)] for one in operators} for n in range(most)]


def commands(folder: Path) -> list[str]:
    """Read the commands of the README."""
    build = (folder / "README.md").read_text().partition("## Build")[2].partition("\n## ")[0]
    return [line.strip() for line in build.splitlines() if line.startswith("    ")]


def build(folder: Path, lines: list[str], with_nvcc: Mapping[str, str]) -> None:
    # What compilers leave behind there meets nobody else's.
    script = "\n".join(["set -e", "mkdir -p own", 'export TMPDIR="$PWD/own"', *lines])
    said = kept.build(["sh", "-c", script], folder, environment=with_nvcc)
    assert "warning" not in said, said


def program(spec: KernelSpec, scalars: Mapping[str, Any]) -> str:
    """Write a caller that gives no tokens: refused before any device is asked for."""
    arrays = ["nullptr"] * sum(not one.is_scalar for one in spec.arguments)
    axes = ["0"] * len(spec.axes)
    numbers = [json.dumps(value) for value in scalars.values()]
    call = f"{spec.name}({', '.join([*arrays, *axes, 'nullptr', *numbers])})"
    return (
        f'#include "{spec.name}.h"\n'
        f"int main() {{ return {call} == cudaErrorInvalidValue ? 0 : 1; }}\n"
    )


def check_build(
    folder: Path, spec: KernelSpec, choice: Mapping[str, str], with_nvcc: Mapping[str, str]
) -> None:
    """Build all by the README, link a program that calls it, and read the machine code."""
    table = json.loads((folder / "dispatch.json").read_text())
    (folder / "program.cpp").write_text(program(spec, table["scalars"]))
    lines = [line for line in commands(folder) if not line.startswith(("#", "cmake"))]
    assert [line.split()[0] for line in lines] == ["nvcc"] * 3
    build(folder, ["export NVCC_APPEND_FLAGS=--keep", *lines], with_nvcc)
    assert subprocess.run([folder / "program"], check=False).returncode == 0
    for variant in table["variants"][1:]:
        source = (folder / variant["file"]).read_text()
        assert all(f"#define {macro} {value}\n" in source for macro, value in choice.items())
        if variant["config"]["pdl"]:
            (cubin,) = folder.glob(f"{Path(variant['file']).stem}.*cubin")
            check_waits(disassemble(cubin.read_bytes()), spec)


def check_waits(text: str, spec: KernelSpec) -> None:
    functions = read(text)
    kernels = [one.name for one in functions.values() if one.entry]
    assert any(spec.name in kernel for kernel in kernels)
    for kernel in kernels:
        found = before_wait(functions, kernel)
        assert found is not None
        # The first of two launches is not the last: the second waits for it in any case.
        assert found.triggers == any(first in kernel for first in ("count_routes", "linear_sums"))
        assert not (found.problem_beside_constants if spec.constants else found.problem), kernel
        assert not found.unclear, kernel


def exported(folder: Path, session: Path) -> Path:
    made = export_dispatch(session, folder / "out", SetSelection(most=1), None)
    assert made.table.kernels
    return made.folder


def recorded_session(folder: Path, spec: KernelSpec) -> Path:
    words = [str(spec.source), "--device", "recorded", "--trials", "20", "--quiet"]
    for workload in spec.tuned[:: max(1, len(spec.tuned) // 3)]:
        words += ["--workload", workload.key]
    done = CliRunner().invoke(cli, [*words, "--session", str(folder)])
    assert done.exit_code == 0, done.output
    return folder


@pytest.mark.parametrize("name", mostly_slow(RECORDED, [], RECORDED[:1]))
def test_what_a_recording_gives_builds_by_the_readme(name, tmp_path, with_nvcc):
    choice = every_value(name)[0]
    spec = load_definition(SPACES / f"{name}.yaml", choice).spec
    session = recorded_session(tmp_path / "session", spec)
    check_build(exported(tmp_path, session), spec, choice, with_nvcc)


CASES = [(name, n) for name in OPERATORS for n in range(len(every_value(name)))]
OTHERS = [case for case in CASES if case not in [(name, 0) for name in RECORDED]]


@pytest.mark.parametrize(("name", "number"), mostly_slow(OTHERS, [QUICK], SAMPLE))
def test_every_other_choice_builds_by_the_readme(name, number, tmp_path, with_nvcc):
    choice = every_value(name)[number]
    spec = load_definition(SPACES / f"{name}.yaml", choice).spec
    session = write_operator_session(tmp_path / "session", name, choice)
    check_build(exported(tmp_path, session), spec, choice, with_nvcc)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_cmake_builds_a_library_of_all_that_a_launch_can_have(tmp_path, with_nvcc):
    session = write_session(tmp_path / "session", write_project(tmp_path / "project"), COMPARISONS)
    folder = export_dispatch(session, tmp_path / "out", SetSelection(), None).folder
    (folder / "main.cpp").write_text(
        '#include "blend.h"\nint main() { return blend_variant(1, 1) != 0; }\n'
        "auto* used = &blend;\n"
    )
    lines = [line for line in commands(folder) if line.startswith("cmake")]
    link = "nvcc -std=c++17 -I. -o main main.cpp build/libblend_dispatch.a"
    build(folder, ["export CUDAFLAGS=-Xcompiler=-Wall,-Werror", *lines, link], with_nvcc)
    assert (folder / "main").is_file()
