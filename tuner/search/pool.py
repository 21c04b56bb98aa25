"""The valid configs of a search space for one workload, compact and in a fixed order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tuner.errors import ExpressionError, SpaceError
from tuner.search.enumeration import MAX_VALUES, Domains, Rows, enumerate_rows, no_rows
from tuner.search.residual import substitute
from tuner.space import Config, Parameter, SearchSpace, format_value

if TYPE_CHECKING:
    from tuner.expressions import Expression, Value


class Pool:
    """Hold valid configs as rows of value indices, sorted; configs are made when asked for.

    `encoded` has one row per config and one column per parameter: the index of the value in the
    parameter's list. `emptied_by` is the first constraint that alone excludes every config.
    """

    __slots__ = ("_lookups", "emptied_by", "encoded", "parameters")

    def __init__(
        self,
        parameters: tuple[Parameter, ...],
        encoded: Rows,
        emptied_by: Expression | None = None,
    ) -> None:
        self.parameters = parameters
        self.encoded = encoded
        self.emptied_by = emptied_by
        self._lookups = tuple(
            {value: index for index, value in enumerate(p.values)} for p in parameters
        )

    def __len__(self) -> int:
        return len(self.encoded)

    def __getitem__(self, index: int) -> Config:
        row = self.encoded[index].tolist()
        return Config(
            tuple((p.name, p.values[i]) for p, i in zip(self.parameters, row, strict=True))
        )

    def __iter__(self) -> Iterator[Config]:
        return (self[index] for index in range(len(self)))

    def __contains__(self, config: object) -> bool:
        return isinstance(config, Mapping) and self._find(config) is not None

    def index(self, config: Mapping[str, Value]) -> int:
        """Return the position of `config`; raise `ValueError` where it is not in the pool."""
        position = self._find(config)
        if position is None:
            raise ValueError(f"{dict(config)} is not a valid config here")
        return position

    def _find(self, config: Mapping[str, Value]) -> int | None:
        if config.keys() != {parameter.name for parameter in self.parameters}:
            return None
        row = []
        for parameter, lookup in zip(self.parameters, self._lookups, strict=True):
            index = lookup.get(config[parameter.name])
            if index is None:
                return None
            row.append(index)
        found = bisect_left(range(len(self)), row, key=lambda i: self.encoded[i].tolist())
        if found == len(self) or self.encoded[found].tolist() != row:
            return None
        return found


def valid_configs(space: SearchSpace, names: Mapping[str, Value]) -> Pool:
    """Enumerate the configs that satisfy every constraint for the axes and limits in `names`.

    A constraint that cannot be evaluated for a config is an `ExpressionError`, unless another
    constraint excludes that config; the order of the constraints does not matter.
    """
    _check_values(space.parameters)
    own = set(space.names)
    outer = {name: value for name, value in names.items() if name not in own}
    residuals = []
    for constraint in space.constraints:
        constraint.require(own | outer.keys())
        residual = substitute(constraint, outer)
        if residual.names or not _is_known(residual):
            residuals.append((constraint, residual))
        elif not residual.evaluate({}):
            return Pool(space.parameters, no_rows(len(space.parameters)), constraint)
    solutions = enumerate_rows(Domains.of(space.parameters), tuple(r for _, r in residuals))
    if solutions.failure is not None:
        position, row = solutions.failure
        values = zip(space.parameters, row, strict=True)
        raise _failure(residuals[position][0], outer, {p.name: p.values[i] for p, i in values})
    emptied_by = None if solutions.emptied_by is None else residuals[solutions.emptied_by][0]
    return Pool(space.parameters, solutions.rows, emptied_by)


def _is_known(residual: Expression) -> bool:
    try:
        residual.evaluate({})
    except ExpressionError:
        return False
    return True


def _check_values(parameters: tuple[Parameter, ...]) -> None:
    for parameter in parameters:
        seen: dict[Value, Value] = {}
        for value in parameter.values:
            if value in seen:
                raise SpaceError(
                    f"parameter {parameter.name!r} has equal values "
                    f"{format_value(seen[value])} and {format_value(value)}",
                    line=parameter.line,
                )
            seen[value] = value
        if len(seen) > MAX_VALUES:
            raise SpaceError(
                f"parameter {parameter.name!r} has {len(seen)} values, over {MAX_VALUES}",
                line=parameter.line,
            )


def _failure(
    constraint: Expression, outer: Mapping[str, Value], config: Mapping[str, Value]
) -> ExpressionError:
    names = {**outer, **config}
    used = " ".join(f"{n}={format_value(names[n])}" for n in names if n in constraint.names)
    try:
        constraint.evaluate(names)
    except ExpressionError as error:
        return ExpressionError(
            f"{error.message}, for {used}" if used else error.message,
            path=error.path,
            line=error.line,
            remedy="guard it, as in `b == 0 or a % b == 0`, or leave the value out",
        )
    raise AssertionError(f"`{constraint.text}` failed and now does not")
