"""Read the outcomes of a session's rounds, and restore their candidates in a resumed run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import log
from pathlib import Path
from statistics import median
from typing import Any

from tuner.extensions.agents.base import AgentAnswer
from tuner.extensions.agents.gate import read_draft
from tuner.extensions.agents.prompts import microseconds, one_line
from tuner.extensions.agents.tree import Node, Tree
from tuner.model.errors import SessionError
from tuner.model.statistics import average_speedup, geometric_mean
from tuner.report.formatting import times
from tuner.session.events import (
    AnswerAccepted,
    CandidateMade,
    DefaultTimed,
    Expectation,
    Idea,
    Moved,
    RoundOutcome,
    Said,
)
from tuner.session.rounds import TIME, RoundRecord, history, last, population
from tuner.session.session import Session
from tuner.space.plan import Plan
from tuner.tuning.evaluator import Candidates
from tuner.tuning.progress import mean_speedup

ByWorkload = Mapping[str, float]
ByMetric = Mapping[str, Mapping[str, float]]
_NAMES = {TIME: "time"}


def outcome(
    idea: Idea,
    *,
    baseline_us: ByWorkload,
    base_us: ByWorkload,
    best_us: ByWorkload,
    default_us: Mapping[str, float | None],
    base_metrics: ByMetric | None = None,
    metrics: ByMetric | None = None,
    weights: ByWorkload | None = None,
) -> RoundOutcome:
    """Compare what an idea promised with what was measured, all by `Workload.key`.

    `baseline_us` has every tuned workload; on those that `base_us` or `best_us` lacks, the
    baseline stands in, as it does for the user. A mix has `weights`. The metrics are those of
    `profiler.base.METRICS`, `{workload: {metric: value}}`, of the base's best config and of the
    candidate's.
    """
    mean = over_base = None
    if best_us:
        after_us = {w: best_us.get(w, baseline_us[w]) for w in baseline_us}
        from_us = {w: base_us.get(w, baseline_us[w]) for w in baseline_us}
        mean, over_base = (
            average_speedup(
                [of[w] / us for w, us in after_us.items()],
                [weights[w] * of[w] for w in after_us] if weights else (),
            )
            for of in (baseline_us, from_us)
        )
    before = _with_times(base_us, base_metrics or {})
    after = _with_times(best_us, metrics or {})
    moved = tuple(
        Moved(e.metric, e.workload, e.factor, _factor(e, before, after)) for e in idea.expectations
    )
    return RoundOutcome(mean, over_base, moved, dict(best_us), dict(default_us))


def sentence(moved: Moved) -> str:
    """Say what was expected and what came: `expected time x0.60 on T=8192, got x0.71`."""
    name = _NAMES.get(moved.metric, moved.metric.replace("_", " "))
    where = f"on {moved.workload}" if moved.workload else "on all workloads"
    expected = f"expected {name} {times(moved.predicted)} {where}"
    if moved.actual is None:
        return f"{expected}, not measured"
    other_way = (moved.predicted - 1) * (moved.actual - 1) < 0
    return f"{expected}, got {times(moved.actual)}" + (", the other way" if other_way else "")


def sentences(outcome: RoundOutcome, comparable: bool) -> list[str]:
    """Say of everything what was expected and what came, but of times that are not comparable."""
    return [sentence(one) for one in outcome.moved if comparable or one.metric != TIME]


def _with_times(times_us: ByWorkload, metrics: ByMetric) -> dict[str, dict[str, float]]:
    found = {workload: dict(values) for workload, values in metrics.items()}
    for workload, time_us in times_us.items():
        found.setdefault(workload, {})[TIME] = time_us
    return found


def _factor(expectation: Expectation, before: ByMetric, after: ByMetric) -> float | None:
    """Divide the new values by the old; over several workloads take the middle one.

    Times are averaged geometrically; other metrics may be 0, where that is not possible.
    """
    wanted = [expectation.workload] if expectation.workload else list(before)
    metric = expectation.metric
    ratios = []
    for workload in wanted:
        old = before.get(workload, {}).get(metric)
        new = after.get(workload, {}).get(metric)
        if old is None or new is None or (old == 0 and new != 0):
            continue
        ratios.append(1.0 if new == old else new / old)
    if not ratios:
        return None
    return geometric_mean(ratios) if metric == TIME else median(ratios)


# An entry has three lines of at most so many characters.
LINE = 220
MOST_ENTRIES = 24
_NUMBER = re.compile(r"\d+")


def memory_text(
    rounds: Sequence[RoundRecord], most: int = MOST_ENTRIES, *, comparable: bool = True
) -> str:
    """Tell what was tried, the newest first, by the candidate that it was built on.

    Failures of one base that ended alike are told once, by the newest, and counted; from `most`
    entries on, the older ones are only counted. Nothing is said of times that are not `comparable`.
    """
    if not rounds:
        return "Nothing was tried before this round."
    alike: dict[tuple[object, ...], list[RoundRecord]] = {}
    for round_record in sorted(
        rounds, key=lambda round_record: (-round_record.number, round_record.answer)
    ):
        why = (
            round_record.problems[-1]
            if round_record.candidate is None and round_record.problems
            else ""
        )
        kind = _NUMBER.sub("#", one_line(why, 80))
        alone = not round_record.failed or (round_record.timed and not round_record.problems)
        alike.setdefault((round_record.label,) if alone else (round_record.base, kind), []).append(
            round_record
        )
    entries = list(alike.values())
    kept, cut = entries[:most], entries[most:]
    parts: list[str] = []
    for base in dict.fromkeys(records[0].base for records in kept):
        own = [entry for entry in kept if entry[0].base == base]
        parts.append(
            "\n".join([f"Built on {base}:", *(_entry(entry, comparable) for entry in own)])
        )
    if cut:
        rounds = [round_record for entry in cut for round_record in entry]
        best = max((o.outcome.speedup or 0.0 for o in rounds if o.outcome), default=0.0)
        of_best = (
            f", the best of them {times(best)} as fast as the baseline"
            if best and comparable
            else ""
        )
        failed = sum(record.failed for record in rounds)
        parts.append(f"[left out: {len(rounds)} older rounds, {failed} of them failed{of_best}]")
    return "\n\n".join(parts)


def _entry(same: Sequence[RoundRecord], comparable: bool) -> str:
    first, *older = same
    tried = first.idea.change or first.idea.hypothesis if first.idea else "no plan"
    outcome = f" -> {first.candidate}" if first.candidate else " failed"
    lines = [one_line(f"- round {first.label}{outcome}: {tried}", LINE)]
    lines.append("  " + one_line(_result(first, comparable), LINE))
    if older:
        numbers = ", ".join(record.label for record in older[:8])
        what = [
            record.idea.change for record in older if record.idea and record.idea.change != tried
        ]
        also = f" (tried: {'; '.join(dict.fromkeys(what))})" if what else ""
        said = f"{len(older)} earlier rounds" if len(older) > 1 else "1 earlier round"
        lines.append("  " + one_line(f"{said} ended alike: {numbers}{also}", LINE))
    elif first.outcome is not None and (moved := sentences(first.outcome, comparable)):
        lines.append("  " + one_line("; ".join(moved), LINE))
    return "\n".join(lines)


def _result(record: RoundRecord, comparable: bool) -> str:
    outcome = record.outcome
    if record.candidate is not None and outcome is not None and outcome.speedup is not None:
        over = f"{times(outcome.over_base)} as fast as its base, " if outcome.over_base else ""
        refused = f"; {_answers(len(record.problems))} refused before" if record.problems else ""
        if not comparable:
            return f"ran correctly{refused}"
        return f"{over}{times(outcome.speedup)} as fast as the baseline{refused}"
    if record.candidate is not None:
        return "ran, and no config was correct"
    if record.timed is not None and not record.problems:
        return f"not searched: {describe_default(record.timed)}"
    if record.problems:
        return f"{_answers(len(record.problems))} refused, the last for: {record.problems[-1]}"
    return "ended without an answer"


def describe_default(timed: DefaultTimed, *, comparable: bool = True) -> str:
    """Say how an answer's default config did."""
    if not comparable:
        return f"its default config ran on {timed.workload}"
    return (
        f"its default config took {microseconds(timed.time_us)} us on {timed.workload}, "
        f"{times(timed.factor)} the {microseconds(timed.base_us)} of its base's best"
    )


def _answers(count: int) -> str:
    return "1 answer" if count == 1 else f"{count} answers"


class SessionTranscript:
    """Replay the messages that an earlier run of this round stored, then store new ones."""

    def __init__(self, session: Session, number: int) -> None:
        self._session, self._number = session, number
        self._earlier = iter([event.entry for event in session.events(Said, number)])

    def again(self) -> Mapping[str, Any] | None:
        return next(self._earlier, None)

    def keep(self, entry: Mapping[str, Any]) -> None:
        self._session.record_event(Said(self._number, entry))


FOLDER = "rounds"


def restore(plan: Plan, session: Session, candidates: Candidates) -> None:
    """Take up all candidates that earlier runs of a session accepted, as they were written then."""
    for event in session.events(CandidateMade):
        answers = session.events(AnswerAccepted, event.round)
        # The last: an earlier one was never a candidate.
        kept = last([answer for answer in answers if answer.attempt == event.attempt], event.answer)
        if kept is None:
            raise SessionError(
                f"candidate {event.name!r} has no answer that it was made of",
                path=session.directory,
            )
        folder = attempt_folder(session, event.round, event.attempt, event.answer)
        candidates.add(read_draft(AgentAnswer(kept.template, kept.space), plan, folder, event.name))


def attempt_folder(session: Session, number: int, attempt: int, answer: str = "") -> Path:
    return session.directory / FOLDER / f"{number:02}{answer}" / f"attempt-{attempt}"


def tree_of(session: Session) -> Tree:
    """Build the tree of a session's candidates, with what each of them and its rounds gave."""
    failures: dict[str, int] = {}
    for record in history(session):
        if record.candidate is None:
            failures[record.base] = failures.get(record.base, 0) + 1
    nodes = []
    for member in population(session):
        speedup = mean_speedup(session, member.name)
        reward = None if speedup is None else log(speedup)
        nodes.append(Node(member.name, member.parent, reward, failures.get(member.name, 0)))
    return Tree(nodes)
