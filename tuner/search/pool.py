"""The valid configs of a search space for one workload, compact and in a fixed order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tuner.model.config import Config, Parameter, SearchSpace, format_value
from tuner.model.errors import ExpressionError, SpaceError
from tuner.model.expressions import Expression, Value, substitute
from tuner.search.constraints import Rows
from tuner.search.enumeration import (
    Domains,
    FailingRowError,
    Mask,
    Population,
    enumerate_rows,
    first_rows,
    no_rows,
    row_keys,
)

Indices = np.ndarray[Any, np.dtype[np.intp]]
Column = np.ndarray[Any, np.dtype[np.uint16]]
MAX_VALUES = 2**16
# What the pool of a space that is too large to list starts with. A search tries a few hundred
# configs. Of 20 000 random ones the best is among the fastest 0.03 % of all in 399 of 400 cases
# (1 - 0.9997^20000), and searchers go on from there to neighbours outside the sample.
SAMPLE = 20_000
# So many rows tell of most columns that they are not tied.
FEW_ROWS = 1000


@dataclass(frozen=True, slots=True)
class Move:
    """Columns of a config that change in one step, and what they hold together: a row for each."""

    columns: list[int]
    values: Rows


@dataclass(frozen=True, slots=True)
class Source:
    """Where the pool of a large space gets further configs from."""

    population: Population
    rng: np.random.Generator
    told: Callable[[], AbstractContextManager[None]]

    def valid(self, rows: Rows) -> Mask:
        with self.told():
            return self.population.valid(rows)

    def sample(self, count: int) -> Rows:
        with self.told():
            return self.population.sample(count, self.rng)


class Pool:
    """Hold valid configs as rows of value indices; configs are made when asked for.

    `encoded` has one row per config and one column per parameter: the index of the value in the
    parameter's list. `emptied_by` is the first constraint that alone excludes every config.

    The pool of a space that can be listed has all valid configs in lexicographic order. That of
    a larger one is `sampled`: it begins with a uniform sample in that order, and takes up further
    valid configs at its end when they are looked for. Its length is what it holds so far; the
    same calls make the same pool.
    """

    def __init__(
        self,
        parameters: tuple[Parameter, ...],
        encoded: Rows,
        emptied_by: Expression | None = None,
        source: Source | None = None,
    ) -> None:
        self.parameters = parameters
        self.emptied_by = emptied_by
        self._source = source
        self._rows, self._size = encoded, len(encoded)
        self._restricted_from: int | None = None
        self._first_keys = row_keys(encoded)
        self._added: dict[bytes, int] = {}
        self._lookups = tuple(
            {value: index for index, value in enumerate(p.values)} for p in parameters
        )

    @classmethod
    def of(cls, parameters: tuple[Parameter, ...], configs: Iterable[Mapping[str, Value]]) -> Pool:
        lookups = [(p.name, {value: i for i, value in enumerate(p.values)}) for p in parameters]
        rows = [[indices[config[name]] for name, indices in lookups] for config in configs]
        unordered = np.array(rows, dtype=np.uint16).reshape(len(rows), len(parameters))
        return cls(parameters, np.unique(unordered, axis=0))

    @property
    def encoded(self) -> Rows:
        """The value indices of every config that is held; read only."""
        rows = self._rows[: self._size]
        rows.flags.writeable = False
        return rows

    @property
    def sampled(self) -> bool:
        """Whether the space has more valid configs than are held."""
        return self._source is not None

    @property
    def estimated_size(self) -> int:
        return self._size if self._source is None else max(self._size, self._source.population.size)

    @property
    def estimated_whole(self) -> int:
        """How many configs are valid, of which a `restricted` pool has some."""
        return self.estimated_size if self._restricted_from is None else self._restricted_from

    @property
    def size_is_exact(self) -> bool:
        """Whether `estimated_size` was counted; else it was estimated from random draws."""
        return self._source is None or not self._source.population.loose

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Config:
        row = self.encoded[index].tolist()
        return Config(
            tuple((p.name, p.values[i]) for p, i in zip(self.parameters, row, strict=True))
        )

    def __iter__(self) -> Iterator[Config]:
        return (self[index] for index in range(len(self)))

    def __contains__(self, config: object) -> bool:
        row = self._row(config) if isinstance(config, Mapping) else None
        if row is None:
            return False
        held = bool((self._positions(row) >= 0).all())
        return held or (self._source is not None and bool(self._source.valid(row).all()))

    def index(self, config: Mapping[str, Value]) -> int:
        """Return the position of `config`, which a sampled pool takes up if it is valid.

        Raises `ValueError` for a config that is not valid.
        """
        row = self._row(config)
        positions = [] if row is None else self._take_up(row).tolist()
        if not positions:
            raise ValueError(f"{dict(config)} is not a valid config here")
        return int(positions[0])

    def nearest(self, config: Mapping[str, Value]) -> Config | None:
        """Return the config that is held and has the fewest other values; None where none is."""
        row = self._row(config)
        if row is None or not len(self):
            return None
        return self[int((self.encoded != row).sum(axis=1).argmin())]

    def neighbours(self, index: int) -> Indices:
        """Return the positions of all valid configs that differ from one in one parameter.

        Or in several that are tied to each other, as by a constraint that makes them equal. In the
        order of the parameters, and of the values in each list. A sampled pool takes them up.
        """
        return self._take_up(_change_one(self._moves, self.encoded[index]))

    def look_around(self, row: np.ndarray[Any, np.dtype[np.integer[Any]]]) -> None:
        """Have a sampled pool take up a wished row and its neighbours, as far as they are valid."""
        if self._source is not None:
            wished = row.astype(np.uint16)
            others = _change_one(self._moves, wished)
            self._take_up(np.concatenate([wished[np.newaxis], others]))

    @cached_property
    def _moves(self) -> Sequence[Move]:
        """The columns that change alone and, after the first of them, those that are tied."""
        alone = [
            Move([column], np.arange(len(parameter.values), dtype=np.uint16)[:, np.newaxis])
            for column, parameter in enumerate(self.parameters)
        ]
        # As the pool began: a sampled one that has taken up more makes the same moves.
        rows = self._rows[: len(self._first_keys)]
        together = [Move(tied, np.unique(rows[:, tied], axis=0)) for tied in _tied_columns(rows)]
        return sorted([*alone, *together], key=lambda move: (move.columns[0], len(move.columns)))

    def draw_more(self, count: int) -> int:
        """Have a sampled pool take up random configs; return how many were new."""
        before = self._size
        if self._source is not None:
            rows = self._source.sample(count)
            self._add(rows[self._positions(rows) < 0])
        return self._size - before

    def with_also(self, configs: Iterable[Mapping[str, Value]]) -> Pool:
        """Hold further configs at the end, whose constraints somebody has looked at."""
        rows = [row for config in configs if (row := self._row(config)) is not None]
        for row in rows:
            self._add(row[self._positions(row) < 0])
        return self

    def restricted(self, configs: Iterable[Mapping[str, Value]]) -> Pool:
        """Make the pool of some configs, those of them that are valid here."""
        pool = Pool.of(self.parameters, [config for config in configs if config in self])
        pool._restricted_from = self.estimated_whole
        return pool

    def _row(self, config: Mapping[str, Value]) -> Rows | None:
        # A config's own look-up of a name goes through all of them.
        values = dict(config.items_) if isinstance(config, Config) else config
        if values.keys() != {parameter.name for parameter in self.parameters}:
            return None
        indices = [
            lookup.get(values[parameter.name])
            for parameter, lookup in zip(self.parameters, self._lookups, strict=True)
        ]
        return None if None in indices else np.array([indices], dtype=np.uint16)

    def _positions(self, rows: Rows) -> Indices:
        """Find rows of value indices; -1 where one is not held."""
        keys = row_keys(rows)
        positions = np.full(len(rows), -1, dtype=np.intp)
        if len(self._first_keys):
            places = np.searchsorted(self._first_keys, keys)
            places[places == len(self._first_keys)] = 0
            positions = np.where(self._first_keys[places] == keys, places, -1)
        if self._added:
            missing = np.flatnonzero(positions < 0)
            positions[missing] = [self._added.get(key, -1) for key in keys[missing].tolist()]
        return positions

    def _take_up(self, rows: Rows) -> Indices:
        """Find rows, after adding the valid ones that a sample left out."""
        positions = self._positions(rows)
        if self._source is not None and (positions < 0).any():
            missing = rows[positions < 0]
            self._add(missing[self._source.valid(missing)])
            positions = self._positions(rows)
        return positions[positions >= 0]

    def _add(self, rows: Rows) -> None:
        if not len(rows):
            return
        size = self._size + len(rows)
        if size > len(self._rows):
            # at least twice the room, so that adding one by one stays cheap
            self._rows = np.concatenate([self.encoded, np.zeros((size, rows.shape[1]), np.uint16)])
        self._rows[self._size : size] = rows
        self._added.update(zip(row_keys(rows).tolist(), range(self._size, size), strict=True))
        self._size = size


def _change_one(moves: Iterable[Move], row: Rows) -> Rows:
    changed = []
    for move in moves:
        others = move.values[(move.values != row[move.columns]).any(axis=1)]
        rows = np.repeat(row[np.newaxis], len(others), axis=0)
        rows[:, move.columns] = others
        changed.append(rows)
    return np.concatenate(changed) if changed else no_rows(0)


def _tied_columns(rows: Rows) -> list[list[int]]:
    """Group the columns of which each says what the others are, without those tied to none.

    Searches step from config to config by one parameter. Where `down_warps == num_warps` no such
    step leaves a valid config.
    """

    def are_tied(first: Column, second: Column) -> bool:
        # Most are not, which a few rows tell.
        for some in (slice(None, None, len(first) // FEW_ROWS + 1), slice(None)):
            pairs = first[some].astype(np.uint32) << 16 | second[some]
            count = len(np.unique(pairs))
            if any(len(np.unique(column[some])) != count for column in (first, second)):
                return False
        return True

    groups: list[list[int]] = []
    for column in np.flatnonzero((rows != rows[:1]).any(axis=0)).tolist():
        tied = (group for group in groups if are_tied(rows[:, group[0]], rows[:, column]))
        if (group := next(tied, None)) is None:
            groups.append([column])
        else:
            group.append(column)
    return [group for group in groups if len(group) > 1]


def valid_configs(space: SearchSpace, names: Mapping[str, Value], *, seed: int = 0) -> Pool:
    """Enumerate the configs that satisfy every condition for the axes and limits in `names`.

    A config that the space itself names is among them too where only conditions of `prune` over
    parameters alone leave it out. More than `MOST_HELD` are sampled, the same for the same `seed`.
    A constraint that cannot be evaluated for a config is an `ExpressionError`, unless another
    constraint excludes that config; the order of the constraints does not matter.
    """
    for parameter in space.parameters:
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
    own = set(space.names)
    outer = {name: value for name, value in names.items() if name not in own}
    residuals = []
    for constraint in space.conditions:
        constraint.require(own | outer.keys())
        residual = substitute(constraint, outer)
        try:
            holds = None if residual.names else residual.evaluate({})
        except ExpressionError:
            holds = None
        if holds is None:
            residuals.append((constraint, residual))
        elif not holds:
            return Pool(space.parameters, no_rows(len(space.parameters)), constraint)

    @contextmanager
    def explain_failing_row() -> Iterator[None]:
        try:
            yield
        except FailingRowError as error:
            values = zip(space.parameters, error.row, strict=True)
            config = {parameter.name: parameter.values[i] for parameter, i in values}
            raise _failure_of(residuals[error.constraint][0], outer, config) from error

    # What the space names itself, and only conditions over parameters alone leave out.
    lone = {condition for condition in space.prune if condition.names <= own}
    there = replace(
        space, prune=tuple(condition for condition in space.prune if condition not in lone)
    )
    asked_for = [
        config
        for config in (space.asked_for if lone else ())
        if not all(condition.evaluate(config) for condition in lone) and there.allows(config, outer)
    ]
    with explain_failing_row():
        population = enumerate_rows(Domains.of(space.parameters), tuple(r for _, r in residuals))
        rows = population.partial if population.listed else first_rows(population, SAMPLE, seed)
    if not population.listed:
        # not the sample's own stream: what is drawn later should be new
        source = Source(population, np.random.default_rng([seed, 1]), explain_failing_row)
        return Pool(space.parameters, rows, source=source).with_also(asked_for)
    emptied_by = None if population.emptied_by is None else residuals[population.emptied_by][0]
    return Pool(space.parameters, rows, emptied_by).with_also(asked_for)


def _failure_of(
    constraint: Expression, outer: Mapping[str, Value], config: Mapping[str, Value]
) -> ExpressionError:
    """Say why a constraint cannot be evaluated for a config, with the values that it uses."""
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


class RemainingConfigs:
    """Hand out each config of a pool once, seeds first; seeds outside the pool are left out.

    Configs that a sampled pool takes up later are there as soon as the pool has them.
    """

    def __init__(self, pool: Pool, seeds: Iterable[Mapping[str, Value]] = ()) -> None:
        self._pool = pool
        valid = (pool.index(seed) for seed in seeds if seed in pool)
        self._seeds = deque(dict.fromkeys(valid))
        self._ranks = [_ranks(parameter) for parameter in pool.parameters]
        # One contiguous row per parameter, of bytes where they suffice: comparing along the
        # configs is then twenty times faster.
        small = all(len(parameter.values) <= 2**8 for parameter in pool.parameters)
        self._columns = np.empty((len(pool.parameters), 0), np.uint8 if small else np.uint16)
        self._taken = np.empty(0, dtype=bool)
        self._held = 0
        self._count = 0
        self._follow()

    def __len__(self) -> int:
        self._follow()
        return self._count

    def __contains__(self, index: int) -> bool:
        self._follow()
        return not self._taken[index]

    def are_free(self, indices: Indices) -> Mask:
        """Tell which configs nobody has taken."""
        self._follow()
        free: Mask = ~self._taken[indices]
        return free

    def take(self, index: int) -> int:
        self._follow()
        assert not self._taken[index]
        self._taken[index] = True
        self._count -= 1
        return index

    def take_seed(self) -> int | None:
        while self._seeds:
            index = self._seeds.popleft()
            if index in self:
                return self.take(index)
        return None

    def take_random(self, rng: np.random.Generator) -> int:
        self._follow()
        return self.take(int(rng.choice(np.flatnonzero(~self._taken[: self._held]))))

    def take_nearest(self, row: Indices) -> int:
        """Take the config that differs from `row` (value indices) in the fewest parameters.

        Among those, the one whose numbers are the fewest steps away, then the first of the pool.
        A sampled pool takes up the row itself and its neighbours first.
        """
        self._pool.look_around(row)
        self._follow()
        columns = self._columns[:, : self._held]
        counts = np.uint8 if len(columns) < 2**8 - 1 else np.uint16
        differing: np.ndarray[Any, np.dtype[np.unsignedinteger[Any]]] = np.zeros(self._held, counts)
        wished = row.tolist()
        for column, value in zip(columns, wished, strict=True):
            differing += column != value
        differing[self._taken[: self._held]] = len(columns) + 1
        closest = np.flatnonzero(differing == differing.min())
        steps = np.zeros(len(closest), dtype=np.int64)
        for column, ranks, value in zip(columns, self._ranks, wished, strict=True):
            steps += np.abs(ranks[column[closest]] - ranks[value])
        return self.take(int(closest[steps.argmin()]))

    def _follow(self) -> None:
        size = len(self._pool)
        if size == self._held:
            return
        if size > len(self._taken):
            room = size if not self._held else 2 * size
            columns = np.zeros((len(self._columns), room), dtype=self._columns.dtype)
            columns[:, : self._held] = self._columns[:, : self._held]
            self._columns = columns
            self._taken = np.concatenate(
                [self._taken[: self._held], np.zeros(room - self._held, dtype=bool)]
            )
        self._columns[:, self._held : size] = self._pool.encoded[self._held :].T
        self._count += size - self._held
        self._held = size


def _ranks(parameter: Parameter) -> np.ndarray[Any, np.dtype[np.int64]]:
    # Text and switches have no order: any two of their values are equally far apart.
    values = parameter.values
    if any(isinstance(value, bool | str) for value in values):
        return np.zeros(len(values), dtype=np.int64)
    return np.argsort(np.argsort(np.array(values, dtype=float))).astype(np.int64)
