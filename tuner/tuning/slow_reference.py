"""A reference that takes long: what is said of it, with what is quicker where its text tells."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from tuner.model.kernel import Workload
from tuner.process.files import read_text

# What the verifier's process is asked for, as `tuner.process.tally` has it.
REFERENCE = "tune-verifier/compute_reference"
# Seconds from which on somebody waits for it.
LONG_S = 3.0
_QUICKER = {
    r"\badd\.at\(": "np.bincount instead of np.add.at",
    r"\b(?:maximum|minimum|logical_or)\.at\(": "a sort with .reduceat instead of .at",
    r"\bvectorize\(": "arithmetic on whole arrays instead of np.vectorize",
    r"\bapply_along_axis\(": "an axis= argument instead of np.apply_along_axis",
    r"\bfromfunction\(": "arithmetic on np.arange instead of np.fromfunction",
    r"\.accumulate\(": "a function that CuPy has, instead of .accumulate",
}


def describe_slow(reference: Path, workload: Workload, seconds: float) -> str:
    """Say how long a reference took, and what would be faster than a call in its text."""
    text = ""
    with suppress(OSError, ValueError):  # it has run, and may have been moved since
        text = re.sub(r"#.*", "", read_text(reference))
    found = [quicker for slow, quicker in _QUICKER.items() if re.search(slow, text)]
    faster = f"; {found[0]} would be faster" if found else ""
    return f"the reference takes {seconds:.0f} s on {workload}{faster}"
