"""Runs on GPUs of a cluster's hosts, from a process that sees none: as here, and lost with a host.

The hosts are processes of this machine, each with one of its GPUs.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed")

from callable_project import KERNEL as CALLABLE
from callable_project import callable_project
from cluster_processes import ClusterProcesses, cluster_processes
from faults import searched, started, wait_until

from tuner.device.select import gpu_count

KERNEL = Path(__file__).parents[2] / "kernels/sglang/silu_and_mul.cu"
WORKLOADS = ("T=16,D=14336", "T=1024,D=14336")
TIMEOUT_S = 280.0
HOW = ("--json", "--quiet", "--store", "none", "--seed", "1")
TRIALS = 12

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with cluster_processes(tmp_path / "cluster") as cluster:
        cluster.start_scheduler()
        yield cluster


def of_two_workloads(session: str, trials: int = TRIALS) -> tuple[str, ...]:
    workloads = [word for one in WORKLOADS for word in ("--workload", one)]
    return (str(KERNEL), *workloads, "--trials", str(trials), "--session", session, *HOW)


def ended(run: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 0, err
    return dict(json.loads(out))


def test_a_gpu_there_does_as_one_here(cluster: ClusterProcesses, tmp_path: Path) -> None:
    cluster.start_host("there", "cuda:0")
    cluster.wait_for("there")
    remote = ended(started(*of_two_workloads("there"), *cluster.words, folder=tmp_path))
    here = ended(started(*of_two_workloads("here"), folder=tmp_path, gpus=True))
    assert here["device"] in remote["device"]
    assert {kind: one["failed"] for kind, one in remote["checks"].items()} == dict.fromkeys(
        here["checks"], 0
    )
    for one, other in zip(remote["workloads"], here["workloads"], strict=True):
        assert one["baseline_us"] == pytest.approx(other["baseline_us"], rel=0.1)
        assert one["speedup"] == pytest.approx(other["speedup"], rel=0.2)
        assert 0.0 < one["occupancy"] <= 1.0


def test_a_python_kernel_is_timed_there(cluster: ClusterProcesses, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    project = callable_project(tmp_path / "project")
    cluster.start_host("there", "cuda:0")
    cluster.wait_for("there")
    words = (CALLABLE, "--trials", "6", "--session", "mine", *HOW)
    found = ended(started(*words, *cluster.words, folder=project))
    assert not found["on_cpu"]
    assert all(one["baseline_us"] > 0.0 for one in found["workloads"])


@pytest.mark.skipif(gpu_count() < 2, reason="needs two GPUs")
def test_the_work_of_a_host_that_dies_goes_on_on_the_other(
    cluster: ClusterProcesses, tmp_path: Path
) -> None:
    for number, name in enumerate(("a", "b")):
        cluster.start_host(name, f"cuda:{number}")
        cluster.wait_for(name)
    run = started(*of_two_workloads("mine", 40), "--gpus", "all", *cluster.words, folder=tmp_path)
    wait_until(lambda: len(searched(tmp_path / "mine")) >= 10, "trials", TIMEOUT_S)
    cluster.kill_host("b")
    found = ended(run)
    assert [name.partition("/")[0] for name in found["gpus"]["lost"]] == ["b"]
    assert all(one["gpu"].startswith("a/") for one in found["workloads"])
    trials = searched(tmp_path / "mine")
    assert len({(one.workload.key, one.config.key) for one in trials}) == len(trials)
    assert {one.workload.key for one in trials} == set(WORKLOADS)
