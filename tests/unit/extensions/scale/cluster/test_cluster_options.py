"""`--cluster` and `tune worker` refuse what cannot be right with one message."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import faults
import pytest
from click.testing import CliRunner, Result

pytest.importorskip("distributed")

from cluster_processes import free_port

from tuner.cli import cli

NOWHERE = "tcp://127.0.0.1:1"


@pytest.fixture
def tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run `tune` in a kernel's folder."""
    monkeypatch.chdir(faults.written(tmp_path / "project"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return lambda *words: CliRunner().invoke(cli, [*words], prog_name="tune")


def assert_refused(done: Result, *words: str) -> None:
    assert done.exit_code == 2, done.output
    assert done.output.count("Error: ") == 1
    for word in words:
        assert word in done.output


RUN = ("scale.cu", "--space", "scale.yaml", "--session", "mine")


def test_what_is_no_address_is_refused(tune: Callable[..., Result]) -> None:
    assert_refused(tune(*RUN, "--cluster", "nowhere"), "'nowhere' is not the address")
    assert_refused(tune("worker", "nowhere"), "'nowhere' is not the address")
    assert not Path("mine").exists()


def test_what_belongs_to_a_cluster_needs_one(tune: Callable[..., Result]) -> None:
    assert_refused(tune(*RUN, "--gpu-model", "x"), "--gpu-model needs --cluster ADDRESS")


def test_a_certificate_needs_its_authority(tune: Callable[..., Result]) -> None:
    for words in ((*RUN, "--cluster", NOWHERE), ("worker", NOWHERE)):
        done = tune(*words, "--tls-cert", "c.pem")
        assert_refused(done, "--tls-ca and --tls-cert are needed together")


@pytest.mark.parametrize("host", ["node", "10.0.0.1", "[2001:db8::1]", "localhost.example"])
def test_without_certificates_only_this_machine_is_reached(
    tune: Callable[..., Result], host: str
) -> None:
    address = f"tcp://{host}:8786"
    for words in ((*RUN, "--cluster", address), ("worker", address, "--device", "host")):
        assert_refused(tune(*words), f"{address} is without encryption", f"tls://{host}:8786")
    assert not Path("mine").exists()


@pytest.mark.slow
def test_an_address_that_does_not_answer_leaves_no_session(tune: Callable[..., Result]) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    done = tune(*RUN, "--device", "host", "--cluster", address)
    assert_refused(done, f"no Dask scheduler answers at {address}")
    assert not Path("mine").exists()


@pytest.mark.parametrize("words", [(*RUN, "--cluster", NOWHERE), ("worker", NOWHERE)])
def test_without_dask_it_is_said_what_to_install(tmp_path: Path, words: tuple[str, ...]) -> None:
    folder = faults.written(tmp_path / "project")
    program = "import sys; sys.modules['distributed'] = None; from tuner.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=folder,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "Error: Dask is not installed" in done.stderr
    assert "pip install -e '.[cluster]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "mine").exists()
