"""Find which numbers of a problem are axes, and sizes at the edges of what it takes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise, product
from math import prod

Sizes = Mapping[str, int]
# The extents of all arrays, in one order; None for sizes that the problem does not take.
Extents = Callable[[Sizes], tuple[int, ...] | None]
# How many bytes all arrays have.
Footprint = Callable[[Sizes], int]

# How an axis is changed: doubled and tripled where it has to be divisible, and by little.
_CHANGES = ((2, 0), (3, 0), (1, 1), (1, 2), (1, 3), (1, 5))
_MOST_STEP = 16
_MOST_SHIFT = 64
# Sizes at the edges: none divides another, or divides a block; then those that some kernels need.
_SMALL = (5, 7, 11, 13, 9, 17, 19, 33, 8, 16, 32, 64, 128, 256)
# Sizes for which each thread of the largest block, or of a usual one, repeats its loops; the last
# three are for those that have to be divisible, such as channels by groups.
_LONG = (1283, 517, 259, 2352, 1056, 1040)
# What vectors and tiles divide, and more than one of them: at odd sizes such code does not run.
_EVEN = (4096, 2048, 1024, 256, 64)
# What vectors divide, of 16 bytes and any dtype, and no tile: both run, vectors and a tile's rest.
_VECTORS = (1296, 1008, 528, 272, 144, 80, 48, 20, 12, 4)
# To what the axes beside such a one grow: enough for a pipeline's ring to wrap, and little enough
# for a CPU, which multiplies as often as there are combinations of all axes, as far as is known.
_OTHERS = (2051, 1027, 803, 517, 259, 131, 67, 35, 19)
_MEDIUM_BYTES, _MEDIUM_WORK = 8 << 20, 4 << 20
# What a CPU verifies (`tune gate`): of sizes beyond it nobody without a GPU learns anything.
_MOST_BYTES = 16 << 20
_FEWEST = (3, 2, 1)
# So many workloads have one long axis, the last ones.
MOST_LONG = 2


@dataclass(frozen=True, slots=True)
class Axes:
    """The numbers that are axes, each extent over them, and the numbers that change with one."""

    names: Sequence[str]
    extents: Sequence[str]
    follows: Mapping[str, str] = field(default_factory=dict)

    def with_followers(self, sizes: Sizes) -> Sizes:
        return {**sizes, **{name: sizes[axis] for name, axis in self.follows.items()}}


def find_axes(
    names: Sequence[str], inner: Mapping[str, bool], base: Sizes, extents: Extents
) -> Axes:
    """Find axes and extents; where there are none, tie numbers that are equal at `base`.

    What has to be equal, as where two inputs are broadcast, changes together.
    """
    axes = _find_untied(names, inner, base, extents)
    if axes.names:
        return axes
    firsts = {base[name]: name for name in reversed(names)}
    tied = Axes((), (), {n: firsts[base[n]] for n in names if firsts[base[n]] != n})

    def tied_extents(sizes: Sizes) -> tuple[int, ...] | None:
        return extents(tied.with_followers(sizes))

    axes = _find_untied([n for n in names if n not in tied.follows], inner, base, tied_extents)
    follows = {name: axis for name, axis in tied.follows.items() if axis in axes.names}
    return Axes(axes.names, axes.extents, follows)


def _find_untied(
    names: Sequence[str], inner: Mapping[str, bool], base: Sizes, extents: Extents
) -> Axes:
    """Find axes and extents near small sizes: a large problem is run as seldom as can be."""
    near = small_sizes([name for name in names if not inner[name]], base, extents, 0)
    axes, texts = shapes_over(names, base, extents, near) if near else ([], [])
    if not axes:
        axes, texts = shapes_over(names, base, extents, base)
    return Axes([name for name in base if name in axes], texts)


def shapes_over(
    names: Sequence[str], base: Sizes, extents: Extents, near: Sizes
) -> tuple[list[str], list[str]]:
    """Find the axes among `names`, and each extent as an expression over them.

    Sizes are changed around `near`, and what is found holds at `base` as well; nothing is found
    where that cannot be. A name whose sizes the problem does not take, or that an extent depends on
    in another way than by a line, a division, a product or a sum, is no axis: of several, the later
    in `names`.
    """
    before = extents(near)
    doubled = {name: extents({**near, name: 2 * near[name]}) for name in names}
    axes = [n for n in names if doubled[n] is not None and before not in (None, doubled[n])]
    while True:
        samples = [*_samples(axes, near, extents), *_samples([], base, extents)]
        found = [_expression(place, axes, samples) for place in range(len(samples[0][1]))]
        expressions = [text for text in found if text is not None]
        # what is nowhere an extent of its own is a setting, such as a kernel's width
        settings = [axis for axis in axes if axis not in expressions]
        if len(expressions) == len(found) and not settings:
            return axes, expressions
        if len(expressions) < len(found):
            settings = [axis for axis in axes if _depends(found.index(None), axis, samples)][-1:]
            if not settings:
                return [], []
        axes = [axis for axis in axes if axis not in settings]


Sample = tuple[Sizes, tuple[int, ...]]


def _samples(axes: Sequence[str], base: Sizes, extents: Extents) -> Iterator[Sample]:
    first = extents(base)
    assert first is not None
    yield base, first
    changed = [{axis: by * base[axis] + more} for axis, (by, more) in product(axes, _CHANGES)]
    changed += [{one: 2 * base[one], other: 3 * base[other]} for one, other in pairwise(axes)]
    for sizes in ({**base, **change} for change in changed):
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
            return _add_shift(f"{step} * {axis}" if step > 1 else axis, shift)
    for step in range(2, _MOST_STEP + 1):
        for shift in sorted(range(-_MOST_SHIFT, _MOST_SHIFT + 1), key=abs):
            if all((n + shift) // step == found for n, found in values):
                inner = _add_shift(axis, shift)
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
        return _add_shift(" + ".join(axes), shift)
    return None


def _add_shift(text: str, shift: int) -> str:
    return text if shift == 0 else f"{text} {'+' if shift > 0 else '-'} {abs(shift)}"


def small_sizes(axes: Sequence[str], base: Sizes, extents: Extents, start: int) -> Sizes | None:
    """Find sizes at the edge that the problem takes: small, and other ones for each axis.

    `start` chooses which; None where the problem takes none but larger ones. Of several numbers it
    leaves several, where it can: a filter as wide as its image shows nothing of a kernel's indices.
    """
    sizes, left, whole = dict(base), tuple(axes), extents(base)
    turns = {
        axis: [*(_SMALL[(start + place + k) % 8] for k in range(8)), *_SMALL[8:]]
        for place, axis in enumerate(axes)
    }

    def leaves_several(found: tuple[int, ...]) -> bool:
        return all(n > 1 or of == 1 for n, of in zip(found, whole or found, strict=True))

    # All at once, or all but one that has to stay: while one of them is large, a recurrence over
    # many steps takes seconds.
    smallest = {axis: next((n for n in turns[axis] if n < base[axis]), base[axis]) for axis in axes}
    for kept in ((), *((axis,) for axis in reversed(axes))):
        together = {**base, **{a: n for a, n in smallest.items() if a not in kept}}
        found = extents(together)
        if found is not None and min(found) > 0 and leaves_several(found):
            sizes, left = together, kept
            break
    for axis in left:
        fewest = None
        for size in turns[axis]:
            found = extents({**sizes, axis: size}) if size < base[axis] else None
            if found is None or min(found) <= 0:
                continue
            fewest = fewest or size
            if leaves_several(found):
                sizes[axis] = size
                break
        else:
            sizes[axis] = fewest or sizes[axis]
    return sizes if sizes != dict(base) else None


def shrink_sizes(
    sizes: Sizes, axes: Sequence[str], extents: Extents, footprint: Footprint
) -> Sizes:
    """Cut small sizes to fewer still while a CPU has no room for them, as beside large planes."""
    for few in _FEWEST:
        if footprint(sizes) <= _MOST_BYTES:
            break
        cut = {**sizes, **{axis: min(few, sizes[axis]) for axis in axes}}
        taken = extents(cut)
        sizes = cut if taken and min(taken) > 0 else sizes
    return sizes


def medium_sizes(
    axes: Sequence[str],
    contiguous: Collection[str],
    base: Sizes,
    extents: Extents,
    small: Sizes,
    footprint: Footprint,
) -> Sizes:
    """Find sizes of a medium problem that vectors divide along its `contiguous` axes.

    What else there is grows from the small sizes. So code for vectors runs, as at odd sizes only
    the code beside it does, and a CPU has room for it.
    """
    sizes = dict(small)
    for axis in sorted(axes, key=lambda axis: axis not in contiguous):
        for size in _VECTORS if axis in contiguous else _OTHERS:
            tried = {**sizes, axis: size}
            usual = size < base[axis] and size not in [n for a, n in sizes.items() if a in axes]
            work = prod(tried[axis] for axis in axes)
            fits = work <= _MEDIUM_WORK and footprint(tried) <= _MEDIUM_BYTES
            if usual and fits and extents(tried) is not None:
                sizes = tried
                break
    return sizes


def long_sizes(
    axes: Sequence[str], base: Sizes, extents: Extents, small: Sizes, footprint: Footprint
) -> Iterator[Sizes]:
    """Find sizes of which one is long: a loop that runs once at small ones repeats there.

    Before them comes an even one, of the first of `axes` that takes it.
    """

    def first(axis: str, sizes: Sequence[int]) -> Iterator[Sizes]:
        cases = ({**small, axis: size} for size in sizes if size < base[axis])
        fitting = (case for case in cases if footprint(case) <= _MOST_BYTES)
        return islice((case for case in fitting if extents(case) is not None), 1)

    yield from islice(chain.from_iterable(first(axis, _EVEN) for axis in axes), 1)
    for axis in axes:
        yield from first(axis, _LONG)
