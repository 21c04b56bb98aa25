"""Find the JSON objects in a text that a model wrote: alone, in a fence or with prose around."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tuner.errors import ReplyError

# Prose about C++ has some; each costs a try.
MOST_BRACES = 1000

# A brace in prose is no attempt at JSON.
_BEGINS = re.compile(r'\{\s*("|\})')


@dataclass(frozen=True, slots=True)
class Found:
    """What a text holds: its outermost JSON objects, and what was wrong with what begins as one."""

    objects: tuple[dict[str, Any], ...]
    mistakes: tuple[str, ...]


def find_objects(text: str, start: int = 0) -> Found:
    """Find the objects from `start` on.

    Raises `ReplyError` for what readers of JSON disagree about: repeated keys, NaN, infinities.
    """
    decoder = json.JSONDecoder(object_pairs_hook=_unrepeated, parse_constant=_refused)
    objects: list[dict[str, Any]] = []
    mistakes: list[str] = []
    position, failed = start, 0
    while (brace := text.find("{", position)) >= 0 and failed < MOST_BRACES:
        try:
            value, position = decoder.raw_decode(text, brace)
        except RecursionError as error:
            raise ReplyError("the JSON is nested too deep") from error
        except json.JSONDecodeError as error:
            position, failed = brace + 1, failed + 1
            if _BEGINS.match(text, brace):
                mistakes.append(_told(error))
        else:
            objects.append(value)
    return Found(tuple(objects), tuple(mistakes))


def _told(error: json.JSONDecodeError) -> str:
    near = error.doc[max(error.pos - 30, 0) : error.pos + 30]
    return f"not JSON: {error.msg}, line {error.lineno} of the reply, near {near!r}"


def _unrepeated(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise ReplyError(f"the key `{key}` is repeated in the JSON")
        result[key] = value
    return result


def _refused(name: str) -> object:
    raise ReplyError(f"{name} is not a number in JSON")
