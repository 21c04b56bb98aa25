"""Files that are there, for another Triton, or missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_wheels import SGLANG, VLLM
from model_configs import DEEPSEEK_V3, write_config

from tuner.extensions.engines.configs.files import Engine, MoeKey, file_name
from tuner.extensions.engines.configs.found import (
    EngineFile,
    EngineFolders,
    FileState,
    engine_folders,
    files_of_models,
    missing_files,
)
from tuner.extensions.engines.configs.used import used_configs
from tuner.model.errors import InputError

GPU, TRITON = "NVIDIA H200", "3.6.0"
QWEN = Path(__file__).parents[5] / "benchmarks" / "models" / "qwen3-30b-a3b.json"
NAME = file_name(MoeKey(128, 768), "sglang", GPU)


def test_folders_of_models_whose_versions_have_points_are_two(tmp_path: Path) -> None:
    models = [tmp_path / "glm-4.5", tmp_path / "glm-4.6"]
    for model in models:
        model.mkdir()
        write_config(model, DEEPSEEK_V3)
    files, _ = files_of_models(models, vllm(tmp_path), GPU, TRITON)
    assert {file.models for file in files} == {("glm-4.5", "glm-4.6")}


def sglang(root: Path) -> EngineFolders:
    return EngineFolders("sglang", (root,), root)


def vllm(*roots: Path) -> EngineFolders:
    return EngineFolders("vllm", roots, roots[0])


ROW = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}
CONTENT = {"1": ROW}


def put(path: Path, content: object = CONTENT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def experts(folders: EngineFolders) -> EngineFile:
    return missing_files(QWEN, folders, GPU, TRITON)[0]


def test_nothing_is_there_in_an_empty_folder(tmp_path: Path) -> None:
    first, second = missing_files(QWEN, sglang(tmp_path), GPU, TRITON)
    assert first.state is second.state is FileState.MISSING
    assert first.wanted == tmp_path / "configs" / "triton_3_6_0" / NAME
    assert (first.is_to_make(), second.is_to_make()) == (True, False)


def test_sglang_takes_its_own_triton_else_the_newest(tmp_path: Path) -> None:
    for version in ("3_2_0", "3_10_0", "3_9_1"):
        put(tmp_path / "configs" / f"triton_{version}" / NAME)
    found = experts(sglang(tmp_path))
    assert (found.state, found.triton, found.is_to_make()) == (FileState.STALE, "3.10.0", True)
    own = put(tmp_path / "configs" / "triton_3_6_0" / NAME)
    found = experts(sglang(tmp_path))
    assert (found.state, found.found, found.triton) == (FileState.THERE, own, TRITON)


def test_a_stale_file_of_the_second_product_is_to_be_made(tmp_path: Path) -> None:
    put(tmp_path / "configs" / "triton_3_6_0" / NAME)
    put(tmp_path / "configs" / "triton_3_4_0" / NAME.replace(".json", "_down.json"))
    first, second = missing_files(QWEN, sglang(tmp_path), GPU, TRITON)
    assert (first.is_to_make(), second.is_to_make()) == (False, True)


def test_a_folder_that_breaks_sglang_is_told(tmp_path: Path) -> None:
    put(tmp_path / "configs" / "triton_3_7_0+git1a2b" / "other.json")
    with pytest.raises(InputError, match="is no release of Triton"):
        experts(sglang(tmp_path))


def test_vllms_first_folder_wins_and_its_file_names_the_triton(tmp_path: Path) -> None:
    folders = vllm(tmp_path / "own", tmp_path / "shipped")
    assert experts(folders).state is FileState.MISSING
    put(tmp_path / "shipped" / NAME)
    found = experts(folders)
    assert (found.state, found.triton) == (FileState.THERE, None)
    put(tmp_path / "own" / NAME, {"triton_version": "3.4.0", **CONTENT})
    assert experts(folders).state is FileState.STALE
    put(tmp_path / "own" / NAME, {"triton_version": TRITON, **CONTENT})
    found = experts(folders)
    assert (found.state, found.found) == (FileState.THERE, tmp_path / "own" / NAME)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be read, and"),
        ("[1, 2]", "has no config of any number of tokens, and"),
        ("{}", "has no config of any number of tokens, and"),
        ('{"triton_version": "3.6.0"}', "has no config of any number of tokens, and"),
    ],
)
def test_a_file_that_an_engine_would_fail_on_is_told(
    tmp_path: Path, content: str, said: str
) -> None:
    own = tmp_path / NAME
    own.write_text(content)
    with pytest.raises(InputError, match=f"{said} vLLM would fail on it"):
        experts(vllm(tmp_path))
    put(tmp_path / "configs" / "triton_3_6_0" / NAME).write_text(content)
    with pytest.raises(InputError, match=f"{said} SGLang would fail on it"):
        experts(sglang(tmp_path))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"1": ROW, "16": [16, 64, 64, 1]}, r"the row '16' is \[16, 64, 64, 1\], no config"),
        ({"1": ROW, "16": None}, "the row '16' is None, no config"),
        ({"1": ROW, "16": {}}, "the row '16' lacks BLOCK_SIZE_M"),
        ({"1": {"BLOCK_SIZE_M": 16}}, "the row '1' lacks BLOCK_SIZE_N"),
        ({"1": {**ROW, "GROUP_SIZE_M": "1"}}, "the row '1' has '1' for GROUP_SIZE_M"),
        ({"1": {**ROW, "BLOCK_SIZE_K": 0}}, "the row '1' has 0 for BLOCK_SIZE_K"),
        ({"1": {**ROW, "BLOCK_SIZE_K": True}}, "the row '1' has True for BLOCK_SIZE_K"),
        ({"1": {**ROW, "num_warps": 4.5}}, "the row '1' has 4.5 for num_warps"),
        ({"1": {**ROW, "num_warps": 3}}, "the row '1' has 3 for num_warps, no power of two"),
        ({"1": {**ROW, "num_warps": 64}}, "the row '1' has 64 for num_warps, over 32"),
        ({"1": ROW, "many": ROW}, "the row 'many' is for no number of tokens"),
        ({"1": ROW, "1.5": ROW}, "the row '1.5' is for no number of tokens"),
    ],
)
@pytest.mark.parametrize("version", ["3_4_0", "3_6_0"])
def test_a_row_that_an_engine_would_fail_on_is_told_with_what_is_done_about_it(
    tmp_path: Path, content: object, said: str, version: str
) -> None:
    path = put(tmp_path / "configs" / f"triton_{version}" / NAME, content)
    with pytest.raises(InputError, match=f": {said}, and SGLang would fail on it") as told:
        experts(sglang(tmp_path))
    assert told.value.path == path
    assert "`tune fleet` lists and makes nothing" in str(told.value.remedy)


def test_a_row_of_a_block_fp8_file_is_told_too_and_of_these_none_names_a_triton(
    tmp_path: Path,
) -> None:
    config = write_config(tmp_path, DEEPSEEK_V3)
    moe = vllm(tmp_path)
    first = next(
        one for one in missing_files(config, moe, GPU, TRITON) if one.needed.layer[0] == "a"
    )
    for content, said in (({"1": 1}, "'1' is 1"), ({"triton_version": TRITON, **CONTENT}, "'tri")):
        put(first.wanted, content)
        with pytest.raises(InputError, match=f"the row {said}"):
            missing_files(config, moe, GPU, TRITON)


BLOCK_FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
WIDE = {**ROW, "BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 256, "BLOCK_SIZE_K": 128, "num_stages": 4}


@pytest.mark.parametrize(("make", "layer", "step"), [
    (sglang, 0, 256), (sglang, 2, 256), (vllm, 1, 256), (sglang, 1, 512),
])  # fmt: skip
def test_a_step_over_more_than_one_scale_is_told(
    tmp_path: Path, make: Callable[[Path], EngineFolders], layer: int, step: int
) -> None:
    config = write_config(tmp_path, {**json.loads(QWEN.read_text()), **BLOCK_FP8})
    wanted = missing_files(config, make(tmp_path), GPU, TRITON)[layer].wanted
    put(wanted, {"8": ROW, "16": {**ROW, "BLOCK_SIZE_K": step}})
    with pytest.raises(InputError, match=f"the row '16' has BLOCK_SIZE_K={step}, with a scale"):
        missing_files(config, make(tmp_path), GPU, TRITON)


def test_a_step_that_an_engine_makes_right_itself_is_taken(tmp_path: Path) -> None:
    config = write_config(tmp_path, {**json.loads(QWEN.read_text()), **BLOCK_FP8})
    for make, layer, step in ((vllm, 0, 256), (sglang, 2, 64), (sglang, 0, 32)):
        wanted = missing_files(config, make(tmp_path), GPU, TRITON)[layer].wanted
        put(wanted, {"16": {**ROW, "BLOCK_SIZE_K": step}})
        assert missing_files(config, make(tmp_path), GPU, TRITON)[layer].found == wanted


@pytest.mark.parametrize(
    ("gpu", "quantized", "remark"),
    [
        ("NVIDIA GB10", BLOCK_FP8, "some 147,456 bytes of shared memory, over the 101,376"),
        ("NVIDIA L40S", BLOCK_FP8, "some 147,456 bytes of shared memory, over the 101,376"),
        ("NVIDIA H200", {}, "some 294,912 bytes of shared memory, over the 232,448"),
        ("NVIDIA H200", BLOCK_FP8, ""),
        ("NVIDIA Unheard", {}, ""),
    ],
)
def test_rows_that_a_gpu_has_too_little_shared_memory_for_are_marked(
    tmp_path: Path, gpu: str, quantized: dict[str, object], remark: str
) -> None:
    config = write_config(tmp_path, {**json.loads(QWEN.read_text()), **quantized})
    wanted = missing_files(config, sglang(tmp_path), gpu, TRITON)[0].wanted
    put(wanted, {"1": ROW, "64": WIDE})
    found = missing_files(config, sglang(tmp_path), gpu, TRITON)[0]
    assert remark in found.remark
    assert bool(remark) == found.remark.endswith(f"on {gpu}, for 64 tokens")


def test_keys_that_an_engine_does_without_or_passes_on_are_right(tmp_path: Path) -> None:
    for one in ({"num_stages": 0, "num_warps": 8}, {"waves_per_eu": 2}, {"USE_TMA": False}):
        put(tmp_path / "configs" / "triton_3_6_0" / NAME, {"1": {**ROW, **one}})
        assert experts(sglang(tmp_path)).state is FileState.THERE


def test_a_folder_of_ones_own_replaces_sglangs_and_precedes_vllms(tmp_path: Path) -> None:
    for name in ("srt/layers/moe/moe_runner/triton_utils", "kernels/ops/quantization"):
        (tmp_path / name).mkdir(parents=True)
    own = tmp_path / "own"
    assert engine_folders("sglang", tmp_path, own).moe == (own,)
    with pytest.raises(InputError, match="no model_executor/layers/fused_moe/configs in it"):
        engine_folders("vllm", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "lacking"),
    [("sglang", ["experts", "experts, second product", "attention: latents"]), ("vllm", [])],
)
def test_what_engines_ship_for_deepseek_has_the_names_we_expect(
    tmp_path: Path, engine: Engine, lacking: list[str]
) -> None:
    wheel = {"sglang": SGLANG, "vllm": VLLM}[engine].wheel()
    folders = engine_folders(engine, wheel / engine)
    config = write_config(tmp_path, DEEPSEEK_V3)
    found = missing_files(config, folders, GPU, TRITON, tp=8)
    assert [one.needed.layer for one in found if one.is_to_make()] == lacking
    assert {one.triton for one in found if one.state is FileState.STALE} <= {"3.5.1"}


@pytest.mark.slow
@pytest.mark.parametrize("tp", [1, 4, 8])
def test_sglang_reads_the_file_that_we_found(sglang_python: tuple[str, ...], tp: int) -> None:
    folders = engine_folders("sglang", SGLANG.wheel() / "sglang")
    first, _ = missing_files(QWEN, folders, GPU, TRITON, tp=tp)
    asked = used_configs(
        first.needed.key, "sglang", None, {}, tokens=(16,), gpu=GPU, python=sglang_python
    )
    assert (first.found and first.found.resolve()) == (asked.source and asked.source.resolve())
