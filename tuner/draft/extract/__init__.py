"""A kernel out of production sources: it and what it needs, as one unit that NVRTC compiles."""

from __future__ import annotations

from tuner.draft.extract.extraction import Extraction, extract, failure
from tuner.draft.extract.reading import is_plain, parsed_include
from tuner.draft.extract.unit import relocated

__all__ = [
    "Extraction",
    "extract",
    "failure",
    "is_plain",
    "parsed_include",
    "relocated",
]
