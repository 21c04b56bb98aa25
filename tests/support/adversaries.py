"""Kernels that cheat or are broken, each in its own way, and how each of them has to be caught.

The kernels lie in tests/adversarial/kernels under their names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from operators import (
    ACCUMULATE,
    COUNTED_ENERGY,
    DRAWN_SCALE,
    ENERGY,
    LOOSE_SCALE,
    SCALE,
    SOFTMAX,
    STAGED_ENERGY,
    UNIT_ROWS,
    WEIGHTED,
    Kernel,
    Operator,
    launch,
    rows,
)

from tuner.model.kernel import Launch, Workload
from tuner.model.trial import Status

# The compilation or the part of the protocol that finds it. Most are found without timing. After
# timing, only what the last timed call left gives it away; after comparing, it was verified and
# timed, and cheats from then on. Phases: it works in some calls and not in others, and whichever
# of them is judged first finds it.
Check = Literal[
    "input kinds",
    "zero rows",
    "poison",
    "zeroed",
    "late writer",
    "guards",
    "inputs",
    "second launch",
    "determinism",
    "order of threads",
    "after timing",
    "after comparing",
    "phases",
    "edge_cases",
    "launch",
    "timeout",
    "undefined",
    "address",
]
_STATUS = {
    "timeout": Status.TIMEOUT,
    **dict.fromkeys(("launch", "undefined", "address"), Status.LAUNCH),
}


@dataclass(frozen=True, slots=True)
class Adversary(Kernel):
    """One kernel, what finds it, and what the reason must say (a regular expression).

    `on_cuda` is the reason there if it is another. `passes_on` is a workload on which nothing is
    wrong with it. `key` is when a phase machine works, `text_of` the kernel whose text it has.
    """

    name: str
    check: Check
    reason: str
    operator: Operator = SCALE
    launches: tuple[Launch, ...] = ()
    on_cuda: str = ""
    only: Literal["", "host", "cuda"] = ""
    workload: Workload | None = None
    passes_on: Workload | None = None
    sanitizers: tuple[str, ...] = ()
    key: str = ""
    text_of: str = ""

    @property
    def source(self) -> str:
        if self.text_of:
            return self.operator.kernel(self.text_of).read_text("utf-8")
        if not self.key:
            return Kernel.source.__get__(self)
        return self.operator.kernel("phase machine").read_text("utf-8").replace("KEY", self.key)

    @property
    def status(self) -> Status:
        return _STATUS.get(self.check, Status.INCORRECT)

    @property
    def where(self) -> Workload:
        """The workload on which it is caught."""
        return self.workload or self.operator.workload


# Between timing and comparing: longer than `run` takes.
PAUSE_S = 5
# For what counts its launches: all threads of a launch see the same number.
ONE_BLOCK = (launch(1, 128),)
T_127, T_1000, T_1024 = (Workload.of({"T": t}) for t in (127, 1000, 1024))
# One element in so many is changed: a sample of four of them meets it once in 65,536 runs.
T_262144 = Workload.of({"T": 1 << 18})

WRONG_NUMBERS = (
    Adversary("skips the work", "input kinds", "expected"),
    Adversary("writes zeros", "input kinds", "is 0, expected"),
    Adversary("returns its input", "input kinds", "expected"),
    Adversary(
        "returns its input at the benchmarked shape only",
        "input kinds",
        "expected",
        passes_on=T_127,
    ),
    Adversary("is right for positive numbers only", "input kinds", "expected"),
    Adversary(
        "is right for moderate numbers only", "input kinds", "with inputs '(x3|extreme|nonfinite)'"
    ),
    # CuPy, which draws the inputs on a GPU, takes them for zeros itself.
    Adversary("takes small numbers for zeros", "input kinds", "with inputs 'extreme'", only="host"),
    Adversary("keeps ten bits of the mantissa", "input kinds", "expected"),
    Adversary("sums in half precision", "input kinds", "times the tolerance", ENERGY),
    Adversary("sums in bfloat16", "input kinds", "times the tolerance", ENERGY),
    Adversary("does every eighth row and guesses the others", "input kinds", "expected", ENERGY),
    Adversary(
        "overflows where a maximum should have been taken off",
        "input kinds",
        "is -?nan, expected",
        SOFTMAX,
    ),
    Adversary("leaves out what is small", "input kinds", "is 0, expected", SOFTMAX),
    Adversary("divides zero by zero", "zero rows", r"is -?nan, expected -?0", UNIT_ROWS),
    Adversary("writes NaN where a number belongs", "input kinds", r"y\[500\] is -?nan, expected"),
    Adversary(
        "writes a number where NaN belongs",
        "input kinds",
        r"with inputs 'nonfinite'.* is 0, expected nan",
    ),
    Adversary(
        "writes the largest number where infinity belongs",
        "input kinds",
        r"with inputs 'nonfinite'.*expected -?inf",
    ),
)

STATE = (
    Adversary(
        "is right only when it runs first", "second launch", "is 0, expected", launches=ONE_BLOCK
    ),
    Adversary(
        "caches its result by the pointer to its input",
        "second launch",
        "expected",
        launches=ONE_BLOCK,
    ),
    Adversary(
        "caches its result by a sample of its input",
        "after timing",
        "after timing.* expected",
        launches=ONE_BLOCK,
        workload=T_262144,
    ),
    Adversary(
        "keeps results of inputs that the reference draws",
        "after timing",
        "after timing.*( expected|differs between timed calls)",
        DRAWN_SCALE,
        launches=ONE_BLOCK,
        text_of="caches its result by a sample of its input",
    ),
    Adversary(
        "learns where its inputs vary",
        "after timing",
        "after timing.*( expected|differs between timed calls)",
        launches=ONE_BLOCK,
    ),
    Adversary(
        "stops working when it has been verified",
        "after timing",
        "after timing.* expected",
        launches=ONE_BLOCK,
    ),
    Adversary(
        "writes nothing once it has been verified",
        "after timing",
        "after timing.* expected",
        LOOSE_SCALE,
        launches=ONE_BLOCK,
    ),
    Adversary(
        "writes outside only when it has been verified",
        "after timing",
        "after timing.* wrote outside its buffers",
        launches=ONE_BLOCK,
    ),
)

# By what a kernel could tell a call whose result is judged from one that is timed. It gives an old
# result where it believes that it is timed, which is right as long as its inputs stay the same.
KEYS = {
    "an output holds NaN": "output == 0xFFFFFFFFu",
    "an output holds a number": "output != 0xFFFFFFFFu",
    "an output holds another number than before": "output != words[0]",
    "what lies behind an output is NaN": "behind == 0xFFFFFFFFu",
    "what lies behind an output has changed": "behind != words[1]",
    "shared memory holds NaN": "shared == 0xFFFFFFFFu",
    "shared memory has changed": "shared != words[2]",
    "there was a pause": "pause > 1000000",
    "there was no pause": "pause < 1000000",
    "it has run seldom": "calls < 40",
    "its number is even": "calls % 2 == 0",
    "its number is no multiple of three": "calls % 3 != 0",
    "what lies behind its input has changed": "__float_as_uint(x[T]) != words[1]",
    "a coin says so": "clock64() / 64 % 8 == 0",
    "four of its inputs have changed": "differs_in(4, x, T)",
    "a tenth of its inputs has changed": "differs_in(100, x, T)",
}
PHASES = tuple(
    Adversary(
        f"works where {name}",
        "phases",
        "expected|differs",
        launches=(launch(1, 128, shared_bytes=512),),
        key=key,
    )
    for name, key in KEYS.items()
)

AFTERWARDS = (
    # A replay on a GPU has many calls.
    Adversary(
        "stops working while it is compared",
        "after comparing",
        "expected|differs",
        launches=ONE_BLOCK,
        only="host",
    ),
    Adversary(
        "writes zeros once it is compared",
        "after comparing",
        "expected|differs",
        launches=ONE_BLOCK,
    ),
    # The host has no several buffers, and times a kernel where it is verified.
    Adversary(
        "works only on the last of several buffers",
        "after timing",
        "after timing",
        launches=ONE_BLOCK,
        only="cuda",
    ),
    Adversary(
        "works in place only where it was verified",
        "after timing",
        "after timing",
        ACCUMULATE,
        only="cuda",
    ),
)

MEMORY = (
    Adversary(
        "writes one element past the end", "guards", r"wrote outside its buffers \(before x\)"
    ),
    Adversary(
        "writes one element before the start",
        "guards",
        r"wrote outside its buffers \(before y\)",
        workload=Workload.of({"T": 900}),
    ),
    # The host protects the pages of inputs, and closes those between arrays.
    Adversary("modifies an input", "inputs", "changed its input 'x'", only="cuda"),
    Adversary(
        "changes an input and puts it back",
        "launch",
        "writes to its input, parameter 2",
        only="host",
    ),
    Adversary(
        "reads behind its input where nobody watches",
        "launch",
        "uses an illegal address .* parameter 2, beyond its end",
        ENERGY,
        only="host",
    ),
    Adversary("leaves the tail unwritten", "poison", r"y\[999\] is"),
    Adversary("takes poison for a result that is there already", "phases", "expected|differs"),
    Adversary("leaves NaN to the poison", "poison", "with inputs 'nonfinite'.* expected nan"),
    Adversary("adds to an output that nobody cleared", "poison", "expected", ENERGY),
    Adversary("takes its scratch for zeros", "poison", "expected", STAGED_ENERGY),
    Adversary(
        "uses what its previous call left in the scratch",
        "poison",
        "expected",
        STAGED_ENERGY,
        launches=STAGED_ENERGY.launches[::-1],
    ),
    # All that it computes is right, in the first call; in others, too, where it counts on.
    Adversary(
        "leaves a counter at one",
        "zeroed",
        r"left scratch done\[23\] = \d+, expected 0",
        COUNTED_ENERGY,
    ),
    Adversary(
        "counts on from call to call",
        "zeroed",
        r"left scratch done\[0\] = \d+, expected 0",
        COUNTED_ENERGY,
    ),
    Adversary(
        "reads dynamic shared memory that nobody wrote",
        "poison",
        "expected",
        launches=(launch(4, 128, shared_bytes=512),),
    ),
    Adversary("reads static shared memory that nobody wrote", "poison", "expected"),
    # A register of a GPU mostly holds 0.
    Adversary("adds to a variable that it never set", "poison", "expected", ENERGY, only="host"),
    # On a GPU these two are memcheck's to find.
    Adversary(
        "reads and drops what lies behind its input",
        "address",
        r"kernel.cu\(\d+\): read of 2 bytes outside .* parameter 2",
        ENERGY,
        only="host",
        sanitizers=("address",),
    ),
    Adversary(
        "reads static shared memory beyond its end",
        "address",
        r"kernel.cu\(\d+\): read of 4 bytes outside .* `?staged",
        launches=(launch(8, 128),),
        only="host",
        workload=T_1024,
        sanitizers=("address",),
    ),
)

CONCURRENCY = (
    # Nothing comes before a kernel on the host. Its weights it may read: they are constant.
    Adversary(
        "reads an input before it waits",
        "late writer",
        "griddepcontrol.wait",
        WEIGHTED,
        only="cuda",
    ),
    Adversary(
        "reads what another warp has yet to write",
        "order of threads",
        "expected",
        launches=(launch(16, 64),),
        workload=T_1024,
    ),
    Adversary(
        "overwrites what another warp has yet to read",
        "order of threads",
        "expected",
        launches=(launch(2, 64),),
        workload=T_1024,
    ),
    # Blocks of so small a grid may well start in the same order twice on a GPU.
    Adversary(
        "depends on the order of blocks without saying so",
        "determinism",
        "other bits of 'y'",
        ENERGY,
        only="host",
    ),
    Adversary(
        "depends on the time without saying so",
        "determinism",
        "other bits of 'y'",
        ENERGY,
        only="cuda",
    ),
    # On a GPU synccheck's to find.
    Adversary(
        "waits at two barriers at once",
        "launch",
        r"divergent barrier .*40 wait at __syncthreads \(line \d+\), 88 wait at __syncthreads",
        only="host",
    ),
)

FAILURES = (
    Adversary("never ends", "timeout", "had not ended in time", on_cuda="no answer within 2 s|2 s"),
    Adversary(
        "never ends, in one thread of its last block",
        "timeout",
        "had not ended in time",
        on_cuda="no answer within 2 s|2 s",
    ),
    Adversary(
        "waits for a lock that nobody gives back",
        "timeout",
        "had not ended in time",
        on_cuda="no answer within 2 s|2 s",
    ),
    Adversary("exits the process", "launch", "(ended|died|exit)", only="host"),
    Adversary("exits the process at once", "launch", "(ended|died|exit)", only="host"),
    Adversary("traps", "launch", "trapped", on_cuda="CUDA_ERROR"),
    Adversary(
        "uses an illegal address", "launch", "uses an illegal address", on_cuda="ILLEGAL_ADDRESS"
    ),
    Adversary(
        "asks for more shared memory than there is",
        "launch",
        "1048576 bytes of dynamic shared memory",
        launches=(launch(4, 128, shared_bytes=1 << 20),),
        on_cuda="CUDA_ERROR",
    ),
    Adversary(
        "asks for more threads than a block has",
        "launch",
        "2048.* threads",
        launches=(launch(1, 2048),),
        on_cuda="CUDA_ERROR",
    ),
    Adversary(
        "reads a vector at an address that is no multiple of its size",
        "launch",
        r"kernel.cu\(\d+\): .*(misaligned|align)",
        on_cuda="MISALIGNED_ADDRESS",
        sanitizers=("undefined",),
    ),
    # A GPU's integers wrap.
    Adversary(
        "counts beyond what its type holds",
        "undefined",
        r"kernel.cu\(\d+\): .*overflow",
        only="host",
        sanitizers=("undefined",),
    ),
)

BOUNDARIES = (
    Adversary(
        "forgets what is left over of a vector",
        "edge_cases",
        r"y\[12[4-6]\] is",
        workload=T_127,
        passes_on=T_1000,
    ),
    Adversary(
        "counts in sixteen bits",
        "edge_cases",
        r"y\[\d{5}\] is",
        workload=Workload.of({"T": 40000}),
        passes_on=T_1000,
    ),
    Adversary(
        "knows the number of rows that is timed",
        "edge_cases",
        r"y\[1\d\d\d\] is",
        workload=Workload.of({"T": 1537}),
        passes_on=T_1000,
    ),
    Adversary(
        "lowers its precision for many rows",
        "edge_cases",
        "times the tolerance",
        ENERGY,
        workload=rows(24, 512),
        passes_on=rows(3, 512),
    ),
)
# By device, for opening one takes longer than a check.
ADVERSARIES = tuple(
    sorted(
        WRONG_NUMBERS + STATE + PHASES + AFTERWARDS + MEMORY + CONCURRENCY + FAILURES + BOUNDARIES,
        key=lambda adversary: (adversary.operator.name, adversary.sanitizers),
    )
)
# On a GPU, where a search checks a kernel twice before it times it: only the status tells.
WHILE_TIMED = (
    Adversary("uses an illegal address while it is timed", "launch", "", launches=ONE_BLOCK),
    Adversary("spins while it is timed", "timeout", "", launches=ONE_BLOCK),
)
ON_HOST = tuple(one for one in ADVERSARIES if one.only != "cuda")
ON_CUDA = tuple(one for one in ADVERSARIES if one.only != "host")
