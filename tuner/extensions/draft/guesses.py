"""How sure a guess is; and numbers that no launch states: a default, or what is usual."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tuner.source.syntax import number

# how far a guess goes, the surest first
SURE, LIKELY, GUESSED = CERTAINTIES = ("sure", "likely", "guessed")

_DEFAULT = (
    r"\b(?:float|double|bool|u?int\d*(?:_t)?|long|size_t)\s+(?:{names})"
    r"\s*=\s*([^,;(){{}}]+?)\s*[,)]"
)
_ENUM = (
    r"\benum\b\s*(?:class\s+|struct\s+)?(?:{name}\b)?\s*(?::\s*(\w+)\s*)?\{{([^{{}}]*)\}}\s*(\w*)"
)
FLOAT = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)[fF]?")
# what names say of numbers and types
NAMES = tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8"))
# whatever the name is: of two equal numbers a kernel could take either for the other
_ELSE = ("0.5", "0.75", "0.375", "0.625")


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the source says for a guess, and how sure that makes it."""

    certainty: str
    text: str


def stated_default(masked: str, names: tuple[str, ...]) -> tuple[str, int] | None:
    """Find `float eps = 1e-6` among a function's parameters; give the number and its offset."""
    wanted = "|".join(re.escape(name) for name in names if name.isidentifier())
    if not wanted:
        return None
    for match in re.finditer(_DEFAULT.format(names=wanted), masked):
        if match[1] in ("true", "false"):
            return match[1], match.start(1)
        if literal := FLOAT.fullmatch(match[1]):
            return literal[1], match.start(1)
    return None


# Which of several processes this is; of LoRA it is a size.
_PROCESS = re.compile(r"(?!.*(?:lora|low|kv|max|num|n)_)(?:.*_)?rank")


def usual(name: str, dtype: str, besides: Collection[str] = ()) -> str:
    """Give a number, by the name, of a kind that makes a mistake with it show.

    Where the name says nothing it is none of those `besides` which the kernel gets, if it can be.
    """
    if dtype == "bool":
        return "true"
    if "int" in dtype:
        return "0" if _PROCESS.fullmatch(name.lower()) else "1"
    known = usual_by_name(name)
    return known or next((value for value in _ELSE if value not in besides), _ELSE[0])


def usual_by_name(name: str) -> str | None:
    """Give the float that people take for what has such a name; None where they take any."""
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).strip("_").lower()
    return next((value for kind, value in NAMES["usual"] if re.fullmatch(kind, plain)), None)


def enumerators(masked: str, c_type: str, *, of_any_size: bool = False) -> dict[str, int] | None:
    """Map the names of an enumeration of 32 bits to their numbers; None where there is no such."""
    name = c_type.rsplit("::", 1)[-1]
    for match in re.finditer(_ENUM.format(name=re.escape(name)), masked):
        if name not in (match[3], *re.findall(r"\w+", match[0].partition("{")[0])):
            continue
        is_wide = match[1] in (None, "int", "int32_t", "uint32_t", "unsigned")
        if not (is_wide or of_any_size):
            return None
        found: dict[str, int] = {}
        following = 0
        for piece in match[2].split(","):
            own, _, stated = (text.strip() for text in piece.partition("="))
            value = number(stated) if stated else following
            if own and isinstance(value, int):
                found[own], following = int(value), int(value) + 1
        return found or None
    return None
