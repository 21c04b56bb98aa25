"""Instructions of PTX on memory and among threads, each as calls of `on_host/ptx.h`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tuner.extensions.cpu.ptx_instructions import (
    BITS,
    BYTES,
    FLOATS,
    INTEGERS,
    LINE,
    Operand,
    PtxInstruction,
    UnknownInstructionError,
    cpp_type,
    exactly,
    how,
    of_types,
    one_of,
    read,
    targets,
    write_operand,
)

# What says how memory is cached or ordered; blocks and threads run in turn here.
_HINTS = re.compile(
    r"weak|volatile|relaxed|acquire|release|acq_rel|mmio|cta|cluster|gpu|sys|ca|cg|cs|cv|lu|nc|wb|wt"
    r"|L1::\w+|L2::(?:\d+B|evict\w*|cache_hint)|unified|noftz"
)
_SPACES = {
    **{"global": "kGeneric", "local": "kGeneric", "const": "kGeneric"},
    **{"shared": "kShared", "shared::cta": "kShared", "shared::cluster": "kCluster"},
}


@dataclass(frozen=True, slots=True)
class _Access:
    space: str
    vector: int
    kind: str
    waits: bool  # it may be in a loop that waits for another thread
    policy: int  # operands that only say how to cache
    rest: tuple[str, ...]


def _access(instruction: PtxInstruction) -> _Access:
    *modifiers, kind = instruction.modifiers
    spaces = [_SPACES[name] for name in modifiers if name in _SPACES]
    vectors = [int(name[1:]) for name in modifiers if name in ("v2", "v4", "v8")]
    rest = [name for name in modifiers if name not in _SPACES and not _HINTS.fullmatch(name)]
    rest = [name for name in rest if name not in ("v2", "v4", "v8")]
    waits = instruction.has("volatile", "relaxed", "acquire", "acq_rel", "cv")
    policy = int(instruction.has("L2::cache_hint"))
    space = f"::on_host_ptx::{[*spaces, 'kGeneric'][0]}"
    return _Access(space, [*vectors, 1][0], kind, waits, policy, tuple(rest))


def _address(operand: Operand) -> str:
    if operand.kind != "address" or operand.parts:
        raise UnknownInstructionError(operand.kind)
    return operand.text


def _load(instruction: PtxInstruction) -> str:
    access = _access(instruction)
    exactly(instruction, 2 + access.policy)
    cpp_type(access.kind, INTEGERS | BITS | BYTES | {"f32", "f64", "b128"})
    names, nothing = targets(instruction.operands[0])
    if access.rest or len(names.split(", ")) != access.vector:
        raise UnknownInstructionError(instruction.base)
    at = _address(instruction.operands[1])
    called = f"::on_host_ptx::load<{cpp_type(access.kind)}, {access.space}>"
    after = " ::on_host_ptx::acquired();" if access.waits else ""
    return f"{nothing} {called}({at}, {LINE}, {names});{after}"


def _store(instruction: PtxInstruction) -> str:
    access = _access(instruction)
    exactly(instruction, 2 + access.policy)
    kind = of_types(access.kind, INTEGERS | BITS | BYTES | {"f32", "f64", "b128"})
    source = instruction.operands[1]
    parts = source.parts if source.kind == "vector" else (source,)
    if access.rest or len(parts) != access.vector:
        raise UnknownInstructionError(instruction.base)
    values = ", ".join(read(part, kind) for part in parts)
    called = f"::on_host_ptx::store<{cpp_type(kind)}, {access.space}>"
    return f"{called}({_address(instruction.operands[0])}, {LINE}, {values});"


_ATOMICS = {
    **{"add": "Add", "min": "Min", "max": "Max", "and": "And", "or": "Or", "xor": "Xor"},
    **{"exch": "Exch", "inc": "Inc", "dec": "Dec"},
}


def _atomic(instruction: PtxInstruction) -> str:
    access = _access(instruction)
    to, *operands = (
        instruction.operands
        if instruction.base == "atom"
        else (Operand("none"), *instruction.operands)
    )
    kind = of_types(access.kind, INTEGERS | BITS | FLOATS)
    operation = [name for name in access.rest if name != "async"]
    if len(operation) != 1 or len(operands) != 2 + (operation == ["cas"]) + access.policy:
        raise UnknownInstructionError(instruction.base)
    at = _address(operands[0])
    if operation == ["cas"]:
        values = ", ".join(read(operand, kind) for operand in operands[1:3])
        return write_operand(to, f"::on_host_ptx::cas<{access.space}>({at}, {LINE}, {values})")
    called = f"::on_host_ptx::atom<::on_host_ptx::{_ATOMICS[operation[0]]}, {access.space}>"
    value, width = operands[1], f"sizeof({cpp_type(kind)})"
    if access.vector == 1:
        return write_operand(to, f"{called}({at}, {LINE}, {read(value, kind)})")
    targets = to.parts if to.kind == "vector" else (to,) * access.vector
    return " ".join(
        write_operand(target, f"{called}({at} + {i} * {width}, {LINE}, {read(part, kind)})")
        for i, (target, part) in enumerate(zip(targets, value.parts, strict=True))
    )


def _cvta(instruction: PtxInstruction) -> str:
    exactly(instruction, 2)
    space = _SPACES[instruction.modifiers[-2]]
    function = "from_generic" if instruction.has("to") else "to_generic"
    value = read(instruction.operands[1], instruction.modifiers[-1])
    called = f"::on_host_ptx::{function}<::on_host_ptx::{space}>({value}, {LINE})"
    return write_operand(instruction.operands[0], called)


def _shuffle(instruction: PtxInstruction) -> str:
    mode = {"up": "kUp", "down": "kDown", "bfly": "kBfly", "idx": "kIdx"}[instruction.modifiers[1]]
    exactly(instruction, 5)
    return _with_flag(instruction, f"shfl<::on_host_ptx::{mode}>", instruction.operands[1:])


def _with_flag(instruction: PtxInstruction, function: str, sources: tuple[Operand, ...]) -> str:
    """Call what writes `d|p`: a number and a flag."""
    first = instruction.operands[0]
    to, flag = first.parts if first.kind == "pair" else (first, Operand("none"))
    values = ", ".join(read(operand, "u32") for operand in sources)
    called = f"::on_host_ptx::{function}(on_host_flag, {values}, {LINE})"
    return f"bool on_host_flag; {write_operand(to, called)} {write_operand(flag, 'on_host_flag')}"


def _vote(instruction: PtxInstruction) -> str:
    exactly(instruction, 3)
    function = {
        **{"ballot": "::on_host_ptx::ballot", "any": "__any_sync", "all": "__all_sync"},
        "uni": "::on_host_ptx::uniform",
    }[instruction.modifiers[1]]
    holds, mask = read(instruction.operands[1], "pred"), read(instruction.operands[2], "u32")
    if "::" in function:
        return write_operand(instruction.operands[0], f"{function}({holds}, {mask}, {LINE})")
    return write_operand(instruction.operands[0], f"bool({function}({mask}, {holds}, {LINE}))")


def _match(instruction: PtxInstruction) -> str:
    exactly(instruction, 3)
    if instruction.modifiers[0] == "all":
        return _with_flag(instruction, "match_all", instruction.operands[1:])
    value, mask = (
        read(instruction.operands[1], instruction.modifiers[-1]),
        read(instruction.operands[2], "u32"),
    )
    return write_operand(instruction.operands[0], f"__match_any_sync({mask}, {value}, {LINE})")


def _redux(instruction: PtxInstruction) -> str:
    exactly(instruction, 3)
    _, operation, *modifiers, kind = instruction.modifiers
    named = f"::on_host_ptx::{_ATOMICS[operation]}, {how(tuple(modifiers))}"
    value, mask = read(instruction.operands[1], kind), read(instruction.operands[2], "u32")
    return write_operand(
        instruction.operands[0], f"::on_host_ptx::redux<{named}>({value}, {mask}, {LINE})"
    )


def _elect(instruction: PtxInstruction) -> str:
    exactly(instruction, 2)
    return _with_flag(instruction, "elect", instruction.operands[1:])


def _barrier(instruction: PtxInstruction) -> str:
    kinds = [name for name in instruction.modifiers if name not in ("cta", "aligned")]
    if instruction.modifiers[:1] == ("cluster",):
        return f"tune::cluster_{one_of(instruction.modifiers[1], 'arrive', 'wait')}();".replace(
            "wait()", f"wait({LINE})"
        )
    if kinds == ["warp", "sync"]:
        return f"__syncwarp({read(instruction.operands[0], 'u32')}, {LINE});"
    exactly(instruction, 1, 2)
    waits = str(one_of(kinds[0], "sync", "arrive") == "sync").lower()
    number, *count = (read(operand, "u32") for operand in instruction.operands)
    return f"::on_host_ptx::bar({waits}, {number}, {[*count, '0'][0]}, {LINE});"


def _fence(instruction: PtxInstruction) -> str:
    if instruction.has("mbarrier_init") or (
        instruction.has("proxy") and not instruction.has("alias")
    ):
        return "cuda_on_host::fence_asynchronous();"
    return ""


def _copy(instruction: PtxInstruction) -> str:
    name = instruction.modifiers
    if name[:2] == ("async", "bulk"):
        return _bulk(instruction)
    if name == ("async", "commit_group"):
        return "cuda_on_host::commit_copies();"
    if name == ("async", "wait_group"):
        return f"cuda_on_host::wait_for_copies({read(instruction.operands[0], 'u32')});"
    if name == ("async", "wait_all"):
        return "::on_host_ptx::wait_all();"
    if name[:3] == ("async", "mbarrier", "arrive"):
        counted = str(instruction.has("noinc")).lower()
        address = _address(instruction.operands[0])
        return f"::on_host_ptx::arrive_after_copies({address}, {counted}, {LINE});"
    if name[0] != "async" or name[1] not in ("ca", "cg") or "global" not in name:
        raise UnknownInstructionError(instruction.base)
    operands = instruction.operands[: len(instruction.operands) - instruction.has("L2::cache_hint")]
    to, source, size, *given = operands
    if size.kind not in ("number", "register") or len(given) > 1:
        raise UnknownInstructionError(instruction.base)
    bytes_ = read(size, "u32")
    taken = read(given[0], "u32") if given else bytes_
    at = f"{_address(to)}, {_address(source)}, {bytes_}, {taken}, {LINE}"
    return f"::on_host_ptx::cp_async({at});"


_BULK = re.compile(
    r"async\.bulk\.(?:(?P<commit>commit_group)|(?P<wait>wait_group)(?P<read>\.read)?"
    r"|prefetch\..*|(?P<tensor>tensor\.(?P<rank>[23])d\.)?(?:"
    r"shared::(?:cta|cluster)\.(?P<load>global)(?:\.tile)?\.mbarrier::complete_tx::bytes"
    r"|(?P<store>global)\.shared::cta(?:\.tile)?\.bulk_group)(?:\.L2::cache_hint)?)"
)


def _bulk(instruction: PtxInstruction) -> str:
    match = _BULK.fullmatch(".".join(instruction.modifiers))
    if match is None:
        raise UnknownInstructionError(instruction.base)
    if match["commit"]:
        return "cuda_on_host::commit_stores();"
    if match["wait"]:
        pending = read(instruction.operands[0], "u32")
        return f"cuda_on_host::wait_for_stores({pending}, {str(not match['read']).lower()});"
    if not match["load"] and not match["store"]:
        return ""
    if match["tensor"]:
        return _box(instruction, int(match["rank"]), bool(match["load"]))
    to, source, bytes_ = (
        instruction.operands[0],
        instruction.operands[1],
        read(instruction.operands[2], "u32"),
    )
    if match["load"]:
        pointer = f"reinterpret_cast<const void*>({_address(source)})"
        barrier = _address(instruction.operands[3])
        return f"tune::bulk_load({_address(to)}, {pointer}, {bytes_}, {barrier}, 0, {LINE});"
    pointer = f"reinterpret_cast<void*>({_address(to)})"
    return f"tune::bulk_store({pointer}, {_address(source)}, {bytes_}, {LINE});"


def _box(instruction: PtxInstruction, rank: int, loads: bool) -> str:
    """Write a tensor copy: `[map, {x, y}]` on one side."""
    box, shared = (
        (instruction.operands[1], instruction.operands[0])
        if loads
        else (instruction.operands[0], instruction.operands[1])
    )
    corners = ", ".join(read(part, "s32") for part in box.parts[0].parts)
    if len(box.parts[0].parts) != rank:
        raise UnknownInstructionError(instruction.base)
    chart = f"*reinterpret_cast<const tune::TensorMap*>({box.text})"
    if loads:
        barrier = _address(instruction.operands[2])
        rest = f"{_address(shared)}, {chart}, {corners}, {barrier}, 0, {LINE}"
        return f"tune::tensor_load_{rank}d({rest});"
    return f"tune::tensor_store_{rank}d({chart}, {_address(shared)}, {corners}, {LINE});"


def _mbarrier(instruction: PtxInstruction) -> str:
    kept = [
        name
        for name in instruction.modifiers[1:]
        if not re.fullmatch(r"release|acquire|relaxed|cta|cluster|shared(::\w+)?|b64", name)
    ]
    name = ".".join([instruction.modifiers[0], *kept])
    if name in ("init", "inval", "expect_tx"):
        at, *rest = instruction.operands
        values = [_address(at), *(read(operand, "u32") for operand in rest), LINE]
        function = {"init": "init_mbarrier", "inval": "drop_mbarrier", "expect_tx": "expect_bytes"}
        return f"cuda_on_host::{function[name]}({', '.join(values)});"
    if name in ("arrive", "arrive.expect_tx"):
        with_state = instruction.operands[0].kind != "address"
        to = instruction.operands[0] if with_state else Operand("none")
        at, *rest = instruction.operands[with_state:]
        number = read(rest[0], "u32") if rest else "1"
        counts = f"1, {number}" if name == "arrive.expect_tx" else f"{number}, 0"
        return write_operand(to, f"::on_host_ptx::arrive({_address(at)}, {counts}, {LINE})")
    one_of(name, "try_wait", "test_wait", "try_wait.parity", "test_wait.parity")
    to, at, state = instruction.operands[:3]
    value = read(state, "u32" if name.endswith("parity") else "b64")
    called = f"cuda_on_host::test_mbarrier({_address(at)}, static_cast<unsigned>({value}), {LINE})"
    return write_operand(to, called)


def _matrices(instruction: PtxInstruction) -> str:
    name = ".".join(instruction.modifiers)
    match = re.fullmatch(
        r"sync\.aligned\.(?:m8n8\.x([124])|x([124])\.m8n8)(\.trans)?\.shared(?:::cta)?\.b16", name
    )
    if match is None:
        raise UnknownInstructionError(instruction.base)
    exactly(instruction, 2)
    count, transposed = int(match[1] or match[2]), str(bool(match[3])).lower()
    if instruction.base == "ldmatrix":
        names, nothing = targets(instruction.operands[0], "::on_host_ptx::b32")
        if len(names.split(", ")) != count:
            raise UnknownInstructionError(instruction.base)
        at = _address(instruction.operands[1])
        called = f"::on_host_ptx::ldmatrix<{count}, {transposed}>"
        return f"{nothing} {called}({at}, {LINE}, {names});"
    source = instruction.operands[1]
    parts = source.parts if source.kind == "vector" else (source,)
    at = _address(instruction.operands[0])
    return f"::on_host_ptx::stmatrix<{transposed}>({at}, {LINE}, {_words(parts)});"


_ELEMENTS = {
    **{"f16": "f16", "bf16": "bf16", "tf32": "tensor32", "e4m3": "e4m3", "e5m2": "e5m2"},
    **{"s8": "s8", "u8": "u8"},
}
_ELEMENT_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8}
_MMA = re.compile(
    r"sync\.aligned\.(?:kind::f8f6f4\.)?m16n8k(\d+)\.row\.col\.(?:satfinite\.)?"
    r"(f32|f16|s32)\.(\w+)\.(\w+)\.\2"
)


def _mma(instruction: PtxInstruction) -> str:
    match = _MMA.fullmatch(".".join(instruction.modifiers))
    if match is None:
        raise UnknownInstructionError(instruction.base)
    depth, result, a, b = int(match[1]), match[2], match[3], match[4]
    words = depth * _ELEMENT_BITS[a] // 32
    if (
        words not in (4, 8)
        or _ELEMENT_BITS[a] != _ELEMENT_BITS[b]
        or (result == "s32") != (a in "s8u8")
    ):
        raise UnknownInstructionError(instruction.base)
    sizes = (2 if result == "f16" else 4, words // 2, words // 4, 2 if result == "f16" else 4)
    parts = [operand.parts or (operand,) for operand in instruction.operands]
    if tuple(map(len, parts)) != sizes:
        raise UnknownInstructionError(instruction.base)
    arrays = [
        f"::on_host_ptx::u32 on_host_{name}[] = {{{_words(each)}}};"
        for name, each in zip("abc", parts[1:], strict=True)
    ]
    types = (
        f"{cpp_type(result)}, ::on_host_ptx::{_ELEMENTS[a]}, ::on_host_ptx::{_ELEMENTS[b]}, {words}"
    )
    called = f"::on_host_ptx::mma<{types}>(on_host_d, on_host_a, on_host_b, on_host_c, {LINE});"
    results = [write_operand(part, f"on_host_d[{i}]") for i, part in enumerate(parts[0])]
    return " ".join([*arrays, f"::on_host_ptx::u32 on_host_d[{sizes[0]}];", called, *results])


def _words(parts: tuple[Operand, ...]) -> str:
    return ", ".join(read(part, "u32") for part in parts)


def _hint(instruction: PtxInstruction) -> str:
    """Take what has no effect that a result could show."""
    if instruction.base == "griddepcontrol":
        one_of(".".join(instruction.modifiers), "wait", "launch_dependents")
    exactly(instruction, int(instruction.base != "griddepcontrol"))
    return ""


def _query(instruction: PtxInstruction) -> str:
    """Write what asks where an address lies, or in which block."""
    if instruction.base == "isspacep":
        shared = instruction.modifiers[0].startswith("shared")
        is_it = f"__isShared(reinterpret_cast<const void*>({read(instruction.operands[1], 'u64')}))"
        return write_operand(instruction.operands[0], f"{'' if shared else '!'}bool({is_it})")
    kind = instruction.modifiers[-1]
    address = read(instruction.operands[1], kind)
    is_generic = instruction.modifiers[0] != "shared::cluster"
    pointer = f"reinterpret_cast<const void*>({address})"
    if instruction.base == "getctarank":
        rank = f"cuda_on_host::rank_of({pointer}, {LINE})"
        return write_operand(
            instruction.operands[0], rank if is_generic else f"cuda_on_host::rank_at({address})"
        )
    rank = read(instruction.operands[2], "u32")
    if is_generic:
        peer = f"cuda_on_host::peer_of({pointer}, {rank}, {LINE})"
        return write_operand(
            instruction.operands[0], f"reinterpret_cast<::on_host_ptx::u64>({peer})"
        )
    one_of(kind, "u32")
    return write_operand(instruction.operands[0], f"tune::map_shared({address}, {rank}, {LINE})")


MEMORY: dict[str, Callable[[PtxInstruction], str]] = {
    **{"ld": _load, "ldu": _load, "st": _store, "atom": _atomic, "red": _atomic, "cvta": _cvta},
    **{"shfl": _shuffle, "vote": _vote, "match": _match, "redux": _redux, "elect": _elect},
    **{"bar": _barrier, "barrier": _barrier, "fence": _fence, "membar": _fence, "cp": _copy},
    **{"mbarrier": _mbarrier, "ldmatrix": _matrices, "stmatrix": _matrices, "mma": _mma},
    **{"griddepcontrol": _hint, "prefetch": _hint, "prefetchu": _hint, "setmaxnreg": _hint},
    **{"isspacep": _query, "mapa": _query, "getctarank": _query},
    "activemask": lambda instruction: write_operand(instruction.operands[0], "__activemask()"),
    "nanosleep": lambda _: "cuda_on_host::let_others_run();",
    "trap": lambda _: f"__trap({LINE});",
    "createpolicy": lambda instruction: write_operand(
        instruction.operands[0], "::on_host_ptx::u64(0)"
    ),
    "movmatrix": lambda instruction: write_operand(
        instruction.operands[0],
        f"::on_host_ptx::movmatrix({read(instruction.operands[1], 'u32')}, {LINE})",
    ),
}


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
    **{"cluster_ctarank": "tune::cluster_rank()", "cluster_nctarank": "tune::cluster_size()"},
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
