"""The section on the rounds: the picture's marks, the table's rows, and what is said of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.feedback.outcome import TIME, Moved
from tuner.feedback.wording import times
from tuner.report import wording
from tuner.report.data import ReportData
from tuner.report.rounds import End, Round, Spent, Tried
from tuner.report.tree_chart import Mark, Shape

LONGEST_PROBLEM = 1500
LONGEST_TEXT = 900
ENDS: dict[End, str] = {
    "searched": "searched",
    "incorrect": "no config was correct",
    "refused": "refused",
    "idle": "nothing left to try",
    "open": "not ended",
}
_COUNTED: dict[End, str] = {
    **ENDS,
    "incorrect": "without a correct config",
    "idle": "with nothing left to try",
}


@dataclass(frozen=True, slots=True)
class Expected:
    """One prediction beside what was measured: factors over the base's value."""

    what: str
    where: str
    predicted: str
    measured: str
    other_way: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One round of the table; `problems` are the refused answers' reasons, in order."""

    round: Round
    made: str
    base: str
    reference: str
    hypothesis: str
    change: str
    expected: tuple[Expected, ...]
    problems: tuple[str, ...]
    won: bool

    @property
    def end(self) -> str:
        """How it ended, in words."""
        return ENDS[self.round.end]

    @property
    def height(self) -> int:
        """How many lines of the table it takes."""
        return max(1, len(self.expected))


def rows(data: ReportData) -> tuple[Row, ...]:
    """Lay out the rounds in their order."""
    wins = data.wins()
    return tuple(_row(one, wins) for one in data.rounds)


def marks(data: ReportData) -> tuple[Mark, ...]:
    """List what the picture of the tree shows: the candidates, and the rounds without one."""
    known = {one.name: one for one in data.candidates}
    wins = data.wins()
    made = {one.record.candidate for one in data.rounds}
    begun = [one for one in data.candidates if one.parent is None and one.name not in made]
    starts = (_candidate(one, 0, wins, "searched") for one in begun)
    return (*starts, *(_mark(one, known, wins) for one in data.rounds if one.end != "idle"))


def total(data: ReportData) -> Spent:
    """Add up what all rounds took."""
    return sum((one.spent for one in data.rounds), Spent())


def summary(data: ReportData) -> str:
    """Say in two sentences who wrote, how many rounds there were, and what they cost."""
    ends = Counter(one.end for one in data.rounds)
    came = ", ".join(f"{ends[end]} {_COUNTED[end]}" for end in ENDS if ends[end])
    return f"{_who(data)}: {came}.{_price(total(data))}"


def _who(data: ReportData) -> str:
    count = len(data.rounds)
    noun = "round" if count == 1 else "rounds"
    if data.author is None:
        return f"{count} {noun}"
    author = data.author
    models = f" ({wording.joined(author.models)})" if author.models else ""
    asked = f" of {author.rounds}" if author.rounds > count else ""
    chose = "the agent" if author.policy == "llm" else f"the policy {author.policy}"
    return (
        f"The agent {author.agent}{models} wrote {count}{asked} {noun}; "
        f"{chose} chose what to build on"
    )


def _price(spent: Spent) -> str:
    if not spent.replies:
        return ""
    cached = f", {spent.cached:,} of them cached," if spent.cached else ""
    least = "at least " if spent.unpriced else ""
    cost = "" if spent.cost is None else f", for {least}{money(spent.cost)}"
    noun = "reply" if spent.replies == 1 else "replies"
    return (
        f" {spent.replies} {noun} of the model took {spent.input:,} tokens in{cached} and "
        f"{spent.output:,} out{cost}."
    )


def money(cost: float) -> str:
    """Write a cost: `1.23`, and three digits below 1."""
    return f"{cost:,.2f}" if cost >= 1 else f"{cost:.3g}"


def _row(one: Round, wins: dict[str, int]) -> Row:
    record, idea = one.record, one.record.idea
    return Row(
        round=one,
        made=record.candidate or "",
        base=record.base,
        reference=idea.reference if idea else "",
        hypothesis=_cut(idea.hypothesis, LONGEST_TEXT) if idea else "",
        change=_cut(idea.change, LONGEST_TEXT) if idea else "",
        expected=_expected(one.expected),
        problems=tuple(_cut(problem, LONGEST_PROBLEM) for problem in record.problems),
        won=(record.candidate or "") in wins,
    )


def _expected(moved: Sequence[Moved]) -> tuple[Expected, ...]:
    return tuple(
        Expected(
            what=metric_name(one.metric),
            where=one.workload.replace(",", " "),
            predicted=times(one.predicted),
            measured="" if one.actual is None else times(one.actual),
            other_way=one.actual is not None and (one.predicted - 1) * (one.actual - 1) < 0,
        )
        for one in moved
    )


def metric_name(metric: str) -> str:
    """Write the name of a metric as words."""
    return "time" if metric == TIME else metric.replace("_", " ")


def _mark(one: Round, known: dict[str, Tried], wins: dict[str, int]) -> Mark:
    record = one.record
    if record.candidate in known:
        return _candidate(known[record.candidate], one.number, wins, one.end)
    count = len(record.problems)
    answers = f", {count} answer{'s' if count != 1 else ''} refused" if count else ""
    told = "refused" + answers if one.end == "refused" else ENDS[one.end] + answers
    shape: Shape = "failed" if one.end == "refused" else "unknown"
    return Mark(one.number, "no candidate", record.base, shape, told)


def _candidate(one: Tried, number: int, wins: dict[str, int], end: End) -> Mark:
    told = "no config was correct" if one.speedup is None else f"{wording.ratio(one.speedup)}"
    if end == "open":
        told += ", not ended"
    if count := wins.get(one.name, 0):
        told += f", wins on {count} workload{'s' if count != 1 else ''}"
    shape: Shape = "unknown" if one.speedup is None else "candidate"
    won = one.name in wins
    return Mark(number, one.name, one.parent or "", shape, told, one.speedup, won)


def _cut(text: str, most: int) -> str:
    text = text.strip()
    return text if len(text) <= most else text[:most].rstrip() + " …"
