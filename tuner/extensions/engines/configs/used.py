"""Which configs an engine really uses, by its own functions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tuner.extensions.engines.configs.files import TITLES, BlockFp8Key, Config, Engine, Key, Table
from tuner.model.errors import InputError, WorkerError

Mode = Literal["plain", "deterministic", "compiled"]
# Importing an engine takes 10 to 60 s.
TIMEOUT_S = 300.0
# The variable that names the folder of a user's own MoE configs.
FOLDERS: Mapping[Engine, str] = {
    "sglang": "SGLANG_MOE_CONFIG_DIR",
    "vllm": "VLLM_TUNED_CONFIG_FOLDER",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One value of a config that the engine uses otherwise; None where a config lacks it.

    The names of the down projection's values begin with `down.`.
    """

    name: str
    wanted: int | None
    used: int | None


@dataclass(frozen=True, slots=True)
class UsedConfig:
    """What the engine uses for one number of tokens.

    `down` is the second GEMM's config where the engine has one for it. `differences` compare with
    the table; there are none for tokens that it has no config for.
    """

    tokens: int
    config: Config
    down: Config | None
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class UsedConfigs:
    """An engine's answer.

    `source` and `down_source` are the files that it read, None where it took its defaults. `log`
    is what it warned of.
    """

    engine: Engine
    version: str
    triton: str
    source: Path | None
    down_source: Path | None
    rows: tuple[UsedConfig, ...]
    log: tuple[str, ...]

    @property
    def as_written(self) -> bool:
        """Whether a file was read, and every config is used as the table has it."""
        return self.source is not None and not any(row.differences for row in self.rows)


def used_configs(
    key: Key,
    engine: Engine,
    folder: Path | None,
    table: Table,
    down: Table | None = None,
    *,
    tokens: Sequence[int] = (),
    gpu: str | None = None,
    mode: Mode = "plain",
    python: Sequence[str] = (sys.executable,),
    timeout_s: float = TIMEOUT_S,
) -> UsedConfigs:
    """Ask an engine which configs it uses for each number of tokens, by default the table's.

    `folder` is where `write_files` wrote, None for what the engine has itself. `gpu` is the GPU
    that the engine shall believe to run on, by default the one that is there. `python` starts a
    Python that can import the engine. Raises `WorkerError` with what it said where it gives no
    answer.
    """
    if mode == "compiled" and (engine != "sglang" or not isinstance(key, BlockFp8Key)):
        raise InputError(
            f"{TITLES[engine]} doesn't look up this file while it compiles",
            remedy="`compiled` is for SGLang's block-fp8 configs",
        )
    place = folder.resolve() if folder else None
    question = {
        "engine": engine,
        "kind": "block_fp8" if isinstance(key, BlockFp8Key) else "moe",
        "key": asdict(key),
        "tokens": sorted(tokens or table),
        "gpu": gpu,
        "mode": mode,
        "folder": str(place) if place else None,
    }
    environment = {n: v for n, v in os.environ.items() if n not in FOLDERS.values()}
    if place is not None:
        environment[FOLDERS[engine]] = str(place)
    if engine == "vllm":
        environment["VLLM_BATCH_INVARIANT"] = str(int(mode == "deterministic"))
    found = ask(question, engine, environment, python, timeout_s)
    rows = []
    for row in found["rows"]:
        at, used, used_down = row["tokens"], row["config"], row["down"]
        differences = _differences(table.get(at), used, "")
        if used_down is not None or down is not None:
            # Without a table of its own the second GEMM is meant to run with the first's.
            wanted = table if down is None else down
            differences += _differences(wanted.get(at), used_down or {}, "down.")
        rows.append(UsedConfig(at, used, used_down, differences))
    return UsedConfigs(
        engine=engine,
        version=found["version"],
        triton=found["triton"],
        source=Path(found["source"]) if found["source"] else None,
        down_source=Path(found["down_source"]) if found.get("down_source") else None,
        rows=tuple(rows),
        log=tuple(found["log"]),
    )


def ask(
    question: Mapping[str, Any],
    engine: Engine,
    environment: Mapping[str, str],
    python: Sequence[str],
    timeout_s: float,
) -> dict[str, Any]:
    """Put a question to an engine in its own Python; raise `WorkerError` where it has no answer."""
    program = Path(__file__).with_name("asking.py")
    try:
        done = subprocess.run(  # noqa: S603
            [*python, str(program)],
            input=json.dumps(question),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WorkerError(
            f"{TITLES[engine]} could not be asked: {error}",
            remedy="name a Python that can import it, and give it more time",
        ) from error
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise WorkerError(
            f"{TITLES[engine]} gave no answer (exit code {done.returncode}): {said}",
            remedy="tested with SGLang 0.5.17 and vLLM 0.32.0; name a Python that can import it",
        ) from error
    return found


def _differences(wanted: Config | None, used: Config, prefix: str) -> tuple[Difference, ...]:
    if wanted is None:
        return ()
    names = dict.fromkeys([*wanted, *used])
    return tuple(
        Difference(f"{prefix}{name}", wanted.get(name), used.get(name))
        for name in names
        if wanted.get(name) != used.get(name)
    )
