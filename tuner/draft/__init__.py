"""Drafts for a kernel that has no search space yet: its YAML, its template, its reference."""

from __future__ import annotations

from tuner.draft.drafting import (
    Asked,
    Draft,
    draft,
    draft_files,
    draft_source,
    require_one,
    restore_template,
)
from tuner.draft.space import Blank, Drafted, blanks, require_filled

__all__ = [
    "Asked",
    "Blank",
    "Draft",
    "Drafted",
    "blanks",
    "draft",
    "draft_files",
    "draft_source",
    "require_filled",
    "require_one",
    "restore_template",
]
