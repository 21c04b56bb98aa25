"""The examples of docs/clusters.md: one runs as a job would, the other is what Kubernetes takes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
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


def test_the_manifest_gives_tune_options_that_it_has(tmp_path: Path) -> None:
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
        assert read.params["tls_ca"] == Path("/tls/ca.pem")


def test_all_that_the_manifest_mounts_is_a_volume_of_it() -> None:
    for document in manifest():
        if "template" in document["spec"]:
            spec = document["spec"]["template"]["spec"]
            volumes = {one["name"] for one in spec["volumes"]}
            for container in spec["containers"]:
                assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_slurm_script_tunes_and_goes_on_where_it_was(tmp_path: Path) -> None:
    project = faults.written(tmp_path / "project")
    commands = tmp_path / "bin"
    commands.mkdir()
    # Slurm's starts one task on each node: here there is one.
    srun = commands / "srun"
    srun.write_text('#!/bin/sh\nexec "$@"\n', encoding="utf-8")
    srun.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{commands}:{os.environ['PATH']}",
        "CUDA_VISIBLE_DEVICES": "",
        "SLURM_JOB_ID": "7",
        "TUNE_CLUSTER_TOKEN": "a token that is long enough",
        "TUNE_PYTHON": sys.executable,
        "TUNE_DEVICE": "host",
        "TUNE_STORE": "none",
    }
    words = ("scale.cu", "--space", "scale.yaml", "--device", "host", "--trials", "6", "--quiet")
    session = project / "sessions/slurm-7"
    for _ in range(2):
        process = subprocess.Popen(
            ["bash", str(EXAMPLES / "slurm.sh"), *words],
            cwd=project,
            env={**environment, "TUNE_PORT": str(free_port())},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            _, told = process.communicate(timeout=400)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0, told
        assert len(faults.searched(session)) == 6
        assert len(faults.records(session, Result)) == 1
