"""`tune render`: the CUDA source of one config."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.app.plans import unique
from tuner.cli import options
from tuner.model.errors import SpaceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tuner.model.config import Config, Parameter, SearchSpace
    from tuner.model.expressions import Value
    from tuner.model.kernel import KernelSpec


@click.command("render")
@click.argument("space", metavar="SPACE.yaml", type=click.Path(path_type=Path))
@click.argument("values", metavar="[NAME=VALUE]...", nargs=-1, type=options.assignment)
@click.option(
    "--workload",
    metavar="T=1024,...",
    help="For templates that use the axes; otherwise the first in the space.",
)
@click.option(
    "--operator",
    metavar="NAME=VALUE",
    multiple=True,
    type=options.assignment,
    help="Which of the operator's variants; repeatable.",
)
def command(
    space: Path,
    values: tuple[tuple[str, str], ...],
    workload: str | None,
    operator: tuple[tuple[str, str], ...],
) -> None:
    """Print the CUDA source of one config of SPACE.yaml.

    A parameter that isn't named takes its value from the space's default config.
    """
    from tuner.app.locate import require_space
    from tuner.draft import require_filled
    from tuner.space.choices import chosen_operators
    from tuner.space.load import load_definition, workload_from_text
    from tuner.space.template import Template

    require_space(space)
    require_filled(space)
    definition = load_definition(space)
    operators = chosen_operators(definition.spec, unique(operator, "operator"))
    definition = definition.chosen(operators)
    spec = definition.spec
    template = Template.load(spec.template)
    template.check(definition.space, spec)
    config = chosen_config(spec, definition.space, unique(values, "parameter"))
    problem = spec.tuned[0] if workload is None else workload_from_text(spec, workload)
    rendered = template.render({**problem.values, **operators, **config})
    click.echo(rendered.source, nl=not rendered.source.endswith("\n"))


def chosen_config(spec: KernelSpec, space: SearchSpace, given: Mapping[str, str]) -> Config:
    """Complete the values given with the default config; raise `SpaceError` for what is wrong."""
    from tuner.model.config import Config

    unknown = [name for name in given if name not in space.names]
    if unknown:
        raise SpaceError(
            f"no parameter named {unknown[0]!r}",
            path=spec.path,
            remedy=f"parameters: {', '.join(space.names)}",
        )
    default: Mapping[str, Value] = space.default or {}
    missing = [name for name in space.names if name not in given and name not in default]
    if missing:
        raise SpaceError(
            f"no value for {', '.join(missing)}",
            path=spec.path,
            remedy="give each as name=value: this space has no default config",
        )
    return Config.of(
        (p.name, _value(spec, p, given[p.name]) if p.name in given else default[p.name])
        for p in space.parameters
    )


def _value(spec: KernelSpec, parameter: Parameter, text: str) -> Value:
    from tuner.model.config import format_value

    for value in parameter.values:
        if format_value(value) == text:
            return value
    raise SpaceError(
        f"{parameter.name} cannot be {text!r}",
        path=spec.path,
        line=parameter.line,
        remedy=f"values: {', '.join(map(format_value, parameter.values))}",
    )
