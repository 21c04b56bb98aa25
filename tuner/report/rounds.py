"""What an agent did, round by round: the session's notes as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tuner.agent.base import Idea
from tuner.agent.history import (
    CANDIDATE,
    IDEA,
    IDLE,
    REFUSED,
    SAID,
    Moved,
    RoundOutcome,
    RoundRecord,
    history,
    idea_of,
)
from tuner.model.statistics import geometric_mean
from tuner.session.session import Session
from tuner.tuning.progress import mean_speedup

# `idle`: the agent had nothing left to try; `open`: the run ended in the middle of it.
End = Literal["searched", "incorrect", "refused", "idle", "open"]


@dataclass(frozen=True, slots=True)
class Tried:
    """A candidate with its template, and its mean speedup over the baseline by the search's times.

    `speedup` is None where no config of it ran correctly.
    """

    name: str
    parent: str | None
    speedup: float | None
    template: str


@dataclass(frozen=True, slots=True)
class Spent:
    """What a model's replies took; `cached` tokens are among those of the `input`.

    `cost` is in the currency of the file of prices, None where no reply had a price; `unpriced`
    counts the replies without one.
    """

    replies: int = 0
    input: int = 0
    cached: int = 0
    output: int = 0
    cost: float | None = None
    unpriced: int = 0

    def __add__(self, other: Spent) -> Spent:
        known = [cost for cost in (self.cost, other.cost) if cost is not None]
        return Spent(
            self.replies + other.replies,
            self.input + other.input,
            self.cached + other.cached,
            self.output + other.output,
            sum(known) if known else None,
            self.unpriced + other.unpriced,
        )


@dataclass(frozen=True, slots=True)
class Gain:
    """What a template's default config gives over the baseline, and its best over the default.

    Both are means over the `workloads` of `every` tuned one where the default was timed.
    """

    default: float
    search: float
    workloads: int
    every: int


@dataclass(frozen=True, slots=True)
class Round:
    """One round: what `tuner.agent.history` tells of it, how it ended and what it took."""

    record: RoundRecord
    end: End
    gain: Gain | None
    spent: Spent

    @property
    def number(self) -> int:
        """Which round it was, from 1."""
        return self.record.number

    @property
    def speedup(self) -> float | None:
        """The candidate's mean speedup over the baseline, None where there is none."""
        return None if self.record.outcome is None else self.record.outcome.speedup

    @property
    def over_base(self) -> float | None:
        """The candidate's mean speedup over the one that it was built on."""
        return None if self.record.outcome is None else self.record.outcome.over_base

    @property
    def expected(self) -> tuple[Moved, ...]:
        """What was predicted, beside what was measured; before the outcome without the latter."""
        if self.record.outcome is not None:
            return self.record.outcome.moved
        idea = self.record.idea
        predicted = idea.expectations if idea else ()
        return tuple(Moved(one.metric, one.workload, one.factor, None) for one in predicted)


@dataclass(frozen=True, slots=True)
class Author:
    """Who wrote the candidates: `models` are those asked for and those that the server named."""

    agent: str
    models: tuple[str, ...]
    policy: str
    rounds: int


def author_of(session: Session) -> Author | None:
    """Say who wrote further candidates; None where nobody was asked to."""
    manifest = session.manifest
    if not manifest.agent:
        return None
    heard = (note.content.get("model", "") for note in session.notes(kind=SAID))
    models = dict.fromkeys((manifest.agent_options.get("model", ""), *heard))
    named = tuple(model for model in models if model)
    return Author(manifest.agent, named, manifest.policy, manifest.rounds)


def tried(session: Session) -> tuple[Tried, ...]:
    """List the candidates of a session with how they did in the search."""
    return tuple(
        Tried(one.name, one.parent, mean_speedup(session, one.name), one.template_text)
        for one in session.candidates()
    )


def rounds(session: Session) -> tuple[Round, ...]:
    """List the rounds of a session, also one that was not ended."""
    over = {record.number: record for record in history(session)}
    numbers = dict.fromkeys(note.round for note in session.notes() if note.round > 0)
    return tuple(_round(session, number, over.get(number)) for number in sorted(numbers))


def _round(session: Session, number: int, record: RoundRecord | None) -> Round:
    notes = session.notes(number)
    last = {note.kind: note.content for note in notes}
    spent = _spent(note.content for note in notes if note.kind == SAID)
    known = record or _unfinished(number, last)
    outcome = known.outcome
    gain = None if outcome is None else _gain(session, outcome)
    return Round(known, _end(last, outcome), gain, spent)


def _unfinished(number: int, last: Mapping[str, Mapping[str, Any]]) -> RoundRecord:
    idea: Idea | None = idea_of(last[IDEA]) if IDEA in last else None
    base = idea.base if idea else last.get(IDLE, {}).get("base") or ""
    made = last.get(CANDIDATE, {})
    problems = tuple(made.get("problems", ()))
    return RoundRecord(number, base, idea, made.get("name"), problems)


def _end(last: Mapping[str, Mapping[str, Any]], outcome: RoundOutcome | None) -> End:
    if REFUSED in last:
        return "refused"
    if outcome is not None:
        return "incorrect" if outcome.speedup is None else "searched"
    return "idle" if IDLE in last else "open"


def _gain(session: Session, outcome: RoundOutcome) -> Gain | None:
    timed = {key: us for key, us in outcome.default_us.items() if us is not None}
    baseline_us = {w.key: b.measurement.median_us for w, b in session.baselines().items()}
    both = [key for key in timed if key in baseline_us and key in outcome.best_us]
    if not both:
        return None
    return Gain(
        geometric_mean([baseline_us[key] / timed[key] for key in both]),
        geometric_mean([timed[key] / outcome.best_us[key] for key in both]),
        len(both),
        len(outcome.default_us),
    )


def _spent(entries: Iterable[Mapping[str, Any]]) -> Spent:
    """Add up what was paid for; failed requests too, where the server counted their tokens."""
    total = Spent()
    for entry in entries:
        usage = entry.get("usage")
        if usage is None:
            continue
        cost = entry.get("cost")
        total += Spent(
            1,
            usage["input_tokens"],
            usage["cached_tokens"],
            usage["output_tokens"],
            cost,
            int(cost is None),
        )
    return total
