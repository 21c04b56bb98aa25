"""A scheduler with made-up hosts, and a kernel to open there."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("distributed")

import faults
from cluster_doubles import Hosts, hosts_of

from tuner.model.kernel import KernelSpec
from tuner.space.load import load_definition


@pytest.fixture(autouse=True)
def open_files() -> Iterator[None]:
    """Put back how many files may be open, which a cluster raises for what starts later too."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    folder = tmp_path / "hosts"
    folder.mkdir()
    with hosts_of(folder) as hosts:
        yield hosts


@pytest.fixture
def spec(tmp_path: Path) -> KernelSpec:
    return load_definition(faults.written(tmp_path / "project") / "scale.yaml").spec


@pytest.fixture
def said() -> list[str]:
    """What a cluster says to its user."""
    return []
