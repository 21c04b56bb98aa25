"""From sessions of an engine's Triton kernels to the files that it takes their configs from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tuner.dispatch.alike import alike, canonical
from tuner.dispatch.table import distrusted
from tuner.export.engine_configs.files import (
    CONFIG_KEYS,
    TITLES,
    BlockFp8Key,
    Engine,
    Key,
    MoeKey,
    file_name,
    files_of,
)
from tuner.export.engine_configs.files import Config as EngineConfig
from tuner.export.engine_configs.used import used_configs
from tuner.export.winners import Winners, winners_of
from tuner.model.config import Config
from tuner.model.errors import InputError, SessionError
from tuner.model.expressions import Value
from tuner.model.kernel import Workload
from tuner.model.trial import Variant
from tuner.session.session import Session
from tuner.space.load import load_definition

# Of a parameter that is the down projection's own.
DOWN = "down_"
BLOCK = (128, 128)


@dataclass(frozen=True, slots=True)
class Configs:
    """Files by their places, what a user should know of them, and what they were made from."""

    files: Mapping[Path, str]
    notes: tuple[str, ...] = ()
    tables: Mapping[Key, Tables] = field(default_factory=dict)
    gpu: str = ""


@dataclass(slots=True)
class Tables:
    """What one file holds, and the file of the down projection where that has its own."""

    own: dict[int, EngineConfig] = field(default_factory=dict)
    down: dict[int, EngineConfig] = field(default_factory=dict)


def configs_of(
    sessions: Iterable[Path], engine: Engine, triton: str, space: Path | None = None
) -> Configs:
    """Collect the winners of sessions; each number of tokens has the best of its own.

    Raises `SessionError` for a session of another kernel or of several GPUs, and `InputError` for
    what the engine would refuse.
    """
    tables: dict[Key, Tables] = {}
    notes: list[str] = []
    gpu = ""
    for folder in sessions:
        found = winners_of(folder, None, space)
        if gpu not in ("", found.device.name):
            message = f"was measured on {found.device.name}, and others on {gpu}"
            raise SessionError(message, path=folder, remedy="export each GPU's sessions apart")
        gpu = found.device.name
        notes += _add(found, folder, tables)
    if not tables:
        why = "; ".join(notes) or "no session has a winner"
        raise InputError("there is no config to write", remedy=why)
    files: dict[Path, str] = {}
    for key, one in tables.items():
        files |= files_of(key, engine, gpu, triton, one.own, one.down or None)
    return Configs(files, tuple(notes), tables, gpu)


def differences(
    made: Configs, engine: Engine, folder: Path, python: Sequence[str] = (sys.executable,)
) -> tuple[str, ...]:
    """Ask the engine that is installed which configs it uses of the files below a folder.

    Says for each what it uses otherwise; nothing where it uses all as they are written. Raises
    `WorkerError` where it gives no answer.
    """
    told = []
    for key, one in made.tables.items():
        down = one.down or None
        found = used_configs(key, engine, folder, one.own, down, gpu=made.gpu, python=python)
        name = file_name(key, engine, made.gpu)
        if found.source is None:
            told.append(f"{name}: {TITLES[engine]} {found.version} does not read it")
        for row in found.rows:
            changed = ", ".join(f"{d.name} {d.used} for {d.wanted}" for d in row.differences)
            if changed:
                told.append(f"{name}: for {row.tokens} tokens {TITLES[engine]} uses {changed}")
    return tuple(told)


def installed_triton() -> str:
    """Name the release of Triton that is installed; raise `InputError` where none is."""
    try:
        return version("triton")
    except PackageNotFoundError as error:
        message = "Triton is not installed here, and files of configs are for one release of it"
        raise InputError(message, remedy="name the engine's: --triton 3.6.0") from error


def _add(found: Winners, folder: Path, tables: dict[Key, Tables]) -> list[str]:
    name, operators = found.spec.name, found.manifest.config.operators
    if name not in _KEYS:
        raise SessionError(
            f"is of {name}: no engine takes configs of it from a file",
            path=folder,
            remedy=f"this is for {' and '.join(_KEYS)}",
        )
    if operators.get("PART", "both") != "both":
        raise SessionError(
            f"has tuned {operators['PART']} alone, and a file serves both products",
            path=folder,
            remedy="tune with --operator PART=both",
        )
    notes = []
    chosen = _Chosen(found, folder)
    for entry in found.dispatch.table.entries:
        best, axes = entry.best, entry.workload.values
        if best is None or best.slower:
            why = "nothing was compared" if best is None else "nothing is as fast as the default"
            notes.append(f"{name} {entry.workload}: left out, {why}; a neighbour's config serves")
            continue
        one = tables.setdefault(_KEYS[name](axes, operators), Tables())
        values = chosen.config(entry.workload, best.variant)
        one.own[axes["M"]] = _config(values, "")
        if operators.get("CONFIGS") == "two":
            one.down[axes["M"]] = _config(values, DOWN)
    return notes


class _Chosen:
    """The configs of one session: of those that can't be told apart the same in every tuning."""

    def __init__(self, found: Winners, folder: Path) -> None:
        self._seed = found.manifest.config.seed
        definition = load_definition(found.spec.path, found.manifest.config.operators)
        self._space = definition.space
        with Session.open(folder, read_only=True) as session:
            # Of a workload that was compared twice the later comparison counts.
            self._comparisons = {one.workload: one for one in session.comparisons()}
            self._distrusted = distrusted(session.trials(stage=None), session.checks())

    def config(self, workload: Workload, best: Variant) -> Config:
        comparison = self._comparisons[workload]
        if best not in comparison.finalists:
            return best.config
        found = alike(comparison, best, self._distrusted, self._seed)
        return canonical(found, self._space).config


def _config(values: Mapping[str, Value], prefix: str) -> EngineConfig:
    # BLOCK_SIZE_M is that of both products.
    return {key: int(values.get(f"{prefix}{key}", values[key])) for key in CONFIG_KEYS}


def _moe(axes: Mapping[str, int], operators: Mapping[str, str]) -> Key:
    if operators["WEIGHTS"] == "fp8_block":
        return MoeKey(axes["E"], axes["N"], "fp8_w8a8", BLOCK)
    return MoeKey(axes["E"], axes["N"])


def _block_fp8(axes: Mapping[str, int], operators: Mapping[str, str]) -> Key:
    return BlockFp8Key(axes["N"], axes["K"], BLOCK)


_KEYS: Mapping[str, Callable[[Mapping[str, int], Mapping[str, str]], Key]] = {
    "fused_moe": _moe,
    "w8a8_block_fp8": _block_fp8,
}
