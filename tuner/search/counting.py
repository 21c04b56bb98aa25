"""Count the rows that satisfy several relations at once, and draw among them, without listing them.

Variable elimination (Dechter, "Bucket elimination: a unifying framework for reasoning", 1999): one
parameter after the other is summed out of the relations that mention it. The sum of all weights
is the number of rows; going back, each parameter is drawn given the later ones, which makes every
row equally likely. The cost grows with the largest table on the way, not with the number of rows.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from math import frexp, prod
from typing import Any

import numpy as np

from tuner.model.config import Parameter, format_value
from tuner.model.errors import ExpressionError, InputError
from tuner.model.expressions import Expression, Value, free_names
from tuner.search.arrays import Verdict, numbers, verdicts
from tuner.search.rows import MAX_VALUES, Rows, TooManyRowsError, no_rows, row_keys

Array = np.ndarray[Any, np.dtype[Any]]
Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Relation:
    """Distinct rows of value indices for some parameters, each with a positive weight.

    `positions` are those of the parameters in the space, one per column.
    """

    positions: tuple[int, ...]
    rows: Rows
    weights: Floats

    @classmethod
    def of(cls, positions: tuple[int, ...], rows: Rows) -> Relation:
        """Weigh all rows the same."""
        return cls(positions, rows, np.ones(len(rows)))

    def columns(self, positions: Sequence[int]) -> Rows:
        """The value indices of some parameters, one column each."""
        return self.rows[:, [self.positions.index(position) for position in positions]]


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows of a relation sorted by some of its columns: the same key is one group.

    `firsts` are the places in `order` and `keys` where a group begins.
    """

    order: Array
    keys: Array
    firsts: Array

    @classmethod
    def of(cls, relation: Relation, positions: Sequence[int], sizes: Sequence[int]) -> Groups:
        """Group by the columns of `positions`; `sizes` has every parameter's number of values."""
        keys = keys_of(relation.columns(positions), [sizes[i] for i in positions])
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        firsts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]][: len(keys)])
        return cls(order, keys, firsts)

    def ranges(self, keys: Array) -> tuple[Array, Array]:
        """Where the group of each key begins and ends in `order`."""
        return np.searchsorted(self.keys, keys, "left"), np.searchsorted(self.keys, keys, "right")


def keys_of(rows: Rows, sizes: Sequence[int]) -> Array:
    """Make one sortable key per row; `sizes` are the numbers of values of its columns."""
    if prod(sizes) >= 2**63:
        return row_keys(rows)
    keys: Array = np.zeros(len(rows), dtype=np.int64)
    for column, size in zip(rows.T, sizes, strict=True):
        keys = keys * size + column
    return keys


def spread(starts: Array, ends: Array, limit: int) -> tuple[Array, Array]:
    """List all members of several ranges, and for each the number of its range.

    Raises `TooManyRowsError` where they are more than `limit`.
    """
    counts = ends - starts
    total = int(counts.sum())
    if total > limit:
        raise TooManyRowsError
    owners = np.repeat(np.arange(len(counts)), counts)
    offsets = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    return starts[owners] + offsets, owners


def join(left: Relation, right: Relation, sizes: Sequence[int], limit: int) -> Relation:
    """Combine the rows that agree where both have a parameter; weights are multiplied.

    Raises `TooManyRowsError` where that gives more than `limit` rows.
    """
    common = [position for position in left.positions if position in right.positions]
    added = [position for position in right.positions if position not in left.positions]
    groups = Groups.of(right, common, sizes)
    starts, ends = groups.ranges(keys_of(left.columns(common), [sizes[i] for i in common]))
    members, owners = spread(starts, ends, limit)
    chosen = groups.order[members]
    rows = np.concatenate([left.rows[owners], right.columns(added)[chosen]], axis=1)
    weights = left.weights[owners] * right.weights[chosen]
    return Relation((*left.positions, *added), rows, weights)


def summed(relation: Relation, positions: tuple[int, ...], sizes: Sequence[int]) -> Relation:
    """Keep the columns of `positions` and add up the weights of rows that are then equal."""
    groups = Groups.of(relation, positions, sizes)
    rows = relation.columns(positions)[groups.order[groups.firsts]]
    if not len(rows):
        return Relation(positions, rows, relation.weights)
    return Relation(positions, rows, np.add.reduceat(relation.weights[groups.order], groups.firsts))


# Half a million rows of eight parameters, with weights and keys, are 40 MB while they are joined.
MOST_JOINED = 500_000


@dataclass(frozen=True, slots=True)
class _Step:
    """The values of one parameter given some of those that are eliminated after it.

    The group of `keys[i]` is from `bounds[i]` to `bounds[i + 1]` in the others. `cumulative` adds
    up the weights, of which each group has 1.
    """

    position: int
    given: tuple[int, ...]
    keys: Array
    bounds: Array
    values: Array
    cumulative: Floats


@dataclass(frozen=True, slots=True)
class Joint:
    """All rows that satisfy every relation; `size` is their number, exact below 2^53."""

    sizes: tuple[int, ...]
    steps: tuple[_Step, ...]
    size: int

    def draw(self, count: int, rng: np.random.Generator) -> Rows:
        """Draw rows independently, each row with the same probability."""
        rows = np.zeros((count, len(self.sizes)), dtype=np.uint16)
        for step in reversed(self.steps):
            starts, ends = self._ranges(step, rows)
            before = np.where(starts > 0, step.cumulative[starts - 1], 0.0)
            targets = before + rng.random(count) * (step.cumulative[ends - 1] - before)
            places = np.searchsorted(step.cumulative, targets, "right")
            rows[:, step.position] = step.values[np.clip(places, starts, ends - 1)]
        return rows

    def all_rows(self, limit: int) -> Rows:
        """List every row in lexicographic order; raise `TooManyRowsError` over `limit` rows."""
        rows = np.zeros((min(1, self.size), len(self.sizes)), dtype=np.uint16)
        for step in reversed(self.steps):
            members, owners = spread(*self._ranges(step, rows), limit)
            rows = rows[owners]
            rows[:, step.position] = step.values[members]
        return rows[np.lexsort(rows.T[::-1])] if self.sizes else rows

    def _ranges(self, step: _Step, rows: Rows) -> tuple[Array, Array]:
        keys = keys_of(rows[:, list(step.given)], [self.sizes[i] for i in step.given])
        places = np.searchsorted(step.keys, keys)
        return step.bounds[places], step.bounds[places + 1]


def joint_of(sizes: Sequence[int], relations: Sequence[Relation]) -> Joint:
    """Eliminate every parameter; raise `TooManyRowsError` where a table on the way is too large.

    `sizes` has every parameter's number of values.
    """
    left = list(relations)
    mentioned = {position for relation in relations for position in relation.positions}
    for position in set(range(len(sizes))) - mentioned:
        column = np.arange(sizes[position], dtype=np.uint16)[:, np.newaxis]
        left.append(Relation.of((position,), column))
    steps = []
    exponent = 0
    waiting = set(range(len(sizes)))
    while waiting:
        position, table = _cheapest(waiting, left, sizes)
        left = [relation for relation in left if position not in relation.positions]
        given = tuple(other for other in table.positions if other != position)
        steps.append(_step(position, given, table, sizes))
        message, added = _scaled(summed(table, given, sizes))
        left.append(message)
        exponent += added
        waiting.remove(position)
    weight = prod((Fraction(float(relation.weights.sum())) for relation in left), start=Fraction(1))
    return Joint(tuple(sizes), tuple(steps), int(weight * Fraction(2) ** exponent))


def widest_table(sizes: Sequence[int], relations: Sequence[Relation]) -> float:
    """Estimate the rows of the largest table that `joint_of` makes, without making any.

    As if relations were independent: their shares of all combinations are multiplied.
    """
    left = [
        (
            frozenset(relation.positions),
            len(relation.rows) / prod(sizes[i] for i in relation.positions),
        )
        for relation in relations
    ]
    waiting = {position for scope, _ in left for position in scope}
    widest = 0.0
    while waiting:
        unions = {p: frozenset().union(*(s for s, _ in left if p in s)) for p in waiting}
        rows = {
            p: prod(sizes[i] for i in unions[p]) * prod(share for s, share in left if p in s)
            for p in waiting
        }
        position = min(waiting, key=lambda p: (rows[p], p))
        widest = max(widest, rows[position])
        scope = unions[position] - {position}
        left = [(s, share) for s, share in left if position not in s]
        left.append((scope, min(1.0, rows[position] / prod(sizes[i] for i in scope))))
        waiting.remove(position)
    return widest


def _cheapest(
    waiting: set[int], left: Sequence[Relation], sizes: Sequence[int]
) -> tuple[int, Relation]:
    """Join the relations of the parameter that promises the smallest table."""

    def promise(position: int) -> tuple[int, int]:
        own = [relation for relation in left if position in relation.positions]
        union = {other for relation in own for other in relation.positions}
        rows = min(prod(sizes[i] for i in union), prod(len(r.rows) for r in own))
        return rows, position

    for position in sorted(waiting, key=promise):
        own = [relation for relation in left if position in relation.positions]
        try:
            return position, _joined(own, sizes)
        except TooManyRowsError:
            continue
    raise TooManyRowsError


def _joined(relations: Sequence[Relation], sizes: Sequence[int]) -> Relation:
    first, *others = sorted(relations, key=lambda relation: len(relation.rows))
    while others:
        known = set(first.positions)
        nearest = min(others, key=lambda r: (len(set(r.positions) - known), len(r.rows)))
        others = [other for other in others if other is not nearest]
        first = join(first, nearest, sizes, MOST_JOINED)
    return first


def _step(position: int, given: tuple[int, ...], table: Relation, sizes: Sequence[int]) -> _Step:
    groups = Groups.of(table, given, sizes)
    bounds = np.append(groups.firsts, len(groups.order))
    weights = table.weights[groups.order]
    if len(weights):
        # Each group adds up to 1: otherwise a light one would drown in the rounding of heavy ones.
        weights = weights / np.repeat(np.add.reduceat(weights, groups.firsts), np.diff(bounds))
    values = table.columns([position])[groups.order, 0]
    keys = groups.keys[groups.firsts]
    return _Step(position, given, keys, bounds, values, np.cumsum(weights))


def _scaled(relation: Relation) -> tuple[Relation, int]:
    """Divide the weights by a power of two, which is exact, so that no product overflows."""
    if not len(relation.rows):
        return relation, 0
    exponent = frexp(float(relation.weights.max()))[1]
    scaled = relation.weights * 2.0**-exponent
    return Relation(relation.positions, relation.rows, scaled), exponent


# One step: values of its operands times each other. A table of them takes some 10 ms.
MOST_IN_STEP = 200_000


@dataclass(slots=True)
class Derivation:
    """Parameters, further ones whose values follow from theirs, and the tables that say how.

    The first `given` parameters are the space's own. The name of a derived one is no identifier,
    so that it cannot be a user's.
    """

    parameters: list[Parameter]
    given: int
    relations: list[Relation] = field(default_factory=list)

    def shortened(self, node: ast.expr) -> ast.expr:
        """Replace the calculations in an expression by derived parameters, innermost first."""
        if isinstance(node, ast.Name | ast.Constant):
            return node
        short = _Operands(self.shortened).generic_visit(deepcopy(node))
        assert isinstance(short, ast.expr)
        if not isinstance(short, ast.BinOp | ast.UnaryOp | ast.Call):
            return short
        return self._derived(short) or short

    def _derived(self, node: ast.expr) -> ast.expr | None:
        used = free_names(node)
        positions = tuple(i for i, p in enumerate(self.parameters) if p.name in used)
        chosen = [self.parameters[i] for i in positions]
        sizes = [len(parameter.values) for parameter in chosen]
        if len(positions) < 2 or prod(sizes) > MOST_IN_STEP:
            return None
        rows: Rows = np.indices(sizes, dtype=np.uint16).reshape(len(sizes), -1).T
        try:
            results = numbers(Expression(ast.unparse(node), used, node), chosen, rows)
        except TooManyRowsError:
            return None
        values, inverse = np.unique(results, return_inverse=True)
        if len(values) > MAX_VALUES:
            return None
        derived = Parameter(f"derived {len(self.parameters)}", tuple(values.tolist()))
        column = inverse.reshape(-1, 1).astype(np.uint16)
        self.relations.append(
            Relation.of((*positions, len(self.parameters)), np.hstack([rows, column]))
        )
        self.parameters.append(derived)
        return ast.Name(derived.name, ast.Load())


class _Operands(ast.NodeTransformer):
    """Replace the operands of a node."""

    def __init__(self, replace: Callable[[ast.expr], ast.expr]) -> None:
        self._replace = replace

    def visit(self, node: ast.AST) -> ast.AST:
        return self._replace(node) if isinstance(node, ast.expr) else node


# Combinations that one constraint is tried on: 0.1 s, and 20 MB for eight parameters.
MOST_TRIED = 1_000_000


@dataclass(frozen=True, slots=True)
class Part:
    """A constraint, or one side of an `and` in it, with the positions of its parameters.

    `constraint` is the number of the constraint that it comes from.
    """

    constraint: int
    residual: Expression
    scope: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A constraint as the rows that don't break it, and those of them that it fails on.

    `steps` say how the derived parameters in it follow from others (tuner/search/derived.py).
    """

    satisfying: Relation
    failing: Relation
    steps: tuple[Relation, ...] = ()

    @property
    def relations(self) -> tuple[Relation, ...]:
        """All that has to be joined."""
        return (self.satisfying, *self.steps)

    def share(self, sizes: Sequence[int]) -> float:
        """The share of the combinations of its parameters that satisfies it."""
        return len(self.satisfying.rows) / prod(sizes[i] for i in self.satisfying.positions)


def parts_of(parameters: Sequence[Parameter], residuals: Sequence[Expression]) -> tuple[Part, ...]:
    """Split constraints at `and`: smaller ones take smaller tables."""
    return tuple(
        _part(parameters, number, tree)
        for number, residual in enumerate(residuals)
        for tree in _conjuncts(residual.tree)
    )


def tables_of(derivation: Derivation, parts: Sequence[Part]) -> dict[Part, Table]:
    """Tabulate each constraint over its own parameters, which may add derived ones.

    Left out is a constraint over too many combinations, unless those within it exclude enough or
    it can be broken up.
    """
    sizes = [len(parameter.values) for parameter in derivation.parameters]
    tables: dict[Part, Table] = {}
    for part in sorted(parts, key=lambda part: prod(sizes[i] for i in part.scope)):
        within = [other for other in tables if set(other.scope) < set(part.scope)]
        try:
            tables[part] = _tabulated(derivation, part, within)
        except TooManyRowsError:
            continue
    return tables


def joint_of_tables(derivation: Derivation, tables: Sequence[Sequence[Relation]]) -> Joint:
    """Join tables; raise `TooManyRowsError` where that takes too large ones on the way."""
    return joint_of(*_joinable(derivation, tables))


def joinable(derivation: Derivation, tables: dict[Part, Table], limit: float) -> dict[Part, Table]:
    """Choose tables whose join should take no table of more than `limit` rows, tightest first."""

    def is_joinable(chosen: dict[Part, Table]) -> bool:
        relations = [table.relations for table in chosen.values()]
        return widest_table(*_joinable(derivation, relations)) <= limit

    if is_joinable(tables):
        return tables
    sizes = [len(parameter.values) for parameter in derivation.parameters]
    kept: dict[Part, Table] = {}
    for part, table in sorted(tables.items(), key=lambda item: item[1].share(sizes)):
        if is_joinable({**kept, part: table}):
            kept[part] = table
    return kept


def _joinable(
    derivation: Derivation, tables: Sequence[Sequence[Relation]]
) -> tuple[list[int], list[Relation]]:
    relations = [relation for table in tables for relation in table]
    mentioned = {position for relation in relations for position in relation.positions}
    # A derived parameter that nothing mentions would multiply the number of rows.
    sizes = [
        len(parameter.values) if i < derivation.given or i in mentioned else 1
        for i, parameter in enumerate(derivation.parameters)
    ]
    return sizes, relations


def _conjuncts(tree: ast.expr) -> Iterator[ast.expr]:
    if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
        for value in tree.values:
            yield from _conjuncts(value)
    else:
        yield tree


def _part(parameters: Sequence[Parameter], constraint: int, tree: ast.expr) -> Part:
    used = free_names(tree)
    scope = tuple(i for i, parameter in enumerate(parameters) if parameter.name in used)
    return Part(constraint, Expression(ast.unparse(tree), used, tree), scope)


def _tabulated(derivation: Derivation, part: Part, within: Sequence[Part]) -> Table:
    try:
        return _direct(derivation, part, within)
    except TooManyRowsError:
        return _stepwise(derivation, part)


def _direct(derivation: Derivation, part: Part, within: Sequence[Part]) -> Table:
    positions, rows = _grid(derivation.parameters, part.scope, within)
    told = verdicts(part.residual, [derivation.parameters[i] for i in positions], rows)
    return Table(
        Relation.of(positions, rows[told != Verdict.BROKEN]),
        Relation.of(positions, rows[told == Verdict.FAILS]),
    )


def _stepwise(derivation: Derivation, part: Part) -> Table:
    known = len(derivation.relations)
    tree = derivation.shortened(part.residual.tree)
    short = _part(derivation.parameters, part.constraint, tree)
    return replace(_direct(derivation, short, ()), steps=tuple(derivation.relations[known:]))


def _grid(
    parameters: Sequence[Parameter], scope: Sequence[int], within: Sequence[Part]
) -> tuple[tuple[int, ...], Rows]:
    """Combine the values of some parameters, one by one, leaving out what `within` excludes."""
    inner = [position for part in within for position in part.scope]
    order = tuple(dict.fromkeys([*inner, *scope]))
    rows = np.zeros((1, 0), dtype=np.uint16)
    waiting = list(within)
    for count, position in enumerate(order, 1):
        size = len(parameters[position].values)
        if len(rows) * size > MOST_TRIED:
            raise TooManyRowsError
        column = np.tile(np.arange(size, dtype=np.uint16), len(rows))
        rows = np.column_stack([np.repeat(rows, size, axis=0), column])
        bound = [parameters[i] for i in order[:count]]
        for part in [part for part in waiting if set(part.scope) <= set(order[:count])]:
            rows = rows[verdicts(part.residual, bound, rows) != Verdict.BROKEN]
            waiting.remove(part)
    return order, rows


def substitute(constraint: Expression, names: Mapping[str, Value]) -> Expression:
    """Replace `names` by their values and fold what no longer depends on a parameter."""
    tree = _fold(constraint.tree, names)
    free = free_names(tree)
    return Expression(ast.unparse(tree), free, tree, constraint.path, constraint.line)


def is_known(residual: Expression) -> bool:
    """Whether an expression without names has a value, or only fails."""
    try:
        residual.evaluate({})
    except ExpressionError:
        return False
    return True


def failure_of(
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


def _fold(node: ast.expr, names: Mapping[str, Value]) -> ast.expr:
    match node:
        case ast.Name(id=name):
            return _literal(names[name]) if name in names else node
        case ast.Constant():
            return node
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return ast.Tuple([_fold(item, names) for item in items], ast.Load())
        case ast.Call(func=function, args=arguments):
            folded: ast.expr = ast.Call(function, [_fold(a, names) for a in arguments], [])
        case ast.BinOp(left=left, op=op, right=right):
            folded = ast.BinOp(_fold(left, names), op, _fold(right, names))
        case ast.UnaryOp(op=op, operand=operand):
            folded = ast.UnaryOp(op, _fold(operand, names))
        case ast.BoolOp(op=op, values=values):
            folded = ast.BoolOp(op, [_fold(value, names) for value in values])
        case ast.IfExp(test=test, body=body, orelse=orelse):
            folded = ast.IfExp(_fold(test, names), _fold(body, names), _fold(orelse, names))
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            folded = ast.Compare(_fold(left, names), ops, [_fold(c, names) for c in comparators])
        case _:
            return node
    return folded if free_names(folded) else _evaluated(folded)


def _evaluated(node: ast.expr) -> ast.expr:
    # A part that fails stays as it is: a short circuit may never reach it.
    try:
        return _literal(Expression(ast.unparse(node), frozenset(), node).evaluate({}))
    except ExpressionError:
        return node


def _literal(value: Value) -> ast.expr:
    # `ast.unparse` writes Constant(-2) ** 2 as -2 ** 2, which is -(2 ** 2).
    if isinstance(value, int | float) and not isinstance(value, bool) and value < 0:
        return ast.UnaryOp(ast.USub(), ast.Constant(-value))
    return ast.Constant(value)


# Draws at a time, and in all where some constraints can only be tried on whole rows.
BATCH = 20_000
MOST_DRAWS = 2_000_000

Mask = np.ndarray[Any, np.dtype[np.bool_]]


class FailingRowError(Exception):
    """Say which constraint cannot be evaluated for a row that the others allow."""

    def __init__(self, constraint: int, row: tuple[int, ...]) -> None:
        super().__init__(constraint, row)
        self.constraint, self.row = constraint, row


@dataclass(frozen=True, slots=True, eq=False)
class Population:
    """The valid rows of a space, all of them equally likely to be drawn.

    `joint` satisfies every constraint but the `loose` ones, which are tried on each row drawn.
    `size` is the number of valid rows: exact without loose constraints, else from a share of draws.
    """

    parameters: tuple[Parameter, ...]
    parts: tuple[Part, ...]
    joint: Joint
    loose: tuple[Part, ...]
    size: int

    @classmethod
    def of(
        cls,
        parameters: tuple[Parameter, ...],
        parts: tuple[Part, ...],
        joint: Joint,
        loose: tuple[Part, ...],
    ) -> Population:
        """Count the valid rows; raise `InputError` where no draw satisfies the loose constraints.

        Raises `FailingRowError` for one that cannot be evaluated.
        """
        counted = cls(parameters, parts, joint, loose, joint.size)
        return replace(counted, size=counted._estimate()) if loose else counted

    def valid(self, rows: Rows) -> Mask:
        """Say which rows satisfy every constraint; raise `FailingRowError` for one that fails."""
        return satisfying(self.parameters, self.parts, rows)

    def _estimate(self) -> int:
        drawn = found = 0
        for batch in self._batches(np.random.default_rng(0)):
            drawn, found = drawn + BATCH, found + len(batch)
            if found >= BATCH // 2:
                break
        if found:
            return max(1, self.joint.size * found // drawn)
        texts = " and ".join(f"`{part.residual.text}`" for part in self.loose)
        raise InputError(
            f"{texts} left none of {drawn} configs drawn from {self.joint.size}",
            remedy="write it as several constraints over fewer parameters, or leave out values",
        )

    def sample(self, count: int, rng: np.random.Generator) -> Rows:
        """Draw different rows, every set of them with the same probability.

        Fewer than `count` where loose constraints let too few of `MOST_DRAWS` through.
        """
        wanted = count if self.loose else min(count, self.size)
        drawn = no_rows(len(self.parameters))
        for batch in self._batches(rng):
            drawn = np.concatenate([drawn, batch])
            firsts = np.unique(row_keys(drawn), return_index=True)[1]
            drawn = drawn[np.sort(firsts)[:wanted]]
            if len(drawn) == wanted:
                break
        return drawn

    def _batches(self, rng: np.random.Generator) -> Iterator[Rows]:
        for _ in range(MOST_DRAWS // BATCH):
            rows = self.joint.draw(BATCH, rng)[:, : len(self.parameters)]
            yield rows[satisfying(self.parameters, self.loose, rows)] if self.loose else rows


@lru_cache(maxsize=8)
def first_rows(population: Population, count: int, seed: int) -> Rows:
    """Draw the sample that a pool starts with, in lexicographic order."""
    rows = population.sample(count, np.random.default_rng(seed))
    rows = rows[np.argsort(row_keys(rows))]
    rows.flags.writeable = False
    return rows


def satisfying(parameters: Sequence[Parameter], parts: Sequence[Part], rows: Rows) -> Mask:
    """Say which rows no constraint excludes; raise `FailingRowError` where one fails on such."""
    left = np.arange(len(rows))
    failed = []
    for part in parts:
        told = verdicts(part.residual, parameters, rows[left])
        failed.append((part, left[told == Verdict.FAILS]))
        left = left[told != Verdict.BROKEN]
    keep: Mask = np.zeros(len(rows), dtype=bool)
    keep[left] = True
    for part, places in failed:
        allowed = places[keep[places]]
        if len(allowed):
            raise FailingRowError(part.constraint, tuple(rows[allowed[0]].tolist()))
    return keep


# More are sampled. Half a million configs of ten parameters are listed in 0.1 s; they take 25 MB
# per workload, of which there may be ten at once, and a searcher looks at each for a proposal. One
# second would be enough for 3 million, 500 MB for 8 million.
MOST_HELD = 500_000
# What a join may be expected to take: the expectation may be far too high, or too low. None at
# all leaves every constraint to be tried on rows.
_LIMITS = (30 * MOST_JOINED, MOST_JOINED, MOST_JOINED // 10, MOST_JOINED // 100, 0)


@dataclass(frozen=True, slots=True)
class Domains:
    """Parameters as a cache key that keeps `true`, `1` and `1.0` apart."""

    text: str
    parameters: tuple[Parameter, ...] = field(compare=False, repr=False)

    @classmethod
    def of(cls, parameters: tuple[Parameter, ...]) -> Domains:
        """Make the key from names and values."""
        return cls(repr([(p.name, p.values) for p in parameters]), parameters)


@dataclass(frozen=True, slots=True)
class Solutions:
    """Rows of value indices in lexicographic order.

    `emptied_by` is the position of the first constraint that alone leaves no row.
    """

    rows: Rows
    emptied_by: int | None = None


@lru_cache(maxsize=8)
def enumerate_rows(domains: Domains, residuals: tuple[Expression, ...]) -> Solutions | Population:
    """Find every row that satisfies all residual constraints; describe more than `MOST_HELD`.

    Rows are counted before any is listed (tuner/search/joint.py). Only a constraint over too many
    combinations of its own parameters takes no part in that: it is tried on rows of the others.
    Raises `FailingRowError` for a constraint that cannot be evaluated.
    """
    parameters = domains.parameters
    if not all(parameter.values for parameter in parameters):
        return Solutions(no_rows(len(parameters)))
    parts = parts_of(parameters, residuals)
    derivation = Derivation(list(parameters), len(parameters))
    tables = tables_of(derivation, parts)
    joint, loose = _joint(derivation, parts, tables)
    _require_evaluated(parts, derivation, tables, loose)
    if joint.size > MOST_HELD:
        return Population.of(parameters, parts, joint, loose)
    rows = joint.all_rows(MOST_HELD)[:, : len(parameters)]
    rows = rows[satisfying(parameters, loose, rows)]
    rows.flags.writeable = False
    return Solutions(rows, None if len(rows) else _emptied_by(parameters, parts))


def _joint(
    derivation: Derivation, parts: Sequence[Part], tables: dict[Part, Table]
) -> tuple[Joint, tuple[Part, ...]]:
    """Join what can be joined, and say which constraints are left out of it."""
    for limit in _LIMITS:
        kept = joinable(derivation, tables, limit)
        try:
            joint = joint_of_tables(derivation, [table.relations for table in kept.values()])
        except TooManyRowsError:
            continue
        return joint, tuple(part for part in parts if part not in kept)
    raise AssertionError("nothing joined is never too large")


def _require_evaluated(
    parts: Sequence[Part],
    derivation: Derivation,
    tables: dict[Part, Table],
    loose: Sequence[Part],
) -> None:
    """Raise `FailingRowError` where a constraint fails on a row that all others allow."""
    counted = {part: tables[part] for part in parts if part not in loose}
    for part, table in counted.items():
        if not len(table.failing.rows):
            continue
        others = [counted[other].relations for other in counted if other is not part]
        joint = joint_of_tables(derivation, [(table.failing, *table.steps), *others])
        if joint.size:
            # Any of these rows fails, unless the loose constraints exclude it.
            given = derivation.parameters[: derivation.given]
            rows = joint.draw(BATCH, np.random.default_rng(0))[:, : len(given)]
            satisfying(given, parts, np.unique(rows, axis=0))


def _emptied_by(parameters: tuple[Parameter, ...], parts: Sequence[Part]) -> int | None:
    for constraint in sorted({part.constraint for part in parts}):
        own = [part for part in parts if part.constraint == constraint]
        derivation = Derivation(list(parameters), len(parameters))
        tables = tables_of(derivation, own)
        if not _joint(derivation, own, tables)[0].size:
            return constraint
    return None
