"""The examples of docs/clusters.md: one runs as a job would, the other is what Kubernetes takes."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import faults
import pytest
from ruamel.yaml import YAML

pytest.importorskip("distributed")

from cluster_processes import free_port

from tuner.cli import cli
from tuner.model.trial import Result

EXAMPLES = Path(__file__).parents[2] / "docs/examples/cluster"
# The versions of Kubernetes that the manifest is checked for.
VERSIONS = ("1.30", "1.33")


def manifest() -> list[dict[str, Any]]:
    return list(YAML(typ="safe").load_all(EXAMPLES / "kubernetes.yaml"))


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_the_manifest(version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    for document in manifest():
        validate(document, version, strict=True)


def containers() -> list[dict[str, Any]]:
    specs = [d["spec"]["template"]["spec"] for d in manifest() if "template" in d["spec"]]
    return [container for spec in specs for container in spec["containers"]]


def test_the_manifest_gives_tune_options_and_mounts_volumes_that_there_are(tmp_path: Path) -> None:
    (tmp_path / "kernel.yaml").touch()
    ours = [one for one in containers() if one["command"][0] == "tune"]
    assert len(ours) == 2
    for one in ours:
        given = [word.replace("/kernel/", f"{tmp_path}/") for word in one["args"]]
        words = [*one["command"][1:], *given]
        context = cli.make_context("tune", words)
        name, command, rest = cli.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert command is not None
        read = command.make_context(name, rest, context)
        assert read.params["tls_ca"] == Path("/tls/tune.pem")
    for document in manifest():
        if "template" in document["spec"]:
            spec = document["spec"]["template"]["spec"]
            volumes = {one["name"] for one in spec["volumes"]}
            for container in spec["containers"]:
                assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


WORDS = (
    *("scale.cu", "--space", "scale.yaml", "--device", "host", "--no-mutants"),
    *("--trials", "4", "--quiet"),
)
needs_a_host = pytest.mark.skipif(
    not all(map(shutil.which, ("g++", "bash", "openssl"))), reason="needs g++, bash and openssl"
)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """The file of certificate and key that the command of docs/clusters.md makes."""
    text = (EXAMPLES.parents[1] / "clusters.md").read_text(encoding="utf-8")
    (command,) = [line for line in text.splitlines() if line.startswith("openssl req")]
    subprocess.run(shlex.split(command, comments=True), cwd=tmp_path, check=True)
    return tmp_path / "tune.pem"


def commands(folder: Path, **scripts: str) -> dict[str, str]:
    """Write commands of Slurm's, and say what a job finds in its environment."""
    folder.mkdir()
    for name, text in scripts.items():
        command = folder / name
        command.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        command.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "CUDA_VISIBLE_DEVICES": "",
        "TUNE_DEVICE": "host",
        "TUNE_STORE": "none",
    }


def run_of(
    example: list[str],
    project: Path,
    environment: dict[str, str],
    words: Sequence[str] = WORDS,
    interrupt_when: Callable[[], bool] | None = None,
) -> None:
    """Run an example to its end, or interrupt it; whatever it leaves behind ends with it."""
    process = subprocess.Popen(
        [*example, *words],
        cwd=project,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        if interrupt_when:
            while process.poll() is None and not interrupt_when():
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGINT)
        _, told = process.communicate(timeout=400)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == (130 if interrupt_when else 0), told


@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_a_host
def test_the_slurm_script_tunes_and_goes_on_where_it_was(tmp_path: Path, certificate: Path) -> None:
    project = faults.written(tmp_path / "project")
    # Slurm's starts one task on each node: here there is one.
    environment = commands(tmp_path / "bin", srun='exec "$@"')
    environment |= {"SLURM_JOB_ID": "7", "TUNE_PYTHON": sys.executable}
    environment["TUNE_TLS"] = str(certificate)
    session = project / "sessions/slurm-7"
    for _ in range(2):
        port = {"TUNE_PORT": str(free_port())}
        run_of(["bash", str(EXAMPLES / "slurm.sh")], project, environment | port)
        assert len(faults.searched(session)) == 4
        assert len(faults.records(session, Result)) == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_a_host
def test_jobs_of_dask_jobqueue_join_a_run_and_are_cancelled_after_it(
    tmp_path: Path, certificate: Path
) -> None:
    # Importing it would replace this process' handler of Ctrl-C by one that ends it with 0.
    if importlib.util.find_spec("dask_jobqueue") is None:
        pytest.skip("needs dask_jobqueue")
    project = faults.written(tmp_path / "project")
    # Slurm's job begins at once, and here.
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    environment = commands(
        tmp_path / "bin",
        sbatch=f'cp "$1" {jobs}/script; setsid sh {jobs}/script >{jobs}/said 2>&1 &\n'
        f'echo "$!" >>{jobs}/started; echo "Submitted batch job $!"',
        scancel=f'kill -TERM -- "-$1"; echo "$1" >>{jobs}/cancelled',
    )
    environment["TUNE_TLS"] = str(certificate)
    example, session = [sys.executable, str(EXAMPLES / "jobqueue.py"), "1"], project / "kept"

    def has_begun() -> bool:
        return (session / "session.db").exists() and bool(faults.searched(session))

    first = (*WORDS, "--session", "kept")
    try:
        run_of(example, project, environment, first, interrupt_when=has_begun)
        run_of(example, project, environment, ("--resume", "kept"))
    finally:
        # One that was submitted as its run ended may not have been cancelled.
        for job in (jobs / "started").read_text(encoding="utf-8").split():
            with suppress(ProcessLookupError):
                os.killpg(int(job), signal.SIGKILL)
    assert len(faults.searched(session)) == 4
    assert len(faults.records(session, Result)) == 1
    script, said = ((jobs / name).read_text(encoding="utf-8") for name in ("script", "said"))
    assert "#SBATCH --gpus-per-node=8" in script
    assert "works for tls://" in said
    assert (jobs / "cancelled").exists(), said
