"""Break a kernel in many small ways, and see what share its verification catches."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Protocol, runtime_checkable

from tuner import plugins
from tuner.app.instruments import compiler_for
from tuner.app.plan import check_signature, read_chosen
from tuner.app.render import chosen_config
from tuner.compiler.base import Compiler, CompileRequest, CompileResult
from tuner.compiler.cache import Cache
from tuner.compiler.pool import NvrtcPool
from tuner.device.base import Device, Outcome, Program
from tuner.device.sizes import choose_near
from tuner.extensions.study.mutation.mutants import Mutant, changes_nothing, is_same_code, sample
from tuner.extensions.study.mutation.subject import MutationSubject, default_path, entry, read_marks
from tuner.model.config import Config
from tuner.model.errors import DeviceError, KernelError, SessionError, TunerError
from tuner.model.kernel import KernelSpec, Workload
from tuner.model.languages import refuse_opencl, refuse_python
from tuner.model.trial import Status
from tuner.process.files import atomic_write
from tuner.report.mutation_score import FILE, MutationScore, share_text
from tuner.session.records import file_sha
from tuner.session.session import Session

# A mutant that never ends is found out in this time.
RUN_TIMEOUT_S = 2.0
SAME_CODE = "same machine code"
TOLD = "the source tells that no result differs"
NOT_ON_HOST = "compiles to other code for the GPU, but to the same for the host"


class Judgement(StrEnum):
    """What became of a mutant; `stillborn` ones do not compile."""

    KILLED = "killed"
    SURVIVED = "survived"
    EQUIVALENT = "equivalent"
    STILLBORN = "stillborn"


@dataclass(frozen=True, slots=True)
class MutantVerdict:
    """A mutant's verdict and the reason: what was wrong, the mark's words, the compiler's error.

    `workload` is the one it died on. `mark` is the reason for which the user marked it equivalent.
    """

    mutant: Mutant
    verdict: Judgement
    reason: str = ""
    workload: Workload | None = None
    mark: str | None = None

    @property
    def mark_is_wrong(self) -> bool:
        return self.mark is not None and self.verdict is Judgement.KILLED


class Verifies(Protocol):
    """What verifies programs: a device, or a tool that watches them."""

    def verify(self, program: Program) -> Outcome: ...


class Compilations:
    """Compile the sources of one subject with one compiler."""

    def __init__(self, subject: MutationSubject, compiler: Compiler) -> None:
        self._subject, self._compiler = subject, compiler
        self._originals: dict[CompileRequest, CompileResult] = {}

    def original(self, workload: Workload) -> CompileResult:
        """Compile the unchanged source for a workload, once for each source and its kernels."""
        request = self._subject.request(self._subject.text(workload), workload)
        if request not in self._originals:
            self._originals[request] = self._compiler.submit(request).result()
        return self._originals[request]

    def submit(self, text: str, workload: Workload) -> Future[CompileResult]:
        return self._compiler.submit(self._subject.request(text, workload))


# Says of a program that it is no baseline: by that one others are judged.
_BROKEN = Config.of({"broken": True})


class Bench(Compilations):
    """Compile and verify the sources of one subject on the `workloads` given."""

    def __init__(
        self,
        subject: MutationSubject,
        device: Verifies,
        compiler: Compiler,
        workloads: tuple[Workload, ...],
    ) -> None:
        super().__init__(subject, compiler)
        self._device, self.workloads = device, workloads

    def takes(self, workload: Workload) -> bool:
        """Tell whether the unchanged kernel is right on a workload that nobody says it takes."""
        try:
            correct = self.verify_original(workload).status is Status.CORRECT
            return correct and bool(self._subject.launches(workload))
        except TunerError:
            return False

    def verify_original(self, workload: Workload) -> Outcome:
        """Verify the unchanged kernel on a workload; what does not compile is a `KernelError`."""
        result = self.original(workload)
        if not result.ok:
            message = f"does not compile for the `host` device:\n{result.error}"
            raise KernelError(message, path=self._subject.path)
        program = self._subject.program(self._subject.text(workload), workload, result)
        return self._device.verify(program)

    def require_correct(self) -> None:
        """Raise `KernelError` unless the unchanged kernel passes on every workload."""
        path = self._subject.path
        for workload in self.workloads:
            if workload in self._subject.near:
                continue  # `takes` it
            outcome = self.verify_original(workload)
            if outcome.status is not Status.CORRECT:
                message = f"fails unchanged on {workload}: {outcome.status}: {outcome.reason}"
                remedy = "a check that the kernel itself does not pass tells nothing of mutants"
                raise KernelError(message, path=path, remedy=remedy)

    def verdict(
        self, mutant: Mutant, first: CompileResult | None = None
    ) -> tuple[MutantVerdict | None, bool]:
        """Verify a mutant on one workload after the other, until it fails or doesn't compile.

        `first` is what it compiled to for the first workload. Also returns whether its machine
        code was the original's on all of them, where nothing is to be verified.
        """
        results: dict[CompileRequest, CompileResult] = {}
        same = True
        for workload in self.workloads:
            text = self._subject.mutate(workload, mutant)
            if text is None:
                continue
            request = self._subject.request(text, workload)
            if request not in results:
                done = first if not results else None
                results[request] = done or self._compiler.submit(request).result()
            result = results[request]
            if not result.ok:
                return MutantVerdict(mutant, Judgement.STILLBORN, result.error), False
            if result.cubin == self.original(workload).cubin:
                continue
            same = False
            program = self._subject.program(text, workload, result)
            outcome = self._device.verify(replace(program, config=_BROKEN))
            if outcome.status is Status.INCORRECT and workload in self._subject.near:
                # As a finalist has it: see `Verification.verify`.
                outcome = self._device.verify(replace(program, config=_BROKEN))
            if outcome.status is not Status.CORRECT:
                reason = f"{outcome.status}: {outcome.reason}"
                return MutantVerdict(mutant, Judgement.KILLED, reason, workload), False
        return None, same


class Examiner:
    """Examine mutants of one subject.

    `twin` compiles for a GPU, to tell which survivors are the same machine code there. The others
    are put to the bench that `sanitized` makes, if it does, before they count as survivors;
    `unsanitized` says why there is none.
    """

    def __init__(
        self, subject: MutationSubject, plain: Bench, twin: Compiler, sanitized: Callable[[], Bench]
    ) -> None:
        self._subject, self._plain, self._make_sanitized = subject, plain, sanitized
        self._twin = Compilations(subject, twin)
        self.unsanitized = ""

    def require_correct(self) -> None:
        """Raise `KernelError` unless the unchanged kernel passes on every workload."""
        self._plain.require_correct()

    def examine(
        self, mutants: Iterable[Mutant], marks: Mapping[Mutant, str]
    ) -> Iterator[MutantVerdict]:
        """Give each mutant's verdict in turn; `marks` are the equivalent ones with the reasons."""
        ahead = 2 * len(os.sched_getaffinity(0))
        pending: deque[tuple[Mutant, Future[CompileResult]]] = deque()
        first = self._plain.workloads[0]
        try:
            for mutant in mutants:
                text = self._subject.mutate(first, mutant)
                assert text is not None
                pending.append((mutant, self._plain.submit(text, first)))
                if len(pending) > ahead:
                    yield self._verdict(*pending.popleft(), marks)
            while pending:
                yield self._verdict(*pending.popleft(), marks)
        finally:
            for _, compilation in pending:
                compilation.cancel()

    def _verdict(
        self, mutant: Mutant, compilation: Future[CompileResult], marks: Mapping[Mutant, str]
    ) -> MutantVerdict:
        mark = marks.get(mutant)
        judged = self._judge(mutant, compilation.result())
        # What only makes a kernel slow may or may not run out of time: that says nothing of a mark.
        timed_out = judged.reason.startswith(f"{Status.TIMEOUT}:")
        if mark is not None and (timed_out or judged.verdict is Judgement.SURVIVED):
            return MutantVerdict(mutant, Judgement.EQUIVALENT, mark, mark=mark)
        return replace(judged, mark=mark)

    def _judge(self, mutant: Mutant, first: CompileResult) -> MutantVerdict:
        verdict, same_on_host = self._plain.verdict(mutant, first)
        if verdict is not None:
            return verdict
        if self._same_on_gpu(mutant, otherwise=same_on_host):
            return MutantVerdict(mutant, Judgement.EQUIVALENT, SAME_CODE)
        told = changes_nothing(mutant, self._subject.source, self._subject.largest_bytes)
        if same_on_host and not told:
            return MutantVerdict(mutant, Judgement.SURVIVED, NOT_ON_HOST)
        sanitized = self._sanitized.verdict(mutant)[0] if self._sanitized is not None else None
        if sanitized is not None and sanitized.verdict is Judgement.KILLED:
            return sanitized
        if told:
            return MutantVerdict(mutant, Judgement.EQUIVALENT, TOLD)
        return MutantVerdict(mutant, Judgement.SURVIVED)

    def _same_on_gpu(self, mutant: Mutant, *, otherwise: bool) -> bool:
        # `otherwise` where the GPU's compiler refuses the original
        requests: set[CompileRequest] = set()
        for workload in self._subject.workloads:
            text = self._subject.mutate(workload, mutant)
            if text is None or (request := self._subject.request(text, workload)) in requests:
                continue
            requests.add(request)
            original = self._twin.original(workload)
            if not original.ok:
                return otherwise
            result = self._twin.submit(text, workload).result()
            if not (result.ok and is_same_code(result.cubin, original.cubin)):
                return False
        return True

    @cached_property
    def _sanitized(self) -> Bench | None:
        try:
            bench = self._make_sanitized()
            # Where the baseline reads too far that nobody lists, mutants may as well.
            near = self._subject.near
            bench.workloads = tuple(w for w in bench.workloads if w not in near or bench.takes(w))
            bench.require_correct()
        except (DeviceError, KernelError) as error:
            self.unsanitized = error.message
            return None
        return bench


def score_of(
    subject: MutationSubject, verdicts: Sequence[MutantVerdict], date: str
) -> MutationScore:
    counts = Counter(verdict.verdict for verdict in verdicts)
    survivors = (v.mutant.identity for v in verdicts if v.verdict is Judgement.SURVIVED)
    return MutationScore(
        kernel=subject.spec.name,
        subject=subject.name,
        mutants=len(subject.reached),
        killed=counts[Judgement.KILLED],
        survived=counts[Judgement.SURVIVED],
        equivalent=counts[Judgement.EQUIVALENT],
        stillborn=counts[Judgement.STILLBORN],
        survivors=tuple(map(str, survivors)),
        source_sha=file_sha(subject.path),
        date=date,
    )


def require_same_sources(folder: Path, subject: MutationSubject) -> None:
    """Raise `SessionError` unless the session is of the files that are mutated, and writable."""
    if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
        raise SessionError("cannot be written to, so the score has no place", path=folder)
    with Session.open(folder, read_only=True) as session:
        manifest = session.manifest
    files = {subject.spec.source: manifest.source_sha}
    if subject.config is not None:
        files[subject.spec.template] = manifest.template_sha
    changed = [str(path) for path, sha in files.items() if file_sha(path) != sha]
    if changed or dict(manifest.config.operators) != dict(subject.operators):
        different = ", ".join(changed) or "the operator's choices"
        message = f"the session is of another kernel than the one to mutate: {different} differ"
        remedy = "leave out --session, or name a session of these files"
        raise SessionError(message, path=folder, remedy=remedy)


def save_score(folder: Path, score: MutationScore) -> None:
    """Write the score into a session's folder, in place of an earlier one."""
    try:
        atomic_write(folder / FILE, score.model_dump_json(indent=1) + "\n")
    except OSError as error:
        message = f"the score cannot be written: {error.strerror}"
        raise SessionError(message, path=folder / FILE) from error


@dataclass(frozen=True, slots=True)
class MutationReport:
    """The verdicts on the chosen mutants; `complete` is False where the run was interrupted.

    `marks` is the file in which equivalent mutants are marked, whether it exists or not.
    `unsanitized` says why survivors were not put to the sanitizers, if they were not.
    """

    subject: MutationSubject
    score: MutationScore
    verdicts: tuple[MutantVerdict, ...]
    marks: Path
    seconds: float
    complete: bool
    unsanitized: str = ""

    @property
    def survivors(self) -> tuple[MutantVerdict, ...]:
        return tuple(v for v in self.verdicts if v.verdict is Judgement.SURVIVED)


@runtime_checkable
class BreakableDevices(Protocol):
    """The family of devices on which broken kernels are run: they end with a mutant's process."""

    def open(
        self, detail: str, spec: KernelSpec, operators: Mapping[str, str], *, run_timeout_s: float
    ) -> Device:
        """Open one on which a run may take so long."""

    def open_sanitized(
        self, spec: KernelSpec, operators: Mapping[str, str], stack: ExitStack
    ) -> tuple[Compiler, Device]:
        """Open one for sanitized programs, and their compiler; raise `DeviceError` without any."""


def mutate(
    space: Path,
    *,
    config: Mapping[str, str] | None = None,
    operators: Mapping[str, str] | None = None,
    limit: int | None = None,
    seed: int = 0,
    equivalent: Path | None = None,
    session: Path | None = None,
    progress: Callable[
        [Iterable[MutantVerdict], int], Iterable[MutantVerdict]
    ] = lambda verdicts, count: verdicts,
) -> MutationReport:
    """Examine mutants of the baseline, or of the template at a config; no GPU is needed.

    `config` names parameters whose values aren't the default's. `limit` mutants are tried, spread
    evenly; `equivalent` marks those that change no result. The score is kept in `session`. Verdicts
    pass through `progress`, with their number. An interruption ends it with what is known.
    """
    definition, chosen = read_chosen(space, operators)
    spec = definition.spec
    for refuse in (refuse_opencl, refuse_python):
        refuse(spec.source, "`tune mutate`")
    family: BreakableDevices = plugins.load(plugins.DEVICES, "host", BreakableDevices)
    with ExitStack() as stack:
        device = family.open("", spec, chosen, run_timeout_s=RUN_TIMEOUT_S)
        stack.callback(device.close)
        check_signature(spec)
        mutated = None if config is None else chosen_config(spec, definition.space, config)
        subject = MutationSubject(spec, definition.space, chosen, device.info, mutated)
        if session is not None:
            require_same_sources(session, subject)
        marks: Mapping[Mutant, str] = {}
        marks_path = equivalent or default_path(space)
        if equivalent is not None or marks_path.exists():
            marks = read_marks(marks_path, subject.space).match_mutants(subject)
        started_s = time.perf_counter()
        verdicts: list[MutantVerdict] = []
        complete = False
        compiler = compiler_for(spec, device, None, stack)
        bench = Bench(subject, device, compiler, subject.workloads)
        if spec.tries_near:
            bench.require_correct()  # on what the file lists: what it is right with holds there
            subject = replace(subject, near=choose_near(spec, bench.takes))
        plain = Bench(subject, device, compiler, subject.workloads)
        twin = stack.enter_context(NvrtcPool(workers=1, cache=Cache()))

        def open_sanitized() -> Bench:
            watching, watched = family.open_sanitized(spec, chosen, stack)
            return Bench(subject, watched, watching, subject.small_workloads)

        examiner = Examiner(subject, plain, twin, open_sanitized)
        try:
            if not spec.tries_near:
                examiner.require_correct()
            mutants = sample(subject.reached, limit, seed)
            for verdict in progress(examiner.examine(mutants, marks), len(mutants)):
                verdicts.append(verdict)
            complete = True
        except KeyboardInterrupt:
            pass
        seconds = time.perf_counter() - started_s
    report = MutationReport(
        subject=subject,
        score=score_of(subject, verdicts, datetime.now(UTC).date().isoformat()),
        verdicts=tuple(verdicts),
        marks=marks_path,
        seconds=seconds,
        complete=complete,
        unsanitized=examiner.unsanitized,
    )
    if session is not None and complete:
        save_score(session, report.score)
    return report


def as_object(report: MutationReport) -> dict[str, object]:
    """Make the object that `--json` prints."""
    subject, score = report.subject, report.score
    return {
        "kernel": score.kernel,
        "space": str(subject.spec.path),
        "source": str(subject.path),
        "subject": score.subject,
        "device": score.device,
        "complete": report.complete,
        "share": score.share,
        "mutants": score.mutants,
        "examined": score.examined,
        "counts": {judgement.value: getattr(score, judgement) for judgement in Judgement},
        "workloads": [workload.values for workload in subject.workloads],
        "unsanitized": report.unsanitized,
        "seconds": round(report.seconds, 1),
        "wrong_marks": [str(v.mutant.identity) for v in report.verdicts if v.mark_is_wrong],
        "survivors": [
            {**_describe(survivor.mutant, subject), "diff": subject.diff(survivor.mutant)}
            for survivor in report.survivors
        ],
        "verdicts": [
            {
                **_describe(verdict.mutant, subject),
                "fate": verdict.verdict,
                "reason": verdict.reason,
                "marked": verdict.mark is not None,
                "workload": verdict.workload.values if verdict.workload else None,
            }
            for verdict in report.verdicts
        ],
    }


def as_text(report: MutationReport) -> Iterator[str]:
    """Lay the findings out for a terminal: the survivors first, the share at the end."""
    subject, score = report.subject, report.score
    for verdict in report.survivors:
        mutant = verdict.mutant
        why = f" ({verdict.reason})" if verdict.reason else ""
        place = f"{subject.path}:{subject.place(mutant)}"
        yield f"survived: {place}: {mutant.identity.operator}{why}"
        yield subject.diff(mutant)
        yield f"If no result can differ, put this under `{subject.group}:` in {report.marks}:"
        yield f"{entry(mutant.identity, 'why no result can differ')}\n"
    for verdict in report.verdicts:
        if verdict.mark_is_wrong:
            yield f"marked equivalent, but caught: {verdict.mutant.identity}\n  {verdict.reason}"
    what = "the baseline" if subject.config is None else f"the template at {subject.name}"
    caught = f"{score.killed} of {score.killed + score.survived} mutants caught"
    yield f"{score.kernel}, {what}, on the host device: {caught} ({share_text(score)})"
    yield (
        f"{score.killed} killed, {score.survived} survived, {score.equivalent} equivalent, "
        f"{score.stillborn} do not compile; {score.examined} of {score.mutants} mutants in "
        f"{report.seconds:.0f} s"
    )
    yield "verified on " + ", ".join(map(str, subject.workloads))
    if report.unsanitized:
        yield f"survivors were not run under the sanitizers: {report.unsanitized}"


def _describe(mutant: Mutant, subject: MutationSubject) -> dict[str, object]:
    return {
        "id": str(mutant.identity),
        "operator": mutant.identity.operator,
        "line": subject.place(mutant),
        "column": mutant.column,
        "before": mutant.before,
        "after": mutant.after,
    }
