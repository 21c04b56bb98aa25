"""Which of the files that an engine looks for are there."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tuner.extensions.engines.configs.files import (
    CONFIG_KEYS,
    TITLES,
    VERSION_KEY,
    BlockFp8Key,
    Engine,
    place,
    version_folder,
)
from tuner.extensions.engines.configs.needed import Needed, needed_configs
from tuner.model.errors import InputError
from tuner.process.files import read_text

_PREFIX = "triton_"
# Of a config's keys those that Triton has values of its own for.
_DEFAULTED = frozenset({"num_warps", "num_stages"})


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
    is stale; `triton` is the version that this is for, where anything says so.
    """

    needed: Needed
    state: FileState
    wanted: Path
    found: Path | None = None
    triton: str | None = None

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
    *,
    tp: int = 1,
    ep: int = 1,
    dtype: str | None = None,
) -> tuple[EngineFile, ...]:
    """List the files that an engine looks for with a model, and whether they are there.

    Raises `InputError` as `needed_configs` does, and for files that the engine would fail on.
    """
    needed = needed_configs(config, folders.engine, tp=tp, ep=ep, dtype=dtype)
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
        if isinstance(one.key, BlockFp8Key):
            _content(found, folders.engine)
            files.append(EngineFile(one, FileState.THERE, wanted, found))
            continue
        content = _content(found, folders.engine, versioned=versioned)
        # Of vLLM's only what is in it may say for which Triton it is.
        version = None if versioned else _version(found.parent)
        if versioned and VERSION_KEY in content:
            version = str(content[VERSION_KEY])
        state = FileState.THERE if version in (None, triton) else FileState.STALE
        files.append(EngineFile(one, state, wanted, found, version))
    return tuple(files)


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


def _content(path: Path, engine: Engine, *, versioned: bool = False) -> Mapping[str, object]:
    """Read a file; raise `InputError` for one that lacks configs, or has a row that is none.

    Where it is `versioned` one key says for which Triton it is.
    """
    failing = f"and {TITLES[engine]} would fail on it"
    remedy = "mend it, or remove it: while it is there `tune fleet` lists and makes nothing"
    try:
        content = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot be read, {failing}: {error}", path=path, remedy=remedy) from error
    if not isinstance(content, dict) or not any(map(str.isdecimal, content)):
        message = f"has no config of any number of tokens, {failing}"
        raise InputError(message, path=path, remedy=remedy)
    for tokens, row in content.items():
        if not (versioned and tokens == VERSION_KEY) and (flaw := _flaw(tokens, row)):
            raise InputError(f"{flaw}, {failing}", path=path, remedy=remedy)
    return content


def _flaw(tokens: str, row: object) -> str:
    """Say why an engine cannot run with a row of a file; "" where it can."""
    try:
        int(tokens)
    except ValueError:
        return f"the row {tokens!r} is for no number of tokens"
    if not isinstance(row, dict):
        return f"the row {tokens!r} is {reprlib.repr(row)}, no config"
    for name in CONFIG_KEYS:
        optional = name in _DEFAULTED
        if name in row:
            value = row[name]
            # AMD's files have `num_stages` of 0.
            if type(value) is not int or value < (0 if optional else 1):
                return f"the row {tokens!r} has {reprlib.repr(value)} for {name}"
        elif not optional:
            return f"the row {tokens!r} lacks {name}"
    return ""
