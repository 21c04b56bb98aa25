"""Machine code, counted: instructions by class, widths of accesses, loops, template lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

from tuner.profiler.base import Code
from tuner.profiler.listing import Function, Instruction, read
from tuner.profiler.loops import innermost_loops

# Opcodes without modifiers, as nvdisasm 13 writes them for compute capabilities 7.5 to 12.1: those
# of the instruction set reference in NVIDIA's CUDA Binary Utilities. The first that matches wins.
CLASSES: Mapping[str, str] = {
    "global_load": "LDG",
    "global_store": "STG",
    "async_copy": "LDGSTS",  # global to shared memory, past the registers
    "bulk_copy": "UBLK(CP|RED)|UTMA(LDG|STG|REDG)",  # the tensor memory accelerator
    "generic_load": "LD",  # the compiler doesn't know which memory
    "generic_store": "ST",
    "shared_load": "LDS|LDSM",
    "shared_store": "STS|STSM|STAS",
    "local_load": "LDL",  # spills, and arrays that are indexed by variables
    "local_store": "STL",
    "constant_load": "U?LDCU?",
    "tensor_load": "LDTM?|UTCCP",  # Blackwell's tensor memory
    "tensor_store": "STTM?",
    "texture": "TEX|TLD|TLD4|TMML|TXD|TXQ|SULD|SUST|SUATOM|SURED",
    "atomic": "ATOM|ATOMG|RED|REDG|REDAS",
    "shared_atomic": "ATOMS|ATOMSH",
    "tensor": "[HIDBQO]MMA|[HIBQ]GMMA|UTC[HIQO]MMA",
    "fp64": "D(ADD|FMA|MUL|MNMX|SETP)",
    "fp16": "H(ADD2|FMA2|MUL2|MNMX2|SET2|SETP2)(_32I)?|VHMNMX",
    "special": "MUFU",
    "fp32": "F(ADD|MUL|FMA)(2|32I)?|FH(ADD|FMA)|F(MNMX3?|SEL|SET|SETP|CHK|SWZADD|RND)",
    "conversion": "[FI]2[FI]P?|F2FP|I2FP|F2IP|I2IP",
    "shuffle": "SHFL",
    "vote": "VOTEU?|MATCH|REDUX|CREDUX|ELECT|UVOTE|UREDUX",
    "barrier": "BAR|UCGABAR_(ARV|WAIT)|CGABAR.*",
    "wait": "DEPBAR|LDGDEPBAR|SYNCS|ARRIVES|WARPGROUP.*|MEMBAR|FENCE|ERRBAR|CGAERRBAR|NANOSLEEP"
    "|WARPSYNC|ENDCOLLECTIVE|UTMACMDFLUSH|UTCBAR|UTCATOMSWS|UTCSHIFT|ACQBULK|PREEXIT",
    "cache": "CCTL[LT]?|UTMACCTL|UTMAPF|UBLKPF|PREFETCH",
    "branch": "BRA|BRX|BRXU|JMP|JMX|JMXU|CALL|RET|EXIT|KILL|BSSY|BSYNC|BREAK|BMOV|BPT|YIELD",
    "move": "U?MOV|S2R|S2UR|CS2R|R2UR|R2B|B2R|P2R|R2P|UP2UR|R2UP|UR2UP|MOVM",
    "uniform": "U[A-Z0-9]+",  # integer arithmetic once for the whole warp
    "integer": "I(ADD|ADD3|MAD|MUL|ABS|MNMX|SETP|SCADD|DP|DP4A)(64|32I)?|V(IADD|IADDMNMX|IMNMX3?"
    "|ABSDIFF4?)|LEA|LOP|LOP3|PLOP3|SHF|SHL|SHR|PRMT|SEL|SGXT|BMSK|BREV|FLO|POPC|BFE|BFI|XMAD"
    "|PSETP|QSPC|LEPC",
}
OTHER = "other"

_PATTERNS = [(name, re.compile(pattern)) for name, pattern in CLASSES.items()]
# Written as arithmetic, to move a value or to load a constant on another pipe.
_MOVES = re.compile(r"IMAD\.MOV\b")
_CONSTANT = re.compile(r"R\d+, -RZ, RZ, ")
# False whatever comes: for a thread, and for a whole warp.
_NEVER = frozenset({"!PT", "!UPT"})
_LOADS = frozenset({"global_load", "generic_load", "async_copy"})
_STORES = frozenset({"global_store", "generic_store"})
_BITS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}


def codes(text: str, kernels: Mapping[str, str], lines: Sequence[int]) -> tuple[Code, ...]:
    """Count the kernels of a disassembler's text, in the order of `kernels`.

    `kernels` maps names to symbols; line i + 1 of the source came from line `lines[i]` of the
    template. Functions that a kernel calls count as its own. Empty where a kernel isn't there.
    """
    functions = read(text)
    if not all(symbol in functions for symbol in kernels.values()):
        return ()
    return tuple(
        _code(name, [functions[called] for called in _called(functions, symbol)], lines)
        for name, symbol in kernels.items()
    )


def hot_lines(
    text: str, symbol: str, samples: Mapping[int, int], lines: Sequence[int]
) -> tuple[tuple[int, float], ...]:
    """Give the template's lines with their share of the samples taken at a kernel's offsets."""
    function = read(text).get(symbol)
    found: Counter[int] = Counter()
    for one in function.instructions if function else ():
        if (line := _template_line(one, lines)) is not None:
            found[line] += samples.get(one.offset, 0)
    total = sum(samples.values())
    return tuple((line, count / total) for line, count in found.most_common() if count)


def class_of(instruction: Instruction) -> str:
    """Name the class of an instruction, `OTHER` where it has none."""
    if _MOVES.match(instruction.opcode):
        return "move"
    if instruction.family == "HFMA2" and _CONSTANT.match(instruction.operands):
        return "move"
    matching = (name for name, pattern in _PATTERNS if pattern.fullmatch(instruction.family))
    return next(matching, OTHER)


def bits_of(instruction: Instruction) -> int:
    """Read the width of a memory access; 32 is what isn't written."""
    return next((_BITS[text] for text in instruction.modifiers if text in _BITS), 32)


def _called(functions: Mapping[str, Function], symbol: str) -> list[str]:
    """List a function and those with sections of their own that it calls, directly or not."""
    found = [symbol]
    for name in found:  # which grows meanwhile
        calls = (one.targets for one in functions[name].instructions if one.family == "CALL")
        found += dict.fromkeys(
            target
            for target in chain.from_iterable(calls)
            if target in functions and target not in found
        )
    return found


def _code(name: str, functions: Sequence[Function], lines: Sequence[int]) -> Code:
    mix: Counter[str] = Counter()
    loop_mix: Counter[str] = Counter()
    loads: Counter[int] = Counter()
    stores: Counter[int] = Counter()
    places: Counter[tuple[bool, str, int]] = Counter()
    for function in functions:
        loops = frozenset(chain.from_iterable(innermost_loops(function)))
        for one in _executable(function):
            kind = class_of(one)
            mix[kind] += 1
            loop_mix[kind] += one.offset in loops
            loads[bits_of(one)] += kind in _LOADS
            stores[bits_of(one)] += kind in _STORES
            if (line := _template_line(one, lines)) is not None:
                places[one.offset in loops, kind, line] += 1
    most: dict[str, int] = {}
    ranked = sorted(places.items(), key=lambda item: (not item[0][0], -item[1]))
    for (_, kind, line), _ in ranked:
        most.setdefault(kind, line)
    return Code(
        kernel=name,
        instructions=mix.total(),
        mix=dict(mix),
        load_bits=dict(+loads),
        store_bits=dict(+stores),
        lines=most,
        loop_mix=dict(+loop_mix),
    )


def _executable(function: Function) -> list[Instruction]:
    """Leave out what never runs: what fills up the last line of code, and the trap before it."""
    return [
        one
        for one in function.instructions
        if one.family != "NOP" and not (one.predicate in _NEVER or _traps(function, one))
    ]


def _traps(function: Function, one: Instruction) -> bool:
    aims = [function.labels.get(target) for target in one.targets]
    return one.family == "BRA" and not one.predicate and aims == [one.offset]


def _template_line(instruction: Instruction, lines: Sequence[int]) -> int | None:
    line = instruction.line
    return lines[line - 1] if line is not None and 0 < line <= len(lines) else None
