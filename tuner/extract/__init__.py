"""A kernel out of production sources: it and what it needs, as one unit that NVRTC compiles."""

from __future__ import annotations

from tuner.extract.extraction import Extraction, extract
from tuner.extract.failures import failure
from tuner.extract.includes import is_plain, parsed_include
from tuner.extract.leftovers import LeftOut
from tuner.extract.unit import relocated

__all__ = [
    "Extraction",
    "LeftOut",
    "extract",
    "failure",
    "is_plain",
    "parsed_include",
    "relocated",
]
