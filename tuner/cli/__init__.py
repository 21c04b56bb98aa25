"""The `tune` program: a kernel file to tune, or a command."""

from __future__ import annotations

import difflib
import importlib
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import click

from tuner import plugins
from tuner.app.environment import program_name
from tuner.cli.exits import translated_errors
from tuner.cli.printing import clean_output
from tuner.model import TUNER_VERSION

RUN = "run"
# Stated here so that `tune --help` imports none of the commands.
COMMANDS = {
    "demo": "Tune a kernel on measurements that come with the program; no GPU is needed.",
    "init": "Draft a search space, a template and a reference for a kernel.",
    "check": "Check a search space and its template; no GPU is needed.",
    "render": "Print the CUDA source of one config.",
    "verify": "Repeat the verification of a session's winners.",
    "ncu": "Write a program of baseline and winner for Nsight Compute.",
    "show": "Print the results of a session whole.",
    "report": "Write the report of a session.",
    "mcp": "Serve the rounds to a coding agent, over the Model Context Protocol.",
    "export": "Write a session's variants for production, or its rounds as training data.",
    "compare": "Compare search methods on recorded spaces.",
    "devices": "List the GPUs and the recordings to tune on.",
    "knowledge": "List, delete or add what past runs found.",
    "session": "List, fetch, send or delete copies of sessions on a server.",
    "mutate": "Show how strong the check is: break the kernel and see what is caught.",
    "timeline": "Show which operators of a profiled step to tune, and the most to gain.",
    "fleet": "Make the config files that SGLang or vLLM lacks for a model.",
    "campaign": "Tune many kernels, on all GPUs, from one file.",
    "worker": "Offer this host's GPUs to the runs of a cluster.",
    "record": "Measure a whole search space on a GPU and keep the answers.",
}


class CommandLine(click.Group):
    """A group whose first argument may be a kernel file instead of a command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands in the order of the help, those of other packages last."""
        return list(dict.fromkeys((*COMMANDS, *plugins.names_of(plugins.COMMANDS))))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command's module when it is first needed."""
        if cmd_name in plugins.names_of(plugins.COMMANDS):
            command = plugins.load(plugins.COMMANDS, cmd_name, click.Command)
        elif cmd_name == RUN or cmd_name in COMMANDS:
            command = importlib.import_module(f"tuner.cli.{cmd_name}_command").command
        else:
            return None
        assert isinstance(command, click.Command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the hidden command `run` before anything that is no command."""
        commands = self.list_commands(ctx)
        own = {"--help", "-h", "--version", RUN, *commands}
        if args and (word := args[0]) not in own:
            path = Path(word)
            with translated_errors():
                is_there = path.exists()
            if not (word.startswith("-") or path.suffix or is_there or "/" in word):
                close = difflib.get_close_matches(word, commands, n=1)
                meant = "tune --resume SESSION" if word == "resume" else next(iter(close), "")
                hint = f"; did you mean `{meant}`?" if meant else ""
                message = f"{word!r} is neither a command nor a kernel file{hint}"
                raise click.UsageError(message, ctx)
            args = [RUN, *args]
        return super().parse_args(ctx, args)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with redirect_stdout(sys.stdout), redirect_stderr(sys.stderr):  # which puts them back
            clean_output()
            return super().main(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; errors of ours become one message and an exit code."""
        with translated_errors():
            return super().invoke(ctx)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the options of `tune KERNEL.cu` and the commands on one page."""
        formatter.write_usage(ctx.command_path, "KERNEL.cu [OPTIONS]")
        formatter.write_usage(ctx.command_path, "COMMAND [ARGS]...", prefix=" " * len("Usage: "))
        self.format_help_text(ctx, formatter)
        run = self.get_command(ctx, RUN)
        if run is not None:
            run.format_options(ctx, formatter)
        with formatter.section("Commands"):
            others = (command for command in self.list_commands(ctx) if command not in COMMANDS)
            rows = [*COMMANDS.items(), *((other, "Of another package.") for other in others)]
            formatter.write_dl(rows)
        formatter.write_paragraph()
        formatter.write_text(f"`{ctx.command_path} COMMAND --help` shows a command's own options.")


@click.command(
    cls=CommandLine, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(TUNER_VERSION, prog_name="tune", message="%(prog)s %(version)s")
def cli() -> None:
    """Make a CUDA kernel faster and prove it.

    The search space is found by the kernel's name under search_spaces/. Without a GPU, a recording
    of measurements made on one answers instead, and the first line says so.

    Instead of a kernel a problem can be named, PROBLEM.py or DEFINITION.json: its kernel is the .cu
    of the same name beside it, or is written by an agent.
    """


def main() -> None:
    clean_output()  # also what Python prints of an error that nobody caught
    cli.main(prog_name=program_name())
