"""What template arguments a call gives: stated, deduced, defaults, or constants for a lambda."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner.extensions.draft.translate import parse_expression
from tuner.source.accesses import find_assignments
from tuner.source.facts import IDENTIFIER, KernelFunction, KernelParameter, Span, bare_name
from tuner.source.kernels import dtype_of, read_parameter
from tuner.source.syntax import Node, closing, fold, listed, part, split_list, text_of

_TYPE = r"(?:\w+\s*::\s*)*\w+(?:\s*<[^;{}()]*>)?"
# `x.data_ptr<T>()` and its kin
_TYPED = re.compile(r"(?:\.|->)\s*(?:template\s+)?\w*(?:ptr|PTR|data|DATA)\w*\s*$")
_QUALIFIERS = re.compile(r"\b(?:const|volatile|typename|struct|__restrict__|__restrict)\b")
_INSTANTIATION = re.compile(r"(?:extern\s+)?template\b(?!\s*<)")
_MAX_HOPS = 6
_LONGEST_TYPE = 200


@dataclass(frozen=True, slots=True)
class CType:
    """A type without its qualifiers and references."""

    base: str
    pointers: int = 0

    @classmethod
    def of(cls, text: str) -> CType:
        """Read a type as it is written."""
        plain = fold(_QUALIFIERS.sub(" ", text.replace("&", " ")))
        base = plain.rstrip("* ")
        return cls(re.sub(r"\s*::\s*", "::", base), plain.count("*", len(base)))


@dataclass(frozen=True, slots=True)
class TemplateCall:
    """A use of a template at an offset: what its parameters are there, as far as it says."""

    at: int
    arguments: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Calls:
    """Code with its functions: who calls them, and with which types.

    `types` are names of classes and aliases in it.
    """

    masked: str
    functions: tuple[KernelFunction, ...]
    types: frozenset[str]

    def of(self, template: KernelFunction) -> Iterator[TemplateCall]:
        """List the calls and explicit instantiations of a function template."""
        masked = self.masked
        for match in re.finditer(
            rf"(?<![\w.>~])(?:\w+\s*::\s*)*{template.name}\s*(?=[<(])", masked
        ):
            if template.span[0] <= match.start() < template.span[1]:
                continue
            start = max(masked.rfind(mark, 0, match.start()) for mark in ";{}") + 1
            before = re.sub(r"^\s*#.*$", "", masked[start : match.start()], flags=re.MULTILINE)
            is_instance = _INSTANTIATION.match(before.lstrip()) is not None
            if not is_instance and before.lstrip().startswith("template"):
                continue  # a declaration, or a specialisation
            at = match.end()
            stated, end = listed(masked, at) if masked[at] == "<" else ((), at)
            rest = masked[end:].lstrip() if end else ""
            at = len(masked) - len(rest)
            passed = listed(masked, at)[0] if rest.startswith("(") else ()
            if end:
                declared = [read_parameter(text, 1, {}) for text in passed if is_instance]
                types = [CType(p.c_type, p.pointers) if p is not None else None for p in declared]
                types = types if is_instance else self.types_of(passed, match.start())
                yield TemplateCall(match.start(), arguments_of(template, stated, types))

    def types_of(self, passed: Sequence[str], at: int) -> list[CType | None]:
        """Say what types the arguments of a call have, None where the code does not."""
        return [self.type_of(text, at) for text in passed]

    def type_of(self, text: str, at: int, depth: int = 0) -> CType | None:
        """Say what type an expression has at an offset; None where the code does not."""
        parsed = parse_expression(text) if depth <= _MAX_HOPS else None
        return None if parsed is None else self._type_of(*parsed, at, depth)

    def _type_of(self, source: str, node: Node, at: int, depth: int) -> CType | None:
        text, argument, left = text_of(node, source), part(node, "argument"), part(node, "left")
        match node.type:
            case "parenthesized_expression":
                return self._type_of(source, node.named_children[0], at, depth)
            case "identifier":
                return self._variable(text, at, depth)
            case "true" | "false":
                return CType("bool")
            case "number_literal":
                digits = text.lower().replace("'", "")
                if digits.startswith("0x") or not re.search(r"[.e]", digits):
                    return CType("int64_t" if "l" in digits else "int")
                return CType("float" if digits.endswith("f") else "double")
            case "pointer_expression" | "subscript_expression" if argument is not None:
                inner = self._type_of(source, argument, at, depth)
                step = 1 if text[0] == "&" and node.type == "pointer_expression" else -1
                return inner and CType(inner.base, max(inner.pointers + step, 0))
            case "cast_expression" | "compound_literal_expression":
                return CType.of(text_of(part(node, "type"), source))
            case "binary_expression" if left is not None:
                # `x + offset` is a pointer where x is
                inner = self._type_of(source, left, at, depth)
                return inner if inner is not None and inner.pointers else None
            case "call_expression":
                called = text_of(part(node, "function"), source)
                name, _, given = called.partition("<")
                if name.endswith("_cast"):
                    return CType.of(given.rpartition(">")[0])
                if _TYPED.search(name) and given:
                    return CType(CType.of(given.rpartition(">")[0]).base, 1)
                c_type = CType.of(called.strip("()"))  # `T(x)`, `(T)(x)`
                return c_type if self._is_type(c_type.base, at) else None
        return None

    def _is_type(self, name: str, at: int) -> bool:
        inside = (f for f in self.functions if f.span[0] <= at < f.span[1])
        own = {parameter.name for function in inside for parameter in function.template}
        is_known = not (own | self.types).isdisjoint({name, bare_name(name)})
        return is_known or dtype_of(name, {}) is not None

    def _variable(self, name: str, at: int, depth: int) -> CType | None:
        around = [f for f in self.functions if f.span[0] <= at < f.span[1]]
        start = max((f.span[0] for f in around), default=0)
        declared = re.compile(
            rf"(?<![\w.>])((?:const\s+)?{_TYPE}(?:\s+const)?[\s*&]*?[\s*&])"
            rf"(?:__restrict__\s+)?{name}\s*(?=[=;({{,\[])"
        )
        named = re.compile(rf"(?<![\w.>]){name}\s*[=;({{,\[]")
        windows = (
            self.masked[max(start, match.start() - _LONGEST_TYPE) : match.end()]
            for match in named.finditer(self.masked, start, at)
        )
        for match in filter(None, map(declared.search, windows)):
            c_type = CType.of(match[1])
            if c_type.base not in ("auto", "return", "else", "", "using"):
                return c_type
        for function in reversed(around):
            own = next((p for p in function.parameters if p.name == name), None)
            if own is not None:
                return CType(own.c_type, own.pointers)
        spans: tuple[Span, ...] = tuple(f.span for f in self.functions)
        value = find_assignments(self.masked, spans, at).get(name)
        return self.type_of(value.text, at, depth + 1) if value is not None else None


def arguments_of(
    template: KernelFunction, stated: Sequence[str], types: Sequence[CType | None]
) -> dict[str, str]:
    """Map the parameters of a function template to what is stated, deduced, or their default."""
    names = [parameter.name for parameter in template.template]
    found = dict(zip(names, stated, strict=False))
    for parameter, c_type in zip(template.parameters, types, strict=False):
        for name, text in _deduce_arguments(parameter, c_type, names) if c_type is not None else ():
            found.setdefault(name, text)
    for own in template.template:
        if own.default is not None and own.name not in found:
            word = r"(?<![\w.:])[A-Za-z_]\w*"
            found[own.name] = re.sub(word, lambda m: found.get(m[0], m[0]), own.default)
    return found


def _deduce_arguments(
    parameter: KernelParameter, known: CType, names: Collection[str]
) -> Iterator[tuple[str, str]]:
    if parameter.c_type in names:
        more = known.pointers - parameter.pointers
        if more == 0 or (more > 0 and not parameter.pointers):
            yield parameter.c_type, known.base + "*" * more
    elif parameter.pointers == known.pointers:
        yield from _unify(parameter.c_type, known.base, names)


def _unify(pattern: str, text: str, names: Collection[str]) -> Iterator[tuple[str, str]]:
    # `View<T, int>` with `View<float, int>`
    if pattern in names:
        yield pattern, text
    elif "<" in pattern and "<" in text and bare_name(pattern) == bare_name(text):
        lists = (t[t.index("<") + 1 : t.rindex(">")] for t in (pattern, text))
        pairs = zip(*(split_list(one, angles=True) for one in lists), strict=False)
        for (inner, _), (given, _) in pairs:
            yield from _unify(inner, given, names)


_LAMBDA = re.compile(r"\b(\w+)\s*=\s*\[[^\[\]]*\]\s*(?=\()")
# a lambda that a call is handed: `with_block(n, [&](auto block) { ... })`
_HANDED = re.compile(r"\b(\w+)\s*(?=\([^;{}]*\[[^\[\]]*\]\s*\([^()]*\bauto\b)")
_GENERIC = re.compile(r"(?:const\s+)?auto\s*&{0,2}\s*(\w+)")
_CONSTANT_OBJECT = re.compile(
    r"(?:std::|cuda::std::|::)*(?:integral_constant<\s*[\w:]+\s*,\s*(?P<value>[^<>]+?)\s*>"
    r"|bool_constant<\s*(?P<flag>\w+)\s*>|(?P<word>true|false)_type)\s*[({]\s*[)}]"
)
_VALUE = re.compile(
    r"(?:std::\s*(?:decay|remove_\w+)_t\s*<\s*)?decltype\s*\(\s*(-?\w+)\s*\)\s*>?\s*::\s*value\b"
    r"|(?<![\w.])(-?\d+|true|false)(?:\s*\.\s*value\b|\s*\(\s*\))"
)


@dataclass(frozen=True, slots=True)
class GenericLambda:
    """A lambda with `auto` parameters: `places` maps their places in its list to their names.

    It has its `name` in the span `known`.
    """

    name: str
    span: Span
    places: tuple[tuple[int, str], ...]
    known: Span


def generic_lambdas(masked: str) -> Iterator[GenericLambda]:
    """List the generic lambdas of host code that have a name, where they are made or handed to."""
    named = [(m[1], m.start(), m.end(), (0, len(masked))) for m in _LAMBDA.finditer(masked)]
    for call in _HANDED.finditer(masked):
        pieces, _ = listed(masked, call.end())
        place = next((n for n, text in enumerate(pieces) if text.startswith("[")), len(pieces))
        head = re.search(rf"\b{call[1]}\s*(\([^;{{}}()]*\))[^;{{}}()]*(?=\{{)", masked)
        declared = listed(head[1], 0)[0] if head is not None else ()
        start = masked.index("[", call.end())
        opens = masked.index("(", masked.index("]", start))
        if head is not None and place < len(declared):
            name = IDENTIFIER.findall(declared[place])[-1]
            body = (head.end(), closing(masked, head.end()) or head.end())
            named.append((name, start, opens, body))
    for name, start, opens, known in named:
        pieces, end = listed(masked, opens)
        brace = masked.find("{", end) if end else -1
        stop = closing(masked, brace) if brace >= 0 and ";" not in masked[end:brace] else None
        found = ((n, _GENERIC.fullmatch(piece.strip())) for n, piece in enumerate(pieces))
        places = tuple((n, one[1]) for n, one in found if one is not None)
        if stop is not None and places:
            yield GenericLambda(name, (start, stop), places, known)


def passed_constants(masked: str, to: GenericLambda) -> Iterator[tuple[tuple[str, str], ...]]:
    """Yield what one call after another hands over: the parameters' names with their values."""
    for match in re.compile(rf"\b{to.name}\s*(?=\()").finditer(masked, *to.known):
        end = closing(masked, match.end()) or match.end()
        inside = masked[match.end() + 1 : end - 1]
        pieces = [fold(text) for text, _ in split_list(inside, angles=True)]
        known = {n: _CONSTANT_OBJECT.fullmatch(pieces[n]) for n, _ in to.places if n < len(pieces)}
        pairs = [
            (name, one["value"] or one["flag"] or one["word"])
            for n, name in to.places
            if (one := known.get(n)) is not None
        ]
        if pairs:
            yield tuple(pairs)


def with_values(text: str) -> str:
    """Write `decltype(4)::value`, which a constant's type became, as 4."""
    return _VALUE.sub(lambda match: match[1] or match[2], text)
