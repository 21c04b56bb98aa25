"""A block reduction with a tail guard, and what is needed to break it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree

import pytest
from host_programs import cached_compiler

from tuner.device.base import DeviceInfo
from tuner.extensions.cpu.compiler import HostCompiler
from tuner.extensions.study.mutation.subject import MutationSubject
from tuner.model.config import Config
from tuner.space.load import load_definition

DATA = Path(__file__).parent / "data"
INFO = DeviceInfo("host CPU", "sm_90a", (9, 0), 2, 1 << 20, 10.0, recorded=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that holds the kernel's four files."""
    return copytree(DATA, tmp_path, dirs_exist_ok=True)


@pytest.fixture
def make_subject(folder: Path) -> Callable[..., MutationSubject]:
    """Make a subject of the folder's kernel: the baseline, or the template at a config."""

    def make(**config: int) -> MutationSubject:
        definition = load_definition(folder / "row_sums.yaml")
        chosen = Config.of(config) if config else None
        return MutationSubject(definition.spec, definition.space, {}, INFO, chosen)

    return make


@pytest.fixture(scope="session")
def host_compiler() -> Iterator[HostCompiler]:
    with cached_compiler() as compiler:
        yield compiler
