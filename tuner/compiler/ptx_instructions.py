"""Each instruction of PTX that the `host` device runs, as a call of `on_host/ptx.h`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_LINE = "__builtin_LINE()"


class UnknownInstructionError(Exception):
    """Carry the instruction, as it is written."""


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand; `text` is C++: of a register, a number, or the sum that is an address."""

    kind: str  # register, number, special, address, vector, pair, name, or none for `_`
    text: str = ""
    parts: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Instruction:
    base: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]

    def has(self, *modifiers: str) -> bool:
        return any(one in self.modifiers for one in modifiers)


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


def _how(modifiers: tuple[str, ...]) -> int:
    if unknown := [one for one in modifiers if one not in _HOW]:
        raise UnknownInstructionError(unknown[0])
    return sum(_HOW[one] for one in set(modifiers))


def _type(name: str, known: frozenset[str] = TYPES) -> str:
    if name not in known:
        raise UnknownInstructionError(name)
    return f"::on_host_ptx::{name}"


def _read(operand: Operand, kind: str) -> str:
    """Return the operand's value as a number of this type of PTX."""
    if operand.kind == "number":
        return f"::on_host_ptx::constant<{_type(kind)}>({_number(operand.text)})"
    if operand.kind == "special":
        return f"static_cast<{_type(kind)}>({operand.text})"
    if operand.kind != "register":
        raise UnknownInstructionError(operand.kind)
    return f"::on_host_ptx::as<{_type(kind)}>({operand.text})"


def _number(text: str) -> str:
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    if digits[:2] in ("0f", "0F"):
        return f"::on_host_ptx::as<float>(0x{digits[2:]}u)"
    if digits[:2] in ("0d", "0D"):
        return f"::on_host_ptx::as<double>(0x{digits[2:]}ull)"
    return sign + (digits if "." in digits else f"{digits.rstrip('U')}ull")


def _written(operand: Operand, value: str) -> str:
    if operand.kind == "none":
        return f"(void)({value});"
    if operand.kind != "register" or operand.text.startswith("!"):
        raise UnknownInstructionError(operand.kind)
    return f"::on_host_ptx::put({operand.text}, {value});"


def _exactly(one: Instruction, *counts: int) -> None:
    if len(one.operands) not in counts:
        raise UnknownInstructionError(one.base)


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


def _arithmetic(one: Instruction) -> str:
    name, counts, types = _ARITHMETIC[one.base]
    *modifiers, kind = one.modifiers
    _type(kind, types)
    if one.base == "mul" and kind in INTEGERS and one.has("hi", "wide"):
        name, modifiers = ("MulHi" if one.has("hi") else "MulWide"), modifiers[1:]
    _exactly(one, *(count + 1 for count in counts))
    sources = ", ".join(_read(operand, kind) for operand in one.operands[1:])
    value = f"::on_host_ptx::apply<::on_host_ptx::{name}, {_how(tuple(modifiers))}>({sources})"
    return _written(one.operands[0], value)


_WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def _mad(one: Instruction) -> str:
    how, kind = one.modifiers[0], one.modifiers[-1]
    if kind in FLOATS:
        return _arithmetic(Instruction("fma", one.modifiers, one.operands))
    _exactly(one, 4)
    name = {"lo": "Mul", "hi": "MulHi", "wide": "MulWide"}[_one_of(how, "lo", "hi", "wide")]
    if len(one.modifiers) != 2:
        raise UnknownInstructionError(one.base)
    sources = ", ".join(_read(operand, _of(kind, INTEGERS)) for operand in one.operands[1:3])
    added = _read(one.operands[3], _WIDER.get(kind, "") if how == "wide" else kind)
    product = f"::on_host_ptx::apply<::on_host_ptx::{name}, 0>({sources})"
    return _written(one.operands[0], f"::on_host_ptx::plus({product}, {added})")


def _of(kind: str, known: frozenset[str]) -> str:
    _type(kind, known)
    return kind


def _one_of(found: str, *known: str) -> str:
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


def _call(one: Instruction) -> str:
    kind = one.modifiers[-1]
    types, name, sources = _CALLS[".".join((one.base, *one.modifiers[:-1]))]
    _type(kind, frozenset(types.split()))
    _exactly(one, len(sources.split()) + 1)
    values = [
        _read(operand, kind if source == "T" else source)
        for operand, source in zip(one.operands[1:], sources.split(), strict=True)
    ]
    return _written(one.operands[0], f"::on_host_ptx::{name}({', '.join(values)})")


def _dp4a(one: Instruction) -> str:
    _exactly(one, 4)
    a, b = (_of(kind, frozenset({"u32", "s32"})) for kind in one.modifiers)
    values = ", ".join(_read(operand, "u32") for operand in one.operands[1:])
    types = f"{_type(a)}, {_type(b)}"
    return _written(one.operands[0], f"::on_host_ptx::dp4a<{types}>({values})")


_COMPARISONS = {
    **{name: name for name in ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu")},
    **{"gtu": "gtu", "geu": "geu", "num": "num", "nan": "nan"},
    **{"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"},
}


def _setp(one: Instruction) -> str:
    compare, *between, kind = one.modifiers
    _exactly(one, 3, 4)
    joined = [name for name in between if name in ("and", "or", "xor")]
    how = _how(tuple(name for name in between if name not in joined))
    unsigned = kind.replace("s", "u") if compare in ("lo", "ls", "hi", "hs") else kind
    _type(unsigned, (INTEGERS | BITS | FLOATS) - {"f16x2", "bf16x2", "f32x2"})
    if len(joined) != len(one.operands) - 3:
        raise UnknownInstructionError(one.base)
    values = ", ".join(_read(operand, unsigned) for operand in one.operands[1:3])
    holds = f"::on_host_ptx::setp<::on_host_ptx::{_COMPARISONS[compare]}, {how}>({values})"
    first = one.operands[0]
    both = first.parts if first.kind == "pair" else (first,)
    lines = ["const bool on_host_holds = " + holds + ";"]
    for target, value in zip(both, ("on_host_holds", "!on_host_holds"), strict=False):
        if joined:
            sign = {"and": "&", "or": "|", "xor": "^"}[joined[0]]
            value = f"({value} {sign} bool({_read(one.operands[3], 'pred')}))"  # noqa: PLW2901
        lines.append(_written(target, value))
    return " ".join(lines)


def _selp(one: Instruction) -> str:
    _exactly(one, 4)
    kind = _of(one.modifiers[-1], INTEGERS | BITS | {"f32", "f64"})
    first, second = (_read(operand, kind) for operand in one.operands[1:3])
    return _written(one.operands[0], f"{_read(one.operands[3], 'pred')} ? {first} : {second}")


_BYTES_OF = {"b8": 1, "b16": 2, "b32": 4, "b64": 8, "b128": 16}
_WORDS = {bytes_: f"::on_host_ptx::{name}" for name, bytes_ in _BYTES_OF.items()}


def _mov(one: Instruction) -> str:
    _exactly(one, 2)
    kind, (to, source) = _of(one.modifiers[-1], TYPES - CODES), one.operands
    if len(one.modifiers) != 1:
        raise UnknownInstructionError(one.base)
    if to.kind != "vector" and source.kind != "vector":
        return _written(to, _read(source, kind))
    parts = (to if to.kind == "vector" else source).parts
    width = _WORDS[_BYTES_OF[kind] // len(parts)]
    if to.kind == "vector":
        names, nothing = _targets(to, width)
        return f"{nothing} ::on_host_ptx::unpack({_read(source, kind)}, {names});"
    values = (f"static_cast<{width}>({_read(part, kind)})" for part in parts)
    return f"::on_host_ptx::pack({to.text}, {', '.join(values)});"


def _targets(operand: Operand, width: str = "::on_host_ptx::b64") -> tuple[str, str]:
    """Return what an instruction writes, and what stands for a `_` among it."""
    parts = operand.parts if operand.kind == "vector" else (operand,)
    if not all(part.kind in ("register", "none") for part in parts):
        raise UnknownInstructionError(operand.kind)
    names = [part.text or f"on_host_none_{i}" for i, part in enumerate(parts)]
    nothing = [f"{width} on_host_none_{i};" for i, part in enumerate(parts) if not part.text]
    return ", ".join(names), " ".join(nothing)


def _cvt(one: Instruction) -> str:
    *modifiers, to, source = one.modifiers
    if to == "pack" or _type(to) == _type(source, TYPES - BITS) == "pred":
        raise UnknownInstructionError(one.base)
    how = _how(tuple(modifiers))
    if to in {"f16x2", "bf16x2", *CODES} and source == "f32":
        _exactly(one, 3)
        values = ", ".join(_read(operand, "f32") for operand in one.operands[1:])
        call = f"::on_host_ptx::cvt_pair<{_type(to)}, {how}>({values})"
        return _written(one.operands[0], call)
    _exactly(one, 2)
    pairs = {"f16x2", "bf16x2"}
    if (to in CODES and source not in pairs) or (source in CODES and to not in pairs):
        raise UnknownInstructionError(one.base)
    if (to in pairs) != (source in CODES) or (source == "tf32") or "f32x2" in (to, source):
        raise UnknownInstructionError(one.base)
    call = f"::on_host_ptx::cvt<{_type(to)}, {_type(source)}, {how}>"
    return _written(one.operands[0], f"{call}({_read(one.operands[1], source)})")


# What says how memory is cached or ordered; blocks and threads run in turn here.
_HINTS = re.compile(
    r"weak|volatile|relaxed|acquire|release|acq_rel|mmio|cta|cluster|gpu|sys|ca|cg|cs|cv|lu|nc|wb|wt"
    r"|L1::\w+|L2::(?:\d+B|evict\w*|cache_hint)|unified|noftz"
)
_SPACES = {
    **{"global": "kGeneric", "local": "kGeneric", "const": "kGeneric"},
    **{"shared": "kShared", "shared::cta": "kShared", "shared::cluster": "kShared"},
}


@dataclass(frozen=True, slots=True)
class _Access:
    space: str
    vector: int
    kind: str
    waits: bool  # it may be in a loop that waits for another thread
    policy: int  # operands that only say how to cache
    rest: tuple[str, ...]


def _access(one: Instruction) -> _Access:
    *modifiers, kind = one.modifiers
    spaces = [_SPACES[name] for name in modifiers if name in _SPACES]
    vectors = [int(name[1:]) for name in modifiers if name in ("v2", "v4", "v8")]
    rest = [name for name in modifiers if name not in _SPACES and not _HINTS.fullmatch(name)]
    rest = [name for name in rest if name not in ("v2", "v4", "v8")]
    waits = one.has("volatile", "relaxed", "acquire", "acq_rel", "cv")
    policy = int(one.has("L2::cache_hint"))
    space = f"::on_host_ptx::{[*spaces, 'kGeneric'][0]}"
    return _Access(space, [*vectors, 1][0], kind, waits, policy, tuple(rest))


def _address(operand: Operand) -> str:
    if operand.kind != "address" or operand.parts:
        raise UnknownInstructionError(operand.kind)
    return operand.text


def _load(one: Instruction) -> str:
    access = _access(one)
    _exactly(one, 2 + access.policy)
    _type(access.kind, INTEGERS | BITS | BYTES | {"f32", "f64", "b128"})
    names, nothing = _targets(one.operands[0])
    if access.rest or len(names.split(", ")) != access.vector:
        raise UnknownInstructionError(one.base)
    at = _address(one.operands[1])
    called = f"::on_host_ptx::load<{_type(access.kind)}, {access.space}>"
    after = " ::on_host_ptx::acquired();" if access.waits else ""
    return f"{nothing} {called}({at}, {_LINE}, {names});{after}"


def _store(one: Instruction) -> str:
    access = _access(one)
    _exactly(one, 2 + access.policy)
    kind = _of(access.kind, INTEGERS | BITS | BYTES | {"f32", "f64", "b128"})
    source = one.operands[1]
    parts = source.parts if source.kind == "vector" else (source,)
    if access.rest or len(parts) != access.vector:
        raise UnknownInstructionError(one.base)
    values = ", ".join(_read(part, kind) for part in parts)
    called = f"::on_host_ptx::store<{_type(kind)}, {access.space}>"
    return f"{called}({_address(one.operands[0])}, {_LINE}, {values});"


_ATOMICS = {
    **{"add": "Add", "min": "Min", "max": "Max", "and": "And", "or": "Or", "xor": "Xor"},
    **{"exch": "Exch", "inc": "Inc", "dec": "Dec"},
}


def _atomic(one: Instruction) -> str:
    access = _access(one)
    to, *operands = one.operands if one.base == "atom" else (Operand("none"), *one.operands)
    kind = _of(access.kind, INTEGERS | BITS | FLOATS)
    operation = [name for name in access.rest if name != "async"]
    if len(operation) != 1 or len(operands) != 2 + (operation == ["cas"]) + access.policy:
        raise UnknownInstructionError(one.base)
    at = _address(operands[0])
    if operation == ["cas"]:
        values = ", ".join(_read(operand, kind) for operand in operands[1:3])
        return _written(to, f"::on_host_ptx::cas<{access.space}>({at}, {_LINE}, {values})")
    called = f"::on_host_ptx::atom<::on_host_ptx::{_ATOMICS[operation[0]]}, {access.space}>"
    value, width = operands[1], f"sizeof({_type(kind)})"
    if access.vector == 1:
        return _written(to, f"{called}({at}, {_LINE}, {_read(value, kind)})")
    targets = to.parts if to.kind == "vector" else (to,) * access.vector
    return " ".join(
        _written(target, f"{called}({at} + {i} * {width}, {_LINE}, {_read(part, kind)})")
        for i, (target, part) in enumerate(zip(targets, value.parts, strict=True))
    )


def _cvta(one: Instruction) -> str:
    _exactly(one, 2)
    space = _SPACES[one.modifiers[-2]]
    function = "from_generic" if one.has("to") else "to_generic"
    value = _read(one.operands[1], one.modifiers[-1])
    called = f"::on_host_ptx::{function}<::on_host_ptx::{space}>({value}, {_LINE})"
    return _written(one.operands[0], called)


def _shuffle(one: Instruction) -> str:
    mode = {"up": "kUp", "down": "kDown", "bfly": "kBfly", "idx": "kIdx"}[one.modifiers[1]]
    _exactly(one, 5)
    return _with_flag(one, f"shfl<::on_host_ptx::{mode}>", one.operands[1:])


def _with_flag(one: Instruction, function: str, sources: tuple[Operand, ...]) -> str:
    """Call what writes `d|p`: a number and a flag."""
    first = one.operands[0]
    to, flag = first.parts if first.kind == "pair" else (first, Operand("none"))
    values = ", ".join(_read(operand, "u32") for operand in sources)
    called = f"::on_host_ptx::{function}(on_host_flag, {values}, {_LINE})"
    return f"bool on_host_flag; {_written(to, called)} {_written(flag, 'on_host_flag')}"


def _vote(one: Instruction) -> str:
    _exactly(one, 3)
    function = {
        **{"ballot": "::on_host_ptx::ballot", "any": "__any_sync", "all": "__all_sync"},
        "uni": "::on_host_ptx::uniform",
    }[one.modifiers[1]]
    holds, mask = _read(one.operands[1], "pred"), _read(one.operands[2], "u32")
    if "::" in function:
        return _written(one.operands[0], f"{function}({holds}, {mask}, {_LINE})")
    return _written(one.operands[0], f"bool({function}({mask}, {holds}, {_LINE}))")


def _match(one: Instruction) -> str:
    _exactly(one, 3)
    if one.modifiers[0] == "all":
        return _with_flag(one, "match_all", one.operands[1:])
    value, mask = _read(one.operands[1], one.modifiers[-1]), _read(one.operands[2], "u32")
    return _written(one.operands[0], f"__match_any_sync({mask}, {value}, {_LINE})")


def _redux(one: Instruction) -> str:
    _exactly(one, 3)
    _, operation, *modifiers, kind = one.modifiers
    named = f"::on_host_ptx::{_ATOMICS[operation]}, {_how(tuple(modifiers))}"
    value, mask = _read(one.operands[1], kind), _read(one.operands[2], "u32")
    return _written(one.operands[0], f"::on_host_ptx::redux<{named}>({value}, {mask}, {_LINE})")


def _elect(one: Instruction) -> str:
    _exactly(one, 2)
    return _with_flag(one, "elect", one.operands[1:])


def _barrier(one: Instruction) -> str:
    kinds = [name for name in one.modifiers if name not in ("cta", "aligned")]
    if one.modifiers[:1] == ("cluster",):
        return f"tune::cluster_{_one_of(one.modifiers[1], 'arrive', 'wait')}();".replace(
            "wait()", f"wait({_LINE})"
        )
    if kinds == ["warp", "sync"]:
        return f"__syncwarp({_read(one.operands[0], 'u32')}, {_LINE});"
    _exactly(one, 1, 2)
    waits = str(_one_of(kinds[0], "sync", "arrive") == "sync").lower()
    number, *count = (_read(operand, "u32") for operand in one.operands)
    return f"::on_host_ptx::bar({waits}, {number}, {[*count, '0'][0]}, {_LINE});"


def _fence(one: Instruction) -> str:
    if one.has("mbarrier_init") or (one.has("proxy") and not one.has("alias")):
        return "cuda_on_host::fence_asynchronous();"
    return ""


def _copy(one: Instruction) -> str:
    name = one.modifiers
    if name[:2] == ("async", "bulk"):
        return _bulk(one)
    if name == ("async", "commit_group"):
        return "cuda_on_host::commit_copies();"
    if name == ("async", "wait_group"):
        return f"cuda_on_host::wait_for_copies({_read(one.operands[0], 'u32')});"
    if name == ("async", "wait_all"):
        return "::on_host_ptx::wait_all();"
    if name[:3] == ("async", "mbarrier", "arrive"):
        counted = str(one.has("noinc")).lower()
        return (
            f"::on_host_ptx::arrive_after_copies({_address(one.operands[0])}, {counted}, {_LINE});"
        )
    if name[0] != "async" or name[1] not in ("ca", "cg") or "global" not in name:
        raise UnknownInstructionError(one.base)
    operands = one.operands[: len(one.operands) - one.has("L2::cache_hint")]
    to, source, size, *given = operands
    if size.kind not in ("number", "register") or len(given) > 1:
        raise UnknownInstructionError(one.base)
    bytes_ = _read(size, "u32")
    taken = _read(given[0], "u32") if given else bytes_
    at = f"{_address(to)}, {_address(source)}, {bytes_}, {taken}, {_LINE}"
    return f"::on_host_ptx::cp_async({at});"


_BULK = re.compile(
    r"async\.bulk\.(?:(?P<commit>commit_group)|(?P<wait>wait_group)(?P<read>\.read)?"
    r"|prefetch\..*|(?P<tensor>tensor\.(?P<rank>[23])d\.)?(?:"
    r"shared::(?:cta|cluster)\.(?P<load>global)(?:\.tile)?\.mbarrier::complete_tx::bytes"
    r"|(?P<store>global)\.shared::cta(?:\.tile)?\.bulk_group)(?:\.L2::cache_hint)?)"
)


def _bulk(one: Instruction) -> str:
    found = _BULK.fullmatch(".".join(one.modifiers))
    if found is None:
        raise UnknownInstructionError(one.base)
    if found["commit"]:
        return "cuda_on_host::commit_stores();"
    if found["wait"]:
        pending = _read(one.operands[0], "u32")
        return f"cuda_on_host::wait_for_stores({pending}, {str(not found['read']).lower()});"
    if not found["load"] and not found["store"]:
        return ""
    if found["tensor"]:
        return _box(one, int(found["rank"]), bool(found["load"]))
    to, source, bytes_ = one.operands[0], one.operands[1], _read(one.operands[2], "u32")
    if found["load"]:
        pointer = f"reinterpret_cast<const void*>({_address(source)})"
        barrier = _address(one.operands[3])
        return f"tune::bulk_load({_address(to)}, {pointer}, {bytes_}, {barrier}, 0, {_LINE});"
    pointer = f"reinterpret_cast<void*>({_address(to)})"
    return f"tune::bulk_store({pointer}, {_address(source)}, {bytes_}, {_LINE});"


def _box(one: Instruction, rank: int, loads: bool) -> str:
    """Write a tensor copy: `[map, {x, y}]` on one side."""
    box, shared = (
        (one.operands[1], one.operands[0]) if loads else (one.operands[0], one.operands[1])
    )
    corners = ", ".join(_read(part, "s32") for part in box.parts[0].parts)
    if len(box.parts[0].parts) != rank:
        raise UnknownInstructionError(one.base)
    chart = f"*reinterpret_cast<const tune::TensorMap*>({box.text})"
    if loads:
        barrier = _address(one.operands[2])
        rest = f"{_address(shared)}, {chart}, {corners}, {barrier}, 0, {_LINE}"
        return f"tune::tensor_load_{rank}d({rest});"
    return f"tune::tensor_store_{rank}d({chart}, {_address(shared)}, {corners}, {_LINE});"


def _mbarrier(one: Instruction) -> str:
    kept = [
        name
        for name in one.modifiers[1:]
        if not re.fullmatch(r"release|acquire|relaxed|cta|cluster|shared(::\w+)?|b64", name)
    ]
    name = ".".join([one.modifiers[0], *kept])
    if name in ("init", "inval", "expect_tx"):
        at, *rest = one.operands
        values = [_address(at), *(_read(operand, "u32") for operand in rest), _LINE]
        function = {"init": "init_mbarrier", "inval": "drop_mbarrier", "expect_tx": "expect_bytes"}
        return f"cuda_on_host::{function[name]}({', '.join(values)});"
    if name in ("arrive", "arrive.expect_tx"):
        with_state = one.operands[0].kind != "address"
        to = one.operands[0] if with_state else Operand("none")
        at, *rest = one.operands[with_state:]
        number = _read(rest[0], "u32") if rest else "1"
        counts = f"1, {number}" if name == "arrive.expect_tx" else f"{number}, 0"
        return _written(to, f"::on_host_ptx::arrive({_address(at)}, {counts}, {_LINE})")
    _one_of(name, "try_wait", "test_wait", "try_wait.parity", "test_wait.parity")
    to, at, state = one.operands[:3]
    value = _read(state, "u32" if name.endswith("parity") else "b64")
    called = f"cuda_on_host::test_mbarrier({_address(at)}, static_cast<unsigned>({value}), {_LINE})"
    return _written(to, called)


def _matrices(one: Instruction) -> str:
    name = ".".join(one.modifiers)
    found = re.fullmatch(
        r"sync\.aligned\.(?:m8n8\.x([124])|x([124])\.m8n8)(\.trans)?\.shared(?:::cta)?\.b16", name
    )
    if found is None:
        raise UnknownInstructionError(one.base)
    _exactly(one, 2)
    count, transposed = int(found[1] or found[2]), str(bool(found[3])).lower()
    if one.base == "ldmatrix":
        names, nothing = _targets(one.operands[0], "::on_host_ptx::b32")
        if len(names.split(", ")) != count:
            raise UnknownInstructionError(one.base)
        at = _address(one.operands[1])
        called = f"::on_host_ptx::ldmatrix<{count}, {transposed}>"
        return f"{nothing} {called}({at}, {_LINE}, {names});"
    source = one.operands[1]
    parts = source.parts if source.kind == "vector" else (source,)
    at = _address(one.operands[0])
    return f"::on_host_ptx::stmatrix<{transposed}>({at}, {_LINE}, {_words(parts)});"


_ELEMENTS = {
    **{"f16": "f16", "bf16": "bf16", "tf32": "tensor32", "e4m3": "e4m3", "e5m2": "e5m2"},
    **{"s8": "s8", "u8": "u8"},
}
_ELEMENT_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8}
_MMA = re.compile(
    r"sync\.aligned\.(?:kind::f8f6f4\.)?m16n8k(\d+)\.row\.col\.(?:satfinite\.)?"
    r"(f32|f16|s32)\.(\w+)\.(\w+)\.\2"
)


def _mma(one: Instruction) -> str:
    found = _MMA.fullmatch(".".join(one.modifiers))
    if found is None:
        raise UnknownInstructionError(one.base)
    depth, result, a, b = int(found[1]), found[2], found[3], found[4]
    words = depth * _ELEMENT_BITS[a] // 32
    if (
        words not in (4, 8)
        or _ELEMENT_BITS[a] != _ELEMENT_BITS[b]
        or (result == "s32") != (a in "s8u8")
    ):
        raise UnknownInstructionError(one.base)
    sizes = (2 if result == "f16" else 4, words // 2, words // 4, 2 if result == "f16" else 4)
    parts = [operand.parts or (operand,) for operand in one.operands]
    if tuple(map(len, parts)) != sizes:
        raise UnknownInstructionError(one.base)
    arrays = [
        f"::on_host_ptx::u32 on_host_{name}[] = {{{_words(each)}}};"
        for name, each in zip("abc", parts[1:], strict=True)
    ]
    types = (
        f"{_type(result)}, ::on_host_ptx::{_ELEMENTS[a]}, ::on_host_ptx::{_ELEMENTS[b]}, {words}"
    )
    called = f"::on_host_ptx::mma<{types}>(on_host_d, on_host_a, on_host_b, on_host_c, {_LINE});"
    results = [_written(part, f"on_host_d[{i}]") for i, part in enumerate(parts[0])]
    return " ".join([*arrays, f"::on_host_ptx::u32 on_host_d[{sizes[0]}];", called, *results])


def _words(parts: tuple[Operand, ...]) -> str:
    return ", ".join(_read(part, "u32") for part in parts)


def _hint(one: Instruction) -> str:
    """Take what has no effect that a result could show."""
    if one.base == "griddepcontrol":
        _one_of(".".join(one.modifiers), "wait", "launch_dependents")
    _exactly(one, int(one.base != "griddepcontrol"))
    return ""


def _query(one: Instruction) -> str:
    """Write what asks where an address lies, or in which block."""
    if one.base == "isspacep":
        shared = one.modifiers[0].startswith("shared")
        is_it = f"__isShared(reinterpret_cast<const void*>({_read(one.operands[1], 'u64')}))"
        return _written(one.operands[0], f"{'' if shared else '!'}bool({is_it})")
    kind = one.modifiers[-1]
    address = _read(one.operands[1], kind)
    if one.base == "getctarank":
        return _written(one.operands[0], "::on_host_ptx::u32(0)")
    _one_of(kind, "u32")
    rank = _read(one.operands[2], "u32")
    return _written(one.operands[0], f"tune::map_shared({address}, {rank}, {_LINE})")


_HANDLERS: dict[str, Callable[[Instruction], str]] = {
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    **{name.split(".")[0]: _call for name in _CALLS},
    **{"mad": _mad, "dp4a": _dp4a, "setp": _setp, "selp": _selp, "mov": _mov, "cvt": _cvt},
    **{"ld": _load, "ldu": _load, "st": _store, "atom": _atomic, "red": _atomic, "cvta": _cvta},
    **{"shfl": _shuffle, "vote": _vote, "match": _match, "redux": _redux, "elect": _elect},
    **{"bar": _barrier, "barrier": _barrier, "fence": _fence, "membar": _fence, "cp": _copy},
    **{"mbarrier": _mbarrier, "ldmatrix": _matrices, "stmatrix": _matrices, "mma": _mma},
    **{"griddepcontrol": _hint, "prefetch": _hint, "prefetchu": _hint, "setmaxnreg": _hint},
    **{"isspacep": _query, "mapa": _query, "getctarank": _query},
    "activemask": lambda one: _written(one.operands[0], "__activemask()"),
    "nanosleep": lambda _: "cuda_on_host::let_others_run();",
    "trap": lambda _: f"__trap({_LINE});",
    "createpolicy": lambda one: _written(one.operands[0], "::on_host_ptx::u64(0)"),
    "movmatrix": lambda one: _written(
        one.operands[0], f"::on_host_ptx::movmatrix({_read(one.operands[1], 'u32')}, {_LINE})"
    ),
}


def in_cpp(one: Instruction) -> str:
    """Write an instruction as C++; empty where it does nothing on the CPU.

    Raises `UnknownInstructionError` where it is not known, or not with these modifiers or operands.
    """
    handler = _HANDLERS.get(one.base)
    if handler is None:
        raise UnknownInstructionError(one.base)
    try:
        return handler(one)
    except (KeyError, IndexError, ValueError):
        raise UnknownInstructionError(one.base) from None


_SPECIAL = {
    "laneid": "::on_host_ptx::lane()",
    "warpid": "(cuda_on_host::current / 32)",
    "nwarpid": "((cuda_on_host::thread_count + 31) / 32)",
    **{"smid": "0u", "nsmid": "1u", "gridid": "0u", "WARP_SZ": "32u"},
    **{"clock": "clock64()", "clock64": "clock64()", "clock_hi": "(clock64() >> 32)"},
    **{"globaltimer": "clock64()", "globaltimer_lo": "clock64()"},
    "globaltimer_hi": "(clock64() >> 32)",
    "lanemask_eq": "(1u << ::on_host_ptx::lane())",
    "lanemask_lt": "((1u << ::on_host_ptx::lane()) - 1)",
    "lanemask_le": "(~0u >> (31 - ::on_host_ptx::lane()))",
    "lanemask_gt": "~(~0u >> (31 - ::on_host_ptx::lane()))",
    "lanemask_ge": "(~0u << ::on_host_ptx::lane())",
    "dynamic_smem_size": "cuda_on_host::active->shared_bytes",
    **{"cluster_ctarank": "tune::cluster_rank()", "cluster_nctarank": "1u"},
    **{
        f"{name}.{axis}": f"::{variable}.{axis}"
        for name, variable in {
            **{"tid": "threadIdx", "ntid": "blockDim", "ctaid": "blockIdx", "nctaid": "gridDim"}
        }.items()
        for axis in "xyz"
    },
}


def special_register(name: str) -> str | None:
    """Return the C++ of a register that the hardware sets; None where it is not known."""
    return _SPECIAL.get(name)
