"""What a model's reply says: a plan, or a template and its space; nothing of it is repaired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tuner.agent.base import Answer, Briefing, Expectation, Idea
from tuner.agent.elisions import require_whole
from tuner.agent.fences import Block, find_blocks
from tuner.agent.json_text import find_objects
from tuner.errors import ReplyError
from tuner.profiler.base import METRICS

KNOWN_METRICS = ("time_us", *METRICS)
# What a block's fence may say that it holds.
WORDS = {
    "template": ("cuda", "cu", "cpp", "c++", "jinja"),
    "space": ("yaml", "yml"),
}
# A plan that predicts more does not say what it is about.
MOST_EXPECTATIONS = 12

# Models that reason in their text put it before the reply.
_REASONING_ENDS = "</think>"
_Text = Annotated[str, Field(min_length=1, max_length=20_000)]


class ExpectationModel(BaseModel):
    """One prediction of a plan."""

    model_config = ConfigDict(extra="forbid", strict=True)

    metric: str
    factor: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
    workload: str | None = None


class PlanModel(BaseModel):
    """A plan as a model writes it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    base: str | None = None
    reference: str | None = None
    hypothesis: _Text
    change: _Text
    expectations: Annotated[
        list[ExpectationModel], Field(min_length=1, max_length=MOST_EXPECTATIONS)
    ]


def plan_schema(briefing: Briefing) -> dict[str, Any]:
    """Write the plan's JSON schema in the subset that strict structured output accepts.

    There every key is required; what may be left out is null.
    """
    names = [member.name for member in briefing.population]
    expectation = {
        "metric": {"type": "string", "enum": list(KNOWN_METRICS)},
        "factor": {"type": "number"},
        "workload": {"type": ["string", "null"]},
    }
    if briefing.base is None:
        base: dict[str, Any] = {"type": "string", "enum": names}
    else:
        base = {"type": ["string", "null"], "enum": [briefing.base, None]}
    return _closed(
        {
            "base": base,
            "reference": {"type": ["string", "null"], "enum": [*names, None]},
            "hypothesis": {"type": "string"},
            "change": {"type": "string"},
            "expectations": {"type": "array", "items": _closed(expectation)},
        }
    )


def read_plan(text: str, briefing: Briefing) -> Idea:
    """Read the plan in a reply; raise `ReplyError` that says exactly what is wrong with it."""
    try:
        plan = PlanModel.model_validate(_plan_object(text))
    except ValidationError as error:
        raise ReplyError(f"the plan is not as asked: {_mistakes(error)}") from error
    return Idea(
        base=_base(plan.base, briefing),
        hypothesis=plan.hypothesis,
        change=plan.change,
        expectations=tuple(
            Expectation(_metric(one.metric, n), one.factor, one.workload or "")
            for n, one in enumerate(plan.expectations)
        ),
        reference=_member(plan.reference, "reference", briefing) if plan.reference else "",
    )


def read_answer(text: str) -> Answer:
    """Read the template and the space in a reply; raise `ReplyError` for what cannot be both."""
    blocks = find_blocks(text, _after_reasoning(text))
    unnamed = [str(block.line) for block in blocks if not block.word]
    if unnamed:
        raise ReplyError(
            f"the fence at line {unnamed[0]} of the reply does not say what it holds; "
            "write ```cuda or ```yaml"
        )
    return Answer(template=_only(blocks, "template"), space=_only(blocks, "space"))


def _only(blocks: Sequence[Block], kind: str) -> str:
    own = [block for block in blocks if block.word in WORDS[kind]]
    fence = f"```{WORDS[kind][0]}"
    if not own:
        others = ", ".join(f"```{block.word}" for block in blocks) or "no block at all"
        raise ReplyError(f"the reply has no {kind}, a {fence} block; it has {others}")
    if len(own) > 1:
        lines = ", ".join(str(block.line) for block in own)
        raise ReplyError(
            f"the reply has {len(own)} blocks that may be the {kind}, at its lines {lines}; "
            f"write one whole {kind} in one {fence} block"
        )
    if not own[0].text.strip():
        raise ReplyError(f"the {kind} is an empty block, at line {own[0].line} of the reply")
    require_whole(own[0].text, kind)
    return own[0].text


def _plan_object(text: str) -> dict[str, Any]:
    found = find_objects(text, _after_reasoning(text))
    plans = [one for one in found.objects if one.keys() & PlanModel.model_fields.keys()]
    if len(plans) > 1:
        raise ReplyError(f"the reply holds {len(plans)} plans; write one JSON object")
    if plans:
        return plans[0]
    if found.mistakes:
        raise ReplyError(found.mistakes[0])
    if found.objects:
        return found.objects[0]
    raise ReplyError("the reply holds no JSON object; write the plan as one")


def _base(named: str | None, briefing: Briefing) -> str:
    if briefing.base is None:
        if not named:
            raise ReplyError(f"the plan names no `base`; candidates: {_population(briefing)}")
        return _member(named, "base", briefing)
    if named and named != briefing.base:
        raise ReplyError(f"`base` is {named!r}; this round builds on {briefing.base!r}")
    return briefing.base


def _member(name: str, key: str, briefing: Briefing) -> str:
    if name not in {member.name for member in briefing.population}:
        raise ReplyError(
            f"`{key}` is {name!r}, which is no candidate; candidates: {_population(briefing)}"
        )
    return name


def _population(briefing: Briefing) -> str:
    return ", ".join(member.name for member in briefing.population) or "none"


def _metric(name: str, number: int) -> str:
    if name not in KNOWN_METRICS:
        known = ", ".join(KNOWN_METRICS)
        raise ReplyError(f"`expectations[{number}].metric` is {name!r}; known: {known}")
    return name


def _mistakes(error: ValidationError) -> str:
    return "; ".join(
        _mistake(_key(mistake["loc"]), mistake["type"], mistake["msg"])
        for mistake in error.errors(include_url=False)
    )


def _mistake(key: str, kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return f"unknown key `{key}`"
    if kind == "missing":
        return f"the key `{key}` is missing"
    return f"`{key}`: {message}"


def _key(location: Sequence[int | str]) -> str:
    return "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in location).removeprefix(".")


def _after_reasoning(text: str) -> int:
    end = text.rfind(_REASONING_ENDS)
    return 0 if end < 0 else end + len(_REASONING_ENDS)


def _closed(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
