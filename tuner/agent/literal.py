"""The agent without a model: it widens the ranges whose best value stands at their end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tuner.agent.base import Answer, Briefing, Conversation, Idea, Member, Toolbox, Transcript
from tuner.agent.space_edit import add_value, comment_on
from tuner.agent.widening import Space, makes_sense, next_value
from tuner.errors import AgentError, ReplyError
from tuner.findings import Finding

TOPIC = "edge"


class LiteralAgent:
    """Keep the template and widen its ranges where the search says that the best lies at an end."""

    name = "literal"

    def converse(
        self,
        briefing: Briefing,
        toolbox: Toolbox,
        transcript: Transcript,
    ) -> Conversation:
        """Open a round; the same briefing always gives the same answer."""
        return LiteralConversation(briefing)


@dataclass(frozen=True, slots=True)
class Widening:
    """A value to add to a parameter, beside the one that was best."""

    parameter: str
    value: int
    beside: int
    because: str


class LiteralConversation:
    """One round: what to widen is decided from the base's findings alone."""

    def __init__(self, briefing: Briefing) -> None:
        self._briefing = briefing

    def plan(self) -> Idea | None:
        """Propose to widen every range that ought to be; None where there is none.

        Raises `AgentError` where no base is given: without a model nobody can choose one.
        """
        base = self._base()
        widenings = self._widenings()
        if not widenings:
            return None
        added = ", ".join(f"`{w.parameter}`: {w.value}" for w in widenings)
        return Idea(
            base=base.name,
            hypothesis=" ".join(w.because for w in widenings) + " Better values may lie beyond.",
            change=f"The same template with more values to choose from: {added}.",
        )

    def refactor(self) -> Answer:
        """Return the base's template with the wider space; `ReplyError` where none is wider."""
        widenings = self._widenings()
        if not widenings:
            raise ReplyError("no range of the search space is to be widened")
        space = self._base().space
        for widening in widenings:
            space = add_value(space, widening.parameter, widening.value, beside=widening.beside)
        return Answer(self._base().template, space)

    def repair(self, problem: str) -> Answer:
        """Raise `ReplyError`: without a model nobody can mend what is wrong."""
        raise ReplyError(
            f"the agent `literal` cannot repair anything; what was wrong: {problem}",
            remedy="--agent openai or --agent files can",
        )

    def _base(self) -> Member:
        if self._briefing.base is None:
            raise AgentError(
                "the agent `literal` cannot choose the candidate to build on",
                remedy="choose it with --policy greedy or --policy mcts",
            )
        return self._briefing.member(self._briefing.base)

    def _widenings(self) -> tuple[Widening, ...]:
        base = self._base()
        space = Space.of(base.space)
        tried = [Space.of(member.space) for member in self._relatives(base)]
        found: dict[tuple[str, int], Widening] = {}
        for finding in self._briefing.findings:
            widening = _widening(space, finding) if finding.topic == TOPIC else None
            if widening is not None and not _has(tried, widening):
                found.setdefault((widening.parameter, widening.value), widening)
        return tuple(found.values())

    def _relatives(self, base: Member) -> Iterator[Member]:
        # What an ancestor had and a descendant dropped is known, and so is what was added to the
        # same template before.
        names = {base.name}
        parent = base.parent
        while parent is not None and parent not in names:
            names.add(parent)
            parent = self._briefing.member(parent).parent
        for member in self._briefing.population:
            if member.name in names or member.template == base.template:
                yield member


def _widening(space: Space, finding: Finding) -> Widening | None:
    parameter = space.parameter(finding.parameter)
    if parameter is None:
        return None
    values = sorted(v for v in parameter.values if isinstance(v, int) and not isinstance(v, bool))
    # 0 and 1 switch something on and off
    if len(values) < max(2, len(parameter.values)) or values == [0, 1]:
        return None
    end = next((v for v in (values[0], values[-1]) if v == finding.value), None)
    if end is None or end == 0:
        return None
    threads = space.counts_threads(parameter.name)
    value = next_value(values, end, threads=threads)
    comment = comment_on(space.text, parameter.line or 0)
    if value is None or not makes_sense(space, parameter.name, value, comment):
        return None
    return Widening(parameter.name, value, end, finding.text)


def _has(spaces: list[Space], widening: Widening) -> bool:
    known = (space.parameter(widening.parameter) for space in spaces)
    return any(widening.value in parameter.values for parameter in known if parameter is not None)
