"""How strong is the check, at once: a run breaks its baseline in a few ways in a few seconds."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tuner.compiler.base import Compiler
from tuner.compiler.cache import Cache, user_cache_dir
from tuner.compiler.pool import NvrtcPool
from tuner.device.base import Outcome, Program, Watcher
from tuner.extensions.study.mutation.examine import (
    NOT_ON_HOST,
    Bench,
    Examiner,
    Judgement,
    MutantVerdict,
    save_score,
    score_of,
)
from tuner.extensions.study.mutation.mutants import Mutant, changes_nothing, sample
from tuner.extensions.study.mutation.subject import (
    LARGEST_BYTES,
    LARGEST_EDGE_CASE_BYTES,
    MutationSubject,
    default_path,
    read_marks,
)
from tuner.model import TUNER_VERSION
from tuner.model.errors import DeviceError, TunerError
from tuner.model.kernel import Workload
from tuner.model.languages import OPENCL
from tuner.model.trial import Status
from tuner.process.files import atomic_write, read_text
from tuner.report.mutation_score import MOST_SCORE_BYTES, MutationScore
from tuner.session.records import file_sha, headers_sha
from tuner.tuning.run import Run

WAYS = 16
# As many again: some do not compile, and some turn out to change no result.
DRAWN = 2 * WAYS
HOST_S, GPU_S = 30.0, 10.0
# A broken version that does not end is caught when it has taken so long.
RUN_LIMIT_S = 2.0
# A workload that takes the unchanged kernel a larger share of the time is left out.
MOST_SHARE = 1 / WAYS
# All of them may take so much, one alone as well: fewer versions are tried then.
MOST_OF_ALL = 1 / 4
# Two lines for whoever waits, not one for each version.
SAY_EVERY_S = 3.0


def measure_strength(run: Run) -> None:
    """Put into a run's session how many broken versions of its baseline verification catches.

    What a kernel with these files has been told before is not tried again. A kernel that has none,
    or cannot be broken, is left without; a failure of the device costs the answer, not the run.
    """
    spec = run.plan.spec
    breakable = spec.language.is_read and not spec.is_callable and spec.language is not OPENCL
    if not (breakable and run.session.results()):
        return
    folder = run.session.directory
    kept = user_cache_dir() / "strength" / f"{_content_key(run)}.json"
    with suppress(OSError, ValueError):
        save_score(folder, MutationScore.model_validate_json(read_text(kept, MOST_SCORE_BYTES)))
        return
    run.tracker.announce("mutants")
    try:
        with ExitStack() as stack:
            score = _Attempt(run, stack).score()
    except TunerError as error:
        note = f"broken versions of the baseline could not be tried: {error.message}"
        run.tracker.announce("mutants", note=note)
        return
    if score is None:
        note = "verifying the unchanged kernel takes too long to break it: try `tune mutate`"
        run.tracker.announce("mutants", note=note)
        return
    save_score(folder, score)
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(kept, score.model_dump_json())


def _content_key(run: Run) -> str:
    """Hash all that the answer follows from."""
    spec, info = run.plan.spec, run.device.info
    marks = default_path(spec.path)
    files = (spec.path, spec.source, spec.reference, *([marks] if marks.exists() else []))
    content = [
        *map(file_sha, files),
        headers_sha(spec),
        sorted(run.plan.config.operators.items()),
        [workload.key for workload in run.plan.config.workloads],
        info.name,
        TUNER_VERSION,
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class _Watched:
    """Verify under a tool that a run has open."""

    watcher: Watcher

    def verify(self, program: Program) -> Outcome:
        (outcome,) = self.watcher.watch([program])
        return outcome


class _Attempt:
    """Broken versions of one run's baseline, tried until there are enough or the time ends."""

    def __init__(self, run: Run, stack: ExitStack) -> None:
        self._run, self._stack = run, stack
        self._began_s = time.monotonic()
        self._limit_s = HOST_S if run.device.info.on_cpu else GPU_S
        self._said_s = self._began_s

    def score(self) -> MutationScore | None:
        """Try them; None where no workload is quick enough."""
        run = self._run
        compiler = run.candidates.compiler
        self._stack.enter_context(run.device.limiting_runs(RUN_LIMIT_S))
        subject = self._subject(compiler)
        if subject is None:
            return None
        verdicts = list(self._verdicts(subject, compiler))
        score = score_of(subject, verdicts, datetime.now(UTC).date().isoformat())
        survivors = [v.mutant for v in verdicts if v.verdict is Judgement.SURVIVED]
        places = (
            f"{subject.path.name}:{survivor.line}:{survivor.column}: `{survivor.identity.change}` "
            f"in `{survivor.identity.line}`"
            for survivor in survivors
        )
        left = len(subject.reached) - score.equivalent - score.stillborn
        return score.model_copy(
            update={
                "device": "host" if run.device.info.on_cpu else run.device.info.name,
                "ways": min(WAYS, left) if self._over else score.killed + score.survived,
                "seconds": round(time.monotonic() - self._began_s, 1),
                "places": tuple(places),
            }
        )

    @property
    def _over(self) -> bool:
        return time.monotonic() - self._began_s > self._limit_s

    def _subject(self, compiler: Compiler) -> MutationSubject | None:
        """Choose the workloads on which the unchanged kernel is verified soon enough."""
        run, spec = self._run, self._run.plan.spec
        edges = run.verification.edge_cases
        workloads = [w for w in edges if spec.footprint_bytes(w) <= LARGEST_EDGE_CASE_BYTES]
        sized = sorted(run.plan.config.workloads, key=spec.footprint_bytes)
        small = [w for w in sized if spec.footprint_bytes(w) <= LARGEST_BYTES][:2]
        workloads += small or ([] if workloads and run.device.info.on_cpu else sized[:1])
        chosen, all_s = list[Workload](), 0.0
        subject = self._subject_on(())
        bench = Bench(subject, run.device, compiler, ())
        near = run.verification.near
        for workload in sorted(
            {*workloads}, key=lambda one: (one in near, spec.footprint_bytes(one))
        ):
            if not subject.launches(workload):
                continue
            began_s = time.monotonic()
            if bench.verify_original(workload).status is not Status.CORRECT:
                continue
            took_s = time.monotonic() - began_s
            all_s += took_s
            longest_s = self._limit_s * (MOST_SHARE if chosen else MOST_OF_ALL)
            if took_s > longest_s or all_s > self._limit_s * MOST_OF_ALL:
                break
            chosen.append(workload)
        chosen.sort(key=spec.footprint_bytes)
        return self._subject_on(tuple(chosen)) if chosen else None

    def _subject_on(self, chosen: tuple[Workload, ...]) -> MutationSubject:
        plan, info = self._run.plan, self._run.device.info
        near = self._run.verification.near
        return MutationSubject(
            plan.spec, plan.space, plan.config.operators, info, chosen=chosen, near=near
        )

    def _verdicts(self, subject: MutationSubject, compiler: Compiler) -> Iterator[MutantVerdict]:
        run = self._run
        bench = Bench(subject, run.device, compiler, subject.workloads)
        twin: Compiler = compiler
        if run.device.info.on_cpu:
            twin = self._stack.enter_context(NvrtcPool(workers=1, cache=Cache()))
        examiner = Examiner(subject, bench, twin, lambda: self._open_sanitized(subject))
        marks: Mapping[Mutant, str] = {}
        if (path := default_path(subject.spec.path)).exists():
            marks = read_marks(path, subject.space).match_mutants(subject)
        largest = max(map(subject.spec.footprint_bytes, run.plan.config.workloads))
        breaking = [m for m in subject.reached if not changes_nothing(m, subject.source, largest)]
        drawn = sample(breaking, DRAWN, seed=0)
        counted = caught = 0
        for verdict in examiner.examine(_spread(drawn), marks):
            same = verdict.verdict is Judgement.SURVIVED and verdict.reason == NOT_ON_HOST
            caught += verdict.verdict is Judgement.KILLED
            counted += verdict.verdict in (Judgement.KILLED, Judgement.SURVIVED) and not same
            yield replace(verdict, verdict=Judgement.EQUIVALENT) if same else verdict
            if time.monotonic() - self._said_s > SAY_EVERY_S:
                self._said_s = time.monotonic()
                note = f"{caught} of {counted} broken versions are caught so far"
                run.tracker.announce("mutants", note=note)
            if counted == WAYS or self._over:
                return

    def _open_sanitized(self, subject: MutationSubject) -> Bench:
        """Watch survivors with the tool that a run on the CPU has open."""
        watches = self._run.verification.watches if self._run.device.info.on_cpu else ()
        for watch in watches:
            evaluator = watch.evaluator_of(self._run.plan)
            device = _Watched(watch.watcher)
            # As in a run, on none of which nobody says that the kernel takes them.
            listed = tuple(
                workload for workload in subject.small_workloads if workload not in subject.near
            )
            return Bench(subject, device, evaluator.compiler, listed or subject.small_workloads[:1])
        raise DeviceError("no tool is open that watches every access")


def _spread(drawn: tuple[Mutant, ...]) -> Iterator[Mutant]:
    """Order mutants so that however many are tried, they come from all over the source."""
    step = 1 << max(0, (len(drawn) - 1).bit_length())
    seen = set()
    while step:
        for index in range(0, len(drawn), step):
            if index not in seen:
                seen.add(index)
                yield drawn[index]
        step //= 2
