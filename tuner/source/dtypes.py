"""C++ types as array dtypes, through the aliases of a file; None for what cannot be known."""

from __future__ import annotations

import re
from collections.abc import Mapping

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
        if name not in aliases:
            break
        name = " ".join(_QUALIFIER.sub(" ", aliases[name]).split())
    name = _NAMESPACES.sub("", name.replace(" ::", "::").replace(":: ", "::"))
    words = name.split()
    if words and _INTEGER_WORDS.issuperset(words):
        return _integer(words)
    return _DTYPES.get(name)


def element_dtype(c_type: str, aliases: Mapping[str, str]) -> str | None:
    """Name the dtype of a type or, for `float4` and its like, of its elements: a guess."""
    dtype = dtype_of(c_type, aliases)
    if dtype is not None:
        return dtype
    name = aliases.get(c_type, c_type)
    return _VECTORS.get(name) or _VECTORS.get(name[:-1] if name[-1:] in "234" else "")


def _integer(words: list[str]) -> str:
    unsigned = "u" if "unsigned" in words else ""
    if "char" in words:
        return f"{unsigned}int8"
    if "short" in words:
        return f"{unsigned}int16"
    # 64 bits on every system where CUDA 13 runs but Windows
    return f"{unsigned}int64" if "long" in words else f"{unsigned}int32"
