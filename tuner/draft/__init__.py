"""Drafts for a kernel that has no search space yet: its YAML, its template, its reference."""

from __future__ import annotations

from tuner.draft.blanks import blanks, reference_blanks, require_filled
from tuner.draft.drafting import Draft, draft
from tuner.draft.files import Blank, Drafted, draft_files, restore_template
from tuner.draft.marks import BLANK, MARK

__all__ = [
    "BLANK",
    "MARK",
    "Blank",
    "Draft",
    "Drafted",
    "blanks",
    "draft",
    "draft_files",
    "reference_blanks",
    "require_filled",
    "restore_template",
]
