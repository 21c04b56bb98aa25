"""The CUDA source of one config, and reading a config from text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tuner.app.plan import read_chosen
from tuner.model.config import Config, SearchSpace, format_value
from tuner.model.errors import SpaceError
from tuner.model.expressions import Value
from tuner.model.kernel import KernelSpec
from tuner.space.callables import load_template
from tuner.space.load import workload_from_text


def render(
    space: Path | str,
    config: Mapping[str, Value] | None = None,
    *,
    workload: str | None = None,
    operators: Mapping[str, str] | None = None,
) -> str:
    """Return the CUDA source of one config of a search space.

    Values that `config` lacks are those of the default config; `workload` is `T=1024,D=4096`, the
    first of the space otherwise. Raises `InputError` for what is wrong with files or values.
    """
    definition, chosen = read_chosen(space, operators)
    spec = definition.spec
    template = load_template(spec, definition.space)
    template.check(definition.space, spec)
    texts = {name: format_value(value) for name, value in (config or {}).items()}
    values = chosen_config(spec, definition.space, texts)
    problem = spec.tuned[0] if workload is None else workload_from_text(spec, workload)
    names = {**problem.values, **chosen, **values}
    return template.render(names, definition.space.derived).source


def chosen_config(spec: KernelSpec, space: SearchSpace, given: Mapping[str, str]) -> Config:
    """Complete the values given with the default config; raise `SpaceError` for what is wrong."""
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
    chosen: dict[str, Value] = {**default}
    for parameter in space.parameters:
        name, known = parameter.name, {format_value(value): value for value in parameter.values}
        if name in given and given[name] not in known:
            raise SpaceError(
                f"{name} cannot be {given[name]!r}",
                path=spec.path,
                line=parameter.line,
                remedy=f"values: {', '.join(known)}",
            )
        if name in given:
            chosen[name] = known[given[name]]
    return Config.of((name, chosen[name]) for name in space.names)
