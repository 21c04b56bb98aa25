"""What a run is asked to do: settings as they are given, and the config that is made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from tuner.model.energy import Objective
from tuner.model.kernel import Workload

AUTO, LITERAL, OPENAI, FILES = "auto", "literal", "openai", "files"
# The client of `tune mcp`: no option names it.
MCP = "mcp"
AGENTS = (AUTO, LITERAL, OPENAI, FILES)
MCTS, GREEDY, LLM = "mcts", "greedy", "llm"
POLICIES = (MCTS, GREEDY, LLM)
# With fewer rounds a tree search loses to building on the best: it has no time to be wrong and
# come back (tests/unit/agent/test_policies.py simulates both).
MCTS_ROUNDS = 16
# Without a number, an agent that can think gets so many rounds.
DEFAULT_ROUNDS = 4
SEARCHERS = ("auto", "exhaustive", "random", "optuna", "classifier")
STRATEGIES = "kernel_tuner:"
# How much slower than its own best a workload may be served, for the sake of fewer variants.
VARIANTS_WITHIN = 0.02


class RunSettings(TypedDict, total=False):
    """The settings of a run as somebody gives them; `RunConfig` says what each means.

    `workloads` are texts such as `T=1024,D=4096`. `peers` is True for all that the reference names.
    """

    space: Path | str
    template: Path | str
    device: str
    searcher: str
    trials: int | None
    time_s: float | None
    seed: int
    workloads: Sequence[str]
    operators: Mapping[str, str]
    objective: Objective
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """All that decides what a run does; a session keeps it, and a resumed run compares with it.

    `trials` is per workload and candidate, `time_s` for the whole run; None where there is no such
    bound. `rounds` is how often `agent` may write another candidate, and `policy` chooses the one
    that it builds on. `max_tokens`, `max_cost` and `prices` bound what a model may spend,
    `exchange` is the folder of the agent `files`, and `sources` are folders an agent may read.
    `objective` is what the winners are chosen by; the search itself goes by time. The set of
    variants is the smallest within `variants_within` of each best, or the best `max_variants`.
    `peers` names what the finals compare with besides the baseline. `surveyed` configs are measured
    on each workload whatever the search tries.
    """

    space: Path
    template: Path
    workloads: tuple[Workload, ...]
    operators: Mapping[str, str] = field(default_factory=dict)
    device: str = "auto"
    searcher: str = "auto"
    trials: int | None = None
    time_s: float | None = None
    seed: int = 0
    objective: Objective = "time"
    variants_within: float = VARIANTS_WITHIN
    max_variants: int | None = None
    peers: tuple[str, ...] = ()
    agent: str = LITERAL
    model: str = ""
    rounds: int = 0
    policy: str = GREEDY
    max_tokens: int | None = None
    max_cost: float | None = None
    prices: Path | None = None
    exchange: Path | None = None
    sources: tuple[Path, ...] = ()
    finalists: int = 5
    comparison_rounds: int = 40
    surveyed: int | None = None
