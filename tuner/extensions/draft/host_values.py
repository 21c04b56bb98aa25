"""A launch as host code makes it, and the ways on which that is reached."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from tuner.extensions.draft.array_access import Access, OwnArray
from tuner.extensions.draft.host_code import (
    Condition,
    allocations_in,
    calls_in,
    conditions_of,
    functions_in,
    heads_of,
)
from tuner.extensions.draft.host_path import Frame, Host, Path, answer_conditions, branch_values
from tuner.extensions.draft.pointers import accesses_of
from tuner.extensions.draft.traits import members_of, traits_of
from tuner.extensions.draft.translate import LIMITS, Scope, translate
from tuner.extensions.draft.unlaunched import UNKNOWN, guessed_site
from tuner.source.accesses import Assigned, bare, find_assignments
from tuner.source.facts import (
    IDENTIFIER,
    KernelFunction,
    KernelParameter,
    LaunchSite,
    SourceFile,
    Span,
    bare_name,
)
from tuner.source.kernels import element_dtype
from tuner.source.syntax import closing, fold, listed, number

# threads where the host code leaves them to its caller
_USUAL = 256
_USUAL_PAIR = (32, 8)
_THREADS = range(32, 1025, 32)
INTEGERS = ("int32", "uint32", "int64", "uint64")
_UNDERSTOOD = frozenset(("min", "max", "int", "sizeof", "dim3", "ceil_div", "cdiv"))
# `pack::size`, `Pack<float>::size`
_OWNER = re.compile(r"\b(\w+(?:<[^<>]*>)?)::(?=\w)")
_CAST = (
    r"(?:_cast\s*<|\()\s*(?:const\s+)?(\w[\w:]*(?:\s+\w+)?)\s*(?:\bconst\s*)?\*[^()<>]*[>)]"
    r"\s*\(*\s*{}\b"
)
_LAMBDA = re.compile(r"\[[^\[\]]*\]\s*(?=\()")
_LAMBDA_BODY = re.compile(r"\s*(?:->\s*[\w:]+\s*)?\{\s*return\s+([^;]*);\s*\}")
_RETURNED = re.compile(r"return\s*(?:dim3\s*)?(?=[({])([^;]*,[^;]*);")
# declared, counted, handed out by address, or set
_SET = re.compile(
    r"(?!return\b)\b\w+\s+((?:\w+\s*,\s*)*\w+)\s*[;({\[]|\bauto\s*&*\s*\[([^\]]*)\]"
    r"|(?:\+\+|--|[(,]\s*&)\s*(\w+)|(\w+)\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))"
)
_MAX_HOPS = 8


def names_behind(texts: Iterable[str], definitions: Mapping[str, str]) -> frozenset[str]:
    """List the names in some texts, and those that the variables among them depend on."""
    found: set[str] = set()
    pending = [*texts]
    while pending:
        names = {*IDENTIFIER.findall(pending.pop())} - found
        found |= names
        pending += (definitions.get(name, "") for name in names)
    return frozenset(found)


def _is_open(text: str) -> bool:
    # a name that nothing defines, or what a function of the host decides; a `min` is no such
    if IDENTIFIER.fullmatch(text):
        return True
    calls = re.findall(r"([A-Za-z_]\w*)\s*(?:<[^<>()]*>)?\s*\(", text)
    return any(name not in _UNDERSTOOD for name in calls)


def _candidates(text: str) -> tuple[int, ...]:
    # `switch (block) { case 128: ... case 256: ... }`, or `{128, 256, 512}`
    cases = {int(match) for match in re.findall(r"\bcase\s+(\d+)\s*:", text)}
    lists = re.findall(r"\{\s*\d+(?:\s*,\s*\d+)+\s*\}", text)
    found = [cases, *({*map(int, re.findall(r"\d+", numbers))} for numbers in lists)]
    fitting = [sorted(ns) for ns in found if len(ns) > 1 and all(n in _THREADS for n in ns)]
    return tuple(fitting[0]) if fitting else ()


def _with_element(parameter: KernelParameter, body: str) -> KernelParameter:
    # `const void* in`, where `static_cast<const float*>(in)` alone says what it points to
    if (parameter.c_type, parameter.pointers) != ("void", 1):
        return parameter
    found = {fold(text) for text in re.findall(_CAST.format(parameter.name), body)}
    return replace(parameter, c_type=found.pop()) if len(found) == 1 else parameter


def read_lambda(text: str) -> tuple[tuple[str, ...], str] | None:
    """Read the parameters of a lambda that does nothing but return, and what it returns."""
    match = _LAMBDA.match(text)
    pieces, end = listed(text, match.end()) if match is not None else ((), 0)
    returned = _LAMBDA_BODY.fullmatch(text, end) if end else None
    named = [IDENTIFIER.findall(piece.partition("=")[0]) for piece in pieces]
    if returned is None or not all(named):  # `[](...) { return 4; }`
        return None
    return tuple(words[-1] for words in named), returned[1]


def _returned(
    source: SourceFile, extents: tuple[str, ...], known: Mapping[str, str]
) -> tuple[str, ...]:
    # `grid_of(w, h)`, where the one function that takes it has one `return`, of `dim3(...)`
    call = re.fullmatch(r"(?:\w+::)*(\w+)\s*(?=\()(.*)", " ".join(extents), re.DOTALL)
    if call is None or len(extents) > 1:
        return extents
    masked, passed = source.masked, listed(call[2], 0)[0]
    if (made := read_lambda(known.get(call[1], ""))) is not None:
        match = _RETURNED.fullmatch(f"return {made[1]};")
        stated = dict(zip(made[0], passed, strict=False))
        return tuple(_with_passed(t, stated) for t in listed(match[1], 0)[0]) if match else extents
    heads = [head for head in heads_of(source) if head.name == call[1]]
    pairs = ((head, _arguments_for(masked, head, passed)) for head in heads)
    fitting = [(head, arguments) for head, arguments in pairs if arguments is not None]
    if len(fitting) != 1 or not all(head.parameters_known for head in heads):
        return extents
    ((helper, arguments),) = fitting
    body = masked[slice(*helper.body)]
    returns = [*re.finditer(r"\breturn\b[^;]*;", body)]
    match = _RETURNED.fullmatch(returns[0][0]) if len(returns) == 1 else None
    if match is None or closing(match[1], 0) != len(match[1].rstrip()):
        return extents
    inside = find_assignments(masked, (helper.span,), helper.body[0] + returns[0].start())
    own = {name: f"({value.text})" for name, value in inside.items()}
    pieces = listed(match[1], 0)[0]
    for _ in range(_MAX_HOPS):
        pieces = tuple(IDENTIFIER.sub(lambda m: own.get(m[0], m[0]), text) for text in pieces)
    # what the function sets and nothing says would be read as a name of the caller's
    lists = [*_SET.findall(body), [parameter.name for parameter in helper.template]]
    is_set = {name for texts in lists for text in texts for name in IDENTIFIER.findall(text)}
    if is_set & {name for text in pieces for name in IDENTIFIER.findall(text)}:
        return extents
    return tuple(_with_passed(text, arguments) for text in pieces)


def _with_passed(text: str, arguments: Mapping[str, str]) -> str:
    return IDENTIFIER.sub(lambda m: f"({arguments[m[0]]})" if m[0] in arguments else m[0], text)


def _arguments_for(
    masked: str, head: KernelFunction, passed: Sequence[str]
) -> dict[str, str] | None:
    # what a function's parameters are in a call of it, by default too; None where it is another's
    declared = listed(masked, masked.index("(", head.name_at))[0]
    defaults = [text.partition("=")[2].strip() for text in declared[len(passed) :]]
    if len(passed) > len(head.parameters) or not all(defaults):
        return None
    names = (parameter.name for parameter in head.parameters)
    return dict(zip(names, (*passed, *defaults), strict=False))


@dataclass(frozen=True, slots=True)
class HostLaunch:
    """One kernel with the first launch of it.

    `guessed` are the block's extents that only whoever calls the host code knows, `candidates` the
    numbers of threads that it lists. Where nothing launches the kernel, all `is_guessed`.
    """

    source: SourceFile
    kernel: KernelFunction
    site: LaunchSite
    is_guessed: bool = False
    guessed: tuple[str, ...] = ()
    candidates: tuple[int, ...] = ()

    @classmethod
    def of(cls, source: SourceFile, kernel: KernelFunction) -> HostLaunch:
        """Find the first launch of `kernel` that the numbers in the source lead to.

        One whose template arguments are known comes first. What was extracted has chosen already.
        """
        body = source.masked[slice(*kernel.body)]
        parameters = tuple(_with_element(p, body) for p in kernel.parameters)
        kernel = replace(kernel, parameters=parameters)
        launches = [cls(source, kernel, site) for site in source.launches_of(kernel.name)]
        launches = [launch for launch in launches if launch.instance is not None] or launches
        nowhere = next(
            (site for site in source.unlaunched if site.kernel == kernel.name),
            LaunchSite(kernel.name, (), (), (), "0", (), kernel.line),
        )
        first = next(iter(launches), None)
        if source.host_from is None and len(launches) > 1:
            first = next((launch for launch in launches if not launch.is_ruled_out), first)
        if first is not None:
            # what variables are that several lines of the host code set
            values = branch_values(source.masked, first.around, first.site.at)
            definitions = first.as_chosen({**values, **first.site.definitions})
            site = replace(first.site, definitions=definitions)
            return replace(first, site=site).with_helpers().with_block()
        host_launch = cls(source, kernel, nowhere, is_guessed=True)
        site = guessed_site(source, kernel, nowhere, host_launch.types())
        return replace(host_launch, site=site).with_block()

    def with_divisors(
        self, divisors: Sequence[str | None], sizes: Sequence[int] = ()
    ) -> HostLaunch:
        """Divide by what a script says where nothing launches the kernel, as far as it is known."""
        rounded = re.compile(r"\((.+) \+ (.+) - 1\) / \2")
        names = {constant.name for constant in self.source.constants}
        grid = [*self.site.grid]
        if self.is_guessed and sizes and UNKNOWN in grid:
            grid = [str(size) for size in sizes]
        for place, by in enumerate(divisors[: len(grid)] if self.is_guessed else ()):
            match = rounded.fullmatch(grid[place])
            is_known = by is not None and {*IDENTIFIER.findall(by)} <= names
            if is_known and grid[place] != UNKNOWN:
                size = grid[place] if match is None else match[1]
                grid[place] = f"({size} + ({by}) - 1) / ({by})" if by != "1" else size
        return replace(self, site=replace(self.site, grid=tuple(grid)))

    def with_helpers(self) -> HostLaunch:
        """Say what a grid or block is that a function of the file returns as a whole."""
        site = self.site
        grid, block = (_returned(self.source, e, site.definitions) for e in (site.grid, site.block))
        return replace(self, site=replace(site, grid=grid, block=block))

    def with_block(self) -> HostLaunch:
        """Give extents of the block that the host code is handed a usual number."""
        names = [self.follow(text) for text in self.site.block]
        taken = {*self.passed.values()}
        pairs = zip(names, self.site.block, strict=True)
        free = [name for name, text in pairs if taken.isdisjoint((name, text))]
        open_ones = [n for n in free if number(self.value(n)) is None and _is_open(n)]
        is_row = [name for name in names if name != "1"] == names[:1]
        if not open_ones or self.constants.keys() & {*open_ones}:
            return self
        if not is_row and len(names) > len(_USUAL_PAIR):
            return self
        text = self.source.masked[slice(*self.around)]
        candidates = _candidates(text)
        usual = (_USUAL,) if is_row else _USUAL_PAIR
        if candidates and is_row:
            usual = (_USUAL if _USUAL in candidates else candidates[len(candidates) // 2],)
        hosts = [Host(self.source, path) for path in paths_to(self)]
        known: dict[str, str] = {}
        guessed = []
        for place, (name, written) in enumerate(zip(names, self.site.block, strict=True)):
            if name in open_ones:
                passed = {found.value for host in hosts if (found := host.number(name)) is not None}
                one = passed.pop() if len(passed) == 1 else None
                guessed += [name] if one is None else []
                known[name] = known[written] = str(one or usual[place])
        # and what the host code computes from it
        for name in self.site.definitions:
            if (text := self.follow(name)) in open_ones:
                known |= {name: known[text], f"{name}.{'xyz'[names.index(text)]}": known[text]}
        named = IDENTIFIER.fullmatch
        block = tuple(text if named(text) else known.get(text, text) for text in self.site.block)
        definitions = {**self.site.definitions, **known}
        site = replace(self.site, block=block, definitions=definitions)
        return replace(self, site=site, guessed=tuple(guessed), candidates=candidates)

    @property
    def body(self) -> str:
        """The kernel's body."""
        return self.source.masked[slice(*self.kernel.body)]

    @property
    def code(self) -> str:
        """All code that the kernel is made of."""
        spans = self.source.reachable([self.kernel])
        return "\n".join(self.source.masked[start:end] for start, end in spans)

    @property
    def helpers(self) -> list[str]:
        """The code that the kernel refers to."""
        spans = self.source.reachable([self.kernel])[1:]
        return [self.source.masked[start:end] for start, end in spans]

    def accesses(self, own: Sequence[OwnArray] = ()) -> tuple[Access, ...]:
        """List where the kernel touches the arrays that it is handed, and `own` ones."""
        return accesses_of(self.source, self.kernel, self.types(), own)

    def values_at(self, at: int, loop_end: int = 0) -> dict[str, str]:
        """Map the variables that the kernel gives one value before an offset to it."""
        found = find_assignments(self.source.masked, (self.kernel.body,), at, loop_end)
        return {name: value.text for name, value in found.items()}

    @property
    def around(self) -> Span:
        """The function that launches."""
        spans = [d.span for d in self.source.definitions if d.kind == "function"]
        inside = [span for span in spans if span[0] <= self.site.at < span[1]]
        return max(inside, default=(self.site.at, self.site.at))

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What has to hold for the host code to come to this launch."""
        masked, chosen = self.source.masked, self.site.set_at
        more = () if chosen is None else conditions_of(masked, chosen, chosen=True)
        return (*more, *conditions_of(masked, self.site.at))

    def as_chosen(self, definitions: Mapping[str, str]) -> Mapping[str, str]:
        """Say what variables are where the pointer is set to this kernel: `if (n < 9) per = 4;`.

        What asks for something else of the same names is left out.
        """
        masked, own = self.source.masked, self.site.set_at
        places = {site.set_at for site in self.source.launches if site.at == self.site.at}
        asked = {at: conditions_of(masked, at, chosen=True) for at in places if at is not None}
        if own is None or len(asked) < 2:
            return definitions
        answers = {bare(condition.text): condition.holds for condition in asked[own]}
        for at, conditions in asked.items():
            rest = [c for c in conditions if c not in asked[own]]
            # the last to be set is what is launched
            if at > own and len(rest) == 1:
                answers.setdefault(bare(rest[0].text), not rest[0].holds)
        texts = {name: answer_conditions(text, answers) for name, text in definitions.items()}
        names = names_behind((c.text for found in asked.values() for c in found), {})
        return {
            name: text
            for name, text in texts.items()
            if "?" not in text or names.isdisjoint(IDENTIFIER.findall(text))
        }

    @property
    def is_ruled_out(self) -> bool:
        """Whether no number that the source states leads to this launch."""
        hosts = [Host(self.source, path) for path in _ways_to(self)]
        return bool(hosts) and all(host.is_ruled_out for host in hosts)

    @property
    def origin(self) -> str:
        """Say how sure it is that the source launches so, and where it says it."""
        line, own = f"line {self.site.line}", HostLaunch(self.source, self.kernel, self.site)
        hosts = [Host(self.source, path) for path in paths_to(own)]
        asked = self.conditions
        open_ones = [c for c in asked if any(h.holds(c.text) is not c.holds for h in hosts)]
        others = (
            launch.site.line
            for site in self.source.launches_of(self.kernel.name)
            if site.at != self.site.at
            and (launch := HostLaunch(self.source, self.kernel, site)).around == own.around
            and not {*open_ones} <= {*launch.conditions}
            and not launch.is_ruled_out
        )
        other = next(others, None) if open_ones else None
        sites = [site for site in self.source.launches if site.at == self.site.at]
        sites = [s for s in sites if not HostLaunch(self.source, self.kernel, s).is_ruled_out]
        if len({site.template_arguments for site in sites}) > 1:
            return f"guessed: {line} launches one of {len(sites)}, and nothing here says which"
        if other is None:
            return f"sure: {line}"
        where = " and ".join(c.text if c.holds else f"not ({c.text})" for c in open_ones)
        where = "".join(filter(str.isprintable, where))
        return f"guessed: {line}, where {where}; otherwise line {other}"

    @property
    def varying(self) -> frozenset[str]:
        """The parameters for which other launches of the kernel pass something else."""
        passed = self.passed
        return frozenset(
            name
            for site in self.source.launches_of(self.kernel.name)
            for name, text in self.arguments_by_name(site).items()
            if passed.get(name, text) != text
        )

    @property
    def passed(self) -> dict[str, str]:
        """What the launch passes for each of the kernel's parameters."""
        return self.arguments_by_name(self.site)

    def arguments_by_name(self, site: LaunchSite) -> dict[str, str]:
        names = (parameter.name for parameter in self.kernel.parameters)
        return dict(zip(names, site.arguments, strict=False))

    @property
    def constants(self) -> dict[str, str]:
        """The file's constants, and the template parameters that the instance gives a value."""
        # `kSize = other::kSize` would be itself, for namespaces are not told apart
        found = {
            constant.name: constant.value
            for constant in self.source.constants
            if not re.search(rf"::\s*{constant.name}\b", constant.value)
        }
        for parameter, text in zip(self.kernel.template, self.instance or (), strict=False):
            # in the kernel it hides a constant of the host's that has its name
            stated = number(found.get(parameter.name, ""))
            found[parameter.name] = found[parameter.name] if stated is not None else text
        masked = self.source.masked
        site, aliases = self.site, self.source.aliases
        texts = (*site.grid, *site.block, site.shared, *site.definitions.values())
        for owner in {match[1] for text in texts for match in _OWNER.finditer(text)}:
            members = members_of(masked, aliases.get(owner, owner)).numbers
            own = re.compile(rf"(?<![\w:])(?=(?:{'|'.join(map(re.escape, members))})(?!\w))")
            found |= {f"{owner}::{m}": own.sub(f"{owner}::", t) for m, t in members.items()}
        return {**found, **traits_of(masked, self.kernel, self.instance or ()).numbers}

    @property
    def names(self) -> frozenset[str]:
        """All names that the launch configuration depends on."""
        site = self.site
        texts = (*site.grid, *site.block, site.shared, *site.template_arguments)
        return names_behind(texts, self.definitions)

    @property
    def definitions(self) -> dict[str, str]:
        """What constants of the file and variables of the host code stand for."""
        stated = {constant.name: constant.value for constant in self.source.constants}
        return {**stated, **self.site.definitions}

    @property
    def problem_sizes(self) -> frozenset[str]:
        """The names of the arrays' sizes and of what the kernel is handed, but of no block."""
        source, site = self.source, self.site
        if self.is_guessed:
            return frozenset()
        variables = {name: Assigned(text, 0) for name, text in site.definitions.items()}
        texts = [a.size for a in allocations_in(source, (0, len(source.masked)), variables)]
        passed = zip(self.kernel.parameters, site.arguments, strict=False)
        texts += [text for parameter, text in passed if parameter.dtype in INTEGERS]
        return names_behind(texts, site.definitions) - names_behind(site.block, site.definitions)

    @property
    def block(self) -> tuple[int, ...]:
        """The block's extents where they are numbers, else nothing; none of 1 at the end."""
        scope = Scope(definitions={**self.constants, **self.site.definitions})
        texts = [self.value(extent) for extent in self.site.block]
        numbers = [number(translate(text, scope) or text) for text in texts]
        plain = [n for n in numbers if isinstance(n, int) and n > 0]
        if len(plain) < len(numbers):
            return ()
        while len(plain) > 1 and plain[-1] == 1:
            plain.pop()
        return tuple(plain)

    @property
    def block_names(self) -> tuple[str, ...]:
        """The block's extents as the names or expressions that host variables stand for."""
        return tuple(map(self.follow, self.site.block))

    @property
    def instance(self) -> tuple[str, ...] | None:
        """A text for every template parameter; None where the source does not say them all."""
        parameters = self.kernel.template
        own = [self.follow(text) for text in self.site.template_arguments[: len(parameters)]]
        texts = [*own, *(parameter.default for parameter in parameters[len(own) :])]
        defining = ("class", "alias", "function")
        named = {d.name for d in self.source.definitions if d.kind in defining}
        known = tuple(
            text
            for text in texts
            if text is not None
            # what was extracted is an instantiation that is known as a whole
            and (
                self.source.host_from is not None
                or number(self.value(text)) is not None
                or bare_name(text) in named
                or element_dtype(text, self.source.aliases) is not None
            )
        )
        packed = any("..." in parameter.kind for parameter in parameters)
        return known if len(known) == len(parameters) and not packed else None

    def template_values(self, index: int) -> Iterator[str]:
        """Yield the values that the file's launches give to one template parameter."""
        for site in self.source.launches_of(self.kernel.name):
            if len(site.template_arguments) > index:
                launch = HostLaunch(self.source, self.kernel, site)
                yield launch.value(site.template_arguments[index])

    def follow(self, text: str) -> str:
        """Follow host variables to what they stand for."""
        for _ in range(_MAX_HOPS):
            text = self.site.definitions.get(text, text)
        return text

    def expand(self, text: str) -> str:
        """Write what variables and constants stand for in place of their names."""
        known = self.definitions
        for _ in range(_MAX_HOPS):
            before, text = text, IDENTIFIER.sub(lambda m: known.get(m[0], m[0]), text)
            if text == before or len(text) > 20_000:
                break
        return text

    def value(self, text: str) -> str:
        """Follow host variables, then the file's constants."""
        text = self.follow(text)
        name = text.rpartition("::")[2]
        constants = [c for c in self.source.constants if c.name == name]
        # `sizes::kBlock`, but of a class only its launch knows what `Plan::kThreads` is computed of
        values = {c.value for c in constants if name == text or c.number is not None}
        if not values and (limit := LIMITS.get(name)) is not None:
            return str(limit)
        return values.pop() if len(values) == 1 else text

    def types(self) -> dict[str, str]:
        """Map template parameters to the types they stand for, on top of the file's aliases."""
        aliases = dict(self.source.aliases)
        instance = self.instance
        for index, parameter in enumerate(self.kernel.template):
            aliases.pop(parameter.name, None)
            if parameter.is_type and instance is not None:
                aliases[parameter.name] = instance[index]
        return {**aliases, **traits_of(self.source.masked, self.kernel, instance or ()).types}


_MAX_FRAMES = 4
_MAX_PATHS = 8


def paths_to(launch: HostLaunch) -> tuple[Path, ...]:
    """List the ways on which host code reaches the launch, one where nobody in the file calls."""
    paths = _ways_to(launch)
    reaching = (path for path in paths if not Host(launch.source, path).is_ruled_out)
    return tuple(reaching) or paths


def _ways_to(launch: HostLaunch) -> tuple[Path, ...]:
    # whatever an `if` on the way asks
    if launch.is_guessed:
        return ()
    functions, calls = functions_in(launch.source.masked), calls_in(launch.source.masked)
    spans = tuple(function.span for function in functions)

    def paths(at: int, line: int, depth: int) -> Iterator[Path]:
        around = [f for f in functions if f.span[0] <= at < f.span[1]]
        variables = find_assignments(launch.source.masked, spans, at)
        conditions = launch.conditions if not depth else conditions_of(launch.source.masked, at)
        if not around:
            yield (Frame((0, at), line, variables, {}, conditions),)
            return
        own = max(around, key=lambda function: function.span[0])
        callers = [
            call
            for call in calls
            if call.name == own.name
            and len(call.arguments) <= len(own.parameters)
            and not own.span[0] <= call.at < own.span[1]
        ]
        if not callers or depth >= _MAX_FRAMES:
            yield (Frame(own.span, line, variables, {}, conditions),)
            return
        for call in callers:
            names = (parameter.name for parameter in own.parameters)
            passed = dict(zip(names, call.arguments, strict=False))
            frame = Frame(own.span, line, variables, passed, conditions)
            for rest in paths(call.at, call.line, depth + 1):
                yield (frame, *rest)

    return tuple(islice(paths(launch.site.at, launch.site.line, 0), _MAX_PATHS))
