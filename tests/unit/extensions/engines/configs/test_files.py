"""Names, places and contents of files, and configs that no engine would use as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from engine_wheels import SGLANG, VLLM

from tuner.extensions.engines.configs.files import (
    BlockFp8Key,
    MoeKey,
    Table,
    file_name,
    files_of,
    place,
    write_files,
)
from tuner.model.errors import InputError

GPU = "NVIDIA H200"
QWEN, SLICE = MoeKey(128, 768), MoeKey(128, 192)
BLOCKS = MoeKey(257, 256, "fp8_w8a8", (128, 128))


def config(**values: int) -> dict[str, int]:
    sizes = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}
    return {**sizes, "num_warps": 4, "num_stages": 3, **values}


TABLE: Table = {16: config(BLOCK_SIZE_M=32), 1: config()}


@pytest.mark.parametrize(
    ("key", "engine", "gpu", "name"),
    [
        (QWEN, "sglang", GPU, "E=128,N=768,device_name=NVIDIA_H200.json"),
        (QWEN, "vllm", "NVIDIA H200 NVL", "E=128,N=768,device_name=NVIDIA_H200.json"),
        (QWEN, "sglang", "NVIDIA H200 NVL", "E=128,N=768,device_name=NVIDIA_H200_NVL.json"),
        (BLOCKS, "sglang", GPU,
         "E=257,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"),
        (BLOCKS, "vllm", GPU,
         "E=257,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"),
        (MoeKey(161, 192, "fp8_w8a8", per_channel=True), "sglang", GPU,
         "E=161,N=192,device_name=NVIDIA_H200,dtype=fp8_w8a8,per_channel_quant=True.json"),
        (BlockFp8Key(512, 7168), "vllm", "NVIDIA H200 NVL",
         "N=512,K=7168,device_name=NVIDIA_H200_NVL,dtype=fp8_w8a8,block_shape=[128,128].json"),
    ],
)  # fmt: skip
def test_a_file_has_the_engines_name(key: Any, engine: Any, gpu: str, name: str) -> None:
    assert file_name(key, engine, gpu) == name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "engine", "folder"),
    [
        (QWEN, "sglang", "srt/layers/moe/moe_runner/triton_utils"),
        (BlockFp8Key(24576, 7168), "sglang", "kernels/ops/quantization"),
        (QWEN, "vllm", "model_executor/layers/fused_moe/configs"),
        (BlockFp8Key(24576, 7168), "vllm", "model_executor/layers/quantization/utils"),
    ],
)
def test_what_a_wheel_ships_lies_where_we_look(key: Any, engine: Any, folder: str) -> None:
    wheel = {"sglang": SGLANG, "vllm": VLLM}[engine].wheel()
    assert (wheel / engine / folder / place(key, engine, GPU, "3.6.0")).is_file()


def test_sglang_has_a_folder_for_each_triton_and_rows_in_order() -> None:
    ((name, text),) = files_of(QWEN, "sglang", GPU, "3.6.0", TABLE).items()
    assert name == Path("configs/triton_3_6_0/E=128,N=768,device_name=NVIDIA_H200.json")
    assert list(json.loads(text)) == ["1", "16"]
    assert json.loads(text)["16"] == TABLE[16]


def test_the_down_projection_has_a_file_of_its_own() -> None:
    down = {tokens: {**row, "num_stages": 2, "USE_TMA": True} for tokens, row in TABLE.items()}
    _, second = files_of(QWEN, "sglang", GPU, "3.6.0", TABLE, down)
    assert second.name == "E=128,N=768,device_name=NVIDIA_H200_down.json"


def test_only_vllms_moe_file_names_its_triton() -> None:
    def text(key: Any, engine: Any) -> Any:
        return json.loads(*files_of(key, engine, GPU, "3.6.0", TABLE).values())

    assert text(QWEN, "vllm").pop("triton_version") == "3.6.0"
    for key, engine in ((QWEN, "sglang"), (BlockFp8Key(512, 7168), "vllm")):
        assert set(text(key, engine)) == {"1", "16"}


@pytest.mark.parametrize(
    ("rows", "key", "said"),
    [
        ({}, QWEN, "no configs"),
        ({0: config()}, QWEN, "0 tokens"),
        ({8: {"BLOCK_SIZE_M": 16}}, QWEN, "for 8 tokens lacks BLOCK_SIZE_N"),
        ({8: config(SPLIT_K=1)}, QWEN, "for 8 tokens has SPLIT_K"),
        ({8: config(num_warps=3)}, QWEN, "for 8 tokens has 3 for num_warps"),
        ({8: config(num_stages=0)}, QWEN, "for 8 tokens has 0 for num_stages"),
        ({8: config(BLOCK_SIZE_K=256)}, BLOCKS, "BLOCK_SIZE_K=256 for 8 tokens"),
        ({8: config(BLOCK_SIZE_K=256)}, BlockFp8Key(512, 7168), "take a divisor of 128"),
    ],
)
def test_a_table_that_no_engine_takes_is_refused(rows: Table, key: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        files_of(key, "sglang", GPU, "3.6.0", rows)


def test_vllm_would_launch_no_more_than_the_smaller_side_of_a_block() -> None:
    key, table = MoeKey(8, 256, "fp8_w8a8", (64, 128)), {1: config(BLOCK_SIZE_K=128)}
    assert files_of(key, "sglang", GPU, "3.6.0", table)
    with pytest.raises(InputError, match="take a divisor of 64"):
        files_of(key, "vllm", GPU, "3.6.0", table)


def test_both_gemms_need_the_same_rows_and_blocks_of_tokens() -> None:
    with pytest.raises(InputError, match="only one of the two GEMMs has a config for 16 tokens"):
        files_of(QWEN, "sglang", GPU, "3.6.0", TABLE, {1: config()})
    with pytest.raises(InputError, match="BLOCK_SIZE_M is 32 and, for the down projection, 16"):
        files_of(QWEN, "sglang", GPU, "3.6.0", TABLE, {1: config(), 16: config()})
    with pytest.raises(InputError, match="vLLM has no file for the down projection"):
        files_of(QWEN, "vllm", GPU, "3.6.0", TABLE, TABLE)


def test_a_triton_between_releases_is_refused() -> None:
    with pytest.raises(InputError, match=r"Triton '3.7.0\+git1a2b' is not a release"):
        place(QWEN, "sglang", GPU, "3.7.0+git1a2b")


@pytest.mark.parametrize("gpu", ["", "AMD/Instinct"])
def test_a_name_that_cannot_be_a_files_is_refused(gpu: str) -> None:
    with pytest.raises(InputError, match="cannot be part of a file's name"):
        file_name(QWEN, "sglang", gpu)


def test_files_are_written_below_a_folder_and_never_over_others(tmp_path: Path) -> None:
    made = files_of(QWEN, "sglang", GPU, "3.6.0", TABLE)
    write_files(tmp_path, made)
    write_files(tmp_path, made)
    (path,) = (tmp_path / name for name in made)
    other = files_of(QWEN, "sglang", GPU, "3.6.0", {1: config()})
    with pytest.raises(InputError, match="is there already, with other configs"):
        write_files(tmp_path, {**files_of(SLICE, "sglang", GPU, "3.6.0", TABLE), **other})
    assert list(tmp_path.rglob("*.json")) == [path]
    write_files(tmp_path, other, replace=True)
    assert set(json.loads(path.read_text())) == {"1"}


def test_files_that_cannot_be_written_leave_no_folders_behind(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "file").write_text("")
    for folder, second in (
        (tmp_path, "file/b.json"),
        (tmp_path / "new", "mine/deep/a.json/b.json"),
    ):
        with pytest.raises(InputError, match="the configs cannot be written"):
            write_files(folder, {Path("mine/deep/a.json"): "", Path(second): ""})
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "mine"]


def test_a_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "configs").write_text("")
    with pytest.raises(InputError, match="the configs cannot be written"):
        write_files(tmp_path, files_of(QWEN, "sglang", GPU, "3.6.0", TABLE))
