"""An exported folder compiles, links and launches what the search space says."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import kept
import pytest
from dispatch_sample import COMPARISONS, write_project, write_session

from tuner.compiler.base import CompileRequest
from tuner.dispatch.kernels import nearest
from tuner.dispatch.table import SessionDispatch, SetSelection
from tuner.extensions.export.cpp import in_namespace
from tuner.extensions.export.sources import CppSources, Measured
from tuner.model.kernel import KernelSpec, Launch, Workload
from tuner.session.session import Session
from tuner.space.load import load_definition

SHAPES = [
    (1, 4096),
    (3, 4096),
    (64, 4096),
    (65, 4096),
    (500, 8192),
    (1024, 4096),
    (200, 4096),
    (2, 100),
    (5, 64),
]
DATA = Path(__file__).parent / "data"
HOST_ONLY = "template <typename T> void reduce() {}\nvoid blend() {}"


@dataclass(frozen=True)
class Made:
    spec: KernelSpec
    dispatch: SessionDispatch
    sources: CppSources


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    space = write_project(tmp_path / "project")
    folder = write_session(tmp_path / "session", space, COMPARISONS)
    spec = load_definition(space).spec
    measured = Measured("NVIDIA H200", "sm_90a", "2026-01-01", False, {"MAP": "twice"})
    with Session.open(folder, read_only=True) as session:
        dispatch = SessionDispatch(session, SetSelection())
        yield Made(spec, dispatch, CppSources(spec, dispatch, measured))


def launched(made: Made, shape: tuple[int, int]) -> tuple[int, list[str]]:
    """What the search space says of a shape: the variant's number and the lines of its launches."""
    names = made.dispatch.renderer.names(Workload.of(dict(zip("TD", shape, strict=True))))
    number = expected_variant(made, shape)
    if number == 0:
        launches = made.spec.baseline_launches(names)
    else:
        config = made.dispatch.table.kernels[number - 1].variant.config
        launches = made.spec.candidate_launches({**names, **config})
    return number, [line for launch in launches for line in lines(launch, shape)]


def expected_variant(made: Made, shape: tuple[int, int]) -> int:
    names = made.dispatch.renderer.names(Workload.of(dict(zip("TD", shape, strict=True))))
    dispatch, table = made.dispatch, made.dispatch.table
    found = nearest(
        table.points,
        dict(zip("TD", shape, strict=True)),
        lambda kernel: kernel is None or dispatch.applicability(kernel).holds(names),
    )
    return table.number(found[1]) if found else 0


def lines(launch: Launch, shape: tuple[int, int]) -> Iterator[str]:
    if launch.shared_bytes > 48 * 1024:
        yield f"raised {launch.shared_bytes}"
    sizes = (*launch.grid, *launch.block, launch.shared_bytes, *(launch.cluster or (0, 0, 0)))
    scalars = f"{shape[0]} {shape[1]} 1e-06 {int(shape[1] % 2 == 0)}"
    yield f"launch {' '.join(map(str, sizes))} {int(launch.pdl)} {scalars}"


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_it_launches_what_the_search_space_says(
    made: Made, tmp_path: Path, cuda_headers: Path
) -> None:
    folder = tmp_path / "out"
    (folder / "variants").mkdir(parents=True)
    (folder / "blend.h").write_text(made.sources.header())
    names = []
    for unit in made.sources.variants:
        names.append(f"variants/blend_v{unit.number}.cu")
        host_part = made.sources.variant(replace(unit, source=HOST_ONLY))
        (folder / names[-1]).write_text(host_part)
    shapes = ", ".join(f"{{{t}, {d}}}" for t, d in SHAPES)
    stubs = (DATA / "runtime_stubs.cpp").read_text()
    (folder / "main.cpp").write_text(stubs.replace("SHAPES", shapes))
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror"]
    command += [f"-isystem{cuda_headers}", "-x", "c++", *names, "main.cpp", "-o", "main"]
    kept.build(command, folder)
    printed = subprocess.run([folder / "main"], check=True, capture_output=True, text=True).stdout
    *calls, scalar, empty = printed.removeprefix("shape ").split("shape ")
    assert empty == "0 0\nerror 1\n"
    *launches, error = scalar.splitlines()[1:]
    assert [line.split()[-2] for line in launches] == ["0.5"] * len(launches)
    assert error == "error 0"
    seen = set()
    for shape, call in zip(SHAPES, calls, strict=True):
        number, expected = launched(made, shape)
        seen.add(number)
        bytes_ = shape[0] * -(-shape[1] // 1024) * 4
        assert call.split("\n")[:-1] == [f"{number} {bytes_}", *expected, "error 0"], shape
    assert seen == {0, 1, 2}


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_it_passes_over_a_launch_that_the_device_would_refuse(
    made: Made, tmp_path: Path, cuda_headers: Path
) -> None:
    (tmp_path / "blend.h").write_text(made.sources.header())
    launches = {"1, 1, 64": 1, "1, 1, 65": 0, "1, 1024, 1": 1, "1, 1025, 1": 0, "0, 1, 1": 0}
    asked = " + ".join(
        f"(launchable({{{{1, 1, 1}}, {{{block}}}, {{0, 0, 0}}, 0, false}}, 0, device) << {place})"
        for place, block in enumerate(launches)
    )
    (tmp_path / "main.cpp").write_text(
        '#include "blend.h"\nusing namespace blend_dispatch;\n'
        f"int main() {{ const Device device = {{1024, 232448}}; return {asked}; }}\n"
    )
    command = ["g++", "-std=c++17", f"-isystem{cuda_headers}", "main.cpp", "-o", "main"]
    # The header launches too, with the CUDA runtime, which is not called here.
    command += ["-O1", "-ffunction-sections", "-Wl,--gc-sections,--unresolved-symbols=ignore-all"]
    kept.build(command, tmp_path)
    found = subprocess.run([tmp_path / "main"], check=False).returncode
    assert [found >> place & 1 for place in range(len(launches))] == [*launches.values()]


def test_every_source_compiles_for_the_gpu(made: Made, compiler) -> None:
    """NVRTC has no launches: the device part, as it stands in its namespace."""
    for unit in made.sources.variants:
        space = f"v{unit.number}"
        source = "#define MAP twice\n" + in_namespace(unit.source, space)
        names = (f"{space}::blend", f"{space}::reduce<float>")
        result = compiler.submit(CompileRequest(source, names, "sm_90a")).result()
        assert result.ok, result.error
