"""What the engines' genuine functions use of files that we wrote, in a Python without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tuner.extensions.engines.configs.files import (
    BlockFp8Key,
    MoeKey,
    Table,
    file_name,
    files_of,
    write_files,
)
from tuner.extensions.engines.configs.used import Difference, used_configs
from tuner.model.errors import InputError, WorkerError

GPU = "NVIDIA H200"
SLICE, LINEAR = MoeKey(128, 192), BlockFp8Key(2112, 7168)

Python = tuple[str, ...]


def row(block_size_m: int, num_stages: int = 3) -> dict[str, int]:
    return {
        "BLOCK_SIZE_M": block_size_m,
        "BLOCK_SIZE_N": 64,
        "BLOCK_SIZE_K": 64,
        "GROUP_SIZE_M": 1,
        "num_warps": 4,
        "num_stages": num_stages,
    }


TABLE: Table = {1: row(16), 16: row(32), 64: row(64)}
DOWN: Table = {tokens: {**one, "num_stages": 2, "USE_TMA": True} for tokens, one in TABLE.items()}


@pytest.mark.slow
def test_sglang_uses_both_gemms_configs_and_the_nearest_tokens(
    sglang_python: Python, tmp_path: Path
) -> None:
    write_files(tmp_path, files_of(SLICE, "sglang", GPU, "3.6.0", TABLE, DOWN))
    tokens = (1, 3, 16, 40, 41, 64, 4096)
    found = used_configs(
        SLICE, "sglang", tmp_path, TABLE, DOWN, tokens=tokens, gpu=GPU, python=sglang_python
    )
    assert found.as_written
    assert (found.version, found.triton) == ("0.5.17", "3.6.0")
    assert found.source is not None and found.source.name.endswith("H200.json")
    assert found.down_source is not None and found.down_source.name.endswith("_down.json")
    # 40 is as near to 16 as to 64.
    assert [one.config["BLOCK_SIZE_M"] for one in found.rows] == [16, 16, 32, 32, 64, 64, 64]
    assert all(one.down and one.down["num_stages"] == 2 for one in found.rows)


@pytest.mark.slow
def test_deterministic_sglang_uses_no_file(sglang_python: Python, tmp_path: Path) -> None:
    write_files(tmp_path, files_of(SLICE, "sglang", GPU, "3.6.0", TABLE))
    found = used_configs(
        SLICE, "sglang", tmp_path, TABLE, gpu=GPU, mode="deterministic", python=sglang_python
    )
    assert found.source is None
    assert not found.as_written
    assert Difference("BLOCK_SIZE_K", 64, 32) in found.rows[0].differences
    assert "Deterministic inference is enabled, using default MoE kernel config." in found.log


@pytest.mark.slow
def test_sglang_uses_another_tritons_file_and_warns(sglang_python: Python, tmp_path: Path) -> None:
    write_files(tmp_path, files_of(SLICE, "sglang", GPU, "3.4.0", TABLE))
    found = used_configs(SLICE, "sglang", tmp_path, TABLE, gpu=GPU, python=sglang_python)
    assert found.as_written
    assert found.source is not None and found.source.parent.name == "triton_3_4_0"
    assert found.triton == "3.6.0"
    assert any("Fallback to triton version 3.4.0" in message for message in found.log)
    assert found.down_source == found.source, "the second GEMM has the first's configs"


@pytest.mark.slow
def test_the_second_gemm_runs_with_the_firsts_blocks_of_tokens(
    sglang_python: Python, tmp_path: Path
) -> None:
    first = files_of(SLICE, "sglang", GPU, "3.6.0", TABLE, DOWN)
    other = {tokens: {**one, "BLOCK_SIZE_M": 16} for tokens, one in DOWN.items()}
    up, down = (tmp_path / name for name in first)
    write_files(tmp_path, first)
    down.write_text(up.read_text().replace('"BLOCK_SIZE_M": 64', '"BLOCK_SIZE_M": 16'))
    found = used_configs(
        SLICE, "sglang", tmp_path, TABLE, other, tokens=(64,), gpu=GPU, python=sglang_python
    )
    assert Difference("down.BLOCK_SIZE_M", 16, 64) in found.rows[0].differences


@pytest.mark.slow
def test_sglangs_block_fp8_loader_uses_clamps_or_ignores_a_file(
    sglang_python: Python, tmp_path: Path
) -> None:
    amd = "AMD Instinct MI300X"
    for gpu in (GPU, amd):
        write_files(tmp_path, files_of(LINEAR, "sglang", gpu, "3.6.0", TABLE))
    used = used_configs(LINEAR, "sglang", tmp_path, TABLE, gpu=GPU, python=sglang_python)
    assert used.as_written, used
    clamped = used_configs(LINEAR, "sglang", tmp_path, TABLE, gpu=amd, python=sglang_python)
    assert clamped.source is not None
    assert {one.differences for one in clamped.rows} == {(Difference("BLOCK_SIZE_K", 64, 128),)}
    assert any("Clamped BLOCK_SIZE_K up to 128" in message for message in clamped.log)
    compiled = used_configs(
        LINEAR, "sglang", tmp_path, TABLE, gpu=GPU, mode="compiled", python=sglang_python
    )
    assert compiled.source is None
    assert not compiled.as_written


@pytest.mark.slow
@pytest.mark.parametrize("key", [SLICE, LINEAR], ids=["moe", "block fp8"])
def test_vllm_uses_its_files_unless_it_is_batch_invariant(
    vllm_python: Python, tmp_path: Path, key: MoeKey | BlockFp8Key
) -> None:
    write_files(tmp_path, files_of(key, "vllm", GPU, "3.6.0", TABLE))
    found = used_configs(key, "vllm", tmp_path, TABLE, gpu=GPU, python=vllm_python)
    assert found.as_written, found
    assert found.version == "0.32.0"
    found = used_configs(
        key, "vllm", tmp_path, TABLE, gpu=GPU, mode="deterministic", python=vllm_python
    )
    assert found.source is None
    assert not found.as_written


@pytest.mark.slow
@pytest.mark.parametrize(
    ("there", "said"),
    [
        ({}, "FileNotFoundError: .*/configs'"),
        ({"configs/triton_3_7_0+git1a2b/other.json": "{}"}, "ValueError: invalid literal for int"),
        ({"configs/triton_3_6_0/NAME": '{"triton_version": "3.6.0"}'}, "ValueError: .*triton_vers"),
    ],
    ids=["no configs", "no release", "a version in the file"],
)
def test_a_folder_that_breaks_sglang_is_told(
    sglang_python: Python, tmp_path: Path, there: dict[str, str], said: str
) -> None:
    for name, text in there.items():
        path = tmp_path / name.replace("NAME", file_name(SLICE, "sglang", GPU))
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    with pytest.raises(WorkerError, match=f"gave no answer .*: {said}"):
        used_configs(SLICE, "sglang", tmp_path, TABLE, gpu=GPU, python=sglang_python)


@pytest.mark.slow
def test_a_version_in_a_block_fp8_file_breaks_vllm(vllm_python: Python, tmp_path: Path) -> None:
    ((name, _),) = files_of(LINEAR, "vllm", GPU, "3.6.0", TABLE).items()
    write_files(tmp_path, {name: '{"triton_version": "3.6.0"}'})
    with pytest.raises(WorkerError, match="ValueError: invalid literal for int"):
        used_configs(LINEAR, "vllm", tmp_path, TABLE, gpu=GPU, python=vllm_python)


def test_a_python_without_the_engine_is_told(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"vLLM gave no answer \(exit code 1\): .*No module"):
        used_configs(SLICE, "vllm", tmp_path, TABLE, python=(sys.executable, "-S"))
    with pytest.raises(WorkerError, match="SGLang could not be asked"):
        used_configs(SLICE, "sglang", tmp_path, TABLE, python=(str(tmp_path / "python"),))


def test_only_sglangs_block_fp8_loader_is_asked_what_it_compiles(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="doesn't look up this file while it compiles"):
        used_configs(SLICE, "sglang", tmp_path, TABLE, mode="compiled")
