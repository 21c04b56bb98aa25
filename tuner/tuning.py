"""The loop: baseline, search, finals; everything it learns is in the session before it goes on."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.compiler.base import Compiler
from tuner.device.base import Device
from tuner.evaluate import Candidate, Evaluator
from tuner.finals import Finals
from tuner.kernel import Workload
from tuner.plan import CANDIDATE, Plan
from tuner.progress import Listener
from tuner.searching import Search, budget, pools_of
from tuner.session import Session
from tuner.standing import Standing
from tuner.trial import Result
from tuner.verification import Verification, Watch


def tune(
    plan: Plan,
    *,
    session: Session,
    device: Device,
    compiler: Compiler,
    listener: Listener,
    watches: Sequence[Watch] = (),
) -> tuple[Result, ...]:
    """Run or resume a session to its end; what it holds already is not measured again.

    The winners are run under the tools of `watches` at last.
    """
    evaluator = evaluator_of(plan, compiler, device)
    pools = pools_of(plan, evaluator)
    space_text = plan.spec.path.read_text(encoding="utf-8")
    session.add_candidate(CANDIDATE, plan.template.text, space_text)
    session.mark("running")
    budgets = {workload: budget(plan, pool) for workload, pool in pools.items()}
    standing = Standing(plan, session, device.info.name, listener, budgets)
    search = Search(plan, session, evaluator, standing, pools)
    verification = Verification(plan, session, device, evaluator, watches)
    finals = Finals(plan, session, device, evaluator, verification)
    try:
        for workload in plan.workloads:
            standing.announce("baseline", workload)
            standing.set_baseline(workload, _baseline_us(workload, session, evaluator))
        if not (device.info.recorded or session.trials()):
            for workload in plan.spec.boundary:
                evaluator.verify_baseline(workload)
        for workload in plan.tuned:
            standing.announce("search", workload)
            search.run(workload)
        for workload in (*plan.tuned, *plan.held_out):
            standing.announce("finals", workload)
            finals.decide(workload)
        standing.announce("checks", None)
        finals.confirm()
    except KeyboardInterrupt:
        session.mark("interrupted")
        raise
    finally:
        standing.save_time()
    session.mark("complete")
    standing.announce("done", None)
    return tuple(session.results())


def evaluator_of(plan: Plan, compiler: Compiler, device: Device) -> Evaluator:
    """Make the evaluator of a plan's one candidate."""
    candidate = Candidate(CANDIDATE, plan.space, plan.template)
    return Evaluator(plan.spec, candidate, plan.operators, compiler, device)


def _baseline_us(workload: Workload, session: Session, evaluator: Evaluator) -> float:
    """Verify and time the baseline on one workload, unless the session has it."""
    known = session.baselines().get(workload)
    if known is not None:
        return known.measurement.median_us
    trial = evaluator.baseline(workload)
    assert trial.measurement is not None
    session.record_baseline(
        workload, trial.measurement, trial.correctness, trial.resources, trial.occupancy
    )
    return trial.measurement.median_us
