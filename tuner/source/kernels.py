"""Read a kernel's head, name the dtypes in it, and compare it with the arguments of a space."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path

from tuner.model.errors import ExpressionError, KernelError
from tuner.model.expressions import Expression
from tuner.model.kernel import DTYPE_BYTES, Argument, KernelSpec
from tuner.source.facts import (
    KernelFunction,
    KernelParameter,
    LaunchBounds,
    LineIndex,
    Span,
    TemplateParameter,
)
from tuner.source.syntax import closing, closing_angle, fold, number, opening, split_list, top_level

_NAMES: dict[str, tuple[str, ...]] = {
    "bool": ("bool",),
    "int8": ("int8_t",),
    "uint8": ("uint8_t", "uchar", "byte", "__nv_fp8_storage_t"),
    "int16": ("int16_t",),
    "uint16": ("uint16_t", "ushort"),
    "int32": ("int32_t",),
    "uint32": ("uint32_t", "uint"),
    "int64": ("int64_t", "ptrdiff_t", "ssize_t", "intptr_t"),
    "uint64": ("uint64_t", "size_t", "uintptr_t", "ulong"),
    "float16": ("half", "__half", "nv_half", "Half", "half_t"),
    "bfloat16": ("__nv_bfloat16", "nv_bfloat16", "BFloat16", "bfloat16_t", "__bf16"),
    "float32": ("float", "float32_t"),
    "float64": ("double", "float64_t"),
    "float8_e4m3": ("__nv_fp8_e4m3", "Float8_e4m3fn", "float_e4m3_t"),
    "float8_e5m2": ("__nv_fp8_e5m2", "Float8_e5m2", "float_e5m2_t"),
}
_DTYPES = {name: dtype for dtype, names in _NAMES.items() for name in names}
_VECTORS = {
    "half2": "float16",
    "__half2": "float16",
    "nv_bfloat162": "bfloat16",
    "__nv_bfloat162": "bfloat16",
    "float": "float32",
    "double": "float64",
    "int": "int32",
    "uint": "uint32",
    "char": "int8",
    "uchar": "uint8",
    "short": "int16",
    "ushort": "uint16",
    "longlong": "int64",
    "ulonglong": "uint64",
}
_INTEGER_WORDS = frozenset(("unsigned", "signed", "long", "short", "int", "char"))
# namespaces whose members of these names are the types meant above
_NAMESPACES = re.compile(r"^(?:::)?(?:cuda::std|std|c10|at|torch|cutlass)::|^::")
_QUALIFIER = re.compile(r"\b(?:const|volatile|typename|struct)\b")
_MAX_ALIASES = 8


def dtype_of(c_type: str, aliases: Mapping[str, str]) -> str | None:
    """Name the dtype of a scalar C++ type, or None where it is not one for certain."""
    name = " ".join(_QUALIFIER.sub(" ", c_type).split())
    for _ in range(_MAX_ALIASES):
        name = " ".join(_QUALIFIER.sub(" ", aliases.get(name, name)).split())
    name = _NAMESPACES.sub("", name.replace(" ::", "::").replace(":: ", "::"))
    words = name.split()
    if not words or not _INTEGER_WORDS.issuperset(words):
        return _DTYPES.get(name)
    # `long` has 64 bits on every system where CUDA 13 runs but Windows
    sizes = {"char": 8, "short": 16, "long": 64}
    bits = next((size for word, size in sizes.items() if word in words), 32)
    return f"{'u' if 'unsigned' in words else ''}int{bits}"


def element_dtype(c_type: str, aliases: Mapping[str, str]) -> str | None:
    """Name the dtype of a type or, for `float4` and its like, of its elements: a guess."""
    dtype = dtype_of(c_type, aliases)
    if dtype is not None:
        return dtype
    name = aliases.get(c_type, c_type)
    return _VECTORS.get(name) or _VECTORS.get(name.rstrip("0123456789"))


def lanes_of(c_type: str, aliases: Mapping[str, str]) -> int:
    """Count the elements of a type: 4 of `float4`, 1 of a plain one."""
    if dtype_of(c_type, aliases) is not None:
        return 1
    name = aliases.get(c_type, c_type)
    digits = name[-1] if name in _VECTORS else re.sub(r".*?(\d*)$", r"\1", name)
    return int(digits) if digits.isdigit() else 1


# a struct of numbers of one type is as a vector of them, and one of several as its bytes
_STRUCT = re.compile(
    r"\bstruct\s+(?:(?:__align__|alignas)\s*\(\s*(?P<align>\w+)\s*\)\s*)?(?P<name>\w+)?\s*"
    r"\{(?P<members>[^{}()]*)\}\s*(?P<last>\w+)?\s*;"
)
_MOST_HOPS = 4
_EXTENTS = r"\w+\s*(?:\[[^\[\]]*\]\s*)*"
_MEMBERS = re.compile(rf"\s*((?:unsigned\s+)?\w+)\s+({_EXTENTS}(?:,\s*{_EXTENTS})*)$")
_NUMBERS = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([\w \t()*/+-]+)$"
    r"|\bconstexpr\s+\w+\s+(\w+)\s*=\s*([^;,]+);",
    re.MULTILINE,
)


def plain_structs(masked: str) -> dict[str, str]:
    """Map structs of numbers to `float6` and its like, those of several types to `uchar24`."""
    found: dict[str, str] = {}
    numbers = {m[1] or m[3]: m[2] or m[4] for m in _NUMBERS.finditer(masked)}
    for match in _STRUCT.finditer(masked):
        rows = [row for row in match["members"].split(";") if row.strip()]
        declared = [_MEMBERS.match(row) for row in rows]
        kinds = {element_dtype(one[1], found) for one in declared if one is not None}
        names = [(one[1], name) for one in declared if one for name in one[2].split(",")]
        sizes = [
            [_whole_number(text, numbers) for text in re.findall(r"\[([^\[\]]*)\]", name)]
            for _, name in names
        ]
        dtype = kinds.pop() if len(kinds) == 1 else None
        word = next((word for word, of in _VECTORS.items() if of == dtype and word.isalpha()), "")
        if not all(declared) or not all(n for one in sizes for n in one):
            continue
        # a member may be a struct itself, or an array of them: `Complex e[3][3]`
        lanes = [lanes_of(kind, found) for kind, _ in names]
        counts = [prod(one) * n for one, n in zip(sizes, lanes, strict=True)]
        count = sum(counts)
        if not word and not match["align"] and (size := _mixed_bytes(names, counts, found)):
            dtype, word, count = "uint8", "uchar", size
        if not word:
            continue
        if dtype and count * DTYPE_BYTES[dtype] % int(number(match["align"] or "1") or 1):
            continue  # padded to its alignment
        found |= {name: f"{word}{count}" for name in (match["name"], match["last"]) if name}
    return found


def _whole_number(text: str, numbers: Mapping[str, str]) -> int:
    # `QK / 2`, with what the file defines; 0 where that is unknown
    for _ in range(_MOST_HOPS):
        text = re.sub(r"[A-Za-z_]\w*", lambda m: f"({numbers.get(m[0], m[0])})", text)
        with suppress(ExpressionError):
            size = Expression.parse(text.strip().replace("/", "//"))
            if not size.names:
                return size.integer({})
    return 0


def _mixed_bytes(
    names: list[tuple[str, str]], counts: list[int], found: Mapping[str, str]
) -> int | None:
    # the bytes of a struct with such members; None where one of them is unknown
    size, widest = 0, 1
    for (kind, _), count in zip(names, counts, strict=True):
        dtype, lanes = element_dtype(kind, found), lanes_of(kind, found)
        if dtype is None or found.get(kind, "").startswith("uchar"):
            return None
        # a vector of CUDA's lies at a multiple of its size, of three numbers at one of theirs
        whole = lanes if lanes in (2, 4) and kind not in found else 1
        each = min(DTYPE_BYTES[dtype] * whole, 16)
        size, widest = -(-size // each) * each + DTYPE_BYTES[dtype] * count, max(widest, each)
    return -(-size // widest) * widest


_TEMPLATE = re.compile(r"\s*template\s*(?=<)")
_BOUNDS = re.compile(r"__launch_bounds__\s*(?=\()")
_CLUSTER = re.compile(r"__cluster_dims__\s*(?=\()")
_NAME = re.compile(r"([A-Za-z_]\w*)\s*(?:<[^()]*>)?\s*$")

_ATTRIBUTE = re.compile(
    r"\b(?:__restrict__|__restrict|restrict|__grid_constant__|volatile|struct|typename|register)\b"
    r"|\[\[.*?\]\]"
    r"|\b(?:__align__|alignas|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)"
)
_LAST_NAME = re.compile(r"(?<![\w:])([A-Za-z_]\w*)$")
# a template parameter that is a function: `float (*Op)(float)`
_FUNCTION = re.compile(r"\(\s*[*&]\s*([A-Za-z_]\w*)\s*\)\s*\(")
_TYPE_WORDS = frozenset(("unsigned", "signed", "long", "short", "int", "char", "float", "double"))


def read_kernel(
    masked: str, span: Span, body: Span, path: Path, lines: LineIndex, aliases: Mapping[str, str]
) -> KernelFunction | None:
    """Read the kernel that `span` holds; None where its head has no name and parameter list."""
    start = span[0]
    head = masked[start : body[0]]
    template, after = read_template(head, start, lines)
    bounds, head = _bounds(head, start, lines)
    cluster, head = _cluster(head)
    close = head.rstrip().rfind(")")
    at = opening(head, close)
    name = _NAME.search(head, after - start, at) if at is not None else None
    if at is None or name is None:
        return None
    known = dict(aliases)
    for parameter in template:
        known.pop(parameter.name, None)
    parameters, certain = _parameters(head[at + 1 : close], start + at + 1, lines, known)
    return KernelFunction(
        name=name[1],
        path=path,
        line=lines.at(start + name.start()),
        span=span,
        body=body,
        name_at=start + name.start(),
        parameters=parameters,
        parameters_known=certain,
        template=template,
        bounds=bounds,
        cluster=cluster,
    )


def read_template(
    head: str, start: int, lines: LineIndex
) -> tuple[tuple[TemplateParameter, ...], int]:
    """Read `template <...>` before a definition at an offset; give where it ends, too."""
    match = _TEMPLATE.match(head)
    end = closing_angle(head, match.end()) if match else None
    if match is None or end is None:
        return (), start
    inside = match.end() + 1
    found = []
    for text, place in split_list(head[inside : end - 1], angles=True):
        declared, equals, default = text.partition("=")
        named = _LAST_NAME.search(declared.rstrip()) or _FUNCTION.search(declared)
        if named is None:
            continue
        kind = fold(declared[: named.start()])
        if named.re is _FUNCTION:
            kind = fold(declared[: named.start(1)] + declared[named.end(1) :])
        stated, at = default.lstrip() if equals else None, start + inside + place
        span = at, at + len(text)
        found.append(TemplateParameter(named[1], kind, span, lines.at(at), stated))
    return tuple(found), start + end


def _bounds(head: str, start: int, lines: LineIndex) -> tuple[LaunchBounds | None, str]:
    match = _BOUNDS.search(head)
    end = closing(head, match.end()) if match else None
    if match is None or end is None:
        return None, head
    inside = match.end() + 1
    pieces = split_list(head[inside : end - 1])
    rest = head[: match.start()] + " " * (end - match.start()) + head[end:]
    if not pieces:
        return None, rest
    spans = [(start + inside + at, start + inside + at + len(text)) for text, at in pieces]
    two = len(pieces) > 1
    return LaunchBounds(
        max_threads=pieces[0][0],
        max_threads_span=spans[0],
        line=lines.at(start + match.start()),
        min_blocks=pieces[1][0] if two else None,
        min_blocks_span=spans[1] if two else None,
    ), rest


def _cluster(head: str) -> tuple[tuple[str, ...], str]:
    match = _CLUSTER.search(head)
    end = closing(head, match.end()) if match else None
    if match is None or end is None:
        return (), head
    extents = tuple(fold(text) for text, _ in split_list(head[match.end() + 1 : end - 1]))
    return extents, head[: match.start()] + " " * (end - match.start()) + head[end:]


def _parameters(
    text: str, start: int, lines: LineIndex, aliases: Mapping[str, str]
) -> tuple[tuple[KernelParameter, ...], bool]:
    pieces = split_list(text, angles=True)
    if [piece for piece, _ in pieces] in ([], ["void"]):
        return (), True
    if re.search(r"^\s*#", text, re.MULTILINE):
        return (), False
    read = [read_parameter(piece, lines.at(start + at), aliases) for piece, at in pieces]
    parameters = tuple(parameter for parameter in read if parameter is not None)
    return parameters, len(parameters) == len(read)


def read_parameter(text: str, line: int, aliases: Mapping[str, str]) -> KernelParameter | None:
    """Read one parameter as a function declares it; None where it is no plain one."""
    declared = fold(_ATTRIBUTE.sub(" ", text[: top_level(text, "=")]))
    array = re.search(r"(?:\s*\[[^\]]*\])+$", declared)
    declared = declared[: array.start()] if array else declared
    match = _LAST_NAME.search(declared)
    name, kind = (match[1], declared[: match.start()].rstrip()) if match else ("", declared)
    if match and not re.sub(r"\bconst\b", "", kind).strip(" "):
        # a lone word: the type of an unnamed parameter, or a macro that stands for anything
        name, kind = "", declared
        if dtype_of(kind, aliases) is None:
            return None
    elif name in _TYPE_WORDS or name == "const":
        name, kind = "", declared
    if "(" in kind or ")" in declared or "..." in declared:
        return None
    outside = _outside_angles(kind)
    first = min((at for at in (outside.find("*"), outside.find("&")) if at >= 0), default=len(kind))
    base = kind[:first]
    c_type = fold(re.sub(r"\bconst\b", " ", base))
    if not c_type:
        return None
    return KernelParameter(
        name=name,
        c_type=c_type,
        pointers=outside.count("*") + (array is not None),
        const=re.search(r"\bconst\b", _outside_angles(base)) is not None,
        dtype=dtype_of(c_type, aliases),
        line=line,
    )


def _outside_angles(text: str) -> str:
    depth, kept = 0, []
    for character in text:
        depth -= character == ">"
        kept.append(" " if depth > 0 or character in "<>" else character)
        depth += character == "<"
    return "".join(kept)


def check_arguments(spec: KernelSpec, kernel: KernelFunction, maps: int = 0) -> None:
    """Raise `KernelError` where the declared arguments cannot be the kernel's parameters.

    Behind them it takes so many tensor maps. What the source leaves open (template types, unknown
    typedefs, macros in the list) is accepted.
    """
    if not kernel.parameters_known:
        return
    arguments, parameters = spec.arguments, kernel.parameters
    where = f"kernel {kernel.name!r} ({kernel.path}:{kernel.line})"
    _check_maps(spec, where, parameters, maps)
    parameters = parameters[: len(parameters) - maps] if maps else parameters
    declared, own = [a.name for a in arguments], [p.name for p in parameters]
    line = arguments[0].line if arguments else None
    if len(arguments) != len(parameters):
        before = f" before {maps} tensor map{'s' * (maps > 1)}" if maps else ""
        message = f"{len(arguments)} arguments, but {where} has {len(parameters)} parameters"
        message += before
        remedy = "the kernel takes: " + ", ".join(p.declaration for p in parameters)
        raise KernelError(message, path=spec.path, line=line, remedy=remedy)
    if declared != own and sorted(declared) == sorted(own):
        message = f"the arguments are in another order than in {where}"
        remedy = "write them in the kernel's order: " + ", ".join(own)
        raise KernelError(message, path=spec.path, line=line, remedy=remedy)
    for argument, parameter in zip(arguments, parameters, strict=True):
        if found := _mismatch(argument, parameter):
            raise KernelError(
                f"argument {argument.name!r} {found[0]}: kernel {kernel.name!r} takes "
                f"`{parameter.declaration}` ({kernel.path}:{parameter.line or kernel.line})",
                path=spec.path,
                line=argument.line,
                remedy=found[1],
            )


def _check_maps(
    spec: KernelSpec, where: str, parameters: Sequence[KernelParameter], maps: int
) -> None:
    first = max(len(parameters) - maps, 0)
    as_many = len(parameters) == len(spec.arguments) + maps
    for place, parameter in enumerate(parameters):
        named = parameter.c_type.lower().endswith("tensormap") and not parameter.pointers
        if place < first and named:
            message = f"{where} takes the tensor map `{parameter.name}`, and its launch has none"
            remedy = f"give the launch `maps: [{{of: {parameter.name}, box: [64, 64]}}]`"
            if first < len(parameters):
                message = f"{where} takes the tensor map `{parameter.name}` before others"
                remedy = "tensor maps are the last parameters, in the order of the launch's `maps`"
        elif place >= first and as_many and not named and (parameter.pointers or parameter.dtype):
            message = f"{where} takes `{parameter.declaration}` where its launch has a tensor map"
            remedy = f"make it `const __grid_constant__ tune::TensorMap {parameter.name}`"
        else:
            continue
        raise KernelError(message, path=spec.path, remedy=remedy)


def _mismatch(argument: Argument, parameter: KernelParameter) -> tuple[str, str] | None:
    if parameter.pointers and argument.is_scalar:
        # an optional pointer is passed as a 64-bit zero
        null = argument.value is not None and argument.value.text == "0"
        fits = null and argument.dtype in ("int64", "uint64")
        return None if fits else ("is a scalar", "give it a shape and a role")
    if parameter.pointers and parameter.const and argument.is_written:
        return f"has role {argument.role}", "write `role: input`, or take another argument"
    if parameter.pointers > 1 or parameter.dtype is None:
        return None
    if not parameter.pointers and not argument.is_scalar:
        return "is an array", f"give it `dtype: {parameter.dtype}` and a `value`, not a shape"
    declared, own = argument.dtype, parameter.dtype
    # signedness aside: a kernel may take `int*` where the data is thought of as unsigned
    integers, size = (
        ["int" in dtype or dtype == "bool" for dtype in (declared, own)],
        DTYPE_BYTES[own],
    )
    # and fp8, half and bfloat16 as bytes or as unsigned short, which it casts inside
    fits = all(integers) or (parameter.pointers > 0 and integers[1] and size <= 2)
    if declared == own or (fits and size == DTYPE_BYTES[declared]):
        return None
    return f"is {declared}", f"write `dtype: {own}`"
