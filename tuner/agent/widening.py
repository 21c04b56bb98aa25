"""How a range of numbers goes on beyond its ends, and which numbers make sense there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise, product
from math import prod
from pathlib import Path

from tuner.errors import ExpressionError
from tuner.expressions import Expression, Value
from tuner.space import Parameter, SearchSpace
from tuner.space_choices import check_names, search_space
from tuner.space_schema import SpaceModel, validated
from tuner.strict_yaml import parse

WARP = 32
MAX_THREADS = 1024
# of one load on all devices; a template that has wider ones says so in a comment
LOAD_BYTES = 16
# A constraint over more combinations than this is not looked through.
_MOST_TRIED = 20_000
_VECTOR_BYTES = re.compile(r"vec\w*bytes|bytes\w*vec\w*")
_NOTED = re.compile(r"\bat (most|least) (\d+)")


@dataclass(frozen=True, slots=True)
class Space:
    """A search space as text and as what it declares, of a candidate whose files may not be there.

    Read it with `Space.of`.
    """

    text: str
    choices: SearchSpace
    model: SpaceModel

    @classmethod
    def of(cls, text: str) -> Space:
        """Read the text of a search space; raise `SpaceError` for a wrong one."""
        document = parse(text, Path("space.yaml"))
        model = validated(document)
        check_names(document, model)
        return cls(text, search_space(document, model), model)

    def parameter(self, name: str) -> Parameter | None:
        """Find a parameter; None for an unknown name."""
        return {p.name: p for p in self.choices.parameters}.get(name)

    def counts_threads(self, name: str) -> bool:
        """Whether a parameter is the extent of a launch's block, alone in one dimension."""
        return any([str(extent) for extent in one.block] == [name] for one in self.model.launch)


def next_value(values: Sequence[int], end: int, *, threads: bool) -> int | None:
    """Continue an ascending range beyond one of its ends; None where no number above 0 follows.

    A range whose steps are all equal takes one more, any other the next power of two; numbers of
    threads stay multiples of a warp.
    """
    upward = end == values[-1]
    steps = {b - a for a, b in pairwise(values)}
    if len(values) > 2 and len(steps) == 1:
        step = steps.pop()
        following = end + step if upward else end - step
    else:
        following = _power_above(end) if upward else _power_below(end)
    if threads and following % WARP:
        return None
    return following if following > 0 else None


def makes_sense(space: Space, name: str, value: int, comment: str) -> bool:
    """Whether some config can have the value: by its comment, the block's size, each constraint.

    A comment in the space may say "at most 8" or "at least 2". Constraints that ask for the
    device's numbers, or have too many combinations, are left to the search.
    """
    for which, number in _NOTED.findall(comment):
        if value > int(number) if which == "most" else value < int(number):
            return False
    if _VECTOR_BYTES.fullmatch(name) and value > LOAD_BYTES:
        return False
    choices = {p.name: p.values for p in space.choices.parameters} | {name: (value,)}
    sizes = space.model.workloads.tuned
    if any(
        name in constraint.names and not _can_hold([constraint], choices, sizes)
        for constraint in space.choices.constraints
    ):
        return False
    return all(_can_launch(launch.block, choices, sizes) for launch in space.model.launch)


def _power_above(number: int) -> int:
    return 1 << number.bit_length()


def _power_below(number: int) -> int:
    return 1 << (number - 1).bit_length() - 1 if number > 1 else 0


def _can_hold(
    constraints: Sequence[Expression],
    choices: Mapping[str, Sequence[Value]],
    sizes: Iterable[Mapping[str, int]],
) -> bool:
    names = {name for constraint in constraints for name in constraint.names}
    own = [name for name in choices if name in names]
    for axes in sizes:
        if names - choices.keys() - axes.keys():
            return True
        for values in islice(product(*(choices[name] for name in own)), _MOST_TRIED):
            config = {**axes, **dict(zip(own, values, strict=True))}
            if all(_true(constraint, config) for constraint in constraints):
                return True
    return prod(len(choices[name]) for name in own) > _MOST_TRIED


def _true(constraint: Expression, names: Mapping[str, Value]) -> bool:
    try:
        return bool(constraint.evaluate(names))
    except ExpressionError:
        return False


def _can_launch(
    block: Sequence[object],
    choices: Mapping[str, Sequence[Value]],
    sizes: Iterable[Mapping[str, int]],
) -> bool:
    threads = " * ".join(f"({extent})" for extent in block)
    return _can_hold([Expression.parse(f"0 < {threads} <= {MAX_THREADS}")], choices, sizes)
