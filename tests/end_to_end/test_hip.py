"""Kernels in HIP from the command line: checked for gfx942, run on the CPU, refused clearly."""

from __future__ import annotations

import json
import shutil
from itertools import product
from pathlib import Path

import pytest
from clangs import compiles_for, needs_clang
from click.testing import CliRunner, Result
from slow import mostly_slow

from tuner.app.check import check
from tuner.cli import cli
from tuner.model.trial import Status

ROOT = Path(__file__).resolve().parents[2]
SPACES = ROOT / "search_spaces/portable"
KERNELS = ROOT / "kernels/portable"


needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def tune(*arguments: str, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(cli, arguments, prog_name="tune")


@needs_clang
@needs_gxx
def test_a_space_is_checked_for_gfx942() -> None:
    done = tune("check", str(SPACES / "rmsnorm.hip.yaml"), "--sample", "2", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["target"] == "gfx942"
    assert found["compiler"].startswith("clang ")
    assert found["not_shown"] == []
    assert all(trial["registers"] for trial in found["sample"])


NAMES = ("silu_and_mul", "rmsnorm", "row_sum", "gemm_f32")
# The last one's waves have 32 lanes.
TARGETS = ("gfx90a", "gfx942", "gfx950", "gfx1100")
# A kernel on waves of both widths.
SAMPLE = [("gemm_f32", "gfx1100"), ("gemm_f32", "gfx942")]


@needs_clang
@pytest.mark.parametrize(("name", "target"), mostly_slow(product(NAMES, TARGETS), [], SAMPLE))
def test_the_kernels_compile_within_the_limits_of_each_target(name: str, target: str) -> None:
    if not compiles_for(target):
        pytest.skip(f"no clang here knows {target}")
    found = check(SPACES / f"{name}.hip.yaml", target=target, sample=3, run=False)
    assert found.target.architecture == target
    assert {trial.status for trial in found.sample} == {Status.NOT_RECORDED}
    assert all(trial.resources and trial.resources.max_threads for trial in found.sample)


@needs_clang
def test_a_cuda_kernel_that_is_hip_too_is_checked_for_an_amd_target() -> None:
    found = check(SPACES / "silu_and_mul.cu.yaml", target="gfx942", sample=1, run=False)
    assert found.target.architecture == "gfx942"
    assert {trial.status for trial in found.sample} == {Status.NOT_RECORDED}


def test_what_cannot_be_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "k.hip").write_text("__global__ void k(float* x) { x[0] = 1; }\n")
    space, kernel = str(SPACES / "rmsnorm.hip.yaml"), str(KERNELS / "rmsnorm.hip")
    for arguments, told in (
        (("check", space, "--target", "sm_90a"), "a kernel in HIP cannot be compiled for sm_90a"),
        (("check", space, "--target", "gfx803"), "unknown architecture 'gfx803'"),
        ((kernel, "--device", "cuda"), "a kernel in HIP does not run on NVIDIA's GPUs"),
        (("init", "k.hip"), "drafts are made of CUDA and Python alone"),
    ):
        done = tune(*arguments)
        assert done.exit_code == 2, done.stderr
        assert told in done.stderr
        assert len(done.stderr.strip().splitlines()) == 2  # what is wrong, and what to do


@needs_gxx
@pytest.mark.slow
def test_a_run_on_the_cpu_verifies_and_prints_no_speedup(tmp_path: Path) -> None:
    done = tune(
        *(str(KERNELS / "row_sum.hip"), "--device", "host", "--workload", "T=16,K=1024"),
        *("--no-mutants", "--trials", "1", "--searcher", "random"),
        *("--session", str(tmp_path / "s")),
    )
    assert done.exit_code == 0, done.stderr
    assert "Verified on 1 workload; which config is fastest, a GPU has to say." in done.stdout
    tuned = (tmp_path / "s/tuned/row_sum-T16-K1024.hip").read_text()
    assert "#include <hip/hip_runtime.h>" in tuned
