"""Rounds with an agent: choose a base, plan, refactor, check, search, profile, compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil

from tuner.extensions.agents.base import Agent, Briefing, Conversation, Toolbox
from tuner.extensions.agents.gate import (
    RefusedError,
    read_draft,
    require_as_wide,
    require_same_scratch,
    try_default,
    validate_candidate,
)
from tuner.extensions.agents.history import (
    SessionTranscript,
    attempt_folder,
    describe_default,
    outcome,
    sentences,
    tree_of,
)
from tuner.extensions.agents.profiling import Profiling, worth_profiling
from tuner.extensions.agents.replies import SLOWEST_DEFAULT, repair_surrogates
from tuner.extensions.agents.tree import Policy
from tuner.model.errors import AgentError, AwaitedError, BudgetError, InputError, ReplyError
from tuner.model.settings import FILES
from tuner.model.trial import INITIAL
from tuner.process.files import read_text
from tuner.session.events import (
    AgentIdle,
    AnswerAccepted,
    CandidateMade,
    DefaultTimed,
    Idea,
    Planned,
    RoundEnded,
    RoundOutcome,
    RoundRefused,
    ToolsDeclared,
)
from tuner.session.rounds import last, over, profiles
from tuner.space.plan import Plan
from tuner.tuning.evaluator import Evaluator
from tuner.tuning.progress import best_trials, best_us, mean_speedup
from tuner.tuning.run import Run, unsearched_workloads
from tuner.tuning.search import search_all

# How often an agent may write a refused answer again (KernelPro and GPU Kernel Scientist give no
# number; most errors that a model can mend at all are mended in two).
REPAIRS = 3


# What a round takes of the machine: the gate, the search, the profile.
ROUND_PHASES = ("candidate", "search", "profile")


@dataclass(frozen=True, slots=True)
class Author:
    """The author of candidates, with what it needs.

    `briefing` composes what the agent reads, from the round's number, the base that the policy
    chose and the seconds of this run by phase; `toolbox` makes the tools of a round. `verifies`
    says that the device runs kernels.
    """

    agent: Agent
    policy: Policy
    briefing: Callable[[int, str | None, Mapping[str, float]], Briefing]
    toolbox: Callable[[int, str | None], Toolbox]
    profiling: Profiling | None
    verifies: bool


@dataclass(frozen=True, slots=True)
class AskedAnswer:
    """One answer of a round that is to be written: its name there, and its plan."""

    number: int
    answer: str
    idea: Idea
    conversation: Conversation

    @property
    def label(self) -> str:
        return f"{self.number}{self.answer}"


class Rounds:
    """Run the rounds of one session; a round that is over is not run again."""

    def __init__(self, run: Run, author: Author) -> None:
        self._run, self._author = run, author
        self._plan, self._session = run.plan, run.session
        self._candidates, self._progress = run.candidates, run.tracker
        self._before_s: Mapping[str, float] = {}

    def run(self) -> AgentError | None:
        """Run or resume all rounds; return what ended them too early, None where nothing did."""
        self._profile(self._plan, 0)
        try:
            for number in range(1, self._plan.config.rounds + 1):
                if over(self._session, number):
                    for event in self._session.events(CandidateMade, number):
                        self._take_up(event, number)
                elif not self._round(number):
                    break
        except AwaitedError:
            raise
        except BudgetError as error:
            self._say(error.message)
            return None if self._has_ended() else error
        except AgentError as error:
            return error
        tried = self._session.events(RoundRefused)
        if tried and not self._has_ended():
            return AgentError(
                f"{self._author.agent.name} wrote no valid template in {len(tried)} rounds; "
                f"the last was refused for:\n{tried[-1].problems[-1]}"
            )
        return None

    def _take_up(self, made: CandidateMade, number: int) -> None:
        """Count what an earlier run searched, and search where memory ended then."""
        refused = last(self._session.events(RoundRefused, number), made.answer)
        if refused or not unsearched_workloads(self._session, made.name):
            self._progress.recount(made.name)
            return
        self._run.prepare()
        with self._refusing(number, made.answer, made.name):
            self._search(self._candidates.plan(made.name), number, 1)

    def _has_ended(self) -> bool:
        return bool(self._session.events(RoundEnded))

    def _round(self, number: int) -> bool:
        """Run one round; False where the agent has nothing left to try."""
        session = self._session
        self._before_s = self._progress.phases_s()
        planned = {event.answer for event in session.events(Planned, number)}
        if not planned or not planned <= self._decided_answers(number):
            # Else an earlier run accepted all: only a search is left, and nobody is asked again.
            base = self._author.policy.choose(tree_of(session))
            conversation = self._open_conversation(number, base)
            try:
                said = conversation.plan()
            except ReplyError as error:
                problems = (repair_surrogates(str(error)),)
                session.record_event(RoundRefused(number, base or INITIAL, problems))
                return True
            if said is None:
                session.record_event(AgentIdle(number, base))
                return False
            if isinstance(said, Idea):
                asked, attempts = [AskedAnswer(number, "", said, conversation)], REPAIRS + 1
            else:
                asked, attempts = self._read_plans(number, base, said), 1
            for answer in asked:
                if last(session.events(Planned, number), answer.answer) is None:
                    session.record_event(Planned(number, answer.idea, answer=answer.answer))
            for answer in asked:
                if answer.answer not in self._decided_answers(number):
                    self._say(f"round {answer.label}: on {answer.idea.base}, {answer.idea.change}")
                    self._write_candidate(answer, attempts)
        made = session.events(CandidateMade, number)
        ended = {round_ended.answer for round_ended in session.events(RoundEnded, number)}
        if left := [one for one in made if one.answer not in ended]:
            self._try_candidates(number, left, len(made))
        return True

    def _decided_answers(self, number: int) -> set[str]:
        """Name the answers of a round that became candidates or never will."""
        session = self._session
        kinds = (CandidateMade, RoundEnded, RoundRefused)
        return {event.answer for kind in kinds for event in session.events(kind, number)}

    def _read_plans(
        self, number: int, base: str | None, said: Mapping[str, Conversation]
    ) -> list[AskedAnswer]:
        """Read the plan of each of several answers, and refuse those without one."""
        asked = []
        for answer, conversation in said.items():
            try:
                idea = conversation.plan()
                assert isinstance(idea, Idea)
                asked.append(AskedAnswer(number, answer, idea, conversation))
            except ReplyError as error:
                if answer not in self._decided_answers(number):
                    problem = repair_surrogates(str(error))
                    conversation.tell(f"refused: {problem}")
                    refused = RoundRefused(number, base or INITIAL, (problem,), answer=answer)
                    self._session.record_event(refused)
        return asked

    def _open_conversation(self, number: int, base: str | None) -> Conversation:
        agent, session = self._author.agent, self._session
        self._say(f"round {number} of {self._plan.config.rounds}: {agent.name} plans")
        if agent.name != FILES:  # who may try drafts
            self._run.prepare()
        toolbox = self._author.toolbox(number, base)
        if not session.events(ToolsDeclared, number):
            session.record_event(ToolsDeclared(number, tuple(toolbox.tools())))
        best = tree_of(session).best
        # Of several candidates the fastest alone has a profile.
        self._profile(self._candidates.plan(base or (best.name if best else INITIAL)), number)
        briefing = self._author.briefing(number, base, self._before_s)
        return agent.converse(briefing, toolbox, SessionTranscript(session, number))

    def _write_candidate(self, asked: AskedAnswer, attempts: int) -> None:
        """Have an answer written until it may be searched; record what it comes to."""
        session, number, answer = self._session, asked.number, asked.answer
        conversation, problems, name = asked.conversation, list[str](), f"r{asked.label}"
        self._run.prepare()
        for attempt in range(1, attempts + 1):
            try:
                written = conversation.repair(problems[-1]) if problems else conversation.refactor()
                folder = attempt_folder(session, number, attempt, answer)
                plan = read_draft(written, self._plan, folder, name)
                require_same_scratch(plan, self._candidates.plans)
                self._progress.announce(
                    "candidate", note=f"round {asked.label}: checking what was written"
                )
                evaluator = self._candidates.of(plan)
                if self._is_slow(plan, evaluator, asked):
                    return
                require_as_wide(plan, evaluator, self._plan)
                validate_candidate(plan, evaluator, verify=self._author.verifies, seed=number)
                text = plan.template.text
                accepted = AnswerAccepted(number, attempt, text, written.space, answer=answer)
                if accepted not in session.events(AnswerAccepted, number):
                    session.record_event(accepted)
            except (ReplyError, RefusedError) as error:
                problems.append(repair_surrogates(str(error)))
                self._say(f"round {asked.label}: refused: {problems[-1].splitlines()[0]}")
                continue
            self._candidates.add(plan)
            # They were decided without this candidate.
            for result in session.results():
                session.withdraw_result(result.workload)
            # Last: a resumed run takes it for the end of this step.
            made = CandidateMade(number, name, attempt, tuple(problems), answer=answer)
            session.record_event(made)
            return
        if attempts == 1:
            conversation.tell(f"refused: {problems[-1]}")
        refused = RoundRefused(number, asked.idea.base, tuple(problems), answer=answer)
        session.record_event(refused)

    def _is_slow(self, plan: Plan, evaluator: Evaluator, asked: AskedAnswer) -> bool:
        """Time an answer's default config and tell the agent; end an answer that is far slower."""
        trial = try_default(plan, evaluator) if self._author.verifies else None
        if trial is None or trial.time_us is None:
            return False
        key, session, answer = trial.workload.key, self._session, asked.answer
        baseline_us = session.baselines()[trial.workload].measurement.median_us
        base_us = best_us(session, asked.idea.base).get(key, baseline_us)
        timed = DefaultTimed(asked.number, key, trial.time_us, base_us, answer=answer)
        session.record_event(timed)
        slow = timed.factor > SLOWEST_DEFAULT and not asked.idea.insist
        slow = slow and not self._run.device.info.on_cpu  # whose times say nothing of a GPU's
        then = "not searched, for its plan does not `insist`" if slow else "checked and searched"
        told = describe_default(timed, comparable=not self._session.on_cpu)
        asked.conversation.tell(f"{told}: {then}")
        self._say(f"round {asked.label}: {told}: {then}")
        if slow:
            outcome = RoundOutcome(None, None, default_us={key: trial.time_us})
            session.record_event(RoundEnded(asked.number, outcome, answer=answer))
        return slow

    def _try_candidates(self, number: int, made: Sequence[CandidateMade], shared_by: int) -> None:
        """Search what a round made, profile the fastest, and compare all with their plans."""
        session = self._session
        self._run.prepare()
        for one in made:
            plan = self._candidates.plan(one.name)
            planned = last(session.events(Planned, number), one.answer)
            assert planned is not None
            if one.name not in {candidate.name for candidate in session.candidates()}:
                # Only now: what comes before the session's last candidate counts as searched.
                text, space = plan.template.text, read_text(plan.spec.path)
                session.add_candidate(one.name, text, space, planned.idea.base)
            with self._refusing(number, one.answer, one.name):
                self._search(plan, number, shared_by)
        refused = {event.candidate for event in session.events(RoundRefused, number)}
        left = [one for one in made if one.name not in refused]
        speedups = {one.name: mean_speedup(session, one.name) or 0.0 for one in left}
        if speedups:
            self._profile(self._candidates.plan(max(speedups, key=lambda n: speedups[n])), number)
        taken_s = {
            name: round(seconds - self._before_s.get(name, 0.0), 3)
            for name, seconds in self._progress.phases_s().items()
            if name in ROUND_PHASES
        }
        for one in left:
            planned = last(session.events(Planned, number), one.answer)
            assert planned is not None
            outcome = self._outcome(self._candidates.plan(one.name), planned.idea)
            session.record_event(RoundEnded(number, outcome, taken_s, answer=one.answer))
            words = sentences(outcome, not session.on_cpu)
            if outcome.speedup is not None:
                over = f"{outcome.speedup:.2f}x over the baseline, {self._plan.spec.source.name}"
                words.insert(0, "ran correctly" if session.on_cpu else over)
            said = "; ".join(words) or "no config ran correctly"
            self._say(f"round {number}{one.answer}: {said}")

    @contextmanager
    def _refusing(self, number: int, answer: str, name: str) -> Iterator[None]:
        """End an answer of which some configs render or resolve to what no sample had shown."""
        try:
            yield
        except InputError as error:
            planned = last(self._session.events(Planned, number), answer)
            base = planned.idea.base if planned else INITIAL
            refused = RoundRefused(number, base, (str(error),), name, answer=answer)
            self._session.record_event(refused)

    def _search(self, plan: Plan, number: int, shared_by: int) -> None:
        """Search a candidate; several of one round share its trials."""
        if (trials := plan.config.trials) is not None:
            plan = replace(plan, config=replace(plan.config, trials=ceil(trials / shared_by)))
        search_all(self._run.of(plan), searches_left=self._plan.config.rounds - number + 1)

    def _outcome(self, plan: Plan, idea: Idea) -> RoundOutcome:
        session, default = self._session, plan.space.default
        baselines = session.baselines()
        defaults: dict[str, float | None] = {}
        for workload in self._plan.tuned:
            trial = session.trial(plan.candidate, workload, default) if default else None
            defaults[workload.key] = trial.time_us if trial else None
        metrics = {
            name: {profile.workload: profile.metrics for profile in profiles(session, name)}
            for name in (idea.base, plan.candidate)
        }
        return outcome(
            idea,
            baseline_us={w.key: baselines[w].measurement.median_us for w in self._plan.tuned},
            base_us=best_us(session, idea.base),
            best_us=best_us(session, plan.candidate),
            default_us=defaults,
            base_metrics=metrics[idea.base],
            metrics=metrics[plan.candidate],
            weights={w.key: n for w, n in self._plan.config.weights.items()},
        )

    def _profile(self, plan: Plan, number: int) -> None:
        if self._author.profiling is None:
            return
        self._progress.announce("profile", note=f"profiling {plan.candidate}")
        best = best_trials(self._session, plan.candidate)
        worth = worth_profiling(self._session, plan, best)
        self._author.profiling.keep(plan, self._session, number, worth)

    def _say(self, text: str) -> None:
        self._progress.announce("agent", note=text)
