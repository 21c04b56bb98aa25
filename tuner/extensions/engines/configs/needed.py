"""Which configs an engine looks for when it runs a model, from its config.json.

The shapes are those of the layers of SGLang 0.5.17 and vLLM 0.32.0 (their `models` folders).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tuner.extensions.engines.configs.files import BlockFp8Key, Engine, Key, MoeKey, keys_in
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
# Where a model of several kinds of data has the one of text.
_WITHIN = "text_config", "language_config", "llm_config", "thinker_config"
# Of how many routed experts SGLang makes the shared one another, in DeepSeek's models.
_FUSED_EXPERTS = 256
_VOCABULARY_STEP = 64


@dataclass(frozen=True, slots=True)
class Needed:
    """What an engine looks for; `down` is the second GEMM's own file, which it can do without.

    `axes` are those of the experts' kernel that no file's name has, where config.json says them.
    """

    layer: str
    key: Key
    down: bool = False
    axes: tuple[tuple[str, int], ...] = ()


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
class _Model:
    """A model's numbers, and how it is cut: `tp` GPUs, its experts spread over `ep` of them.

    `within` is where in the file they stand.
    """

    path: Path
    kind: str
    given: Mapping[str, Any]
    within: str
    engine: Engine
    tp: int
    ep: int = 1
    precision: Precision = Precision(None)

    def number(self, name: str, default: int | None = None, least: int = 1) -> int:
        """Read a count or a size; raise `InputError` for what is none."""
        value = self.given.get(name)
        if value is None and default is not None:
            return default
        # Strict, as transformers 5 is: "8" and 8.0 are no number of experts.
        if type(value) is int and least <= value < 1 << 31:
            return value
        remedy = f"a config.json of {self.kind!r} has it"
        message = f"{self.within}{name}: field required"
        if value is not None:
            message = f"{self.within}{name} is {value!r}: a whole number from {least} on is needed"
            remedy += ", as the model came with it: its counts and sizes are whole numbers"
        raise InputError(message, path=self.path, remedy=remedy)

    def share(self, number: int, what: str, parts: int) -> int:
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
        self.share(size, what, parts)
        for block in self.precision.block_shape or ():
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

    @property
    def hidden(self) -> int:
        return self.number("hidden_size")

    def mlp(self, name: str, width: int) -> Iterator[Layer]:
        """List the layers of a gated MLP."""
        part = self.cut(width, f"columns of the {name}", self.tp)
        yield Layer(f"{name}: gate, up", 2 * part, self.hidden)
        yield Layer(f"{name}: down", self.hidden, part)


def _heads(model: _Model) -> tuple[int, int]:
    """Count the heads of a GPU, and its heads of keys and values."""
    every = model.number("num_attention_heads")
    heads = model.share(every, "attention heads", model.tp)
    pairs = model.number("num_key_value_heads", every)
    # Where there are fewer of them than GPUs, several GPUs have the same one.
    keys = 1 if model.tp % pairs == 0 else model.share(pairs, "key-value heads", model.tp)
    return heads, keys


def _attend(model: _Model, gates: int = 0) -> Iterator[Layer]:
    """List attention's layers; `gates` says how often queries have a gate of their size."""
    width = model.number("head_dim", model.hidden // model.number("num_attention_heads"))
    heads, keys = _heads(model)
    yield Layer("attention: q, k, v", (heads * (1 + gates) + 2 * keys) * width, model.hidden)
    yield Layer("attention: out", model.hidden, heads * width)


def _attend_to_latents(model: _Model) -> Iterator[Layer]:
    hidden, latent = model.hidden, model.number("kv_lora_rank")
    heads, _ = _heads(model)
    plain, turned = model.number("qk_nope_head_dim"), model.number("qk_rope_head_dim")
    rank, values = model.number("q_lora_rank", 0), model.number("v_head_dim")
    yield Layer("attention: latents", rank + latent + turned, hidden)
    yield Layer("attention: q", heads * (plain + turned), rank or hidden)
    yield Layer("attention: k, v", heads * (plain + values), latent)
    yield Layer("attention: out", hidden, heads * values)
    if model.kind == "deepseek_v32":
        width = model.number("index_n_heads") * model.number("index_head_dim")
        yield Layer("indexer: q", width, rank)


def _attend_linearly(model: _Model) -> Iterator[Layer]:
    """List those of layers with and without a state in place of keys and values."""
    yield from _attend(model, gates=1)
    sizes = []
    for what in ("key", "value"):
        heads = model.share(model.number(f"linear_num_{what}_heads"), f"{what} heads", model.tp)
        sizes.append(heads * model.number(f"linear_{what}_head_dim"))
    yield Layer("linear attention: q, k, v, z", 2 * sum(sizes), model.hidden)
    yield Layer("linear attention: out", model.hidden, sizes[1])


def _dense(model: _Model) -> Iterator[Layer]:
    yield from model.mlp("dense layers", model.number("intermediate_size"))


def _dense_between(model: _Model) -> Iterator[Layer]:
    if model.given.get("mlp_only_layers") or model.number("decoder_sparse_step", 1) > 1:
        yield from _dense(model)


def _dense_first(model: _Model) -> Iterator[Layer]:
    if model.number("first_k_dense_replace", 0, least=0):
        yield from _dense(model)


def _shared(model: _Model) -> Iterator[Layer]:
    width = model.number("shared_expert_intermediate_size", 0, least=0)
    if count := model.number("n_shared_experts", 0, least=0):
        width = count * model.number("moe_intermediate_size")
    if width and not _fused(model):
        yield from model.mlp("shared experts", width)


def _fused(model: _Model) -> int:
    """Count the shared experts that are among the experts."""
    if model.engine != "sglang":
        return 0
    shared = model.number("n_shared_experts", 0, least=0)
    if model.kind == "qwen3_next":
        own = model.number("shared_expert_intermediate_size", 0, least=0)
        return int(0 < own == model.number("moe_intermediate_size"))
    if model.ep > 1:
        return 0
    if model.kind == "glm4_moe":
        return shared
    named, routed = model.given.get("architectures"), model.given.get("n_routed_experts")
    is_v3 = isinstance(named, list) and named[:1] == ["DeepseekV3ForCausalLM"]
    return int(is_v3 and (routed, shared) == (_FUSED_EXPERTS, 1))


Layers = Callable[[_Model], Iterator[Layer]]


@dataclass(frozen=True, slots=True)
class _Family:
    """How models of one kind are built; `experts` and `width` are keys of config.json.

    `has_router` says that the router's weights are a product in bf16 as others are, and is None
    where nobody has looked at the products in bf16.
    """

    layers: tuple[Layers, ...]
    experts: str = ""
    width: str = "moe_intermediate_size"
    has_router: bool | None = None


_LLAMA = _Family((_attend, _dense), has_router=False)
_DEEPSEEK = _Family((_attend_to_latents, _dense_first, _shared), "n_routed_experts")
_QWEN3 = _Family((_attend, _dense_between), "num_experts", has_router=True)
_HYBRID = _Family((_attend_linearly, _dense_between, _shared), "num_experts")
_LOCAL = _Family((_attend,), "num_local_experts", "intermediate_size")
_FAMILIES: Mapping[str, _Family] = {
    "mixtral": replace(_LOCAL, has_router=True),
    "qwen3_moe": _QWEN3,
    "deepseek_v2": replace(_DEEPSEEK, has_router=False),
    "deepseek_v3": replace(_DEEPSEEK, has_router=False),
    **dict.fromkeys(("deepseek_v32", "kimi_k2"), _DEEPSEEK),
    "qwen2_moe": _Family((_attend, _dense_between, _shared), "num_experts"),
    "qwen3_vl_moe": replace(_QWEN3, has_router=None),
    **dict.fromkeys(("qwen3_next", "qwen3_5_moe"), _HYBRID),
    **dict.fromkeys(("glm4_moe", "glm4v_moe"), _Family((_attend, _dense_first, _shared),
                                                       "n_routed_experts")),
    **dict.fromkeys(("gpt_oss", "minimax_m2"), _LOCAL),
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "glm4"), _LLAMA),
}  # fmt: skip


def needed_configs(
    config: Path,
    engine: Engine,
    *,
    tp: int = 1,
    ep: int = 1,
    dtype: str | None = None,
    log: Path | None = None,
) -> tuple[Needed, ...]:
    """List what one GPU of `tp` looks for with this model, where its Triton kernels run.

    Where there is a `log` of the engine with this model, it is what the engine says there that it
    found no file for, whatever model it is.

    `config` is a Hugging Face config.json, or a folder with one. `ep` is 1, or `tp` where the
    experts are spread whole. `dtype` is one of `DTYPES` in place of the file's. All linear layers
    of a model in fp8 are taken to be in fp8. Raises `InputError` for a model that is not known or
    has nothing to look for, and for slices that the engines refuse.
    """
    model = _read(config, engine, tp)
    if log is not None:
        return tuple(_asked_for(log, replace(model, ep=ep)))
    family = _FAMILIES.get(model.kind)
    if family is None:
        raise _unknown_model_error(model)
    precision = _precision(model.path, model.given, dtype)
    if not family.experts and precision.block_shape is None:
        raise _unknown_model_error(model)
    if ep not in (1, tp):
        raise InputError(
            f"{ep} parts of experts on {tp} GPUs", remedy=f"--ep is 1 or, as --tp, {tp}"
        )
    model = replace(model, ep=ep, precision=precision)
    needed = [*_experts(model, family)] if family.experts else []
    _heads(model)
    if block := precision.block_shape:
        layers = (layer for part in family.layers for layer in part(model))
        needed += [Needed(one.name, BlockFp8Key(one.n, one.k, block)) for one in layers]
    return tuple(dict.fromkeys(needed))


def _asked_for(log: Path, model: _Model) -> Iterator[Needed]:
    try:
        lines = read_text(log).splitlines()
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", path=log) from error
    asked = keys_in("\n".join(line for line in lines if "file not found at" in line))
    if not asked:
        raise InputError(
            "no line says that a config file was not found",
            path=log,
            remedy="name what the engine printed when it first ran the model without tuned files",
        )
    for key, down in asked:
        layer = f"experts{', second product' * down}" if isinstance(key, MoeKey) else "linear layer"
        yield Needed(layer, key, down, _axes(model) if isinstance(key, MoeKey) else ())


def linear_layers(config: Path, engine: Engine, *, tp: int = 1) -> tuple[Layer, ...]:
    """List the products in bf16 that one GPU of `tp` does for a model's linear layers.

    Routers and the last one are among them, experts are not. Raises `InputError` for a model that
    is not known or not in bf16, and for slices that the engines refuse.
    """
    model = _read(config, engine, tp)
    families = {kind: one for kind, one in _FAMILIES.items() if one.has_router is not None}
    family = families.get(model.kind)
    if family is None:
        known = f"known are {', '.join(families)}"
        raise InputError(f"model_type {model.kind!r} is not known", path=model.path, remedy=known)
    dtype = _python_dtype(model.given)
    if dtype != "bfloat16" or isinstance(model.given.get(_QUANTIZATION), dict):
        what = dtype if dtype != "bfloat16" else "quantized"
        raise InputError(
            f"weights are {what}: the engines read configs of invariant products in bf16 alone",
            path=model.path,
            remedy="name a config.json without quantization whose dtype is bfloat16",
        )
    layers = [layer for part in family.layers for layer in part(model)]
    if family.has_router:
        layers.append(Layer("router", model.number(family.experts), model.hidden))
    if vocabulary := model.number("vocab_size", 0):
        # Both engines pad it.
        padded = -(-vocabulary // _VOCABULARY_STEP) * _VOCABULARY_STEP
        layers.append(Layer("logits", model.share(padded, "tokens", tp), model.hidden))
    return tuple(layers)


def _read(config: Path, engine: Engine, tp: int) -> _Model:
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
    kind, within = str(given.get("model_type")), ""
    while place := next((name for name in _WITHIN if isinstance(given.get(name), dict)), None):
        outer, given, within = given, given[place], f"{within}{place}."
        # What the whole says of its weights holds for the text's.
        about = ((key, outer.get(key)) for key in (_QUANTIZATION, *_PYTHON_DTYPE))
        given = {**{key: said for key, said in about if said is not None}, **given}
        named = str(given.get("model_type")).removesuffix("_text")
        kind = named if named in _FAMILIES else kind
    return _Model(path, kind, given, within, engine, tp)


def _unknown_model_error(model: _Model) -> InputError:
    known = f"known are {', '.join(kind for kind, one in _FAMILIES.items() if one.experts)}"
    parts: list[Mapping[str, Any]] = [model.given]
    for part in parts:
        if any("expert" in name or "moe" in name.split("_") for name in part):
            return InputError(
                f"model_type {model.kind!r} is not known", path=model.path, remedy=known
            )
        parts += [one for one in part.values() if isinstance(one, dict)]
    return InputError(
        f"model_type {model.kind!r} has no experts, and no weights in block fp8 that are known",
        path=model.path,
        remedy=f"its linear layers are no Triton kernels unless they are in block fp8; {known}",
    )


# Strict, as transformers 5 is.
_Count = Annotated[int, Field(strict=True, ge=1, lt=1 << 31)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Weights(_Part):
    num_bits: int
    type: str
    strategy: str
    block_structure: tuple[_Count, _Count] | None = None


class _WeightGroup(_Part):
    weights: _Weights


class _Quantization(_Part):
    quant_method: str = "None"
    weight_block_size: tuple[_Count, _Count] | None = None
    config_groups: dict[str, _WeightGroup] = {}


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
        name = _python_dtype(given)
        if name not in DTYPES:
            raise _no_files(path, name)
        return Precision(DTYPES[name])
    try:
        read = _Quantization.model_validate(quantization)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, (_QUANTIZATION, *first["loc"])))
        found = "" if first["type"] == "missing" else f" is {first['input']!r}"
        message = f"{name}{found}: {first['msg'].lower()}"
        raise InputError(message, path=path, remedy=_SAID) from error
    if read.quant_method == "fp8":
        return Precision("fp8_w8a8", read.weight_block_size)
    groups = [one.weights for one in read.config_groups.values()]
    if read.quant_method != "compressed-tensors" or not groups:
        raise _no_files(path, read.quant_method)
    (weights, *others) = groups
    if others or (weights.num_bits, weights.type) != (8, "float"):
        raise _no_files(path, f"{read.quant_method} of {weights.num_bits}-bit {weights.type}")
    block = weights.block_structure if weights.strategy == "block" else None
    return Precision("fp8_w8a8", block, per_channel=weights.strategy == "channel")


def _python_dtype(given: Mapping[str, Any]) -> str:
    named = (given.get(key) for key in _PYTHON_DTYPE)
    return next((str(one) for one in named if one is not None), "bfloat16")


def _no_files(path: Path, what: str) -> InputError:
    return InputError(
        f"weights in {what!r}: for these no files are known",
        path=path,
        remedy=_SAID,
    )


def _experts(model: _Model, family: _Family) -> Iterator[Needed]:
    experts, width = model.number(family.experts), model.number(family.width)
    precision, shared = model.precision, _fused(model)
    # Each block of an expert's weights has one scale, so even an uncut expert has whole ones.
    for block in precision.block_shape or ():
        if width % block:
            raise InputError(
                f"experts are {width} wide, no multiple of the weights' blocks of {block}",
                path=model.path,
                remedy="neither engine runs this model",
            )
    key = MoeKey(
        experts=model.share(experts, "experts", model.ep) + shared,
        intermediate=model.cut(width, "columns of an expert", model.tp // model.ep),
        dtype=precision.dtype,
        block_shape=precision.block_shape,
        per_channel=precision.per_channel,
    )
    yield Needed("experts", key, axes=_axes(model))
    if model.engine == "sglang":
        yield Needed("experts, second product", key, down=True, axes=_axes(model))


def _axes(model: _Model) -> tuple[tuple[str, int], ...]:
    # A shared expert among the experts has a route of its own.
    routes = model.number("num_experts_per_tok", model.number("experts_per_token", 0))
    routes += _fused(model) if routes else 0
    return ("K", model.hidden), ("TOP_K", routes), ("EP", model.ep)
