"""The seam between the loop and a search method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tuner.space import Config
from tuner.trial import Trial


class Searcher(Protocol):
    """Propose valid configs and learn from their trials.

    Life cycle: `ask` and `tell` alternate until `ask` returns nothing. Every config is proposed
    at most once. For a seed, the same tells give the same asks: a session resumes by replaying
    them. Each config asked is told once, in the order of asking; several may be outstanding.
    """

    def ask(self, count: int) -> Sequence[Config]:
        """Propose up to `count` configs never proposed before; none when the space is exhausted."""
        ...

    def tell(self, trial: Trial) -> None:
        """Learn from a finished trial, failed ones included."""
        ...
