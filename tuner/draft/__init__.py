"""Drafts for a kernel that has no search space yet: its YAML, its template, its reference."""

from __future__ import annotations

from tuner.draft.drafting import (
    Asked,
    Draft,
    draft,
    draft_source,
    require_one,
    restore_template,
    write_draft,
)
from tuner.draft.space import Drafted, blanks, require_filled

__all__ = [
    "Asked",
    "Draft",
    "Drafted",
    "blanks",
    "draft",
    "draft_source",
    "require_filled",
    "require_one",
    "restore_template",
    "write_draft",
]
