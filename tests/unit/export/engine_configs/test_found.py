"""Files that are there, for another Triton, or missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from engine_wheels import SGLANG, VLLM
from model_configs import DEEPSEEK_V3, write_config

from tuner.export.engine_configs.files import Engine, MoeKey, file_name
from tuner.export.engine_configs.found import (
    EngineFile,
    EngineFolders,
    FileState,
    engine_folders,
    missing_files,
)
from tuner.export.engine_configs.used import used_configs
from tuner.model.errors import InputError

GPU, TRITON = "NVIDIA H200", "3.6.0"
QWEN = Path(__file__).parents[4] / "benchmarks" / "models" / "qwen3-30b-a3b.json"
NAME = file_name(MoeKey(128, 768), "sglang", GPU)


def sglang(root: Path) -> EngineFolders:
    return EngineFolders("sglang", (root,), root)


def vllm(*roots: Path) -> EngineFolders:
    return EngineFolders("vllm", roots, roots[0])


CONTENT = {"1": {"BLOCK_SIZE_M": 16}}


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
    put(tmp_path / "shipped" / NAME, {"1": {}})
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
