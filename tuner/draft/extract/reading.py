"""Read a source and the project's headers that it includes, as a CUDA compiler would see them."""

from __future__ import annotations

import ast
import operator as operators
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tuner.model.errors import KernelError
from tuner.source.facts import IDENTIFIER, Span
from tuner.source.reader import source_text
from tuner.source.syntax import closing, fold, integer, listed, mask
from tuner.source.unsupported import require_cuda

_NAMED = re.compile(r"#\s*include(?:_next)?\s*(?:<(?P<angled>[^>\n]+)>|\"(?P<quoted>[^\"\n]+)\")")
# what NVRTC brings, or stands in for (tuner/compiler/shims)
_TOOLKIT = re.compile(
    r"cuda_(?:fp\d\w*|bf16)\.h(?:pp)?|math_constants\.h|vector_(?:types|functions)\.h|mma\.h"
    r"|cuda_(?:pipeline|awbarrier)\w*\.h|cooperative_groups(?:/.*|\.h)|nv/target|curand_kernel\.h"
    r"|cuda/.*|cub/.*|(?:assert|float|limits|math|stddef|stdint|stdio)\.h"
    r"|c(?:assert|float|limits|math|stddef|stdint|stdio)|(?:sm_\d+|device)_\w+\.h(?:pp)?"
)

_FRAMEWORK = re.compile(
    r"(?:torch|ATen|c10|pybind11|tvm|dlpack|cutlass|cute|thrust|nccl\w*|nvToolsExt)\b"
    r"|Python\.h|\w*extension\w*\.h|cu(?:blas|sparse|dnn|fft)\w*\.h"
)
_HOST = re.compile(
    r"cuda(?:_runtime\w*|_profiler\w*|Typedefs)?\.h|curand\.h|device_launch_parameters\.h"
    r"|[a-z_]+|(?:std(?:lib|bool|arg|align)|inttypes|string|time|unistd|getopt|errno|sys/\w+)\.h"
)
# how far above a file a folder `include` is looked for
_LEVELS = 5

Origin = Literal["own", "toolkit", "framework", "host", "missing"]


@dataclass(frozen=True, slots=True)
class Include:
    """One #include: what it names, and where that is if it is a file of the project."""

    name: str
    quoted: bool
    origin: Origin
    path: Path | None = None

    def __str__(self) -> str:
        marks = '""' if self.quoted else "<>"
        return f"#include {marks[0]}{self.name}{marks[1]}"


def parsed_include(directive: str) -> tuple[str, bool] | None:
    """Read the name in an #include and whether it is quoted; None where a macro stands for it."""
    match = _NAMED.match(directive.strip())
    if match is None:
        return None
    return match["quoted"] or match["angled"], match["quoted"] is not None


def resolved(name: str, quoted: bool, includer: Path, folders: tuple[Path, ...]) -> Include:
    """Look in the includer's folder, `folders`, and each `include` beside a folder above."""
    places = _places(includer, quoted, folders)
    found = next((place / name for place in places if (place / name).is_file()), None)
    if found is not None:
        shown = found if includer.is_absolute() else Path(os.path.relpath(found))
        return Include(name, quoted, "own", shown)
    origin: Origin = "missing"
    if _TOOLKIT.fullmatch(name):
        origin = "toolkit"
    elif _FRAMEWORK.match(name):
        origin = "framework"
    elif not quoted and _HOST.fullmatch(name):
        origin = "host"
    return Include(name, quoted, origin)


def is_plain(name: str, quoted: bool) -> bool:
    """Whether a header is the toolkit's or the host compiler's, as plain CUDA files have them."""
    # helper_*.h are of CUDA's samples, for their host code
    plain = re.fullmatch(r"helper_\w+\.h", name) or _TOOLKIT.fullmatch(name)
    host = not quoted and _HOST.fullmatch(name)
    return bool(plain or host)


def _places(includer: Path, quoted: bool, folders: tuple[Path, ...]) -> Iterator[Path]:
    folder = includer.parent
    if quoted:
        yield folder
    yield from folders
    above = folder.resolve()
    for place in (above, *above.parents[:_LEVELS]):
        yield place / "include"
        if (place / ".git").exists():
            yield place
            return


_TYPES = {
    "Half": "__half",
    "BFloat16": "__nv_bfloat16",
    "Float8_e4m3fn": "__nv_fp8_e4m3",
    "Float8_e5m2": "__nv_fp8_e5m2",
    # of other hardware: the name alone is asked for
    **{name: f"c10::{name}" for name in ("Float8_e4m3fnuz", "Float8_e5m2fnuz")},
}
_ANNOTATED = re.compile(
    r"(?<!\])\]((?:\s*\b__(?:host|device|forceinline)__\b)+)\s*(?=[({]|mutable\b)"
)
# PyTorch's way from bits to a number, when the type is CUDA's
_FROM_BITS = re.compile(
    rf"\b({'|'.join(_TYPES.values())})\s*\(((?:[^,()]|\([^()]*\))*),"
    r"\s*\1\s*::\s*from_bits\s*\(\s*\)\s*\)"
)
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
_SCALAR = re.compile(
    r"\b(?:at::|torch::)?(?:ScalarType::)?k?(Half|BFloat16|Float|Double|Float8_e4m3fn|Float8_e5m2"
    r"|Int|Long|Short|Char|Byte|Bool)\b"
)
_SCALARS = {
    "Half": "__half", "BFloat16": "__nv_bfloat16", "Float": "float", "Double": "double",
    "Float8_e4m3fn": "__nv_fp8_e4m3", "Float8_e5m2": "__nv_fp8_e5m2", "Int": "int",
    "Long": "int64_t", "Short": "int16_t", "Char": "int8_t", "Byte": "uint8_t", "Bool": "bool",
}  # fmt: skip
_DISPATCHED = {
    "FLOATING": ("float", "double"),
    "INTEGRAL": ("int", "int64_t", "int16_t", "int8_t", "uint8_t"),
    "ALL": ("float", "double", "int", "int64_t", "int16_t", "int8_t", "uint8_t"),
    "REDUCED_FLOATING": ("__half", "__nv_bfloat16"),
    "INDEX": ("int", "int64_t"),
    "FP8": ("__nv_fp8_e4m3",),
}
_AND = {"AND_HALF": "__half", "BFLOAT16": "__nv_bfloat16", "BF16": "__nv_bfloat16"}
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


def expanded(
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
    pieces, at = [], 0
    for match in re.finditer(r"([A-Za-z_]\w*)\s*(?=\()", text):
        inner = known.get(match[1])
        if match.start() < at or inner is None or inner.parameters is None:
            continue
        if inner.name == macro.name:
            continue
        inside, end = listed(text, match.end())
        if end:
            made = expanded(inner, inside, known, depth + 1, with_code=with_code)
            pieces += [text[at : match.start()], made]
            at = end
    return "".join([*pieces, text[at:]])


_LITERAL = re.compile(r'"(?:\\.|[^"\\\n])*"')
# stands for a literal while macros are expanded: its commas and brackets mean nothing
_PLACE = re.compile(r"\bstring_literal_(\d+)\b")


def without_strings(text: str, strings: list[str]) -> str:
    """Put names for the literals in `text`, which are appended to `strings`; blank comments."""
    masked = mask(text)
    pieces, at = [], 0
    for match in _LITERAL.finditer(text):
        if match.start() < at or masked[match.start() : match.end()].strip():
            continue
        # what a comment holds is blank around it too
        pieces += [masked[at : match.start()], f"string_literal_{len(strings)}"]
        strings.append(match[0])
        at = match.end()
    return "".join([*pieces, masked[at:]])


def with_strings(text: str, strings: Sequence[str]) -> str:
    """Put the literals back in place of their names."""
    return _PLACE.sub(lambda match: strings[int(match[1])], text)


_FRAMEWORKS = macros_in(Path(__file__).with_name("frameworks.h").read_text(encoding="utf-8"))


def replaced(text: str, masked: str, own: frozenset[str]) -> str:
    """Write CUDA's names for frameworks' types and macros that are not `own`; lines stay."""
    pieces, at = [], 0
    found = [(m.span(), _TYPES[m[1]]) for m in _TYPE.finditer(masked)]
    inside = _INSIDE.search(masked) is not None
    found += [
        (m.span(), "double" if m["of"] == "double" else "float")
        for m in _COMPUTING.finditer(masked)
        if m["scope"] or inside
    ]
    for (start, end), name in sorted([*found, *_expanded(text, masked, own)]):
        pieces += [text[at:start], name]
        at = end
    text = _FROM_BITS.sub(_cast_of_bits, "".join([*pieces, text[at:]]))
    return _USING.sub("", _without_annotations(text))


# `using at::Half;`, which `using __half;` is not
_USING = re.compile(r"\busing\s+(?:__half|__nv_\w+)\s*;")


def _cast_of_bits(match: re.Match[str]) -> str:
    bits = "uint8_t" if re.search(r"8_e|fp8", match[1]) else "uint16_t"
    return f"__builtin_bit_cast({match[1]}, static_cast<{bits}>({match[2].strip()}))"


def _without_annotations(text: str) -> str:
    # `[&] __device__ (int i) {`: NVRTC takes none there, and needs none
    masked = mask(text)
    for match in reversed([*_ANNOTATED.finditer(masked)]):
        start, end = match.span(1)
        text = text[:start] + "\n" * text.count("\n", start, end) + text[end:]
    return text


def _expanded(text: str, masked: str, own: frozenset[str]) -> Iterator[tuple[Span, str]]:
    for match in re.finditer(r"\b[A-Z][A-Z0-9_]+\b", masked):
        macro = _FRAMEWORKS.get(match[0])
        if macro is None or match[0] in own:
            continue
        if macro.parameters is None:
            yield match.span(), macro.body
        elif masked.startswith("(", match.end()):
            end = closing(masked, match.end()) or match.end() + 1
            strings: list[str] = []
            arguments, _ = listed(without_strings(text[match.end() : end], strings), 0)
            lines = "\n" * masked.count("\n", match.start(), end)
            made = with_strings(expanded(macro, arguments, {}), strings)
            yield (match.start(), end), made + lines


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
    more += [name for word, name in _AND.items() if word in macro.upper()]
    name = {"INDEX": "index_t", "FP8": "fp8_t"}.get(kind, "scalar_t")
    return name, tuple(dict.fromkeys((*types, *more)))


# Left to the compiler: they differ between NVRTC, the CPU device and the architectures.
_OPEN = re.compile(
    r"__CUDA_ARCH\w*|__CUDACC_RTC__|__CUDA_ON_HOST__|__CUDACC_VER_\w+|__cplusplus|__has_\w+"
    r"|__cpp_\w+|NDEBUG|_MSC_VER|_WIN(?:32|64)|__GNUC__|__clang__|__linux__|__x86_64__"
)
# __CUDACC__ is every CUDA compiler's; the headers that NVRTC comes with are of 13, CCCL 3.
PREDEFINED = {
    **dict.fromkeys(("__CUDACC__", "__NVCC__"), "1"),
    **dict.fromkeys(("CUDA_VERSION", "CUDART_VERSION"), "13000"),
    **dict.fromkeys(("CUB_MAJOR_VERSION", "THRUST_MAJOR_VERSION"), "3"),
    **dict.fromkeys(("CUB_VERSION", "THRUST_VERSION"), "300000"),
    **{"CCCL_MAJOR_VERSION": "3", "CCCL_MINOR_VERSION": "0", "CCCL_VERSION": "3000000"},
}
# What builds for CUDA define: for the platform, and for types that they add to others.
_PLATFORM_FLAG = re.compile(r"(?:[A-Z0-9]+_)*(?:WITH|USE|ENABLE|HAVE)_CUDA")
_TYPES_OF_BUILDS = r"(?:BF16|BFLOAT16|FP?16|HALF|FP?8(?:_E\dM\d)?|FP?4(?:_E2M1)?)"
_TYPE_FLAG = re.compile(
    rf"(?:[A-Z0-9]+_)*(?:(?:WITH|USE|ENABLE|HAVE)_{_TYPES_OF_BUILDS}"
    rf"|{_TYPES_OF_BUILDS}_(?:AVAILABLE|ENABLED|SUPPORTED))"
)
_DEFINED = re.compile(r"\bdefined\s*(?:\(\s*(\w+)\s*\)|\s(\w+))")
_NUMBER = re.compile(r"\b(0[xX][\da-fA-F]+|\d+)[uUlL]*\b")
_OPERATORS: dict[type[ast.operator] | type[ast.cmpop], Callable[[int, int], int]] = {
    ast.Add: operators.add, ast.Sub: operators.sub, ast.Mult: operators.mul,
    ast.FloorDiv: operators.floordiv, ast.Mod: operators.mod,
    ast.Eq: operators.eq, ast.NotEq: operators.ne,
    ast.Lt: operators.lt, ast.LtE: operators.le, ast.Gt: operators.gt, ast.GtE: operators.ge,
}  # fmt: skip
_MAX_DEPTH = 8


def holds(condition: str, macros: Mapping[str, str | None]) -> bool | None:
    """Evaluate an #if; None where the compiler has to.

    `macros` maps what is defined to its text, or to None where that is not certain.
    """

    def defined(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if _OPEN.fullmatch(name) or (name in macros and macros[name] is None):
            return name
        return "1" if name in macros else "0"

    text = _DEFINED.sub(defined, " ".join(condition.split()))
    text = text.replace("&&", " and ").replace("||", " or ")
    text = re.sub(r"!(?!=)", " not ", text).replace("/", "//")
    try:
        value = _evaluated(text, macros, 0)
    except ArithmeticError:
        return None
    return None if value is None else bool(value)


def _evaluated(text: str, macros: Mapping[str, str | None], depth: int) -> int | None:
    plain = _NUMBER.sub(lambda match: str(integer(match[1])), text).strip()
    try:
        return _value(ast.parse(plain, mode="eval").body, macros, depth)
    except (SyntaxError, ValueError):
        return None


def _value(node: ast.expr, macros: Mapping[str, str | None], depth: int) -> int | None:
    match node:
        case ast.Constant(value=int(number)):
            return int(number)
        case ast.Name(id=name):
            if _OPEN.fullmatch(name) or depth > _MAX_DEPTH:
                return None
            if name not in macros:
                return int(name == "true")
            return _evaluated(macros[name] or "", macros, depth + 1)
        case ast.BoolOp(op=operator, values=values):
            # one that decides is enough, whatever the others are
            decides, is_open = isinstance(operator, ast.Or), False
            for value in (_value(value, macros, depth) for value in values):
                if value is not None and bool(value) == decides:
                    return int(decides)
                is_open = is_open or value is None
            return None if is_open else int(not decides)
        case ast.UnaryOp(op=operator, operand=operand):
            known = _value(operand, macros, depth)
            if known is None:
                return None
            return int(not known) if isinstance(operator, ast.Not) else -known
        case (
            ast.BinOp(left=left, op=sign, right=right)
            | ast.Compare(left=left, ops=[sign], comparators=[right])
        ) if type(sign) in _OPERATORS:
            first, second = _value(left, macros, depth), _value(right, macros, depth)
            if first is None or second is None:
                return None
            return int(_OPERATORS[type(sign)](first, second))
        case _:
            return None


_LONE_NAME = re.compile(r"^[ \t]*([A-Z][A-Z0-9_]{4,})[ \t]*;?[ \t]*$", re.MULTILINE)
_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(\w+)[ \t]*(.*)", re.DOTALL)
_DEFINE = re.compile(r"(\w+)(\([^)]*\))?[ \t]*(.*)", re.DOTALL)
_GUARD = re.compile(r"\s*#[ \t]*ifndef[ \t]+(\w+)\s*\n\s*#[ \t]*define[ \t]+\1\b")
_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b", re.MULTILINE)
# stands in a line that a condition rules out: white space, but not a blank line of the source
REMOVED = "\v"
# begins a line that the source does not have
WRITTEN = "\v"


@dataclass(frozen=True, slots=True)
class SourceCode:
    """One file without the branches that do not hold; lines keep their numbers.

    `included` maps lines to #includes, of a file of the project the first that is read.
    """

    path: Path
    text: str
    masked: str
    included: dict[int, Include]

    def line(self, at: int) -> int:
        return self.text.count("\n", 0, at) + 1


@dataclass(slots=True)
class Reading:
    """All files of a source, itself the last; `dropped` are the conditions that do not hold.

    `flags` are names that a build for CUDA defines and no file does, `halves` macros that open or
    close braces: `KIT_NAMESPACE_BEGIN`. `pending` are the files around the one that is being read.
    """

    folders: tuple[Path, ...]
    files: dict[Path, SourceCode] = field(default_factory=dict)
    dropped: list[tuple[Path, int, str]] = field(default_factory=list)
    flags: dict[str, tuple[Path, int]] = field(default_factory=dict)
    halves: dict[str, Macro] = field(default_factory=dict)
    pending: set[Path] = field(default_factory=set)
    macros: dict[str, str | None] = field(default_factory=lambda: dict(PREDEFINED))

    def unread(self, *origins: str) -> list[tuple[Path, int, Include]]:
        """List the #includes of these origins whose headers were not read, with their places."""
        return [
            (code.path, line, include)
            for code in self.files.values()
            for line, include in code.included.items()
            if include.origin in origins
        ]


@dataclass(slots=True)
class _Group:
    # one #if to #endif: is its present branch read, did one hold for certain, is any left open
    outer: bool
    live: bool = False
    is_taken: bool = False
    is_open: bool = False


def read_all(
    path: Path,
    folders: tuple[Path, ...] = (),
    siblings: tuple[Path, ...] = (),
    defined: frozenset[str] = frozenset(),
) -> Reading:
    """Read a source and its headers; raise `KernelError` for what cannot be read or has no end.

    `siblings` are further files of the project; those that cannot be read are left out. `defined`
    are macros that a build defines.
    """
    for folder in folders:
        if not folder.is_dir():
            raise KernelError(
                "is not a folder", path=folder, remedy="give --include a folder of headers"
            )
    require_cuda(path, source_text(path))
    reading = Reading(folders)
    reading.macros.update(dict.fromkeys(defined, "1"))
    _read(path, reading, ())
    for sibling in siblings:
        with suppress(KernelError):
            _read(sibling, reading, ())
    return reading


def _read(path: Path, reading: Reading, chain: tuple[tuple[Path, int], ...]) -> None:
    reader = _Preprocessor(path, reading, chain)
    whole = path.resolve()
    reading.pending.add(whole)
    reader.read()
    reading.pending.remove(whole)
    text = _whole("\n".join(reader.lines), reading.halves)
    text = _without_scopes_of_others(text, reading.macros)
    text = replaced(text, mask(text), frozenset(reading.macros))
    reading.files[whole] = SourceCode(path, text, mask(text), reader.included)


def _without_scopes_of_others(text: str, macros: Mapping[str, str | None]) -> str:
    # macros alone in a line that open or close a namespace, of headers that are not there
    def kept(match: re.Match[str]) -> str:
        return "" if "NAMESPACE" in match[1] and match[1] not in macros else match[0]

    pieces, at = [], 0
    for match in _LONE_NAME.finditer(mask(text)):
        pieces += [text[at : match.start()], kept(match)]
        at = match.end()
    return "".join([*pieces, text[at:]])


def _whole(text: str, halves: Mapping[str, Macro]) -> str:
    # with macros written out that would leave a definition in pieces
    if not halves:
        return text
    masked, pieces, at = mask(text), [], 0
    for match in re.finditer(rf"^[ \t]*#.*|\b({'|'.join(halves)})\b[ \t]*", masked, re.MULTILINE):
        if match[1] is None or match.start() < at:
            continue
        macro, end = halves[match[1]], match.end()
        arguments: tuple[str, ...] = ()
        if macro.parameters is not None:
            start, end = end, closing(masked, end) or 0 if masked.startswith("(", end) else 0
            arguments = listed(text[start:end], 0)[0] if end else ()
        if end:
            made = expanded(macro, arguments, halves, with_code=True)
            others = {name: one for name, one in halves.items() if name != match[1]}
            lines = "\n" * masked.count("\n", match.start(), end)
            pieces += [text[at : match.start()], _whole(made, others), lines]
            at = end
    return "".join([*pieces, text[at:]])


class _Preprocessor:
    def __init__(self, path: Path, reading: Reading, chain: tuple[tuple[Path, int], ...]) -> None:
        self.path, self.reading, self.chain = path, reading, chain
        text = source_text(path).replace("\r\n", "\n")
        self.lines, self.masked = text.split("\n"), mask(text).split("\n")
        self.groups: list[_Group] = []
        self.included: dict[int, Include] = {}

    @property
    def is_live(self) -> bool:
        return all(group.live for group in self.groups)

    def read(self) -> None:
        at = 0
        while at < len(self.lines):
            end = at + 1
            match = _DIRECTIVE.match(self.masked[at])
            if match is not None:
                while end < len(self.lines) and self.lines[end - 1].endswith("\\"):
                    end += 1
                self.directive(match[1], at, end)
            elif not self.is_live:
                self.lines[at] = REMOVED
            at = end
        if self.groups:
            raise KernelError(
                "has an #if without its #endif", path=self.path, remedy="close it with #endif"
            )

    def directive(self, name: str, at: int, end: int) -> None:
        joined = "\n".join(row.removesuffix("\\") for row in self.masked[at:end])
        match = _DIRECTIVE.match(joined)
        rest = match[2].strip() if match else ""
        if name in ("if", "ifdef", "ifndef", "elif", "else", "endif"):
            self.condition(name, rest, at, end)
            return
        if not self.is_live:
            self.blank(at, end)
        elif name == "include":
            self.include(at)
        elif name == "define" and (defined := _DEFINE.match(rest)):
            value = defined[3].strip() if not defined[2] else ""
            is_certain = not any(group.is_open for group in self.groups)
            self.reading.macros[defined[1]] = value if is_certain else None
            if defined[3].count("{") != defined[3].count("}"):
                self.reading.halves |= macros_in("\n".join(self.masked[at:end]))
        elif name == "undef":
            self.reading.macros.pop(rest, None)
        elif name == "pragma" and rest == "once":
            self.blank(at, end)

    def condition(self, name: str, rest: str, at: int, end: int) -> None:
        if name in ("if", "ifdef", "ifndef"):
            self.groups.append(_Group(self.is_live))
        elif not self.groups:
            raise KernelError(
                f"has an #{name} without its #if", path=self.path, line=at + 1, remedy="remove it"
            )
        group = self.groups[-1]
        if name == "endif":
            self.groups.pop()
            if not group.is_open:
                self.blank(at, end)
            return
        asked = {"ifdef": f"defined({rest})", "ifndef": f"!defined({rest})", "else": "1"}
        condition = asked.get(name, rest)
        was_open, value = group.is_open, None
        if not group.outer or group.is_taken:
            value = False
        else:
            value = holds(condition, self.defined(condition, at))
            group.is_taken, group.is_open = value is True, was_open or value is None
        group.live = group.outer and value is not False
        if value is not None:
            self.blank(at, end)
            if value and was_open:
                self.lines[at] = "#else"
        elif name == "elif" and not was_open:
            self.lines[at] = self.lines[at].replace("elif", "if", 1)
        if value is False and group.outer:
            self.reading.dropped.append((self.path, at + 1, f"#{name} {rest}".strip()))

    def defined(self, condition: str, at: int) -> Mapping[str, str | None]:
        macros = self.reading.macros
        found = [name for name in IDENTIFIER.findall(condition) if name not in macros]
        found = [
            name
            for name in found
            if _PLATFORM_FLAG.fullmatch(name)
            or (_TYPE_FLAG.fullmatch(name) and not self.is_choice(at))
        ]
        for name in found:
            self.reading.flags.setdefault(name, (self.path, at + 1))
        return {**macros, **dict.fromkeys(found, "1")}

    def is_choice(self, at: int) -> bool:
        # is it one of several, of which a build chooses one?
        depth = 0
        for row in self.masked[at:]:
            match = _DIRECTIVE.match(row)
            name = match[1] if match else ""
            depth += name.startswith("if") - (name == "endif")
            if depth == 1 and name == "elif":
                return True
            if depth <= 0 and name:
                return name == "elif"
        return False

    def blank(self, at: int, end: int) -> None:
        self.lines[at:end] = [REMOVED] * (end - at)

    def include(self, at: int) -> None:
        parsed = parsed_include(self.lines[at])
        if parsed is None:
            return
        found = resolved(*parsed, self.path, self.reading.folders)
        if found.path is None:
            self.included[at + 1] = found
            return
        chain = (*self.chain, (self.path, at + 1))
        whole = found.path.resolve()
        if whole in self.reading.pending:
            start = next(i for i, (path, _) in enumerate(chain) if path.resolve() == whole)
            text = mask(source_text(found.path))
            if not _ONCE.search(text) and not _GUARD.match(text):
                raise _cycle(found.path, chain[start:])
        elif whole not in self.reading.files:
            _read(found.path, self.reading, chain)
            self.included[at + 1] = found


_SWITCH = re.compile(r"#(?:el)?if(?:def)?\s+(?:defined\s*)?\(?\s*([A-Z]\w+)\s*\)?")
_OTHERS = re.compile(r"ROCM|HIP|AMD|MUSA|SYCL|XPU|CPU|WIN|DEBUG|TEST|PROFIL")


def guard_of(name: str, dropped: Sequence[tuple[Path, int, str]]) -> str | None:
    """Find the macro that a build would define for a name to be there; None where there is none.

    `dropped` are the conditions that do not hold without it.
    """
    for path, line, condition in dropped:
        match = _SWITCH.fullmatch(condition)
        if match is None or _OTHERS.search(match[1]):
            continue
        depth, rows = 0, mask(source_text(path)).split("\n")[line:]
        for row in rows:
            directive = _DIRECTIVE.match(row)
            kind = directive[1] if directive is not None else ""
            depth += kind.startswith("if") - (kind == "endif")
            if depth < 0 or (depth == 0 and kind in ("else", "elif")):
                break
            if re.search(rf"\b{re.escape(name)}\b", row):
                return match[1]
    return None


def _cycle(path: Path, chain: tuple[tuple[Path, int], ...]) -> KernelError:
    way = " -> ".join([*(f"{place.name}:{line}" for place, line in chain), path.name])
    return KernelError(
        f"the headers include each other in a circle: {way}",
        path=chain[-1][0],
        line=chain[-1][1],
        remedy=f"put `#pragma once` at the top of {path.name}, or take one of the #includes out",
    )
