"""Modes of a step of SGLang, those by the files of its fused MoE configs, and what these imply.

Nothing of it is a promise of SGLang's: it fits 0.5.17.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

TRITON = "sglang.srt.layers.moe.moe_runner.triton_utils"
FOLDER = "SGLANG_MOE_CONFIG_DIR"
FILES = "configs/triton_*/*.json"
OWN, NO_FILE, FILE = "sglang", "no file", "file"
KIND = "GEMM of experts"  # of the kernel in a profile
# What fused_moe_file.py writes beside the configs: what a fleet measured of the kernel alone.
RECORDED = "recorded.json"


@dataclass(frozen=True)
class Mode:
    """Which operators the plugin may take, and whether SGLang runs its fused norm and rope.

    `configs` is the folder of its fused MoE configs, None for its own files; `against` is the mode
    that it is compared with.
    """

    name: str
    operators: frozenset[str] = frozenset()
    fused_rope: bool = False
    against: str = OWN
    configs: Path | None = None


class MoeConfigs:
    """From which folder SGLang's fused MoE kernel has its configs, and which it takes."""

    def __init__(self) -> None:
        self._files = importlib.import_module(f"{TRITON}.fused_moe_triton_config")
        caller: Any = importlib.import_module(f"{TRITON}.fused_moe")
        self._taken: dict[str, dict[str, Any]] = {}
        self._folder: Path | None = None
        chosen = caller.try_get_optimal_moe_config

        @wraps(chosen)
        def told(*shapes: Any, **more: Any) -> Any:
            found = chosen(*shapes, **more)
            tokens, (config, (down, _)) = shapes[4], found
            one = {"tokens": tokens, "config": dict(config), "down": down and dict(down)}
            self._taken[json.dumps(one, sort_keys=True)] = one
            return found

        caller.try_get_optimal_moe_config = told

    def use(self, folder: Path | None) -> None:
        """Take the files of a folder from now on; None for SGLang's own."""
        self._folder = folder
        if folder is None:
            os.environ.pop(FOLDER, None)
        else:
            os.environ[FOLDER] = str(folder)
        self._files.get_moe_configs.cache_clear()

    def taken(self) -> list[dict[str, Any]]:
        """List the configs that the kernel was given since the last question, each once.

        Exits where the folder has files and they were not used: for another GPU or Triton, say.
        """
        found, self._taken = list(self._taken.values()), {}
        known = configs_in(self._folder) if self._folder else []
        for one in found:
            if known and one["config"] not in known:
                raise SystemExit(f"SGLang took {one}, which no file below {self._folder} has")
        return found


def configs_in(folder: Path) -> list[dict[str, int]]:
    """Read the configs of all files of a folder."""
    files = sorted(folder.glob(FILES))
    return [one for path in files for one in json.loads(path.read_text("utf-8")).values()]


def named_folder(text: str) -> tuple[str, Path]:
    """Read NAME=FOLDER, or FOLDER alone; raise where no configs are in it."""
    name, mark, path = text.partition("=")
    folder = Path(path if mark else text).resolve()
    if not any(folder.glob(FILES)):
        raise argparse.ArgumentTypeError(f"{folder} has no {FILES}")
    return (name if mark else FILE), folder


def folders_of(named: Sequence[tuple[str, Path]], empty: Path) -> dict[str, Path]:
    """Name the folders of the modes beside SGLang's own; `empty` becomes one without a file."""
    if not named:
        return {}
    (empty / "configs").mkdir(parents=True)  # without it SGLang fails
    return {NO_FILE: empty, **dict(named)}


def recorded_gains(folder: Path) -> dict[int, dict[str, float]]:
    """Read how much faster the kernel is with the files, by tokens and by what it is compared with.

    Empty where nothing says so.
    """
    path = folder / RECORDED
    if not path.exists():
        return {}
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return {row["tokens"]: row["over"] for row in rows}


def gains(
    modes: Sequence[Mode],
    pairs: Mapping[tuple[str, str], Mapping[str, Any]],
    case: Mapping[str, Any],
    batch: int,
) -> Iterator[dict[str, Any]]:
    """Set the measured speedups of a step beside those that the kernel's time in it implies.

    `pairs` has the measured ones by a mode and what it is compared with, `case` the times of the
    steps and their kernels.
    """
    us = {name: kernel_us(one) for name, one in case["kernels"].items()}
    folders = {mode.name: mode.configs for mode in modes}
    for (name, against), measured in pairs.items():
        step_us, folder = case["us"][against], folders[name]
        found: dict[str, Any] = {"mode": name, "against": against, "measured": dict(measured)}
        found["kernel_us"] = [us[against], us[name]]
        found["share"] = round(us[against] / step_us, 4)
        found["implied"] = round(implied(step_us, us[against], us[name]), 4)
        over = recorded_gains(folder).get(batch, {}) if folder else {}
        if against in over:
            found["recorded"] = over[against]
            tuned_us = us[against] / over[against]
            found["implied_by_record"] = round(implied(step_us, us[against], tuned_us), 4)
        yield found


def kernel_us(kernels: Mapping[str, Any]) -> float:
    """Return what the fused MoE kernel takes of a step's profile, in microseconds."""
    us: float = kernels["kinds"].get(KIND, {}).get("us", 0.0)
    return us


def implied(step_us: float, own_us: float, tuned_us: float) -> float:
    """Return a step's speedup where nothing but the kernel changes, from one time to another."""
    return step_us / (step_us - own_us + tuned_us)


def pairs_of(modes: Sequence[Mode]) -> list[tuple[str, str]]:
    """List which mode is compared with which: each file with SGLang's own and with none."""
    names = [mode.name for mode in modes if mode.configs is not None]
    files = [name for name in names if name != NO_FILE]
    own = [(mode.name, mode.against) for mode in modes if mode.name in names]
    return [*own, *((name, NO_FILE) for name in files if NO_FILE in names)]
