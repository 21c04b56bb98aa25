"""What the tools take: their arguments, checked, and the limits of a round."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tuner.model.errors import InputError
from tuner.model.expressions import Value


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """The most of everything; `round_` is for all calls of a round, the others for one call.

    No program is started and no file is opened once `call_s` is over. What runs by then is ended
    by the limits of the compiler, the device and the template, each of them in seconds.
    """

    round_calls: int = 32
    round_s: float = 900.0
    round_configs: int = 64
    call_s: float = 60.0
    configs: int = 16
    # Under `agent.dialogue.MOST_TOOL_CHARS`, so that what is cut off says how to get the rest.
    characters: int = 16_000
    matches: int = 40
    line_characters: int = 240
    file_bytes: int = 2 << 20
    template_characters: int = 400_000
    space_characters: int = 100_000


class ToolBudget:
    """Count a round's tool calls and time; `calls` are those that an interrupted run made of it."""

    def __init__(self, limits: ToolLimits, calls: int = 0) -> None:
        self._limits = limits
        self._seconds = 0.0
        self.calls = calls
        self.configs = limits.round_configs

    def refusal(self) -> str | None:
        """Say what is used up, None where another call may be made."""
        if self.calls >= self._limits.round_calls:
            return f"the {self._limits.round_calls} tool calls of this round are used up"
        if self._seconds >= self._limits.round_s:
            return f"the {self._limits.round_s:g} s that tools may take in this round are used up"
        return None

    @contextmanager
    def call(self) -> Iterator[float]:
        """Count a call and its time; gives its deadline, by `time.monotonic`."""
        started_s = time.monotonic()
        self.calls += 1
        try:
            yield started_s + min(self._limits.call_s, self._limits.round_s - self._seconds)
        finally:
            self._seconds += time.monotonic() - started_s


def cut_text(text: str, most: int, rest: str) -> str:
    """Keep a text's first `most` characters, whole lines if possible, and say what was cut.

    `rest` says how to see what is left out.
    """
    if len(text) <= most:
        return text
    end = text.rfind("\n", 0, most)
    kept = text[: end if end > 0 else most]
    return f"{kept}\n[cut: {len(text) - len(kept)} of {len(text)} characters left out; {rest}]"


def shorten_line(line: str, most: int) -> str:
    if len(line) <= most:
        return line
    return f"{line[:most]}... [{len(line) - most} more characters]"


# As long as a workload with a dozen axes.
MOST_NAME = 400
MOST_CONFIG = 100
MOST_PROBLEMS = 10


_FIRST_LINE = Field(1, ge=1, description="First line to show.")
_LAST_LINE = Field(None, ge=1, description="Last line to show. Default: the last.")


class ToolArguments(BaseModel):
    """What any tool takes; anything else is refused, and texts aren't taken for numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class DraftArguments(ToolArguments):
    """A candidate, or a draft that takes from it what it doesn't give."""

    candidate: str = Field(
        "",
        max_length=MOST_NAME,
        description="Name of the candidate to work on. Default: the base of this round.",
    )
    template: str = Field(
        "",
        description="A whole template to try instead of the candidate's. Default: the candidate's.",
    )
    space: str = Field(
        "",
        description="A whole search space in YAML to try instead of the candidate's: parameters, "
        "derived, constraints, prune, default, launch. Default: the candidate's.",
    )


class WorkloadArguments(DraftArguments):
    workload: str = Field(
        "",
        max_length=MOST_NAME,
        description="Problem size, such as `T=1,E=256`. Default: the smallest tuned workload.",
    )


class ChoiceArguments(WorkloadArguments):
    config: dict[str, Value] = Field(
        default_factory=dict,
        max_length=MOST_CONFIG,
        description="Values of parameters, such as {block: 256}; those not given are taken from "
        "the default config of the space.",
    )


class RenderArguments(ChoiceArguments):
    first_line: int = _FIRST_LINE
    last_line: int | None = _LAST_LINE


class SearchArguments(WorkloadArguments):
    configs: int = Field(8, ge=1, description="How many configs to try.")
    searcher: str = Field(
        "optuna",
        pattern="^(optuna|random)$",
        description="`optuna` learns from what was tried, `random` draws.",
    )


class ReadArguments(ToolArguments):
    path: str = Field(
        min_length=1,
        max_length=4000,
        description="`baseline`; `template` or `space` of a candidate; or a file or folder under "
        "one of the source folders, such as `cuda/cuda_bf16.h`. `.` lists the source folders.",
    )
    candidate: str = Field(
        "",
        max_length=MOST_NAME,
        description="Whose template or space. Default: the base of this round.",
    )
    first_line: int = _FIRST_LINE
    last_line: int | None = _LAST_LINE


class SearchSourceArguments(ToolArguments):
    text: str = Field(
        min_length=2,
        max_length=200,
        description="Text to find within a line, taken literally: no pattern.",
    )
    folder: str = Field(
        ".",
        max_length=4000,
        description="Where to look, such as `cuda` or `cuda/cccl/cub`. Default: everywhere.",
    )
    whole_word: bool = Field(False, description="Find it as a whole word only.")
    ignore_case: bool = Field(False, description="Take small and capital letters for equal.")
    most: int = Field(20, ge=1, description="Most results to list.")


class NotesArguments(ToolArguments):
    name: str = Field(
        "", max_length=MOST_NAME, description="Name of the note. Default: list all notes."
    )


_Model = TypeVar("_Model", bound=ToolArguments)


def schema(model: type[ToolArguments]) -> Mapping[str, Any]:
    """Write the JSON schema of a tool's arguments, without what a model has no use for."""
    made = _plain(model.model_json_schema())
    return {
        "type": "object",
        "properties": made["properties"],
        "required": made.get("required", []),
        "additionalProperties": False,
    }


def _plain(value: Any) -> Any:
    """Leave out titles; what may be null may as well be left out."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {k: _plain(v) for k, v in value.items() if not (k == "title" and isinstance(v, str))}
    options = [one for one in kept.pop("anyOf", []) if one != {"type": "null"}]
    if len(options) == 1:
        kept |= options[0]
        kept.pop("default", None)
    elif options:
        kept["anyOf"] = options
    return kept


def check_arguments(model: type[_Model], name: str, arguments: Mapping[str, Any]) -> _Model:
    """Check a tool's arguments; null is as absent. Raises `InputError` with all mistakes."""
    given = {key: value for key, value in arguments.items() if value is not None}
    try:
        parsed = model.model_validate(given)
    except ValidationError as error:
        problems = {_where(one): _problem(one, model) for one in error.errors()}
        lines = "\n".join([*problems.values()][:MOST_PROBLEMS])
        raise InputError(f"wrong arguments of {name}:\n{lines}") from error
    for key, value in parsed.model_dump().items():
        parts = (
            [one for pair in value.items() for one in pair] if isinstance(value, dict) else [value]
        )
        text = "".join(part for part in parts if isinstance(part, str))
        if any("\ud800" <= one <= "\udfff" for one in text):
            raise InputError(f"wrong arguments of {name}:\n- {key}: half of a UTF-16 character")
    return parsed


def _where(error: Any) -> str:
    return ".".join(str(part) for part in error["loc"][:2])[:80]


def _problem(error: Any, model: type[ToolArguments]) -> str:
    where = _where(error)
    if error["type"] == "extra_forbidden":
        return f"- {where!r} is no argument; there are: {', '.join(model.model_fields)}"
    if error["type"] == "missing":
        return f"- {where} is missing"
    given = show_value(error["input"])
    if where.startswith("config."):
        return f"- {where!r}: a number, a text or a boolean is needed; found {given}"
    message = error["msg"][:1].lower() + error["msg"][1:]
    return f"- {where}: {message}; found {given}"


def show_value(value: object) -> str:
    """Write a value that may be anything, in a few words."""
    if isinstance(value, int) and value.bit_length() > 64:
        return "a number of over 64 bits"
    plain = value if isinstance(value, str | int | float | bool) else type(value).__name__
    text = repr(plain) if isinstance(value, str) else str(plain)
    return text if len(text) <= 80 else f"{text[:80]}..."
