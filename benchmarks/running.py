"""Runs of `tune` that a benchmark reads the result of, or whose device it uses itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.app.open import OpenRun
    from tuner.tuning.evaluator import Evaluator


def tuned(*words: str) -> dict[str, Any]:
    """Run `tune` in a process of its own, without a store; give its JSON object."""
    done = subprocess.run(
        [sys.executable, "-m", "tuner", *words, "--json"],
        check=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "TUNE_STORE": "none"},
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@contextmanager
def ranking(kernel: Path, settings: Mapping[str, Any]) -> Iterator[tuple[OpenRun, Evaluator]]:
    """Open a run that searches nothing, on a device that ranks, with what makes its programs."""
    from tuner.app.open import open_run
    from tuner.app.plan import RunOptions
    from tuner.tuning.evaluator import evaluator_of

    asked: Any = settings
    with ExitStack() as stack:
        session = Path(stack.enter_context(TemporaryDirectory()), "session")
        options = RunOptions(session=session, may_run=lambda *_: True)
        run = open_run(stack, kernel, asked, options)
        assert "rank" in run.device.capabilities
        yield run, evaluator_of(run.plan, run.compiler, run.device)
