"""What the GPU tests share; without a GPU or CuPy they are skipped and say why."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cuda.bindings import driver
from silu_kernels import LAUNCH, WORKLOAD, silu

from tuner.compiler.base import CompileRequest, source_key
from tuner.compiler.pool import NvrtcPool
from tuner.device.base import Program
from tuner.device.cuda.driver import call
from tuner.device.select import gpu_count
from tuner.model.hardware import architecture_for
from tuner.model.kernel import Launch, Workload
from tuner.space.load import Definition, load_definition

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
def capability() -> tuple[int, int]:
    """The compute capability of GPU 0."""
    call(driver.cuInit, 0)
    gpu = call(driver.cuDeviceGet, 0)
    names = driver.CUdevice_attribute
    major = names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
    minor = names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
    return call(driver.cuDeviceGetAttribute, major, gpu), call(
        driver.cuDeviceGetAttribute, minor, gpu
    )


@pytest.fixture(scope="session")
def build(compiler: NvrtcPool, capability: tuple[int, int]) -> Callable[..., Program]:
    """Compile CUDA source for GPU 0 and a workload, for the launches that are given."""
    architecture = architecture_for(capability)

    def build(
        source: str, workload: Workload, *launches: Launch, options: tuple[str, ...] = ()
    ) -> Program:
        kernels = tuple(dict.fromkeys(launch.kernel for launch in launches))
        request = CompileRequest(source, kernels, architecture, options)
        result = compiler.submit(request).result(60)
        assert result.ok, result.error
        key = source_key(source, options, architecture)
        return Program(key, workload, launches, result.cubin, result.lowered)

    return build


@pytest.fixture
def honest(build: Callable[..., Program]) -> Program:
    return build(silu(), WORKLOAD, LAUNCH)
