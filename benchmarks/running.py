"""Runs of `tune` that a benchmark reads the result of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


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
