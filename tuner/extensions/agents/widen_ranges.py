"""The agent without a model: it widens the ranges whose best value stands at their end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, pairwise, product
from math import prod
from pathlib import Path

from tuner.extensions.agents.base import (
    AgentAnswer,
    BriefedCandidate,
    Briefing,
    Conversation,
    Toolbox,
    Transcript,
)
from tuner.model.config import Parameter, SearchSpace, format_value
from tuner.model.errors import AgentError, ExpressionError, ReplyError, SpaceError
from tuner.model.expressions import Expression, Value
from tuner.model.trial import Finding
from tuner.session.events import Idea
from tuner.space.choices import check_names, search_space
from tuner.space.schema import SpaceModel, validate_space
from tuner.space.yaml import parse

_DASH = re.compile(r"[ \t]*-[ \t]+")


def add_value(text: str, parameter: str, value: Value, *, beside: Value) -> str:
    """Write `value` next to the value `beside` of a parameter, on the side where its order goes on.

    Comments and layout stay. Raises `SpaceError` where the text does not list `beside`.
    """
    document = parse(text, Path("space.yaml"))
    parameters = document.data.get("parameters")
    values = parameters.get(parameter) if isinstance(parameters, dict) else None
    listed = values if isinstance(values, list) else []
    found = [i for i, v in enumerate(listed) if v == beside and type(v) is type(beside)]
    if not found:
        raise SpaceError(f"`{parameter}` has no value {format_value(beside)}", path=document.path)
    place, new = document.places["parameters", parameter, found[0]], format_value(value)
    before = found[0] == 0 and len(listed) > 1
    start = text.rfind("\n", 0, place.start) + 1
    dash = _DASH.fullmatch(text, start, place.start)
    if dash is None:
        at, piece = (place.start, f"{new}, ") if before else (place.end, f", {new}")
        return text[:at] + piece + text[at:]
    end = text.find("\n", place.end) + 1 or len(text)
    line = f"{dash[0]}{new}\n"
    if before:
        return text[:start] + line + text[start:]
    joint = "" if text[:end].endswith("\n") else "\n"
    return text[:end] + joint + line + text[end:]


WARP = 32
MAX_THREADS = 1024
# of one load on all devices
LOAD_BYTES = 16
# A constraint over more combinations than this is not looked through.
_MOST_TRIED = 20_000
_VECTOR_BYTES = re.compile(r"vec\w*bytes|bytes\w*vec\w*")


@dataclass(frozen=True, slots=True)
class DeclaredSpace:
    """A search space as text and as what it declares, of a candidate whose files may not be there.

    Read it with `DeclaredSpace.of`.
    """

    text: str
    choices: SearchSpace
    model: SpaceModel

    @classmethod
    def of(cls, text: str) -> DeclaredSpace:
        """Read the text of a search space; raise `SpaceError` for a wrong one."""
        document = parse(text, Path("space.yaml"))
        model = validate_space(document)
        check_names(document, model)
        return cls(text, search_space(document, model), model)

    def parameter(self, name: str) -> Parameter | None:
        return {p.name: p for p in self.choices.parameters}.get(name)


def next_value(values: Sequence[int], end: int, *, threads: bool) -> int | None:
    """Continue an ascending range beyond one of its ends; None where no number above 0 follows.

    A range whose steps are all equal takes one more, any other the next power of two; numbers of
    threads stay multiples of a warp.
    """
    upward = end == values[-1]
    steps = {b - a for a, b in pairwise(values)}
    if len(values) > 2 and len(steps) == 1:
        step = steps.pop()
        following = end + step if upward else end - step
    else:
        below = 1 << (end - 1).bit_length() - 1 if end > 1 else 0
        following = 1 << end.bit_length() if upward else below
    if threads and following % WARP:
        return None
    return following if following > 0 else None


def makes_sense(space: DeclaredSpace, name: str, value: int) -> bool:
    """Whether some config can have the value, by the block's size and by each constraint.

    Constraints that ask for the device's numbers, or have too many combinations, are left to the
    search.
    """
    if _VECTOR_BYTES.fullmatch(name) and value > LOAD_BYTES:
        return False
    choices = {p.name: p.values for p in space.choices.parameters} | {name: (value,)}
    sizes = space.model.workloads.tuned
    defined = {one.name: one.expression for one in space.choices.derived}
    asked = [condition for condition in space.choices.conditions if name in condition.names]
    for launch in space.model.launch:
        threads = " * ".join(f"({extent})" for extent in launch.block)
        asked.append(Expression.parse(f"0 < {threads} <= {MAX_THREADS}").define(defined))
    return all(_can_hold(expression, choices, sizes) for expression in asked)


def _can_hold(
    constraint: Expression,
    choices: Mapping[str, Sequence[Value]],
    sizes: Iterable[Mapping[str, int]],
) -> bool:
    own = [name for name in choices if name in constraint.names]
    for axes in sizes:
        if constraint.names - choices.keys() - axes.keys():
            return True
        for values in islice(product(*(choices[name] for name in own)), _MOST_TRIED):
            config = {**axes, **dict(zip(own, values, strict=True))}
            with suppress(ExpressionError):
                if constraint.evaluate(config):
                    return True
    return prod(len(choices[name]) for name in own) > _MOST_TRIED


TOPIC = "edge"


class WideningAgent:
    """Keep the template and widen its ranges where the search says that the best lies at an end."""

    name = "literal"

    def converse(
        self, briefing: Briefing, toolbox: Toolbox, transcript: Transcript
    ) -> Conversation:
        return WideningConversation(briefing)


@dataclass(frozen=True, slots=True)
class Widening:
    """A value to add to a parameter, beside the one that was best."""

    parameter: str
    value: int
    beside: int
    because: str


class WideningConversation(Conversation):
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
            insist=True,  # the default is the base's
        )

    def refactor(self) -> AgentAnswer:
        widenings = self._widenings()
        if not widenings:
            raise ReplyError("no range of the search space is to be widened")
        space = self._base().space
        for widening in widenings:
            space = add_value(space, widening.parameter, widening.value, beside=widening.beside)
        return AgentAnswer(self._base().template, space)

    def repair(self, problem: str) -> AgentAnswer:
        raise ReplyError(
            f"the agent `literal` cannot repair anything; what was wrong: {problem}",
            remedy="--agent openai or --agent files can",
        )

    def _base(self) -> BriefedCandidate:
        if self._briefing.base is None:
            raise AgentError(
                "the agent `literal` cannot choose the candidate to build on",
                remedy="choose it with --policy greedy or --policy mcts",
            )
        return self._briefing.member(self._briefing.base)

    def _widenings(self) -> tuple[Widening, ...]:
        base = self._base()
        space = DeclaredSpace.of(base.space)
        tried = [DeclaredSpace.of(member.space) for member in self._relatives(base)]
        widenings: dict[tuple[str, int], Widening] = {}
        for finding in self._briefing.findings:
            widening = _widening(space, finding) if finding.topic == TOPIC else None
            if widening is None:
                continue
            others = (space.parameter(widening.parameter) for space in tried)
            if not any(other and widening.value in other.values for other in others):
                widenings.setdefault((widening.parameter, widening.value), widening)
        return tuple(widenings.values())

    def _relatives(self, base: BriefedCandidate) -> Iterator[BriefedCandidate]:
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


def _widening(space: DeclaredSpace, finding: Finding) -> Widening | None:
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
    # The extent of a launch's block, alone in one dimension.
    blocks = [[str(extent) for extent in launch.block] for launch in space.model.launch]
    value = next_value(values, end, threads=[parameter.name] in blocks)
    if value is None or not makes_sense(space, parameter.name, value):
        return None
    return Widening(parameter.name, value, end, finding.text)
