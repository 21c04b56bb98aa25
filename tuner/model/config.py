"""What can be chosen: parameters, configs and the search space they span."""

from __future__ import annotations

import json
import keyword
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from tuner.model.errors import ExpressionError
from tuner.model.expressions import FUNCTIONS, Expression, Value
from tuner.model.kernel import DEVICE_NAMES

# They mean something else in an expression or in a template, so no parameter may have them.
TEMPLATE_WORDS = frozenset(
    {"caller", "false", "kwargs", "loop", "none", "range", "self", "true", "varargs"}
)
RESERVED_NAMES = frozenset(keyword.kwlist) | TEMPLATE_WORDS | frozenset(FUNCTIONS) | DEVICE_NAMES


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tunable name with the values it may take, in the order of the file."""

    name: str
    values: tuple[Value, ...]
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Config(Mapping[str, Value]):
    """One choice of values for all parameters; hashable, in the order of the space."""

    items_: tuple[tuple[str, Value], ...]

    @classmethod
    def of(cls, values: Mapping[str, Value] | Iterable[tuple[str, Value]]) -> Config:
        return cls(tuple(dict(values).items()))

    def __getitem__(self, name: str) -> Value:
        for key, value in self.items_:
            if key == name:
                return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self.items_)

    def __len__(self) -> int:
        return len(self.items_)

    def __str__(self) -> str:
        return " ".join(f"{key}={format_value(value)}" for key, value in self.items_)

    @property
    def key(self) -> str:
        """Canonical JSON, equal for equal configs whatever the order of their names."""
        return json.dumps(dict(self.items_), sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Derived:
    """A name for an expression; `used` says whether another expression of the space uses it."""

    name: str
    expression: Expression
    used: bool


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Parameters, the constraints between them (and the axes), and what to start from.

    A config that breaks a constraint cannot run. One that only breaks a condition of `prune` can,
    but it is thought to be slow, and no search proposes it. `derived` names are written out in all
    expressions. `suggestions` are configs that are tried early, after the default.
    """

    parameters: tuple[Parameter, ...]
    constraints: tuple[Expression, ...] = ()
    prune: tuple[Expression, ...] = ()
    derived: tuple[Derived, ...] = ()
    default: Config | None = None
    suggestions: tuple[Config, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters)

    @property
    def size(self) -> int:
        """The number of combinations before any constraint."""
        return prod(len(parameter.values) for parameter in self.parameters)

    @property
    def conditions(self) -> tuple[Expression, ...]:
        """All that a search keeps to: the constraints, and what leaves slow configs out."""
        return *self.constraints, *self.prune

    @property
    def unpruned(self) -> SearchSpace:
        """The same space, where configs that are thought to be slow are tried too."""
        return replace(self, prune=())

    @property
    def asked_for(self) -> tuple[Config, ...]:
        """The configs that the space itself names, the default first."""
        default = () if self.default is None else (self.default,)
        return tuple(dict.fromkeys((*default, *self.suggestions)))

    def violated(self, config: Config, axes: Mapping[str, Value]) -> Expression | None:
        """Return the first constraint that `config` breaks for `axes`, or None."""
        names = {**axes, **config}
        return next(
            (constraint for constraint in self.constraints if not constraint.evaluate(names)), None
        )

    def left_out(self, config: Config, axes: Mapping[str, Value]) -> Expression | None:
        """Return the first condition of `prune` that `config` breaks for `axes`, or None."""
        names = {**axes, **config}
        return next(
            (expression for expression in self.prune if not expression.evaluate(names)), None
        )

    def allows(self, config: Config, axes: Mapping[str, Value]) -> bool:
        """Whether `config` keeps to all conditions; one that cannot be evaluated is broken."""
        try:
            return self.violated(config, axes) is None and self.left_out(config, axes) is None
        except ExpressionError:
            return False


def format_value(value: Value) -> str:
    """Write a value as YAML and the command line do (`true`, not `True`)."""
    return str(value).lower() if isinstance(value, bool) else str(value)
