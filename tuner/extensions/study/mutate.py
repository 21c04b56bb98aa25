"""Break a kernel in many small ways and see what share its verification catches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from tuner.app.instruments import compiler_for
from tuner.app.plan import check_signature, read_chosen
from tuner.app.render import chosen_config
from tuner.compiler.cache import Cache
from tuner.compiler.pool import NvrtcPool
from tuner.extensions.cpu.compiler import SANITIZERS, preload
from tuner.extensions.cpu.device import HostDevice
from tuner.extensions.cpu.family import sanitized_host
from tuner.extensions.study.mutation.examine import (
    Bench,
    Examiner,
    MutantVerdict,
    MutationReport,
    require_same_sources,
    save_score,
    score_of,
)
from tuner.extensions.study.mutation.mutants import Mutant, sampled
from tuner.extensions.study.mutation.subject import MutationSubject, default_path, read_marks
from tuner.model.languages import refuse_opencl, refuse_python

# A mutant that never ends is found out in this time.
RUN_TIMEOUT_S = 2.0


def _refuse_what_is_no_cuda(source: Path) -> None:
    for refuse in (refuse_opencl, refuse_python):
        refuse(source, "`tune mutate`")


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
    _refuse_what_is_no_cuda(definition.spec.source)
    with ExitStack() as stack:
        device = HostDevice(definition.spec, chosen, run_timeout_s=RUN_TIMEOUT_S)
        stack.callback(device.close)
        check_signature(definition.spec)
        mutated = None
        if config is not None:
            mutated = chosen_config(definition.spec, definition.space, config)
        subject = MutationSubject(definition.spec, definition.space, chosen, device.info, mutated)
        if session is not None:
            require_same_sources(session, subject)
        marks_path, marks = _marks(space, equivalent, subject)
        started_s = time.perf_counter()
        verdicts: list[MutantVerdict] = []
        complete = False
        compiler = compiler_for(definition.spec, device, None, stack)
        plain = Bench(subject, device, compiler, subject.workloads)
        twin = stack.enter_context(NvrtcPool(workers=1, cache=Cache()))
        examiner = Examiner(subject, plain, twin, lambda: _sanitized(subject, stack))
        try:
            examiner.require_correct()
            mutants = sampled(subject.reached, limit, seed)
            for verdict in progress(examiner.examine(mutants, marks), len(mutants)):
                verdicts.append(verdict)
            complete = True
        except KeyboardInterrupt:
            pass
        seconds = time.perf_counter() - started_s
    found = MutationReport(
        subject=subject,
        score=score_of(subject, verdicts, datetime.now(UTC).date().isoformat()),
        verdicts=tuple(verdicts),
        marks=marks_path,
        seconds=seconds,
        complete=complete,
        unsanitized=examiner.unsanitized,
    )
    if session is not None and complete:
        save_score(session, found.score)
    return found


def _sanitized(subject: MutationSubject, stack: ExitStack) -> Bench:
    environment = preload(SANITIZERS)
    compiler, device = sanitized_host(subject.spec, subject.operators, environment, stack)
    return Bench(subject, device, compiler, subject.small_workloads)


def _marks(
    space: Path, equivalent: Path | None, subject: MutationSubject
) -> tuple[Path, Mapping[Mutant, str]]:
    path = equivalent or default_path(space)
    if equivalent is None and not path.exists():
        return path, {}
    return path, read_marks(path, subject.space).matched(subject)
