"""Where an #include leads: to a file of the project, to the toolkit, or to what is not there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tuner.source.syntax import closing, split_list

_NAMED = re.compile(r"#\s*include(?:_next)?\s*(?:<(?P<angled>[^>\n]+)>|\"(?P<quoted>[^\"\n]+)\")")
# what NVRTC brings, or stands in for (tuner/compiler/shims.py)
_TOOLKIT = re.compile(
    r"cuda_(?:fp\d\w*|bf16)\.h(?:pp)?|math_constants\.h|vector_(?:types|functions)\.h|mma\.h"
    r"|cuda_(?:pipeline|awbarrier)\w*\.h|cooperative_groups(?:/.*|\.h)|nv/target|curand_kernel\.h"
    r"|cuda/.*|cub/.*|(?:assert|float|limits|math|stddef|stdint|stdio)\.h"
    r"|c(?:assert|float|limits|math|stddef|stdint|stdio)|(?:sm_\d+|device)_\w+\.h(?:pp)?"
)
# cub's own list of everything, which NVRTC refuses
_WHOLE = ("cub/cub.cuh",)
_FRAMEWORK = re.compile(
    r"(?:torch|ATen|c10|pybind11|tvm|dlpack|cutlass|cute|thrust|nccl\w*|nvToolsExt)\b"
    r"|Python\.h|\w*extension\w*\.h|cu(?:blas|sparse|dnn|fft)\w*\.h"
)
_HOST = re.compile(
    r"cuda(?:_runtime\w*|_profiler\w*|Typedefs)?\.h|curand\.h|device_launch_parameters\.h"
    r"|[a-z_]+|(?:stdlib|string|time|unistd|getopt|errno|sys/\w+)\.h"
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
    """Find out where an #include leads.

    Looked in are the includer's folder, `folders`, and each `include` beside a folder above.
    """
    places = _places(includer, quoted, folders)
    found = next((place / name for place in places if (place / name).is_file()), None)
    if found is not None:
        shown = found if includer.is_absolute() else Path(os.path.relpath(found))
        return Include(name, quoted, "own", shown)
    if _TOOLKIT.fullmatch(name):
        return Include(name, quoted, "toolkit")
    if _FRAMEWORK.match(name):
        return Include(name, quoted, "framework")
    if not quoted and _HOST.fullmatch(name):
        return Include(name, quoted, "host")
    return Include(name, quoted, "missing")


def is_plain(name: str, quoted: bool) -> bool:
    """Whether a header is the toolkit's or the host compiler's, as plain CUDA files have them."""
    if re.fullmatch(r"helper_\w+\.h", name):
        # of CUDA's samples, for their host code
        return True
    whole = name in _WHOLE
    host = not quoted and _HOST.fullmatch(name) is not None
    return not whole and (host or _TOOLKIT.fullmatch(name) is not None)


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
}
_TYPE = re.compile(rf"(?<![\w:])(?:::\s*)?(?:at|c10|torch)\s*::\s*({'|'.join(_TYPES)})\b")
# a type in which a framework computes with another
_COMPUTING = re.compile(r"(?<![\w:])(?:::\s*)?at\s*::\s*(?:opmath_type|acc_type)\s*<[^<>]*>")
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
}
_MACROS = {
    "C10_HOST_DEVICE": "__host__ __device__",
    "C10_DEVICE": "__device__",
    "C10_HOST": "__host__",
    "C10_RESTRICT": "__restrict__",
    "C10_ALWAYS_INLINE": "__forceinline__",
    "C10_WARP_SIZE": "32",
    "C10_LAUNCH_BOUNDS_0": "__launch_bounds__(256, 4)",
    "C10_LAUNCH_BOUNDS_1(threads)": "__launch_bounds__(threads)",
    "C10_LAUNCH_BOUNDS_2(threads, blocks)": "__launch_bounds__(threads, blocks)",
    "CUDA_KERNEL_ASSERT(condition)": "assert(condition)",
    "WARP_SHFL_XOR(value, lanes)": "__shfl_xor_sync(0xffffffff, value, lanes)",
    "WARP_SHFL_DOWN(value, lanes)": "__shfl_down_sync(0xffffffff, value, lanes)",
    "WARP_SHFL(value, lane)": "__shfl_sync(0xffffffff, value, lane)",
    "CUDA_KERNEL_LOOP(i, n)": (
        "for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += blockDim.x * gridDim.x)"
    ),
}


def replaced(text: str, masked: str, own: frozenset[str]) -> str:
    """Write CUDA's names for the frameworks' types and macros; lines keep their numbers.

    `masked` is the code of `text`, `own` what the project's files define themselves.
    """
    pieces, at = [], 0
    found = [(m.span(), _TYPES[m[1]]) for m in _TYPE.finditer(masked)]
    found += [(m.span(), "float") for m in _COMPUTING.finditer(masked)]
    found += _expanded(masked, own)
    for (start, end), name in sorted(found):
        pieces += [text[at:start], name]
        at = end
    return "".join([*pieces, text[at:]])


def _expanded(masked: str, own: frozenset[str]) -> Iterator[tuple[tuple[int, int], str]]:
    heads = {head.partition("(")[0]: head for head in _MACROS}
    for match in re.finditer(r"\b[A-Z][A-Z0-9_]+\b", masked):
        head = heads.get(match[0])
        if head is None or match[0] in own:
            continue
        if "(" not in head:
            yield match.span(), _MACROS[head]
        elif masked[match.end() : match.end() + 1] == "(":
            end = closing(masked, match.end()) or match.end() + 1
            names = [name for name, _ in split_list(head.partition("(")[2][:-1])]
            passed = [text for text, _ in split_list(masked[match.end() + 1 : end - 1])]
            values = dict(zip(names, passed, strict=False))
            body = re.sub(r"\w+", lambda word: values.get(word[0], word[0]), _MACROS[head])  # noqa: B023
            lines = masked.count("\n", match.start(), end)
            yield (match.start(), end), body + "\n" * lines


def dispatched_types(macro: str, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """List the types that one of PyTorch's AT_DISPATCH macros gives `scalar_t`; () for another."""
    match = re.match(r"AT_DISPATCH_(REDUCED_FLOATING|FLOATING|INTEGRAL|ALL)_TYPES\w*", macro)
    if match is None:
        return ()
    more = [_SCALARS[m[1]] for text in arguments for m in _SCALAR.finditer(text) if "." not in text]
    return tuple(dict.fromkeys((*_DISPATCHED[match[1]], *more)))
