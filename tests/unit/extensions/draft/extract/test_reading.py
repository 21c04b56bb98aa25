"""Sources with their headers: as a CUDA compiler sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.extensions.draft.extract.conditions import PREDEFINED, holds
from tuner.extensions.draft.extract.items import items_of
from tuner.extensions.draft.extract.reading import is_plain, read_all, resolve_include
from tuner.model.errors import KernelError


def read(folder: Path, text: str, **headers: str) -> str:
    for name, content in headers.items():
        (folder / f"{name}.h").write_text(content)
    path = folder / "source.cu"
    path.write_text(text)
    reading = read_all(path)
    return "\n".join(item.text for item in items_of(reading, path))


def test_a_branch_that_does_not_hold_is_gone_and_an_open_one_keeps_its_condition(
    tmp_path: Path,
) -> None:
    path = tmp_path / "source.cu"
    path.write_text(
        "#ifdef USE_ROCM\nint a;\n#elif 1\nint b;\n#else\nint c;\n#endif\nint d;\n"
        "#if __CUDA_ARCH__ >= 900\nint e;\n#else\nint f;\n#endif\n"
    )
    reading = read_all(path)
    assert [(i.name, i.line, i.conditions) for i in items_of(reading, path)] == [
        ("b", 4, ()),
        ("d", 8, ()),
        ("e", 10, ("(__CUDA_ARCH__ >= 900)",)),
        ("f", 12, ("!(__CUDA_ARCH__ >= 900)",)),
    ]
    assert [line for _, line, _ in reading.dropped] == [1, 5]


def test_a_condition_that_holds_after_an_open_one_is_its_else(tmp_path: Path) -> None:
    code = read(tmp_path, "int f() {\n#if __CUDA_ARCH__ > 1\n  a;\n#elif 1\n  b;\n#endif\n}\n")
    assert "#else" in code
    assert "#endif" in code


def test_headers_are_read_where_they_are_included_and_once(tmp_path: Path) -> None:
    code = read(
        tmp_path,
        '#define WIDE 1\n#include "a.h"\nint last = A;\n#include "a.h"\n',
        a='#pragma once\n#include "b.h"\n#if WIDE\n#define A 2\n#else\n#define A 1\n#endif\n',
        b="int first;\n",
    )
    assert code.splitlines() == ["#define WIDE 1", "int first;", "#define A 2", "int last = A;"]


def test_guarded_headers_may_include_each_other(tmp_path: Path) -> None:
    code = read(
        tmp_path,
        '#include "a.h"\n',
        a='#ifndef A_H\n#define A_H\n#include "b.h"\nint a;\n#endif\n',
        b='#pragma once\n#include "a.h"\nint b;\n',
    )
    assert code.splitlines()[-2:] == ["int b;", "int a;"]


def test_a_header_is_found_in_an_include_folder_above(tmp_path: Path) -> None:
    (tmp_path / "include/kit").mkdir(parents=True)
    (tmp_path / "include/kit/a.h").write_text("int a;\n")
    source = tmp_path / "csrc/ops/source.cu"
    source.parent.mkdir(parents=True)
    source.write_text("#include <kit/a.h>\n")
    found = resolve_include("kit/a.h", False, source, ())
    assert (found.origin, found.path) == ("own", tmp_path / "include/kit/a.h")


@pytest.mark.parametrize(
    ("name", "quoted", "origin"),
    [
        ("cuda_bf16.h", False, "toolkit"),
        ("cooperative_groups/reduce.h", False, "toolkit"),
        ("cub/cub.cuh", False, "toolkit"),
        ("torch/all.h", False, "framework"),
        ("tvm/ffi/container/tensor.h", False, "framework"),
        ("pytorch_extension_utils.h", True, "framework"),
        ("vector", False, "host"),
        ("cuda_runtime.h", False, "host"),
        ("flashinfer/vec_dtypes.cuh", False, "missing"),
        ("utils.h", True, "missing"),
    ],
)
def test_an_include_leads_somewhere(tmp_path: Path, name: str, quoted: bool, origin: str) -> None:
    assert resolve_include(name, quoted, tmp_path / "source.cu", ()).origin == origin


def test_plain_sources_include_the_toolkit_and_the_host_compilers_headers_alone() -> None:
    plain = (("cuda_fp16.h", False), ("vector", False), ("helper_cuda.h", True))
    assert all(is_plain(*include) for include in plain)
    assert not any(is_plain(*include) for include in (("utils.h", True), ("torch/all.h", False)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#if 1\nint a;\n", "an #if without its #endif"),
        ("int a;\n#endif\n", "an #endif without its #if"),
        ("\0", "a binary file"),
    ],
)
def test_what_cannot_be_read_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        read(tmp_path, text)


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="is not a folder"):
        read_all(tmp_path / "source.cu", (tmp_path / "nowhere",))


MACROS: dict[str, str | None] = {**PREDEFINED, "WIDTH": "4", "TWICE": "(WIDTH * 2)", "MAYBE": None}


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ("defined(USE_ROCM)", False),
        ("!defined(USE_ROCM) && defined(WIDTH)", True),
        ("defined __CUDACC__", True),
        ("WIDTH == 4", True),
        ("TWICE > 0x7u", True),
        ("WIDTH * 2 % 3 == 010 - 6", True),
        ("SOMETHING_UNSET", False),
        ("CUDA_VERSION >= 12000", True),
        ("__CUDA_ARCH__ >= 900", None),
        ("defined(__CUDA_ARCH__) && defined(USE_ROCM)", False),
        ("defined(__CUDA_ARCH__) || defined(WIDTH)", True),
        ("defined(__CUDA_ARCH__) && WIDTH == 4", None),
        ("defined(MAYBE)", None),
        ("HAS(1)", None),
        ("1 / 0", None),
        ("WIDTH ==", None),
        ("", None),
    ],
)
def test_a_condition_holds_or_not_or_stays_open(condition: str, value: bool | None) -> None:
    assert holds(condition, MACROS) is value


@pytest.mark.parametrize(
    ("condition", "is_read"),
    [
        ("#ifdef ENABLE_BF16", True),
        ("#if defined(KIT_ENABLE_FP8_E4M3)", True),
        ("#if BF16_AVAILABLE", True),
        ("#ifndef KIT_WITH_CUDA", False),
        ("#ifdef ENABLE_TRACING", False),
        ("#ifdef USE_ROCM", False),
    ],
)
def test_what_a_build_for_cuda_defines_is_defined(
    tmp_path: Path, condition: str, is_read: bool
) -> None:
    path = tmp_path / "source.cu"
    path.write_text(f"{condition}\nint here;\n#endif\n")
    reading = read_all(path)
    assert ("here" in reading.files[path.resolve()].text) == is_read


def test_of_types_that_a_build_chooses_from_none_is_taken_for_it(tmp_path: Path) -> None:
    path = tmp_path / "source.cu"
    path.write_text(
        "#if defined(USE_HALF)\nint half;\n#elif defined(USE_BF16)\nint bf16;\n"
        "#else\nint plain;\n#endif\n"
    )
    text = read_all(path).files[path.resolve()].text
    assert text.split() == ["int", "plain;"]


def test_macros_that_open_or_close_braces_are_written_out(tmp_path: Path) -> None:
    path = tmp_path / "source.cu"
    path.write_text(
        "#define KIT_BEGIN namespace kit { inline namespace v1 {\n#define KIT_END } }\n"
        "#define TABLE(type, name, n) static const __device__ type name[n] = {\n"
        "#define TABLE_END() };\n"
        "KIT_BEGIN\nTABLE(int, powers,\n      2)\n  1, 2\nTABLE_END()\nint after;\nKIT_END\n"
    )
    found = list(items_of(read_all(path), path))
    kept = [(item.names, item.namespace, item.line) for item in found if item.kind != "macro"]
    assert kept == [(("powers",), ("kit",), 6), (("after",), ("kit",), 10)]


def test_of_a_frameworks_headers_only_those_with_device_code_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "kit" / "ATen"
    folder.mkdir(parents=True)
    (folder / "Tensor.h").write_text("struct Tensor;\n")
    (folder / "Sums.h").write_text("__device__ int sums();\n")
    path = tmp_path / "source.cu"
    path.write_text("#include <ATen/Tensor.h>\n#include <ATen/Sums.h>\n")
    reading = read_all(path, (tmp_path / "kit",))
    assert [item.name for item in items_of(reading, path)] == ["sums"]
    assert [include.name for _, _, include in reading.list_unread("framework")] == ["ATen/Tensor.h"]


def test_a_header_in_angles_is_found_beside_the_source(tmp_path: Path) -> None:
    (tmp_path / "sizes.h").write_text("#define ROWS 8\n")
    path = tmp_path / "source.cu"
    path.write_text("#include <sizes.h>\n")
    assert [item.name for item in items_of(read_all(path), path)] == ["ROWS"]


def project(folder: Path, *files: str) -> Path:
    (folder / ".git").mkdir()
    for file in files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"int at_{len(file)};\n")
    return folder


def test_a_header_that_only_the_build_knows_is_found_by_its_name(tmp_path: Path) -> None:
    project(tmp_path, "core/device/pack.cuh", "csrc/ops/scale.cu")
    found = resolve_include("device/pack.cuh", True, tmp_path / "csrc/ops/scale.cu", ())
    assert (found.origin, found.is_searched) == ("own", True)
    assert found.path == tmp_path / "core/device/pack.cuh"


def test_of_headers_of_one_name_the_nearest_is_taken(tmp_path: Path) -> None:
    source = "package/csrc/ops/scale.cu"
    project(tmp_path, "csrc/common/pack.h", "package/csrc/common/pack.h", source)
    found = resolve_include("pack.h", True, tmp_path / source, ())
    assert found.path == tmp_path / "package/csrc/common/pack.h"


def test_of_headers_that_are_as_near_and_differ_none_is_taken(tmp_path: Path) -> None:
    project(tmp_path, "a/pack.h", "other/pack.h", "csrc/scale.cu")
    found = resolve_include("pack.h", True, tmp_path / "csrc/scale.cu", ())
    assert (found.origin, found.path) == ("missing", None)


def test_a_header_is_looked_for_in_no_folder_that_is_no_project(tmp_path: Path) -> None:
    (tmp_path / "near").mkdir()
    (tmp_path / "near/pack.h").write_text("int a;\n")
    (tmp_path / "scale").mkdir()
    found = resolve_include("pack.h", True, tmp_path / "scale/scale.cu", ())
    assert found.origin == "missing"


def test_a_header_that_was_looked_for_and_is_unreadable_is_not_there(tmp_path: Path) -> None:
    project(tmp_path, "core/pack.h", "csrc/scale.cu")
    (tmp_path / "core/pack.h").write_text("#if 1\nint a;\n")
    source = tmp_path / "csrc/scale.cu"
    source.write_text('#include "pack.h"\nint b;\n')
    reading = read_all(source)
    assert [include.name for *_, include in reading.list_unread("missing")] == ["pack.h"]
    assert not reading.pending
