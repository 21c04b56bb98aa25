"""Instructions of PTX on registers alone, each as calls of `on_host/ptx.h`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

LINE = "__builtin_LINE()"


class UnknownInstructionError(Exception):
    """Carry the instruction, as it is written."""


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand; `text` is C++: of a register, a number, or the sum that is an address."""

    kind: str  # register, number, special, address, vector, pair, name, or none for `_`
    text: str = ""
    parts: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class PtxInstruction:
    base: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]

    def has(self, *modifiers: str) -> bool:
        return any(modifier in self.modifiers for modifier in modifiers)


INTEGERS = frozenset({"u16", "s16", "u32", "s32", "u64", "s64"})
BITS = frozenset({"b16", "b32", "b64"})
FLOATS = frozenset({"f32", "f64", "f16", "bf16", "f16x2", "bf16x2", "f32x2"})
BYTES = frozenset({"b8", "u8", "s8"})
CODES = frozenset({"e4m3x2", "e5m2x2", "e2m1x2", "ue8m0x2"})
TYPES = INTEGERS | BITS | FLOATS | BYTES | CODES | {"pred", "b128", "tf32"}

_HOW = {
    **{"rn": 0, "rz": 1, "rm": 2, "rp": 3, "rni": 128, "rzi": 129, "rmi": 130, "rpi": 131},
    **{"rna": 256, "ftz": 4, "sat": 8, "satfinite": 8, "relu": 16, "NaN": 32, "xorsign": 64},
    **dict.fromkeys(("abs", "approx", "full", "noftz", "lo"), 0),
}


def how(modifiers: tuple[str, ...]) -> int:
    if unknown := [modifier for modifier in modifiers if modifier not in _HOW]:
        raise UnknownInstructionError(unknown[0])
    return sum(_HOW[modifier] for modifier in set(modifiers))


def cpp_type(name: str, known: frozenset[str] = TYPES) -> str:
    if name not in known:
        raise UnknownInstructionError(name)
    return f"::on_host_ptx::{name}"


def read(operand: Operand, kind: str) -> str:
    """Return the operand's value as a number of this type of PTX."""
    if operand.kind == "number":
        return f"::on_host_ptx::constant<{cpp_type(kind)}>({_number(operand.text)})"
    if operand.kind == "special":
        return f"static_cast<{cpp_type(kind)}>({operand.text})"
    if operand.kind != "register":
        raise UnknownInstructionError(operand.kind)
    return f"::on_host_ptx::as<{cpp_type(kind)}>({operand.text})"


def _number(text: str) -> str:
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    if digits[:2] in ("0f", "0F"):
        return f"::on_host_ptx::as<float>(0x{digits[2:]}u)"
    if digits[:2] in ("0d", "0D"):
        return f"::on_host_ptx::as<double>(0x{digits[2:]}ull)"
    return sign + (digits if "." in digits else f"{digits.rstrip('U')}ull")


def write_operand(operand: Operand, value: str) -> str:
    if operand.kind == "none":
        return f"(void)({value});"
    if operand.kind != "register" or operand.text.startswith("!"):
        raise UnknownInstructionError(operand.kind)
    return f"::on_host_ptx::put({operand.text}, {value});"


def exactly(instruction: PtxInstruction, *counts: int) -> None:
    if len(instruction.operands) not in counts:
        raise UnknownInstructionError(instruction.base)


# Operations on numbers: the struct of ptx.h, how many operands it reads, and their types.
_INTEGER_OR_FLOAT = INTEGERS | FLOATS
_ARITHMETIC: dict[str, tuple[str, tuple[int, ...], frozenset[str]]] = {
    "add": ("Add", (2,), _INTEGER_OR_FLOAT),
    "sub": ("Sub", (2,), _INTEGER_OR_FLOAT),
    "mul": ("Mul", (2,), _INTEGER_OR_FLOAT),
    "mul24": ("Mul24", (2,), frozenset({"u32", "s32"})),
    "div": ("Div", (2,), INTEGERS | {"f32", "f64"}),
    "rem": ("Rem", (2,), INTEGERS),
    "min": ("Min", (2, 3), INTEGERS | FLOATS - {"f32x2"}),
    "max": ("Max", (2, 3), INTEGERS | FLOATS - {"f32x2"}),
    "fma": ("Fma", (3,), FLOATS),
    "neg": ("Neg", (1,), INTEGERS | FLOATS),
    "abs": ("Abs", (1,), INTEGERS | FLOATS),
    "copysign": ("Copysign", (2,), frozenset({"f32", "f64"})),
    "and": ("And", (2,), BITS | {"pred"}),
    "or": ("Or", (2,), BITS | {"pred"}),
    "xor": ("Xor", (2,), BITS | {"pred"}),
    "not": ("Not", (1,), BITS | {"pred"}),
    "cnot": ("Cnot", (1,), BITS),
    "ex2": ("Ex2", (1,), FLOATS - {"f64", "f32x2"}),
    "tanh": ("Tanh", (1,), FLOATS - {"f64", "f32x2"}),
    "lg2": ("Lg2", (1,), frozenset({"f32"})),
    "sin": ("Sin", (1,), frozenset({"f32"})),
    "cos": ("Cos", (1,), frozenset({"f32"})),
    "rsqrt": ("Rsqrt", (1,), frozenset({"f32", "f64"})),
    "sqrt": ("Sqrt", (1,), frozenset({"f32", "f64"})),
    "rcp": ("Rcp", (1,), frozenset({"f32", "f64"})),
}


def _arithmetic(instruction: PtxInstruction) -> str:
    name, counts, types = _ARITHMETIC[instruction.base]
    *modifiers, kind = instruction.modifiers
    cpp_type(kind, types)
    if instruction.base == "mul" and kind in INTEGERS and instruction.has("hi", "wide"):
        name, modifiers = ("MulHi" if instruction.has("hi") else "MulWide"), modifiers[1:]
    exactly(instruction, *(count + 1 for count in counts))
    sources = ", ".join(read(operand, kind) for operand in instruction.operands[1:])
    value = f"::on_host_ptx::apply<::on_host_ptx::{name}, {how(tuple(modifiers))}>({sources})"
    return write_operand(instruction.operands[0], value)


_WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def _mad(instruction: PtxInstruction) -> str:
    part, kind = instruction.modifiers[0], instruction.modifiers[-1]
    if kind in FLOATS:
        return _arithmetic(PtxInstruction("fma", instruction.modifiers, instruction.operands))
    exactly(instruction, 4)
    name = {"lo": "Mul", "hi": "MulHi", "wide": "MulWide"}[one_of(part, "lo", "hi", "wide")]
    if len(instruction.modifiers) != 2:
        raise UnknownInstructionError(instruction.base)
    sources = ", ".join(
        read(operand, of_types(kind, INTEGERS)) for operand in instruction.operands[1:3]
    )
    added = read(instruction.operands[3], _WIDER.get(kind, "") if part == "wide" else kind)
    product = f"::on_host_ptx::apply<::on_host_ptx::{name}, 0>({sources})"
    return write_operand(instruction.operands[0], f"::on_host_ptx::plus({product}, {added})")


def of_types(kind: str, known: frozenset[str]) -> str:
    cpp_type(kind, known)
    return kind


def one_of(found: str, *known: str) -> str:
    if found not in known:
        raise UnknownInstructionError(found)
    return found


# Functions of ptx.h: the modifiers, what they are called, and what each operand is read as. `T` is
# the instruction's type, the last modifier.
_CALLS: dict[str, tuple[str, str, str]] = {
    "shl": ("b16 b32 b64", "shl", "T u32"),
    "shr": ("b16 b32 b64 u16 u32 u64 s16 s32 s64", "shr", "T u32"),
    "shf.l.wrap": ("b32", "shf_l_wrap", "u32 u32 u32"),
    "shf.l.clamp": ("b32", "shf_l_clamp", "u32 u32 u32"),
    "shf.r.wrap": ("b32", "shf_r_wrap", "u32 u32 u32"),
    "shf.r.clamp": ("b32", "shf_r_clamp", "u32 u32 u32"),
    "prmt": ("b32", "prmt", "u32 u32 u32"),
    "lop3": ("b32", "lop3", "u32 u32 u32 u32"),
    "bfe": ("u32 s32 u64 s64", "bfe", "T u32 u32"),
    "bfi": ("b32 b64", "bfi", "T T u32 u32"),
    "popc": ("b32 b64", "popc", "T"),
    "clz": ("b32 b64", "clz", "T"),
    "brev": ("b32 b64", "brev", "T"),
    "bfind": ("u32 s32 u64 s64", "bfind<false>", "T"),
    "bfind.shiftamt": ("u32 s32 u64 s64", "bfind<true>", "T"),
    "sad": ("u16 u32 u64 s16 s32 s64", "sad", "T T T"),
}


def _call(instruction: PtxInstruction) -> str:
    kind = instruction.modifiers[-1]
    types, name, sources = _CALLS[".".join((instruction.base, *instruction.modifiers[:-1]))]
    cpp_type(kind, frozenset(types.split()))
    exactly(instruction, len(sources.split()) + 1)
    values = [
        read(operand, kind if source == "T" else source)
        for operand, source in zip(instruction.operands[1:], sources.split(), strict=True)
    ]
    return write_operand(instruction.operands[0], f"::on_host_ptx::{name}({', '.join(values)})")


def _dp4a(instruction: PtxInstruction) -> str:
    exactly(instruction, 4)
    a, b = (of_types(kind, frozenset({"u32", "s32"})) for kind in instruction.modifiers)
    values = ", ".join(read(operand, "u32") for operand in instruction.operands[1:])
    types = f"{cpp_type(a)}, {cpp_type(b)}"
    return write_operand(instruction.operands[0], f"::on_host_ptx::dp4a<{types}>({values})")


_COMPARISONS = {
    **{name: name for name in ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu")},
    **{"gtu": "gtu", "geu": "geu", "num": "num", "nan": "nan"},
    **{"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"},
}


def _setp(instruction: PtxInstruction) -> str:
    compare, *between, kind = instruction.modifiers
    exactly(instruction, 3, 4)
    joined = [name for name in between if name in ("and", "or", "xor")]
    flags = how(tuple(name for name in between if name not in joined))
    unsigned = kind.replace("s", "u") if compare in ("lo", "ls", "hi", "hs") else kind
    cpp_type(unsigned, (INTEGERS | BITS | FLOATS) - {"f16x2", "bf16x2", "f32x2"})
    if len(joined) != len(instruction.operands) - 3:
        raise UnknownInstructionError(instruction.base)
    values = ", ".join(read(operand, unsigned) for operand in instruction.operands[1:3])
    holds = f"::on_host_ptx::setp<::on_host_ptx::{_COMPARISONS[compare]}, {flags}>({values})"
    first = instruction.operands[0]
    both = first.parts if first.kind == "pair" else (first,)
    lines = ["const bool on_host_holds = " + holds + ";"]
    for target, value in zip(both, ("on_host_holds", "!on_host_holds"), strict=False):
        if joined:
            sign = {"and": "&", "or": "|", "xor": "^"}[joined[0]]
            value = f"({value} {sign} bool({read(instruction.operands[3], 'pred')}))"  # noqa: PLW2901
        lines.append(write_operand(target, value))
    return " ".join(lines)


def _selp(instruction: PtxInstruction) -> str:
    exactly(instruction, 4)
    kind = of_types(instruction.modifiers[-1], INTEGERS | BITS | {"f32", "f64"})
    first, second = (read(operand, kind) for operand in instruction.operands[1:3])
    return write_operand(
        instruction.operands[0], f"{read(instruction.operands[3], 'pred')} ? {first} : {second}"
    )


_BYTES_OF = {"b8": 1, "b16": 2, "b32": 4, "b64": 8, "b128": 16}
_WORDS = {bytes_: f"::on_host_ptx::{name}" for name, bytes_ in _BYTES_OF.items()}


def _mov(instruction: PtxInstruction) -> str:
    exactly(instruction, 2)
    kind, (to, source) = of_types(instruction.modifiers[-1], TYPES - CODES), instruction.operands
    if len(instruction.modifiers) != 1:
        raise UnknownInstructionError(instruction.base)
    if to.kind != "vector" and source.kind != "vector":
        return write_operand(to, read(source, kind))
    parts = (to if to.kind == "vector" else source).parts
    width = _WORDS[_BYTES_OF[kind] // len(parts)]
    if to.kind == "vector":
        names, nothing = targets(to, width)
        return f"{nothing} ::on_host_ptx::unpack({read(source, kind)}, {names});"
    values = (f"static_cast<{width}>({read(part, kind)})" for part in parts)
    return f"::on_host_ptx::pack({to.text}, {', '.join(values)});"


def targets(operand: Operand, width: str = "::on_host_ptx::b64") -> tuple[str, str]:
    """Return what an instruction writes, and what stands for a `_` among it."""
    parts = operand.parts if operand.kind == "vector" else (operand,)
    if not all(part.kind in ("register", "none") for part in parts):
        raise UnknownInstructionError(operand.kind)
    names = [part.text or f"on_host_none_{i}" for i, part in enumerate(parts)]
    nothing = [f"{width} on_host_none_{i};" for i, part in enumerate(parts) if not part.text]
    return ", ".join(names), " ".join(nothing)


def _cvt(instruction: PtxInstruction) -> str:
    *modifiers, to, source = instruction.modifiers
    if to == "pack" or cpp_type(to) == cpp_type(source, TYPES - BITS) == "pred":
        raise UnknownInstructionError(instruction.base)
    flags = how(tuple(modifiers))
    if to in {"f16x2", "bf16x2", *CODES} and source == "f32":
        exactly(instruction, 3)
        values = ", ".join(read(operand, "f32") for operand in instruction.operands[1:])
        call = f"::on_host_ptx::cvt_pair<{cpp_type(to)}, {flags}>({values})"
        return write_operand(instruction.operands[0], call)
    exactly(instruction, 2)
    pairs = {"f16x2", "bf16x2"}
    if (to in CODES and source not in pairs) or (source in CODES and to not in pairs):
        raise UnknownInstructionError(instruction.base)
    if (to in pairs) != (source in CODES) or (source == "tf32") or "f32x2" in (to, source):
        raise UnknownInstructionError(instruction.base)
    call = f"::on_host_ptx::cvt<{cpp_type(to)}, {cpp_type(source)}, {flags}>"
    return write_operand(
        instruction.operands[0], f"{call}({read(instruction.operands[1], source)})"
    )


NUMBERS: dict[str, Callable[[PtxInstruction], str]] = {
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    **{name.split(".")[0]: _call for name in _CALLS},
    **{"mad": _mad, "dp4a": _dp4a, "setp": _setp, "selp": _selp, "mov": _mov, "cvt": _cvt},
}
