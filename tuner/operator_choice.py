"""What a kernel is once the operator's choices are made: its dtypes, shapes, launches, limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tuner.errors import KernelError
from tuner.expressions import Expression
from tuner.kernel import Argument, KernelSpec, LaunchSpec
from tuner.space import SearchSpace


def chosen_operators(spec: KernelSpec, asked: Mapping[str, str]) -> Mapping[str, str]:
    """Complete the operator's choices with the defaults; raise `KernelError` for unknown ones."""
    known = {operator.name: operator.values for operator in spec.operators}
    for name, value in asked.items():
        if name not in known:
            listed = ", ".join(known) or "it has none"
            raise KernelError(
                f"{spec.name} has no operator choice named {name!r}",
                path=spec.path,
                remedy=f"choices: {listed}",
            )
        if value not in known[name]:
            raise KernelError(
                f"{name} cannot be {value!r}",
                path=spec.path,
                remedy=f"{name} is one of {', '.join(known[name])}",
            )
    return {name: asked.get(name, values[0]) for name, values in known.items()}


def bound_spec(spec: KernelSpec, operators: Mapping[str, str]) -> KernelSpec:
    """Put a choice of operators into every expression and dtype; a choice made before gives way."""
    operations = spec.operations
    return replace(
        spec,
        arguments=tuple(_argument(argument, operators) for argument in spec.arguments),
        traffic=spec.traffic.bind(operators),
        operations=None if operations is None else operations.bind(operators),
        baseline=tuple(_launch(launch, operators) for launch in spec.baseline),
        launch=tuple(_launch(launch, operators) for launch in spec.launch),
    )


def bound_space(space: SearchSpace, operators: Mapping[str, str]) -> SearchSpace:
    """Put a choice of operators into every constraint; a choice made before gives way."""
    return replace(space, constraints=_all(space.constraints, operators))


def _argument(argument: Argument, operators: Mapping[str, str]) -> Argument:
    by = argument.dtype_by
    return replace(
        argument,
        dtype=argument.dtype if by is None else by.dtypes[operators[by.operator]],
        shape=_all(argument.shape, operators),
        value=_optional(argument.value, operators),
    )


def _launch(launch: LaunchSpec, operators: Mapping[str, str]) -> LaunchSpec:
    return replace(
        launch,
        grid=_all(launch.grid, operators),
        block=_all(launch.block, operators),
        cluster=_all(launch.cluster, operators),
        shared_memory=_optional(launch.shared_memory, operators),
        programmatic=_optional(launch.programmatic, operators),
        when=_optional(launch.when, operators),
    )


def _all(
    expressions: tuple[Expression, ...], operators: Mapping[str, str]
) -> tuple[Expression, ...]:
    return tuple(expression.bind(operators) for expression in expressions)


def _optional(expression: Expression | None, operators: Mapping[str, str]) -> Expression | None:
    return None if expression is None else expression.bind(operators)
