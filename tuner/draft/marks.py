"""How a draft marks what it leaves to a person."""

from __future__ import annotations

BLANK = "FILL_IN"
MARK = "# FILL IN:"
