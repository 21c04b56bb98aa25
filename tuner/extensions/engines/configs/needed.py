"""Which configs an engine looks for when it runs a model, from its config.json.

The shapes are those of the layers of SGLang 0.5.17 and vLLM 0.32.0 (`models/qwen3_moe.py`,
`mixtral.py`, `deepseek_v2.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tuner.extensions.engines.configs.files import BlockFp8Key, Engine, Key, MoeKey
from tuner.model.errors import InputError
from tuner.process.files import parse_json, read_text

CONFIG = "config.json"
# By the name that a user gives, the one in a file's name; other quantizations have other kernels.
DTYPES: Mapping[str, str | None] = {
    "bfloat16": None,
    "float16": None,
    "float32": "float32",
    "fp8_w8a8": "fp8_w8a8",
}
_SAID = f"name what the engine makes of the weights with --dtype: {', '.join(DTYPES)}"
_QUANTIZATION = "quantization_config"
# Of how many GPUs a remedy speaks at most.
_MOST_GPUS = 128
# As transformers 5 and both engines read them: `dtype` first, and null as if it were not there.
_PYTHON_DTYPE = "dtype", "torch_dtype"
# SGLang makes DeepSeek-V3's shared expert one of the experts, and no other model's of this class.
_FUSED_EXPERTS = 256


@dataclass(frozen=True, slots=True)
class Needed:
    """What an engine looks for; `down` is the second GEMM's own file, which it can do without."""

    layer: str
    key: Key
    down: bool = False


@dataclass(frozen=True, slots=True)
class Precision:
    """What the weights are: `dtype` as in a file's name, and the scales of fp8."""

    dtype: str | None
    block_shape: tuple[int, int] | None = None
    per_channel: bool = False


@dataclass(frozen=True, slots=True)
class Slices:
    """How a model is cut: `tp` GPUs, its experts whole and spread over `ep` of them, 1 or all."""

    path: Path
    tp: int
    ep: int
    block_shape: tuple[int, int] | None

    def count(self, number: int, what: str, parts: int) -> int:
        """Return a GPU's part of what is counted; raise `InputError` where it has no whole one."""
        if number % parts:
            fitting = ", ".join(str(n) for n in range(1, _MOST_GPUS + 1) if not number % n)
            raise InputError(
                f"{number} {what} cannot be shared by {parts} GPUs",
                path=self.path,
                remedy=f"choose --tp of {fitting}",
            )
        return number // parts

    def cut(self, size: int, what: str, parts: int) -> int:
        """Return a GPU's part of a size; raise `InputError` where it has none that engines take."""
        self.count(size, what, parts)
        for block in self.block_shape or ():
            if parts > 1 and (size // parts) % block:
                numbers = range(1, _MOST_GPUS + 1)
                fitting = [n for n in numbers if not size % n and not size // n % block]
                raise InputError(
                    f"{size} {what} on {parts} GPUs are {size // parts}, no multiple of the "
                    f"weights' blocks of {block}",
                    path=self.path,
                    remedy=f"choose --tp of {', '.join(map(str, fitting)) or 'none'}, or --ep to "
                    "keep experts whole",
                )
        return size // parts


# Strict, as transformers 5 is: "8" and 8.0 are no number of experts.
_Count = Annotated[int, Field(strict=True, ge=1, lt=1 << 31)]
_CountFrom0 = Annotated[int, Field(strict=True, ge=0)]


class _Model(BaseModel):
    """What of a model's config.json decides the shapes of its layers."""

    # A config.json has many more keys.
    model_config = ConfigDict(extra="ignore", frozen=True)

    hidden_size: _Count
    num_attention_heads: _Count
    intermediate_size: _Count

    def needed(self, engine: Engine, slices: Slices, precision: Precision) -> Iterator[Needed]:
        """List what the engine looks for, layer by layer."""
        raise NotImplementedError


class _Grouped(_Model):
    num_key_value_heads: _Count
    head_dim: _Count | None = None

    def attention(self, slices: Slices) -> Iterator[Needed]:
        width = self.head_dim or self.hidden_size // self.num_attention_heads
        heads = slices.count(self.num_attention_heads, "attention heads", slices.tp)
        pairs = self.num_key_value_heads
        # Where there are fewer of them than GPUs, several GPUs have the same one.
        keys = 1 if slices.tp % pairs == 0 else slices.count(pairs, "key-value heads", slices.tp)
        rows, hidden = (heads + 2 * keys) * width, self.hidden_size
        yield from _linear("attention: q, k, v", rows, hidden, slices)
        yield from _linear("attention: out", hidden, heads * width, slices)


class _Mixtral(_Grouped):
    num_local_experts: _Count

    def needed(self, engine: Engine, slices: Slices, precision: Precision) -> Iterator[Needed]:
        width = self.intermediate_size
        yield from _experts(self.num_local_experts, width, engine, slices, precision)
        yield from self.attention(slices)


class _Qwen3(_Grouped):
    num_experts: _Count
    moe_intermediate_size: _Count
    decoder_sparse_step: _Count = 1
    mlp_only_layers: list[_CountFrom0] = []

    def needed(self, engine: Engine, slices: Slices, precision: Precision) -> Iterator[Needed]:
        width = self.moe_intermediate_size
        yield from _experts(self.num_experts, width, engine, slices, precision)
        yield from self.attention(slices)
        if self.mlp_only_layers or self.decoder_sparse_step > 1:
            yield from _mlp("dense layers", self.hidden_size, self.intermediate_size, slices)


class _DeepSeek(_Model):
    n_routed_experts: _Count
    moe_intermediate_size: _Count
    n_shared_experts: _CountFrom0 | None = None
    first_k_dense_replace: _CountFrom0 = 0
    architectures: list[str] = []
    q_lora_rank: _Count | None = None
    kv_lora_rank: _Count
    qk_nope_head_dim: _Count
    qk_rope_head_dim: _Count
    v_head_dim: _Count

    def needed(self, engine: Engine, slices: Slices, precision: Precision) -> Iterator[Needed]:
        hidden, shared = self.hidden_size, self.n_shared_experts or 0
        width, routed = self.moe_intermediate_size, self.n_routed_experts
        fused = (
            engine == "sglang"
            and slices.ep == 1
            and (routed, shared) == (_FUSED_EXPERTS, 1)
            and self.architectures[:1] == ["DeepseekV3ForCausalLM"]
        )
        yield from _experts(routed, width, engine, slices, precision, shared if fused else 0)
        heads = slices.count(self.num_attention_heads, "attention heads", slices.tp)
        latent = self.kv_lora_rank + self.qk_rope_head_dim
        queries = heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        rank = self.q_lora_rank or 0
        yield from _linear("attention: latents", rank + latent, hidden, slices)
        yield from _linear("attention: q", queries, rank or hidden, slices)
        keys = heads * (self.qk_nope_head_dim + self.v_head_dim)
        yield from _linear("attention: k, v", keys, self.kv_lora_rank, slices)
        yield from _linear("attention: out", hidden, heads * self.v_head_dim, slices)
        if self.first_k_dense_replace:
            yield from _mlp("dense layers", hidden, self.intermediate_size, slices)
        if shared and not fused:
            yield from _mlp("shared experts", hidden, shared * width, slices)


_MODELS: Mapping[str, type[_Model]] = {
    "mixtral": _Mixtral,
    "qwen3_moe": _Qwen3,
    "deepseek_v2": _DeepSeek,
    "deepseek_v3": _DeepSeek,
}
_M = TypeVar("_M", bound=BaseModel)


def needed_configs(
    config: Path, engine: Engine, *, tp: int = 1, ep: int = 1, dtype: str | None = None
) -> tuple[Needed, ...]:
    """List what one GPU of `tp` looks for with this model, where its Triton kernels run.

    `config` is a Hugging Face config.json, or a folder with one. `ep` is 1, or `tp` where the
    experts are spread whole. `dtype` is one of `DTYPES` in place of the file's. All linear layers
    of a model in fp8 are taken to be in fp8. Raises `InputError` for a model that is not known or
    has no experts, and for slices that the engines refuse.
    """
    path = config / CONFIG if config.is_dir() else config
    try:
        given = parse_json(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"cannot be read: {said}",
            path=path,
            remedy="name a model's config.json, or the folder that it lies in",
        ) from error
    if not isinstance(given, dict):
        raise InputError("is no object", path=path, remedy="name a model's config.json")
    kind = str(given.get("model_type"))
    if kind not in _MODELS:
        raise _unknown_model_error(path, kind, given)
    precision = _precision(path, given, dtype)
    if ep not in (1, tp):
        raise InputError(
            f"{ep} parts of experts on {tp} GPUs", remedy=f"--ep is 1 or, as --tp, {tp}"
        )
    slices = Slices(path, tp, ep, precision.block_shape)
    model = _validate(_MODELS[kind], path, given)
    return tuple(dict.fromkeys(model.needed(engine, slices, precision)))


def _unknown_model_error(path: Path, kind: str, given: Mapping[str, Any]) -> InputError:
    known = f"known are {', '.join(_MODELS)}"
    parts = [given]
    for part in parts:
        if any("expert" in name or "moe" in name.split("_") for name in part):
            return InputError(f"model_type {kind!r} is not known", path=path, remedy=known)
        # A model of several kinds of data has one of text inside.
        parts += [one for one in part.values() if isinstance(one, dict)]
    return InputError(
        f"model_type {kind!r} has no experts, and is not known",
        path=path,
        remedy=f"its linear layers are no Triton kernels unless they are in block fp8; {known}",
    )


def _validate(model: type[_M], path: Path, given: Mapping[str, Any], within: str = "") -> _M:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, (within, *first["loc"]) if within else first["loc"]))
        found = "" if first["type"] == "missing" else f" is {first['input']!r}"
        remedy = f"a config.json of {given.get('model_type')!r} has it"
        if found:
            remedy += ", as the model came with it: its counts and sizes are whole numbers"
        raise InputError(
            f"{name}{found}: {first['msg'].lower()}",
            path=path,
            remedy=_SAID if within else remedy,
        ) from error


class _Fp8(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    weight_block_size: tuple[_Count, _Count] | None = None


class _Weights(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    num_bits: int
    type: str
    strategy: str
    block_structure: tuple[_Count, _Count] | None = None


class _WeightGroup(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    weights: _Weights


class _Compressed(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    config_groups: dict[str, _WeightGroup] = Field(min_length=1)


def _precision(path: Path, given: Mapping[str, Any], dtype: str | None) -> Precision:
    if dtype is not None:
        # A dtype says nothing of scales: those are the file's where it is in the same.
        with suppress(InputError):
            stated = _precision(path, given, None)
            if stated.dtype == DTYPES[dtype]:
                return stated
        return Precision(DTYPES[dtype])
    quantization = given.get(_QUANTIZATION)
    if not isinstance(quantization, dict):
        named = (given.get(key) for key in _PYTHON_DTYPE)
        name = next((str(one) for one in named if one is not None), "bfloat16")
        if name not in DTYPES:
            raise _no_files(path, name)
        return Precision(DTYPES[name])
    method = str(quantization.get("quant_method"))
    if method == "fp8":
        return Precision(
            "fp8_w8a8", _validate(_Fp8, path, quantization, _QUANTIZATION).weight_block_size
        )
    if method != "compressed-tensors":
        raise _no_files(path, method)
    groups = _validate(_Compressed, path, quantization, _QUANTIZATION).config_groups
    weights = next(iter(groups.values())).weights
    if len(groups) > 1 or (weights.num_bits, weights.type) != (8, "float"):
        raise _no_files(path, f"{method} of {weights.num_bits}-bit {weights.type}")
    block = weights.block_structure if weights.strategy == "block" else None
    return Precision("fp8_w8a8", block, per_channel=weights.strategy == "channel")


def _no_files(path: Path, what: str) -> InputError:
    return InputError(
        f"weights in {what!r}: for these no files are known",
        path=path,
        remedy=_SAID,
    )


def _experts(
    experts: int, width: int, engine: Engine, slices: Slices, precision: Precision, shared: int = 0
) -> Iterator[Needed]:
    # Each block of an expert's weights has one scale, so even an uncut expert has whole ones.
    for block in precision.block_shape or ():
        if width % block:
            raise InputError(
                f"experts are {width} wide, no multiple of the weights' blocks of {block}",
                path=slices.path,
                remedy="neither engine runs this model",
            )
    key = MoeKey(
        experts=slices.count(experts, "experts", slices.ep) + shared,
        intermediate=slices.cut(width, "columns of an expert", slices.tp // slices.ep),
        dtype=precision.dtype,
        block_shape=precision.block_shape,
        per_channel=precision.per_channel,
    )
    yield Needed("experts", key)
    if engine == "sglang":
        yield Needed("experts, second product", key, down=True)


def _linear(layer: str, n: int, k: int, slices: Slices) -> Iterator[Needed]:
    if slices.block_shape:
        yield Needed(layer, BlockFp8Key(n, k, slices.block_shape))


def _mlp(name: str, hidden: int, width: int, slices: Slices) -> Iterator[Needed]:
    part = slices.cut(width, f"columns of the {name}", slices.tp)
    yield from _linear(f"{name}: gate, up", 2 * part, hidden, slices)
    yield from _linear(f"{name}: down", hidden, part, slices)
