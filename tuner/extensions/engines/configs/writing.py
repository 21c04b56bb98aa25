"""Write an engine's files of configs from sessions, and say what the engine makes of them."""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from pathlib import Path

import click

from tuner.extensions.engines.configs.files import TITLES, Engine, write_files
from tuner.extensions.engines.configs.winners import (
    Configs,
    configs_of,
    differences,
    installed_triton,
)


def write_configs(
    engine: Engine,
    sessions: tuple[Path, ...],
    to: Path,
    triton: str | None,
    space: Path | None,
) -> None:
    """Write the files of one engine to a folder, and print their names."""
    python = asked_with(engine)
    made = configs_of(sessions, engine, triton or installed_triton(), space, python=python)
    write_files(to, made.files)
    tell_configs(made, engine, to)


def asked_with(engine: Engine) -> tuple[str, ...] | None:
    """Name the Python that can import an engine: this one, or None."""
    return (sys.executable,) if importlib.util.find_spec(engine) else None


def tell_configs(made: Configs, engine: Engine, to: Path) -> None:
    """Print the files that were written, and what the engine makes of them where it is here."""
    for name in made.files:
        click.echo(str(to / name))
    for note in made.notes:
        click.echo(note, err=True)
    python = asked_with(engine)
    if python is None:
        click.echo(f"{TITLES[engine]} is not installed here: not checked by its own loader")
        return
    told = differences(made, engine, to, python)
    for one in told:
        click.echo(one, err=True)
    if not told:
        click.echo(f"{TITLES[engine]} uses them all as they are written")


SGLANG = partial(write_configs, "sglang")
VLLM = partial(write_configs, "vllm")
