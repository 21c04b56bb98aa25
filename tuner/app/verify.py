"""Verify a session's winners once more, later or on another machine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tuner.app.authors import authors
from tuner.app.instruments import compiler_for, watches_for
from tuner.app.session_plan import verified_plan
from tuner.app.trust import MayRun, say_no
from tuner.device.select import AMD_DRIVER, HOST, gpu_count, open_device
from tuner.model.errors import DeviceError, SessionError
from tuner.model.languages import HIP
from tuner.model.trial import Check
from tuner.session.events import CandidateMade
from tuner.session.session import Session
from tuner.tuning.evaluator import Candidates
from tuner.tuning.verification import LARGEST_HOST_BYTES, Verification


def verify(
    session: Session,
    *,
    space: Path | None = None,
    device: str = "auto",
    jobs: int | None = None,
    may_run: MayRun = say_no,
) -> Sequence[Check]:
    """Repeat the whole verification of a session's winners, and add the verdicts to it.

    `space` is its search space where that is no longer where it was; `auto` is a GPU if there is
    one, else the CPU. Raises `SessionError` without a winner, `DeviceError` for a recording.
    """
    pairs = [(result.workload, result.variant) for result in session.results()]
    if not pairs:
        raise SessionError("has no winner to verify", path=session.directory)
    plan = verified_plan(session.directory, session.manifest, space, may_run=may_run)
    if device == "auto":
        hip = plan.spec.language is HIP
        found = AMD_DRIVER.exists() if hip else gpu_count()
        device = ("hip" if hip else "cuda") if found else HOST
    with ExitStack() as stack:
        opened = open_device(device, plan.spec, plan.config.operators)
        stack.callback(opened.close)
        if opened.info.recorded:
            raise DeviceError("a recording cannot run a kernel", remedy="use --device cuda or host")
        compiler = compiler_for(plan.spec, opened, jobs, stack)
        candidates = Candidates(plan, compiler, opened)
        if session.events(CandidateMade):
            authors().restore(plan, session, candidates)
        watches = watches_for(plan, opened, compiler, stack)
        most = LARGEST_HOST_BYTES if opened.info.on_cpu else None
        verification = Verification(
            plan, session, candidates, watches, repeat=True, largest_bytes=most
        )
        stack.callback(verification.close)
        for workload in plan.spec.edge_cases:
            candidates.evaluator(plan.candidate).verify_baseline(workload)
        verification.try_near()
        verification.verify(pairs)
        verification.on_edge_cases(variant for _, variant in pairs)
        verification.read_machine_code(pairs)
        if not opened.info.on_cpu or plan.config.device == HOST:
            # What a GPU's compiler makes of two configs, a CPU's need not make of them.
            verification.keep_bits(pairs)
        verification.watch(pairs)
        return verification.made
