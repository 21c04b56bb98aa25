"""Inline PTX on the CPU: each instruction against NumPy, and what kernels do with it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from host_programs import cubins

from tests.support.host_launch import Launched, launch
from tuner.extensions.cpu.compiler import preload

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

DATA = Path(__file__).parent / "data"
LANES = 64
Values = np.ndarray[Any, Any]
u16, u32, u64, s8 = np.uint16, np.uint32, np.uint64, np.int8
s32, s64, f32, f64, f16 = np.int32, np.int64, np.float32, np.float64, np.float16
bf16, e4m3, e5m2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
e2m1 = ml_dtypes.float4_e2m1fn
# The C++ that a register of this constraint is held in.
HELD = {
    "r": "unsigned",
    "l": "unsigned long long",
    "f": "float",
    "d": "double",
    "h": "unsigned short",
}
BYTES = {"r": 4, "l": 8, "f": 4, "d": 8, "h": 2}


@dataclass(frozen=True)
class Case:
    """`ptx` writes %0 from %1 on; `expected` takes the operands as `types` and gives the bits."""

    ptx: str
    constraints: str
    types: tuple[Any, ...]
    expected: Callable[..., Values]
    fill: str = "any"


def case(ptx: str, constraints: str, types: Any, expected: Any, fill: str = "any") -> Case:
    listed = types if isinstance(types, tuple) else (types,) * (len(constraints) - 1)
    return Case(ptx, constraints, listed, expected, fill)


def halves(function: Callable[..., Values], dtype: Any) -> Callable[..., Values]:
    """Compute on pairs of 16 bits, held in words."""

    def both(*words: Values) -> Values:
        return np.asarray(function(*(word.view(dtype) for word in words)), dtype).view(u32)

    return both


def flushed(x: Values) -> Values:
    return np.where(np.abs(x) < np.finfo(f32).tiny, np.copysign(f32(0), x), x)


def fused(a: Values, b: Values, c: Values) -> Values:
    return (a.astype(np.longdouble) * b + c).astype(a.dtype)


def lane_shifted(x: Values, lanes: list[int]) -> Values:
    return np.concatenate([part[lanes] for part in x.reshape(-1, 32)])


def narrow_pair(dtype: Any) -> Callable[..., Values]:
    def packed(high: Values, low: Values) -> Values:
        limit = float(ml_dtypes.finfo(dtype).max)
        both = np.stack([low, high], 1).clip(-limit, limit).astype(dtype)
        return both.view(u16 if both.itemsize == 1 else u32).flatten()

    return packed


def lut(table: int) -> Callable[..., Values]:
    def each(a: Values, b: Values, c: Values) -> Values:
        result = np.zeros_like(a)
        for i in range(8):
            if table >> i & 1:
                result |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
        return result

    return each


LANE = np.arange(LANES, dtype=u32) % 32
CASES = [
    case("add.s32 %0, %1, %2;", "rrr", u32, lambda a, b: a + b),
    case("sub.u64 %0, %1, %2;", "lll", u64, lambda a, b: a - b),
    case("add.sat.s32 %0, %1, %2;", "rrr", s32,
     lambda a, b: (a.astype(s64) + b).clip(-(2**31), 2**31 - 1).astype(s32)),
    case("mul.lo.u32 %0, %1, %2;", "rrr", u32, lambda a, b: a * b),
    case("mul.hi.s32 %0, %1, %2;", "rrr", s32, lambda a, b: (a.astype(s64) * b >> 32).astype(s32)),
    case("mul.wide.u32 %0, %1, %2;", "lrr", u32, lambda a, b: a.astype(u64) * b),
    case("mad.lo.s32 %0, %1, %2, -5;", "rrr", u32, lambda a, b: a * b - u32(5)),
    case("mad.wide.s32 %0, %1, %2, %3;", "lrrl", (s32, s32, s64),
     lambda a, b, c: a.astype(s64) * b + c),
    case("min.s32 %0, %1, %2;", "rrr", s32, np.minimum),
    case("max.u32 %0, %1, %2;", "rrr", u32, np.maximum),
    case("neg.s32 %0, %1;", "rr", u32, lambda a: u32(0) - a),
    case("shl.b32 %0, %1, %2;", "rrr", (u32, u32),
     lambda a, n: np.where(n < 32, a << (n & 31), 0).astype(u32), "shift"),
    case("shr.s32 %0, %1, %2;", "rrr", (s32, u32), lambda a, n: a >> np.minimum(n, 31).astype(s32),
     "shift"),
    case("shf.l.wrap.b32 %0, %1, %2, 8;", "rrr", u32, lambda a, b: b << u32(8) | a >> u32(24)),
    case("lop3.b32 %0, %1, %2, %3, 0x6A;", "rrrr", u32, lut(0x6A)),
    case("prmt.b32 %0, %1, %2, 0x5410;", "rrr", u32, lambda a, b: a & u32(0xFFFF) | b << u32(16)),
    case("bfe.u32 %0, %1, 4, 8;", "rr", u32, lambda a: a >> u32(4) & u32(255)),
    case("bfe.s32 %0, %1, 28, 9;", "rr", s32, lambda a: a >> 28),
    case("bfi.b32 %0, %1, %2, 8, 4;", "rrr", u32,
     lambda a, b: b & ~u32(0xF00) | (a & u32(15)) << u32(8)),
    case("popc.b32 %0, %1;", "rr", u32, lambda a: np.bitwise_count(a).astype(u32)),
    case("clz.b32 %0, %1;", "rr", u32,
     lambda a: np.array([32 - int(x).bit_length() for x in a], u32)),
    case("bfind.u32 %0, %1;", "rr", u32,
     lambda a: np.array([int(x).bit_length() - 1 for x in a], s32)),
    case("brev.b32 %0, %1;", "rr", u32,
     lambda a: np.array([int(f"{x:032b}"[::-1], 2) for x in a], u32)),
    case("dp4a.s32.s32 %0, %1, %2, %3;", "rrrr", (u32, u32, s32),
     lambda a, b, c: (a.view(s8).astype(s64) * b.view(s8)).reshape(-1, 4).sum(1).astype(s32) + c),
    case(
        "{ .reg .pred p, q; setp.lt.s32 p, %1, %2; setp.ne.and.u32 q, %1, 7, p; "
        "selp.b32 %0, 3, 4, q; }",
        "rrr",
        s32,
        lambda a, b: np.where((a < b) & (a != 7), 3, 4).astype(u32),
    ),
    case("{ .reg .pred p; setp.gtu.f32 p, %1, %2; @!p mov.b32 %0, 9; @p mov.b32 %0, %1; }", "rff",
     f32, lambda a, b: np.where(a <= b, u32(9), a.view(u32))),
    case(
        "{ .reg .b32 i; mov.u32 i, %1; and.b32 i, i, 7; mov.u32 %0, 0; NEXT: .reg .pred p; "
        "add.u32 %0, %0, i; sub.u32 i, i, 1; setp.gt.s32 p, i, 0; @p bra NEXT; }",
        "rr",
        u32,
        lambda a: np.where(a & u32(7), (a & u32(7)) * ((a & u32(7)) + u32(1)) // u32(2), u32(0)),
    ),
    case("add.f32 %0, %1, %2;", "fff", f32, lambda a, b: a + b),
    case(
        "add.rz.f32 %0, %1, %2;",
        "fff",
        f32,
        lambda a, b: np.array(
            [
                toward_zero(x + y)
                for x, y in zip(a.astype(np.longdouble), b.astype(np.longdouble), strict=True)
            ]
        ),
    ),
    case("mul.ftz.f32 %0, %1, %2;", "fff", f32, lambda a, b: flushed(flushed(a) * flushed(b)),
     "tiny"),
    case("mul.sat.f32 %0, %1, %2;", "fff", f32, lambda a, b: (a * b).clip(0, 1)),
    case("fma.rn.f32 %0, %1, %2, %3;", "ffff", f32, fused),
    case("sub.f64 %0, %1, %2;", "ddd", f64, lambda a, b: a - b),
    case("div.rn.f32 %0, %1, %2;", "fff", f32, lambda a, b: a / b),
    case("max.f32 %0, %1, 0f40490FDB;", "ff", f32, lambda a: np.maximum(a, f32(np.pi))),
    case("min.xorsign.abs.f32 %0, %1, %2;", "fff", f32,
     lambda a, b: np.copysign(np.minimum(abs(a), abs(b)), np.sign(a) * np.sign(b))),
    case("abs.f32 %0, %1;", "ff", f32, np.abs),
    case("rcp.approx.ftz.f32 %0, %1;", "ff", f32, lambda a: f32(1) / a),
    case("rsqrt.approx.f32 %0, %1;", "ff", f32,
     lambda a: (1 / np.sqrt(abs(a).astype(f64))).astype(f32), "positive"),
    case("sqrt.rn.f32 %0, %1;", "ff", f32, np.sqrt, "positive"),
    case("ex2.approx.ftz.f32 %0, %1;", "ff", f32, lambda a: np.exp2(a.astype(f64)).astype(f32)),
    case("lg2.approx.f32 %0, %1;", "ff", f32, lambda a: np.log2(a.astype(f64)).astype(f32),
     "positive"),
    case("sin.approx.f32 %0, %1;", "ff", f32, lambda a: np.sin(a.astype(f64)).astype(f32)),
    case("tanh.approx.f32 %0, %1;", "ff", f32, lambda a: np.tanh(a.astype(f64)).astype(f32)),
    case("tanh.approx.bf16x2 %0, %1;", "rr", u32,
     halves(lambda a: np.tanh(a.astype(f64)), bf16), "bf16"),
    case("ex2.approx.f16x2 %0, %1;", "rr", u32,
     halves(lambda a: np.exp2(a.astype(f64)), f16), "f16"),
    case("add.f16x2 %0, %1, %2;", "rrr", u32, halves(lambda a, b: a + b, f16), "f16"),
    case("mul.rn.bf16x2 %0, %1, %2;", "rrr", u32, halves(lambda a, b: a * b, bf16), "bf16"),
    case("fma.rn.bf16x2 %0, %1, %2, %3;", "rrrr", u32,
     halves(lambda a, b, c: a.astype(f64) * b + c, bf16), "bf16"),
    case("fma.rn.relu.f16x2 %0, %1, %2, %3;", "rrrr", u32,
     halves(lambda a, b, c: np.maximum(a.astype(f64) * b + c, 0), f16), "f16"),
    case("max.bf16x2 %0, %1, %2;", "rrr", u32, halves(np.maximum, bf16), "bf16"),
    case("abs.f16 %0, %1;", "hh", f16, np.abs, "f16"),
    case("fma.rn.f32x2 %0, %1, %2, %3;", "llll", u64,
     lambda *x: fused(*(one.view(f32) for one in x)).view(u64), "f32x2"),
    case("cvt.rn.f16.f32 %0, %1;", "hf", f32, lambda a: a.astype(f16)),
    case("cvt.rz.bf16.f32 %0, %1;", "hf", f32, lambda a: (a.view(u32) >> u32(16)).astype(u16)),
    case("cvt.f32.f16 %0, %1;", "fh", f16, lambda a: a.astype(f32), "f16"),
    case("cvt.rn.bf16x2.f32 %0, %1, %2;", "rff", f32, narrow_pair(bf16)),
    case("cvt.rn.relu.f16x2.f32 %0, %1, %2;", "rff", f32,
     lambda a, b: narrow_pair(f16)(np.maximum(a, 0), np.maximum(b, 0))),
    case("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;", "hff", f32, narrow_pair(e4m3)),
    case("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;", "hff", f32, narrow_pair(e5m2)),
    case("{ .reg .b8 code; cvt.rn.satfinite.e2m1x2.f32 code, %1, %2; cvt.u32.u8 %0, code; }",
     "rff", f32, lambda a, b: nibble(a) << u32(4) | nibble(b)),
    case("cvt.rn.f16x2.e4m3x2 %0, %1;", "rh", u16, lambda a: a.view(e4m3).astype(f16).view(u32),
     "codes"),
    case("cvt.rni.sat.s8.f32 %0, %1;", "rf", f32, lambda a: np.rint(a).clip(-128, 127).astype(s32)),
    case("cvt.rzi.u32.f32 %0, %1;", "rf", f32,
     lambda a: np.trunc(a).clip(0, 2**32 - 1).astype(u32)),
    case("cvt.rmi.f32.f32 %0, %1;", "ff", f32, np.floor),
    case("cvt.rn.f32.s32 %0, %1;", "fr", s32, lambda a: a.astype(f32)),
    case("cvt.sat.u8.s32 %0, %1;", "rr", s32, lambda a: a.clip(0, 255).astype(u32)),
    case("cvt.s64.s32 %0, %1;", "lr", s32, lambda a: a.astype(s64)),
    case("cvt.rna.tf32.f32 %0, %1;", "rf", f32, lambda a: a.view(u32) + u32(0x1000) & ~u32(0x1FFF)),
    case("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %1; mov.b32 %0, {hi, lo}; }", "rr", u32,
     lambda a: a << u32(16) | a >> u32(16)),
    case("mov.b64 %0, {%1, %2};", "lrr", u32,
     lambda a, b: a.astype(u64) | b.astype(u64) << u64(32)),
    case("{ .reg .f32 t<2>; mov.b64 {t0, t1}, %1; add.f32 %0, t0, t1; }", "fl", u64,
     lambda a: a.view(f32)[::2] + a.view(f32)[1::2], "f32x2"),
    case("mov.u32 %0, %%laneid;", "r", (), lambda: LANE),
    case("mov.u32 %0, %%tid.x;", "r", (), lambda: np.arange(LANES, dtype=u32)),
    case("mov.u32 %0, %%lanemask_lt;", "r", (), lambda: (u32(1) << LANE) - u32(1)),
    case("shfl.sync.bfly.b32 %0, %1, 5, 0x1f, 0xffffffff;", "rr", u32,
     lambda a: lane_shifted(a, [i ^ 5 for i in range(32)])),
    case(
        "{ .reg .pred p; shfl.sync.up.b32 %0|p, %1, 2, 0, -1; @p add.u32 %0, %0, 1; }",
        "rr",
        u32,
        lambda a: (
            lane_shifted(a, [max(i - 2, i % 2 if i < 2 else 0) for i in range(32)]) + (LANE > 1)
        ),
    ),
    case("shfl.sync.idx.b32 %0, %1, 3, 0x181f, 0xffffffff;", "rr", u32,
     lambda a: lane_shifted(a, [i // 8 * 8 + 3 for i in range(32)])),
    case(
        "{ .reg .pred p; setp.lt.u32 p, %1, 0x80000000; vote.sync.ballot.b32 %0, p, 0xffffffff; }",
        "rr",
        u32,
        lambda a: np.repeat(
            ((a < 2**31).reshape(-1, 32) * (u64(1) << np.arange(32, dtype=u64))).sum(1), 32
        ).astype(u32),
    ),
    case("redux.sync.add.u32 %0, %1, 0xffffffff;", "rr", u32,
     lambda a: np.repeat(a.reshape(-1, 32).sum(1, dtype=u32), 32)),
    case("{ .reg .pred p; .reg .b32 leader; elect.sync leader|p, -1; selp.u32 %0, 1, 0, p; }", "r",
     (), lambda: LANE == 0),
]  # fmt: skip


def toward_zero(x: np.longdouble) -> f32:
    near = f32(x)
    return np.nextafter(near, f32(0)) if abs(np.longdouble(near)) > abs(x) else near


def nibble(x: Values) -> Values:
    return x.clip(-6, 6).astype(e2m1).astype(f32).astype(e2m1).view(np.uint8).astype(u32) & u32(15)


def inputs(one: Case, index: int) -> list[Values]:
    """Draw the operands, as the 64 lanes hold them: numbers, or bits of any kind."""
    rng = np.random.default_rng(index)
    narrow = {"f16": f16, "bf16": bf16}.get(one.fill)
    found: list[Values] = []
    for position, letter in enumerate(one.constraints[1:]):
        count = LANES * BYTES[letter]
        if narrow is not None:
            found.append(rng.normal(0, 2, count // 2).astype(narrow).view(HOLDS[letter]))
        elif letter in "fd" or one.fill == "f32x2":
            number = rng.normal(
                0, 1e-20 if one.fill == "tiny" else 3, count // (8 if letter == "d" else 4)
            )
            number = abs(number) + 0.1 if one.fill == "positive" else number
            found.append(number.astype(f64 if letter == "d" else f32).view(HOLDS[letter]))
        elif one.fill == "shift" and position == 1:
            found.append(rng.integers(0, 40, LANES).astype(u32))
        else:
            bits = rng.integers(0, 256, count, dtype=np.uint8)
            found.append((bits & 0xBF if one.fill == "codes" else bits).view(HOLDS[letter]))
    return found


HOLDS = {"r": u32, "l": u64, "f": u32, "d": u64, "h": u16}


def table_source() -> str:
    """Write a kernel in which 64 threads run every instruction on words of 8 bytes."""
    parts = ["// every instruction of the table", "#define AT(i) ((i) * 64 + threadIdx.x)"]
    for index, one in enumerate(CASES):
        letters = one.constraints
        declared = " ".join(
            f"{HELD[letter]} v{i}; memcpy(&v{i}, x + AT({index} * 3 + {i - 1}), sizeof v{i});"
            for i, letter in enumerate(letters)
            if i
        )
        given = ", ".join(f'"{letter}"(v{i})' for i, letter in enumerate(letters) if i)
        parts.append(
            f"__device__ void f{index}(unsigned long long* y, const unsigned long long* x) {{"
            f" {declared} {HELD[letters[0]]} v0 = 0;"
            f' asm volatile("{one.ptx}" : "=&{letters[0]}"(v0) : {given} : "memory");'
            f" memcpy(y + AT({index}), &v0, sizeof v0); }}"
        )
    calls = " ".join(f"f{index}(y, x);" for index in range(len(CASES)))
    signature = "unsigned long long* y, const unsigned long long* x"
    return "\n".join([*parts, f'extern "C" __global__ void run({signature}) {{ {calls} }}'])


Library = Callable[..., bytes]


@pytest.fixture(scope="module")
def library() -> Iterator[Library]:
    with cubins() as compile_kernels:
        yield compile_kernels


@pytest.fixture(scope="module")
def results(library: Library) -> Values:
    given = np.zeros((len(CASES), 3, LANES), u64)
    for index, one in enumerate(CASES):
        for i, values in enumerate(inputs(one, index)):
            given[index, i] = values.astype(u64)
    buffers = (("c_uint64", len(CASES) * LANES), ("c_uint64", [int(x) for x in given.flatten()]))
    end = launch(library(table_source()), *buffers, block=(LANES, 1, 1))
    assert end.code == 0, end.message
    return np.array([int(x) for x in end.buffers[0]], u64).reshape(-1, LANES)


@pytest.mark.parametrize("index", range(len(CASES)), ids=[one.ptx for one in CASES])
def test_an_instruction_computes_what_numpy_does(results: Values, index: int) -> None:
    one = CASES[index]
    operands = [x.view(t) for x, t in zip(inputs(one, index), one.types, strict=True)]
    holds = HOLDS[one.constraints[0]]
    with np.errstate(all="ignore"):
        expected = np.asarray(one.expected(*operands))
    kind = expected.dtype if expected.dtype.kind in "fV" else None
    bits = (
        expected.view(holds)
        if expected.itemsize == np.dtype(holds).itemsize
        else expected.astype(holds)
    )
    found = results[index].astype(holds)
    assert found.tolist() == bits.tolist(), f"{kind}: {found.view(kind or holds)} {expected}"


def test_predicated_loads_of_16_bytes_leave_what_is_out_of_bounds(library: Library) -> None:
    source = (DATA / "predicated.cu").read_text("utf-8")
    rows, n = np.arange(96, dtype=f32), 52
    for sanitizers in ((), ("address", "undefined")):
        end = launch(
            library(source, ("scaled",), sanitizers),
            *(("c_float", 96), ("c_float", rows[:n].tolist()), ("c_int", [n])),
            block=(24, 1, 1),
            environment=preload(sanitizers),
        )
        assert end.code == 0, end.message
        assert end.buffers[0] == [*(2 * rows[:n]), *[-1.0] * (96 - n)]


def mma_source() -> str:
    return (DATA / "inline_mma.cu").read_text("utf-8")


@pytest.mark.parametrize(("dtype", "depth"), [("bf16", 16), ("f16", 8), ("e4m3", 32), ("tf32", 8)])
def test_mma_of_copied_tiles(library: Library, dtype: str, depth: int) -> None:
    rng = np.random.default_rng(depth)
    kinds = {"bf16": bf16, "f16": f16, "e4m3": e4m3, "tf32": f32}
    a = rng.integers(-4, 5, (16, depth)).astype(kinds[dtype])
    b = rng.integers(-4, 5, (8, depth)).astype(kinds[dtype])
    words = [[int(x) for x in part.flatten().view(u32)] for part in (a, b)]
    for order in (0, 1, 7):
        end = launch(
            library(mma_source(), (f"tile_{dtype}_{depth}",)),
            *(("c_float", 128), ("c_uint32", words[0]), ("c_uint32", words[1])),
            order=order,
        )
        assert end.code == 0, end.message
        assert end.buffers[0] == (a.astype(f64) @ b.astype(f64).T).flatten().tolist()


def test_an_mbarrier_of_inline_ptx_lets_a_bulk_copy_land(library: Library) -> None:
    source = (DATA / "inline_mma.cu").read_text("utf-8")
    for order in (0, 1, 7):
        end = launch(
            library(source, ("landed",)), ("c_float", 64), ("c_float", list(range(64))), order=order
        )
        assert (end.code, end.buffers[0]) == (0, [2.0 * i for i in range(64)]), end.message


def test_an_access_outside_of_shared_memory_has_its_line(library: Library) -> None:
    end = ran(library, 'int v;\nasm("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(4)); y[0] = v;')
    assert re.search(
        r"kernel\.cu\(3\): an access: 4 bytes at the address 4 lie outside", end.message
    )


def ran(library: Library, body: str) -> Launched:
    source = f'extern "C" __global__ void run(int* y) {{\n{body}\n}}\n'
    return launch(library(source), ("c_int", 64))
