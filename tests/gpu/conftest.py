"""What the GPU tests share; without a GPU or CuPy they are skipped and say why."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tuner.compiler.base import CompileRequest, source_key
from tuner.compiler.pool import NvrtcPool
from tuner.device.base import Device, Program
from tuner.device.select import gpu_count
from tuner.kernel import Launch, Workload
from tuner.space_file import Definition, load_definition

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if FOLDER in item.path.parents]
    reason = _missing() if here else ""
    for item in here:
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def _missing() -> str:
    if gpu_count() == 0:
        return "no NVIDIA GPU was found"
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed"
    return ""


@pytest.fixture(scope="session")
def definition() -> Definition:
    """The kernel of this project that the tests run."""
    return load_definition(ROOT / "search_spaces" / "sglang" / "silu_and_mul.yaml")


@pytest.fixture(scope="session")
def compiler() -> Iterator[NvrtcPool]:
    with NvrtcPool() as pool:
        yield pool


@pytest.fixture(scope="session")
def build(compiler: NvrtcPool) -> Callable[..., Program]:
    """Compile CUDA source for a device and a workload, for the launches that are given."""

    def build(device: Device, source: str, workload: Workload, *launches: Launch) -> Program:
        architecture = device.info.architecture
        kernels = tuple(dict.fromkeys(launch.kernel for launch in launches))
        result = compiler.submit(CompileRequest(source, kernels, architecture)).result(60)
        assert result.ok, result.error
        key = source_key(source, (), architecture)
        return Program(key, workload, launches, result.cubin, result.lowered)

    return build
