"""Keys of Hugging Face's config.json files that decide which kernels an engine runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
# deepseek-ai/DeepSeek-V3
DEEPSEEK_V3: Mapping[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "torch_dtype": "bfloat16",
    "quantization_config": BLOCKS,
}
# mistralai/Mixtral-8x7B-v0.1
MIXTRAL: Mapping[str, Any] = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "torch_dtype": "bfloat16",
}


def write_config(folder: Path, config: Mapping[str, Any], **changed: Any) -> Path:
    """Write a config.json into a folder; what is changed to None is left out."""
    content = {name: value for name, value in {**config, **changed}.items() if value is not None}
    path = folder / "config.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path
