"""Honest kernels of unusual form, each of which has to pass; see tests/adversarial/kernels."""

from __future__ import annotations

from dataclasses import dataclass

from operators import (
    ACCUMULATE,
    COLUMN_ENERGY,
    COUNTED_ENERGY,
    ENERGY,
    HISTOGRAM,
    LOGARITHM,
    QUANTIZE,
    SCALE,
    STAGED_ENERGY,
    TO_FP8,
    WEIGHTED,
    Kernel,
    Operator,
    launch,
)

from tuner.model.kernel import Launch


@dataclass(frozen=True, slots=True)
class Unusual(Kernel):
    """One honest kernel and how it is launched."""

    name: str
    operator: Operator
    launches: tuple[Launch, ...] = ()


_COLUMNS = (launch(1, 64, kernel="clear"), launch(30, 64, kernel="add"))
_COUNTS = (launch(1, 64, kernel="clear"), launch(5, 64, kernel="count"))
_CLEARED = launch(1, 32, kernel="clear")
UNUSUAL = (
    Unusual("adds floats atomically and says so", COLUMN_ENERGY, _COLUMNS),
    Unusual("takes turns by a lock", COLUMN_ENERGY, _COLUMNS),
    Unusual("adds integers atomically, in shared memory too", HISTOGRAM, _COUNTS),
    Unusual("works in place", ACCUMULATE),
    Unusual("is two launches with scratch between them", STAGED_ENERGY),
    Unusual(
        "lets the last block of a row finish it", STAGED_ENERGY, (_CLEARED, launch(24 * 8, 32))
    ),
    Unusual("counts in scratch that stays zero", COUNTED_ENERGY),
    Unusual("loads its constant weights before it waits", WEIGHTED),
    Unusual("takes its rows from a queue", STAGED_ENERGY, (_CLEARED, launch(3, 32))),
    Unusual("writes codes of eight bits that may differ by one", QUANTIZE),
    Unusual("saturates eight-bit floats", TO_FP8),
    Unusual("gives NaN and infinity where the operator does", LOGARITHM),
    Unusual("ends most of its threads early", SCALE, (launch(6, 512),)),
    Unusual("loops over its grid with one block", SCALE, (launch(1, 96),)),
    Unusual("has three dimensions", SCALE, (Launch("run", (2, 2, 3), (4, 5, 7)),)),
    Unusual("works with one warp for another", SCALE, (launch(4, 96),)),
    Unusual("reduces in dynamic shared memory", ENERGY, (launch(24, 64, shared_bytes=256),)),
    Unusual("shuffles among a part of a warp", ENERGY),
    # It saves no time as long as nothing is left for it.
    Unusual("leaves a result that is there already", SCALE),
)
