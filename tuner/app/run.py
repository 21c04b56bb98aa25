"""Run a session to its end: baseline, search, rounds with an agent, finals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from tuner.app.open import OpenRun, open_run
from tuner.app.plan import RunOptions
from tuner.compiler.base import Compiler
from tuner.device.base import Device
from tuner.dispatch.set_cover import preload_solver
from tuner.model.config import Config
from tuner.model.errors import AgentError, AwaitedError, ClusterLost, DeviceLost
from tuner.model.kernel import Workload
from tuner.model.progress import Listener
from tuner.model.settings import RunSettings
from tuner.model.trial import Result, Variant
from tuner.process.files import read_text
from tuner.search.factory import EXHAUSTIVE_BELOW, preload
from tuner.search.importance import FEWEST_TRIALS, preload_importance
from tuner.search.pool import Pool
from tuner.session.events import CandidateMade
from tuner.session.session import Session
from tuner.space.plan import Plan
from tuner.tuning.evaluator import Candidates, Evaluator
from tuner.tuning.executor import quick_turns
from tuner.tuning.finals import Finals
from tuner.tuning.homes import keep_homes, settle_homes
from tuner.tuning.keep_bits import default_bits
from tuner.tuning.lanes import in_lanes, lane_of
from tuner.tuning.progress import Moment, ProgressTracker
from tuner.tuning.search import budget, pools_of, search_all
from tuner.tuning.survey import Survey
from tuner.tuning.undecided import Undecided
from tuner.tuning.verification import Verification, Watch
from tuner.tuning.warm_start import Knowledge, warm_seeds

if TYPE_CHECKING:
    from tuner.app.authors import RunRounds
    from tuner.report.data import ReportData


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """What a run came to: all that its report shows, and what ended an agent's rounds too early."""

    folder: Path
    data: ReportData
    failure: AgentError | None


def run(
    kernel: Path | None,
    settings: RunSettings,
    options: RunOptions,
    listener: Listener,
    *,
    resume: Path | None = None,
    agent: object = None,
    opened: Callable[[OpenRun], None] = lambda run: None,
) -> FinishedRun:
    """Run a kernel's new session, or the one in the folder `resume`, to its end.

    `opened` is called before anything is measured. What was found is kept for later runs, however
    this one ends. For what is raised see `open_run` and `tune`; an error of the agent comes back.
    """
    from tuner.report.data import from_session

    began = Moment()
    with ExitStack() as stack:
        run = open_run(stack, kernel, settings, options, resume=resume, agent=agent)
        session = run.session
        if run.knowledge is not None:
            stack.callback(run.knowledge.keep, session)
        opened(run)
        failure: AgentError | None = None
        try:
            tune(
                run.plan,
                session=session,
                device=run.device,
                compiler=run.compiler,
                listener=listener,
                watches=run.watches,
                run_rounds=run.run_rounds,
                meter=run.meter,
                knowledge=run.knowledge,
                began=began,
            )
        except AgentError as error:
            failure = error
        return FinishedRun(session.directory, from_session(session, run.plan.spec), failure)


@quick_turns()
def tune(
    plan: Plan,
    *,
    session: Session,
    device: Device,
    compiler: Compiler,
    listener: Listener,
    watches: Sequence[Watch] = (),
    run_rounds: RunRounds | None = None,
    meter: Device | None = None,
    knowledge: Knowledge | None = None,
    began: Moment | None = None,
) -> tuple[Result, ...]:
    """Run or resume a session to its end; what it holds already is not measured again.

    `run_rounds` has further candidates written. The winners are run under the tools
    of `watches` at last. `meter` is there where the plan's objective is not time. `began` is when
    the opening of all this began. Raises the `AgentError` that ended the rounds too early once
    all else is done.
    """
    candidates = Candidates(plan, compiler, device)
    evaluator = candidates.evaluator(plan.candidate)
    # What is measured first; its compilers import the same meanwhile.
    evaluator.import_ahead(plan.config.workloads[0])
    pools = pools_of(plan, evaluator)
    # While the baseline is measured this process has nothing to do.
    Thread(target=_load_ahead, args=(plan, pools), daemon=True).start()
    _take_up_candidates(plan, session, candidates)
    session.mark("running")
    tracker = ProgressTracker(plan, session, device.info.name, listener, began=began)
    verification = Verification(plan, session, device, candidates, watches)
    undecided = Undecided(session)
    try:
        _settle_homes(plan, session, device, compiler, tracker, pools)
        _measure_baselines(plan, session, evaluator, tracker)
        # Before anything is tried: a session with trials has been told already.
        budgets = {workload: budget(plan, pool) for workload, pool in pools.items()}
        warm = warm_seeds(knowledge, plan, session, evaluator, budgets)
        if plan.config.keep_bits:
            kept = default_bits(plan, session, evaluator, pools, undecided)
            candidates.kept_bits.update(kept)
        _search(plan, session, evaluator, tracker, pools, undecided, warm)
        failure = _write_candidates(plan, session, candidates, tracker, undecided, run_rounds)
        of = plan, session, candidates, verification, undecided
        ranked = _ranked_by_energy(*of, meter, tracker)
        finals = Finals(plan, session, device, candidates, verification, undecided, ranked)
        _decide(plan, finals, device, tracker)
    except (KeyboardInterrupt, AwaitedError, DeviceLost, ClusterLost):
        session.mark("interrupted")
        raise
    finally:
        verification.close()
        keep_homes(session, device)
        tracker.save_time()
    if failure is not None:
        session.mark("interrupted")
        raise failure
    session.mark("complete")
    tracker.announce("done")
    return tuple(session.results())


def _settle_homes(
    plan: Plan,
    session: Session,
    device: Device,
    compiler: Compiler,
    tracker: ProgressTracker,
    pools: Mapping[Workload, Pool],
) -> None:
    budgets = {workload: budget(plan, pool) for workload, pool in pools.items()}
    if warning := settle_homes(plan, session, device, compiler, budgets):
        tracker.announce("baseline", note=warning)
    tracker.lanes = len({lane_of(device, workload) for workload in plan.tuned})


def _take_up_candidates(plan: Plan, session: Session, candidates: Candidates) -> None:
    space_text = read_text(plan.spec.path)
    session.add_candidate(plan.candidate, plan.template.text, space_text)
    if session.events(CandidateMade):
        # Most runs have no agent, and need none of its modules.
        from tuner.app.authors import authors

        authors().restore(plan, session, candidates)


def _load_ahead(plan: Plan, pools: Mapping[Workload, Pool]) -> None:
    # In the order in which they are needed.
    most_configs = max(map(len, pools.values()))
    if plan.config.rounds:
        # A candidate to come may have more: one with wider ranges does.
        most_configs = max(most_configs, EXHAUSTIVE_BELOW)
    preload(plan.config.searcher, most_configs, plan.config.trials)
    if len(plan.tuned) > 1 or plan.config.max_variants is not None:
        preload_solver()
    most = max(budget(plan, pool) for pool in pools.values())
    # The candidate of each round is searched too.
    if most * (1 + plan.config.rounds) >= FEWEST_TRIALS:
        preload_importance()


def _search(
    plan: Plan,
    session: Session,
    evaluator: Evaluator,
    tracker: ProgressTracker,
    pools: dict[Workload, Pool],
    undecided: Undecided,
    warm: Mapping[Workload, Sequence[Config]],
) -> None:
    left = 1 + plan.config.rounds
    of = plan, session, evaluator, tracker, pools, undecided
    again = undecided.unsearched(plan.candidate)
    search_all(*of, searches_left=left, warm=warm)
    if plan.config.surveyed is not None and (again or not session.results()):
        Survey(*of).run()


def _write_candidates(
    plan: Plan,
    session: Session,
    candidates: Candidates,
    tracker: ProgressTracker,
    undecided: Undecided,
    run_rounds: RunRounds | None,
) -> AgentError | None:
    if run_rounds is None:
        return None
    return run_rounds(plan, session, candidates, tracker, undecided)


def _ranked_by_energy(
    plan: Plan,
    session: Session,
    candidates: Candidates,
    verification: Verification,
    undecided: Undecided,
    meter: Device | None,
    tracker: ProgressTracker,
) -> Mapping[Workload, tuple[Variant, ...]]:
    if meter is None:
        return {}
    from tuner.tuning.energy import EnergyStage

    objective = plan.config.objective
    of = session, meter, candidates, verification, undecided
    return EnergyStage(plan, objective, *of, tracker).run()


def _decide(plan: Plan, finals: Finals, device: Device, tracker: ProgressTracker) -> None:
    def decide(workload: Workload) -> None:
        tracker.announce("finals", workload)
        finals.decide(workload)

    # Held-out ones inherit from all of the others.
    for workloads in (plan.tuned, plan.held_out):
        in_lanes(device, workloads, decide)
    tracker.announce("checks")
    finals.confirm()


def _measure_baselines(
    plan: Plan, session: Session, evaluator: Evaluator, tracker: ProgressTracker
) -> None:
    def measure(workload: Workload) -> None:
        tracker.announce("baseline", workload)
        if workload not in session.baselines():
            made = evaluator.baseline(workload)
            assert made.measurement is not None
            session.record_baseline(
                workload, made.measurement, made.correctness, made.resources, made.occupancy
            )
        known = session.baselines()[workload]
        tracker.set_baseline(workload, known.measurement.median_us)

    new = [one for one in plan.config.workloads if one not in session.baselines()]
    edge_cases = plan.spec.edge_cases
    if evaluator.device.info.recorded or session.trials():
        edge_cases = ()
    evaluator.compile_baselines((*new, *edge_cases))
    in_lanes(evaluator.device, plan.config.workloads, measure)
    in_lanes(evaluator.device, edge_cases, evaluator.verify_baseline)
