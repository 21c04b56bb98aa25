"""A kernel without a search space: `tune` drafts one, and goes on where nothing is left blank."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.cli.exits import program_name
from tuner.cli.locate import look_for_space, require_kernel

if TYPE_CHECKING:
    from tuner.cli.plans import Request


def with_space(request: Request) -> tuple[Request, bool]:
    """Name the drafted search space in a request whose kernel has none; tell whether it was.

    Raises `InputError` with what is left to fill in, and the command that follows.
    """
    if request.kernel is None or request.space is not None or request.template is not None:
        return request, False
    require_kernel(request.kernel)
    if look_for_space(request.kernel, Path.cwd()) is not None:
        return request, False
    from tuner.compiler.cache import Cache
    from tuner.compiler.pool import NvrtcPool
    from tuner.draft import draft_source, require_one

    with NvrtcPool(1, cache=Cache()) as pool:
        made = draft_source(request.kernel, compiler=lambda: pool)
    for path in made.written:
        click.echo(f"drafted {path}", err=True)
    space = require_one(made)
    made.require_filled(f"{program_name()} check {shlex.quote(str(space))}")
    return replace(request, space=space), True
