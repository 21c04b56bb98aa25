"""What running the baseline on the CPU proves of a search space: roles and shapes of arguments."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import prod

import numpy as np

from tuner.app.proofs import Proof, ProofFinding
from tuner.compiler.cache import Cache
from tuner.device.base import CompileTarget, DeviceInfo, Program
from tuner.device.encoding import Array, storage_dtype
from tuner.device.inputs import NORMAL
from tuner.device.layout import PAGE_BYTES, UNCHANGED, lay_out
from tuner.device.verify.shared_memory import SharedMemory
from tuner.device.verify.verifier import HostMemory, Verifier
from tuner.extensions.cpu.compiler import HostCompiler, preload
from tuner.extensions.cpu.worker import HostRunError, HostWorker
from tuner.model.errors import SpaceError, TunerError
from tuner.model.kernel import FLOAT_DTYPES, Argument, KernelSpec, Workload
from tuner.source import hide_host_code, read_source
from tuner.source.unsupported import constant_memory

LARGEST_BYTES = 32 << 20
RUN_TIMEOUT_S = 10.0
# What is not known by then is left open.
BUDGET_S = 20.0
_SANITIZERS = ("address",)
_SEEDS = (1, 2)
_MOST_GROWTH = 64
_MULTIPLES = (1, 2, 3, 4)
Contents = Mapping[str, Array]
_GUARD = 0x5A
_MOST_GAP_BYTES = 1 << 20
_BEYOND = re.compile(
    r"(\d+) bytes from the start of parameter (\d+), beyond its end(?:.*, in launch (\d+)$)?"
)
_LINE = re.compile(r"\((\d+)\): (?:read|write|misaligned)")


def prove(spec: KernelSpec, operators: Mapping[str, str], info: DeviceInfo) -> tuple[Proof, ...]:
    """Run the baseline on the CPU with content of our own, and compare what it does with the file.

    Two workloads are taken where there are two, so that a number that should be an axis shows.
    Nothing is raised for what cannot be run there: the proof says why.
    """
    small = [
        workload
        for workload in dict.fromkeys((*spec.workloads, *spec.edge_cases))
        if spec.footprint_bytes(workload) <= LARGEST_BYTES
    ]
    if not small:
        least = min(map(spec.footprint_bytes, spec.workloads)) >> 20
        why = f"the smallest workload has {least} MiB; a smaller one among `edge_cases` would do"
        return (Proof(None, open_because=why),)
    first = min(small, key=lambda one: (_ambiguous(one), spec.footprint_bytes(one)))
    others = [workload for workload in small if workload != first]

    def likeness(one: Workload) -> tuple[int, int]:
        equal = sum(size == first.values[axis] for axis, size in one.values.items())
        return equal, spec.footprint_bytes(one)

    others.sort(key=likeness)
    proofs: list[Proof] = []
    for workload in (first, *others[:1]):
        proofs.append(_prove_on(spec, operators, info, workload, sizes_only=bool(proofs)))
        if proofs[-1].open_because or proofs[-1].mistakes:
            break
    return tuple(proofs)


def _ambiguous(workload: Workload) -> int:
    # T of 1 hides whether T is a dimension, and equal axes which one it is
    sizes = [size for size in workload.values.values() if size > 1]
    return len(workload.values) - len(set(sizes))


def _prove_on(
    spec: KernelSpec,
    operators: Mapping[str, str],
    info: DeviceInfo,
    workload: Workload,
    *,
    sizes_only: bool,
) -> Proof:
    with ExitStack() as stack:
        try:
            compiler = HostCompiler(sanitizers=_SANITIZERS, cache=Cache())
            stack.callback(compiler.close)
            target = CompileTarget(spec, dict(operators), info)
            source = hide_host_code(read_source(spec.source))
            launches = spec.baseline_launches(target.names(workload))
            result = compiler.submit(target.request(source, launches)).result()
            if not result.ok:
                raise TunerError(result.error)
            program = target.program(source, workload, launches, result)
            environment = preload(_SANITIZERS)
            probe = Probe(spec, operators, workload, environment, RUN_TIMEOUT_S)
            stack.callback(probe.close)
            return _Observer(spec, workload, probe, program, sizes_only=sizes_only).proof()
        except (TunerError, OSError, MemoryError) as error:
            lines = (line for line in str(error).splitlines() if line.strip())
            return Proof(workload, open_because=next(lines, type(error).__name__))


def require_no_constant_memory(spec: KernelSpec) -> None:
    """Raise `SpaceError` where the baseline needs `__constant__` memory that nothing fills."""
    source = read_source(spec.source)
    for launch in spec.baseline:
        for memory in constant_memory(source, source.kernel(launch.kernel)):
            raise SpaceError(
                f"nothing fills the `__constant__` memory `{memory.name}`: {memory.declaration}",
                path=spec.source,
                line=memory.line,
                remedy="make it a parameter of the kernel and list it under `arguments`, or give "
                "it its numbers where it is declared",
            )


class BeyondError(Exception):
    """Report an access outside an array: which one, how far from its start, and the source's line.

    `array` is None where no array is near.
    """

    def __init__(self, message: str, array: str | None, byte: int, line: int | None) -> None:
        super().__init__(message)
        self.message, self.array, self.byte, self.line = message, array, byte, line


class Probe:
    """Run one program on one workload; close it at the end.

    The program was compiled with the sanitizer of addresses, and `environment` loads that
    (`preload`). All arrays may be read and written, whatever the file declares.
    """

    def __init__(
        self,
        spec: KernelSpec,
        operators: Mapping[str, str],
        workload: Workload,
        environment: Mapping[str, str],
        timeout_s: float,
    ) -> None:
        arguments = tuple(a if a.is_scalar else replace(a, role="inout") for a in spec.arguments)
        self._spec = replace(spec, arguments=arguments)
        self._operators, self._workload = dict(operators), workload
        self._written = [
            a.name for a in spec.arguments if a.role in ("output", "scratch") and not a.zeroed
        ]
        self._layout = lay_out(self._spec, workload.values, by_pages=True)
        self._rooms: dict[str, int] = {}
        self._memory = SharedMemory()
        self._worker = HostWorker(timeout_s, environment)

    def draw(self, seed: int) -> dict[str, Array]:
        """Draw what every array holds: inputs as the file says, what is written any bits."""
        memory = HostMemory()
        verifier = Verifier(memory, self._spec, self._operators)
        layout = lay_out(self._spec, self._workload.values)
        verifier.open_arena(self._workload, layout)
        verifier.prepare(self._workload, NORMAL, seed)
        drawn = {
            slot.name: memory.data[slot.offset : slot.offset + slot.size_bytes]
            .view(storage_dtype(slot.dtype))
            .copy()
            for slot in layout.slots
        }
        rng = np.random.default_rng(seed)
        for name in self._written:
            drawn[name].view(np.uint8)[...] = rng.integers(0, 256, drawn[name].nbytes, np.uint8)
        return drawn

    def redraw(self, before: Contents, seed: int) -> Contents:
        """Draw other content; of what is written all bits turn, so that none agrees by chance."""
        turned = {name: ~before[name].view(np.uint8) for name in self._written}
        return self.draw(seed) | {n: bits.view(before[n].dtype) for n, bits in turned.items()}

    def run(self, program: Program, contents: Contents) -> Contents:
        """Run the program once; return what the arrays hold then.

        An array is as large as its content. Raises `BeyondError` for the first access outside all
        of them, and `HostRunError` where the program does not end as it should.
        """
        slots, end = [], 0
        for slot in self._layout.slots:
            size = contents[slot.name].nbytes
            # A smaller one leaves its room empty: what is beyond it stays beyond it.
            room = self._rooms[slot.name] = max(size, self._rooms.get(slot.name, 0))
            offset = _pages(end + PAGE_BYTES)
            slots.append(replace(slot, offset=offset, size_bytes=size, shape=(size,)))
            end = offset + room + min(room, _MOST_GAP_BYTES)
        layout = replace(self._layout, slots=tuple(slots), total_bytes=_pages(end + PAGE_BYTES))
        arena = self._memory.open(self._workload.key, layout)
        data = self._memory.data
        data[...] = _GUARD
        spans = {s.name: slice(s.offset, s.offset + s.size_bytes) for s in layout.slots}
        for name, span in spans.items():
            data[span] = contents[name].view(np.uint8)
        self._worker.attach(arena)
        self._worker.renew(UNCHANGED)
        try:
            self._worker.run(program, 0, _GUARD)
        except HostRunError as error:
            raise self._beyond(error, program) or error from error
        finally:
            found = {n: data[span].view(contents[n].dtype).copy() for n, span in spans.items()}
            del data
        return found

    def close(self) -> None:
        self._worker.kill()
        self._memory.close()

    def _beyond(self, error: HostRunError, program: Program) -> BeyondError | None:
        found, line = _BEYOND.search(error.message), _LINE.search(error.message)
        at = int(line[1]) if line else None
        if found is None:
            return BeyondError(error.message, None, 0, at) if "outside" in error.message else None
        launch = program.launches[int(found[3] or 1) - 1]
        arguments = self._spec.taken(launch) if found[3] else self._spec.arguments
        argument = arguments[int(found[2]) - 1]
        return BeyondError(error.message, argument.name, int(found[1]), at)


def _pages(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES


class _OutOfTimeError(Exception):
    pass


@dataclass(slots=True)
class _Observer:
    spec: KernelSpec
    workload: Workload
    probe: Probe
    program: Program
    base: Contents | None = None
    sizes_only: bool = False
    ends_s: float = field(default_factory=lambda: time.perf_counter() + BUDGET_S)

    def proof(self) -> Proof:
        """Say all that was found, and what ended it early."""
        found: list[ProofFinding] = []
        why = ""
        first = self.probe.draw(_SEEDS[0])
        second = self.probe.redraw(first, _SEEDS[1])
        try:
            found += self.too_small(first)
            # What lies beyond an array may be another's: first that has to be right.
            for argument in self.arrays() if not found else ():
                found.append(self.judge_array(argument, first, second))
        except _OutOfTimeError:
            why = f"all of it in {BUDGET_S:g} s"
        except HostRunError as error:
            why = f"the baseline {error.message}"
        return Proof(self.workload, tuple(found), why)

    def run(self, contents: Contents) -> Contents:
        if time.perf_counter() > self.ends_s:
            raise _OutOfTimeError
        return self.probe.run(self.program, contents)

    def too_small(self, drawn: Contents) -> list[ProofFinding]:
        """Grow arrays until no access is beyond one; list those that were too small."""
        contents, lines = dict(drawn), dict[str, int | None]()
        while True:
            try:
                self.run(contents)
                break
            except BeyondError as error:
                name = error.array
                if name is None or contents[name].size >= _MOST_GROWTH * drawn[name].size:
                    named = name or next(iter(drawn))
                    return [self.finding(named, f"{error.message}{self.hint()}", mistake=True)]
                lines.setdefault(name, error.line)
                contents[name] = np.resize(contents[name], 2 * contents[name].size)
        return [self.beyond(name, line, drawn, contents) for name, line in lines.items()]

    def beyond(self, name: str, line: int | None, drawn: Contents, grown: Contents) -> ProofFinding:
        touched = self.count_touched(grown, name)
        where = f" in line {line} of {self.spec.source.name}" if line else ""
        text = f"`{name}` has {drawn[name].size} elements, and the kernel reaches {touched}"
        return self.finding(
            name, f"{text}{where}{self.name_shape(touched)}{self.hint()}", mistake=True
        )

    def hint(self) -> str:
        """Name the whole numbers that may be meant to point somewhere."""
        whole = [
            f"`{one.name}`"
            for one in self.arrays()
            if one.dtype not in FLOAT_DTYPES and one.fill == "normal" and one.role == "input"
        ]
        if not whole:
            return ""
        return f"; if {', '.join(whole)} hold indices, give them `fill: indices(N)`"

    def judge_array(self, argument: Argument, first: Contents, second: Contents) -> ProofFinding:
        """Say what one array is, or what is wrong with it."""
        name, size = argument.name, first[argument.name].size
        if argument.zeroed and self.run(first)[name].any():
            text = f"`{name}` is `zeroed`, and the kernel does not leave it all zeros"
            return self.finding(name, text, mistake=True)
        touched = size
        if self.fits({**first, name: first[name][: size - 1]}):
            touched = self.count_touched(first, name)
        extent = f"the last of its {size} elements is touched"
        if touched < size:
            few = f"only the first {touched} of its {size} elements are" if touched else "none is"
            extent = f"{few} touched{self.name_shape(touched)}"
        if self.sizes_only or np.array_equal(_bits(first[name]), _bits(second[name])):
            return self.finding(name, f"`{name}`: {extent}")  # or its fill has one content only
        try:
            seen = self.seen(name, first, second)
        except BeyondError as error:
            text = f"`{name}`: with other content in it, {error.message}{self.hint()}"
            return self.finding(name, text, mistake=True)
        wrong, told = _judge_role(argument, seen)
        if not wrong:
            return self.finding(name, f"`{name}` is {told}; {extent}")
        more = ""
        if wrong.endswith(_KEPT):
            more = f": {extent}" if touched < size else ""
            more += "; if the operator leaves them, `role: inout`, and the reference returns them"
        return self.finding(name, f"`{name}` is {wrong}{more}", mistake=True)

    def seen(self, name: str, first: Contents, second: Contents) -> _Seen:
        """Run the kernel twice with this array's content alone changed, and compare."""
        if self.base is None:
            self.base = self.run(first)
        base, after = self.base, self.run({**first, name: second[name]})
        own, other = _bits(base[name]), _bits(after[name])
        kept = (own == _bits(first[name])) & (other == _bits(second[name]))
        depends = ~kept & (own != other)
        elsewhere = any(
            not np.array_equal(_bits(base[one]), _bits(after[one])) for one in base if one != name
        )
        return _Seen(not kept.all(), bool(depends.any()) or elsewhere, int(kept.sum()), own.size)

    def count_touched(self, contents: Contents, name: str) -> int:
        """Find how many elements are needed from the first to the last that is touched."""
        low, high = -1, int(contents[name].size)
        while high - low > 1:
            middle = (low + high) // 2
            cut = {**contents, name: contents[name][:middle]}
            low, high = (low, middle) if self.fits(cut) else (middle, high)
        return high

    def fits(self, contents: Contents) -> bool:
        try:
            self.run(contents)
        except BeyondError:
            return False
        return True

    def name_shape(self, size: int) -> str:
        """Say which axes make so many elements, where some do."""
        values = self.workload.values
        if _ambiguous(self.workload):
            return ""
        for count in range(1, len(values) + 1):
            for names in combinations(values, count):
                for times in _MULTIPLES:
                    if times * prod(values[name] for name in names) == size > 1:
                        last = names[-1] if times == 1 else f"{times} * {names[-1]}"
                        return f": `shape: [{', '.join((*names[:-1], last))}]`"
        return ""

    def arrays(self) -> list[Argument]:
        spec = self.spec
        taken = {argument.name for launch in spec.baseline for argument in spec.reached(launch)}
        return [one for one in spec.arguments if one.name in taken and not one.is_scalar]

    def finding(self, name: str, text: str, *, mistake: bool = False) -> ProofFinding:
        return ProofFinding(name, self.spec.argument(name).line, text, mistake)


@dataclass(frozen=True, slots=True)
class _Seen:
    # of one array: whether it was written, whether results depend on it, elements that stayed
    written: bool
    read: bool
    kept: int
    size: int


_KEPT = "stay as they were"


def _judge_role(argument: Argument, seen: _Seen) -> tuple[str, str]:
    """Say what is wrong with an array's role, or else what it is."""
    role = argument.role
    if not seen.written and role in ("output", "inout"):
        told = "reads it, and never writes it" if seen.read else "never writes it"
        return f"{role}, and the kernel {told}: `role: input`", ""
    if seen.written and role == "input":
        right = "inout" if seen.read or seen.kept else "output"
        return f"input, and the kernel writes it: `role: {right}`", ""
    if seen.written and role in ("output", "scratch") and seen.read:
        return f"{role}, and results depend on what it held before: `role: inout`", ""
    if role == "output" and seen.kept:
        return f"output, and {seen.kept} of its {seen.size} elements {_KEPT}", ""
    if not seen.written:
        return "", "read and not written" if seen.read else "not written, and nothing depends on it"
    if role == "inout" and not (seen.read or seen.kept):
        return "", "written as a whole and not read before: `role: output` would do"
    return "", "written in place" if role == "inout" else "written, and not read before"


def _bits(array: np.ndarray) -> np.ndarray:
    # not as floats: NaN differs from itself
    return array.view(f"u{array.dtype.itemsize}")
