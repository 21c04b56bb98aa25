#!/usr/bin/env python3
"""Run one fuzz target under atheris: `fuzz.py TARGET CORPUS... [libFuzzer options]`."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

with atheris.instrument_imports(include=["tuner", "jinja2", "ruamel"]):
    import fuzz_targets


def main() -> None:
    """Fuzz until the options say to stop, or until the target fails."""
    target = fuzz_targets.TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
