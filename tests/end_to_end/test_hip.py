"""Kernels in HIP from the command line: checked for gfx942, run on the CPU, refused clearly."""

from __future__ import annotations

import json
import shutil
from itertools import product
from pathlib import Path

import pytest
from clangs import compiles_for, needs_clang, stand_in
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
# Each kernel, each target, and two kernels on waves of both widths.
SAMPLE = [*zip(NAMES, TARGETS, strict=True), ("row_sum", "gfx1100"), ("gemm_f32", "gfx942")]


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


@needs_clang
def test_options_of_clang_reach_it(tmp_path: Path) -> None:
    text = (SPACES / "rmsnorm.hip.yaml").read_text(encoding="utf-8").replace("../..", str(ROOT))
    space = tmp_path / "rmsnorm.hip.yaml"
    space.write_text(f"{text}options: [-ffast-math, -O2]\n", encoding="utf-8")
    assert check(space, sample=1, run=False).spec.compile_options == ("-ffast-math", "-O2")
    space.write_text(f"{text}options: [--use_fast_math]\n", encoding="utf-8")
    done = tune("check", str(space))
    assert done.exit_code == 2
    assert "`--use_fast_math` is not allowed for HIP" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("check", str(SPACES / "rmsnorm.hip.yaml"), "--target", "sm_90a"),
            "a kernel in HIP cannot be compiled for sm_90a",
        ),
        (
            ("check", str(SPACES / "rmsnorm.hip.yaml"), "--target", "gfx803"),
            "unknown architecture 'gfx803'",
        ),
        (
            (str(KERNELS / "rmsnorm.hip"), "--device", "cuda"),
            "a kernel in HIP does not run on NVIDIA's GPUs",
        ),
        (("init", "k.hip"), "drafts are made of CUDA and Python alone"),
    ],
)
def test_what_cannot_be_is_one_error(tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    (tmp_path / "k.hip").write_text("__global__ void k(float* x) { x[0] = 1; }\n")
    done = tune(*arguments)
    assert done.exit_code == 2, done.stderr
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) == 2  # what is wrong, and what to do


def test_without_clang_the_error_says_what_to_install(tmp_path: Path) -> None:
    space = str(SPACES / "rmsnorm.hip.yaml")
    done = tune("check", space, "--no-run", PATH=str(tmp_path), ROCM_PATH="none")
    assert done.exit_code == 2
    assert "needs clang 17 or later" in done.stderr
    assert "apt install clang-19 lld-19" in done.stderr


def test_a_target_that_no_clang_knows_is_one_error(tmp_path: Path) -> None:
    stand_in(tmp_path / "bin", "clang-19", "19.1.7")
    words = ("check", str(SPACES / "rmsnorm.hip.yaml"), "--no-run", "--target", "gfx950")
    done = tune(*words, PATH=f"{tmp_path / 'bin'}:/bin", ROCM_PATH="none")
    assert done.exit_code == 2
    told, remedy = done.stderr.strip().splitlines()
    assert told == "Error: clang 19.1.7 does not know gfx950"
    assert "install clang 20 or later and its lld" in remedy


@needs_gxx
@pytest.mark.slow
def test_a_run_on_the_cpu_verifies_and_prints_no_speedup(tmp_path: Path) -> None:
    done = tune(
        *(
            str(KERNELS / "row_sum.hip"),
            "--device",
            "host",
            "--no-mutants",
            "--workload",
            "T=16,K=8192",
        ),
        *("--trials", "2", "--searcher", "random", "--session", str(tmp_path / "s")),
    )
    assert done.exit_code == 0, done.stderr
    assert "Verified on 1 workload; which config is fastest, a GPU has to say." in done.stdout
    tuned = (tmp_path / "s/tuned/row_sum-T16-K8192.hip").read_text()
    assert "#include <hip/hip_runtime.h>" in tuned
