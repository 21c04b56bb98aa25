"""Which configs an engine looks for when it runs a model, from its config.json.

`models.yaml` has how models are built; a line there teaches another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tuner.extensions.engines.configs.files import BlockFp8Key, Engine, Key, MoeKey, missing_in
from tuner.model.errors import InputError
from tuner.model.expressions import Expression, Value
from tuner.process.files import parse_json, read_text
from tuner.space.schema import Scalar, StrictModel, validate_document
from tuner.space.yaml import read as read_yaml

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
TABLE = Path(__file__).with_name("models.yaml")
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

    @property
    def keys(self) -> int:
        """How many heads of keys and values a GPU has; raise where it has no whole ones."""
        every = self.number("num_attention_heads")
        self.share(every, "attention heads", self.tp)
        pairs = self.number("num_key_value_heads", every)
        # Where there are fewer of them than GPUs, several GPUs have the same one.
        return 1 if self.tp % pairs == 0 else self.share(pairs, "key-value heads", self.tp)

    @property
    def fused(self) -> int:
        """How many shared experts are among the experts."""
        family = _table().models.get(self.kind)
        return self.compute(family.fused) if family and self.engine == "sglang" else 0

    def compute(self, text: object) -> int:
        """Compute an expression of the table; raise `InputError` for a number that is none."""
        expression = Expression.parse(str(text), path=TABLE)
        return int(expression.evaluate({name: self._value(name) for name in expression.names}))

    def _value(self, name: str) -> Value:
        table, given = _table(), self.given.get(name)
        if name in ("ep", "keys", "fused"):
            return cast("int", getattr(self, name))
        if name == "architecture":
            named = self.given.get("architectures")
            return str(named[0]) if isinstance(named, list) and named else ""
        if key := table.shared.get(name):
            what = key.removeprefix("num_").replace("_", " ")
            return self.share(self.number(key), what, self.tp)
        if name in table.derived:
            return self.compute(table.derived[name])
        if isinstance(given, list) and name in table.defaults:
            return len(given)
        return self.number(name, table.defaults.get(name), least=int(name not in table.defaults))

    def layers(self) -> Iterator[Layer]:
        """List the linear layers, without routers and the last one."""
        table = _table()
        for layer in (
            layer for part in table.models[self.kind].parts for layer in table.parts[part]
        ):
            if not self.compute(layer.when):
                continue
            if layer.mlp:
                columns = f"columns of the {layer.mlp}"
                part = self.cut(self.compute(layer.columns), columns, self.tp)
                yield Layer(f"{layer.mlp}: gate, up", 2 * part, self.hidden)
                yield Layer(f"{layer.mlp}: down", self.hidden, part)
            else:
                yield Layer(layer.layer, self.compute(layer.n), self.compute(layer.k))


class _LayerModel(StrictModel):
    layer: str = Field(default="", description="what a layer is called")
    n: Scalar = Field(default=0, description="an expression: rows of weights")
    k: Scalar = Field(default=0, description="an expression: columns of weights")
    mlp: str = Field(default="", description="what the two layers of a gated MLP are called")
    columns: Scalar = Field(default=0, description="an expression")
    when: Scalar = Field(default="True", description="an expression")


class _FamilyModel(StrictModel):
    parts: list[str] = Field(description="names of `parts`")
    experts: str = Field(default="", description="the key of the number of experts")
    width: str = Field(default="moe_intermediate_size", description="the key of an expert's width")
    fused: Scalar = Field(default=0, description="an expression")
    router: bool | None = Field(default=None, description="true or false")


class _TableModel(StrictModel):
    version: int = Field(description="1")
    defaults: dict[str, int] = Field(description="numbers by keys of config.json")
    shared: dict[str, str] = Field(description="keys of config.json by names")
    derived: dict[str, str] = Field(description="expressions by names")
    parts: dict[str, list[_LayerModel]] = Field(description="lists of layers by names")
    models: dict[str, _FamilyModel] = Field(description="models by their types")


@cache
def _table() -> _TableModel:
    return validate_document(read_yaml(TABLE), _TableModel)


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
    family = _table().models.get(model.kind)
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
    _ = model.keys  # raises where GPUs cannot share the heads
    if block := precision.block_shape:
        layers = model.layers()
        needed += [Needed(layer.name, BlockFp8Key(layer.n, layer.k, block)) for layer in layers]
    return tuple(dict.fromkeys(needed))


def _asked_for(log: Path, model: _Model) -> Iterator[Needed]:
    try:
        asked = missing_in(read_text(log))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", path=log) from error
    if not asked:
        raise InputError(
            "no line says that a config file was not found",
            path=log,
            remedy="name what the engine printed when it first ran the model without tuned files",
        )
    for key, down in asked:
        layer = f"experts{', second product' * down}" if isinstance(key, MoeKey) else "linear layer"
        axes = _axes(model, key.experts) if isinstance(key, MoeKey) else ()
        yield Needed(layer, key, down, axes)


def linear_layers(config: Path, engine: Engine, *, tp: int = 1) -> tuple[Layer, ...]:
    """List the products in bf16 that one GPU of `tp` does for a model's linear layers.

    Routers and the last one are among them, experts are not. Raises `InputError` for a model that
    is not known or not in bf16, and for slices that the engines refuse.
    """
    model = _read(config, engine, tp)
    families = {kind: one for kind, one in _table().models.items() if one.router is not None}
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
    layers = [*model.layers()]
    if family.router:
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
        kind = named if named in _table().models else kind
    return _Model(path, kind, given, within, engine, tp)


def _unknown_model_error(model: _Model) -> InputError:
    models = _table().models.items()
    known = f"known are {', '.join(kind for kind, family in models if family.experts)}"
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
    groups = [group.weights for group in read.config_groups.values()]
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


def _experts(model: _Model, family: _FamilyModel) -> Iterator[Needed]:
    experts, width = model.number(family.experts), model.number(family.width)
    precision = model.precision
    # Each block of an expert's weights has one scale, so even an uncut expert has whole ones.
    for block in precision.block_shape or ():
        if width % block:
            raise InputError(
                f"experts are {width} wide, no multiple of the weights' blocks of {block}",
                path=model.path,
                remedy="neither engine runs this model",
            )
    key = MoeKey(
        experts=model.share(experts, "experts", model.ep) + model.fused,
        intermediate=model.cut(width, "columns of an expert", model.tp // model.ep),
        dtype=precision.dtype,
        block_shape=precision.block_shape,
        per_channel=precision.per_channel,
    )
    yield Needed("experts", key, axes=_axes(model))
    if model.engine == "sglang":
        yield Needed("experts, second product", key, down=True, axes=_axes(model))


def _axes(model: _Model, logged: int = 0) -> tuple[tuple[str, int], ...]:
    """List axes that no file's name has; `logged` experts are what an engine looked for."""
    fused, families = model.fused, _table().models.values()
    # Where experts are spread there may be copies of some, too.
    if logged and model.ep == 1:
        counts = (model.number(name, 0) for name in {one.experts for one in families} - {""})
        if counted := max(counts):
            fused = max(0, logged - counted)
    # A shared expert among the experts has a route of its own.
    routes = model.number("num_experts_per_tok", model.number("experts_per_token", 0))
    routes += fused if routes else 0
    return ("K", model.hidden), ("TOP_K", routes), ("EP", model.ep)
