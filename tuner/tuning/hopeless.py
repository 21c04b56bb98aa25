"""Values with which nothing works: what one run has seen of them is enough to try no more.

A draft offers what a source may hold: where line 24 loads a `uint2`, no other width works.
"""

from __future__ import annotations

from collections import defaultdict

from tuner.model.config import Config, format_value
from tuner.model.expressions import Value
from tuner.model.trial import BROKEN, LEFT_OUT, Status, Trial

# So many configs with a value have to fail in the same way. Of a value that fails in half of its
# configs, and works in the others, 1 in 256 would be given up.
ENOUGH_FAILED = 8
_REASON_LENGTH = 120


class Hopeless:
    """Notice values with which every config has failed alike, whatever else it had.

    Where all that can be tried is asked for (`tries_all`) none is given up.
    """

    def __init__(self, *, tries_all: bool = False) -> None:
        self._tries_all = tries_all
        self._failed: defaultdict[tuple[str, Value], list[Trial]] = defaultdict(list)
        self._worked: set[tuple[str, Value]] = set()

    def note(self, trial: Trial) -> None:
        """Learn from a finished trial of any workload."""
        if self._tries_all:
            return
        if trial.status in BROKEN:
            for pair in trial.config.items_:
                self._failed[pair].append(trial)
        elif trial.status is Status.CORRECT:
            self._worked.update(trial.config.items_)

    def why_not(self, config: Config) -> str:
        """Say why a config is not worth trying; "" where it may work."""
        for name, value in config.items_:
            failed = self.failed_by(name, value)
            if len(failed) >= ENOUGH_FAILED and len({trial.status for trial in failed}) == 1:
                cause = failed[0].reason.strip().partition("\n")[0][:_REASON_LENGTH]
                return (
                    f"{LEFT_OUT}{len(failed)} trials with {name} {format_value(value)} failed "
                    f"alike, and none worked: {cause}"
                )
        return ""

    def failed_by(self, name: str, value: Value) -> list[Trial]:
        """List the trials that failed by a value alone: all else that they had has worked."""
        mine, worked = (name, value), self._worked
        failed = [] if mine in worked else self._failed.get(mine, [])
        return [t for t in failed if all(one == mine or one in worked for one in t.config.items_)]
