"""What the constants stand for that host code hands to a generic lambda: `launch(Width<4>{})`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tuner.source.facts import Span
from tuner.source.syntax import closing, fold, listed, split_list

_LAMBDA = re.compile(r"\b(\w+)\s*=\s*\[[^\[\]]*\]\s*(?=\()")
_GENERIC = re.compile(r"(?:const\s+)?auto\s*&{0,2}\s*(\w+)")
_CONSTANT = re.compile(
    r"(?:std::|cuda::std::|::)*(?:integral_constant<\s*[\w:]+\s*,\s*(?P<value>[^<>]+?)\s*>"
    r"|bool_constant<\s*(?P<flag>\w+)\s*>|(?P<word>true|false)_type)\s*[({]\s*[)}]"
)
_VALUE = re.compile(
    r"(?:std::\s*(?:decay|remove_\w+)_t\s*<\s*)?decltype\s*\(\s*(-?\w+)\s*\)\s*>?\s*::\s*value\b"
    r"|(?<![\w.])(-?\d+|true|false)(?:\s*\.\s*value\b|\s*\(\s*\))"
)


@dataclass(frozen=True, slots=True)
class GenericLambda:
    """A lambda with `auto` parameters: `places` maps their places in its list to their names."""

    name: str
    span: Span
    places: tuple[tuple[int, str], ...]


def generic_lambdas(masked: str) -> Iterator[GenericLambda]:
    """List the generic lambdas of host code that have a name."""
    for match in _LAMBDA.finditer(masked):
        pieces, end = listed(masked, match.end())
        brace = masked.find("{", end) if end else -1
        stop = closing(masked, brace) if brace >= 0 and ";" not in masked[end:brace] else None
        found = ((n, _GENERIC.fullmatch(piece.strip())) for n, piece in enumerate(pieces))
        places = tuple((n, one[1]) for n, one in found if one is not None)
        if stop is not None and places:
            yield GenericLambda(match[1], (match.start(), stop), places)


def passed_constants(masked: str, to: GenericLambda) -> Iterator[tuple[tuple[str, str], ...]]:
    """Yield what one call after another hands over: the parameters' names with their values."""
    for match in re.finditer(rf"\b{to.name}\s*(?=\()", masked):
        end = closing(masked, match.end()) or match.end()
        pieces = [
            fold(text) for text, _ in split_list(masked[match.end() + 1 : end - 1], angles=True)
        ]
        known = {n: _CONSTANT.fullmatch(pieces[n]) for n, _ in to.places if n < len(pieces)}
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
