"""Kernels that cheat or are broken, each in its own way, and how each of them has to be caught."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from operators import (
    ACCUMULATE,
    ENERGY,
    SCALE,
    SOFTMAX,
    STAGED_ENERGY,
    UNIT_ROWS,
    Operator,
    in_accumulate,
    in_energy,
    in_scale,
    in_softmax,
    in_staged_energy,
    in_unit_rows,
    launch,
    rows,
)

from tuner.model.kernel import Launch, Workload
from tuner.model.trial import Status

# `verify`: without timing. `run`: only what the last timed call left gives it away. `compare`:
# it was verified and timed, and cheats from then on.
Stage = Literal["verify", "run", "compare"]
# The compilation or the part of the protocol that finds it.
Check = Literal[
    "input kinds",
    "zero rows",
    "poison",
    "guards",
    "inputs",
    "second launch",
    "determinism",
    "order of threads",
    "after timing",
    "after comparing",
    "edge_cases",
    "launch",
    "timeout",
    "undefined",
    "address",
]


@dataclass(frozen=True, slots=True)
class Caught:
    """The status that a kernel must get, and what its reason must say (a regular expression)."""

    status: Status
    reason: str


@dataclass(frozen=True, slots=True)
class Adversary:
    """One kernel, what it does, and what each device has to make of it.

    None leaves a device out. `passes_on` is a workload on which nothing is wrong with it.
    """

    name: str
    check: Check
    operator: Operator
    source: str
    host: Caught | None
    cuda: Caught | None
    launches: tuple[Launch, ...] = ()
    workload: Workload | None = None
    passes_on: Workload | None = None
    stage: Stage = "verify"
    sanitizers: tuple[str, ...] = ()

    @property
    def where(self) -> Workload:
        """The workload on which it is caught."""
        return self.workload or self.operator.workload

    @property
    def launched(self) -> tuple[Launch, ...]:
        """Its launches: the operator's own where it does not say otherwise."""
        return self.launches or self.operator.launches


def wrong(
    name: str,
    check: Check,
    source: str,
    reason: str,
    operator: Operator = SCALE,
    **more: object,
) -> Adversary:
    """Describe a kernel that every device finds wrong for the same reason."""
    caught = Caught(Status.INCORRECT, reason)
    return Adversary(name, check, operator, source, caught, caught, **more)  # type: ignore[arg-type]


# Between timing and comparing: longer than `run` takes.
PAUSE_S = 5
ONE_BLOCK = (launch(1, 128),)
# Counts its launches; with one block, so that all threads of a launch see the same number.
COUNTER = "__device__ int launches;"
COUNTED = """
  __shared__ int seen;
  if (threadIdx.x == 0) seen = launches++;
  __syncthreads();
"""
POISONED = "__float_as_uint(y[i]) == 0xFFFFFFFFu || __float_as_uint(y[i]) == 0x7B7B7B7Bu"

WRONG_NUMBERS = (
    wrong("skips the work", "input kinds", in_scale(before="return;"), "expected"),
    wrong("writes zeros", "input kinds", in_scale(each="result = 0;"), "is 0, expected"),
    wrong("returns its input", "input kinds", in_scale(each="result = x[i];"), "expected"),
    wrong(
        "returns its input at the benchmarked shape only",
        "input kinds",
        in_scale(each="if (T == 1000) result = x[i];"),
        "expected",
        passes_on=Workload.of({"T": 127}),
    ),
    wrong(
        "is right for positive numbers only",
        "input kinds",
        in_scale(each="if (x[i] < 0) result = -result;"),
        "expected",
    ),
    wrong(
        "is right for moderate numbers only",
        "input kinds",
        in_scale(each="if (fabsf(x[i]) > 5.7f) result = 11.4f;"),
        "with inputs '(x3|extreme|nonfinite)'",
    ),
    Adversary(
        "takes small numbers for zeros",
        "input kinds",
        SCALE,
        in_scale(each="if (fabsf(x[i]) < 0x1p-126f) result = 0;"),
        Caught(Status.INCORRECT, "with inputs 'extreme'"),
        None,  # CuPy, which draws the inputs there, takes them for zeros itself
    ),
    wrong(
        "keeps ten bits of the mantissa",
        "input kinds",
        in_scale(each="result = __uint_as_float(__float_as_uint(result) & 0xFFFFE000u);"),
        "expected",
    ),
    wrong(
        "sums in half precision",
        "input kinds",
        in_energy(
            zero="__half total = __float2half(0.0f);",
            add="total = __hadd(total, __float2half(value * value));",
            after="float sum = __half2float(total);",
        ),
        "times the tolerance",
        ENERGY,
    ),
    wrong(
        "sums in bfloat16",
        "input kinds",
        in_energy(add="sum = __bfloat162float(__float2bfloat16(sum + value * value));"),
        "times the tolerance",
        ENERGY,
    ),
    wrong(
        "does every eighth row and guesses the others",
        "input kinds",
        in_energy(store="y[row] = row % 8 ? float(D) : sum;"),
        "expected",
        ENERGY,
    ),
    wrong(
        "overflows where a maximum should have been taken off",
        "input kinds",
        in_softmax(shift="0.0f"),
        "is -?nan, expected",
        SOFTMAX,
    ),
    wrong(
        "leaves out what is small",
        "input kinds",
        in_softmax(each="if (result < 1e-3f) result = 0;"),
        "is 0, expected",
        SOFTMAX,
    ),
    wrong(
        "divides zero by zero",
        "zero rows",
        in_unit_rows("largest"),
        r"is -?nan, expected -?0",
        UNIT_ROWS,
    ),
    wrong(
        "writes NaN where a number belongs",
        "input kinds",
        in_scale(each="if (i == T / 2) result = result / 0.0f * 0.0f;"),
        r"y\[500\] is -?nan, expected",
    ),
    wrong(
        "writes a number where NaN belongs",
        "input kinds",
        in_scale(each="if (result != result) result = 0;"),
        r"with inputs 'nonfinite'.* is 0, expected nan",
    ),
    wrong(
        "writes the largest number where infinity belongs",
        "input kinds",
        in_scale(each="if (isinf(result)) result = copysignf(3.402823466e38f, result);"),
        r"with inputs 'nonfinite'.*expected -?inf",
    ),
)

STATE = (
    wrong(
        "is right only when it runs first",
        "second launch",
        in_scale(top=COUNTER, before=COUNTED, each="if (seen > 0) result = 0;"),
        "is 0, expected",
        launches=ONE_BLOCK,
    ),
    wrong(
        "caches its result by the pointer to its input",
        "second launch",
        in_scale(
            top="__device__ float cached[1000];\n__device__ const float* input;",
            before=COUNTED.replace("launches++", "input == x"),
            each="if (seen) result = cached[i]; else cached[i] = result;",
            after="__syncthreads(); input = x;",
        ),
        "expected",
        launches=ONE_BLOCK,
    ),
    wrong(
        "caches its result by a sample of its input",
        "after timing",
        in_scale(
            top="__device__ float cached[1000], sample[4];",
            before=COUNTED.replace(
                "launches++",
                "x[0] == sample[0] && x[T / 3] == sample[1] && x[T / 2] == sample[2] && "
                "x[T - 1] == sample[3]",
            ),
            each="if (seen) result = cached[i]; else cached[i] = result;",
            after="__syncthreads();\n"
            "  sample[0] = x[0], sample[1] = x[T / 3], sample[2] = x[T / 2], sample[3] = x[T - 1];",
        ),
        "after timing.* expected",
        launches=ONE_BLOCK,
        stage="run",
    ),
    wrong(
        "stops working when it has been verified",
        "after timing",
        in_scale(top=COUNTER, before=COUNTED + "if (seen >= 14) return;"),
        "after timing.* expected",
        launches=ONE_BLOCK,
        stage="run",
    ),
    wrong(
        "works only where it sees the poison of a check",
        "after timing",
        in_scale(each=f"if (!({POISONED})) continue;"),
        "after timing.* expected",
        stage="run",
    ),
    wrong(
        "writes outside only when it has been verified",
        "after timing",
        in_scale(
            top=COUNTER, before=COUNTED, after="if (seen >= 14 && threadIdx.x == 0) y[T] = 1;"
        ),
        "after timing.* wrote outside its buffers",
        launches=ONE_BLOCK,
        stage="run",
    ),
)

# A kernel may as well know the time: set once it has been verified and timed.
CLOCK = """
__device__ unsigned long long began;
#ifdef __CUDA_ON_HOST__
extern "C" long time(long*);
#endif
"""
LATER = """
  __shared__ unsigned long long elapsed_s;
  if (threadIdx.x == 0) {
    unsigned long long now;
#ifdef __CUDA_ON_HOST__
    now = time(nullptr) * 1000000000ull;
#else
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
#endif
    if (began == 0) began = now;
    elapsed_s = (now - began) / 1000000000ull;
  }
  __syncthreads();
"""
AFTERWARDS = (
    Adversary(
        "stops working while it is compared",
        "after comparing",
        SCALE,
        in_scale(top=COUNTER, before=COUNTED + "if (seen >= 400) return;"),
        Caught(Status.INCORRECT, "expected|differs"),
        None,  # a replay there has many calls
        launches=ONE_BLOCK,
        stage="compare",
    ),
    wrong(
        "writes zeros once it is compared",
        "after comparing",
        in_scale(top=CLOCK, before=LATER, each=f"if (elapsed_s >= {PAUSE_S - 1}) result = 0;"),
        "expected|differs",
        launches=ONE_BLOCK,
        stage="compare",
    ),
    Adversary(
        "works only on the last of several buffers",
        "after timing",
        SCALE,
        in_scale(
            top="__device__ float* highest;",
            before="if (y < highest) return;\n  __syncthreads();",
            after="__syncthreads();\n  highest = y;",
        ),
        None,  # there are no several
        Caught(Status.INCORRECT, "after timing"),
        launches=ONE_BLOCK,
        stage="run",
    ),
    Adversary(
        "works in place only where it was verified",
        "after timing",
        ACCUMULATE,
        in_accumulate("if (first == nullptr) first = total;\n  if (first != total) return;"),
        None,  # it is timed where it is verified
        Caught(Status.INCORRECT, "after timing"),
        stage="run",
    ),
)

MEMORY = (
    wrong(
        "writes one element past the end",
        "guards",
        in_scale(after="if (thread == 0) y[T] = 1;"),
        r"wrote outside its buffers \(before x\)",
    ),
    wrong(
        "writes one element before the start",
        "guards",
        in_scale(after="if (thread == 0) y[-1] = 1;"),
        r"wrote outside its buffers \(before y\)",
    ),
    wrong(
        "modifies an input",
        "inputs",
        in_scale(after="if (thread == 0) const_cast<float*>(x)[T - 1] += 1;"),
        "changed its input 'x'",
    ),
    wrong(
        "leaves the tail unwritten",
        "poison",
        in_scale(each="if (i == T - 1) continue;"),
        r"y\[999\] is",
    ),
    wrong(
        "takes poison for a result that is there already",
        "poison",
        in_scale(each=f"if ({POISONED}) continue;"),
        "expected",
    ),
    wrong(
        "leaves NaN to the poison",
        "poison",
        in_scale(each="if (result != result) continue;"),
        "with inputs 'nonfinite'.* expected nan",
    ),
    wrong(
        "adds to an output that nobody cleared",
        "poison",
        in_energy(store="atomicAdd(&y[row], sum);"),
        "expected",
        ENERGY,
    ),
    wrong(
        "takes its scratch for zeros",
        "poison",
        in_staged_energy(start="partial[row * kParts + part]"),
        "expected",
        STAGED_ENERGY,
    ),
    wrong(
        "uses what its previous call left in the scratch",
        "poison",
        in_staged_energy(),
        "expected",
        STAGED_ENERGY,
        launches=STAGED_ENERGY.launches[::-1],
    ),
    wrong(
        "reads dynamic shared memory that nobody wrote",
        "poison",
        in_scale(
            before="extern __shared__ float left[];",
            each="result += left[threadIdx.x];",
            after="left[threadIdx.x] = 1.0f + x[threadIdx.x];",
        ),
        "expected",
        launches=(launch(4, 128, shared_bytes=512),),
    ),
    wrong(
        "reads static shared memory that nobody wrote",
        "poison",
        in_scale(
            before="__shared__ float left[128];",
            each="result += left[threadIdx.x];",
            after="left[threadIdx.x] = 1.0f + x[threadIdx.x];",
        ),
        "expected",
    ),
    Adversary(
        "adds to a variable that it never set",
        "poison",
        ENERGY,
        in_energy(zero="float sum;"),
        Caught(Status.INCORRECT, "expected"),
        None,  # a register there mostly holds 0
    ),
    Adversary(
        "reads and drops what lies behind its input",
        "address",
        ENERGY,
        in_energy(
            store="const float next = __half2float(x[(row + 1) * D]);\n"
            "    y[row] = next == 1e30f ? next : sum;",
        ),
        Caught(Status.LAUNCH, r"kernel.cu\(\d+\): read of 2 bytes outside .* parameter 2"),
        None,  # memcheck's to find
        sanitizers=("address",),
    ),
    Adversary(
        "reads static shared memory beyond its end",
        "address",
        SCALE,
        in_scale(
            before="__shared__ float staged[128];",
            each="staged[threadIdx.x] = result;\n"
            "    __syncthreads();\n"
            "    if (staged[threadIdx.x + 1] == 1e30f) result = 0;",
        ),
        Caught(Status.LAUNCH, r"kernel.cu\(\d+\): read of 4 bytes outside .* `?staged"),
        None,  # memcheck's to find
        launches=(launch(8, 128),),
        workload=Workload.of({"T": 1024}),
        sanitizers=("address",),
    ),
)

# The other half of the block is late, as it may be at any time.
LATE = "if (threadIdx.x / 32 == 1) __nanosleep(100000);"
CONCURRENCY = (
    wrong(
        "reads what another warp has yet to write",
        "order of threads",
        in_scale(
            before="__shared__ float staged[64];\n  const int other = 63 - threadIdx.x;\n  " + LATE,
            each="staged[threadIdx.x] = result;\n"
            "    __syncwarp();\n"
            "    y[i + other - int(threadIdx.x)] = staged[other];\n"
            "    continue;",
        ),
        "expected",
        launches=(launch(16, 64),),
        workload=Workload.of({"T": 1024}),
    ),
    wrong(
        "overwrites what another warp has yet to read",
        "order of threads",
        in_scale(
            before="__shared__ float staged[64];\n  const int other = 63 - threadIdx.x;",
            each="staged[threadIdx.x] = result;\n"
            "    __syncthreads();\n    " + LATE + "\n"
            "    y[i + other - int(threadIdx.x)] = staged[other];\n"
            "    continue;",
        ),
        "expected",
        launches=(launch(2, 64),),
        workload=Workload.of({"T": 1024}),
    ),
    Adversary(
        "depends on the order of blocks without saying so",
        "determinism",
        ENERGY,
        in_energy(
            top="__device__ unsigned ticket;",
            before="const unsigned place = lane == 0 ? atomicAdd(&ticket, 1u) % gridDim.x : 0;",
            store="y[row] = sum * (1.0f + place * 0x1p-22f);",
        ),
        Caught(Status.INCORRECT, "other bits of 'y'"),
        None,  # blocks of so small a grid may well start in the same order twice
    ),
    Adversary(
        "depends on the time without saying so",
        "determinism",
        ENERGY,
        in_energy(store="y[row] = sum * (1.0f + (clock64() / 64 % 64) * 0x1p-22f);"),
        None,
        Caught(Status.INCORRECT, "other bits of 'y'"),
    ),
    Adversary(
        "waits at two barriers at once",
        "launch",
        SCALE,
        in_scale(after="if (threadIdx.x < 40)\n    __syncthreads();\n  else\n    __syncthreads();"),
        Caught(
            Status.LAUNCH,
            r"divergent barrier .*40 wait at __syncthreads \(line \d+\), 88 wait at __syncthreads",
        ),
        None,  # synccheck's to find
    ),
)


def ends_badly(
    name: str, source: str, host: Caught | None, cuda: Caught | None, **more: object
) -> Adversary:
    """Describe a kernel that no result comes of."""
    check: Check = "timeout" if (host or cuda).status is Status.TIMEOUT else "launch"  # type: ignore[union-attr]
    return Adversary(name, check, SCALE, source, host, cuda, **more)  # type: ignore[arg-type]


LATE_ANSWER = Caught(Status.TIMEOUT, "no answer within 2 s|2 s")
TOO_LATE = Caught(Status.TIMEOUT, "had not ended in time")
FAILURES = (
    ends_badly("never ends", in_scale(before="for (;;) __nanosleep(1000);"), TOO_LATE, LATE_ANSWER),
    ends_badly(
        "never ends, in one thread of its last block",
        in_scale(after="while (thread == gridDim.x * blockDim.x - 1) {}"),
        TOO_LATE,
        LATE_ANSWER,
    ),
    ends_badly(
        "waits for a lock that nobody gives back",
        in_scale(
            top="__device__ int lock;",
            before="if (threadIdx.x == 0) while (atomicCAS(&lock, 0, 1) != 0) {}",
        ),
        TOO_LATE,
        LATE_ANSWER,
    ),
    ends_badly(
        "exits the process",
        in_scale(top='extern "C" void exit(int);', before="exit(0);"),
        Caught(Status.LAUNCH, "(ended|died|exit)"),
        None,
    ),
    ends_badly(
        "exits the process at once",
        in_scale(top='extern "C" void _exit(int);', after="_exit(0);"),
        Caught(Status.LAUNCH, "(ended|died|exit)"),
        None,
    ),
    ends_badly(
        "traps",
        in_scale(before="__trap();"),
        Caught(Status.LAUNCH, "trapped"),
        Caught(Status.LAUNCH, "CUDA_ERROR"),
    ),
    ends_badly(
        "uses an illegal address",
        in_scale(before="y[1ll << 42] = 1;"),
        Caught(Status.LAUNCH, "uses an illegal address"),
        Caught(Status.LAUNCH, "ILLEGAL_ADDRESS"),
    ),
    ends_badly(
        "asks for more shared memory than there is",
        in_scale(),
        Caught(Status.LAUNCH, "1048576 bytes of dynamic shared memory"),
        Caught(Status.LAUNCH, "CUDA_ERROR"),
        launches=(launch(4, 128, shared_bytes=1 << 20),),
    ),
    ends_badly(
        "asks for more threads than a block has",
        in_scale(),
        Caught(Status.LAUNCH, "2048.* threads"),
        Caught(Status.LAUNCH, "CUDA_ERROR"),
        launches=(launch(1, 2048),),
    ),
    ends_badly(
        "reads a vector at an address that is no multiple of its size",
        in_scale(
            each="if (i < T - 1) {\n"
            "      const float2 pair = *reinterpret_cast<const float2*>(x + i);\n"
            "      result = pair.y == 12345.678f ? 0.0f : 2 * pair.x;\n"
            "    }"
        ),
        Caught(Status.LAUNCH, r"kernel.cu\(\d+\): .*(misaligned|align)"),
        Caught(Status.LAUNCH, "MISALIGNED_ADDRESS"),
        sanitizers=("undefined",),
    ),
    Adversary(
        "counts beyond what its type holds",
        "undefined",
        SCALE,
        in_scale(each="int hash = i + 1000000;\n    hash *= hash;\n    if (hash == 7) result = 0;"),
        Caught(Status.LAUNCH, r"kernel.cu\(\d+\): .*overflow"),
        None,  # a GPU's integers wrap
        sanitizers=("undefined",),
    ),
)

IN_VECTORS = """\
extern "C" __global__ void run(float* y, const float* x, int T) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  for (int i = thread; i < T / 4; i += gridDim.x * blockDim.x) {
    const float4 in = reinterpret_cast<const float4*>(x)[i];
    reinterpret_cast<float4*>(y)[i] = make_float4(2 * in.x, 2 * in.y, 2 * in.z, 2 * in.w);
  }
}
"""
BOUNDARIES = (
    wrong(
        "forgets what is left over of a vector",
        "edge_cases",
        IN_VECTORS,
        r"y\[12[4-6]\] is",
        workload=Workload.of({"T": 127}),
        passes_on=Workload.of({"T": 1000}),
    ),
    wrong(
        "counts in sixteen bits",
        "edge_cases",
        in_scale(each="if (i > 32767) break;"),
        r"y\[\d{5}\] is",
        workload=Workload.of({"T": 40000}),
        passes_on=Workload.of({"T": 1000}),
    ),
    wrong(
        "knows the number of rows that is timed",
        "edge_cases",
        in_scale(each="if (i >= 1000) continue;"),
        r"y\[1\d\d\d\] is",
        workload=Workload.of({"T": 1537}),
        passes_on=Workload.of({"T": 1000}),
    ),
    wrong(
        "lowers its precision for many rows",
        "edge_cases",
        in_energy(
            add="sum += value * value;\n    if (T > 20) sum = __half2float(__float2half(sum));",
        ),
        "times the tolerance",
        ENERGY,
        workload=rows(24, 512),
        passes_on=rows(3, 512),
    ),
)
# By device, for opening one takes longer than a check.
ADVERSARIES = tuple(
    sorted(
        (
            *WRONG_NUMBERS,
            *STATE,
            *AFTERWARDS,
            *MEMORY,
            *CONCURRENCY,
            *FAILURES,
            *BOUNDARIES,
        ),
        key=lambda adversary: (adversary.operator.name, adversary.sanitizers),
    )
)
ON_HOST = tuple(adversary for adversary in ADVERSARIES if adversary.host is not None)
ON_CUDA = tuple(adversary for adversary in ADVERSARIES if adversary.cuda is not None)
