"""The files themselves: their names, places and contents in each engine's spelling.

Read in SGLang 0.5.17 (`fused_moe_triton_config.py`, `fp8_kernel.py`) and vLLM 0.32.0
(`fused_moe.py`, `fp8_utils.py`).
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tuner.model.errors import InputError
from tuner.process.files import atomic_write_all, folders_made, read_regular

Engine = Literal["sglang", "vllm"]
ENGINES: tuple[Engine, ...] = ("sglang", "vllm")
TITLES: Mapping[Engine, str] = {"sglang": "SGLang", "vllm": "vLLM"}
Config = Mapping[str, int]
# From a number of tokens to the config that serves it.
Table = Mapping[int, Config]

CONFIG_KEYS = (
    "BLOCK_SIZE_M",
    "BLOCK_SIZE_N",
    "BLOCK_SIZE_K",
    "GROUP_SIZE_M",
    "num_warps",
    "num_stages",
)
# What Triton takes only as a power of two.
POWERS = frozenset({"BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_warps"})
# Triton launches no more threads than these have.
MOST_WARPS = 32
# What Triton 3.6 takes where a config does not say it.
TRITON_DEFAULTS = {"num_warps": 4, "num_stages": 3}
_RELEASE = re.compile(r"\d+(\.\d+)*")
# In a file of vLLM's MoE configs it says for which Triton they are; other loaders break on it.
VERSION_KEY = "triton_version"
_NAME = re.compile(
    r"(?:E=(\d+),N=(\d+)|N=(\d+),K=(\d+)),device_name=[^,]+?(?:,dtype=(\w+?))?"
    r"(?:,block_shape=\[(\d+), ?(\d+)\])?(,per_channel_quant=True)?(_down)?\.json"
)


@dataclass(frozen=True, slots=True)
class MoeKey:
    """What an engine finds a fused MoE config by: the experts and their width on one GPU.

    `dtype` is None for bf16 and fp16.
    """

    experts: int
    intermediate: int
    dtype: str | None = None
    block_shape: tuple[int, int] | None = None
    per_channel: bool = False


@dataclass(frozen=True, slots=True)
class BlockFp8Key:
    """What an engine finds a block-fp8 GEMM config by: the weight's rows and columns on one GPU."""

    n: int
    k: int
    block_shape: tuple[int, int] = (128, 128)


Key = MoeKey | BlockFp8Key


def file_name(key: Key, engine: Engine, gpu: str, *, down: bool = False) -> str:
    """Name the file of a GPU that an engine looks for; `down` is the second GEMM's own, in SGLang.

    Raises `InputError` where the engine has no such file, or the GPU's name cannot be in one.
    """
    if down and (engine != "sglang" or isinstance(key, BlockFp8Key)):
        raise InputError(
            f"{TITLES[engine]} has no file for the down projection alone",
            remedy="tune one config for both GEMMs, and leave `down` out",
        )
    device = f"device_name={_device_name(gpu, engine, folded=isinstance(key, MoeKey))}"
    if isinstance(key, BlockFp8Key):
        block = _block_text(key.block_shape, engine)
        return f"N={key.n},K={key.k},{device},dtype=fp8_w8a8,block_shape={block}.json"
    parts = [f"E={key.experts}", f"N={key.intermediate}", device]
    if key.dtype:
        parts.append(f"dtype={key.dtype}")
    if key.block_shape:
        parts.append(f"block_shape={_block_text(key.block_shape, engine)}")
    if key.per_channel and engine == "sglang":
        parts.append("per_channel_quant=True")
    return f"{','.join(parts)}{'_down' * down}.json"


def keys_in(text: str) -> dict[tuple[Key, bool], str]:
    """Find the names of files in a text, such as an engine's log, by key and whether for `down`."""
    found: dict[tuple[Key, bool], str] = {}
    for match in _NAME.finditer(text):
        experts, width, n, k, dtype, rows, columns, per_channel, down = match.groups()
        block = (int(rows), int(columns)) if rows else None
        key: Key
        if experts:
            key = MoeKey(int(experts), int(width), dtype, block, per_channel is not None)
        elif dtype == "fp8_w8a8" and block:
            key = BlockFp8Key(int(n), int(k), block)
        else:
            continue
        found.setdefault((key, down is not None), match[0])
    return found


def missing_in(log: str) -> dict[tuple[Key, bool], str]:
    """Find the files that an engine's log says were not found, as `keys_in` does."""
    return keys_in("\n".join(line for line in log.splitlines() if "file not found at" in line))


def _block_text(shape: tuple[int, int], engine: Engine) -> str:
    return f"[{shape[0]}, {shape[1]}]" if engine == "sglang" else f"[{shape[0]},{shape[1]}]"


def _device_name(gpu: str, engine: Engine, *, folded: bool) -> str:
    if not gpu.strip() or "\0" in gpu or (engine == "sglang" and "/" in gpu):
        raise InputError(
            f"{gpu!r} cannot be part of a file's name",
            remedy="give the GPU's name as torch.cuda.get_device_name() says it: 'NVIDIA H200'",
        )
    if engine == "sglang":
        return gpu.replace(" ", "_")
    name = re.sub(r"[\s/]+", "_", gpu)
    # vLLM's MoE loader takes all H200s for one, its block-fp8 loader does not.
    return "NVIDIA_H200" if folded and "H200" in name.split("_") else name


def require_release(triton: str) -> None:
    """Raise `InputError` for a version of Triton that is not a release."""
    if not _RELEASE.fullmatch(triton):
        raise InputError(
            f"Triton {triton!r} is not a release",
            remedy="SGLang compares the folders' versions as numbers and fails on every model "
            "without a file once there is such a folder; use a release such as 3.6.0",
        )


def version_folder(triton: str) -> str:
    """Name SGLang's folder for a release of Triton; raise `InputError` for any other version."""
    require_release(triton)
    return f"triton_{triton.replace('.', '_')}"


def place(key: Key, engine: Engine, gpu: str, triton: str, *, down: bool = False) -> Path:
    """Return a file's place below the folder that the engine is configured with.

    For MoE that is SGLANG_MOE_CONFIG_DIR or VLLM_TUNED_CONFIG_FOLDER. For block fp8 there is no
    such variable: what is below `configs` has to be copied into the engine's own folder.
    """
    name = file_name(key, engine, gpu, down=down)
    if isinstance(key, BlockFp8Key):
        return Path("configs", name)
    return Path("configs", version_folder(triton), name) if engine == "sglang" else Path(name)


def files_of(
    key: Key, engine: Engine, gpu: str, triton: str, table: Table, down: Table | None = None
) -> dict[Path, str]:
    """Write the files of one table as text, by their places.

    `down` is the table of the down projection where it is tuned apart. Raises `InputError` for
    what the engine would refuse, or would silently change when it loads it.
    """
    _require_table(table, step_of_scales(key, engine))
    head = {VERSION_KEY: triton} if engine == "vllm" and isinstance(key, MoeKey) else {}
    texts = {place(key, engine, gpu, triton): _text(table, head)}
    if down is not None:
        _require_table(down, step_of_scales(key, engine), more=frozenset({"USE_TMA"}))
        if table.keys() != down.keys():
            odd = sorted(table.keys() ^ down.keys())
            raise InputError(
                f"only one of the two GEMMs has a config for {', '.join(map(str, odd))} tokens",
                remedy="tune both for the same numbers of tokens: each GEMM takes its nearest",
            )
        for tokens in sorted(table):
            first, second = table[tokens]["BLOCK_SIZE_M"], down[tokens]["BLOCK_SIZE_M"]
            if first != second:
                raise InputError(
                    f"BLOCK_SIZE_M is {first} and, for the down projection, {second} for {tokens} "
                    "tokens",
                    remedy="both GEMMs use one sorting of tokens, in blocks of BLOCK_SIZE_M; "
                    "SGLang would run the second with the first's",
                )
        texts[place(key, engine, gpu, triton, down=True)] = _text(down, {})
    return texts


def _text(table: Table, head: Mapping[str, str]) -> str:
    # In ascending order: of two numbers of tokens that are equally near, engines take the first.
    rows = {str(tokens): dict(table[tokens]) for tokens in sorted(table)}
    return json.dumps({**head, **rows}, indent=4) + "\n"


def step_of_scales(key: Key, engine: Engine) -> int | None:
    """Return what BLOCK_SIZE_K has to divide; None where weights have no blocks."""
    if not key.block_shape:
        return None
    return min(key.block_shape) if _is_clamped(key, engine) else key.block_shape[1]


def used_step(key: Key, engine: Engine, step: int) -> int:
    """Return the BLOCK_SIZE_K that an engine's kernel is launched with for that of a file."""
    scaled = step_of_scales(key, engine)
    if scaled and engine == "sglang" and isinstance(key, BlockFp8Key):
        return max(step, scaled) if scaled % step else step
    return min(step, scaled) if scaled and _is_clamped(key, engine) else step


def _is_clamped(key: Key, engine: Engine) -> bool:
    # vLLM's MoE kernel is launched with no more than the smaller side of a block.
    return engine == "vllm" and isinstance(key, MoeKey)


def _require_table(table: Table, scaled: int | None, more: frozenset[str] = frozenset()) -> None:
    if not table:
        raise InputError("no configs", remedy="give one for at least one number of tokens")
    for tokens, config in table.items():
        if tokens < 1:
            raise InputError(f"{tokens} tokens", remedy="the least number of tokens is 1")
        if flaw := flaw_of(config, more):
            raise InputError(
                f"the config for {tokens} tokens {flaw}",
                remedy=f"a config has {', '.join(CONFIG_KEYS)} and nothing else: whole numbers "
                "from 1 on, those of Triton's tiles and num_warps powers of two",
            )
        # The kernels load one scale for each step of K.
        if scaled and scaled % (step := config["BLOCK_SIZE_K"]):
            raise InputError(
                f"BLOCK_SIZE_K={step} for {tokens} tokens, with a scale for each {scaled}",
                remedy=f"take a divisor of {scaled}: others give wrong results, or are replaced",
            )


def flaw_of(row: object, more: frozenset[str] | None = None) -> str:
    """Say why an engine cannot run with a row of a file; "" where it can.

    With `more` it has to have all keys, and may have these besides; else Triton completes it.
    """
    if not isinstance(row, Mapping):
        return f"is {reprlib.repr(row)}, no config"
    optional = TRITON_DEFAULTS if more is None else {}
    if lacking := [name for name in CONFIG_KEYS if name not in row and name not in optional]:
        return f"lacks {lacking[0]}"
    if more is not None and (unknown := sorted(row.keys() - {*CONFIG_KEYS, *more})):
        return f"has {', '.join(unknown)}"
    for name, value in ((name, row[name]) for name in CONFIG_KEYS if name in row):
        # AMD's files have `num_stages` of 0.
        if type(value) is not int or value < (0 if name in optional else 1):
            return f"has {reprlib.repr(value)} for {name}"
        if name in POWERS and value & (value - 1):
            return f"has {value} for {name}, no power of two"
        if name == "num_warps" and value > MOST_WARPS:
            return f"has {value} for {name}, over {MOST_WARPS}"
    return ""


def write_files(folder: Path, files: Mapping[Path, str], *, replace: bool = False) -> None:
    """Write files below a folder, all or none of them and of their folders.

    Raises `InputError` where one is there already with another content and `replace` is false, or
    where something cannot be written.
    """
    try:
        for name, content in files.items():
            path = folder / name
            if not replace and path.exists() and read_regular(path) != content.encode():
                raise InputError(
                    "is there already, with other configs",
                    path=path,
                    remedy="nothing was written; move it away, or replace it",
                )
        made = {folder / name: content for name, content in files.items()}
        with folders_made(made):
            atomic_write_all(made)
    except OSError as error:
        raise InputError(
            f"the configs cannot be written: {error.strerror or error}",
            path=folder,
            remedy="choose another folder",
        ) from error
