"""Findings: what the search or a profile says of a candidate, with its number and its advice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# More are not read: an agent does worse with a table of counters than with none at all
# (KernelPro, arXiv 2606.26453, table 8).
MOST = 6


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth knowing of a candidate.

    `topic` names the rule that found it, `edge`. `text` is a sentence that states `value`, which
    is in `unit`; `advice` says what to change. `weight` from 0 to 1 says how much time may lie
    there. `line` is a line of the template, `parameter` what the advice is about, "" where it is
    about none.
    """

    topic: str
    text: str
    advice: str
    value: float
    unit: str = ""
    weight: float = 0.0
    line: int | None = None
    parameter: str = ""


def ranked(findings: Iterable[Finding], most: int = MOST) -> tuple[Finding, ...]:
    """Keep the weightiest findings, the weightiest first; equals stay in their order."""
    return tuple(sorted(findings, key=lambda finding: -finding.weight)[:most])
