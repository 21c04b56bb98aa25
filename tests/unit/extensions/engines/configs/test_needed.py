"""Which files a model makes an engine look for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_configs import (
    BLOCKS,
    DEEPSEEK_V3,
    GLM_4_5,
    GPT_OSS,
    KIMI_K2,
    MIXTRAL,
    QWEN3_NEXT,
    QWEN3_VL,
    write_config,
)

from tuner.extensions.engines import fleet_command
from tuner.extensions.engines.configs.files import ENGINES, BlockFp8Key, MoeKey
from tuner.extensions.engines.configs.needed import DTYPES, _table, needed_configs
from tuner.model.errors import InputError

MODELS = Path(__file__).parents[5] / "benchmarks" / "models"
QWEN = MODELS / "qwen3-30b-a3b.json"
FP8 = ("fp8_w8a8", (128, 128))


def keys(config: Path, engine: Any = "vllm", **cut: Any) -> list[Any]:
    return [one.key for one in needed_configs(config, engine, **cut)]


@pytest.mark.parametrize(
    ("cut", "key"),
    [
        ({}, MoeKey(128, 768)),
        ({"tp": 4}, MoeKey(128, 192)),
        ({"tp": 4, "ep": 4}, MoeKey(32, 768)),
        ({"dtype": "fp8_w8a8"}, MoeKey(128, 768, "fp8_w8a8")),
    ],
)
def test_experts_are_cut_or_spread(cut: Any, key: MoeKey) -> None:
    assert keys(QWEN, **cut) == [key]


def test_sglang_looks_for_the_second_products_configs_too() -> None:
    first, second = needed_configs(QWEN, "sglang")
    assert (first.down, second.down) == (False, True)
    assert first.key == second.key


def test_a_folder_with_a_config_is_a_model(tmp_path: Path) -> None:
    write_config(tmp_path, MIXTRAL)
    assert keys(tmp_path, tp=2) == [MoeKey(8, 7168)]


def test_deepseeks_shared_expert_is_one_of_sglangs_experts(tmp_path: Path) -> None:
    path = write_config(tmp_path, DEEPSEEK_V3)
    assert keys(path, "sglang", tp=8)[0] == MoeKey(257, 256, *FP8)
    assert keys(path, "sglang", tp=8, ep=8)[0] == MoeKey(32, 2048, *FP8)
    assert keys(path, "vllm", tp=8)[0] == MoeKey(256, 256, *FP8)
    older = write_config(tmp_path, DEEPSEEK_V3, model_type="deepseek_v2", architectures=["V2"])
    assert keys(older, "sglang", tp=8)[0] == MoeKey(256, 256, *FP8)


@pytest.mark.parametrize(
    ("model", "cut", "sglang", "vllm", "routes"),
    [
        (KIMI_K2, {"tp": 8}, MoeKey(384, 256, *FP8), MoeKey(384, 256, *FP8), 8),
        (KIMI_K2, {"tp": 8, "ep": 8}, MoeKey(48, 2048, *FP8), MoeKey(48, 2048, *FP8), 8),
        # The shared expert is one of SGLang's experts unless these are spread over GPUs.
        (GLM_4_5, {"tp": 8}, MoeKey(161, 192), MoeKey(160, 192), 9),
        (GLM_4_5, {"tp": 8, "ep": 8}, MoeKey(20, 1536), MoeKey(20, 1536), 8),
        ({**GLM_4_5, "model_type": "glm4v_moe"}, {"tp": 8}, MoeKey(161, 192), MoeKey(160, 192), 9),
        (QWEN3_NEXT, {"tp": 2}, MoeKey(513, 256, *FP8), MoeKey(512, 256, *FP8), 11),
        (QWEN3_NEXT, {"tp": 2, "ep": 2}, MoeKey(257, 512, *FP8), MoeKey(256, 512, *FP8), 11),
        (GPT_OSS, {"dtype": "bfloat16"}, MoeKey(128, 2880), MoeKey(128, 2880), 4),
        (QWEN3_VL, {}, MoeKey(128, 768, *FP8), MoeKey(128, 768, *FP8), 8),
    ],
)
def test_newer_models_experts_are_found_by_what_their_engines_count(
    tmp_path: Path, model: Any, cut: Any, sglang: MoeKey, vllm: MoeKey, routes: int
) -> None:
    path = write_config(tmp_path, model)
    first = needed_configs(path, "sglang", **cut)[0]
    width = model.get("text_config", model)["hidden_size"]
    axes = {"K": width, "TOP_K": routes, "EP": cut.get("ep", 1)}
    assert (first.key, dict(first.axes)) == (sglang, axes)
    assert keys(path, "vllm", **cut)[0] == vllm


def test_layers_with_a_state_have_products_of_their_own(tmp_path: Path) -> None:
    needed = needed_configs(write_config(tmp_path, QWEN3_NEXT), "vllm")
    linear = {one.layer: one.key for one in needed if isinstance(one.key, BlockFp8Key)}
    assert {layer: (key.n, key.k) for layer, key in linear.items()} == {
        # Queries have a gate of their size.
        "attention: q, k, v": ((2 * 16 + 2 * 2) * 256, 2048),
        "attention: out": (2048, 4096),
        "linear attention: q, k, v, z": (2 * (2048 + 4096), 2048),
        "linear attention: out": (2048, 4096),
        "shared experts: gate, up": (1024, 2048),
        "shared experts: down": (2048, 512),
    }


def test_a_model_without_experts_in_block_fp8_has_linear_layers_alone(tmp_path: Path) -> None:
    dense = json.loads((MODELS / "llama-3-8b.json").read_text())
    path = write_config(tmp_path, dense, quantization_config={**BLOCKS})
    assert [type(one) for one in keys(path)] == [BlockFp8Key] * 4
    small = {**BLOCKS, "weight_block_size": [32, 32]}
    path = write_config(tmp_path, MIXTRAL, quantization_config=small)
    assert keys(path)[:2] == [
        MoeKey(8, 14336, "fp8_w8a8", (32, 32)),
        BlockFp8Key(6144, 4096, (32, 32)),
    ]


def test_what_is_wrong_within_the_text_is_named_with_its_place(tmp_path: Path) -> None:
    text = {**QWEN3_VL["text_config"], "num_experts": "128"}
    path = write_config(tmp_path, QWEN3_VL, text_config=text)
    with pytest.raises(InputError, match=r"config.json: text_config.num_experts is '128'") as told:
        keys(path)
    assert "whole numbers" in str(told.value.remedy)


WARNINGS = (
    "[2026] Using default MoE kernel config. Performance might be sub-optimal! Config file not "
    "found at /x/E=33,N=512,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json, "
    "you can\n[2026] Using default W8A8 Block FP8 kernel config. Performance might be sub-optimal! "
    "Config file not found at /y/N=576,K=2048,device_name=NVIDIA_H200,dtype=fp8_w8a8,"
    "block_shape=[128, 128].json\nUsing MoE kernel config from /x/E=1,N=2,device_name=H.json.\n"
)


def test_an_engine_s_log_says_what_it_lacks_whatever_the_model_is(tmp_path: Path) -> None:
    path = write_config(
        tmp_path, MIXTRAL, model_type="unheard", num_experts_per_tok=6, num_local_experts=33
    )
    (log := tmp_path / "log").write_text(WARNINGS)
    first, second = needed_configs(path, "sglang", log=log)
    assert (first.key, dict(first.axes)["TOP_K"]) == (MoeKey(33, 512, *FP8), 6)
    assert second.key == BlockFp8Key(576, 2048)
    write_config(tmp_path, {**json.loads(path.read_text()), "num_local_experts": 32})
    (fused, _) = needed_configs(path, "sglang", log=log)
    assert dict(fused.axes)["TOP_K"] == 7, "a shared expert is one of the 33"
    log.write_text("all is well")
    with pytest.raises(InputError, match="no line says that a config file was not found"):
        needed_configs(path, "sglang", log=log)


def test_linear_layers_in_block_fp8_have_files_of_their_own(tmp_path: Path) -> None:
    path = write_config(tmp_path, DEEPSEEK_V3)
    needed = needed_configs(path, "vllm", tp=8)
    linear = {one.layer: one.key for one in needed if isinstance(one.key, BlockFp8Key)}
    assert {layer: (key.n, key.k) for layer, key in linear.items()} == {
        "attention: latents": (2112, 7168),
        "attention: q": (3072, 1536),
        "attention: k, v": (4096, 512),
        "attention: out": (7168, 2048),
        "dense layers: gate, up": (4608, 7168),
        "dense layers: down": (7168, 2304),
        "shared experts: gate, up": (512, 7168),
        "shared experts: down": (7168, 256),
    }


def test_a_model_without_latent_queries_has_one_product_for_them(tmp_path: Path) -> None:
    path = write_config(tmp_path, DEEPSEEK_V3, q_lora_rank=None)
    found = keys(path)
    assert BlockFp8Key(576, 7168) in found
    assert BlockFp8Key(24576, 7168) in found


def test_key_value_heads_are_copied_where_gpus_are_more(tmp_path: Path) -> None:
    path = write_config(tmp_path, json.loads(QWEN.read_text()), quantization_config=BLOCKS)
    assert BlockFp8Key((32 + 2 * 4) * 128, 2048) in keys(path)
    cut = write_config(
        tmp_path,
        json.loads(QWEN.read_text()),
        quantization_config=BLOCKS,
        moe_intermediate_size=1024,
    )
    assert BlockFp8Key((4 + 2 * 1) * 128, 2048) in keys(cut, tp=8)


def test_dense_layers_among_those_with_experts_count(tmp_path: Path) -> None:
    config = json.loads(QWEN.read_text())
    path = write_config(tmp_path, config, quantization_config=BLOCKS, mlp_only_layers=[0])
    assert BlockFp8Key(12288, 2048) in keys(path)
    assert BlockFp8Key(2048, 6144) in keys(path)


@pytest.mark.parametrize(
    ("strategy", "key"),
    [
        ("channel", MoeKey(8, 14336, "fp8_w8a8", per_channel=True)),
        ("tensor", MoeKey(8, 14336, "fp8_w8a8")),
        ("block", MoeKey(8, 14336, *FP8)),
    ],
)
def test_compressed_tensors_say_how_they_are_scaled(
    tmp_path: Path, strategy: str, key: MoeKey
) -> None:
    weights = {"num_bits": 8, "type": "float", "strategy": strategy, "block_structure": [128, 128]}
    quantization = {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": weights}},
    }
    path = write_config(tmp_path, MIXTRAL, quantization_config=quantization)
    assert keys(path)[0] == key


@pytest.mark.parametrize(
    ("changed", "cut", "said"),
    [
        ({"model_type": "llama"}, {}, "model_type 'llama' is not known"),
        ({"num_local_experts": None}, {}, "num_local_experts: field required"),
        ({"num_local_experts": "eight"}, {}, "num_local_experts is 'eight'"),
        ({"torch_dtype": "int7"}, {}, "weights in 'int7'"),
        ({"quantization_config": {"quant_method": "awq"}}, {}, "weights in 'awq'"),
        ({}, {"tp": 3}, "14336 columns of an expert cannot be shared by 3 GPUs"),
        ({}, {"tp": 16, "ep": 16}, "8 experts cannot be shared by 16 GPUs"),
        ({}, {"tp": 4, "ep": 2}, "2 parts of experts on 4 GPUs"),
        ({"num_key_value_heads": 6}, {"tp": 4}, "6 key-value heads cannot be shared by 4 GPUs"),
        ({"quantization_config": BLOCKS, "intermediate_size": 768}, {"tp": 4},
         "768 columns of an expert on 4 GPUs are 192, no multiple"),
        ({"quantization_config": BLOCKS, "intermediate_size": 704}, {},
         "experts are 704 wide, no multiple"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": 128}}, {}, "is 128"),
    ],
)  # fmt: skip
def test_a_model_that_no_engine_runs_is_told(
    tmp_path: Path, changed: Any, cut: Any, said: str
) -> None:
    path = write_config(tmp_path, MIXTRAL, **changed)
    with pytest.raises(InputError, match=said) as told:
        needed_configs(path, "sglang", **cut)
    assert told.value.remedy


def test_heads_are_checked_without_assertions_too(tmp_path: Path) -> None:
    path = write_config(tmp_path, MIXTRAL, num_key_value_heads=6)
    code = (
        "import sys; from pathlib import Path; "
        "from tuner.extensions.engines.configs.needed import needed_configs; "
        "needed_configs(Path(sys.argv[1]), 'vllm', tp=4)"
    )
    ended = subprocess.run(
        [sys.executable, "-O", "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert "6 key-value heads cannot be shared by 4 GPUs" in ended.stderr


def test_a_quantization_that_cannot_be_read_is_named_and_can_be_said_instead(
    tmp_path: Path,
) -> None:
    scales = {"quant_method": "fp8", "weight_block_size": [128]}
    path = write_config(tmp_path, MIXTRAL, quantization_config=scales)
    named = r"quantization_config\.weight_block_size\.1: field required"
    with pytest.raises(InputError, match=named) as told:
        needed_configs(path, "sglang")
    assert "--dtype" in told.value.remedy


@pytest.mark.parametrize(
    ("model", "key", "value"),
    [
        (MIXTRAL, "num_local_experts", -8),
        (MIXTRAL, "num_local_experts", 0),
        (MIXTRAL, "num_local_experts", "8"),
        (MIXTRAL, "num_local_experts", 8.0),
        (MIXTRAL, "num_local_experts", True),
        (MIXTRAL, "intermediate_size", 14336.5),
        (MIXTRAL, "hidden_size", [4096]),
        (DEEPSEEK_V3, "n_shared_experts", -1),
        (DEEPSEEK_V3, "n_shared_experts", "1"),
        (DEEPSEEK_V3, "first_k_dense_replace", -3),
        (DEEPSEEK_V3, "q_lora_rank", "1536"),
    ],
)
def test_a_size_that_is_none_is_told_with_its_file_key_and_value(
    tmp_path: Path, model: Any, key: str, value: Any
) -> None:
    path = write_config(tmp_path, model, **{key: value})
    with pytest.raises(InputError, match=re.escape(f"{path}: {key} is {value!r}: ")) as told:
        needed_configs(path, "sglang")
    assert "its counts and sizes are whole numbers" in str(told.value.remedy)


def test_a_block_of_weights_that_is_no_size_is_told(tmp_path: Path) -> None:
    scales = {"quant_method": "fp8", "weight_block_size": [128, "128"]}
    path = write_config(tmp_path, MIXTRAL, quantization_config=scales)
    with pytest.raises(InputError, match=r"quantization_config\.weight_block_size\.1 is '128'"):
        needed_configs(path, "sglang")


@pytest.mark.parametrize(
    ("said", "dtype"),
    [
        ({"torch_dtype": None}, None),
        ({"dtype": None}, None),
        ({"torch_dtype": None, "dtype": "float32"}, "float32"),
        ({"torch_dtype": "float32", "dtype": None}, "float32"),
        ({"torch_dtype": "float32", "dtype": "bfloat16"}, None),
    ],
)
def test_a_dtype_of_null_says_nothing_and_the_newer_key_comes_first(
    tmp_path: Path, said: Any, dtype: str | None
) -> None:
    path = write_config(tmp_path, MIXTRAL, torch_dtype=None)
    path.write_text(json.dumps({**json.loads(path.read_text()), **said}))
    assert keys(path) == [MoeKey(8, 14336, dtype)]


@pytest.mark.parametrize(
    "inside",
    [
        {"text_config": {"num_experts": 128}},
        {"thinker_config": {"text_config": {"n_routed_experts": 8}}},
        {"language_config": {"moe_intermediate_size": 768}},
    ],
)
def test_a_model_whose_experts_are_within_is_not_said_to_have_none(
    tmp_path: Path, inside: dict[str, Any]
) -> None:
    path = write_config(tmp_path, {"model_type": "seeing_moe", **inside})
    with pytest.raises(InputError, match="'seeing_moe' is not known"):
        keys(path)


@pytest.mark.parametrize(
    "quantized",
    [
        BLOCKS,
        {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}
            },
        },
    ],
)
def test_a_dtype_that_is_the_files_keeps_the_files_scales(
    tmp_path: Path, quantized: dict[str, Any]
) -> None:
    path = write_config(tmp_path, MIXTRAL, quantization_config=quantized)
    assert needed_configs(path, "sglang", dtype="fp8_w8a8") == needed_configs(path, "sglang")
    assert needed_configs(path, "sglang", dtype="bfloat16")[0].key == MoeKey(8, 14336)


def test_a_model_without_experts_is_told() -> None:
    with pytest.raises(InputError, match="'llama' has no experts"):
        needed_configs(MODELS / "llama-3-8b.json", "sglang")


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_what_is_no_config_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"cannot be read|is no object"):
        needed_configs(tmp_path, "sglang")


def test_an_empty_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        needed_configs(tmp_path, "sglang")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(
    config=st.sampled_from([DEEPSEEK_V3, MIXTRAL]),
    changes=st.dictionaries(st.sampled_from(sorted({*DEEPSEEK_V3, *MIXTRAL})), JSON, max_size=3),
    tp=st.integers(1, 64),
)
def test_any_config_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, config: Any, changes: Any, tp: int
) -> None:
    folder = tmp_path_factory.mktemp("model")
    path = write_config(folder, config, **changes)
    for engine in ENGINES:
        with suppress(InputError):
            assert needed_configs(path, engine, tp=tp)


def test_models_are_built_of_parts_that_the_table_has() -> None:
    table = _table()
    assert {part for one in table.models.values() for part in one.parts} == {*table.parts}


def test_the_command_offers_the_same_dtypes() -> None:
    assert tuple(DTYPES) == fleet_command.DTYPES
    assert ENGINES == fleet_command.ENGINES
