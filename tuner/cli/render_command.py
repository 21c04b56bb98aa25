"""`tune render`: the CUDA source of one config."""

from __future__ import annotations

from pathlib import Path

import click

from tuner.cli import options


@click.command("render")
@click.argument("space", metavar="SPACE.yaml", type=click.Path(path_type=Path))
@click.argument("values", metavar="[NAME=VALUE]...", nargs=-1, type=options.assignment)
@click.option(
    "--workload",
    metavar="T=1024,...",
    help="The sizes for templates that use axes; by default the space's first workload.",
)
@options.setting("operators", help="The variant of the operator to render; repeatable.")
def command(
    space: Path,
    values: tuple[tuple[str, str], ...],
    workload: str | None,
    operators: tuple[tuple[str, str], ...],
) -> None:
    """Print the CUDA source of one config of SPACE.yaml.

    A parameter that isn't named takes its value from the space's default config.
    """
    from tuner.app.render import render

    source = render(
        space,
        options.unique(values, "parameter"),
        workload=workload,
        operators=options.unique(operators, "operator"),
    )
    click.echo(source, nl=not source.endswith("\n"))
