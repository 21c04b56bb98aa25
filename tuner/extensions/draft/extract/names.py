"""Names of frameworks and macros of a project, written as CUDA's own."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.source.facts import IDENTIFIER
from tuner.source.host import Edit, apply_edits
from tuner.source.syntax import closing, fold, listed, mask

FRAMEWORKS = tomllib.loads(Path(__file__).with_name("frameworks.toml").read_text(encoding="utf-8"))
_SCALARS, _DISPATCHED = FRAMEWORKS["scalars"], FRAMEWORKS["dispatched"]
_TYPES = {name: of for name, of in _SCALARS.items() if of.startswith("__")}
# of other hardware: the name alone is asked for
_TYPES |= {name: f"c10::{name}" for name in ("Float8_e4m3fnuz", "Float8_e5m2fnuz")}
_ANNOTATED = re.compile(
    r"(?<!\])\]((?:\s*\b__(?:host|device|forceinline)__\b)+)\s*(?=[({]|mutable\b)"
)
# PyTorch's way from bits to a number, when the type is CUDA's
_FROM_BITS = re.compile(
    rf"\b({'|'.join(_TYPES.values())})\s*\(((?:[^,()]|\([^()]*\))*),"
    r"\s*\1\s*::\s*from_bits\s*\(\s*\)\s*\)"
)
# PyTorch's conversion to CUDA's type, which it is already, unless a class of the project has one
_TO_HALF = re.compile(r"\.\s*operator\s+(?:__half|half|__nv_bfloat16)\s*\(\s*\)")
_HALF_CLASS = re.compile(r"(?<!\.)\boperator\s+(?:__half|half|__nv_bfloat16)\s*\(\s*\)\s*const")
STAND_INS = Path(__file__).with_name("stand_ins.h")
ARITHMETIC = STAND_INS.with_name("arithmetic.h")
_SCOPES = frozenset(("at", "c10", "cub", "cuda", "cuda_utils", "detail", "memory", "native", "std"))
# what follows `at::` in device code
DEVICE_NAMES = tuple(
    sorted({*_TYPES, *IDENTIFIER.findall(mask(STAND_INS.read_text(encoding="utf-8")))} - _SCOPES)
)
_TYPE = re.compile(
    r"(?<![\w:])(?:::\s*)?(?:at|c10|torch)\s*::\s*(?:headeronly\s*::\s*)?"
    rf"({'|'.join(_TYPES)})\b"
)
# a type in which a framework computes with another
_COMPUTING = re.compile(
    r"(?<![\w:])(?:typename\s+)?(?P<scope>(?:::\s*)?at\s*::\s*)?(?:opmath_type|acc_type(?:_device)?"
    r"|OpMathType|AccumulateType)\s*<\s*(?P<of>[\w:]+)[^<>]*>(?:\s*::\s*type\b)?"
)
# a file that may leave `at::` out
_INSIDE = re.compile(r"\bnamespace\s+at\b")
_SCALAR = re.compile(rf"\b(?:at::|torch::)?(?:ScalarType::)?k?({'|'.join(_SCALARS)})\b")
DEFINE = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)(\([^)]*\))?((?:[^\n\\]|\\\n|\\.)*)", re.MULTILINE
)
_MAX_EXPANSIONS = 6
# what stands for a piece of code that is handed to a macro
_CODE = "the_code_that_is_passed"


@dataclass(frozen=True, slots=True)
class Macro:
    """One macro: its parameters, None for one without a list, and its text."""

    name: str
    parameters: tuple[str, ...] | None
    body: str


def macros_in(code: str) -> dict[str, Macro]:
    """Map names to the macros that a text defines, the last of each name."""
    found = {}
    for match in DEFINE.finditer(code):
        parameters = listed(match[2], 0)[0] if match[2] else None
        found[match[1]] = Macro(match[1], parameters, fold(match[3]))
    return found


def expand_macro(
    macro: Macro,
    arguments: Sequence[str],
    known: Mapping[str, Macro],
    depth: int = 0,
    *,
    with_code: bool = False,
) -> str:
    """Expand one use of a macro, and the macros in it; code that is passed is left aside.

    `with_code` puts it where the macro does.
    """
    passed = [_CODE if "{" in text and not with_code else text for text in arguments]
    values: dict[str, str] = {}
    for place, name in enumerate(macro.parameters or ()):
        if name.endswith("..."):
            values[name.removesuffix("...").strip() or "__VA_ARGS__"] = ", ".join(passed[place:])
        elif place < len(passed):
            values[name] = passed[place]
    text = re.sub(r"(?<!#)#\s*\w+", '""', macro.body)
    text = re.sub(r"[A-Za-z_]\w*", lambda match: values.get(match[0], match[0]), text)
    text = re.sub(r"\s*##\s*", "", text)
    if depth >= _MAX_EXPANSIONS:
        return text
    edits, at = [], 0
    for match in re.finditer(r"([A-Za-z_]\w*)\s*(?=\()", text):
        inner = known.get(match[1])
        if match.start() < at or inner is None or inner.parameters is None:
            continue
        inside, end = listed(text, match.end())
        if end and inner.name != macro.name:
            made = expand_macro(inner, inside, known, depth + 1, with_code=with_code)
            edits.append(Edit(match.start(), at := end, made))
    return apply_edits(text, edits)


_LITERAL = re.compile(r'"(?:\\.|[^"\\\n])*"')
# stands for a literal while macros are expanded: its commas and brackets mean nothing
_PLACE = re.compile(r"\bstring_literal_(\d+)\b")


def without_strings(text: str, strings: list[str]) -> str:
    """Put names for the literals in `text`, which are appended to `strings`; blank comments."""
    masked, edits = mask(text), []
    for match in _LITERAL.finditer(text):
        # what a comment holds is blank
        if not masked[match.start() : match.end()].strip():
            edits.append(Edit(*match.span(), f"string_literal_{len(strings)}"))
            strings.append(match[0])
    return apply_edits(masked, edits)


def with_strings(text: str, strings: Sequence[str]) -> str:
    """Put the literals back in place of their names."""
    return _PLACE.sub(lambda match: strings[int(match[1])], text)


_FRAMEWORKS = macros_in(Path(__file__).with_name("frameworks.h").read_text(encoding="utf-8"))


def replace_names(text: str, masked: str, own: frozenset[str]) -> str:
    """Write CUDA's names for frameworks' types and macros that are not `own`; lines stay."""
    edits = [Edit(*m.span(), _TYPES[m[1]]) for m in _TYPE.finditer(masked)]
    inside = _INSIDE.search(masked) is not None
    edits += [
        Edit(*m.span(), "double" if m["of"] == "double" else "float")
        for m in _COMPUTING.finditer(masked)
        if m["scope"] or inside
    ]
    edits += _expand_frameworks(text, masked, own)
    text = _FROM_BITS.sub(_cast_of_bits, apply_edits(text, edits))
    if _HALF_CLASS.search(text) is None:
        text = _TO_HALF.sub("", text)
    return _USING.sub("", _without_annotations(text))


# `using at::Half;`, which `using __half;` is not
_USING = re.compile(r"\busing\s+(?:__half|__nv_\w+)\s*;")


def _cast_of_bits(match: re.Match[str]) -> str:
    bits = "uint8_t" if re.search(r"8_e|fp8", match[1]) else "uint16_t"
    return f"__builtin_bit_cast({match[1]}, static_cast<{bits}>({match[2].strip()}))"


def _without_annotations(text: str) -> str:
    # `[&] __device__ (int i) {`: NVRTC takes none there, and needs none
    spans = (match.span(1) for match in _ANNOTATED.finditer(mask(text)))
    return apply_edits(text, (Edit(*span, "\n" * text.count("\n", *span)) for span in spans))


def _expand_frameworks(text: str, masked: str, own: frozenset[str]) -> Iterator[Edit]:
    for match in re.finditer(r"\b[A-Z][A-Z0-9_]+\b", masked):
        macro = _FRAMEWORKS.get(match[0])
        if macro is None or match[0] in own:
            continue
        if macro.parameters is None:
            yield Edit(*match.span(), macro.body)
        elif masked.startswith("(", match.end()):
            end = closing(masked, match.end()) or match.end() + 1
            strings: list[str] = []
            arguments, _ = listed(without_strings(text[match.end() : end], strings), 0)
            lines = "\n" * masked.count("\n", match.start(), end)
            expansion = with_strings(expand_macro(macro, arguments, {}), strings)
            yield Edit(match.start(), end, expansion + lines)


_DISPATCHES = re.compile(
    r"(AT|\w+?)_DISPATCH_(?:CASE_)?(?:(REDUCED_FLOATING|FLOATING|INTEGRAL|ALL)(?:_AND_HALF)?_TYPES"
    r"|(INDEX|FP8)_TYPES|CASE\b|V2\b)\w*"
)


def dispatched_types(macro: str, arguments: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Give the name that a macro like PyTorch's AT_DISPATCH gives types, and the types.

    No types for another macro. Of one that no file defines, its name says the types.
    """
    match = _DISPATCHES.fullmatch(macro)
    if match is None:
        return "", ()
    stated = "AT_FLOATING_TYPES" in " ".join(arguments)
    kind = match[2] or match[3] or ("FLOATING" if stated else "")
    types = _DISPATCHED.get(kind, ())
    if match[1] != "AT" and kind == "FLOATING":
        types = ("float", *_DISPATCHED["REDUCED_FLOATING"])
    texts = [text for text in arguments if not re.search(r"[.{]", text)]
    more = [_SCALARS[m[1]] for text in texts for m in _SCALAR.finditer(text)]
    # FLOATING_TYPES_AND_HALF, ..._AND_BFLOAT16
    more += [name for word, name in FRAMEWORKS["added"].items() if word in macro.upper()]
    name = {"INDEX": "index_t", "FP8": "fp8_t"}.get(kind, "scalar_t")
    return name, tuple(dict.fromkeys((*types, *more)))
