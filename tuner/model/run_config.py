"""What a run is asked to do, complete: the config that a session keeps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tuner.model.kernel import Workload
from tuner.model.settings import COMPARISON_ROUNDS, FINALISTS, GREEDY, LITERAL, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig(Settings):
    """All that decides what a run does; a session keeps it, and a resumed run compares with it.

    `trials` is per workload and candidate, `time_s` for the whole run; None where there is no such
    bound. A search ends where what is untried is thought to save less than `enough` of the best
    time. `rounds` is how often `agent` may write another candidate, and `policy` chooses the one
    that it builds on. Without `profile` it is told times alone. `max_tokens`, `max_cost` and
    `prices` bound what a model may spend, `exchange` is the folder of the agent `files`, and
    `sources` are folders an agent may read.
    `objective` is what the winners are chosen by; the search itself goes by time. The set of
    variants is the smallest within `variants_within` of each best, or the best `max_variants`, or
    the fewest that lose little in all.
    `peers` names what the finals compare with besides the baseline. `surveyed` configs are measured
    on each workload whatever the search tries. `surroundings` are those that times are measured in:
    `auto` for the file's own of each workload, `alone`, or the name of some. Without `prune` the
    search tries configs that the space's `prune` leaves out as slow. With `keep_bits` only configs
    whose outputs have the bits of the default config's may win, and with `invariant` those whose
    rows have the same bits in every batch. With `mutants` the first run of a
    space says how many broken versions of its baseline verification catches. `gpus` are those of
    several that share the workloads, "" for the one of `device`.
    """

    space: Path
    template: Path
    workloads: tuple[Workload, ...]
    peers: tuple[str, ...] = ()
    agent: str = LITERAL
    model: str = ""
    rounds: int = 0
    policy: str = GREEDY
    prices: Path | None = None
    exchange: Path | None = None
    sources: tuple[Path, ...] = ()
    finalists: int = FINALISTS
    comparison_rounds: int = COMPARISON_ROUNDS
    surveyed: int | None = None
