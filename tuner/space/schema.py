"""The shape of a search-space file, and its mistakes in its own words."""

from __future__ import annotations

from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError

from tuner.model.errors import SpaceError
from tuner.model.kernel import FILLS
from tuner.space.yaml import Document, Location

Model = TypeVar("Model", bound=BaseModel)
VERSION = 1
# More would be a search of their own.
MOST_SUGGESTIONS = 64
# How a tolerance is written that the baseline's rounding decides.
MEASURED = "measured"
# What keys were called before, for those who have such a file.
_RENAMED = {"traffic": "min_bytes", "boundary": "edge_cases", "programmatic": "pdl"}


def _scalar(value: object) -> object:
    if not isinstance(value, bool | int | float | str):
        raise PydanticCustomError("scalar", "a number, a text or a boolean is needed")
    return value


# a number or a boolean is an expression too
Scalar = Annotated[Any, AfterValidator(_scalar)]


def _dtype(value: object) -> object:
    choices = list(value.values()) if isinstance(value, dict) and len(value) == 1 else []
    by = choices[0] if choices and isinstance(choices[0], dict) else {"": value}
    if not by or not all(isinstance(text, str) for pair in by.items() for text in pair):
        raise PydanticCustomError("dtype", "a dtype is needed")
    return value


Dtype = Annotated[Any, AfterValidator(_dtype)]


def _reference(value: object) -> object:
    parts = value if isinstance(value, dict) and list(value) == ["torch"] else {"torch": value}
    if not isinstance(parts["torch"], str):
        raise PydanticCustomError("reference", "a file or `{torch: ...}` is needed")
    return value


Reference = Annotated[Any, AfterValidator(_reference)]
Sizes = Annotated[list[Scalar], Field(min_length=1, max_length=3)]
# The largest size of an axis.
LARGEST = 2**31 - 1
Size = Annotated[int, Field(gt=0, le=LARGEST)]
Share = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]


class StrictModel(BaseModel):
    """Keys that are listed, and values of the type that is declared."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ExtremeModel(StrictModel):
    reason: str = Field(min_length=1, description="why, `squares of larger ones are infinite`")
    largest: float | None = Field(
        default=None, gt=0, description="the largest magnitude, `1.0e4`; without it there are none"
    )


class ArgumentModel(StrictModel):
    name: str = Field(description="the argument's name, `x`")
    dtype: Dtype = Field(
        description="its type, `bfloat16`, or one for each choice of the operator, "
        "`{QUANT: {fp8: float8_e4m3, int8: int8}}`"
    )
    shape: list[Scalar] | None = Field(
        default=None, min_length=1, description="an array's dimensions, `[T, K]`"
    )
    role: Literal["input", "output", "inout", "scratch"] | None = Field(
        default=None, description="input, output, inout or scratch"
    )
    fill: str | None = Field(
        default=None,
        description="an input's content, `normal`, `uniform(0, 8)` or `indices(T)`",
        json_schema_extra={"pattern": rf"^\s*({'|'.join(FILLS)})\s*(\(.*\))?\s*$"},
    )
    extreme: ExtremeModel | None = Field(
        default=None,
        description="how far the extreme inputs of it go, "
        "`{largest: 1.0e4, reason: squares of larger ones are infinite}`",
    )
    nonfinite: bool | None = Field(
        default=None, description="true where the operator defines NaN and infinity in this input"
    )
    deterministic: bool | None = Field(
        default=None, description="false where an output's bits may differ from run to run"
    )
    zeroed: bool | None = Field(
        default=None, description="true for scratch that is all zeros before and after each call"
    )
    constant: bool | None = Field(
        default=None, description="true for an input that never changes, as a model's weights"
    )
    idle: str | None = Field(
        default=None,
        min_length=1,
        description="why nothing depends on an input, or why an output, or a part of it, never "
        "changes, `older callers pass it`",
    )
    note: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="what else is always true of an input's content, for who writes kernels, "
        "`lower triangular, 50 % zeros`",
    )
    value: Scalar = Field(default=None, description="a scalar's value, `K`")


def _workloads(size: int) -> str:
    return f"a list of workloads, `[{{T: {size}, K: 7168}}]`, in whole numbers from 1 to {LARGEST}"


class WorkloadsModel(StrictModel):
    tuned: list[dict[str, Size]] = Field(min_length=1, description=_workloads(1))
    held_out: list[dict[str, Size]] = Field(default=[], description=_workloads(3))
    edge_cases: list[dict[str, Size]] | Literal["near"] = Field(
        default=[], description=f"{_workloads(127)}, or `near`"
    )
    weight: Scalar = Field(
        default=None,
        description="an expression: how much a size counts where bits are chosen for several, "
        "and how often it comes in a mix, `4 if T <= 64 else 1`",
    )


class TensorMapModel(StrictModel):
    of: str = Field(description="the array, `w`")
    box: list[Scalar] = Field(
        min_length=2, max_length=3, description="a box's sizes, outermost first, `[TILE_N, 64]`"
    )
    swizzle: Scalar = Field(default=None, description="0, 32, 64 or 128 bytes, or an expression")
    shape: list[Scalar] | None = Field(
        default=None,
        min_length=2,
        max_length=3,
        description="the view's sizes, outermost first, where it isn't the array's own shape, "
        "`[K // 64, N, 64]`",
    )
    strides: list[Scalar] | None = Field(
        default=None,
        min_length=1,
        max_length=2,
        description="of all dimensions but the last the elements from one to the next, `[64, K]`",
    )
    l2_promotion: Scalar = Field(
        default=None, description="0, 64, 128 or 256 bytes that the L2 fetches, or an expression"
    )


class LaunchModel(StrictModel):
    kernel: str = Field(description="a function, `scale_rows` or `scale_rows<8>`")
    grid: Sizes = Field(description="a list of 1 to 3 expressions, `[T]`")
    block: Sizes = Field(description="a list of 1 to 3 expressions, `[256]`")
    shared_memory: Scalar = Field(
        default=None, description="an expression in bytes, `4 * block_size`"
    )
    cluster: Sizes | None = Field(default=None, description="a list of 1 to 3 expressions, `[4]`")
    pdl: Scalar = Field(default=None, description="true, false or an expression")
    arguments: list[str] | None = Field(
        default=None,
        min_length=1,
        description="the arguments that this kernel takes, in its order, `[out, partial, T]`",
    )
    maps: list[TensorMapModel] | None = Field(
        default=None,
        min_length=1,
        description="tensor maps that it takes after the arguments, "
        "`[{of: w, box: [64, 64], swizzle: 128}]`",
    )
    when: Scalar = Field(default=None, description="an expression, `T > 16`")


class BaselineModel(StrictModel):
    launch: list[LaunchModel] = Field(
        min_length=1, description="a list of launches, `[{kernel: f, grid: [T], block: [64]}]`"
    )


class NeighbourModel(StrictModel):
    gemm: Sizes | None = Field(
        default=None, min_length=3, description="M, N and K of a bf16 product, `[T, H, 14336]`"
    )
    stream: Scalar = Field(default=None, description="bytes through the L2, `16777216`")
    function: str | None = Field(
        default=None, description="one of the reference file's `neighbours`, `router`"
    )
    writes: str | None = Field(default=None, description="the argument that it writes, `x`")
    reads: str | None = Field(default=None, description="the argument that it reads, `out`")
    pdl: Scalar = Field(
        default=None,
        description="true, or an expression, where it takes part in programmatic dependent launch",
    )


_NEIGHBOURS = "a list of neighbours, `[{stream: 16777216, %s}]`"


class LinkModel(StrictModel):
    before: list[NeighbourModel] = Field(min_length=1, description=_NEIGHBOURS % "writes: x")
    after: list[NeighbourModel] = Field(default=[], description=_NEIGHBOURS % "reads: out")


class SurroundingsModel(StrictModel):
    when: Scalar = Field(default=None, description="an expression over the axes, `T <= 256`")
    chain: list[LinkModel] = Field(
        min_length=1, description="a list of places, `[{before: [...], after: [...]}]`"
    )


class LimitsModel(StrictModel):
    max_registers: int | None = Field(
        default=None, ge=1, le=255, description="registers per thread, 1 to 255"
    )
    max_shared_bytes: int | None = Field(
        default=None, ge=0, description="bytes of shared memory per block, static and dynamic"
    )
    min_occupancy: Share | None = Field(default=None, description="a share from 0 to 1, `0.5`")
    spills: Literal["allow", "forbid"] = Field(default="allow", description="allow or forbid")
    serialized_wgmma: Literal["allow", "forbid"] = Field(
        default="allow", description="allow or forbid"
    )


class ToleranceModel(StrictModel):
    relative: NonNegative | None = Field(default=None, description="0 or more, `4.0e-3`")
    absolute: NonNegative | None = Field(default=None, description="0 or more, `1.0e-6`")
    codes: Share | None = Field(
        default=None, description="a share of the elements from 0 to 1, `0.01`"
    )
    measured: Literal[True] | None = Field(
        default=None, description="true, or `measured` in place of all of it"
    )
    tf32: bool = Field(
        default=False,
        description="true: what the reference's products multiply may be rounded to TF32",
    )

    @model_validator(mode="before")
    @classmethod
    def _read_word(cls, value: Any) -> Any:
        return {"measured": True} if value == MEASURED else value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [{"const": MEASURED, "type": "string"}, handler(core_schema)]}


class SpaceModel(StrictModel):
    version: int = Field(ge=VERSION, le=VERSION, description="the number 1")
    kernel: str = Field(description="a name, `scale_rows`")
    source: str = Field(
        description="the baseline's .cu, or the .py of a Python kernel, from this file's folder"
    )
    reference: Reference = Field(
        description="the reference's .py, from this file's folder, or an expression over PyTorch, "
        '`{torch: "torch.nn.functional.silu(x)"}`'
    )
    template: str | None = Field(
        default=None, description="the .cu.j2 template, from this file's folder"
    )
    axes: list[str] = Field(min_length=1, description="a list of names, `[T, K]`")
    operator: dict[str, list[str]] = Field(
        default={},
        description="macros, each with its choices, `{ACTIVATION: [silu, gelu]}`",
    )
    arguments: list[ArgumentModel] = Field(
        min_length=1, description="a list of the kernel's arguments, in its order"
    )
    workloads: WorkloadsModel = Field(
        description="`tuned`, `held_out` and `edge_cases` lists of workloads"
    )
    surroundings: dict[str, SurroundingsModel] = Field(
        default={},
        description="names, each with what runs before and after, "
        "`{decode: {chain: [{before: [{stream: 16777216, writes: x}]}]}}`",
    )
    min_bytes: Scalar = Field(
        default=None,
        description="an expression: the fewest bytes to move, `T * K * 4`; if left out, every "
        "array once",
    )
    operations: Scalar = Field(
        default=None, description="an expression: arithmetic operations, `T * K`"
    )
    peak: Literal["fp32", "tf32", "fp16", "bf16", "fp8", "int8"] | None = Field(
        default=None,
        description="what the operations are done in: fp32, tf32, fp16, bf16, fp8 or int8",
    )
    baseline: BaselineModel | None = Field(
        default=None, description="the launch of the source, `launch: [...]`"
    )
    parameters: dict[str, list[Scalar]] = Field(
        min_length=1, description="names, each with a list of values, `block_size: [128, 256]`"
    )
    derived: dict[str, Scalar] = Field(
        default={}, description="names, each with an expression, `threads: 32 * warps`"
    )
    constraints: list[Scalar] = Field(default=[], description="a list of expressions")
    prune: list[Scalar] = Field(
        default=[], description="a list of expressions; no search tries what breaks one"
    )
    default: dict[str, Scalar] | None = Field(
        default=None, description="one value for every parameter, `{block_size: 128}`"
    )
    suggestions: list[dict[str, Scalar]] = Field(
        default=[],
        max_length=MOST_SUGGESTIONS,
        description=f"a list of at most {MOST_SUGGESTIONS} configs, `[{{block_size: 512}}]`",
    )
    launch: list[LaunchModel] = Field(
        default=[], description="a list of launches, `[{kernel: f, grid: [T], block: [64]}]`"
    )
    scratch: list[ArgumentModel] = Field(
        default=[],
        description="memory that the launches take after the arguments, and the baseline does not, "
        "`[{name: partial, dtype: float32, shape: [splits, T]}]`",
    )
    limits: LimitsModel = Field(default=LimitsModel(), description="limits, `{max_registers: 128}`")
    tolerance: dict[str, ToleranceModel] = Field(
        default={},
        description="how far outputs may be off, `{out: measured}` or `{out: {relative: 4.0e-3}}`",
    )
    rows: dict[str, list[str]] = Field(
        default={},
        description="the axis that counts rows, and the outputs that have them, whose bits "
        "`--invariant` keeps; and the parameters by which these are decided, "
        "`{T: [y], by: [split]}`",
    )
    invariant: dict[str, list[str]] = Field(
        default={},
        description="as `rows`, whose bits every run keeps, `{T: [y], by: [split]}`",
    )
    include: list[str] = Field(default=[], description="a list of folders from this file's folder")
    options: list[str] = Field(
        default=[], description="a list of compiler options, `[--use_fast_math]`"
    )


class CudaSpaceModel(SpaceModel):
    """What the space of a kernel in CUDA has to say besides; one in Python has none of it."""

    template: str = Field(description="the .cu.j2 template, from this file's folder")
    baseline: BaselineModel = Field(description="the launch of the source, `launch: [...]`")
    launch: list[LaunchModel] = Field(
        min_length=1, description="a list of launches, `[{kernel: f, grid: [T], block: [64]}]`"
    )


def json_schema() -> dict[str, Any]:
    """Make the JSON Schema of a search space, for editors (docs/search-space.schema.json)."""
    return SpaceModel.model_json_schema()


def validate_space(document: Document) -> SpaceModel:
    """Check the keys and types of a space; raise `SpaceError` for the first mistake by line."""
    version = document.data.get("version")
    if isinstance(version, int) and version > VERSION:
        raise document.error(
            f"version {version} is newer than this program reads ({VERSION})",
            "version",
            remedy="update tune (`pip install --upgrade kernel-tune`)",
        )
    if not is_python(document):
        return validate_document(document, CudaSpaceModel)
    for key in ("baseline", "launch"):
        if key in document.data:
            message = f"`{key}` is for kernels in CUDA, and `source` is Python"
            remedy = "delete it: the kernel is called as launch(config, tensors, axes)"
            raise document.error(message, key, remedy=remedy)
    return validate_document(document, SpaceModel)


def is_python(document: Document) -> bool:
    """Tell whether a space's kernel is a Python function."""
    return str(document.data.get("source", "")).endswith(".py")


def validate_document(document: Document, root: type[Model]) -> Model:
    """Check the keys and types of a document against a model whose fields are described."""
    try:
        return root.model_validate(document.data)
    except ValidationError as error:
        mistakes = error.errors(include_url=False, include_context=False)
        for mistake in mistakes:
            mistake["loc"] = _place_of(mistake, document.data)
        raise _first(document, root, mistakes) from error


def _place_of(mistake: ErrorDetails, value: Any) -> Location:
    """Leave out of a mistake's place the type that pydantic names where a key takes several."""
    place = list[int | str]()
    for step in mistake["loc"]:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            if mistake["type"] != "missing" or step != mistake["loc"][-1]:
                continue
        place.append(step)
    return tuple(place)


def _first(document: Document, root: type[BaseModel], mistakes: list[ErrorDetails]) -> SpaceError:
    def order(mistake: ErrorDetails) -> tuple[bool, int]:
        # A missing key has no line of its own, so it comes last.
        return mistake["type"] == "missing", document.line(*mistake["loc"])

    unknown = [m["loc"] for m in mistakes if m["type"] == "extra_forbidden"]
    misspelt = {(*loc[:-1], _nearest(*_model_and_key(root, loc))) for loc in unknown}
    mistakes = [m for m in mistakes if m["type"] != "missing" or m["loc"] not in misspelt]
    first = min(mistakes, key=order)
    location, kind, given = first["loc"], first["type"], first["input"]
    model, key = _model_and_key(root, location)
    where = f" in `{_write_location(location[:-1])}`" if len(location) > 1 else ""
    needed = model.model_fields[key].description if key in model.model_fields else None
    remedy = f"needed: {needed if kind == 'missing' else needed or first['msg']}"
    if kind == "missing":
        message = f"the key `{location[-1]}` is missing{where}"
    elif kind == "extra_forbidden":
        message, remedy = f"unknown key `{key}`{where}", _unknown_key(model, key, given)
    elif kind in ("too_short", "too_long"):
        message = (
            f"`{_write_location(location)}` is {f'a list of {len(given)}' if given else 'empty'}"
        )
    else:
        message = (
            f"`{_write_location(location)}` is {_describe_value(given, document.plain(*location))}"
        )
    if more := len({mistake["loc"] for mistake in mistakes}) - 1:
        remedy += f"\n  and {more} more in this file"
    return document.error(message, *location, remedy=remedy)


def _unknown_key(model: type[BaseModel], key: str, given: object) -> str:
    near = _nearest(model, key)
    if given is None and not near:
        return "it has no value either: put a text that contains a comma in quotes"
    if near and near == _RENAMED.get(key):
        return f"it is called `{near}`"
    hint = f"did you mean `{near}`? " if near else ""
    return f"{hint}keys here: {', '.join(model.model_fields)}"


def _nearest(model: type[BaseModel], key: str) -> str | None:
    if _RENAMED.get(key) in model.model_fields:
        return _RENAMED[key]
    return next(iter(get_close_matches(key, model.model_fields, n=1)), None)


def _model_and_key(root: type[BaseModel], location: Location) -> tuple[type[BaseModel], str]:
    model, key = root, ""
    kind: Any = root
    for step in location:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            model, key = kind, str(step)
            if key not in kind.model_fields:
                break
            kind = _bare(kind.model_fields[key].annotation)
        elif arguments := get_args(kind):
            kind = _bare(arguments[-1])
    return model, key


def _bare(kind: Any) -> Any:
    if get_origin(kind) is Annotated or isinstance(kind, UnionType):
        return _bare(get_args(kind)[0])
    return kind


def _write_location(location: Location) -> str:
    text = ""  # as people write it: `launch[0].grid`
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def _describe_value(value: object, plain: str | None) -> str:
    if value is None:
        return "empty"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return f"the text {value!r}"
    kind = "the boolean" if isinstance(value, bool) else "the number"
    return f"{kind} {plain if plain is not None else value}"
