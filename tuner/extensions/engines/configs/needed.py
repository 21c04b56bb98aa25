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
_VOCABULARY_STEP = 64


@dataclass(frozen=True, slots=True)
class Needed:
    """What an engine looks for; `down` is the second GEMM's own file, which it can do without."""

    layer: str
    key: Key
    down: bool = False


@dataclass(frozen=True, slots=True)
class Layer:
    """A linear layer on one GPU: the rows and columns of its weights."""

    name: str
    n: int
    k: int


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
    vocab_size: _Count | None = None

    def experts(self, engine: Engine, slices: Slices, precision: Precision) -> Iterator[Needed]:
        """List what the engine looks for to run the experts."""
        yield from ()

    def layers(self, engine: Engine, slices: Slices) -> Iterator[Layer]:
        """List the linear layers, without routers and the last one."""
        raise NotImplementedError

    def routers(self) -> Iterator[Layer]:
        """List linear layers that every GPU has whole."""
        yield from ()


class _Grouped(_Model):
    num_key_value_heads: _Count
    head_dim: _Count | None = None

    def layers(self, engine: Engine, slices: Slices) -> Iterator[Layer]:
        width = self.head_dim or self.hidden_size // self.num_attention_heads
        heads = slices.count(self.num_attention_heads, "attention heads", slices.tp)
        pairs = self.num_key_value_heads
        # Where there are fewer of them than GPUs, several GPUs have the same one.
        keys = 1 if slices.tp % pairs == 0 else slices.count(pairs, "key-value heads", slices.tp)
        rows, hidden = (heads + 2 * keys) * width, self.hidden_size
        yield Layer("attention: q, k, v", rows, hidden)
        yield Layer("attention: out", hidden, heads * width)


class _Dense(_Grouped):
    def layers(self, engine: Engine, slices: Slices) -> Iterator[Layer]:
        yield from super().layers(engine, slices)
        yield from _mlp("dense layers", self.hidden_size, self.intermediate_size, slices)


class _Mixtral(_Grouped):
    num_local_experts: _Count

    def experts(self, engine: Engine, slices: Slices, precision: Precision) -> Iterator[Needed]:
        width = self.intermediate_size
        yield from _experts(self.num_local_experts, width, engine, slices, precision)

    def routers(self) -> Iterator[Layer]:
        yield Layer("router", self.num_local_experts, self.hidden_size)


class _Qwen3(_Grouped):
    num_experts: _Count
    moe_intermediate_size: _Count
    decoder_sparse_step: _Count = 1
    mlp_only_layers: list[_CountFrom0] = []

    def experts(self, engine: Engine, slices: Slices, precision: Precision) -> Iterator[Needed]:
        width = self.moe_intermediate_size
        yield from _experts(self.num_experts, width, engine, slices, precision)

    def layers(self, engine: Engine, slices: Slices) -> Iterator[Layer]:
        yield from super().layers(engine, slices)
        if self.mlp_only_layers or self.decoder_sparse_step > 1:
            yield from _mlp("dense layers", self.hidden_size, self.intermediate_size, slices)

    def routers(self) -> Iterator[Layer]:
        yield Layer("router", self.num_experts, self.hidden_size)


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

    def _is_fused(self, engine: Engine, slices: Slices) -> bool:
        """Whether the shared expert is one of the experts."""
        return (
            engine == "sglang"
            and slices.ep == 1
            and (self.n_routed_experts, self.n_shared_experts) == (_FUSED_EXPERTS, 1)
            and self.architectures[:1] == ["DeepseekV3ForCausalLM"]
        )

    def experts(self, engine: Engine, slices: Slices, precision: Precision) -> Iterator[Needed]:
        width, routed = self.moe_intermediate_size, self.n_routed_experts
        shared = (self.n_shared_experts or 0) if self._is_fused(engine, slices) else 0
        yield from _experts(routed, width, engine, slices, precision, shared)

    def layers(self, engine: Engine, slices: Slices) -> Iterator[Layer]:
        hidden, shared = self.hidden_size, self.n_shared_experts or 0
        heads = slices.count(self.num_attention_heads, "attention heads", slices.tp)
        latent = self.kv_lora_rank + self.qk_rope_head_dim
        queries = heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        rank = self.q_lora_rank or 0
        yield Layer("attention: latents", rank + latent, hidden)
        yield Layer("attention: q", queries, rank or hidden)
        keys = heads * (self.qk_nope_head_dim + self.v_head_dim)
        yield Layer("attention: k, v", keys, self.kv_lora_rank)
        yield Layer("attention: out", hidden, heads * self.v_head_dim)
        if self.first_k_dense_replace:
            yield from _mlp("dense layers", hidden, self.intermediate_size, slices)
        if shared and not self._is_fused(engine, slices):
            yield from _mlp("shared experts", hidden, shared * self.moe_intermediate_size, slices)


_MODELS: Mapping[str, type[_Model]] = {
    "mixtral": _Mixtral,
    "qwen3_moe": _Qwen3,
    "deepseek_v2": _DeepSeek,
    "deepseek_v3": _DeepSeek,
}
# Models without experts, whose linear layers alone may need configs.
_DENSE: Mapping[str, type[_Model]] = dict.fromkeys(
    ("llama", "mistral", "qwen2", "qwen3", "glm4"), _Dense
)
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
    path, given = _read(config)
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
    needed = [*model.experts(engine, slices, precision)]
    layers = [*model.layers(engine, slices)]
    if block := precision.block_shape:
        needed += [Needed(one.name, BlockFp8Key(one.n, one.k, block)) for one in layers]
    return tuple(dict.fromkeys(needed))


def linear_layers(config: Path, engine: Engine, *, tp: int = 1) -> tuple[Layer, ...]:
    """List the products in bf16 that one GPU of `tp` does for a model's linear layers.

    Routers and the last one are among them, experts are not. Raises `InputError` for a model that
    is not known or not in bf16, and for slices that the engines refuse.
    """
    path, given = _read(config)
    kind = str(given.get("model_type"))
    models: dict[str, type[_Model]] = {**_MODELS, **_DENSE}
    if kind not in models:
        known = f"known are {', '.join(models)}"
        raise InputError(f"model_type {kind!r} is not known", path=path, remedy=known)
    named = (given.get(key) for key in _PYTHON_DTYPE)
    dtype = next((str(one) for one in named if one is not None), "bfloat16")
    if dtype != "bfloat16" or isinstance(given.get(_QUANTIZATION), dict):
        what = dtype if dtype != "bfloat16" else "quantized"
        raise InputError(
            f"weights are {what}: the engines read configs of invariant products in bf16 alone",
            path=path,
            remedy="name a config.json without quantization whose dtype is bfloat16",
        )
    slices, model = Slices(path, tp, 1, None), _validate(models[kind], path, given)
    layers = [*model.layers(engine, slices), *model.routers()]
    if model.vocab_size:
        # Both engines pad it.
        padded = -(-model.vocab_size // _VOCABULARY_STEP) * _VOCABULARY_STEP
        layers.append(Layer("logits", slices.count(padded, "tokens", tp), model.hidden_size))
    return tuple(layers)


def _read(config: Path) -> tuple[Path, Mapping[str, Any]]:
    """Read a config.json, or that of a folder; raise `InputError` where there is none."""
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
    return path, given


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


def _mlp(name: str, hidden: int, width: int, slices: Slices) -> Iterator[Layer]:
    part = slices.cut(width, f"columns of the {name}", slices.tp)
    yield Layer(f"{name}: gate, up", 2 * part, hidden)
    yield Layer(f"{name}: down", hidden, part)
