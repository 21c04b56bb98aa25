"""Which constants of a source a tuner could change, and to what."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tuner.model.config import RESERVED_NAMES
from tuner.model.expressions import Value
from tuner.source import Edit

MAX_THREADS = 1024
WARP = 32
PROBLEM_SIZE = "it looks like a problem size"
_LARGEST = 65_536
_FIXED = (
    (r"WARP_?(SIZE|THREADS|LANES)?|LANES|THREADS_PER_WARP|N_?LANES", "the hardware's warp"),
    (r".*MASK.*|FULL_WARP|ALL_LANES", "a mask"),
    (r"(.*_)?(EPS|EPSILON|SEED|VERSION|MAGIC|INF|INFINITY|ALIGN|ALIGNMENT|PI)", "no size"),
    (
        r"[A-Z]|(?!.*(TILE|BLOCK|CHUNK)).*(HEAD_?DIM|HEAD_?SIZE|HIDDEN|EXPERTS?|TOP_?K|VOCAB|CHANNELS?|HEADS|HEIGHT|WIDTH"
        r"|BATCH|SEQ_?LEN|GROUP_?SIZE|PAGE_?SIZE|QUANT).*|SIZE_?[MNK]|DIM_?[A-Z]?",
        PROBLEM_SIZE,
    ),
)
_BLOCK = re.compile(
    r"(CTA|BLOCK|TB)(_?(SIZE|DIM|THREADS))?(_?X)?|(N|NUM|MAX)?_?THREADS?(_PER_(BLOCK|CTA))?|TPB"
)
_SWITCH = re.compile(r"(USE|ENABLE|HAS|WITH|DO|IS)_.*|.*_ENABLED?")
_SMALL = re.compile(r".*(VEC|UNROLL|STAGE|ITEMS|PER_THREAD|ILP|ELEMS|DEPTH|PIPELINE).*")


@dataclass(frozen=True, slots=True)
class Choice:
    """One parameter that the draft proposes, with the edits that put it into the template.

    `origin` is the C++ name it comes from, if any; `is_block` says that it counts the threads,
    `axis` that it is one extent of the block in the launch.
    """

    name: str
    values: tuple[Value, ...]
    default: Value
    note: str
    edits: tuple[Edit, ...]
    origin: str | None = None
    is_block: bool = False
    axis: int | None = None


class Names:
    """Hand out names for parameters: snake case, none twice, none that means something else."""

    def __init__(self, taken: tuple[str, ...]) -> None:
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
        """Keep a kernel parameter's name for an axis, unless it means something else."""
        free = f"{name}_size" if name in self._taken else name
        self._taken.add(free)
        return free


def snake_case(name: str) -> str:
    """Write a C++ name in snake case, without the `k` that marks constants."""
    plain = re.sub(r"^k(?=[A-Z])", "", name)
    if not plain.isupper():
        plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", plain)
    plain = re.sub(r"_+", "_", plain).strip("_").lower()
    return plain if plain and not plain[0].isdigit() else f"p{plain}"


def why_fixed(name: str, value: Value) -> str | None:
    """Say why a constant is not for a tuner to change; None where it may be."""
    upper = snake_case(name).upper()
    if isinstance(value, bool):
        return None
    for pattern, reason in _FIXED:
        if re.fullmatch(pattern, upper):
            return reason
    if not isinstance(value, int) or value > _LARGEST:
        return "no size"
    if value < 1 and not is_switch(name, value):
        return "no size"
    return None


def is_switch(name: str, value: Value) -> bool:
    """Whether a constant turns something on or off."""
    switch = _SWITCH.fullmatch(snake_case(name).upper()) is not None
    return isinstance(value, bool) or (value in (0, 1) and switch)


def is_block(name: str, value: Value) -> bool:
    """Whether a constant looks like the number of threads in a block."""
    named = _BLOCK.fullmatch(snake_case(name).upper()) is not None
    whole = isinstance(value, int) and WARP <= value <= MAX_THREADS and value % WARP == 0
    return named and whole


def values_for(name: str, value: Value, *, block: bool) -> tuple[Value, ...]:
    """List the value and sensible neighbours, in ascending order."""
    if isinstance(value, bool):
        return (False, True)
    if not isinstance(value, int):
        return (value,)
    if is_switch(name, value):
        return (0, 1)
    if block:
        return block_values(value)
    small = value <= 16 and (value <= 4 or _SMALL.fullmatch(snake_case(name).upper()))
    if small and value & (value - 1) == 0:
        near = {value // 4, value // 2, value, value * 2, value * 4}
        return tuple(sorted(v for v in near if 1 <= v <= 16))
    return tuple(sorted({max(value // 2, 1), value, value * 2}))


def block_values(threads: int) -> tuple[Value, ...]:
    """List block sizes around one: warp multiples up to what a block may hold."""
    near = {threads // 4, threads // 2, threads, threads * 2, threads * 4}
    if threads & (threads - 1):
        near |= {128, 256, 512}
    fitting = {v for v in near if WARP <= v <= MAX_THREADS and v % WARP == 0}
    return tuple(sorted(fitting | {threads}))
