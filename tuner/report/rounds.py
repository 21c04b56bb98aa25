"""What an agent did, round by round: the session's notes as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tuner.model.statistics import average_speedup
from tuner.session.events import AgentIdle, Moved, RoundRefused, Said
from tuner.session.rounds import TIME, RoundRecord, answers, last, list_rounds
from tuner.session.session import Session

# `slow`: its default config was not worth a search; `idle`: the agent had nothing left to try;
# `open`: the run ended in the middle of it.
End = Literal["searched", "incorrect", "slow", "refused", "idle", "open"]


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
class GainOverDefault:
    """What a template's default config gives over the baseline, and its best over the default.

    Both are means over the `workloads` of `every` tuned one where the default was timed.
    """

    default: float
    search: float
    workloads: int
    every: int


@dataclass(frozen=True, slots=True)
class RoundData:
    """One round: what the agents' history tells of it, how it ended and what it took."""

    record: RoundRecord
    end: End
    gain: GainOverDefault | None
    spent: Spent

    @property
    def number(self) -> int:
        return self.record.number

    @property
    def label(self) -> str:
        return self.record.label

    @property
    def speedup(self) -> float | None:
        return None if self.record.outcome is None else self.record.outcome.speedup

    @property
    def over_base(self) -> float | None:
        return None if self.record.outcome is None else self.record.outcome.over_base

    @property
    def expected(self) -> tuple[Moved, ...]:
        """What was predicted, beside what was measured; before the outcome without the latter."""
        if self.record.outcome is not None:
            return self.record.outcome.moved
        idea = self.record.idea
        predicted = idea.expectations if idea else ()
        return tuple(Moved(e.metric, e.workload, e.factor, None) for e in predicted)


@dataclass(frozen=True, slots=True)
class AuthorData:
    """Who wrote the candidates: `models` are those asked for and those that the server named."""

    agent: str
    models: tuple[str, ...]
    policy: str
    rounds: int


def author_of(session: Session) -> AuthorData | None:
    """Return the author of further candidates; None without rounds."""
    config = session.manifest.config
    if not config.rounds:
        return None
    heard = (event.entry.get("model", "") for event in session.events(Said))
    models = dict.fromkeys((config.model, *heard))
    named = tuple(model for model in models if model)
    return AuthorData(config.agent, named, config.policy, config.rounds)


def rounds(session: Session) -> tuple[RoundData, ...]:
    """List the rounds, also one that was not ended."""
    baseline_us = {w.key: b.measurement.median_us for w, b in session.baselines().items()}
    return tuple(_round(session, record, baseline_us) for record in list_rounds(session))


def _compare(
    before_us: Mapping[str, float],
    after_us: Mapping[str, float],
    keys: Sequence[str],
    often: Mapping[str, float],
) -> float:
    """Average speedups, of a mix over what all took."""
    took = [often[key] * before_us[key] for key in keys if often]
    return average_speedup([before_us[key] / after_us[key] for key in keys], took)


def _round(session: Session, record: RoundRecord, baseline_us: Mapping[str, float]) -> RoundData:
    outcome, gain, spent = record.outcome, None, Spent()
    end: End = "idle" if session.events(AgentIdle, record.number) else "open"
    if outcome is not None:
        end = "incorrect" if outcome.speedup is None else "searched"
        end = "slow" if record.candidate is None else end
        timed = {key: us for key, us in outcome.default_us.items() if us is not None}
        if both := [key for key in timed if key in baseline_us and key in outcome.best_us]:
            often = {w.key: weight for w, weight in session.manifest.config.weights.items()}
            gain = GainOverDefault(
                _compare(baseline_us, timed, both, often),
                _compare(timed, outcome.best_us, both, often),
                len(both),
                len(outcome.default_us),
            )
    if last(session.events(RoundRefused, record.number), record.answer):
        end = "refused"
    # What was paid for; failed requests too, where the server counted their tokens.
    first = record.answer == answers(session, record.number)[0]
    for event in session.events(Said, record.number) if first else ():
        if (usage := event.entry.get("usage")) is not None:
            read, cached, written = (
                usage.get(f"{kind}_tokens", 0) for kind in ("input", "cached", "output")
            )
            cost = event.entry.get("cost")
            spent += Spent(1, read, cached, written, cost, int(cost is None))
    if session.on_cpu and record.outcome is not None:
        # Its times are kept, and compared with nothing.
        moved = tuple(
            replace(one, actual=None) if one.metric == TIME else one for one in record.outcome.moved
        )
        round_outcome = replace(record.outcome, speedup=None, over_base=None, moved=moved)
        record, gain = replace(record, outcome=round_outcome), None
    return RoundData(record, end, gain, spent)
