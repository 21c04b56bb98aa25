"""From sessions of an engine's Triton kernels to the files that it takes their configs from."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path

import click

from tuner.dispatch.evidence import find_wrong_variants
from tuner.extensions.engines.configs.alike import Fastest, canonical, fastest_of
from tuner.extensions.engines.configs.files import (
    CONFIG_KEYS,
    TITLES,
    TRITON_DEFAULTS,
    BlockFp8Key,
    Engine,
    Key,
    MoeKey,
    file_name,
    files_of,
    write_files,
)
from tuner.extensions.engines.configs.files import Config as EngineConfig
from tuner.extensions.engines.configs.found import pipeline_bytes
from tuner.extensions.engines.configs.origins import require_one_gpu, require_triton
from tuner.extensions.engines.configs.products import (
    KERNEL,
    is_product,
    product_table,
    table_files,
    tell_table,
)
from tuner.extensions.engines.configs.used import FOLDERS, used_configs
from tuner.extensions.export.winners import Winners, winners_of
from tuner.model.config import Config
from tuner.model.errors import InputError, SessionError, WorkerError
from tuner.model.expressions import Value
from tuner.model.hardware import COMPUTE_CAPABILITIES, limits_for
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL
from tuner.session.session import Session
from tuner.space.load import load_definition

# Of a parameter that is the down projection's own.
DOWN = "down_"
# Of weights that can be tuned.
BLOCKS = frozenset({(128, 128), (32, 32)})


@dataclass(frozen=True, slots=True)
class Configs:
    """Files by their places, what a user should know of them, and what they were made from."""

    files: Mapping[Path, str]
    notes: tuple[str, ...] = ()
    tables: Mapping[Key, Tables] = field(default_factory=dict)
    gpu: str = ""

    def joined(self, other: Configs) -> Configs:
        """Add those of other shapes on the same GPU."""
        tables = {**self.tables, **other.tables}
        return Configs({**self.files, **other.files}, self.notes + other.notes, tables, other.gpu)


@dataclass(slots=True)
class Tables:
    """What one file holds, and the file of the down projection where that has its own.

    `undecided` says why no config of a number of tokens is proved faster than what the engine does
    by itself; one that is not slower either may be there. `proved` has the speedup and the session
    of those that are, and `chosen` says where several sessions had one.
    """

    two: bool = False
    own: dict[int, EngineConfig] = field(default_factory=dict)
    down: dict[int, EngineConfig] = field(default_factory=dict)
    undecided: dict[int, str] = field(default_factory=dict)
    proved: dict[int, tuple[float, Path]] = field(default_factory=dict)
    chosen: dict[int, str] = field(default_factory=dict)

    def gains_most(self, tokens: int, speedup: float, session: Path) -> bool:
        """Tell whether no session so far gains as much on a number of tokens, and note it."""
        known = self.proved.get(tokens)
        most = known is None or speedup > known[0]
        if known is not None:
            first, second = (session, known[1]) if most else (known[1], session)
            self.chosen[tokens] = f"of {first}, where it gains more than that of {second}"
        if most:
            self.proved[tokens] = speedup, session
        return most


def configs_of(
    sessions: Iterable[Path],
    engine: Engine,
    triton: str,
    space: Path | None = None,
    *,
    python: Sequence[str] | None = None,
) -> Configs:
    """Collect the winners of sessions; each number of tokens has the best of its own.

    Where no config is proved faster than what the engine does by itself, the engine that `python`
    can import is asked for that, and the file has it: no number of tokens is then served by its
    neighbour's config. Raises `SessionError` for a session of another kernel, of several GPUs
    or of one config for both products beside two, and `InputError` for what the engine would
    refuse.
    """
    tables: dict[Key, Tables] = {}
    gpu = ""
    for folder in sessions:
        winners = winners_of(folder, None, space)
        require_one_gpu(winners, gpu, folder)
        gpu = winners.device.name
        with Session.open(folder, read_only=True) as session:
            require_triton(session, triton, "files are")
        _add(winners, folder, tables)
    return files_of_tables(tables, engine, gpu, triton, python)


def files_of_tables(
    tables: Mapping[Key, Tables],
    engine: Engine,
    gpu: str,
    triton: str,
    python: Sequence[str] | None,
) -> Configs:
    """Write tables as an engine's files, with its own configs where they have none.

    Raises `InputError` where no config is left, or for what the engine would refuse.
    """
    notes: list[str] = []
    files: dict[Path, str] = {}
    for key, one in tables.items():
        notes += _settle(key, one, engine, gpu, python)
        if one.own:
            files |= files_of(key, engine, gpu, triton, one.own, one.down or None)
    if not files:
        why = "; ".join(notes) or "no session has a winner"
        raise InputError("there is no config to write", remedy=why)
    return Configs(files, tuple(notes), {key: one for key, one in tables.items() if one.own}, gpu)


def _settle(
    key: Key, tables: Tables, engine: Engine, gpu: str, python: Sequence[str] | None
) -> Iterator[str]:
    """Put the engine's own configs where no other is proved faster, and say who serves there."""
    name, title = file_name(key, engine, gpu), TITLES[engine]
    for tokens, which in sorted(tables.chosen.items()):
        yield f"{name}: {tokens} tokens have the config {which}"
    if not tables.undecided:
        return
    known: dict[int, tuple[EngineConfig, EngineConfig]] = {}
    if python is not None:
        try:
            known = _engine_s_own(key, tables, engine, gpu, python)
        except WorkerError as error:
            yield f"{name}: {error.message}"
    for tokens, why in sorted(tables.undecided.items()):
        if tokens in known:
            tables.own[tokens], down = known[tokens]
            if tables.two:
                tables.down[tokens] = down
            yield f"{name}: {tokens} tokens have {title}'s own config: {why}"
        elif tokens not in tables.own:
            yield f"{name}: {tokens} tokens are left out, a neighbour's config serves: {why}"


def _engine_s_own(
    key: Key, tables: Tables, engine: Engine, gpu: str, python: Sequence[str]
) -> dict[int, tuple[EngineConfig, EngineConfig]]:
    """Ask which configs the engine takes by itself; what a file of ours cannot say is left out."""
    named = os.environ.get(FOLDERS[engine])
    folder = Path(named) if named and isinstance(key, MoeKey) else None
    tokens = tuple(tables.undecided)
    configs = used_configs(key, engine, folder, {}, tokens=tokens, gpu=gpu, python=python)
    made = {}
    for row in configs.rows:
        first, down = _whole(row.config), _whole(row.down or row.config)
        if first and down and (tables.two or first == down):
            made[row.tokens] = first, down
    return made


def _whole(config: EngineConfig) -> EngineConfig:
    """Complete a config by what Triton takes for what it does not say; empty where it says more."""
    whole = {**TRITON_DEFAULTS, **{name: value for name, value in config.items() if value}}
    return {name: whole[name] for name in CONFIG_KEYS} if whole.keys() == {*CONFIG_KEYS} else {}


def differences(
    configs: Configs, engine: Engine, folder: Path, python: Sequence[str] = (sys.executable,)
) -> tuple[str, ...]:
    """Ask the engine that is installed which configs it uses of the files below a folder.

    Says for each what it uses otherwise; nothing where it uses all as they are written. Raises
    `WorkerError` where it gives no answer.
    """
    told = []
    for key, tables in configs.tables.items():
        down = tables.down or None
        found = used_configs(key, engine, folder, tables.own, down, gpu=configs.gpu, python=python)
        name = file_name(key, engine, configs.gpu)
        if found.source is None:
            told.append(f"{name}: {TITLES[engine]} {found.version} does not read it")
        for row in found.rows:
            changed = ", ".join(f"{d.name} {d.used} for {d.wanted}" for d in row.differences)
            if changed:
                told.append(f"{name}: for {row.tokens} tokens {TITLES[engine]} uses {changed}")
    return tuple(told)


def marks_of(configs: Configs, engine: Engine) -> Iterator[str]:
    """Say which rows of files other GPUs have too little shared memory for, as far as is known."""
    for key, tables in configs.tables.items():
        needed = [pipeline_bytes(row, key, engine) for row in tables.own.values()]
        limits = {
            f"{major}.{minor}": limits_for((major, minor)).shared_bytes_per_block
            for major, minor in COMPUTE_CAPABILITIES
            if major >= 8
        }
        small = [name for name, limit in limits.items() if max(needed) > limit]
        if small:
            least = min(limits[name] for name in small)
            rows = ", ".join(
                str(t) for t, count in zip(tables.own, needed, strict=True) if count > least
            )
            name = file_name(key, engine, configs.gpu)
            yield f"{name}: too large for GPUs of {', '.join(small)}: {rows} tokens"


def installed_triton() -> str:
    """Name the release of Triton that is installed; raise `InputError` where none is."""
    try:
        return metadata.version("triton").partition("+")[0]
    except metadata.PackageNotFoundError as error:
        message = "Triton is not installed here, and files of configs are for one release of it"
        raise InputError(message, remedy="name the engine's: --triton 3.6.0") from error


def _add(winners: Winners, folder: Path, tables: dict[Key, Tables]) -> None:
    name, operators = winners.spec.name, winners.manifest.config.operators
    if name not in _KEYS:
        raise SessionError(
            f"is of {name}: no engine takes configs of it from a file",
            path=folder,
            remedy=f"this is for {' and '.join(_KEYS)}, and apart from these for {KERNEL}",
        )
    if operators.get("PART", "both") != "both":
        raise SessionError(
            f"has tuned {operators['PART']} alone, and a file serves both products",
            path=folder,
            remedy="tune with --operator PART=both",
        )
    chosen, two = _Chosen(winners, folder), operators.get("CONFIGS") == "two"
    for entry in winners.dispatch.table.entries:
        best, axes = chosen.fastest(entry.workload), entry.workload.values
        key, tokens = _KEYS[name](axes, operators), axes["M"]
        one = tables.setdefault(key, Tables(two))
        if one.two != two:
            raise SessionError(
                "has one config for both products where another session has two, or has two "
                "where that has one: nobody has measured what would stand beside each other",
                path=folder,
                remedy="export sessions with CONFIGS=one and with CONFIGS=two apart",
            )
        ours = best is not None and best.variants[0].candidate == INITIAL
        if best is not None and best.gain.proved and ours:
            if not one.gains_most(tokens, best.gain.speedup, folder):
                continue
            one.undecided.pop(tokens, None)
        elif tokens in one.own and tokens not in one.undecided:
            continue  # another session has proved something
        else:
            slower = best is not None and best.gain.slower
            why = "nothing is as fast as that" if slower else "nothing is proved faster than that"
            one.undecided[tokens] = why if best is not None else "nothing was compared"
        if best is None or best.gain.slower:
            continue
        if not ours:
            one.undecided[tokens] = f"the best is of {best.variants[0].candidate}, another kernel"
            continue
        values = chosen.config(best)
        one.own[tokens] = _config(values, "", key)
        if one.two:
            one.down[tokens] = _config(values, DOWN, key)


class _Chosen:
    """The configs of one session: of those that are as fast the same in every tuning."""

    def __init__(self, winners: Winners, folder: Path) -> None:
        definition = load_definition(winners.spec.path, winners.manifest.config.operators)
        self._space = definition.space
        with Session.open(folder, read_only=True) as session:
            # Of a workload that was compared twice the later comparison counts.
            self._comparisons = {
                comparison.workload: comparison for comparison in session.comparisons()
            }
            self._distrusted = find_wrong_variants(session.trials(stage=None), session.checks())

    def fastest(self, workload: Workload) -> Fastest | None:
        comparison = self._comparisons.get(workload)
        return None if comparison is None else fastest_of(comparison, self._distrusted)

    def config(self, fastest: Fastest) -> Config:
        # Of another kernel its config says nothing in the engine.
        variants = [variant for variant in fastest.variants if variant.candidate == INITIAL]
        return canonical(variants, self._space).config


def _config(values: Mapping[str, Value], prefix: str, key: Key) -> EngineConfig:
    # BLOCK_SIZE_M is that of both products.
    config = {name: int(values.get(f"{prefix}{name}", values[name])) for name in CONFIG_KEYS}
    if key.block_shape:  # the kernels here are launched with no more than a scale is for
        config["BLOCK_SIZE_K"] = min(config["BLOCK_SIZE_K"], key.block_shape[1])
    return config


def _moe(axes: Mapping[str, int], operators: Mapping[str, str]) -> Key:
    if operators.get("WEIGHTS") == "bf16":
        return MoeKey(axes["E"], axes["N"])
    return MoeKey(
        axes["E"], axes["N"], "fp8_w8a8", (128, 128) if "WEIGHTS" in operators else (32, 32)
    )


def _block_fp8(axes: Mapping[str, int], operators: Mapping[str, str]) -> Key:
    side = 32 if operators.get("SCALES") == "block32" else 128
    return BlockFp8Key(axes["N"], axes["K"], (side, side))


_KEYS: Mapping[str, Callable[[Mapping[str, int], Mapping[str, str]], Key]] = {
    "fused_moe": _moe,
    "fused_moe_block32": _moe,
    "w8a8_block_fp8": _block_fp8,
}


def write_configs(
    engine: Engine,
    sessions: tuple[Path, ...],
    to: Path,
    triton: str | None,
    space: Path | None,
) -> None:
    """Write the files of one engine to a folder, and print their names."""
    python, triton = asked_with(engine), triton or installed_triton()
    if is_product(sessions[0]):
        table = product_table(sessions, engine, triton, space)
        write_files(to, table_files(table))
        tell_table(table, to, python)
        return
    configs = configs_of(sessions, engine, triton, space, python=python)
    write_files(to, configs.files)
    tell_configs(configs, engine, to)


def asked_with(engine: Engine) -> tuple[str, ...] | None:
    """Name the Python that can import an engine: this one, or None."""
    return (sys.executable,) if importlib.util.find_spec(engine) else None


def tell_configs(configs: Configs, engine: Engine, to: Path) -> None:
    """Print the files that were written, and what the engine makes of them where it is here."""
    for name in configs.files:
        click.echo(str(to / name))
    for note in configs.notes:
        click.echo(note, err=True)
    python = asked_with(engine)
    if python is None:
        click.echo(f"{TITLES[engine]} is not installed here: not checked by its own loader")
        return
    told = differences(configs, engine, to, python)
    for one in told:
        click.echo(one, err=True)
    if not told:
        click.echo(f"{TITLES[engine]} uses them all as they are written")


SGLANG = partial(write_configs, "sglang")
VLLM = partial(write_configs, "vllm")
