"""The loop: baseline, search, rounds with an agent, finals; all it learns is in the session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Thread

from tuner.agent.history import restore
from tuner.agent.rounds import Author, Rounds
from tuner.compiler.base import Compiler
from tuner.device.base import Device, EnergyMeter
from tuner.dispatch.set_cover import preload_solver
from tuner.model.errors import AgentError, AwaitedError
from tuner.model.kernel import Workload
from tuner.model.progress import Listener
from tuner.model.trial import Result, Variant
from tuner.search.factory import preload
from tuner.search.pool import Pool
from tuner.session.session import Session
from tuner.space.plan import Plan
from tuner.tuning.energy import EnergyStage
from tuner.tuning.evaluator import Candidates, Evaluator
from tuner.tuning.finals import Finals
from tuner.tuning.pools import pools_of
from tuner.tuning.progress import ProgressTracker
from tuner.tuning.search import Survey, budget, search_all
from tuner.tuning.verification import Verification, Watch
from tuner.tuning.warm_start import Knowledge, warm_seeds


def tune(
    plan: Plan,
    *,
    session: Session,
    device: Device,
    compiler: Compiler,
    listener: Listener,
    watches: Sequence[Watch] = (),
    author: Callable[[Session, Candidates], Author] | None = None,
    meter: EnergyMeter | None = None,
    knowledge: Knowledge | None = None,
) -> tuple[Result, ...]:
    """Run or resume a session to its end; what it holds already is not measured again.

    `author` makes who writes further candidates in rounds. The winners are run under the tools
    of `watches` at last. `meter` is there where the plan's objective is not time.
    Raises the `AgentError` that ended the rounds too early once all else is done.
    """
    candidates = Candidates(plan, compiler, device)
    evaluator = candidates.evaluator(plan.candidate)
    pools = pools_of(plan, evaluator)
    sizes = [len(pool) for pool in pools.values()]
    # While the baseline is measured this process has nothing to do.
    Thread(target=_load_ahead, args=(plan.searcher, max(sizes)), daemon=True).start()
    space_text = plan.spec.path.read_text(encoding="utf-8-sig")
    session.add_candidate(plan.candidate, plan.template.text, space_text)
    restore(plan, session, candidates)
    session.mark("running")
    standing = ProgressTracker(plan, session, device.info.name, listener)
    verification = Verification(plan, session, device, candidates, watches)
    failure: AgentError | None = None
    try:
        _measure_baseline(plan, session, evaluator, standing)
        if not (device.info.recorded or session.trials()):
            for workload in plan.spec.boundary:
                evaluator.verify_baseline(workload)
        _search(plan, session, evaluator, standing, pools, knowledge)
        if author is not None:
            written_by = author(session, candidates)
            failure = Rounds(plan, session, candidates, standing, written_by).run()
        ranked: Mapping[Workload, tuple[Variant, ...]] = {}
        if meter is not None:
            ranked = EnergyStage(
                plan, plan.objective, session, meter, candidates, verification, standing
            ).run()
        _decide(plan, Finals(plan, session, device, candidates, verification, ranked), standing)
    except (KeyboardInterrupt, AwaitedError):
        session.mark("interrupted")
        raise
    finally:
        standing.save_time()
    if failure is not None:
        session.mark("interrupted")
        raise failure
    session.mark("complete")
    standing.announce("done")
    return tuple(session.results())


def _load_ahead(searcher: str, pool_size: int) -> None:
    """Import what search and finals need, outside of the main thread.

    An interruption of the main thread while it defines a class by `exec`, as imports do, makes
    Python 3.11 end with SIGINT whatever the program's own exit code is.
    """
    preload_solver()
    preload(searcher, pool_size)


def _search(
    plan: Plan,
    session: Session,
    evaluator: Evaluator,
    standing: ProgressTracker,
    pools: dict[Workload, Pool],
    knowledge: Knowledge | None,
) -> None:
    budgets = {workload: budget(plan, pool) for workload, pool in pools.items()}
    warm = warm_seeds(knowledge, plan, session, evaluator, budgets)
    left = 1 + plan.rounds
    search_all(plan, session, evaluator, standing, pools, searches_left=left, warm=warm)
    if plan.surveyed is not None and not session.results():
        Survey(plan, session, evaluator, standing, pools).run()


def _decide(plan: Plan, finals: Finals, standing: ProgressTracker) -> None:
    for workload in (*plan.tuned, *plan.held_out):
        standing.announce("finals", workload)
        finals.decide(workload)
    standing.announce("checks")
    finals.confirm()


def _measure_baseline(
    plan: Plan, session: Session, evaluator: Evaluator, standing: ProgressTracker
) -> None:
    for workload in plan.workloads:
        standing.announce("baseline", workload)
        standing.set_baseline(workload, _baseline_us(workload, session, evaluator))


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
