"""What an index says of an array: the dimensions that it runs over, and how far apart they are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tuner.extensions.draft.host_path import plain
from tuner.extensions.draft.translate import Scope, parse_expression, translate
from tuner.source.accesses import Bound, bare
from tuner.source.facts import IDENTIFIER
from tuner.source.syntax import Node, fold, listed, part, text_of, walk

_MAX_DEPTH = 12
_INNER = "place_behind_the_start"
_CLAMP = re.compile(r"(?:std::)?(?:min|max|clamp)\s*(?:<[^<>]*>)?\(")
_BUILTIN = re.compile(r"(blockIdx|threadIdx)\.([xyz])")

Shape = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IndexPart:
    """A term of an index: what runs, up to `extent`, and the factors that it is multiplied `by`."""

    by: Shape
    running: str
    extent: str = ""


@dataclass(frozen=True, slots=True)
class IndexSite:
    """What the names in an index mean where it is, and what bounds them there.

    `tuned` are the names of parameters, which size tiles and no array; `tables` are arrays of whole
    numbers, each with a name for what its numbers are below; `lasts` name the last number of those
    that say where segments begin and end; `steps` are what loops add to a variable each time.
    """

    scope: Scope
    grid: Shape
    block: Shape
    bounds: tuple[Bound, ...]
    variables: Mapping[str, str]
    tuned: frozenset[str] = frozenset()
    tables: Mapping[str, str] = field(default_factory=dict)
    lasts: Mapping[str, str] = field(default_factory=dict)
    steps: Mapping[str, str] = field(default_factory=dict)
    # what was asked before: the terms of a sum are taken apart in every order
    known: dict[str, Shape | None] = field(default_factory=dict, compare=False)

    def dimensions(self, text: str, depth: int = 0) -> Shape | None:
        """Find the extents that an index runs over, the outermost first; None if unknown."""
        text = plain(text)
        if text not in self.known:
            self.known[text] = None
            self.known[text] = self._dimensions(text, depth) if depth <= _MAX_DEPTH else None
        return self.known[text]

    def _dimensions(self, text: str, depth: int) -> Shape | None:
        limit = next((bound.limit for bound in self.bounds if bound.what == bare(text)), None)
        if limit is not None:
            # up to where a segment ends: over all of them
            ending = self.pointing(self.variables.get(bare(limit), limit))
            if (extent := self.translate_text(limit) or self.lasts.get(ending)) is not None:
                return (extent,)
            # i < start + n, where i begins at start
            for start, size in self.ends(limit):
                inner = replace(self, bounds=(*self.bounds, Bound(_INNER, size)), known={})
                if found := inner.dimensions(f"{start} + {_INNER}", depth + 1):
                    return found
            return None
        # `i + width <= n`
        further = (b.limit for b in self.bounds if b.what.startswith(f"{bare(text)}+"))
        inside = re.sub(r"^\((.+)\) \+ 1$", r"\1", next(further, ""))
        if text.isidentifier() and (extent := self.translate_text(inside)) is not None:
            return (extent,)
        if text in self.variables:
            return self.dimensions(self.variables[text], depth + 1)
        if match := _BUILTIN.fullmatch(bare(text)):
            # a number of threads is a choice, not a size
            of_grid, axis = match[1] == "blockIdx", "xyz".index(match[2])
            extents = (self.grid if of_grid else self.block)[axis : axis + 1]
            return extents if extents and (of_grid or IDENTIFIER.search(extents[0])) else None
        if text == "0":
            return ("1",)
        if (most := self.clamped(text)) is not None:
            return (most,)
        parsed = parse_expression(text)
        if parsed is not None and len(parts := _flat(*parsed, "%")) == 2:
            extent = self.translate_text(parts[1])
            return None if extent is None else (extent,)
        if parsed is not None and len(parts := _flat(*parsed, "/")) > 1:
            return self.quotient(parts[0], " * ".join(parts[1:]))
        if parsed is not None and len(parts := _flat(*parsed, "-")) == 2:
            return self.behind(parts[0], parts[1])
        return self.sum([text] if parsed is None else _flat(*parsed, "+"), depth)

    def clamped(self, text: str) -> str | None:
        """Give the extent of what is kept inside by `min(max(i, 0), n - 1)`."""
        match = _CLAMP.match(text)
        pieces, end = listed(text, match.end() - 1) if match is not None else ((), 0)
        for piece in pieces if end == len(text) else ():
            least = re.fullmatch(r"(.+?)\s*-\s*1", piece)
            most = self.translate_text(least[1]) if least is not None else self.clamped(piece)
            if most is not None and IDENTIFIER.search(most):
                return most
        return None

    def behind(self, text: str, start: str) -> Shape | None:
        # i - start below n, where i < start + n
        for own, size in self.ends(self.limit_of(text, plain(text))):
            extent = self.translate_text(size)
            if extent is not None and self.expand(own) == self.expand(start):
                return (extent,)
        return None

    def limit_of(self, *texts: str) -> str:
        """Give what a text is below, "" where nothing bounds it."""
        wanted = [*map(bare, texts)]
        return next((bound.limit for bound in self.bounds if bound.what in wanted), "")

    def expand(self, text: str) -> str:
        name = plain(text)
        return fold(plain(self.variables.get(name, name)))

    def ends(self, limit: str) -> Iterator[tuple[str, str]]:
        # what a limit is a sum of: any start, and a size that is known
        parsed = parse_expression(self.expand(limit))
        terms = _flat(*parsed, "+") if parsed is not None else []
        for place, term in enumerate(terms):
            rest = terms[:place] + terms[place + 1 :]
            if rest and self.translate_text(term) is not None:
                yield " + ".join(map(self.expand, rest)), term

    def quotient(self, dividend: str, divisor: str) -> Shape | None:
        # i / d, where i runs over n * d, or over n
        what = self.variables.get(bare(dividend), dividend)
        whole, by = map(self.translate_text, (self.limit_of(dividend, what), divisor))
        factors = whole.split(" * ") if whole else []
        left = Counter(f.strip("()") for f in factors)
        own = Counter(by.strip("()").split(" * ") if by is not None else ())
        if own and not own - left and left - own:
            return tuple(factor for factor in factors if (left - own)[factor.strip("()")])
        if whole is None or by is None or not IDENTIFIER.search(by):
            return None
        return (f"ceil_div({whole}, {by})",)

    def sum(self, terms: list[str], depth: int) -> Shape | None:
        # A * B + c, where c runs over B
        for place, term in enumerate(terms):
            rest = terms[:place] + terms[place + 1 :]
            for outer, inner in _products(term):
                within = self.translate_text(inner)
                if within is None:
                    continue
                minor = (within,) if not rest else self.inside(rest, within, depth)
                minor = None if minor is None else tuple(n for n in minor if n != "1") or ("1",)
                factors = sorted(" * ".join(minor).split(" * ")) if minor is not None else []
                if minor is None or factors != sorted(within.split(" * ")):
                    continue
                major = self.dimensions(outer, depth + 1)
                if major is not None:
                    return (*major, *(n for n in minor if n != "1"))
        whole = self.together([plain(term) for term in terms])
        return self.step_shape(terms, depth) or ((whole,) if whole else None)

    def inside(self, rest: list[str], within: str, depth: int) -> Shape | None:
        # threads of a block of so many are no size, but where a stride is as long they are
        match = _BUILTIN.fullmatch(bare(plain(rest[0]))) if len(rest) == 1 else None
        if match is not None and match[1] == "threadIdx":
            place = "xyz".index(match[2])
            if self.block[place : place + 1] == (within,):
                return (within,)
        return self.dimensions(" + ".join(rest), depth + 1)

    def step_shape(self, terms: list[str], depth: int) -> Shape | None:
        # a + b below L, where a goes up to L in steps of B, and b runs over B
        for place, term in enumerate(terms):
            whole = self.translate_text(self.limit_of(term))
            rest = terms[:place] + terms[place + 1 :]
            if whole is None or not rest:
                continue
            by = self.variables.get(term) or self.steps.get(term, "")
            steps = {self.translate_text(inner) for _, inner in _products(by)}
            minor = self.dimensions(" + ".join(rest), depth + 1)
            if minor is not None and " * ".join(minor) in steps:
                return (whole,)
        return None

    def spacing_shape(self, text: str) -> Shape | None:
        """Find how far apart what an index runs over is: the outermost extent, then the strides.

        What runs over the innermost need not be known. None where nothing runs over strides.
        """
        terms = [self.untile(term) for term in self.parts(text)]
        terms = [term for term in terms if not self.is_in_tile(term, terms)]
        apart = [term for term in terms if any(map(IDENTIFIER.search, term.by))]
        parts = apart or [term for term in terms if term.extent or self.pointing(term.running)]
        if not parts:
            return None
        widest = max((term.by for term in parts), key=len)
        named = [Counter(filter(IDENTIFIER.search, term.by)) for term in terms]
        if any(one - Counter(widest) for one in named):
            return None
        outer = self.outermost([term for term in terms if term.by == widest])
        if outer is None or not all(term.running for term in apart):
            return None
        levels = [widest]
        for by in sorted({term.by for term in apart}, key=lambda by: (-len(by), by)):
            if len(by) < len(levels[-1]) and not Counter(by) - Counter(levels[-1]):
                levels.append(by)
        steps = (Counter(a) - Counter(b) for a, b in pairwise([*levels, ()]))
        sizes = (" * ".join(step.elements()) for step in steps)
        return (*outer, *(size for size in sizes if size))

    def outermost(self, terms: Sequence[IndexPart]) -> Shape | None:
        """Find what several terms run over together, the small ones inside steps of a large one."""
        tables = {self.tables[name] for term in terms if (name := self.pointing(term.running))}
        if tables:
            return (tables.pop(),) if len(tables) == 1 else None
        extents = self.dimensions(" + ".join(term.running for term in terms))
        if extents is not None and len(terms) == 1 and not terms[0].extent:
            return extents
        together = self.together([term.running for term in terms])
        whole = {term.extent for term in terms if term.extent} | {together} - {""}
        for term in terms:
            limit = self.translate_text(self.limit_of(term.running))
            if limit is not None and {*IDENTIFIER.findall(limit)} - self.tuned:
                whole.add(limit)
        return (whole.pop(),) if len(whole) == 1 else extents

    def together(self, terms: Sequence[str]) -> str:
        """Find how far the sum of several terms goes: of y < H - K + 1 and i < K, H."""
        total = Counter({"": 1 - len(terms)})
        for term in terms if len(terms) > 1 else ():
            limit = self.translate_text(self.limit_of(term))
            found = linear(limit or (f"{term} + 1" if term.isdigit() else ""))
            if found is None:
                return ""
            total.update(found)
        left = {name: count for name, count in total.items() if name and count}
        if [*left.values()] != [1]:
            return ""
        more = total[""]
        return next(iter(left)) + (f" {'-' if more < 0 else '+'} {abs(more)}" if more else "")

    def pointing(self, text: str) -> str:
        """Name the array that a term is an element of, directly or through a local pointer."""
        match = re.match(r"(?:__ldg\s*\(\s*&?\s*)?(\w+)\s*(?:\[|\+)", plain(text))
        if match is None or ("[" not in text and "__ldg" not in text):
            return ""
        behind = {match[1], *IDENTIFIER.findall(self.variables.get(match[1], ""))}
        found = behind & {*self.tables}
        return found.pop() if len(found) == 1 else ""

    def index_arrays(self, text: str) -> set[str]:
        """List the arrays that say where an index points."""
        return {name for term in self.parts(text) if (name := self.pointing(term.running))}

    def is_in_tile(self, term: IndexPart, terms: Sequence[IndexPart]) -> bool:
        for tile in (Counter(index_part.by) for index_part in terms if index_part.extent):
            further = Counter(term.by) - tile
            small = all(name in self.tuned or name.isdigit() for name in further)
            if further and small and not tile - Counter(term.by):
                return True
        return False

    def untile(self, term: IndexPart) -> IndexPart:
        # blockIdx.x * TILE, where there are ceil_div(n, TILE) blocks
        match = _BUILTIN.fullmatch(bare(term.running))
        place = "xyz".index(match[2]) if match is not None and match[1] == "blockIdx" else 3
        blocks = parse_call(self.grid[place]) if place < len(self.grid) else None
        if blocks is None or Counter(blocks[1]) - Counter(term.by):
            return term
        left = Counter(term.by) - Counter(blocks[1])
        return replace(term, by=tuple(sorted(left.elements())), extent=blocks[0])

    def count_shape(self, text: str, counts: Sequence[str]) -> Shape | None:
        """Go by a number handed on with a place: of `n - i` elements from i on there are n."""
        for count in counts:
            code = self.variables.get(plain(count), count)
            source, root = parse_expression(code) or ("", None)
            for node in walk(root) if root is not None else ():
                left, sign = (text_of(part(node, one), source) for one in ("left", "operator"))
                whole = self.translate_text(left) if sign == "-" and left else None
                if whole is not None and IDENTIFIER.search(whole):
                    outer = self.spacing_shape(text) if text != "0" else ()
                    return (*outer[:-1], whole) if outer else (whole,)
        return None

    def parts(self, text: str, by: Shape = (), depth: int = 0) -> Iterator[IndexPart]:
        """Yield the terms of an index, variables and products of sums written out."""
        text = plain(text)
        if depth > _MAX_DEPTH:
            return
        bounded = any(bound.what == bare(text) for bound in self.bounds)
        if text in self.variables and not bounded and self.translate_text(text) is None:
            yield from self.parts(self.variables[text], by, depth + 1)
            return
        parsed = None if bounded else parse_expression(text)
        terms = _flat(*parsed, "+") if parsed is not None else [text]
        for term in terms:
            if len(terms) > 1:
                yield from self.parts(term, by, depth + 1)
                continue
            factors, running = self.split(term)
            if len(running) == 1 and factors:
                yield from self.parts(running[0], (*by, *factors), depth + 1)
            elif by or running:
                yield IndexPart(tuple(sorted((*by, *factors))), " * ".join(running))

    def split(self, term: str) -> tuple[list[str], list[str]]:
        """Split a product into factors that are known and those that run."""
        parsed = parse_expression(plain(term))
        factors = [term] if parsed is None else [*map(plain, _flat(*parsed, "*"))]
        match = re.fullmatch(r"(.+?)\s*/\s*(\d+)", plain(term))
        if match and len(factors) == 1:
            known, running = self.split(match[1])
            return _divide(known, int(match[2])), running
        known, running = [], []
        for factor in factors:
            own = self.translate_text(factor)
            if own is None:
                running.append(factor)
            elif own != "1":
                known += own.split(" * ") if re.fullmatch(r"[\w* ]+", own) else [own]
        return known, running

    def strides(self, text: str) -> set[str]:
        """List what the parts of an index are multiplied by, each as a sorted product."""
        return {product(term.by) for term in self.parts(text) if term.by and term.running}

    def translate_text(self, text: str) -> str | None:
        known = {**self.variables, **self.scope.definitions}
        return translate(text, replace(self.scope, definitions=known))


def linear(text: str) -> Counter[str] | None:
    """Read `H - K + 1` as how often it has each name, and what is left under no name."""
    if not re.fullmatch(r"[\s(]*\w+[\s)]*(?:[-+]\s*\w+[\s)]*)*", text):
        return None
    found: Counter[str] = Counter()
    for sign, piece in re.findall(r"([-+]?)\s*(\w+)", text):
        name, count = ("", int(piece)) if piece.isdigit() else (piece, 1)
        found[name if IDENTIFIER.fullmatch(name) else ""] += -count if sign == "-" else count
    return found


def widest(shapes: Sequence[Shape]) -> list[Shape]:
    """Leave out shapes that are another one with a smaller number added: `n - 1` beside `n`."""

    def is_within(shape: Shape, other: Shape) -> bool:
        pairs = [(linear(a), linear(b)) for a, b in zip(shape, other, strict=True) if a != b]
        more = [Counter({**b, "": b[""]}) for _, b in pairs if b is not None]
        for (small, _), large in zip(pairs, more, strict=False):
            large.subtract(small or {})
        known = len(more) == len(pairs) and all(small is not None for small, _ in pairs)
        plain = all(not count for large in more for name, count in large.items() if name)
        return known and plain and all(large[""] > 0 for large in more)

    return [
        shape
        for shape in shapes
        if not any(len(shape) == len(o) and shape != o and is_within(shape, o) for o in shapes)
    ]


def cancel_factors(shape: Shape) -> Iterator[str]:
    # K // vec words of vec elements are K elements: the kernel takes no other K
    extents = list(shape)
    while extents:
        first = extents.pop(0)
        if extents and first.endswith(f" // {extents[0]}"):
            first = first.removesuffix(f" // {extents.pop(0)}")
        yield first


def parse_call(text: str) -> tuple[str, list[str]] | None:
    """Read `ceil_div(n, a * b)` or `n // (a * b)`: what is divided, and the factors of by what."""
    match = re.fullmatch(r"ceil_div\((.+), ([\w* ]+)\)|(\w+) // \(?([\w* ]+)\)?", text)
    if match is None:
        return None
    return match[1] or match[3], (match[2] or match[4]).split(" * ")


def _divide(factors: list[str], by: int) -> list[str]:
    # bytes, of elements of so many each
    for place, factor in enumerate(factors):
        if factor.isdigit() and int(factor) % by == 0:
            left = [str(int(factor) // by)] if int(factor) > by else []
            return [*factors[:place], *left, *factors[place + 1 :]]
    last = next((factor for factor in factors if not factor.isdigit()), None)
    if last is not None:
        whole = f"({last})" if " " in last else last
        factors = [f"{whole} // {by}" if factor == last else factor for factor in factors]
    return factors


def _flat(source: str, node: Node, sign: str) -> list[str]:
    while node.type == "parenthesized_expression":
        node = node.named_children[0]
    left, right = part(node, "left"), part(node, "right")
    if left is None or right is None or text_of(part(node, "operator"), source) != sign:
        text = text_of(node, source)
        return [text if sign == "+" else f"({text})"]
    return [*_flat(source, left, sign), *_flat(source, right, sign)]


def _products(term: str) -> list[tuple[str, str]]:
    parsed = parse_expression(plain(term))
    factors = [] if parsed is None else _flat(*parsed, "*")
    pairs = []
    for split in range(1, len(factors)):
        outer, inner = " * ".join(factors[:split]), " * ".join(factors[split:])
        pairs += [(outer, inner), (inner, outer)]
    return pairs


def product(extents: Sequence[str]) -> str:
    """Write a product so that equal ones are equal texts."""
    return " * ".join(sorted(factor for extent in extents for factor in extent.split(" * ")))
