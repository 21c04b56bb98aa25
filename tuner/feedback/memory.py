"""What was tried on every branch, and what came of it: so that no round repeats another."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.agent.base import Idea
from tuner.feedback.outcome import Outcome, sentence
from tuner.feedback.wording import one_line, times

# An entry has three lines of at most so many characters.
LINE = 220
MOST_ENTRIES = 24
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round that ended.

    `problems` say why each answer was refused, in order. `candidate` is the one that was made,
    None where every answer was refused. `note` tells of a round that ended otherwise.
    """

    number: int
    base: str
    idea: Idea | None = None
    candidate: str | None = None
    problems: tuple[str, ...] = ()
    outcome: Outcome | None = None
    note: str = ""

    @property
    def failed(self) -> bool:
        """Whether no candidate came of it that ran correctly."""
        return self.candidate is None or self.outcome is None or self.outcome.speedup is None


def memory_text(rounds: Sequence[RoundRecord], most: int = MOST_ENTRIES) -> str:
    """Tell what was tried, the newest first, by the candidate that it was built on.

    Failures of one base that ended alike are told once, by the newest, and counted; from `most`
    entries on, the older ones are only counted.
    """
    if not rounds:
        return "Nothing was tried before this round."
    newest = sorted(rounds, key=lambda one: -one.number)
    entries = _merged(newest)
    kept, cut = entries[:most], entries[most:]
    parts: list[str] = []
    for base in dict.fromkeys(one[0].base for one in kept):
        own = [entry for entry in kept if entry[0].base == base]
        parts.append("\n".join([f"Built on {base}:", *(_entry(entry) for entry in own)]))
    if cut:
        parts.append(_counted([one for entry in cut for one in entry]))
    return "\n\n".join(parts)


def _merged(newest: Sequence[RoundRecord]) -> list[list[RoundRecord]]:
    """Put failures of one base and kind together, at the place of the newest."""
    entries: dict[tuple[object, ...], list[RoundRecord]] = {}
    for one in newest:
        key = (one.base, _kind(one)) if one.failed else (one.number,)
        entries.setdefault(key, []).append(one)
    return list(entries.values())


def _kind(one: RoundRecord) -> str:
    return _NUMBER.sub("#", one_line(_why(one), 80))


def _why(one: RoundRecord) -> str:
    return one.problems[-1] if one.candidate is None and one.problems else one.note


def _entry(same: Sequence[RoundRecord]) -> str:
    first, *older = same
    tried = first.idea.change or first.idea.hypothesis if first.idea else "no plan"
    made = f" -> {first.candidate}" if first.candidate else " failed"
    lines = [one_line(f"- round {first.number}{made}: {tried}", LINE)]
    lines.append("  " + one_line(_result(first), LINE))
    if older:
        numbers = ", ".join(str(one.number) for one in older[:8])
        what = [one.idea.change for one in older if one.idea and one.idea.change != tried]
        also = f" (tried: {'; '.join(dict.fromkeys(what))})" if what else ""
        said = f"{len(older)} earlier rounds" if len(older) > 1 else "1 earlier round"
        lines.append("  " + one_line(f"{said} ended alike: {numbers}{also}", LINE))
    elif first.outcome is not None and first.outcome.moved:
        lines.append("  " + one_line("; ".join(map(sentence, first.outcome.moved)), LINE))
    return "\n".join(lines)


def _result(one: RoundRecord) -> str:
    found = one.outcome
    if one.candidate is not None and found is not None and found.speedup is not None:
        over = f"{times(found.over_base)} as fast as its base, " if found.over_base else ""
        refused = f"; {_answers(len(one.problems))} refused before" if one.problems else ""
        note = f"; {one.note}" if one.note else ""
        return f"{over}{times(found.speedup)} as fast as the baseline{refused}{note}"
    if one.candidate is not None:
        return f"ran, and no config was correct{f': {one.note}' if one.note else ''}"
    if one.problems:
        last = f"{_answers(len(one.problems))} refused, the last for: {one.problems[-1]}"
        return f"{last}; {one.note}" if one.note else last
    return one.note or "ended without an answer"


def _answers(count: int) -> str:
    return "1 answer" if count == 1 else f"{count} answers"


def _counted(cut: Sequence[RoundRecord]) -> str:
    speedups = [one.outcome.speedup for one in cut if one.outcome and one.outcome.speedup]
    best = f", the best of them {times(max(speedups))} as fast as the baseline" if speedups else ""
    failed = sum(one.failed for one in cut)
    return f"[left out: {len(cut)} older rounds, {failed} of them failed{best}]"
