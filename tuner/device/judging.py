"""What every device with a judge does around it: fresh seeds, merged verdicts, its failures."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tuner.device.processes import ChildDiedError, ChildTimeoutError
from tuner.errors import WorkerError
from tuner.trial import Correctness


def fresh_seed() -> int:
    """Draw a seed for inputs that no candidate can know."""
    return secrets.randbits(62)


def merged(verdicts: Sequence[Correctness]) -> Correctness:
    """Put the verdicts of several fills, all passed, into one: the worst error of each output."""
    worst: dict[str, float] = {}
    for verdict in verdicts:
        for name, error in verdict.errors:
            worst[name] = max(error, worst.get(name, 0.0))
    fills = tuple(dict.fromkeys(fill for verdict in verdicts for fill in verdict.fills))
    return Correctness(True, fills, tuple(worst.items()))


@contextmanager
def judging() -> Iterator[None]:
    """Tell the judge's end from a candidate's: without it no verdict is possible any more."""
    try:
        yield
    except ChildTimeoutError as error:
        raise WorkerError(f"the process that judges results gave {error}") from error
    except ChildDiedError as error:
        raise WorkerError(
            f"the process that judges results ended (exit code {error})",
            remedy="it holds the inputs and the float64 reference of a workload: the system may "
            "have run out of memory",
        ) from error
