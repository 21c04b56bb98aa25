"""Run a session to its end: baseline, search, rounds with an agent, finals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from tuner import plugins
from tuner.app.open import OpenRun, open_run
from tuner.app.plan import RunOptions
from tuner.compiler.base import Compiler
from tuner.device.base import Device
from tuner.dispatch.set_cover import preload_solver
from tuner.model.errors import AgentError, AwaitedError, ClusterLost, DeviceLost
from tuner.model.kernel import Workload
from tuner.model.progress import Listener
from tuner.model.settings import GivenSettings
from tuner.model.trial import Result
from tuner.process.files import read_text
from tuner.search.factory import EXHAUSTIVE_BELOW, preload
from tuner.search.importance import FEWEST_TRIALS, preload_importance
from tuner.search.pool import Pool
from tuner.session.events import CandidateMade, ToolsDeclared
from tuner.session.session import Session
from tuner.space.plan import Plan
from tuner.tuning.device_queues import assign_workloads, queue_of, record_assignment, work_in_queues
from tuner.tuning.energy import EnergyStage, reserved_s
from tuner.tuning.evaluator import Candidates
from tuner.tuning.executor import short_switch_interval
from tuner.tuning.finals import Finals
from tuner.tuning.keep_bits import keep_known_bits
from tuner.tuning.machine_code import compare_winner
from tuner.tuning.progress import Moment, ProgressTracker
from tuner.tuning.run import Run, SkippedWorkloads, pools_of, undecided_of, unsearched_workloads
from tuner.tuning.search import budget_of, cross_measure, search_all
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
    settings: GivenSettings,
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
                strength=_strength_of(run, options),
                began=began,
            )
        except AgentError as error:
            failure = error
        return FinishedRun(session.directory, from_session(session, run.plan.spec), failure)


def _strength_of(opened: OpenRun, options: RunOptions) -> Callable[[Run], None]:
    """Give what measures how strong verification is, in a run that verifies and has not told."""
    device, is_known = opened.device, (opened.session.directory / "mutation.json").exists()
    verifies = "verify" in device.capabilities and not device.info.evaluator
    if is_known or options.cluster or not (verifies and opened.plan.config.mutants):
        return lambda run: None

    def measure(run: Run) -> None:
        plugins.load(plugins.STRENGTH, "mutants")(run)

    return measure


@short_switch_interval()
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
    strength: Callable[[Run], None] = lambda run: None,
    began: Moment | None = None,
) -> tuple[Result, ...]:
    """Run or resume a session to its end; what it holds already is not measured again.

    `run_rounds` has further candidates written. The winners are run under the tools
    of `watches` at last. `meter` is there where the plan's objective is not time. `strength` comes
    last of all. `began` is when the opening of all this began. Raises the `AgentError` that ended
    the rounds too early once all else is done.
    """
    candidates = Candidates(plan, compiler, device)
    evaluator = candidates.evaluator(plan.candidate)
    # What is measured first; its compilers import the same meanwhile.
    evaluator.import_ahead(plan.config.workloads[0])
    pools = pools_of(plan, evaluator)
    # While the baseline is measured this process has nothing to do.
    Thread(target=_load_ahead, args=(plan, pools), daemon=True).start()
    session.add_candidate(plan.candidate, plan.template.text, read_text(plan.spec.path))
    if session.events(CandidateMade):
        # Most runs have no agent, and need none of its modules.
        from tuner.app.authors import authors

        authors().restore(plan, session, candidates)
    session.mark("running")
    tracker = ProgressTracker(
        plan, session, device.info.name, listener, began=began, reserved_s=reserved_s(plan)
    )
    run = Run(
        plan,
        session,
        candidates,
        pools,
        tracker,
        Verification(plan, session, candidates, watches),
        SkippedWorkloads(session),
    )
    budgets = {workload: budget_of(plan, pool) for workload, pool in pools.items()}
    try:
        if warning := assign_workloads(plan, session, candidates, budgets):
            tracker.announce("baseline", note=warning)
        tracker.queues = len({queue_of(device, workload) for workload in plan.tuned})
        run = replace(run, prepare=_measure_baselines(run))
        # Before anything is tried: a session with trials has been told already.
        warm = warm_seeds(knowledge, plan, session, evaluator, budgets)
        keep_known_bits(run)
        again = unsearched_workloads(session, plan.candidate)
        search_all(run, searches_left=1 + plan.config.rounds, warm=warm)
        if plan.config.surveyed is not None and (again or not session.results()):
            cross_measure(run)
        failure = run_rounds(run) if run_rounds is not None else None
        run.prepare()
        ranked = EnergyStage(run, meter).measure() if meter is not None else {}
        finals = Finals(run, ranked)

        def decide(workload: Workload) -> None:
            tracker.announce("finals", workload)
            finals.decide(workload)

        # Held-out ones inherit from all of the others.
        for workloads in (plan.tuned, plan.held_out):
            work_in_queues(device, workloads, decide)
        tracker.announce("checks")
        finals.confirm()
        compare_winner(run)
        strength(run)
    except (KeyboardInterrupt, AwaitedError, DeviceLost, ClusterLost):
        session.mark("interrupted")
        raise
    finally:
        run.verification.close()
        record_assignment(session, device)
        tracker.save_time()
    if failure is not None:
        session.mark("interrupted")
        raise failure
    session.mark("complete")
    tracker.announce("done")
    return tuple(session.results())


def _load_ahead(plan: Plan, pools: Mapping[Workload, Pool]) -> None:
    # In the order in which they are needed.
    most_configs = max(map(len, pools.values()))
    if plan.config.rounds:
        # A candidate to come may have more: one with wider ranges does.
        most_configs = max(most_configs, EXHAUSTIVE_BELOW)
    preload(plan.config.searcher, most_configs, plan.config.trials)
    if len(plan.tuned) > 1 or plan.config.max_variants is not None:
        preload_solver()
    most = max(budget_of(plan, pool) for pool in pools.values())
    # The candidate of each round is searched too.
    if most * (1 + plan.config.rounds) >= FEWEST_TRIALS:
        preload_importance()


def _measure_baselines(run: Run) -> Callable[[], None]:
    """Measure what the session lacks; what comes back verifies the rest before anything runs."""
    plan, session, evaluator = run.plan, run.session, run.evaluator

    def measure(workload: Workload) -> None:
        run.tracker.announce("baseline", workload)
        if workload not in session.baselines():
            trial = evaluator.baseline(workload)
            assert trial.measurement is not None
            session.record_baseline(
                workload, trial.measurement, trial.correctness, trial.resources, trial.occupancy
            )
        baseline = session.baselines()[workload]
        run.tracker.set_baseline(workload, baseline.measurement.median_us)

    new = [one for one in plan.config.workloads if one not in session.baselines()]
    edge_cases = plan.spec.edge_cases
    if run.device.info.recorded or session.trials():
        edge_cases = ()
    evaluator.compile_baselines((*new, *edge_cases))
    work_in_queues(run.device, plan.config.workloads, measure)
    work_in_queues(run.device, edge_cases, evaluator.verify_baseline)

    def verify_known() -> None:
        workloads = (workload for workload in plan.config.workloads if workload not in new)
        judged = (w for w in workloads if evaluator.is_measure(session.baselines()[w].correctness))
        work_in_queues(run.device, tuple(judged), evaluator.verify_baseline)
        run.verification.try_near()

    prepare = cache(verify_known)
    # Not where all is searched that the session has, and rounds are what is left.
    same_trials = plan.config.trials == session.manifest.config.trials
    if not (session.events(ToolsDeclared) and same_trials and not undecided_of(session)):
        prepare()
    return prepare
