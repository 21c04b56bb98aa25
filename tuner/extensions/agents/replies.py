"""What a model's reply says: a plan, or a template and its space; nothing of it is repaired."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from tuner.analysis.base import METRICS
from tuner.extensions.agents.base import AgentAnswer, Briefing
from tuner.model.bounds import CONTROL
from tuner.model.errors import ReplyError
from tuner.session.events import Expectation, Idea

_FENCE = re.compile(r" {0,3}(`{3,})([^`]*)")


class _FencedBlock(NamedTuple):
    """One fenced block: the first word after its fence, its text, and the fence's line."""

    word: str
    text: str
    line: int


def _blocks_in(text: str) -> list[_FencedBlock]:
    # Not splitlines(): a form feed or a line separator in a source ends no line of it.
    start = _after_reasoning(text)
    lines = ("\n" * text.count("\n", 0, start) + text[start:]).split("\n")
    blocks: list[_FencedBlock] = []
    opened: tuple[str, str, int] | None = None  # its ticks, its word, its line
    for number, line in enumerate(lines, 1):
        fence = _FENCE.fullmatch(line.rstrip())
        if fence is None:
            continue
        ticks, info = fence[1], fence[2].strip()
        if opened is None:
            opened = ticks, info.partition(" ")[0].lower(), number
        elif info and len(ticks) == len(opened[0]):
            raise ReplyError(
                f"the block that starts at line {opened[2]} of the reply is not "
                f"closed before another starts at line {number}"
            )
        elif not info and len(ticks) >= len(opened[0]):
            content = "".join(f"{line}\n" for line in lines[opened[2] : number - 1])
            blocks.append(_FencedBlock(opened[1], content, opened[2]))
            opened = None
    if opened is not None:
        raise ReplyError(
            f"the block that starts at line {opened[2]} of the reply is not closed: "
            "the reply ends inside it"
        )
    return blocks


def repair_surrogates(text: str) -> str:
    """Join surrogate pairs and replace lone surrogates, which UTF-8 cannot hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# Prose about C++ has some; each costs a try.
MOST_BRACES = 1000

# A brace in prose is no attempt at JSON.
_BEGINS = re.compile(r'\{\s*("|\})')


def _plan_object(text: str) -> dict[str, Any]:
    """Find the plan among a text's outermost JSON objects.

    What readers of JSON disagree about is refused: repeated keys, NaN, infinities.
    """

    def refuse_number(name: str) -> object:
        raise ReplyError(f"{name} is not a number in JSON")

    decoder = json.JSONDecoder(
        object_pairs_hook=_require_distinct_keys, parse_constant=refuse_number
    )
    objects: list[dict[str, Any]] = []
    mistakes: list[str] = []
    position, failed = _after_reasoning(text), 0
    while (brace := text.find("{", position)) >= 0 and failed < MOST_BRACES:
        try:
            value, position = decoder.raw_decode(text, brace)
        except RecursionError as error:
            raise ReplyError("the JSON is nested too deep") from error
        except json.JSONDecodeError as error:
            position, failed = brace + 1, failed + 1
            if _BEGINS.match(text, brace):
                near = text[max(error.pos - 30, 0) : error.pos + 30]
                mistakes.append(
                    f"not JSON: {error.msg}, line {error.lineno} of the reply, near {near!r}"
                )
        else:
            objects.append(value)
    plans = [one for one in objects if one.keys() & PlanModel.model_fields.keys()]
    if len(plans) > 1:
        raise ReplyError(f"the reply holds {len(plans)} plans; write one JSON object")
    if plans:
        return plans[0]
    if mistakes:
        raise ReplyError(mistakes[0])
    if objects:
        return objects[0]
    raise ReplyError("the reply holds no JSON object; write the plan as one")


def _require_distinct_keys(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise ReplyError(f"the key `{key}` is repeated in the JSON")
        result[key] = value
    return result


_DOTS = r"(?:\.{3,}|…)"
_SAME = r"(?:unchanged|omitted|elided|identical|same|as (?:before|above|in the (?:base|original)))"
_REST = r"(?:rest|remainder|remaining|everything else)"
_CODE = r"(?:code|body|kernel|template|space|file|implementation|parameters|constraints)"
_OLD_CODE = rf"(?:existing|previous|original|unchanged) {_CODE}"

# Of a comment; a longer one would take the expressions below too long.
_LOOKED_AT = 300
_COMMENTS = {
    "template": re.compile(r"//(.*)|/\*(?P<block>.*?)(?:\*/|$)"),
    "space": re.compile(r"(?:^|\s)#(.*)"),
}
_COMMENTS["kernel"] = _COMMENTS["template"]
_ONLY_DOTS = re.compile(rf"[\s#%*]*{_DOTS}[\s#%*]*")
_SAYS_SO = re.compile(
    rf"^\W*{_DOTS}.*\b(?:{_SAME}|{_REST}|{_OLD_CODE})\b"
    rf"|^\W*(?:the )?(?:{_SAME}|{_REST}|{_OLD_CODE})\b.*{_DOTS}\W*$"
    rf"|\b{_REST}\b.*\b(?:unchanged|omitted|elided|identical|same as|as before|as above)\b"
    rf"|\b{_OLD_CODE}\b.*\b(?:here|goes)\b"
    rf"|\b{_CODE} (?:is |are |stays? |remains? )?(?:unchanged|omitted|elided)\b"
    r"|\b(?:omitted|elided) for brevity\b",
    re.IGNORECASE,
)


def require_whole(text: str, kind: str) -> None:
    """Raise `ReplyError` where a line stands for others.

    `kind` is `template`, `space` or `kernel`.
    """
    for number, line in enumerate(text.split("\n"), start=1):
        for comment in _COMMENTS[kind].finditer(line):
            said = next((group for group in comment.groups() if group is not None), "")[:_LOOKED_AT]
            if _ONLY_DOTS.fullmatch(said) or _SAYS_SO.search(said):
                break
        else:
            if not _ONLY_DOTS.fullmatch(line):
                continue
        raise ReplyError(
            f"line {number} of the {kind} stands for text that is left out: {line.strip()!r}; "
            f"write the whole {kind}"
        )


KNOWN_METRICS = ("time_us", *METRICS)
MEANINGS = [
    (name, f"{text}, in {unit}" if unit else text) for name, (unit, text) in METRICS.items()
]
# What a block's fence may say that it holds.
WORDS = {
    "template": ("cuda", "cu", "cpp", "c++", "jinja"),
    "space": ("yaml", "yml"),
}
WORDS["kernel"] = WORDS["template"]
# How much longer than its base's best an answer's default config may take and still be searched
# unasked. Ours: of seven templates of a real agent the search made none faster by over 7 %.
SLOWEST_DEFAULT = 1.25
# A plan that predicts more does not say what it is about.
MOST_EXPECTATIONS = 12

# Models that reason in their text put it before the reply.
_REASONING_ENDS = "</think>"


def _visible(text: str) -> str:
    if CONTROL.search(text):
        raise PydanticCustomError("control_character", "it has a control character")
    return text


_Text = Annotated[str, Field(min_length=1, max_length=20_000), AfterValidator(_visible)]
_Key = Annotated[str, Field(max_length=400), AfterValidator(_visible)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ExpectationModel(_Strict):
    metric: str
    factor: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
    workload: _Key | None = None


class PlanModel(_Strict):
    base: str | None = None
    reference: str | None = None
    hypothesis: _Text
    change: _Text
    expectations: Annotated[
        list[ExpectationModel], Field(min_length=1, max_length=MOST_EXPECTATIONS)
    ]
    insist: bool = False


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
    return _closed_object(
        {
            "base": base,
            "reference": {"type": ["string", "null"], "enum": [*names, None]},
            "hypothesis": {"type": "string"},
            "change": {"type": "string"},
            "expectations": {"type": "array", "items": _closed_object(expectation)},
            "insist": {"type": "boolean"},
        }
    )


def check_plan(text: str) -> PlanModel:
    """Read a plan whatever it builds on; raise `ReplyError` that says what is wrong with it."""
    try:
        plan = PlanModel.model_validate(_plan_object(text))
    except ValidationError as error:
        raise ReplyError(f"the plan is not as asked: {_mistakes(error)}") from error
    for number, expectation in enumerate(plan.expectations):
        if expectation.metric not in KNOWN_METRICS:
            known = ", ".join(KNOWN_METRICS)
            raise ReplyError(
                f"`expectations[{number}].metric` is {expectation.metric!r}; known: {known}"
            )
    return plan


def read_plan(text: str, briefing: Briefing) -> Idea:
    """Read the plan in a reply; raise `ReplyError` that says exactly what is wrong with it."""
    plan = check_plan(text)
    return Idea(
        base=_base(plan.base, briefing),
        hypothesis=plan.hypothesis,
        change=plan.change,
        expectations=tuple(
            Expectation(expectation.metric, expectation.factor, expectation.workload or "")
            for expectation in plan.expectations
        ),
        reference=_member(plan.reference, "reference", briefing) if plan.reference else "",
        insist=plan.insist,
    )


def read_answer(text: str) -> AgentAnswer:
    """Read the template and the space in a reply; raise `ReplyError` for what cannot be both."""
    blocks = _blocks_in(text)
    unnamed = [str(block.line) for block in blocks if not block.word]
    if unnamed:
        raise ReplyError(
            f"the fence at line {unnamed[0]} of the reply does not say what it holds; "
            "write ```cuda or ```yaml"
        )
    return AgentAnswer(template=_only(blocks, "template"), space=_only(blocks, "space"))


def read_kernel(text: str) -> str:
    """Read the CUDA source in a reply; raise `ReplyError` where it holds none, or several."""
    return _only(_blocks_in(text), "kernel")


def _only(blocks: Sequence[_FencedBlock], kind: str) -> str:
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


def _mistakes(error: ValidationError) -> str:
    told = []
    for one in error.errors(include_url=False):
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in one["loc"])
        key = "".join(steps).removeprefix(".")
        wording = {
            "extra_forbidden": f"unknown key `{key}`",
            "missing": f"the key `{key}` is missing",
        }
        told.append(wording.get(one["type"], f"`{key}`: {one['msg']}"))
    return "; ".join(told)


def _after_reasoning(text: str) -> int:
    end = text.rfind(_REASONING_ENDS)
    return 0 if end < 0 else end + len(_REASONING_ENDS)


def _closed_object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
