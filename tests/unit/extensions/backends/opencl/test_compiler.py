"""OpenCL's compiler: what is compiled ahead for a size of a work-group."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from opencl_programs import SCALED, needs_opencl

from tuner.compiler.base import CompileRequest, CompileResult, work_groups_of
from tuner.extensions.backends.opencl.compiler import OpenclPool
from tuner.extensions.backends.opencl.runtime import list_devices
from tuner.model.kernel import Launch

on_pocl = pytest.mark.skipif(
    not any(device.is_pocl for device in list_devices()[:1]), reason="only PoCL compiles ahead"
)


ROOT = Path(__file__).parents[5]
# Compiles in a process that may read its packages and little else.
COMPILES = """
from tuner.compiler.base import CompileRequest
from tuner.extensions.backends.opencl.compiler import OpenclPool
source = "__kernel void run(__global float* y) { y[get_global_id(0)] = 1.0f; }"
with OpenclPool(0, 1) as pool:
    made = pool.submit(CompileRequest(source, ("run",), "opencl")).result(60)
print(made.ok, made.error)
"""


def launch(grid: tuple[int, int, int], block: tuple[int, int, int]) -> Launch:
    return Launch(kernel="run", grid=grid, block=block, arguments=())


@pytest.fixture(scope="module")
def pool() -> Iterator[OpenclPool]:
    with OpenclPool(0, 1) as pool:
        yield pool


def compiled(pool: OpenclPool, *groups: str, source: str = SCALED) -> CompileResult:
    request = CompileRequest(source, ("run",), "opencl", work_groups=groups)
    return pool.submit(request).result(60)


def test_a_work_group_is_named_once_by_its_size_and_whether_the_grid_is_small() -> None:
    launches = [launch((4, 1, 1), (64, 2, 1)), launch((9, 1, 1), (64, 2, 1))]
    assert work_groups_of(launches) == ("64-2-1-goffs0-smallgrid",)
    assert work_groups_of([launch((65535, 1, 1), (1, 1, 1))]) == ("1-1-1-goffs0",)


@needs_opencl
@on_pocl
def test_each_result_holds_the_machine_code_for_its_own_work_groups(pool: OpenclPool) -> None:
    small, large = "8-1-1-goffs0-smallgrid", "64-1-1-goffs0-smallgrid"
    first, second = compiled(pool, small), compiled(pool, large)
    assert small.encode() in first.cubin
    assert large.encode() not in first.cubin
    assert large.encode() in second.cubin
    assert small.encode() not in second.cubin
    assert first.resources == second.resources


@needs_opencl
def test_an_error_is_the_same_with_work_groups_and_without(pool: OpenclPool) -> None:
    source = SCALED.replace("x[i]", "z[i]")
    with_groups = compiled(pool, "8-1-1-goffs0-smallgrid", source=source)
    assert "undeclared identifier 'z'" in with_groups.error
    assert compiled(pool, source=source).error == with_groups.error


@needs_opencl
@on_pocl
def test_what_cannot_be_compiled_ahead_is_left_to_the_run(pool: OpenclPool) -> None:
    assert compiled(pool, "no-such-group").ok


def linked(source: str, to: str) -> None:
    with suppress(OSError):  # another file system
        os.link(source, to)
        return
    shutil.copy2(source, to)


@needs_opencl
@on_pocl
def test_packages_may_lie_outside_of_pythons_own_folders(tmp_path: Path) -> None:
    for name in ("pyopencl", "pocl_binary_distribution", "pytools"):
        found = find_spec(name)
        if found and found.origin:  # Debian's PoCL is no Python package
            package = Path(found.origin).parent
            shutil.copytree(package, tmp_path / name, copy_function=linked)
    answer = subprocess.run(
        [sys.executable, "-c", COMPILES],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.strip() == "True"
