"""The parameters that a draft proposes, their names and the values around a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.extensions.draft.meaning import MAX_THREADS, WARP, is_switch, says, snake_case
from tuner.model.config import RESERVED_NAMES
from tuner.model.expressions import Value
from tuner.source.host import Edit


@dataclass(frozen=True, slots=True)
class TunableConstant:
    """One parameter that the draft proposes, with the edits that put it into the template.

    `origin` is its C++ name; `is_block` says that it counts the threads, `axis` which extent it is.
    One that `divides_grid` gives a block the work of so many; `constraints` hold for its values.
    `is_work`: it is what a thread does at once, which the source does not say.
    """

    name: str
    values: tuple[Value, ...]
    default: Value
    note: str
    edits: tuple[Edit, ...]
    origin: str | None = None
    is_block: bool = False
    axis: int | None = None
    divides_grid: bool = False
    constraints: tuple[str, ...] = ()
    is_work: bool = False


@dataclass(frozen=True, slots=True)
class Proposals:
    """The proposed parameters, the numbers left alone and why, and what else changes in the source.

    `instance` lists the template arguments that a launch of the template states, the same for
    every config; None where they are unknown.
    """

    choices: tuple[TunableConstant, ...]
    left: tuple[str, ...]
    edits: tuple[Edit, ...]
    instance: tuple[str, ...] | None


class Names:
    """Hand out names for parameters: snake case, none twice, none that means something else."""

    def __init__(self, taken: Sequence[str] = ()) -> None:
        self._taken = {*taken, *RESERVED_NAMES}

    def of(self, name: str) -> str:
        """Turn `kBlockSize` or `BLOCK_SIZE` into a free `block_size`."""
        base = snake_case(name)
        base = f"{base}_value" if base in RESERVED_NAMES else base
        free, count = base, 2
        while free in self._taken:
            free, count = f"{base}_{count}", count + 1
        self._taken.add(free)
        return free

    def axis(self, name: str) -> str:
        free = f"{name}_size" if name in self._taken else name
        self._taken.add(free)
        return free


def doubled_between(least: int, most: int) -> tuple[int, ...]:
    doubled = (least << step for step in range(MAX_THREADS.bit_length()))
    return tuple(sorted({*(value for value in doubled if value <= most), most}))


def hole(expression: str) -> str:
    return f"@{{ {expression} }}@"


def warp_threads(choice: TunableConstant) -> int:
    """Give the threads of the warps that a parameter counts, by its name; 0 for any other."""
    is_count = choice.origin is not None and "warps" in choice.name
    return int(choice.default) * WARP if is_count and isinstance(choice.default, int) else 0


def values_for(name: str, value: int, *, block: bool) -> tuple[Value, ...]:
    # the value and sensible neighbours, in ascending order
    if is_switch(name, value):
        return (False, True) if isinstance(value, bool) else (0, 1)
    if block:
        return block_values(value)
    if "LANES" in name.upper() and value & (value - 1) == 0:
        return tuple(lanes for lanes in (1, 2, 4, 8, 16, 32) if value // 4 <= lanes <= 4 * value)
    small = value <= 16 and (value <= 4 or says(name, "per_thread"))
    if small and value & (value - 1) == 0:
        near = {value // 4, value // 2, value, value * 2, value * 4}
        return tuple(sorted(v for v in near if 1 <= v <= 16))
    return tuple(sorted({max(value // 2, 1), value, value * 2}))


def block_values(threads: int) -> tuple[Value, ...]:
    near = {threads // 4, threads // 2, threads, threads * 2, threads * 4}
    if threads & (threads - 1):
        near |= {128, 256, 512}
    fitting = {v for v in near if WARP <= v <= MAX_THREADS and v % WARP == 0}
    return tuple(sorted(fitting | {threads}))
