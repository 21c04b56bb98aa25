"""Let a thread take more: vectors of elements, the work of several blocks, unrolled loops."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tuner.extensions.draft.array_access import Access, own_arrays, split_at
from tuner.extensions.draft.host_path import plain
from tuner.extensions.draft.host_values import HostLaunch, names_behind
from tuner.extensions.draft.launches import Axes, scope_of
from tuner.extensions.draft.meaning import WARP, says
from tuner.extensions.draft.translate import Scope, translate
from tuner.extensions.draft.tunables import Names, Proposals, TunableConstant
from tuner.extensions.draft.vectors import Pack, VectorSite, find_vector_edits, vector_type
from tuner.model.kernel import DTYPE_BYTES
from tuner.source.accesses import bare, bounds_at, handed_by_reference
from tuner.source.facts import IDENTIFIER, Span, within
from tuner.source.host import Edit
from tuner.source.kernels import dtype_of
from tuner.source.syntax import (
    Node,
    ancestors,
    closing,
    fold,
    number,
    parse_tree,
    part,
    span_of,
    text_of,
    walk,
)

# what the parameters are called
WORK = frozenset(("vec", "streaming", "items", "unroll"))
_LOAD_BYTES = 16
_UNROLLS = (0, 2, 4, 8)
_ITEMS = (1, 2, 4, 8)
# the threads of a block depend on one another, or leave the loop
_TIED = re.compile(
    r"\bthreadIdx\b|__sync|_sync\b|__shfl|__ballot|__activemask|\b(?:goto|break|continue|return|asm"
    r"|cooperative_groups|cg)\b|\bcuda::barrier\b"
)
# what a body declares, and what it sets
_OWN = re.compile(
    r"(?:^|[;{}(])\s*(?:const\s+)?(?!(?:else|return|case|goto|do)\b)[A-Za-z_][\w:<>]*[\s*&]+(\w+)\s*[=;({\[]"
)
_SET = re.compile(r"(?<![\w.>\]])([A-Za-z_]\w*)\s*(?:[-+*/%&|^]|<<|>>)?=(?!=)([^;]*)")
_COUNTED = re.compile(r"(?:\+\+|--)\s*([A-Za-z_]\w*)|(?<![\w.>\]])([A-Za-z_]\w*)\s*(?:\+\+|--)")
# what stands before a branch
_BRANCH = re.compile(r"(?:\belse|\bif\s*\((?:[^(){};]|\([^(){};]*\))*\))\s*$")
_SYNCED = re.compile(r"__sync|_sync\b|__shfl|\b__shared__\b|\bthis_thread_block\b")
_CONDITIONAL = frozenset(
    ("if_statement", "conditional_expression", "for_statement", "while_statement", "do_statement",
     "switch_statement", "lambda_expression", "for_range_loop")
)  # fmt: skip
_INDEX = frozenset(
    ("blockIdx.x*B+threadIdx.x", "B*blockIdx.x+threadIdx.x", "threadIdx.x+blockIdx.x*B",
     "threadIdx.x+B*blockIdx.x")
)  # fmt: skip
_WRAPPED = re.compile(r"(\w+)\s*%\s*(\w+)")
_STRIDE = frozenset(("B*gridDim.x", "gridDim.x*B"))
# where threads begin, and how far they go: those of a block, of a warp, of two extents
_ROWS = frozenset((
    ("threadIdx.x", "B"), ("threadIdx.x", "W"), ("threadIdx.x%W", "W"), ("threadIdx.x&31", "W"),
    *((first.replace("B", row), stride.replace("B", row)) for row in "BW"
      for first in ("B*threadIdx.y+threadIdx.x", "threadIdx.y*B+threadIdx.x",
                    "threadIdx.x+B*threadIdx.y", "threadIdx.x+threadIdx.y*B")
      for stride in ("B*blockDim.y", "blockDim.y*B")),
))  # fmt: skip


def with_loops(launch: HostLaunch, axes: Axes, proposals: Proposals) -> Proposals:
    """Add what a thread could do at once, where the accesses of the kernel allow it."""
    reader = _Loops.of(launch, axes, proposals.choices)
    if reader is None:
        return proposals
    names = Names([*axes.names.values(), *(choice.name for choice in proposals.choices)])
    constants = [*reader.vector(names), *reader.items(names), *reader.unroll_choices(names)]
    return replace(proposals, choices=(*proposals.choices, *constants))


@dataclass(frozen=True, slots=True)
class _Loops:
    launch: HostLaunch
    scope: Scope
    body: Node
    accesses: tuple[Access, ...]
    blocks: frozenset[str]
    has_width: bool
    has_unroll: bool
    sites: tuple[VectorSite, ...]

    @classmethod
    def of(
        cls, launch: HostLaunch, axes: Axes, choices: Sequence[TunableConstant]
    ) -> _Loops | None:
        kernel = launch.kernel
        nodes = walk(parse_tree(launch.source.masked))
        body = next((node for node in nodes if span_of(node) == kernel.body), None)
        if body is None or body.has_error:
            return None
        blocks = {choice.origin for choice in choices if choice.is_block and choice.origin}
        named = any(says(choice.name, "per_thread") for choice in choices)
        scope = scope_of(launch, axes, ())
        accesses = tuple(
            access if access.exact else replace(access, reads=True, writes=True)
            for access in launch.accesses(own_arrays(launch.source, kernel))
        )
        unrolled = any(choice.name.startswith("unroll") for choice in choices)
        reader = cls(launch, scope, body, accesses, frozenset(blocks), False, unrolled, ())
        width = named or any(access.is_wide for access in reader.handed)
        return replace(reader, has_width=width, sites=(*reader.loops(), *reader.guards()))

    @property
    def handed(self) -> Iterator[Access]:
        names = {parameter.name for parameter in self.launch.kernel.parameters}
        return (access for access in self.accesses if access.array in names)

    def text(self, node: Node | None) -> str:
        return fold(text_of(node, self.launch.source.masked))

    def normal(self, text: str, at: int) -> str:
        """Write an index with its variables followed, and B for the threads of a block."""
        known = self.launch.values_at(at)
        for _ in range(4):
            text = IDENTIFIER.sub(lambda m: known.get(m[0], m[0]), text)
        text = re.sub(r"\b(?:static_cast<[^<>]*>|int64_t|size_t|int|unsigned|uint32_t)\b", "", text)
        text = re.sub(r"static_cast<[^<>]*>|[\s()]", "", text)
        threads = "|".join([r"\bblockDim\.x\b", *map(r"\b{}\b".format, self.blocks)])
        text = re.sub(threads, "B", text)
        named = (n for n in IDENTIFIER.findall(text) if self.launch.value(n) == str(WARP))
        return re.sub("|".join([rf"\b{WARP}\b", *map(r"\b{}\b".format, named)]), "W", text)

    def loops(self) -> Iterator[VectorSite]:
        for node in walk(self.body):
            initial, condition = part(node, "initializer"), part(node, "condition")
            update, body = part(node, "update"), part(node, "body")
            declared = part(initial, "declarator")
            value, name = part(declared, "value"), part(declared, "declarator")
            if node.type != "for_statement" or None in (condition, update, body, value, name):
                continue
            assert initial and condition and update and body and value and name
            step, variable = part(update, "right"), self.text(name)
            steps = self.text(part(update, "operator")) == "+="
            limited = self.text(part(condition, "left")) == variable
            if step is None or not steps or self.text(part(condition, "operator")) != "<":
                continue
            first = self.normal(self.text(value), node.start_byte)
            stride = self.normal(self.text(step), node.start_byte)
            over_grid = first in _INDEX and stride in _STRIDE
            if limited and (over_grid or (first, stride) in _ROWS):
                yield VectorSite(
                    variable,
                    self.text(part(initial, "type")),
                    span_of(name),
                    (condition.start_byte, update.end_byte),
                    (span_of(value), span_of(step)),
                    span_of(body),
                    body.type == "compound_statement",
                    self.text(part(condition, "right")),
                    over_grid,
                    guarded=False,
                )

    def guards(self) -> Iterator[VectorSite]:
        # int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) { ... }
        statements = [node for node in self.body.named_children if node.type != "comment"]
        for place, node in enumerate(statements):
            declared = part(node, "declarator")
            value, name = part(declared, "value"), part(declared, "declarator")
            if node.type != "declaration" or value is None or name is None:
                continue
            if self.normal(self.text(value), node.start_byte) not in _INDEX:
                continue
            tests = [n for n in statements[place + 1 :] if n.type != "declaration"]
            guard = tests[0] if tests and tests[0].type == "if_statement" else None
            condition, inside = part(guard, "condition"), part(guard, "consequence")
            if guard is None or condition is None or inside is None or part(guard, "alternative"):
                return
            leaves = self.text(inside) in ("return;", "{ return; }")
            if not leaves and guard != statements[-1]:
                return
            body = (guard.end_byte, self.body.end_byte - 1)
            at = inside
            if not leaves:
                body = span_of(inside)
            elif guard == statements[-1]:
                return
            else:
                at = statements[statements.index(guard) + 1]
            bounds = bounds_at(at, self.body.start_byte, self.launch.source.masked)
            variable = self.text(name)
            limit = next((bound.limit for bound in bounds if bound.what == variable), None)
            if limit is not None:
                yield VectorSite(
                    variable,
                    self.text(part(node, "type")),
                    span_of(name),
                    (node.end_byte, condition.end_byte),
                    (span_of(value),),
                    body,
                    not leaves and inside.type == "compound_statement",
                    limit,
                    over_grid=True,
                    guarded=True,
                )
            return

    def is_free(self, site: VectorSite) -> bool:
        """Whether it does not matter which thread runs the body for which element."""
        masked = self.launch.source.masked
        text = masked[slice(*site.body)]
        reached = set(IDENTIFIER.findall(text))
        functions = (d for d in self.launch.source.definitions if d.kind == "function")
        called = [masked[slice(*d.span)] for d in functions if d.name in reached]
        name = site.variable
        changed = rf"(?<![\w.]){name}\s*(?:[-+*/%]?=(?!=)|\+\+|--)|(?:\+\+|--)\s*{name}\b"
        tied = _TIED.search(text) or any(re.search(r"threadIdx|__sync|_sync\b", c) for c in called)
        if tied or re.search(changed, text) or (site.over_grid and "blockIdx.x" in text):
            return False
        if leaves_state(self.launch, site.body, self.accesses):
            return False
        # what a thread writes here, another may read where the order stays
        bodies = [vector_site.body for vector_site in self.sites]
        own = {a.array for a in self.accesses if a.writes and within(a.at, bodies)}
        if any(a.array in own and not within(a.at, bodies) for a in self.accesses):
            return False
        # arrays of a thread's own have room for as many elements as it has now
        return not self.counts(site)

    @property
    def is_over_grid(self) -> bool:
        """Whether any number of blocks does all there is to do, with no result for each of them."""
        if not self.sites or not all(site.over_grid for site in self.sites):
            return False
        masked, (start, end) = self.launch.source.masked, self.launch.kernel.body
        known = self.launch.values_at(end)
        own = [name for name, text in known.items() if self.normal(text, end) in _INDEX]
        for site in self.sites:
            for first, last in site.scaled:
                masked = masked[:first] + " " * (last - first) + masked[last:]
        for name in own:
            masked = re.sub(rf"\b{name}\s*=[^;]*", lambda match: " " * len(match[0]), masked)
        blocks = "|".join([r"\bblockIdx\b", *map(r"\b{}\b".format, own)])
        return not re.search(blocks, masked[start:end])

    def counts(self, site: VectorSite) -> bool:
        text = self.launch.source.masked[slice(*site.body)]
        outside = self.launch.source.masked[self.body.start_byte : site.body[0]]
        pointers = re.compile(r"\*\s*(?:__restrict__\s*)?(\w+)\s*=")
        arrays = {*pointers.findall(self.launch.source.masked, *self.launch.kernel.body)}
        arrays |= {a.array for a in self.accesses}
        for name, index in re.findall(r"([A-Za-z_]\w*)\s*\[([^\]]*)\]", text):
            own = re.search(rf"(?<!__shared__ )\b{name}\s*\[[^\]]*\]\s*[;=]", outside)
            if name not in arrays and own and site.variable not in index:
                return True
        return False

    def vector(self, names: Names) -> Iterator[TunableConstant]:
        if self.has_width or not self.sites or not all(map(self.is_free, self.sites)):
            return
        if any(site.guarded for site in self.sites) and len(self.sites) > 1:
            return
        # which elements a block takes shows in what it leaves
        by_block = any(a.writes and counts_blocks(a.index) for a in self.accesses)
        if by_block and any(site.over_grid and not site.guarded for site in self.sites):
            return
        name = names.of("vec")
        hole = f"@{{ {name} }}@"
        edits: list[Edit] = []
        constraints: dict[str, None] = {}
        smallest: list[int] = []
        is_once = False
        for site in self.sites:
            limit = self.multiple(site.limit, site.body)
            packs = [*self.packs(site)]
            if limit is None:
                return
            constraints[limit] = None
            for pack in packs:
                constraints |= dict.fromkeys(pack.multiples)
                smallest.append(pack.bytes_each)
                is_once |= pack.is_once
            edits += find_vector_edits(site, packs, hole, self.launch.source.masked, self.type_name)
        if not smallest:
            return
        at = self.launch.kernel.span[0]
        streaming = names.of("streaming") if is_once else ""
        edits.append(Edit(at, at, vector_type(self.type_name, streaming)))
        most = _LOAD_BYTES // min(smallest)
        values = tuple(v for v in (1, 2, 4, 8, 16) if v <= most)
        line = self.launch.source.line_at(self.sites[0].declared[0])
        if len(values) > 1:
            yield TunableConstant(
                name=name,
                values=values,
                default=1,
                note=f"elements of one load, in the loop of line {line}",
                edits=tuple(edits),
                divides_grid=any(site.guarded for site in self.sites) or self.is_over_grid,
                constraints=tuple(f"{text} % {name} == 0" for text in constraints),
                is_work=True,
            )
        if len(values) > 1 and is_once:
            note = "1: what blocks touch once, and no other, goes past what the caches keep"
            yield TunableConstant(streaming, (0, 1), 0, note, (), is_work=True)

    @property
    def type_name(self) -> str:
        taken = {*IDENTIFIER.findall(self.launch.source.masked)}
        return next(name for name in ("Vector", "TunedVector", "TunedVector_") if name not in taken)

    def multiple(self, text: str, body: Span) -> str | None:
        """Write a number of elements in the names of the space; None where it is unknown."""
        known = self.launch.values_at(*body)
        scope = replace(self.scope, definitions={**known, **self.scope.definitions})
        written = translate(text, scope)
        if written is None or not written.strip("() ").isidentifier():
            return None if written is None else f"({written})"
        return written

    def packs(self, site: VectorSite) -> Iterator[Pack]:
        inside = [a for a in self.accesses if site.body[0] <= a.at < site.body[1]]
        nodes = {n.start_byte: n for n in walk(self.body) if n.type == "identifier"}
        groups: dict[tuple[str, str], list[tuple[Access, Node]]] = {}
        for access in inside:
            node = nodes.get(access.at)
            around = node.parent if node is not None else None
            is_element = around is not None and around.type == "subscript_expression"
            key = (access.array, bare(self.text(around)) if is_element else "")
            groups.setdefault(key, []).append((access, around or self.body))
        for (array, text), found in groups.items():
            written = any(access.writes for access, _ in found)
            alone = sum(key[0] == array for key in groups) == 1
            if not text or (written and not alone):
                continue
            first, element = found[0]
            certain = [not _is_conditional(node, site.body) for _, node in found]
            multiples = self.alignment_terms(self.before_body(first.index, first.at, site), site)
            if not (all(certain) if written else certain[0]) or multiples is None:
                continue
            handed = (p for p in self.launch.kernel.parameters if p.name == array)
            pointer = next(handed, None)
            dtype = None if pointer is None else dtype_of(pointer.c_type, self.launch.types())
            if pointer is not None and dtype is not None:
                # `x[i] = x[i] * a` reads after it names what it writes
                reads = any(access.reads for access, _ in found)
                spans = tuple(span_of(n) for _, n in found)
                yield Pack(
                    f"{IDENTIFIER.findall(text)[0]}_{site.variable}",
                    pointer.c_type, self.before_body(self.text(element), first.at, site), spans,
                    reads, written,
                    DTYPE_BYTES[dtype], multiples,
                    # a row of weights is read by every block
                    "%" not in first.index and (site.over_grid or bool(multiples)),
                )  # fmt: skip

    def before_body(self, text: str, at: int, site: VectorSite) -> str:
        """Write an index in names that stand before the body, where the body declares others."""
        before = self.launch.values_at(site.body[0])
        for name, value in reversed(self.launch.values_at(at, site.body[1]).items()):
            if name not in before:
                text = re.sub(rf"\[{name}\]", f"[{value}]", text)
                term = value if re.fullmatch(r"[\w.]+", value) else f"({value})"
                text = re.sub(rf"(?<![\w.>]){name}\b", term, text)
        return text

    def alignment_terms(self, index: str, site: VectorSite) -> tuple[str, ...] | None:
        """List what has to be a multiple of the width for an index to begin at one."""
        terms = [term for text in terms_of(index) for term in self.follow_term(text, site)]
        # `i % columns` begins at a multiple where there are so many columns
        wraps = [wrap for term in terms if (wrap := _WRAPPED.fullmatch(term))]
        wraps = [wrap for wrap in wraps if wrap[1] == site.variable]
        if len(wraps) + sum(term == site.variable for term in terms) != 1:
            return None
        found = []
        for term in terms:
            if term in (site.variable, "0"):
                continue
            if wraps and term == wraps[0][0]:
                if (size := self.multiple(wraps[0][2], site.body)) is None:
                    return None
                found.append(size)
                continue
            if re.search(rf"(?<![\w.]){site.variable}\b", term):
                return None
            sizes = (self.multiple(factor, site.body) for factor in factors_of(term))
            known = [size for size in sizes if size is not None]
            numbers = [n for size in known if (n := number(size.strip("()"))) is not None]
            if any(n % _LOAD_BYTES == 0 for n in numbers):
                continue
            named = [size for size in known if size.isidentifier()]
            if not named:
                return None
            found.append(named[-1])
        return tuple(found)

    def follow_term(self, term: str, site: VectorSite) -> list[str]:
        known: Mapping[str, str] = self.launch.values_at(*site.body)
        term = plain(term)
        if term != site.variable and term in known:
            return [each for text in terms_of(known[term]) for each in self.follow_term(text, site)]
        return [term]

    def items(self, names: Names) -> Iterator[TunableConstant]:
        guarded = [site for site in self.sites if site.guarded]
        masked = self.launch.source.masked
        if not guarded and self.is_over_grid:
            # the loop does as much more, and the source says so for each config
            at, name = self.launch.kernel.span[0], names.of("items")
            said = Edit(at, at, f"// @{{ {name} }}@ times as much for each block\n")
            yield self.more_items(name, (said,))
            return
        own = self.launch.body
        if self.has_width or not guarded or _SYNCED.search(own) or own.count("blockIdx.x") != 1:
            return
        site = guarded[0]
        value = site.scaled[0]
        if any("blockIdx" in text or _SYNCED.search(text) for text in self.launch.helpers):
            return
        inside = masked[slice(*value)]
        if "blockIdx.x" not in inside or re.search(r"\breturn\b", masked[slice(*site.body)]):
            return
        start = masked.rfind("\n", 0, site.declared[0]) + 1
        first = max(start, masked.rfind(";", 0, site.declared[0]) + 1, self.body.start_byte + 1)
        before = masked[self.body.start_byte + 1 : first]
        parameters = {p.name for p in self.launch.kernel.parameters}
        outer = parameters | {*re.findall(r"(\w+)\s*(?:=|;)", before)}
        changed = rf"(?<![\w.\]])(?:{'|'.join(map(re.escape, outer))})\s*(?:[-+*/]?=(?!=)|\+\+|--)"
        if re.search(changed, masked[first : self.body.end_byte]):
            return
        name = names.of("items")
        item = next(n for n in ("item", "item_") if not re.search(rf"\b{n}\b", masked))
        at = value[0] + inside.index("blockIdx.x")
        hole = f"@{{ {name} }}@"
        loop = f"for (int {item} = 0; {item} < {hole}; ++{item}) {{"
        end = self.body.end_byte - 1
        edits = (
            Edit(first, first, f" {loop}\n" if first > start else f"  {loop}\n"),
            Edit(at, at + len("blockIdx.x"), f"(blockIdx.x * {hole} + {item})"),
            Edit(end, end, "}\n"),
        )
        yield self.more_items(name, edits)

    def more_items(self, name: str, edits: tuple[Edit, ...]) -> TunableConstant:
        note = "blocks of the source that one block stands for"
        return TunableConstant(name, _ITEMS, 1, note, edits, divides_grid=True, is_work=True)

    def unroll_choices(self, names: Names) -> Iterator[TunableConstant]:
        masked, found = self.launch.source.masked, list[int]()
        for node in walk(self.body):
            first = part(node, "initializer", "declarator", "value")
            bounds = [self.text(one) for one in (first, part(node, "condition", "right"))]
            is_known = all(number(self.launch.value(text)) is not None for text in bounds)
            # the compiler unrolls it all by itself
            if node.type != "for_statement" or is_known:
                continue
            above = masked[: node.start_byte].rstrip()
            touches = any(node.start_byte <= a.at < node.end_byte for a in self.handed)
            inner = any(n.type == "for_statement" for n in walk(node) if n != node)
            row = above[above.rfind("\n") + 1 :]
            if touches and not inner and "#pragma" not in row and not row.rstrip().endswith(")"):
                found.append(node.start_byte)
        if not found or self.has_unroll:
            return
        name = names.of("unroll")
        edits = []
        for at in found:
            start = masked.rfind("\n", 0, at) + 1
            alone = not masked[start:at].strip()
            text = f"//% if {name}\n#pragma unroll @{{ {name} }}@\n//% endif\n"
            edits.append(Edit(start, start, text) if alone else Edit(at, at, f"\n{text}"))
        places = " and ".join(str(self.launch.source.line_at(at)) for at in found)
        note = f"the loop of line {places}; 0 leaves it to the compiler"
        yield TunableConstant(name, _UNROLLS, 0, note, tuple(edits), is_work=True)


def _is_conditional(node: Node, body: Span) -> bool:
    for inside, around in pairwise((node, *ancestors(node))):
        if around.start_byte < body[0] or around.end_byte > body[1]:
            return False
        if around.type in _CONDITIONAL and inside != part(around, "condition"):
            return True
        operator = part(around, "operator")
        if operator is not None and operator.text in (b"&&", b"||"):
            return True
    return False


def factors_of(text: str) -> list[str]:
    """Split a product, without casts and parentheses."""
    return [plain(piece) for piece in split_at(plain(text), "*")]


def counts_blocks(index: str) -> bool:
    """Tell whether each block of the grid has an element of its own."""
    return any(re.fullmatch(r"blockIdx\.[xyz]", bare(term)) for term in terms_of(index))


def thread_loops(launch: HostLaunch) -> Iterator[Span]:
    """Yield the bodies of the loops in which a thread goes as far as a block or a grid has more."""
    masked = launch.source.masked
    own = names_behind(launch.site.block, launch.definitions) | {"blockDim", "gridDim"}
    for match in re.finditer(r"\bfor\s*(?=\()", masked[: launch.kernel.body[1]]):
        end = closing(masked, match.end())
        if match.start() < launch.kernel.body[0] or end is None:
            continue
        step = masked[match.end() : end].rpartition(";")[2]
        if own & names_behind([step], launch.values_at(match.start())):
            block = masked[end:].lstrip().startswith("{")
            at = masked.find("{" if block else ";", end)
            yield end, (closing(masked, at) or at) if block else at + 1


def leaves_state(launch: HostLaunch, body: Span, accesses: Sequence[Access]) -> bool:
    """Tell whether what a loop writes depends on what a variable was in the pass before."""
    masked = launch.source.masked
    text, known = masked[slice(*body)], {p.name for p in launch.kernel.parameters}
    own, state = {*_OWN.findall(text)}, handed_by_reference(masked, body)
    names = {name for pair in _COUNTED.findall(text) for name in pair if name}
    names |= {match[1] for match in _SET.finditer(text)}
    state |= {name for name in names if not _begins_anew(text, name)}
    state -= own
    for _ in range(4 if state else 0):
        state |= {m[1] for m in _SET.finditer(text) if state & {*IDENTIFIER.findall(m[2])}}
    writes = (a.at for a in accesses if a.writes and a.array in known and within(a.at, [body]))
    stored = (masked[at : masked.find(";", at)] for at in writes)
    return any(state & {*IDENTIFIER.findall(text)} for text in stored)


def _begins_anew(text: str, name: str) -> bool:
    first = re.search(rf"\b{name}\b(?:\s*=(?!=)([^;]*))?", text)
    if first is None or first[1] is None or name in IDENTIFIER.findall(first[1]):
        return False
    return not _is_in_branch(text, first.start())


def _is_in_branch(text: str, at: int) -> bool:
    heads: list[str] = []
    for match in re.finditer(r"[{}]", text[:at]):
        if match[0] == "{":
            heads.append(text[: match.start()])
        elif heads:
            heads.pop()
    return any(_BRANCH.search(head) for head in (*heads, text[:at]))


def terms_of(text: str) -> list[str]:
    """Split a sum, without casts and parentheses, all the way down."""
    pieces = [plain(piece) for piece in split_at(plain(text), "+")]
    if len(pieces) == 1:
        return pieces
    return [term for piece in pieces for term in terms_of(piece)]
