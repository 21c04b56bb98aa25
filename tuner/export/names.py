"""What names and types of a search space are called in C++."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tuner.kernel import DEVICE_NAMES

SCALAR_TYPES: Mapping[str, str] = {
    "bool": "bool",
    "int8": "std::int8_t",
    "uint8": "std::uint8_t",
    "int16": "std::int16_t",
    "uint16": "std::uint16_t",
    "int32": "std::int32_t",
    "uint32": "std::uint32_t",
    "int64": "std::int64_t",
    "uint64": "std::uint64_t",
    "float32": "float",
    "float64": "double",
}
# Declared in the header without their definitions: a pointer needs no more, and who has only
# addresses includes no header of CUDA's for them.
FORWARD_DECLARED: Mapping[str, str] = {
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float8_e4m3": "__nv_fp8_e4m3",
    "float8_e5m2": "__nv_fp8_e5m2",
}
ARRAY_TYPES: Mapping[str, str] = {**SCALAR_TYPES, **FORWARD_DECLARED}

# ISO C++20, 5.11 and 5.10.
_KEYWORDS = (
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t "
    "char32_t class compl concept const consteval constexpr constinit const_cast continue co_await "
    "co_return co_yield decltype default delete do double dynamic_cast else enum explicit export "
    "extern false float for friend goto if inline int long mutable namespace new noexcept not "
    "not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires "
    "return short signed sizeof static static_assert static_cast struct switch template this "
    "thread_local throw true try typedef typeid typename union unsigned using virtual void "
    "volatile wchar_t while xor xor_eq"
)
# What the header's own code is written with, where a parameter of the same name would hide it.
_OWN = (
    "sum difference product floor_div floor_mod ceil_div shift_left shift_right power magnitude "
    "real_floor_div real_floor_mod real_ceil_div real_power real_magnitude real quotient whole "
    "same narrow Device current_device Dimensions Launch launchable issue fits Point kPoints "
    "NoValue device error stream std dispatch logs least nearest distance point axis apart variant "
    "dim3"
)

_TAKEN = {*_KEYWORDS.split(), *_OWN.split(), *DEVICE_NAMES}


def hidden_by(macros: Collection[str], names: Collection[str]) -> tuple[str, ...]:
    """Name the macros of a source that would change the code of a launch with these parameters."""
    return tuple(
        sorted(set(macros) & ({*_OWN.split()} | {"tune_launch", "tune_launched"} | set(names)))
    )


def cpp_name(name: str) -> str:
    """Return the name of an axis or an array as a parameter in C++: with a `_` where it must be."""
    return f"{name}_" if name in _TAKEN else name
