"""What only frameworks have and kernels use all the same: their names for CUDA's own things."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tuner.source.syntax import closing, split_list

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
# C++'s own library: NVRTC has none, but what CUDA ships instead
_STANDARD = {
    "algorithm": "max min clamp",
    "array": "array",
    "bit": "bit_cast bit_ceil bit_floor countl_zero countr_zero has_single_bit popcount",
    "concepts": "same_as integral floating_point convertible_to derived_from signed_integral"
    " unsigned_integral",
    "cstddef": "size_t ptrdiff_t byte nullptr_t",
    "functional": "plus multiplies minus divides less greater",
    "limits": "numeric_limits",
    "tuple": "tuple make_tuple tie get apply tuple_size_v",
    "utility": "pair make_pair swap exchange declval index_sequence make_index_sequence"
    " integer_sequence make_integer_sequence index_sequence_for in_place",
    "type_traits": "",
}
# from the stand-ins of tuner/compiler/shims.py, or built in
_MATHS = "abs ceil cos erf exp fabs floor fma fmax fmin isfinite isinf isnan log pow sin sqrt tanh"
_ELSEWHERE = {
    **dict.fromkeys(_MATHS.split(), "cmath"),
    **{f"{u}int{bits}_t": "cstdint" for u in ("", "u") for bits in (8, 16, 32, 64, "ptr")},
}
_BUILT_IN = frozenset(("move", "forward", "initializer_list"))
_STD = re.compile(r"(?<![\w:])(?:::)?std\s*::\s*(\w+)")


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


def standard_library(masked: str) -> tuple[list[str], list[str]]:
    """Write what makes `std::` mean something in device code: plain includes, and a stand-in."""
    names = {match[1] for match in _STD.finditer(masked)} - _BUILT_IN
    plain = sorted({_ELSEWHERE[name] for name in names if name in _ELSEWHERE})
    homes = {name: home for home, listed in _STANDARD.items() for name in listed.split()}
    own = {name: homes.get(name, "type_traits") for name in sorted(names - _ELSEWHERE.keys())}
    if not own:
        return plain, []
    headers = sorted(set(own.values()))
    return plain, [
        "#ifndef __CUDA_ON_HOST__",
        *(f"#include <cuda/std/{header}>" for header in headers),
        "namespace std {",
        *(f"using ::cuda::std::{name};" for name in own),
        "}  // namespace std",
        "#else",
        *(f"#include <{header}>" for header in headers),
        "#endif",
    ]
