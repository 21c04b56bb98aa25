"""The settings of a run as somebody gives them, and what some of them may be."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from tuner.model.energy import Objective

AUTO, LITERAL, OPENAI, FILES = "auto", "literal", "openai", "files"
# A device that begins so is a program of the user's, run as it stands behind it.
COMMAND = "command:"
# The client of `tune mcp`: no option names it.
MCP = "mcp"
AGENTS = (AUTO, LITERAL, OPENAI, FILES)
MCTS, GREEDY, LLM = "mcts", "greedy", "llm"
POLICIES = (MCTS, GREEDY, LLM)
# With fewer rounds a tree search loses to building on the best: it has no time to be wrong and
# come back (tests/unit/extensions/agents/test_tree.py simulates both).
MCTS_ROUNDS = 16
# Without a number, an agent that can think gets so many rounds.
DEFAULT_ROUNDS = 4
SEARCHERS = ("auto", "exhaustive", "random", "optuna", "classifier")
# How much slower than its own best a workload may be served, for the sake of fewer variants.
VARIANTS_WITHIN = 0.02
# The share of the best time below which looking on for it isn't worth a trial.
ENOUGH = 0.005
# Files for engines are used for months, and two tunings should write the same ones: their searches
# look on for less, in about twice the trials (docs/searching.md).
ENOUGH_OF_A_FLEET = 0.001
FINALISTS = 5
# Of finals, and of those of a search that looks on for less than `ENOUGH`: with 40 the interval of
# a layer of experts of 28 us is 0.6 % wide, which is more than what such a search looks for.
COMPARISON_ROUNDS = 40
CLOSE_COMPARISON_ROUNDS = 96
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")
_UNIT_SECONDS = (3600.0, 60.0, 1.0)


def duration_s(text: str) -> float:
    """Read a time such as `90s`, `5m` or `1h30m`; raise `ValueError` for anything else, and 0."""
    match = _DURATION.fullmatch(text.strip())
    total_s = 0.0
    if match is not None:
        parts = zip(match.groups(), _UNIT_SECONDS, strict=True)
        total_s = sum(float(number) * unit for number, unit in parts if number)
    if total_s <= 0:
        raise ValueError(f"{text!r} is not a time; write it as 90s, 5m or 1h30m")
    return total_s


class RunSettings(TypedDict, total=False):
    """The settings of a run as somebody gives them; `RunConfig` says what each means.

    `workloads` are texts such as `T=1024,D=4096`. `peers` is True for all that the reference names.
    """

    space: Path | str
    template: Path | str
    device: str
    searcher: str
    trials: int | None
    enough: float
    time_s: float | None
    seed: int
    workloads: Sequence[str]
    operators: Mapping[str, str]
    objective: Objective
    surroundings: str
    variants_within: float
    max_variants: int | None
    peers: bool | Sequence[str]
    agent: str
    model: str | None
    rounds: int | None
    policy: str | None
    max_tokens: int | None
    max_cost: float | None
    prices: Path | str | None
    exchange: Path | str | None
    sources: Sequence[Path | str]
    prune: bool
    keep_bits: bool
    gpus: str
