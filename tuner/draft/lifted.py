"""The template of a draft: the source with its constants lifted out and its host code guarded."""

from __future__ import annotations

import re

from tuner.draft.proposals import Proposals
from tuner.source import Edit, SourceFile, apply_edits, host_edits

# what a template would read as its own syntax
_DELIMITER = re.compile(r"@\{|\}@|^[ \t]*//%|/\*%|%\*/|/\*#|#\*/", re.MULTILINE)


def lift(source: SourceFile, proposals: Proposals) -> str:
    """Write the source as a template; lines keep their numbers where blank lines allow it."""
    lifted = (edit for choice in proposals.choices for edit in choice.edits)
    escapes = (_spaced(match) for match in _DELIMITER.finditer(source.own_text))
    # where host code is apart already, none of it is left to guard
    guards = host_edits(source) if source.host_from is None else ()
    return apply_edits(source.own_text, [*guards, *proposals.edits, *lifted, *escapes])


def _spaced(match: re.Match[str]) -> Edit:
    # they occur in comments only, where a space changes nothing
    at = match.end() - 1
    return Edit(at, at, " ")
