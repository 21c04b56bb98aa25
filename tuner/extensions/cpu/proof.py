"""What a run of the baseline on the CPU proves of a search space: roles, shapes, the reference."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, islice
from math import prod

import numpy as np

from tuner.app.proofs import Proof, ProofFinding
from tuner.compiler.cache import Cache
from tuner.device.base import CompileTarget, DeviceInfo, Program
from tuner.device.inputs import EXTREME, NORMAL, input_kinds_for
from tuner.device.sizes import smaller_workloads
from tuner.device.verify.reference_process import ReferenceProcess
from tuner.device.verify.telling import MEANT
from tuner.extensions.cpu.child import LaunchEnd
from tuner.extensions.cpu.compiler import HostCompiler, preload
from tuner.extensions.cpu.probe import BeyondError, Contents, Probe
from tuner.extensions.cpu.worker import HostRunError
from tuner.model.errors import KernelError, SpaceError, TunerError
from tuner.model.kernel import FLOAT_DTYPES, Argument, KernelSpec, Workload
from tuner.source import hide_host_code, read_source
from tuner.source.facts import SourceFile
from tuner.source.unsupported import constant_memory

LARGEST_BYTES = 32 << 20
RUN_TIMEOUT_S = 10.0
# What is not known by then is left open.
BUDGET_S = 20.0
COMPILE_S = 60.0
_SANITIZERS = ("address",)
_SEEDS = (1, 2)
_MOST_GROWTH = 64
_MULTIPLES = (1, 2, 3, 4)


def prove(
    spec: KernelSpec,
    operators: Mapping[str, str],
    info: DeviceInfo,
    reference: ReferenceProcess,
    allows: Callable[[Mapping[str, int]], bool] = lambda _: True,
    alone_s: float | None = None,
) -> tuple[Proof, ...]:
    """Run the baseline on the CPU with content of our own, and compare what it does with the file.

    Two workloads are taken where there are two, so that a number that should be an axis shows.
    Where the file has none that is small, or it takes too long, smaller ones stand for them.
    Nothing is raised for what cannot be run there: the proof says why.
    """
    run = partial(_prove_on, spec, operators, info, reference)
    if alone_s is not None:
        ends_s = time.perf_counter() + alone_s
        seen: list[Proof] = []
        for workload in spec.workloads:
            again = any(not (proof.open_because or proof.mistakes) for proof in seen)
            seen.append(run(workload, sizes_only=again, alone=True, ends_s=ends_s))
            right = [proof for proof in seen if not (proof.open_because or proof.mistakes)]
            if seen[-1].late or len(right) == 2:
                break
        return tuple(seen)
    small = [
        workload
        for workload in dict.fromkeys((*spec.workloads, *spec.edge_cases))
        if spec.footprint_bytes(workload) <= LARGEST_BYTES
    ]
    proofs: list[Proof] = []
    if small:
        first = min(small, key=lambda one: (_ambiguous(one), spec.footprint_bytes(one)))

        def likeness(one: Workload) -> tuple[int, int]:
            equal = sum(size == first.values[axis] for axis, size in one.values.items())
            return equal, spec.footprint_bytes(one)

        others = sorted((workload for workload in small if workload != first), key=likeness)
        for workload in (first, *others[:1]):
            proofs.append(run(workload, sizes_only=bool(proofs)))
            for other in (*others[:1], *islice(smaller_workloads(spec, allows), 1)):
                if any(mistake.idle for mistake in proofs[-1].mistakes):
                    proofs[-1] = _without_shown(proofs[-1], run(other))
            if proofs[-1].open_because or proofs[-1].mistakes:
                break
        if not proofs[0].late:
            return tuple(proofs)
    smaller = _prove_smaller(run, smaller_workloads(spec, allows), proofs)
    # A role that is wrong says more than what became of it.
    return (smaller, *proofs) if smaller.mistakes else (*proofs, smaller)


def _without_shown(proof: Proof, other: Proof) -> Proof:
    """Take back that nothing depends on an input where other sizes show that something does.

    The norm of a group of one element is 0 whatever is in it.
    """
    shown = {finding.argument for finding in other.findings if not finding.mistake}
    findings = (
        replace(proof_finding, mistake=False, idle=False)
        if proof_finding.idle and proof_finding.argument in shown
        else proof_finding
        for proof_finding in proof.findings
    )
    return replace(proof, findings=tuple(findings))


def _prove_smaller(
    run: Callable[..., Proof], workloads: Iterable[Workload], before: Sequence[Proof]
) -> Proof:
    """Take the first sizes on which the baseline is right, or else two on which it is wrong alike.

    A kernel need not take sizes that its file doesn't list: one alone says nothing.
    """
    ends_s = time.perf_counter() + BUDGET_S
    tried: list[Proof] = []
    for workload in workloads:
        if time.perf_counter() > ends_s:
            break
        try:
            proof = replace(run(workload, ends_s=ends_s), smaller=True)
        except KernelError as error:  # the reference may know its sizes
            proof = Proof(workload, open_because=str(error).splitlines()[0])
        wrong = {mistake.argument for mistake in proof.mistakes}
        if (proof.compared and not wrong) or not (proof.open_because or wrong):
            return proof
        unknown = "" if proof.late else proof.open_because
        if unknown and tried and unknown == tried[-1].open_because:  # whatever the sizes
            return Proof(None, open_because=unknown)
        for earlier in tried:
            if wrong & {mistake.argument for mistake in earlier.mistakes}:
                return earlier
        tried.append(proof)
    told = [f"{one.workload}: {one.open_because or one.mistakes[0].text}" for one in tried]
    told += [one.open_because for one in before[:1]]
    why = "; ".join(told[:2]) or "every workload is large, and no smaller one can be made of it"
    remedy = "a smaller workload among `edge_cases`, with which the kernel works, would do"
    return Proof(None, open_because=f"{why}; {remedy}")


def _ambiguous(workload: Workload) -> int:
    # T of 1 hides whether T is a dimension, and equal axes which one it is
    sizes = [size for size in workload.values.values() if size > 1]
    return len(workload.values) - len(set(sizes))


def _prove_on(
    spec: KernelSpec,
    operators: Mapping[str, str],
    info: DeviceInfo,
    reference: ReferenceProcess,
    workload: Workload,
    *,
    sizes_only: bool = False,
    alone: bool = False,
    ends_s: float | None = None,
) -> Proof:
    with ExitStack() as stack:
        try:
            left_s = max(ends_s - time.perf_counter(), 0.0) if alone and ends_s else COMPILE_S
            compiler = HostCompiler(timeout_s=left_s, sanitizers=_SANITIZERS, cache=Cache())
            stack.callback(compiler.close)
            options = spec.compile_options
            for axis, before, size in _resized(spec, workload):
                sizes = {f"-D{axis}={before}": f"-D{axis}={size}"}
                options = tuple(sizes.get(option, option) for option in options)
            target = CompileTarget(replace(spec, compile_options=options), dict(operators), info)
            source = _resize(read_source(spec.source), spec, workload)
            launches = spec.baseline_launches(target.names(workload))
            result = compiler.submit(target.request(source, launches)).result()
            if not result.ok:
                raise TunerError(result.error)
            program = target.program(source, workload, launches, result)
            environment = preload(_SANITIZERS)
            timeout_s = min(RUN_TIMEOUT_S, left_s)
            probe = Probe(spec, reference, workload, environment, timeout_s)
            stack.callback(probe.close)
            observer = _Observer(spec, workload, probe, program, sizes_only, alone)
            observer.ends_s = ends_s or observer.ends_s
            return observer.proof()
        except KernelError as error:
            if error.path == spec.reference:
                raise
            return Proof(workload, open_because=str(error).splitlines()[0])
        except (TunerError, OSError, MemoryError) as error:
            lines = (line for line in str(error).splitlines() if line.strip())
            return Proof(workload, open_because=next(lines, type(error).__name__))


def _resized(spec: KernelSpec, workload: Workload) -> Iterator[tuple[str, int, int]]:
    """Find the axes that have one size in the whole file, and another one here."""
    for axis, size in workload.values.items():
        known = {one.values[axis] for one in (*spec.workloads, *spec.edge_cases)}
        if len(known) == 1 and known != {size}:
            yield axis, known.pop(), size


def _resize(source: SourceFile, spec: KernelSpec, workload: Workload) -> str:
    """Give a constant that is an axis in the file the size that it has here."""
    text = hide_host_code(source)
    for axis, before, size in _resized(spec, workload):
        for constant in source.constants:
            if constant.number == before and _plain(constant.name) == _plain(axis):
                stated = rf"(\b{constant.name}\b\s*[=(]*\s*){re.escape(constant.value)}"
                text = re.sub(stated, rf"\g<1>{size}", text, count=1)
    return text


def _plain(name: str) -> str:
    return re.sub(r"^k(?=[A-Z])", "", name).replace("_", "").lower()


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


class _OutOfTimeError(Exception):
    pass


@dataclass(slots=True)
class _Observer:
    spec: KernelSpec
    workload: Workload
    probe: Probe
    program: Program
    sizes_only: bool = False
    alone: bool = False
    ends_s: float = field(default_factory=lambda: time.perf_counter() + BUDGET_S)
    base: Contents = field(default_factory=dict)
    compared: list[str] = field(default_factory=list)
    failed: KernelError | None = None

    def proof(self) -> Proof:
        """Say all that was found, and what ended it early.

        What the reference says counts where roles and shapes are right: it may be wrong by those.
        """
        findings: list[ProofFinding] = []
        wrong: list[ProofFinding] = []
        why, late = "", False
        first = self.probe.draw(_SEEDS[0])
        second = self.probe.redraw(first, _SEEDS[1])
        try:
            findings += self.too_small(first)
            # What lies beyond an array may be another's: first that has to be right.
            if not findings:
                wrong += [] if self.alone else self.compare(NORMAL, self.base)
                for argument in self.arrays():
                    findings.append(self.judge_array(argument, first, second))
                mistaken = any(finding.mistake for finding in wrong + findings)
                if not (self.sizes_only or self.alone or self.failed or mistaken):
                    findings += self.judge_kinds(first)
        except _OutOfTimeError:
            why, late = f"all of it in {BUDGET_S:g} s", True
        except HostRunError as error:
            why, late = f"the baseline {error.message}", error.code is LaunchEnd.TIMEOUT
        if not any(finding.mistake for finding in findings):
            findings = wrong + findings
            if self.failed is not None and not wrong:
                raise self.failed
        return Proof(self.workload, tuple(findings), why, tuple(self.compared), late=late)

    def compare(self, kind: str, left: Contents) -> list[ProofFinding]:
        """Say where the reference differs from what a run left of this kind of input."""
        try:
            verdict = self.probe.judge(_SEEDS[0], kind, left)
        except KernelError as error:
            self.failed = self.failed or error
            return []
        if verdict.passed:
            self.compared.append(kind)
            return []
        name = next((name for name, error in verdict.errors if error > 1), self.outputs()[0].name)
        remedy = f"mend {self.spec.reference.name}, {self.spec.source.name} or its `tolerance`"
        if kind == EXTREME:
            remedy = (
                "no mistake yet: a run leaves out what the baseline gets wrong; "
                "`extreme: {largest: 1.0e4, reason: ...}` on an input ends them earlier"
            )
        text = f"`{name}` is not what the reference says {verdict.reason}; {remedy}"
        return [self.finding(name, text, mistake=kind != EXTREME)]

    def judge_kinds(self, first: Contents) -> Iterator[ProofFinding]:
        """Compare the other kinds of input, and say which outputs tell nothing of any."""
        ran = [(first, self.base)]
        for kind in input_kinds_for(self.spec)[1:]:
            drawn = self.probe.draw(_SEEDS[0], kind)
            try:
                ran.append((drawn, self.run(drawn)))
            except BeyondError as error:
                name = error.array or next(iter(self.whole()), next(iter(drawn)))
                text = f"with inputs '{kind}', {error.message}{self.hint()}"
                yield self.finding(name, text, mistake=True)
                continue
            differing = self.compare(kind, ran[-1][1])
            yield from differing
            if any(finding.mistake for finding in differing):
                return
        for argument in self.outputs():
            if (told := self.untold(argument, ran)) and not argument.idle:
                yield self.finding(argument.name, f"{told}; {MEANT}", mistake=self.tells)

    def untold(self, argument: Argument, ran: Sequence[tuple[Contents, Contents]]) -> str:
        """Say what of an output was the same on all kinds of input, if inputs differed at all."""
        name = argument.name
        others = [array.name for array in self.arrays() if array.is_read]
        if len(ran) < 2 or all(_same(ran[0][0][o], one[0][o]) for one in ran for o in others):
            return ""
        if all(_same(ran[0][1][name], left[name]) for _, left in ran):
            return f"`{name}` is the same on all {len(ran)} kinds of input"
        changed = [_bits(drawn[name]) != _bits(left[name]) for drawn, left in ran]
        count, size = int(np.any(changed, axis=0).sum()), changed[0].size
        if argument.role == "inout" and 2 * count < size and count == int(changed[0].sum()):
            few = "element is" if count == 1 else "elements are"
            return f"the same {count} of {size} {few} changed in `{name}` by every kind of input"
        return ""

    @property
    def tells(self) -> bool:
        # of a single row or number much is the same that else is not
        return 1 not in self.workload.values.values()

    def outputs(self) -> list[Argument]:
        return [array for array in self.arrays() if array.is_written]

    def run(self, contents: Contents) -> Contents:
        if time.perf_counter() > self.ends_s:
            raise _OutOfTimeError
        return self.probe.run(self.program, contents)

    def too_small(self, drawn: Contents) -> list[ProofFinding]:
        """Grow arrays until no access is beyond one; list those that were too small."""
        contents, lines = dict(drawn), dict[str, int | None]()
        while True:
            try:
                self.base = self.run(contents)
                break
            except BeyondError as error:
                name = error.array
                if name is None or contents[name].size >= _MOST_GROWTH * drawn[name].size:
                    named = name or next(iter(self.whole()), next(iter(drawn)))
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

    def whole(self) -> list[str]:
        """Name the whole numbers that may be meant to point somewhere."""
        return [
            array.name
            for array in self.arrays()
            if array.dtype not in FLOAT_DTYPES and array.fill == "normal" and array.role == "input"
        ]

    def hint(self) -> str:
        names = ", ".join(f"`{name}`" for name in self.whole())
        return f"; if {names} hold indices, give them `fill: indices(N)`" if names else ""

    def judge_array(self, argument: Argument, first: Contents, second: Contents) -> ProofFinding:
        """Say what one array is, or what is wrong with it."""
        name, size = argument.name, first[argument.name].size
        if argument.zeroed and self.base[name].any():
            text = f"`{name}` is `zeroed`, and the kernel does not leave it all zeros"
            return self.finding(name, text, mistake=True)
        touched = size
        if not self.last_counts(name, first, second) and self.fits(
            {**first, name: first[name][: size - 1]}
        ):
            touched = self.count_touched(first, name)
        extent = f"the last of its {size} elements is touched"
        if touched < size:
            few = f"only the first {touched} of its {size} elements are" if touched else "none is"
            extent = f"{few} touched{self.name_shape(touched)}"
        if self.sizes_only or np.array_equal(_bits(first[name]), _bits(second[name])):
            # or its fill has one content only
            return self.finding(name, f"`{name}`: {extent}", whole=touched == size)
        try:
            seen = self.seen(name, first, second)
        except BeyondError as error:
            text = f"`{name}`: with other content in it, {error.message}{self.hint()}"
            return self.finding(name, text, mistake=True)
        wrong, told = _judge_role(argument, seen)
        whole, role = touched == size, seen.role
        if argument.role == "input" and not (seen.written or seen.read or argument.idle):
            if not self.shows(name, first):
                text = f"`{name}` is input, and nothing depends on it: {extent}; {MEANT}"
                mistake = self.tells and not self.spec.operators  # another choice may read it
                return replace(self.finding(name, text, mistake=mistake), idle=mistake)
            told = "read and not written"
        if not wrong:
            return self.finding(name, f"`{name}` is {told}; {extent}", whole=whole, role=role)
        more = ""
        if wrong.endswith(_KEPT):
            more = f": {extent}" if touched < size else ""
            more += "; if the operator leaves them, `role: inout`, and the reference returns them"
        text = f"`{name}` is {wrong}{more}"
        return self.finding(name, text, mistake=True, whole=whole, role=role)

    def shows(self, name: str, first: Contents) -> bool:
        """Tell whether other content of some kind changes what else the kernel leaves."""
        for kind in input_kinds_for(self.spec)[1:]:
            try:
                after = self.run({**first, name: self.probe.draw(_SEEDS[1], kind)[name]})
            except BeyondError:
                return True
            if not all(_same(self.base[one], after[one]) for one in self.base if one != name):
                return True
        return False

    def seen(self, name: str, first: Contents, second: Contents) -> _Seen:
        """Run the kernel twice with this array's content alone changed, and compare."""
        base, after = self.base, self.run({**first, name: second[name]})
        own, other = _bits(base[name]), _bits(after[name])
        kept = (own == _bits(first[name])) & (other == _bits(second[name]))
        depends = ~kept & (own != other)
        elsewhere = any(
            not np.array_equal(_bits(base[one]), _bits(after[one])) for one in base if one != name
        )
        return _Seen(not kept.all(), bool(depends.any()) or elsewhere, int(kept.sum()), own.size)

    def last_counts(self, name: str, first: Contents, second: Contents) -> bool:
        """Tell whether the last element is seen to be touched; where not, it may be all the same.

        A run that ends outside of an array costs a worker, and shows it of any.
        """
        if not _same(self.base[name][-1:], first[name][-1:]):
            return True
        other = first[name].copy()
        other[-1:] = second[name][-1:]
        if self.spec.argument(name).role != "input" or _same(other, first[name]):
            return False
        try:
            after = self.run({**first, name: other})
        except BeyondError:
            return False
        return not all(_same(self.base[one], after[one]) for one in self.base if one != name)

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

    def finding(
        self, name: str, text: str, *, mistake: bool = False, whole: bool = False, role: str = ""
    ) -> ProofFinding:
        line = self.spec.argument(name).line
        return ProofFinding(name, line, text, mistake, whole=whole, role=role)


@dataclass(frozen=True, slots=True)
class _Seen:
    # of one array: whether it was written, whether results depend on it, elements that stayed
    written: bool
    read: bool
    kept: int
    size: int

    @property
    def role(self) -> str:
        if not self.written:
            return "input"
        return "inout" if self.read or self.kept else "output"


_KEPT = "stay as they were"


def _judge_role(argument: Argument, seen: _Seen) -> tuple[str, str]:
    """Say what is wrong with an array's role, or else what it is."""
    role = argument.role
    if not seen.written and role in ("output", "inout"):
        told = "reads it, and never writes it" if seen.read else "never writes it"
        return f"{role}, and the kernel {told}: `role: input`", ""
    if seen.written and role == "input":
        return f"input, and the kernel writes it: `role: {seen.role}`", ""
    if seen.written and role in ("output", "scratch") and seen.read:
        return f"{role}, and results depend on what it held before: `role: inout`", ""
    if role == "output" and seen.kept:
        return f"output, and {seen.kept} of its {seen.size} elements {_KEPT}", ""
    if not seen.written:
        return "", "read and not written" if seen.read else "not written, and nothing depends on it"
    if role == "inout" and not (seen.read or seen.kept):
        return "", "written as a whole and not read before: `role: output` would do"
    return "", "written in place" if role == "inout" else "written, and not read before"


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return np.array_equal(_bits(one), _bits(other))


def _bits(array: np.ndarray) -> np.ndarray:
    # not as floats: NaN differs from itself
    return array.view(f"u{array.dtype.itemsize}")
