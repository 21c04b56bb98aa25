"""Threads of a warp take different paths, or have nothing to do."""

from __future__ import annotations

from tuner.findings import Finding
from tuner.profiler.base import Kind, Profile, Rule
from tuner.profiler.evidence import ACTIVE_THREADS, THREADS_PER_WARP, counter
from tuner.profiler.metrics import ISSUED

# Ours: a quarter of the lanes idle. Fewer are remainders of rows and guards.
FEWEST = 0.75


def find(profile: Profile) -> Finding | None:
    """Fire on counters alone, where under 24 of 32 threads are active on average."""
    active = counter(profile, ACTIVE_THREADS)
    if active is None or active >= FEWEST * THREADS_PER_WARP:
        return None
    issue = counter(profile, ISSUED)
    line = profile.line_of("branch")
    where = "" if line is None else f"; most branches are of line {line}"
    return Finding(
        topic="divergence",
        text=f"{active:.1f} of {THREADS_PER_WARP} threads of a warp are active on average "
        f"(counters{where}).",
        advice="Let all threads of a warp take the same path: give conditions to whole warps, "
        "select values rather than branch, and let no lane wait while another works alone.",
        value=round(active, 1),
        unit="threads",
        weight=(1.0 - active / THREADS_PER_WARP) * (0.5 if issue is None else issue / 100.0),
        line=line,
    )


RULE = Rule("divergence", frozenset(Kind) - {Kind.LAUNCH}, find)
