"""A launch for a kernel that nothing launches, from how it uses its blocks: a guess."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tuner.extensions.draft.guesses import NAMES
from tuner.extensions.draft.pointers import accesses_of
from tuner.source.accesses import bare, find_assignments
from tuner.source.facts import IDENTIFIER, KernelFunction, LaunchSite, SourceFile
from tuner.source.syntax import number

BLOCK = re.compile(NAMES["numbers"]["block"])
# stands for what only a person can say: no expression
UNKNOWN = "?"
# one that nothing defines: a usual number of threads takes its place
_THREADS = "block_size"
_ROW = ("threads_x", "threads_y")
_CUBE = ("8", "8", "4")
_BUILTIN = re.compile(r"\b(?:(?:block|grid)Dim|(?:block|thread)Idx)\s*\.\s*[xyz]\b")
_USED = r"\b{}\s*\.\s*{}\b"
# a padded column is no thread
_TILE = re.compile(r"\b__shared__[^;=]*?\w+\s*\[\s*(\w+)\s*\]\s*\[\s*(\w+)\s*(?:\+\s*\d+\s*)?\]")
_DYNAMIC = re.compile(r"\bextern\b[^;{}]*\b__shared__\b|\b__shared__\b[^;{}=\[]*\bextern\b")
_STEP = re.compile(r"=\s*(?:\(\w+\)\s*)?threadIdx\s*\.\s*x\s*;[^;{}]*;\s*\w+\s*\+=\s*(\w+)\s*\)")


def guessed_site(
    source: SourceFile, kernel: KernelFunction, nowhere: LaunchSite, types: Mapping[str, str]
) -> LaunchSite:
    """Fill in grid and block of `nowhere` as far as the kernel's code tells them.

    It takes as many blocks as what they count is compared with. An extent that nothing bounds is a
    name, so that it becomes an axis, where a block is one row of it, else `UNKNOWN`.
    """
    reading = _UnlaunchedReading(source, kernel, types)
    block = reading.block()
    grid = tuple(reading.blocks(place, block) for place in range(reading.count("blockIdx") or 1))
    return replace(
        nowhere,
        grid=grid,
        block=block,
        shared=UNKNOWN if _DYNAMIC.search(reading.text) else nowhere.shared,
        arguments=tuple(parameter.name for parameter in kernel.parameters),
        definitions=reading.definitions,
    )


class _UnlaunchedReading:
    def __init__(
        self, source: SourceFile, kernel: KernelFunction, types: Mapping[str, str]
    ) -> None:
        masked, self.kernel = source.masked, kernel
        self.body = masked[slice(*kernel.body)]
        self.text = "\n".join(masked[start:end] for start, end in source.reachable([kernel]))
        self.constants = {constant.name for constant in source.constants}
        self.constants |= {parameter.name for parameter in kernel.template if not parameter.is_type}
        reaches = accesses_of(source, kernel, types)
        self.limits = {bare(bound.what): bound.limit for reach in reaches for bound in reach.bounds}
        known = find_assignments(masked, (kernel.body,), kernel.body[1])
        own = {n: value.text for n, value in known.items() if n not in self.constants}
        self.definitions = {n: text for n, text in own.items() if not _BUILTIN.search(text)}

    def uses(self, what: str, place: int) -> bool:
        return re.search(_USED.format(what, "xyz"[place]), self.text) is not None

    def count(self, what: str) -> int:
        return max((place + 1 for place in range(3) if self.uses(what, place)), default=0)

    def block(self) -> tuple[str, ...]:
        extents = max(self.count("threadIdx"), self.count("blockDim"), 1)
        named = [self.extent(axis) for axis in "xyz"[:extents]]
        if any(named):
            # beside one that the code names no usual one is likely
            return tuple(name or UNKNOWN for name in named)
        tile = _TILE.search(self.body)
        if extents == 1:
            return (self.threads(),)
        known = self.constants | {n for n in re.findall(r"\d+", self.body) if int(n) <= 33}
        if extents == 2 and tile is not None and {tile[1], tile[2]} <= known:
            rows, columns = number(tile[1]), number(tile[2])
            is_padded = rows is not None and columns == rows + 1
            return (tile[1] if is_padded else tile[2], tile[1])
        return _ROW if extents == 2 else _CUBE

    def extent(self, axis: str) -> str:
        # `block_size_x`, `BLOCK_Y`, by which the kernel goes on from block to block
        own = re.compile(rf"(?:BLOCK|CTA|THREADS?)_?(?:SIZE|DIM)?_?{axis}", re.IGNORECASE)
        used = rf"{_USED.format('blockIdx', axis)}\s*\*\s*[\w* ]*"
        found = {name for name in self.constants if own.fullmatch(re.sub(r"^k(?=[A-Z])", "", name))}
        steps = (name for name in sorted(found) if re.search(rf"{used}\b{name}\b", self.text))
        return next(steps, "")

    def threads(self) -> str:
        if not self.uses("threadIdx", 0) and not self.uses("blockDim", 0):
            return "1"
        bounds = self.kernel.bounds
        stated = bounds.max_threads if bounds is not None else ""
        if stated in self.constants or number(stated) is not None:
            return stated
        own = self.factor(0)
        if own in self.constants and not self.uses("blockDim", 0):
            return own
        used = self.constants & {*IDENTIFIER.findall(self.text)}
        named = {name for name in used if BLOCK.fullmatch(re.sub(r"^k(?=[A-Z])", "", name).upper())}
        if len(named) == 1:
            return named.pop()
        steps = {*_STEP.findall(self.body)} & {*self.constants}
        return steps.pop() if len(steps) == 1 else _THREADS

    def counters(self, place: int) -> Iterator[tuple[str, str]]:
        # what is counted with the blocks, in variables and what is computed from them
        used = _USED.format("blockIdx", "xyz"[place])
        found = re.findall(rf"(\w+)\s*=(?!=)\s*([^;=]*?{used}[^;]*?)\s*;", self.body)
        yield from found
        for name, _ in found:
            further = rf"(\w+)\s*=(?!=)\s*([^;=?]*\b{name}\b[^;=?]*);"
            for other, text in re.findall(further, self.body):
                if "+" in text and "[" not in text:
                    yield other, text

    def factor(self, place: int) -> str:
        axis = "xyz"[place]
        used = _USED.format("blockIdx", axis)
        product = rf"{used}\s*\*\s*([\w.]+(?:\s*\*\s*\w+)*)|([\w.]+)\s*\*\s*{used}"
        found = {match[1] or match[2] for match in re.finditer(product, self.body)}
        factor = found.pop() if len(found) == 1 else ""
        return f"({factor})" if "*" in factor else factor

    def blocks(self, place: int, block: tuple[str, ...]) -> str:
        if not self.uses("blockIdx", place):
            return "1"
        limit = self.limit(place)
        factor = self.factor(place)
        if factor == f"blockDim.{'xyz'[place]}":
            factor = block[place] if place < len(block) else "1"
        if limit is not None:
            return f"({limit} + {factor} - 1) / {factor}" if factor else limit
        used = _USED.format("blockIdx", "xyz"[place])
        if re.search(rf"{used}\s*[*/%]|[*/%]\s*(?:\(\w+\)\s*)?{used}", self.text):
            return UNKNOWN
        plain = rf"(?:static_cast<\w+>|\(\w+\))?\s*\(?{used}\)?"
        rows = (name for name, text in self.counters(place) if re.fullmatch(plain, text))
        return f"{next(rows, 'xyz'[place] + '_block')}_count"

    def limit(self, place: int) -> str | None:
        used = _USED.format("blockIdx", "xyz"[place])
        inline = [what for what in self.limits if re.search(used, what)]
        for name in [*(name for name, _ in self.counters(place)), *inline]:
            limit = self.limits.get(name)
            names = IDENTIFIER.findall(limit or "")
            parameters = {parameter.name for parameter in self.kernel.parameters}
            if limit and {*names} <= parameters | self.constants | self.definitions.keys():
                return f"({limit})" if len(names) > 1 else limit
        return None
