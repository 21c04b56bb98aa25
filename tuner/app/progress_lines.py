"""How far a run is, in lines of JSON: written by the run, read by whoever started it."""

from __future__ import annotations

import os
import time

from pydantic import TypeAdapter, ValidationError

from tuner.model.errors import InputError
from tuner.model.progress import Phase, Progress, RunProgress
from tuner.model.statistics import geometric_mean

# The number of an open file descriptor that a run writes its lines to.
VARIABLE = "TUNE_PROGRESS_FD"
# A recording answers hundreds of trials a second; nobody looks that often.
EVERY_S = 0.2


_LINES = TypeAdapter(RunProgress)


def line_of(progress: Progress) -> bytes:
    """Write a snapshot as one line."""
    speedups = [workload.speedup for workload in progress.workloads if workload.speedup is not None]
    run_progress = RunProgress(
        kernel=progress.kernel,
        device=progress.device,
        phase=progress.phase,
        trials=sum(workload.done for workload in progress.workloads),
        budget=sum(workload.budget for workload in progress.workloads),
        seconds=round(progress.seconds, 3),
        speedup=round(geometric_mean(speedups), 4) if speedups else None,
        remaining_s=progress.remaining_s,
        workload=progress.current.key if progress.current else None,
    )
    return _LINES.dump_json(run_progress) + b"\n"


def read_line(line: bytes) -> RunProgress | None:
    """Read a line; None for one that a killed run has not finished."""
    try:
        return _LINES.validate_json(line)
    except ValidationError:
        return None


class PhaseThrottle:
    """Let the first snapshot of each phase pass, and of the others one every `EVERY_S`."""

    def __init__(self) -> None:
        self._phase: Phase | None = None
        self._passed_s = 0.0

    def lets_pass(self, progress: Progress) -> bool:
        now_s = time.monotonic()
        if progress.phase == self._phase and now_s - self._passed_s < EVERY_S:
            return False
        self._phase, self._passed_s = progress.phase, now_s
        return True


class ProgressWriter:
    """A listener that writes its lines to a descriptor: at each new phase, else now and then."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._throttle = descriptor, PhaseThrottle()

    def update(self, progress: Progress) -> None:
        """Write a line where one is due; stop the run, resumably, where nobody reads any more."""
        if not self._throttle.lets_pass(progress):
            return
        try:
            os.write(self._descriptor, line_of(progress))
        except BrokenPipeError:
            # Who started it has died: without this the GPU would stay taken for hours.
            raise KeyboardInterrupt from None
        except OSError:
            pass  # a full disk, say: the run is worth more than a line about it


def progress_writer() -> ProgressWriter | None:
    """Make the listener that the environment asks for; raise `InputError` where it cannot be."""
    stated = os.environ.get(VARIABLE)
    if not stated:
        return None
    try:
        descriptor = int(stated)
        os.write(descriptor, b"")
        os.set_inheritable(descriptor, False)
    except (ValueError, OverflowError, OSError) as error:
        raise InputError(
            f"{VARIABLE} is {stated!r}, which is no file descriptor that is open for writing",
            remedy=f"unset it, or open one: `{VARIABLE}=3 tune kernel.cu 3>progress.jsonl`",
        ) from error
    return ProgressWriter(descriptor)
