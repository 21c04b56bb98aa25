"""What a model that writes templates is trained with: the speedup of its answer as a reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner.agent.base import Answer
from tuner.app.scoring import Effort, Scorer

__all__ = ["Effort", "GrpoReward", "reward"]


def reward(kernel: Path | str, template: str | Answer, effort: Effort | None = None) -> float:
    """Return the logarithm of the mean speedup that a template gives a kernel over its baseline.

    `kernel` is a `.cu` file or its search space, `template` a reply with a template and a search
    space in fenced blocks, or an `Answer`. `export.scale` says what a refused or a slow one gets. A
    bad template never raises; see `Scorer`, which costs less for many answers, for what does.
    """
    with Scorer(kernel, effort) as scorer:
        return scorer.score(template).reward


class GrpoReward:
    """A reward function for TRL's `GRPOTrainer`, for one kernel; close it when done.

    Equal answers are measured once. For rows whose column `kernel` names another kernel it gives
    None, so that several of these serve a data set of several kernels.
    """

    def __init__(self, kernel: Path | str, effort: Effort | None = None) -> None:
        self._scorer = Scorer(kernel, effort)
        self.kernel = self._scorer.kernel
        # What TRL calls it in its logs.
        self.__name__ = f"reward_of_{self.kernel}"
        self._known: dict[str, float] = {}

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        """Score every completion, a text or a list of messages."""
        kernels = columns.get("kernel") or [self.kernel] * len(completions)
        return [
            self._reward(_text(completion)) if kernel == self.kernel else None
            for completion, kernel in zip(completions, kernels, strict=True)
        ]

    def close(self) -> None:
        """End the processes."""
        self._scorer.close()

    def _reward(self, text: str) -> float:
        if text not in self._known:
            self._known[text] = self._scorer.score(text).reward
        return self._known[text]


def _text(completion: str | Sequence[Mapping[str, Any]]) -> str:
    """Take the last thing that the model said."""
    if isinstance(completion, str):
        return completion
    said = [message for message in completion if message["role"] == "assistant"]
    return said[-1].get("content") or "" if said else ""
