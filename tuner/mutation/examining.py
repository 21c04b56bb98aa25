"""Verify mutants one after another while the next ones compile."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from tuner.compiler.base import Compiler, CompileRequest, CompileResult
from tuner.errors import DeviceError, KernelError
from tuner.kernel import Workload
from tuner.mutation.bench import Bench, Compilations
from tuner.mutation.mutants import Mutant
from tuner.mutation.subject import Subject
from tuner.trial import Status

SAME_CODE = "same machine code"
NOT_ON_HOST = "compiles to other code for the GPU, but to the same for the host"


class Fate(StrEnum):
    """What became of a mutant; `stillborn` ones do not compile."""

    KILLED = "killed"
    SURVIVED = "survived"
    EQUIVALENT = "equivalent"
    STILLBORN = "stillborn"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A mutant's fate and the reason: what was wrong, the mark's words, the compiler's error.

    `workload` is the one it died on. `mark` is the reason for which the user marked it equivalent.
    """

    mutant: Mutant
    fate: Fate
    reason: str = ""
    workload: Workload | None = None
    mark: str | None = None

    @property
    def mark_is_wrong(self) -> bool:
        """Whether the user marked it equivalent, and it was caught."""
        return self.mark is not None and self.fate is Fate.KILLED


class Examiner:
    """Examine mutants of one subject.

    `twin` compiles for a GPU, to tell which survivors are the same machine code there. The others
    are put to the bench that `sanitized` makes, if it does, before they count as survivors;
    `unsanitized` says why there is none.
    """

    def __init__(
        self, subject: Subject, plain: Bench, twin: Compiler, sanitized: Callable[[], Bench]
    ) -> None:
        self._subject, self._plain, self._make_sanitized = subject, plain, sanitized
        self._twin = Twin(subject, twin)
        self.unsanitized = ""

    def require_correct(self) -> None:
        """Raise `KernelError` unless the unchanged kernel passes on every workload."""
        self._plain.require_correct()

    def examine(self, mutants: Iterable[Mutant], marks: Mapping[Mutant, str]) -> Iterator[Verdict]:
        """Give each mutant's verdict in turn; `marks` are the equivalent ones with the reasons."""
        ahead = 2 * len(os.sched_getaffinity(0))
        pending: deque[tuple[Mutant, Future[CompileResult]]] = deque()
        for mutant in mutants:
            pending.append((mutant, self._start(mutant)))
            if len(pending) > ahead:
                yield self._verdict(*pending.popleft(), marks)
        while pending:
            yield self._verdict(*pending.popleft(), marks)

    def _start(self, mutant: Mutant) -> Future[CompileResult]:
        first = self._plain.workloads[0]
        text = self._subject.mutated(first, mutant)
        assert text is not None
        return self._plain.submit(text, first)

    def _verdict(
        self, mutant: Mutant, compilation: Future[CompileResult], marks: Mapping[Mutant, str]
    ) -> Verdict:
        mark = marks.get(mutant)
        verdict = self._judged(mutant, compilation.result())
        # What only makes a kernel slow may or may not run out of time: that says nothing of a mark.
        harmless = verdict.fate is Fate.SURVIVED or verdict.reason.startswith(f"{Status.TIMEOUT}:")
        if mark is not None and harmless:
            return Verdict(mutant, Fate.EQUIVALENT, mark, mark=mark)
        return Verdict(mutant, verdict.fate, verdict.reason, verdict.workload, mark)

    def _judged(self, mutant: Mutant, first: CompileResult) -> Verdict:
        same_on_host = True
        for workload, text, result in self._plain.compiled(mutant, first):
            if not result.ok:
                return Verdict(mutant, Fate.STILLBORN, result.error)
            if result.cubin == self._plain.original(workload).cubin:
                continue
            same_on_host = False
            status, reason = self._plain.verified(text, workload, result)
            if status is not Status.CORRECT:
                return Verdict(mutant, Fate.KILLED, f"{status}: {reason}", workload)
        if self._twin.same(mutant, otherwise=same_on_host):
            return Verdict(mutant, Fate.EQUIVALENT, SAME_CODE)
        if same_on_host:
            return Verdict(mutant, Fate.SURVIVED, NOT_ON_HOST)
        return self._sanitizers_verdict(mutant) or Verdict(mutant, Fate.SURVIVED)

    @cached_property
    def _sanitized(self) -> Bench | None:
        try:
            bench = self._make_sanitized()
            bench.require_correct()
        except (DeviceError, KernelError) as error:
            self.unsanitized = error.message
            return None
        return bench

    def _sanitizers_verdict(self, mutant: Mutant) -> Verdict | None:
        if self._sanitized is None:
            return None
        for workload, text, result in self._sanitized.compiled(mutant):
            if not result.ok:
                return None
            status, reason = self._sanitized.verified(text, workload, result)
            if status is not Status.CORRECT:
                return Verdict(mutant, Fate.KILLED, f"{status}: {reason}", workload)
        return None


class Twin(Compilations):
    """Compare mutants with the original as a GPU would run them."""

    def same(self, mutant: Mutant, *, otherwise: bool) -> bool:
        """Whether it is the same machine code; `otherwise` where the original doesn't compile."""
        known: set[CompileRequest] = set()
        for workload in self._subject.workloads:
            text = self._subject.mutated(workload, mutant)
            request = None if text is None else self._subject.request(text, workload)
            if request is None or request in known:
                continue
            known.add(request)
            original = self.original(workload)
            if not original.ok:
                return otherwise
            result = self._compiler.submit(request).result()
            if not result.ok or result.cubin != original.cubin:
                return False
        return True
