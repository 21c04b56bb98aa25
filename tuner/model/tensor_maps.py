"""Tensor maps: the boxes in which a kernel copies an array, and what the hardware takes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tuner.model.expressions import Expression, Value

RANKS = (2, 3)
# CUtensorMapDataType of cuda.h; of what it lacks the unsigned type of its size, to copy bits.
DATA_TYPES: dict[str, int] = {
    **dict.fromkeys(("bool", "int8", "uint8", "float8_e4m3", "float8_e5m2"), 0),
    **dict.fromkeys(("int16", "uint16"), 1),
    **{"uint32": 2, "int32": 3, "uint64": 4, "int64": 5},
    **{"float16": 6, "float32": 7, "float64": 8, "bfloat16": 9},
}
# Of cuTensorMapEncodeTiled, for maps that are not interleaved.
MOST_BOX = 256
MOST_SIZE = 2**32
MOST_STRIDE_BYTES = 2**40
UNIT_BYTES = 16
SWIZZLES = (0, 32, 64, 128)
L2_PROMOTIONS = (0, 64, 128, 256)
L2_PROMOTION = 128


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A resolved map; its sizes stand in the array's order, the outermost first.

    `strides` are the bytes from one element to the next along each dimension but the last.
    """

    of: str
    dtype: str
    element_bytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    l2_promotion: int = L2_PROMOTION

    @property
    def codes(self) -> tuple[int, int, int]:
        """Data type, swizzle and L2 promotion as cuda.h numbers them."""
        swizzle, promotion = SWIZZLES.index(self.swizzle), L2_PROMOTIONS.index(self.l2_promotion)
        return DATA_TYPES[self.dtype], swizzle, promotion


@dataclass(frozen=True, slots=True)
class TensorMapSpec:
    """A map as the file states it: expressions over axes and parameters, outermost first.

    `own_shape` is the array's; `strides`, in elements and without the last, are those of a
    contiguous array where they are empty.
    """

    of: str
    dtype: str
    element_bytes: int
    own_shape: tuple[Expression, ...]
    shape: tuple[Expression, ...]
    box: tuple[Expression, ...]
    strides: tuple[Expression, ...] = ()
    swizzle: Expression | None = None
    l2_promotion: Expression | None = None
    line: int | None = None

    def expressions(self) -> tuple[Expression, ...]:
        optional = (
            expression for expression in (self.swizzle, self.l2_promotion) if expression is not None
        )
        return (*self.shape, *self.strides, *self.box, *optional)

    def resolve(self, names: Mapping[str, Value]) -> TensorMap:
        """Evaluate every expression."""
        shape = [expression.integer(names) for expression in self.shape]
        strides = [expression.integer(names) for expression in self.strides] or contiguous(shape)
        return TensorMap(
            of=self.of,
            dtype=self.dtype,
            element_bytes=self.element_bytes,
            shape=tuple(shape),
            strides=tuple(self.element_bytes * stride for stride in strides),
            box=tuple(expression.integer(names) for expression in self.box),
            swizzle=0 if self.swizzle is None else self.swizzle.integer(names),
            l2_promotion=(
                L2_PROMOTION if self.l2_promotion is None else self.l2_promotion.integer(names)
            ),
        )

    def refusal(self, names: Mapping[str, Value]) -> tuple[str, str] | None:
        """Say what the hardware does not take of the map, and what it does; None where it may.

        What needs other names than these is left open.
        """
        return next(self._refusals(names), None)

    def _refusals(self, names: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
        def known(expressions: Sequence[Expression | None]) -> list[int | None]:
            return [
                expression.integer(names)
                if expression and expression.names <= names.keys()
                else None
                for expression in expressions
            ]

        what = f"the map of `{self.of}`"
        shape = known(self.shape)
        for extent in shape:
            if extent is not None and not 1 <= extent <= MOST_SIZE:
                yield f"{what} has a dimension of {extent:,}", f"from 1 to {MOST_SIZE:,}"
        whole = [extent for extent in shape if extent is not None]
        strides = known(self.strides)
        if not strides and len(whole) == len(shape):
            strides = [*contiguous(whole)]
        for stride in strides:
            bytes_apart = self.element_bytes * (stride or 0)
            fits = bytes_apart % UNIT_BYTES == 0 and 0 < bytes_apart < MOST_STRIDE_BYTES
            if stride is not None and not fits:
                yield (
                    f"{what} has a stride of {bytes_apart:,} bytes",
                    f"strides are multiples of {UNIT_BYTES} bytes, and positive: pad the array, or "
                    "leave such sizes to another launch or to a constraint",
                )
        box, (swizzle,) = known(self.box), known([self.swizzle])
        for extent in box:
            if extent is not None and not 1 <= extent <= MOST_BOX:
                yield f"{what} has a box of {extent} in one dimension", f"from 1 to {MOST_BOX}"
        if swizzle is not None and swizzle not in SWIZZLES:
            listed = ", ".join(map(str, SWIZZLES))
            yield f"{what} has a `swizzle` of {swizzle}", f"one of {listed} bytes; 0 for none"
        wide = self.element_bytes * (box[-1] or 0)
        if wide % UNIT_BYTES:
            unit = UNIT_BYTES // self.element_bytes
            remedy = f"of {self.dtype} the last size is a multiple of {unit}"
            yield f"the rows of a box in {what} have {wide} bytes", remedy
        if swizzle and wide > swizzle:
            most = swizzle // self.element_bytes
            yield (
                f"the rows of a box in {what} have {wide} bytes, and its swizzle {swizzle}",
                f"of {self.dtype} the last size is at most {most}: copy several boxes",
            )
        (promotion,) = known([self.l2_promotion])
        if promotion is not None and promotion not in L2_PROMOTIONS:
            listed = ", ".join(map(str, L2_PROMOTIONS))
            yield f"{what} has an `l2_promotion` of {promotion}", f"one of {listed} bytes"
        own = [one for one in known(self.own_shape) if one is not None]
        steps = [one for one in strides if one is not None]
        if len(own) == len(self.own_shape) and len(whole) == len(steps) + 1 == len(shape):
            reach = 1 + sum((n - 1) * step for n, step in zip(whole, [*steps, 1], strict=True))
            if reach > prod(own):
                yield (
                    f"{what} reaches over {reach:,} elements, and there are {prod(own):,}",
                    "its `shape` and `strides` are another view of the same memory",
                )


def contiguous(shape: Sequence[int]) -> list[int]:
    """Return the strides, in elements, of all dimensions but the last of a contiguous array."""
    return [prod(shape[place:]) for place in range(1, len(shape))]
