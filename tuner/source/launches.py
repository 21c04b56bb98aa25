"""Find launches in host code: `<<<grid, block>>>`, cudaLaunchKernelEx and cudaLaunchKernel."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.source.accesses import find_assignments
from tuner.source.facts import (
    LaunchSite,
    LineIndex,
    Span,
    bare_name,
    within,
)
from tuner.source.syntax import (
    closing,
    closing_angle,
    fold,
    listed,
    number,
    opening,
    split_list,
)

_CALLED = re.compile(r"((?:\w+\s*::\s*)*\w+)\s*$")
_RUNTIME = re.compile(r"\bcudaLaunch(?:CooperativeKernel|KernelExC?|Kernel)\s*(?=\()")
# `attribute[0].val.clusterDim.x = 2;`, `.clusterDim = {2, 1, 1}`
_CLUSTER = re.compile(r"\bclusterDim(?:\.([xyz])\s*=([^;=]+);|\s*=\s*\{([^{};]*)\})")
# a framework's helper: LaunchKernel(grid, block, device)(kernel, arguments...)
_HELPER = re.compile(r"(?<![\w.>])(?!cu)\w*LaunchKernel(?:\s+\w+)?\s*(?=\()")
_CHAINED = re.compile(r"\s*\.\s*\w+\s*(?=\()")
_MEMBER = re.compile(
    r"\bconstexpr\s+(?:auto|void)\s*[*(&]*\s*(\w+)[^=;{}]*=\s*&?\s*([\w:]+(?:<[^;{}]*>)?)\s*;"
)
# what only a framework's object knows: `x.size(0)`
_ASKED = re.compile(r"[\w)\]]\s*(?:\.|->)\s*[a-z]\w*\s*\(")
_DIM3 = re.compile(r"^(?:dim3\s*)?(?=[({])")
_HEAD = re.compile(r"(\w+)\s*(?=\()")
_LAMBDA = re.compile(r"\bauto\s*&*\s*(\w+)\s*=\s*\[[^\]]*\]\s*(?=\()")
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_PART = re.compile(r"(?<![\w.])[A-Za-z_]\w*\.\w+")
_TYPE = re.compile(r"\b(?!const\b|struct\b)[A-Za-z_]\w*(?=\s*[&*]|\s+\w)")
_BUILT = re.compile(r"([\w:]*)\s*(?=[{(])")
_NESTED = re.compile(r"(?<=\{)[^{}]+(?=\})|(?<=\()[^()]+(?=\))")
_FIELD = re.compile(r"(?:^|(?<=[;{})]))\s*\w[\w:<>\s*&]*?[\s*&](\w+)\s*(?:=[^;]*|\{\})?;")
_GLOBAL = re.compile(
    r"^(?:static\s+)?(?:unsigned\s+)?(?:int|long|size_t|u?int\d+_t|dim3)\s+(\w+)\s*=([^;,{}]+);",
    re.M,
)
_CONSTANT_BLOCK = re.compile(r"\bconst(?:expr)?\s+dim3\s+(\w+)\s*([({][^;]*[)}])\s*;")
_ELEMENT = re.compile(r"(\w+)\s*\[[^\[\]]*\]")
# `fast ? &a : &b`
_BRANCHES = re.compile(r"(?:[^?:;]|::)*\?|(?<!:):(?!:)")
_MAX_HOPS = 4


def find_launches(
    masked: str, lines: LineIndex, functions: tuple[Span, ...]
) -> tuple[LaunchSite, ...]:
    """List all launches in the order of the text; `functions` bound the search for variables."""
    # a launch inside a macro is one like any other, but for the line ends
    masked = masked.replace("\\\n", " \n")
    # `int block_size = 256;` outside of functions, which nobody changes
    outside = (m for m in _GLOBAL.finditer(masked) if not within(m.start(), functions))
    changed = r"\b{0}\s*(?:[-+*/%&|^]|<<|>>)?=(?!=)|&\s*{0}\b|\b{0}\s*(?:\+\+|--)"
    once = (m for m in outside if len(re.findall(changed.format(m[1]), masked)) == 1)
    known = {match[1]: fold(match[2]) for match in once}
    blocks = [m for m in _CONSTANT_BLOCK.finditer(masked) if not within(m.start(), functions)]
    names = [match[1] for match in blocks]  # of two namespaces each may have one
    known |= {match[1]: fold(match[2]) for match in blocks if names.count(match[1]) == 1}
    finder = _Finder(masked, lines, functions, known)
    sites = [*finder.chevrons(), *finder.runtime(), *finder.find_helper_launches()]
    sites += [site for own in sites for site in finder.calls_of_helper(own)]
    return tuple(sorted(sites, key=lambda site: site.line))


_OPENS = re.compile(r"\s*(?=\()")


@dataclass(frozen=True, slots=True)
class _Finder:
    masked: str
    lines: LineIndex
    functions: tuple[Span, ...]
    globals: Mapping[str, str]

    def chevrons(self) -> Iterator[LaunchSite]:
        masked = self.masked
        for match in re.finditer("<<<", masked):
            end = _end_of_config(masked, match.end())
            called = _parse_callee(masked, match.start())
            if end is None or called is None:
                continue
            config = [fold(piece) for piece, _ in split_list(masked[match.end() : end])]
            after = _OPENS.match(masked, end + 3)
            passed = listed(masked, after.end())[0] if after is not None else ()
            name, arguments, at = called
            own = {called[:2]: None} if arguments else self.pointees(name, at)
            for one, set_at in own.items():
                site = self.site(one, config, passed, at, self.known(at))
                yield replace(site, set_at=set_at)

    def pointees(self, name: str, at: int) -> dict[tuple[str, tuple[str, ...]], int | None]:
        """Map what a pointer to a function is set to, the last first, else its name, to where."""
        start = max((a for a, b in self.functions if a <= at < b), default=0)
        declared = rf"(?:\(\s*\*\s*{name}\s*\)\s*\([^;{{}}=]*\)|(?<![\w.>]){name})"
        set_to = re.compile(rf"{declared}\s*=(?!=)\s*([^;{{}}]+);")
        texts = [(m[1], m.start(1)) for m in set_to.finditer(self.masked, start, at)][::-1]
        if texts and (element := _ELEMENT.fullmatch(fold(texts[0][0]))) is not None:
            return self.pointees(element[1], at)
        # `void (*table[])(float*, int) = {&one<2>, &one<4>};`, in the function or outside of it
        table = re.compile(
            rf"(?<![\w.>]){name}\s*\[[^\]]*\]\s*(?:\)\s*\([^;{{}}=]*\)\s*)?=\s*\{{([^{{}};]+)\}}"
        )
        for match in table.finditer(self.masked, 0, at):
            listed_ones = split_list(match[1], angles=True)
            texts += ((piece, match.start(1) + offset) for piece, offset in listed_ones)
        found: dict[tuple[str, tuple[str, ...]], int | None] = {}
        for text, offset in texts:
            ends = [0, *(match.end() for match in _BRANCHES.finditer(text))]
            for first, piece in zip(ends, _BRANCHES.split(text), strict=True):
                if (one := _callee(fold(piece), {})) is not None:
                    # past the white space, in the branch itself
                    inside = first + len(piece) - len(piece.lstrip())
                    found.setdefault(one, offset + inside)
        return found or {(name, ()): None}

    def runtime(self) -> Iterator[LaunchSite]:
        for match in _RUNTIME.finditer(self.masked):
            pieces, known = self.passed(match.end()), self.known(match.start())
            if "Ex" in match[0]:
                if len(pieces) < 2 or (called := _callee(pieces[1], known)) is None:
                    continue
                config = _config(pieces[0].lstrip("& "), known)
                site = self.site(called, config, pieces[2:], match.start(), known)
                yield replace(site, cluster=self.cluster(match.start()))
            elif len(pieces) >= 3 and (called := _callee(pieces[0], known)) is not None:
                config = [*pieces[1:3], *pieces[4:5]]
                yield self.site(called, config, [], match.start(), known)

    def find_helper_launches(self) -> Iterator[LaunchSite]:
        masked = self.masked
        for match in _HELPER.finditer(masked):
            config, end = listed(masked, match.end())
            while end and (chained := _CHAINED.match(masked, end)):
                end = closing(masked, chained.end()) or 0
            if not end or len(config) < 2 or not masked[end:].lstrip().startswith("("):
                continue
            pieces = self.passed(masked.index("(", end))
            known = self.members() | self.known(match.start())
            if pieces and (called := _callee(pieces[0], known)) is not None:
                config = (*config[:2], *config[3:4])
                yield self.site(called, config, pieces[1:], match.start(), known)

    def calls_of_helper(self, own: LaunchSite, depth: int = 0) -> Iterator[LaunchSite]:
        """Find the launches by calls of a function, or a lambda, whose parameter `own` launches."""
        helper = self.helper(own)
        if helper is None or depth >= _MAX_HOPS:
            return
        name, parameters, (start, end) = helper
        for match in re.finditer(rf"(?<![\w.>]){name}\s*(?=[(<])", self.masked):
            at = match.end()
            if self.masked[at] == "<":
                at = closing_angle(self.masked, at) or at
            if start <= match.start() < end or not self.masked.startswith("(", at):
                continue
            pieces, known = self.passed(at), self.known(match.start())
            passed = dict(zip(parameters, pieces, strict=False))
            called = _callee(passed.get(own.kernel, ""), known)
            if called is None:
                continue
            for parameter, text in [*passed.items()]:
                passed |= self.parts(parameter, parameters[parameter], text, known)

            def substitute_passed_values(text: str, passed: Mapping[str, str] = passed) -> str:
                text = _PART.sub(lambda word: passed.get(word[0], word[0]), text)
                return _WORD.sub(lambda word: passed.get(word[0], word[0]), text)

            inside = {
                n: substitute_passed_values(text)
                for n, text in own.definitions.items()
                if n not in passed
            }
            shared = substitute_passed_values(own.shared)
            config = [
                _join_extents(own.grid, substitute_passed_values),
                _join_extents(own.block, substitute_passed_values),
                shared,
            ]
            handed = [substitute_passed_values(text) for text in own.arguments if "..." not in text]
            if len(handed) < len(own.arguments):
                handed += pieces[len(parameters) :]
            site = self.site(called, config, handed, match.start(), {**inside, **known})
            site = replace(site, cluster=tuple(map(substitute_passed_values, own.cluster)))
            yield site
            yield from self.calls_of_helper(site, depth + 1)

    def parts(
        self, name: str, declared: str, text: str, known: Mapping[str, str]
    ) -> dict[str, str]:
        # the members of a struct that is passed: `Config{grid, block}`, or braces alone
        whole = _resolve_name(text, known)
        match = _BUILT.match(whole)
        if match is None or closing(whole, match.end()) != len(whole):
            return {}
        c_type = bare_name(match[1]) or next(iter(_TYPE.findall(declared)), "")
        struct = re.search(rf"\bstruct\s+{c_type}\s*(?=\{{)", self.masked) if c_type else None
        end = closing(self.masked, struct.end()) if struct is not None else None
        if struct is None or end is None:
            return {}
        inside = self.masked[struct.end() + 1 : end - 1]
        while (plain := _NESTED.sub("", inside)) != inside:
            inside = plain
        pieces = listed(whole, match.end())[0]
        fields = [member[1] for member in _FIELD.finditer(inside)]
        return {f"{name}.{field}": piece for field, piece in zip(fields, pieces, strict=False)}

    def helper(self, own: LaunchSite) -> tuple[str, dict[str, str], Span] | None:
        # the function or lambda around a launch that has what is launched as a parameter
        around = [span for span in self.functions if span[0] <= own.at < span[1]]
        heads = [(span, _HEAD.search(self.masked, *span)) for span in sorted(around)]
        heads += [
            ((match.start(), end), match)
            for span in around[-1:]
            for match in _LAMBDA.finditer(self.masked, span[0], own.at)
            if (body := self.masked.find("{", match.end())) >= 0
            and (end := closing(self.masked, body)) is not None
            and end > own.at
        ]
        for span, match in reversed(heads):
            pieces, end = listed(self.masked, match.end()) if match is not None else ((), 0)
            declared = [text.partition("=")[0].rstrip() for text in pieces if "..." not in text]
            names = {found[-1]: text for text in declared if (found := _WORD.findall(text))}
            if match is not None and end and own.kernel in names:
                return match[1], names, span
        return None

    def cluster(self, at: int) -> tuple[str, ...]:
        start = max((a for a, b in self.functions if a <= at < b), default=0)
        said = dict[str, str]()
        for match in _CLUSTER.finditer(self.masked, start, at):
            pieces = [match[2]] if match[1] else [text for text, _ in split_list(match[3])]
            said |= dict(zip(match[1] or "xyz", map(fold, pieces), strict=False))
        return tuple(said.get(axis, "1") for axis in "xyz") if said else ()

    def passed(self, start: int) -> list[str]:
        # commas of a kernel's template arguments separate none of the launch's
        joined: list[str] = []
        for piece in listed(self.masked, start)[0]:
            if joined and joined[-1].count("<") > joined[-1].count(">"):
                joined[-1] += f", {piece}"
            else:
                joined.append(piece)
        return joined

    def known(self, end: int) -> dict[str, str]:
        values = find_assignments(self.masked, self.functions, end)
        return {**self.globals, **{name: value.text for name, value in values.items()}}

    def members(self) -> dict[str, str]:
        # `static constexpr auto kernel = scale<T, 8>;` in the class that launches it
        found: dict[str, set[str]] = {}
        for match in _MEMBER.finditer(self.masked):
            if not within(match.start(), self.functions):
                found.setdefault(match[1], set()).add(fold(match[2]))
        return {name: values.pop() for name, values in found.items() if len(values) == 1}

    def site(
        self,
        called: tuple[str, tuple[str, ...]],
        config: Sequence[str],
        arguments: Sequence[str],
        at: int,
        known: Mapping[str, str],
    ) -> LaunchSite:
        grid, block, shared = [*config, "", "", ""][:3]
        name, template_arguments = called
        if not template_arguments:
            name, template_arguments = _callee(name, known) or called
        return LaunchSite(
            kernel=name,
            template_arguments=template_arguments,
            grid=_extents(grid, known, named=True),
            block=_extents(block, known),
            shared=shared or "0",
            arguments=tuple(arguments),
            line=self.lines.at(at),
            definitions=known,
            at=at,
        )


def _join_extents(extents: Sequence[str], stated: Callable[[str], str]) -> str:
    texts = [stated(text) for text in extents]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})" if texts else ""


def _end_of_config(masked: str, start: int) -> int | None:
    position = start
    while position < len(masked):
        if masked.startswith(">>>", position):
            return position
        if masked[position] in ";}":
            return None
        inside = closing(masked, position) if masked[position] in "({[" else None
        position = inside or position + 1
    return None


def _parse_callee(masked: str, end: int) -> tuple[str, tuple[str, ...], int] | None:
    end = len(masked[:end].rstrip())
    while masked[:end].endswith(")"):  # `(scale<T, 8>)<<<...>>>`, as macros have it
        before = opening(masked, end - 1, stop=";{}")
        if before is None or re.search(r"[\w>\])]\s*$", masked[:before]):
            return None  # `choose(n)<<<...>>>` names no kernel
        end = len(masked[: end - 1].rstrip())
    arguments: tuple[str, ...] = ()
    if masked[:end].endswith(">"):
        angle = opening(masked, end - 1, "<>", stop=";{}")
        if angle is None:
            return None
        inside = masked[angle + 1 : end - 1]
        arguments = tuple(fold(piece) for piece, _ in split_list(inside, angles=True))
        end = angle
    elif masked[:end].endswith("]"):  # an element of a table
        end = opening(masked, end - 1, "[]", stop=";{}") or end
    match = _CALLED.search(masked[max(0, end - 400) : end])
    if match is None:
        return None
    return re.sub(r"\s", "", match[1]), arguments, end - len(match[0])


def _resolve_name(text: str, known: Mapping[str, str]) -> str:
    for _ in range(_MAX_HOPS):
        text = known.get(text, text)
    return text


def _callee(text: str, known: Mapping[str, str]) -> tuple[str, tuple[str, ...]] | None:
    text = _resolve_name(text, known)
    text = re.sub(r"^\(\s*(?:const\s+)?void\s*\*\s*\)|^reinterpret_cast<.*?>\s*", "", text)
    bare = text.strip("&() ")
    found = _parse_callee(bare, len(bare))
    return found and found[:2]


def _config(name: str, known: Mapping[str, str]) -> list[str]:
    whole = known.get(name, "")
    if pieces := split_list(whole[whole.find("{") + 1 : -1]):
        return [fold(piece) for piece, _ in pieces]
    fields = ("gridDim", "blockDim", "dynamicSmemBytes")
    return [known.get(f"{name}.{field}", "") for field in fields]


def _extents(name: str, known: Mapping[str, str], *, named: bool = False) -> tuple[str, ...]:
    own = name.rpartition("::")[2]
    text = _resolve_name(own if own in known else name, known)
    match = _DIM3.match(text)
    if named and not match and (number(text) is not None or _ASKED.search(text)):
        # a size that the problem may have a name for
        return (name,)
    if f"{text}.x" in known:
        return tuple(known[f"{text}.{axis}"] for axis in "xyz" if f"{text}.{axis}" in known)
    if match and closing(text, match.end()) == len(text):
        return _assigned_again(name, listed(text, match.end())[0], known)
    return _assigned_again(name, (text,), known) if text else ()


def _assigned_again(
    name: str, extents: tuple[str, ...], known: Mapping[str, str]
) -> tuple[str, ...]:
    # `block.x = 32 * ((block.x + 31) / 32);` behind `dim3 block(width);`
    found = list(extents)
    for place, axis in enumerate("xyz"):
        member = f"{name.strip()}.{axis}"
        if (text := known.get(member)) is not None:
            found += ["1"] * (place + 1 - len(found))
            found[place] = re.sub(rf"\b{re.escape(member)}\b", f"({found[place]})", text)
    return tuple(found)
