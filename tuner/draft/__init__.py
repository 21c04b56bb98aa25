"""Drafts for a kernel that has no search space yet: its YAML, its template, its reference."""

from __future__ import annotations

from tuner.draft.blanks import blanks, reference_blanks, require_filled
from tuner.draft.drafting import Draft, draft
from tuner.draft.files import Blank, Drafted, draft_files, restore_template
from tuner.draft.marks import BLANK, MARK
from tuner.draft.production import Asked, draft_source, require_one

__all__ = [
    "BLANK",
    "MARK",
    "Asked",
    "Blank",
    "Draft",
    "Drafted",
    "blanks",
    "draft",
    "draft_files",
    "draft_source",
    "reference_blanks",
    "require_filled",
    "require_one",
    "restore_template",
]
