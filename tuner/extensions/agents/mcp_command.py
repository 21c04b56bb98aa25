"""`tune mcp`: the rounds and their tools for a coding agent in an editor."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.exceptions import Exit

from tuner.cli import options
from tuner.model.settings import DEFAULT_ROUNDS, MCP, SERVE

FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
# Clients of the protocol commonly give up after 60 s.
WAIT = "45s"


@click.command("mcp")
@click.argument("source", metavar="[KERNEL.cu]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--root",
    type=FOLDER,
    default=".",
    help="The client's kernels and sessions lie below it; by default the current folder.",
)
@options.settings(
    SERVE,
    device="auto, cuda, cuda:N or host.",
    sources="A folder that the client may read, such as a CUTLASS checkout; repeatable.",
)
@options.setting(
    "rounds",
    help=f"Rounds for the client; {DEFAULT_ROUNDS} by default.",
    type=options.WholeNumber(min=1),
)
@click.option(
    "--resume", metavar="DIR", type=options.folder, help="The session that `start` goes on with."
)
@click.option(
    "--wait",
    metavar="TIME",
    type=options.seconds,
    default=WAIT,
    show_default=True,
    help="How long a call waits for the run; choose less than the client's own timeout.",
)
@click.pass_context
def command(context: click.Context, /, root: Path, wait: float, **values: Any) -> None:
    """Serve the rounds and their tools over the Model Context Protocol.

    It is spoken on standard input and output. An editor or a coding agent starts this; KERNEL.cu
    and the options are what its `start` takes where it names nothing else.
    """
    from tuner.cli.console import Console
    from tuner.cli.view import PlainView

    try:
        from tuner.extensions.agents.mcp.server import serve
    except ModuleNotFoundError as error:
        if error.name not in {"anyio", "mcp", "mcp_types"}:
            raise
        raise click.UsageError(
            "the package `mcp` is not installed: `pip install -e '.[mcp]'` in the checkout"
        ) from error
    from tuner.app.plan import RunOptions
    from tuner.extensions.agents.mcp.session_runner import Defaults, SessionRunner, run_session

    root = root.resolve()
    for name in ("source", "space", "session", "resume"):
        whole = values[name] and values[name].resolve()
        below = whole and whole.is_relative_to(root)
        values[name] = whole.relative_to(root) if below else whole
    values["sources"] = tuple(path.resolve() for path in values["sources"])
    settings = options.settings_of(context, values)
    # New sessions lie below it, and messages name files from there.
    os.chdir(root)
    run_options = RunOptions(
        **options.call_settings_of(values),
        resume_command=(MCP,),
        say=lambda text: click.echo(text, err=True),
    )
    defaults = Defaults(root, values["source"], settings, run_options, values["resume"])
    view = PlainView(Console(stderr=True, width=140))
    code = serve(SessionRunner(root, partial(run_session, defaults), view), wait_s=wait)
    if code:
        raise Exit(code)
