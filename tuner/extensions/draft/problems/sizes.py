"""Which numbers of a problem are axes: shapes as expressions, found by changing one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from math import prod

Sizes = Mapping[str, int]
# The extents of all arrays, in one order; None for sizes that the problem does not take.
Extents = Callable[[Sizes], tuple[int, ...] | None]

# How an axis is changed: doubled and tripled where it has to be divisible, and by little.
_CHANGES: tuple[Callable[[int], int], ...] = (
    lambda n: 2 * n,
    lambda n: 3 * n,
    lambda n: n + 1,
    lambda n: n + 2,
    lambda n: n + 3,
    lambda n: n + 5,
)
_MOST_STEP = 16
_MOST_SHIFT = 64
# Sizes at the edges: none divides another, or divides a block; then those that some kernels need.
_SMALL = (5, 7, 11, 13, 9, 17, 19, 33, 8, 16, 32, 64, 128, 256)


def shapes_over(names: Sequence[str], base: Sizes, extents: Extents) -> tuple[list[str], list[str]]:
    """Find the axes among `names`, and each extent as an expression over them.

    A name whose sizes the problem does not take, or that an extent depends on in another way than
    by a line, a division, a product or a sum, is no axis: of several, the later in `names`.
    """
    axes = [name for name in names if _moves(name, base, extents)]
    while True:
        samples = [*_samples(axes, base, extents)]
        found = [_expression(place, axes, samples) for place in range(len(samples[0][1]))]
        expressions = [text for text in found if text is not None]
        # what is nowhere an extent of its own is a setting, such as a kernel's width
        settings = [axis for axis in axes if axis not in expressions]
        if len(expressions) == len(found) and not settings:
            return axes, expressions
        if len(expressions) < len(found):
            settings = [axis for axis in axes if _depends(found.index(None), axis, samples)][-1:]
        axes = [axis for axis in axes if axis not in settings]


def _moves(name: str, base: Sizes, extents: Extents) -> bool:
    before = extents(base)
    after = extents({**base, name: 2 * base[name]})
    return after is not None and before is not None and after != before


Sample = tuple[Sizes, tuple[int, ...]]


def _samples(axes: Sequence[str], base: Sizes, extents: Extents) -> Iterator[Sample]:
    first = extents(base)
    assert first is not None
    yield base, first
    for axis, change in product(axes, _CHANGES):
        sizes = {**base, axis: change(base[axis])}
        found = extents(sizes)
        if found is not None and len(found) == len(first):
            yield sizes, found
    for one, other in pairwise(axes):
        sizes = {**base, one: 2 * base[one], other: 3 * base[other]}
        found = extents(sizes)
        if found is not None and len(found) == len(first):
            yield sizes, found


def _depends(place: int, axis: str, samples: Sequence[Sample]) -> bool:
    (base, first), *others = samples
    return any(
        found[place] != first[place]
        for sizes, found in others
        if sizes[axis] != base[axis] and all(sizes[n] == base[n] for n in base if n != axis)
    )


def _expression(place: int, axes: Sequence[str], samples: Sequence[Sample]) -> str | None:
    of = [axis for axis in axes if _depends(place, axis, samples)]
    points = [(sizes, found[place]) for sizes, found in samples]
    if not of:
        value = points[0][1]
        return str(value) if all(found == value for _, found in points) else None
    return _of_one(of[0], points) if len(of) == 1 else _of_several(of, points)


Points = Sequence[tuple[Sizes, int]]


def _of_one(axis: str, points: Points) -> str | None:
    base, first = points[0]
    values = [(sizes[axis], found) for sizes, found in points]
    for step in range(1, _MOST_STEP + 1):
        shift = first - step * base[axis]
        if all(step * n + shift == found for n, found in values):
            return _shifted(f"{step} * {axis}" if step > 1 else axis, shift)
    for step in range(2, _MOST_STEP + 1):
        for shift in sorted(range(-_MOST_SHIFT, _MOST_SHIFT + 1), key=abs):
            if all((n + shift) // step == found for n, found in values):
                inner = _shifted(axis, shift)
                return f"{axis} // {step}" if inner == axis else f"({inner}) // {step}"
    return None


def _of_several(axes: Sequence[str], points: Points) -> str | None:
    base, first = points[0]
    factor, rest = divmod(first, prod(base[axis] for axis in axes))
    if rest == 0 and all(
        factor * prod(sizes[axis] for axis in axes) == found for sizes, found in points
    ):
        return " * ".join([*axes, *([str(factor)] if factor > 1 else [])])
    shift = first - sum(base[axis] for axis in axes)
    if all(sum(sizes[axis] for axis in axes) + shift == found for sizes, found in points):
        return _shifted(" + ".join(axes), shift)
    return None


def _shifted(text: str, shift: int) -> str:
    return text if shift == 0 else f"{text} {'+' if shift > 0 else '-'} {abs(shift)}"


def small_sizes(axes: Sequence[str], base: Sizes, extents: Extents, start: int) -> Sizes | None:
    """Find sizes at the edge that the problem takes: small, and other ones for each axis.

    `start` chooses which; None where the problem takes none but larger ones.
    """
    sizes = dict(base)
    for place, axis in enumerate(axes):
        turned = [_SMALL[(start + place + k) % 8] for k in range(8)]
        for size in [*turned, *_SMALL[8:]]:
            found = extents({**sizes, axis: size}) if size < base[axis] else None
            if found is not None and min(found) > 0:
                sizes[axis] = size
                break
    return sizes if sizes != dict(base) else None
