"""Runs on simulated hosts that die, hang and come back: all is measured, nothing twice."""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import faults
import pytest
from faults import searched, wait_until

pytest.importorskip("distributed")

from certificates import Authority
from cluster_processes import ClusterProcesses, cluster_processes

from tuner.model.trial import Result, Status

pytestmark = [
    pytest.mark.slow,
    # Forty processes on the cores of one machine.
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux"),
]

TRIALS = 10
# Of runs that are not to end before the scheduler that they start with.
MANY = 60
KERNELS, AT_ONCE = 8, 3
HOSTS = ("a", "b", "c", "d")
INTERRUPTED = 130
# What is said of a scheduler that was there, and of one that was not.
UNDER_WAY = "is gone or cannot be reached"
WITHOUT_SCHEDULER = (UNDER_WAY, "no Dask scheduler answers at")
# Longer than a worker may be silent.
PAUSE_S = 40.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with cluster_processes(tmp_path / "cluster") as cluster:
        cluster.start_scheduler()
        yield cluster


def start(cluster: ClusterProcesses, project: Path, trials: int = TRIALS) -> subprocess.Popen[str]:
    new = ("scale.cu", *faults.ON_HOST, "--session", "mine")
    return cluster.run(
        project, *new, "--searcher", "random", "--trials", trials, "--quiet", "--store", "none"
    )


def ended(
    cluster: ClusterProcesses, run: subprocess.Popen[str], timeout_s: float = 500.0
) -> tuple[int, str]:
    code, said = run.wait(timeout_s), cluster.said_by(run)
    assert "Traceback" not in said, said
    return code, said


def assert_complete(session: Path, trials: int = TRIALS) -> None:
    """Fail unless each config that was asked for has one trial, and the finals one result."""
    found = searched(session)
    assert faults.rows(session, "session")[0]["state"] == "complete"
    assert len(found) == trials
    assert len({trial.config.key for trial in found}) == trials
    assert {trial.status for trial in found} == {Status.CORRECT}
    assert len(faults.records(session, Result)) == 1


@pytest.mark.exhaustive
def test_eight_kernels_on_four_hosts_with_every_fault(
    cluster: ClusterProcesses, tmp_path: Path
) -> None:
    for name in HOSTS:
        cluster.start_host(name)
    for name in HOSTS:
        cluster.wait_for(name)
    projects = [faults.written(tmp_path / f"kernel-{number}") for number in range(KERNELS)]
    goes_on, restarted = Event(), Event()
    interrupted: list[int] = []

    def tuned(number: int) -> None:
        project = projects[number]
        # However fast the others are, some runs are there when the scheduler ends.
        assert number < KERNELS - AT_ONCE or goes_on.wait(400)
        code, said = ended(cluster, start(cluster, project, asked(number)))
        while code and any(one in said for one in WITHOUT_SCHEDULER):
            if UNDER_WAY in said:
                interrupted.append(number)
            assert said.count("Error: ") == 1, said
            assert restarted.wait(400)
            if code != INTERRUPTED:  # it had not measured anything, and left nothing behind
                assert not (project / "mine").exists()
                code, said = ended(cluster, start(cluster, project, asked(number)))
                continue
            code, said = ended(cluster, cluster.run(project, *resuming(cluster, said), "--quiet"))
        assert code == 0, said

    def asked(number: int) -> int:
        return TRIALS if number < KERNELS - AT_ONCE else MANY

    def trials(*some: Path) -> int:
        return sum(len(searched(project / "mine")) for project in some or projects)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = [pool.submit(tuned, number) for number in range(KERNELS)]
        wait_until(lambda: trials() >= 5, "some trials", 300)
        cluster.kill_host("a")
        wait_until(lambda: trials() >= 15, "more trials", 300)
        cluster.signal_host("c", signal.SIGSTOP)
        paused_s = time.monotonic()
        cluster.start_host("late")
        wait_until(lambda: time.monotonic() - paused_s > PAUSE_S, "the pause", 200)
        cluster.signal_host("c", signal.SIGCONT)
        # Not before: what is lost with three hosts in a row is blamed for it.
        cluster.kill_host("b")
        goes_on.set()
        wait_until(lambda: trials(*projects[-AT_ONCE:]) >= 5, "trials of the last runs", 300)
        cluster.kill_scheduler()
        wait_until(lambda: interrupted, "a run that meets the scheduler's end", 100)
        cluster.start_scheduler()
        restarted.set()
        for one in running:
            one.result(600)
    for number, project in enumerate(projects):
        assert_complete(project / "mine", asked(number))


def resuming(cluster: ClusterProcesses, said: str) -> list[str]:
    """Return the words that go on with a run, without those that name its cluster."""
    (line,) = [one for one in said.splitlines() if "go on with: " in one]
    words = shlex.split(line.partition("go on with: ")[2])[1:]
    return [word for word in words if word not in cluster.words]


SHAPES = ("R=1,N=2048", "R=2,N=2048")


def test_hosts_share_the_workloads_of_a_run_that_outlives_one_of_them_and_the_scheduler(
    cluster: ClusterProcesses, tmp_path: Path
) -> None:
    names = ("a", "b")
    for name in names:
        cluster.start_host(name)
    for name in names:
        cluster.wait_for(name)
    project = faults.written(tmp_path / "project")
    shapes = [word for shape in SHAPES for word in ("--workload", shape)]
    words = ("--device", "host", "--session", "mine", "--gpus", "all", "--store", "none", *shapes)
    run = cluster.run(
        project, "scale.cu", "--space", "scale.yaml", "--trials", MANY, "--seed", "1", *words
    )
    session = project / "mine"

    def of_shapes() -> Counter[str]:
        return Counter(trial.workload.key for trial in searched(session))

    wait_until(lambda: len(searched(session)) >= 2, "some trials", 200)
    cluster.kill_host("b")
    # Until then what comes may have been on its way from the host that is gone.
    wait_until(lambda: "b/host" in cluster.said_by(run), "word of the lost host", 200)
    before = of_shapes()
    wait_until(lambda: all(of_shapes()[shape] > before[shape] for shape in SHAPES), "more", 200)
    cluster.kill_scheduler()
    code, said = ended(cluster, run)
    assert code == INTERRUPTED, said
    assert UNDER_WAY in said
    before_resuming = searched(session)
    cluster.start_scheduler()
    code, said = ended(cluster, cluster.run(project, *resuming(cluster, said)))
    assert code == 0, said
    found = searched(session)
    assert found[: len(before_resuming)] == before_resuming
    assert len({(trial.workload.key, trial.config.key) for trial in found}) == len(found)
    assert {trial.workload.key for trial in found} == set(SHAPES)
    assert len(faults.records(session, Result)) == len(SHAPES)
    assert all(f"{name}/host: opens scale" in cluster.said(name) for name in names)


def test_a_run_over_tls_waits_for_its_host_and_outlives_the_process_of_a_slot(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path / "tls")
    ca, (cert, key) = str(authority.certificate), map(str, authority.sign("ours"))
    words = ("--tls-ca", ca, "--tls-cert", cert, "--tls-key", key)
    theirs = ("--tls-ca-file", ca, "--tls-cert", cert, "--tls-key", key)
    options = {"security": words, "scheduler_security": theirs}
    project = faults.written(tmp_path / "project")
    with cluster_processes(tmp_path / "cluster", **options) as cluster:
        cluster.start_scheduler()
        run = start(cluster, project)
        time.sleep(3.0)  # The run is there before its host.
        host = cluster.start_host("only")
        wait_until(lambda: searched(project / "mine"), "a trial", 120)
        slot = next(one for one in faults.descendants(host.pid) if "tune-slot" in one.command)
        assert slot.kill()
        code, said = ended(cluster, run)
    assert code == 0, said
    assert_complete(project / "mine")
    assert "only/host (host CPU) has left the cluster" in said
    assert "the work of only/host goes on with only/host" in said
