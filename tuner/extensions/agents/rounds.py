"""Rounds with an agent: choose a base, plan, refactor, check, search, profile, compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from tuner.extensions.agents.base import Agent, Briefing, Conversation, Toolbox
from tuner.extensions.agents.gate import (
    RefusedError,
    read_draft,
    require_as_wide,
    validate_candidate,
)
from tuner.extensions.agents.history import (
    SessionTranscript,
    attempt_folder,
    outcome,
    sentence,
    tree_of,
)
from tuner.extensions.agents.replies import repair_surrogates
from tuner.extensions.agents.tree import Policy
from tuner.model.errors import AgentError, AwaitedError, BudgetError, InputError, ReplyError
from tuner.model.trial import INITIAL
from tuner.process.files import read_text
from tuner.session.events import (
    AgentIdle,
    AnswerAccepted,
    CandidateMade,
    Idea,
    Planned,
    RoundEnded,
    RoundOutcome,
    RoundRefused,
    ToolsDeclared,
)
from tuner.session.rounds import last, over
from tuner.space.plan import Plan
from tuner.tuning.profiling import Profiling, profiles, worth_profiling
from tuner.tuning.progress import best_trials, best_us
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
                    for made in self._session.events(CandidateMade, number):
                        self._take_up(made.name, number)
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

    def _take_up(self, name: str, number: int) -> None:
        """Count what an earlier run searched, and search where memory ended then."""
        refused = self._session.events(RoundRefused, number)
        if refused or not unsearched_workloads(self._session, name):
            self._progress.recount(name)
            return
        base = self._session.events(Planned, number)[-1].idea.base
        with self._refusing(name, number, base):
            self._search(self._candidates.plan(name), number)

    def _has_ended(self) -> bool:
        return bool(self._session.events(RoundEnded))

    def _round(self, number: int) -> bool:
        """Run one round; False where the agent has nothing left to try."""
        session = self._session
        self._before_s = self._progress.phases_s()
        if made := last(session.events(CandidateMade, number)):
            # An earlier run accepted it: only its search is left, and nobody is asked again.
            planned = session.events(Planned, number)[-1]
            self._try_candidate(self._candidates.plan(made.name), number, planned.idea)
            return True
        base = self._author.policy.choose(tree_of(session))
        conversation = self._open_conversation(number, base)
        try:
            idea = conversation.plan()
        except ReplyError as error:
            problems = (repair_surrogates(str(error)),)
            session.record_event(RoundRefused(number, base or INITIAL, problems))
            return True
        if idea is None:
            session.record_event(AgentIdle(number, base))
            return False
        if not session.events(Planned, number):
            session.record_event(Planned(number, idea))
        self._say(f"round {number}: on {idea.base}, {idea.change}")
        plan = self._write_candidate(conversation, number, idea)
        if plan is not None:
            self._try_candidate(plan, number, idea)
        return True

    def _open_conversation(self, number: int, base: str | None) -> Conversation:
        agent, session = self._author.agent, self._session
        self._say(f"round {number} of {self._plan.config.rounds}: {agent.name} plans")
        toolbox = self._author.toolbox(number, base)
        if not session.events(ToolsDeclared, number):
            session.record_event(ToolsDeclared(number, tuple(toolbox.tools())))
        briefing = self._author.briefing(number, base, self._before_s)
        return agent.converse(briefing, toolbox, SessionTranscript(session, number))

    def _write_candidate(self, conversation: Conversation, number: int, idea: Idea) -> Plan | None:
        problems: list[str] = []
        name = f"r{number}"
        for attempt in range(1, REPAIRS + 2):
            try:
                answer = conversation.repair(problems[-1]) if problems else conversation.refactor()
                folder = attempt_folder(self._session, number, attempt)
                plan = read_draft(answer, self._plan, folder, name)
                self._progress.announce(
                    "candidate", note=f"round {number}: checking what was written"
                )
                evaluator = self._candidates.of(plan)
                require_as_wide(plan, evaluator, self._plan)
                validate_candidate(plan, evaluator, verify=self._author.verifies, seed=number)
                accepted = AnswerAccepted(number, attempt, plan.template.text, answer.space)
                if accepted not in self._session.events(AnswerAccepted, number):
                    self._session.record_event(accepted)
            except (ReplyError, RefusedError) as error:
                problems.append(repair_surrogates(str(error)))
                self._say(f"round {number}: refused: {problems[-1].splitlines()[0]}")
                continue
            self._candidates.add(plan)
            space_text = read_text(plan.spec.path)
            self._session.add_candidate(plan.candidate, plan.template.text, space_text, idea.base)
            # They were decided without this candidate.
            for result in self._session.results():
                self._session.withdraw_result(result.workload)
            # Last: a resumed run takes it for the end of this step.
            event = CandidateMade(number, plan.candidate, attempt, tuple(problems))
            self._session.record_event(event)
            return plan
        self._session.record_event(RoundRefused(number, idea.base, tuple(problems)))
        return None

    def _try_candidate(self, plan: Plan, number: int, idea: Idea) -> None:
        session = self._session
        with self._refusing(plan.candidate, number, idea.base):
            self._search(plan, number)
            self._profile(plan, number)
        if session.events(RoundRefused, number):
            return
        outcome = self._outcome(plan, idea)
        taken_s = {
            name: round(seconds - self._before_s.get(name, 0.0), 3)
            for name, seconds in self._progress.phases_s().items()
            if name in ROUND_PHASES
        }
        session.record_event(RoundEnded(number, outcome, taken_s))
        words = [sentence(one) for one in outcome.moved]
        if outcome.speedup is not None:
            over = f"the baseline, {self._plan.spec.source.name}"
            words.insert(0, f"{outcome.speedup:.2f}x over {over}")
        self._say(f"round {number}: {'; '.join(words) or 'no config ran correctly'}")

    @contextmanager
    def _refusing(self, name: str, number: int, base: str) -> Iterator[None]:
        """End a round where some configs render or resolve to what no sample had shown."""
        try:
            yield
        except InputError as error:
            self._session.record_event(RoundRefused(number, base, (str(error),), name))

    def _search(self, plan: Plan, number: int) -> None:
        search_all(self._run.of(plan), searches_left=self._plan.config.rounds - number + 1)

    def _outcome(self, plan: Plan, idea: Idea) -> RoundOutcome:
        session, default = self._session, plan.space.default
        baselines = session.baselines()
        defaults: dict[str, float | None] = {}
        for workload in self._plan.tuned:
            trial = session.trial(plan.candidate, workload, default) if default else None
            defaults[workload.key] = trial.time_us if trial else None
        metrics = {
            name: {one.workload: one.metrics for one in profiles(session, name)}
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
