"""Launches with arguments and maps of their own, scratch that configs size, in every export."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import kept
import pytest
from dispatch_sample import comparison
from operator_sessions import write_session_of

from tuner.extensions.export.dispatch import export_dispatch
from tuner.extensions.export.packages import export_package
from tuner.extensions.export.winners import winners_of
from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Variant
from tuner.session.session import Session

DATA = Path(__file__).parent / "data"
SPACE = Path(__file__).parents[3] / "support" / "weighted_sum" / "weighted_sum.yaml"
MAPPED = SPACE.parents[1] / "tiled_gemm" / "tiled_gemm.yaml"
MAIN = (DATA / "scratch_main.cpp").read_text(encoding="utf-8")

MAPPED_MAIN = (DATA / "mapped_main.cpp").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_session_of(tmp_path_factory.mktemp("session") / "one", SPACE, {})


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_header_gives_each_launch_its_own_and_says_what_the_variant_needs(
    session: Path, tmp_path: Path, cuda_headers: Path
) -> None:
    folder = tmp_path / "out"
    export_dispatch(session, folder, None, None)
    for unit in folder.glob("variants/*.cu"):
        text = unit.read_text().replace("__global__", "").replace("__shfl_xor_sync", "stub")
        names = "[[maybe_unused]] static struct { int x, y, z; } threadIdx, blockIdx, gridDim;\n"
        names += "[[maybe_unused]] static float stub(unsigned, float a, int) { return a; }\n"
        unit.write_text(text.replace("#include", f"{names}#include", 1))
    (folder / "main.cpp").write_text(MAIN)
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-isystem{cuda_headers}"]
    sources = [str(one.relative_to(folder)) for one in sorted(folder.glob("variants/*.cu"))]
    command += ["-x", "c++", *sources, "main.cpp", "-o", "main"]
    kept.build(command, folder)
    printed = subprocess.run([folder / "main"], check=True, capture_output=True, text=True).stdout
    # 2 splits of 32 rows of float32; out, partial, done, x, w and K, then partial, out and T.
    first, second = "24,2 0x1 0x4 (nil) 0x2 0x3 4096", "1,1 0x4 0x1 24"
    assert printed.splitlines() == ["1 256", first, second]


@pytest.fixture(scope="module")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_session_of(tmp_path_factory.mktemp("mapped") / "one", MAPPED, {})


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_header_encodes_the_maps_and_passes_over_shapes_that_have_none(
    mapped: Path, tmp_path: Path, cuda_headers: Path
) -> None:
    folder = tmp_path / "out"
    export_dispatch(mapped, folder, None, None)
    for unit in folder.glob("variants/*.cu"):
        body = "{ void multiply() {} void add_up() {} void tiled_gemm() {} }"
        text = re.sub(
            r"(_code) \{.*\}(  // namespace \w+_code)",
            rf"\1 {body}\2",
            unit.read_text(),
            flags=re.S,
        )
        unit.write_text(text)
    (folder / "main.cpp").write_text(MAPPED_MAIN)
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-isystem{cuda_headers}"]
    sources = [str(one.relative_to(folder)) for one in sorted(folder.glob("variants/*.cu"))]
    command += ["-x", "c++", *sources, "main.cpp", "-o", "main"]
    kept.build(command, folder)
    printed = subprocess.run([folder / "main"], check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == [
        "1 0",
        "map 7 of (nil): 100/64/1 17/16/400 1/1/6800 0 200",
        "map 9 of (nil): 192/64/1 17/16/384 3 200",
        "map 9 of (nil): 192/64/1 100/64/384 3 300",
        "K 192, ranks 3 2 2",
    ]


@pytest.fixture
def packaged(tmp_path: Path, compiler) -> Callable[..., ModuleType]:
    pytest.importorskip("torch")

    def import_package(session: Path, name: str = "summed") -> ModuleType:
        export_package([winners_of(session, None, None)], tmp_path / "out", compiler, name)
        place = tmp_path / "out" / name / "__init__.py"
        found = importlib.util.spec_from_file_location(name, place)
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        sys.modules[name] = module
        found.loader.exec_module(module)
        return module

    return import_package


def test_the_package_has_the_places_of_each_launchs_arguments(session: Path, packaged) -> None:
    table = packaged(session).OPERATORS["weighted_sum"].table
    (variant,) = table.variants
    assert variant.scratch_bytes(24, 4096) == (256, 96)
    assert table.scratch_bytes(24, 4096) == (0, 96)
    first, second = variant.launches(24, 4096, None)
    names = [one.name for one in table.order]
    assert [names[place] for place in first.arguments] == ["out", "partial", "done", "x", "w", "K"]
    assert [names[place] for place in second.arguments] == ["partial", "out", "T"]


def test_the_package_has_the_maps_of_each_shape(mapped: Path, packaged) -> None:
    table = packaged(mapped).OPERATORS["tiled_gemm"].table
    (variant,) = table.variants
    first, _ = variant.launches(17, 100, 192, None)
    names = [table.order[one.place].name for one in first.maps]
    part, x, w = first.maps
    assert names == ["part", "x", "w"]
    assert (part.sizes, part.strides, part.box) == ((100, 17, 1), (400, 6800), (64, 16, 1))
    assert (x.type, x.element_bytes, x.swizzle, x.elements) == (9, 2, 128, 17 * 192)
    assert (x.l2_promotion, w.l2_promotion) == (128, 256)
    possible = [one.is_possible for one in variant.launches(17, 100, 193, None)[0].maps]
    assert possible == [True, False, False]


def test_the_trace_set_allocates_what_the_variant_needs(
    session: Path, tmp_path: Path, compiler
) -> None:
    form = "flashinfer-trace"
    export_package([winners_of(session, None, None)], tmp_path / "out", compiler, "one", form)
    solution = next((tmp_path / "out").rglob("*_tune.json"))
    assert "weighted_sum_partial_bytes(T, K)" in solution.read_text()


def test_every_export_says_what_is_constant_and_what_has_to_be_zeros(
    session: Path, tmp_path: Path, compiler
) -> None:
    export_dispatch(session, tmp_path / "cpp", None, None)
    header = (tmp_path / "cpp" / "weighted_sum.h").read_text()
    assert "// Constant: w. A variant may read them before the launches in front of it" in header
    assert "provides as `done`, which have to be" in header
    assert json.loads((tmp_path / "cpp" / "dispatch.json").read_text())["constants"] == ["w"]
    export_package([winners_of(session, None, None)], tmp_path / "torch", compiler, "summed")
    text = (tmp_path / "torch" / "summed" / "__init__.py").read_text()
    assert "No launch before it that may still run writes w." in text
    table = (tmp_path / "torch" / "summed" / "weighted_sum_table.py").read_text()
    assert 'Array("done", "int32", "scratch", zeroed=True)' in table


@pytest.fixture
def added(tmp_path: Path) -> Path:
    """Write a session whose second candidate brought along what the user's file doesn't have."""
    text = SPACE.read_text("utf-8")
    arrays = re.findall(r"  - \{name: (?:partial|done),.*\n", text)
    whole = text.replace("".join(arrays), "")
    scratch = "scratch:\n" + "".join(arrays).replace(", role: scratch", "")
    kernel = "  - {kernel: weighted_sum, grid: [T], block: [32], arguments: [out, x, w, K]}\n"
    users = re.sub(
        r"parameters:.*?tolerance",
        f"""\
parameters: {{width: [32]}}
default: {{width: 32}}
launch:
{kernel}tolerance""",
        whole,
        flags=re.S,
    )
    project = tmp_path / "project"
    shutil.copytree(SPACE.parent, project)
    (project / "weighted_sum.yaml").write_text(users)
    (project / "weighted_sum.cu.j2").write_text(
        (project / "weighted_sum.cu").read_text().replace("k += 32", "k += @{ width }@")
    )
    folder = write_session_of(tmp_path / "two", project / "weighted_sum.yaml", {})
    won = Variant("r1", Config.of({"splits": 2, "threads": 32, "finish": "launch"}))
    with Session.open(folder) as session:
        template = (SPACE.parent / "weighted_sum.cu.j2").read_text("utf-8")
        session.add_candidate("r1", template, whole + scratch, INITIAL)
        first = Workload.of({"T": 5, "K": 1024})
        session.append(comparison(first, {won: 5.0}))
    return folder


def test_what_a_candidate_brought_along_is_in_every_export_and_in_no_other_variant(
    added: Path, tmp_path: Path, packaged, compiler
) -> None:
    table = packaged(added, "added").OPERATORS["weighted_sum"].table
    sizes = {one.scratch_bytes(5, 1024) for one in table.variants}
    assert sizes == {(0, 0), (256, 20)}
    names = [one.name for one in table.order]
    assert names == ["out", "x", "w", "T", "K", "partial", "done"]
    taken = [[names[at] for at in v.launches(5, 1024, None)[0].arguments] for v in table.variants]
    assert sorted(taken) == [
        ["out", "partial", "done", "x", "w", "K"],
        ["out", "x", "w", "K"],
    ]
    export_dispatch(added, tmp_path / "cpp", None, None)
    header = (tmp_path / "cpp" / "weighted_sum.h").read_text()
    assert "weighted_sum_partial_bytes" in header and "weighted_sum_done_bytes" in header
    form = "flashinfer-trace"
    export_package([winners_of(added, None, None)], tmp_path / "trace", compiler, "one", form)
