"""Which of the files that an engine looks for are there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from tuner.device.recorded.known_gpus import known_gpu
from tuner.extensions.engines.configs.files import (
    TITLES,
    TRITON_DEFAULTS,
    VERSION_KEY,
    BlockFp8Key,
    Config,
    Engine,
    Key,
    MoeKey,
    flaw_of,
    place,
    step_of_scales,
    used_step,
    version_folder,
)
from tuner.extensions.engines.configs.needed import CONFIG, Needed, needed_configs
from tuner.model.errors import InputError
from tuner.model.hardware import limits_for
from tuner.process.files import parse_json, read_text

_PREFIX = "triton_"
# What `int` reads, as engines do.
_NUMBER = re.compile(r"\s*[+-]?\d+(_\d+)*\s*")
# Of each dtype in a file's name: None is bf16 and fp16.
_ELEMENT_BYTES = {None: 2, "float32": 4, "fp8_w8a8": 1}
# Compute capabilities by a word of the names of GPUs that no data sheet of ours has.
_OF_WORDS = {
    **dict.fromkeys(("a100", "a800"), (8, 0)),
    **dict.fromkeys(("a10g", "a16", "a2"), (8, 6)),
    **dict.fromkeys(("l2", "l20", "ada", "4080", "4070", "4060"), (8, 9)),
    **dict.fromkeys(("h20", "h100", "h200", "h800", "gh200"), (9, 0)),
    **dict.fromkeys(("b100", "b200", "gb200"), (10, 0)),
    **dict.fromkeys(("b300", "gb300"), (10, 3)),
    **dict.fromkeys(("blackwell", "5080", "5070", "5060"), (12, 0)),
    "gb10": (12, 1),
}


class FileState(StrEnum):
    """Whether an engine finds a file, and whether it is for its Triton."""

    THERE = "there"
    STALE = "stale"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class EngineFolders:
    """Where an engine looks, in its order; below them lies what `place` says."""

    engine: Engine
    moe: tuple[Path, ...]
    block_fp8: Path


@dataclass(frozen=True, slots=True)
class EngineFile:
    """One file that an engine looks for.

    `wanted` is where it belongs. `found` is the file that the engine reads, another one where it
    is stale; `triton` is the version that this is for, where anything says so. `remark` tells of
    rows that the GPU has too little shared memory for, by what Triton's pipelines need at least.
    `models` are those that look for it.
    """

    needed: Needed
    state: FileState
    wanted: Path
    found: Path | None = None
    triton: str | None = None
    remark: str = ""
    models: tuple[str, ...] = ()

    @property
    def optional(self) -> bool:
        """Whether the engine does without it: without the second GEMM's it uses the first's."""
        return self.needed.down and self.state is FileState.MISSING

    def is_to_make(self, *, two: bool = False) -> bool:
        """Whether the engine lacks it, where each GEMM gets configs (`two`) the second file too."""
        return self.state is not FileState.THERE and (two or not self.optional)


# As of SGLang 0.5.17 and vLLM 0.32.0, below the package.
_SHIPPED: dict[Engine, tuple[str, str]] = {
    "sglang": ("srt/layers/moe/moe_runner/triton_utils", "kernels/ops/quantization"),
    "vllm": ("model_executor/layers/fused_moe/configs", "model_executor/layers/quantization/utils"),
}


def engine_folders(engine: Engine, package: Path, own: Path | None = None) -> EngineFolders:
    """Say where an engine looks that is installed as `package`.

    `own` is what SGLANG_MOE_CONFIG_DIR or VLLM_TUNED_CONFIG_FOLDER names. SGLang then looks for
    MoE files nowhere else, vLLM there first. Raises `InputError` where the package is laid out
    otherwise.
    """
    moe, block_fp8 = (package / name for name in _SHIPPED[engine])
    for folder in (moe, block_fp8):
        if not folder.is_dir():
            raise InputError(
                f"no {folder.relative_to(package)} in it",
                path=package,
                remedy=f"name the folder of an installed {TITLES[engine]}; known are SGLang 0.5.17 "
                "and vLLM 0.32.0",
            )
    shipped = () if engine == "sglang" and own else (moe,)
    return EngineFolders(engine, (*((own,) if own else ()), *shipped), block_fp8)


def missing_files(
    config: Path,
    folders: EngineFolders,
    gpu: str,
    triton: str,
    **cut: Any,
) -> tuple[EngineFile, ...]:
    """List the files that an engine looks for with a model, and whether they are there.

    `cut` is what `needed_configs` takes.

    Raises `InputError` as `needed_configs` does, and for files that the engine would fail on.
    """
    needed = needed_configs(config, folders.engine, **cut)
    versioned = folders.engine == "vllm"
    files = []
    for one in needed:
        name = place(one.key, folders.engine, gpu, triton, down=one.down)
        if isinstance(one.key, BlockFp8Key):
            wanted = folders.block_fp8 / name
            found = wanted if wanted.is_file() else None
        else:
            wanted = folders.moe[0] / name
            places = (folder / name for folder in folders.moe)
            there = next((path for path in places if path.is_file()), None)
            found = there if versioned else _find_of_sglang(folders.moe[0], name)
        if found is None:
            files.append(EngineFile(one, FileState.MISSING, wanted))
            continue
        dense = isinstance(one.key, BlockFp8Key)
        content = _content(found, folders.engine, one.key, versioned=versioned and not dense)
        # Of vLLM's only what is in it may say for which Triton it is, of block fp8's nothing does.
        version = None if versioned or dense else _version(found.parent)
        if versioned and VERSION_KEY in content:
            version = str(content[VERSION_KEY])
        state = FileState.THERE if version in (None, triton) else FileState.STALE
        remark = _too_large(content, one.key, folders.engine, gpu)
        files.append(EngineFile(one, state, wanted, found, version, remark))
    return tuple(files)


def files_of_models(
    models: Sequence[Path], folders: EngineFolders, gpu: str, triton: str, **cut: Any
) -> tuple[tuple[EngineFile, ...], Mapping[str, InputError]]:
    """List what `missing_files` does for models, each shape once, and say which model has none.

    Raises `InputError` where there is one model.
    """
    files: dict[object, EngineFile] = {}
    refused: dict[str, InputError] = {}
    for model in models:
        whole = model.name if model.is_dir() else model.stem
        name = model.parent.name if model.name == CONFIG else whole
        try:
            listed = missing_files(model, folders, gpu, triton, **cut)
        except InputError as error:
            if len(models) == 1:
                raise
            refused[str(model)] = error
            continue
        for engine_file in listed:
            shape = engine_file.needed.key, engine_file.needed.down, engine_file.needed.axes
            file = files.get(shape, engine_file)
            files[shape] = replace(file, models=tuple(dict.fromkeys((*file.models, name))))
    return tuple(files.values()), refused


def _find_of_sglang(root: Path, name: Path) -> Path | None:
    """Find the file that SGLang reads: its Triton's, else that of the newest."""
    if (root / name).is_file():
        return root / name
    others = []
    for folder in (root / "configs").glob(f"{_PREFIX}*"):
        version = _version(folder)
        if not re.fullmatch(r"\d+(\.\d+)*", version):
            raise InputError(
                "is no release of Triton: SGLang 0.5.17 fails on such a folder whenever a model "
                "has no file",
                path=folder,
                remedy=f"remove it, or name it as {version_folder('3.6.0')}",
            )
        others.append((tuple(map(int, version.split("."))), folder))
    paths = (folder / name.name for _, folder in sorted(others, reverse=True))
    return next((path for path in paths if path.is_file()), None)


def _version(folder: Path) -> str:
    return folder.name.removeprefix(_PREFIX).replace("_", ".")


def _content(path: Path, engine: Engine, key: Key, *, versioned: bool) -> Mapping[str, Any]:
    """Read a file; raise `InputError` for one that lacks configs, or has a row that is none.

    Where it is `versioned` one key says for which Triton it is.
    """
    failing = f"and {TITLES[engine]} would fail on it"
    remedy = "mend it, or remove it: while it is there `tune fleet` lists and makes nothing"
    try:
        content: Any = parse_json(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot be read, {failing}: {error}", path=path, remedy=remedy) from error
    if not isinstance(content, dict) or not any(map(str.isdecimal, content)):
        message = f"has no config of any number of tokens, {failing}"
        raise InputError(message, path=path, remedy=remedy)
    for tokens, row in content.items():
        if versioned and tokens == VERSION_KEY:
            continue
        flaw = flaw_of(row) if _NUMBER.fullmatch(tokens) else "is for no number of tokens"
        if flaw:
            raise InputError(f"the row {tokens!r} {flaw}, {failing}", path=path, remedy=remedy)
        # The kernels load one scale for each step of K.
        step, scaled = row["BLOCK_SIZE_K"], step_of_scales(key, engine)
        if scaled and scaled % used_step(key, engine, step):
            wrong = f"with a scale for each {scaled}: {TITLES[engine]} gives wrong results with it"
            message = f"the row {tokens!r} has BLOCK_SIZE_K={step}, {wrong}"
            raise InputError(message, path=path, remedy=remedy)
    return content


def _too_large(content: Mapping[str, Any], key: Key, engine: Engine, gpu: str) -> str:
    """Say which rows need more shared memory than a GPU has; "" where none or unknown."""
    capability = find_capability(gpu)
    if capability is None:
        return ""
    rows = {tokens: row for tokens, row in content.items() if tokens != VERSION_KEY}
    needed = {tokens: pipeline_bytes(row, key, engine) for tokens, row in rows.items()}
    limit = limits_for(capability).shared_bytes_per_block
    if not (large := [tokens for tokens, count in needed.items() if count > limit]):
        return ""
    return (
        f"cannot run: some {max(needed.values()):,} bytes of shared memory, over the {limit:,} "
        f"that a block has on {gpu}, for {', '.join(large)} tokens"
    )


def pipeline_bytes(row: Config, key: Key, engine: Engine) -> int:
    """Return the least shared memory that a row takes: both operands for each stage but the last.

    It is 0 for a dtype that is not known.
    """
    size = _ELEMENT_BYTES.get(key.dtype if isinstance(key, MoeKey) else "fp8_w8a8", 0)
    config = {**TRITON_DEFAULTS, **row}
    sides = config["BLOCK_SIZE_M"] + config["BLOCK_SIZE_N"]
    step = used_step(key, engine, config["BLOCK_SIZE_K"])
    return (config["num_stages"] - 1) * sides * step * size


def find_capability(gpu: str) -> tuple[int, int] | None:
    """Find the compute capability of a GPU by its name; None for one that is not known."""
    if device_info := known_gpu(gpu):
        return device_info.compute_capability
    words = gpu.lower().replace("-", " ").split()
    return next((_OF_WORDS[word] for word in words if word in _OF_WORDS), None)
