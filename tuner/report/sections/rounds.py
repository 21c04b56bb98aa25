"""The sections on what an agent did: the tree of candidates, the rounds, and the profiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from tuner.analysis.base import METRICS, Degree
from tuner.model.trial import Finding
from tuner.report import charts, formatting
from tuner.report.data import ReportData, Tried
from tuner.report.pages import draw
from tuner.report.rounds import End, Spent
from tuner.report.tables import Column, Field, join, list_table, soft
from tuner.session.events import Profiled
from tuner.session.rounds import TIME

WIDTH = 1000
LEFT, RIGHT, TOP, HEIGHT = 64, 24, 30, 250
NARROWEST, WIDEST = 46.0, 150.0  # of one round

# `failed` is a round without a candidate, `unknown` a candidate without a time.
Shape = Literal["candidate", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class TreeMark:
    """What one round left in the picture; `round` 0 is what the run began with.

    `base` is the name that it was built on, "" where there is none. `told` says in a few words
    what became of it.
    """

    round: int
    name: str
    base: str
    shape: Shape
    told: str
    speedup: float | None = None
    won: bool = False

    def __str__(self) -> str:
        built = f" built on {self.base}" if self.base else ""
        which = f"Round {self.round}, " if self.round else ""
        return f"{which}{self.name}{built}: {self.told}."


def tree(marks: Sequence[TreeMark]) -> Markup:
    """Draw candidates by round and speedup, with a line to what each was built on.

    Failed rounds lie in a row of their own below the scale; winners and what they grew from stand
    out.
    """
    places = _Places.of(marks)
    bases = {mark.name: mark.base for mark in marks if mark.shape != "failed"}
    lineage: set[str] = set()
    for mark in marks:
        name = mark.name if mark.won else ""
        while name and name not in lineage:
            lineage.add(name)
            name = bases.get(name, "")
    by_name = {mark.name: mark for mark in marks if mark.shape != "failed"}
    edges = []
    for mark in marks:
        if base := by_name.get(mark.base):
            won = mark.shape != "failed" and mark.name in lineage
            css_class = "edge won" if won else "edge lost" if mark.speedup is None else "edge"
            edges.append((places.at(base), places.at(mark), css_class))
    y = places.y
    return draw(
        "tree",
        marks=marks,
        places=places,
        edges=edges,
        wide=places.width > 1.3 * WIDTH,
        ticks=(charts.log_ticks if y.logarithmic else charts.ticks)(y.low, y.high),
    )


@dataclass(frozen=True, slots=True)
class _Places:
    """Where marks are drawn; `below` is the row of those without a speedup, None without any."""

    x: charts.Scale
    y: charts.Scale
    width: int
    below: float | None
    foot: float

    @classmethod
    def of(cls, marks: Sequence[TreeMark]) -> _Places:
        columns = max((mark.round for mark in marks), default=0) + 1
        step = min(max((WIDTH - LEFT - RIGHT) / columns, NARROWEST), WIDEST)
        first = LEFT + step / 2
        x = charts.Scale(0, max(columns - 1, 1), first, first + step * max(columns - 1, 1))
        known = [1.0, *(mark.speedup for mark in marks if mark.speedup is not None)]
        low, high = min(known), max(known)
        logarithmic = high > 4 * low
        pad = 0.12 * (high - low) or 0.1
        low, high = (low / 1.15, high * 1.15) if logarithmic else (low - pad, high + pad)
        y = charts.Scale(low, high, TOP + HEIGHT, TOP, logarithmic)
        width = max(WIDTH, round(x.end + NARROWEST / 2 + RIGHT))
        if any(mark.speedup is None for mark in marks):
            return cls(x, y, width, TOP + HEIGHT + 34, TOP + HEIGHT + 50)
        return cls(x, y, width, None, TOP + HEIGHT + 14)

    def at(self, mark: TreeMark) -> tuple[float, float]:
        height = (self.below or 0.0) if mark.speedup is None else self.y(mark.speedup)
        return self.x(mark.round), height


LONGEST_PROBLEM = 1500
LONGEST_TEXT = 900
ENDS: dict[End, str] = {
    "searched": "searched",
    "incorrect": "no config was correct",
    "slow": "too slow to search",
    "refused": "refused",
    "idle": "nothing left to try",
    "open": "not ended",
}


def marks(data: ReportData) -> tuple[TreeMark, ...]:
    """List what the picture of the tree shows: the candidates, and the rounds without one."""
    known = {candidate.name: candidate for candidate in data.candidates}
    wins = data.wins()
    made = {round_data.record.candidate for round_data in data.rounds}
    tree_marks = [
        _candidate(tried, 0, wins, "searched")
        for tried in data.candidates
        if tried.parent is None and tried.name not in made
    ]
    for round_data in data.rounds:
        if round_data.end == "idle":
            continue
        record, count = round_data.record, len(round_data.record.problems)
        if record.candidate in known:
            tree_marks.append(
                _candidate(known[record.candidate], round_data.number, wins, round_data.end)
            )
        else:
            answers = f", {count} answer{'s' if count != 1 else ''} refused" if count else ""
            shape: Shape = "failed" if round_data.end == "refused" else "unknown"
            told = ENDS[round_data.end] + answers
            tree_marks.append(TreeMark(round_data.number, "no candidate", record.base, shape, told))
    return tuple(tree_marks)


def _candidate(tried: Tried, number: int, wins: dict[str, int], end: End) -> TreeMark:
    told = "no config was correct" if tried.speedup is None else formatting.ratio(tried.speedup)
    if end == "open":
        told += ", not ended"
    if count := wins.get(tried.name, 0):
        told += f", wins on {count} workload{'s' if count != 1 else ''}"
    shape: Shape = "unknown" if tried.speedup is None else "candidate"
    won = tried.name in wins
    return TreeMark(number, tried.name, tried.parent or "", shape, told, tried.speedup, won)


def total(data: ReportData) -> Spent:
    return sum((round_data.spent for round_data in data.rounds), Spent())


def summary(data: ReportData) -> str:
    """Summarize the rounds in two sentences: their author, number and cost."""
    count, author = len({round_data.number for round_data in data.rounds}), data.author
    said = f"{count} round{'s' * (count != 1)}"
    if author is not None:
        models = f" ({formatting.join_names(author.models)})" if author.models else ""
        asked = f" of {author.rounds}" if author.rounds > count else ""
        chose = "the agent" if author.policy == "llm" else f"the policy {author.policy}"
        said = (
            f"The agent {author.agent}{models} wrote {count}{asked} round{'s' * (count != 1)}; "
            f"{chose} chose what to build on"
        )
    ends = Counter(round_data.end for round_data in data.rounds)
    words = {**ENDS, "incorrect": "without a correct config", "idle": "with nothing left to try"}
    came = ", ".join(f"{ends[end]} {words[end]}" for end in ENDS if ends[end])
    spent = total(data)
    if not spent.replies:
        return f"{said}: {came}."
    cached = f", {spent.cached:,} of them cached," if spent.cached else ""
    least = "at least " if spent.unpriced else ""
    cost = "" if spent.cost is None else f", for {least}{money(spent.cost)}"
    noun = "reply" if spent.replies == 1 else "replies"
    return (
        f"{said}: {came}. {spent.replies} {noun} of the model took {spent.input:,} tokens "
        f"in{cached} and {spent.output:,} out{cost}."
    )


def money(cost: float) -> str:
    """Write a cost: `1.23`, and three digits below 1."""
    return f"{cost:,.2f}" if cost >= 1 else f"{cost:.3g}"


def metric_name(metric: str) -> str:
    return "time" if metric == TIME else metric.replace("_", " ")


LONGEST_LINE = 100


def group_profiles(data: ReportData) -> tuple[tuple[str, Sequence[Profiled]], ...]:
    """Group the profiles by candidate, those that serve most workloads first."""
    groups = ((name, [p for p in data.profiles if p.candidate == name]) for name in data.ranking())
    return tuple((name, found) for name, found in groups if found)


def degrees(data: ReportData) -> list[tuple[Degree, str]]:
    """List how deep profiles went, and why not deeper."""
    return [*dict.fromkeys((profile.degree, profile.reason) for profile in data.profiles)]


def meaning_of(metric: str) -> str:
    return METRICS[metric][1] if metric in METRICS else metric.replace("_", " ")


def template_line(data: ReportData, candidate: str, number: int | None) -> str:
    """Quote the template's line that a finding comes from; "" where it is unknown."""
    templates = {tried.name: tried.template.splitlines() for tried in data.candidates}
    lines = templates.get(candidate, [])
    known = number is not None and 0 < number <= len(lines)
    return formatting.shorten_text(lines[number - 1], LONGEST_LINE) if known and number else ""


def findings_table(data: ReportData, name: str, profiled: Profiled) -> Markup:
    """Lay out what a profile says, with the template's lines; nothing where nothing stands out."""

    def what(finding: Finding) -> Markup:
        title = Markup("<strong>{}</strong><br>").format(finding.topic.replace("_", " "))
        return join(title, finding.text)

    def place(finding: Finding) -> str:
        line = template_line(data, name, finding.line)
        quoted = Markup("<code>{}</code>").format(line) if line else ""
        return "-" if finding.line is None else join(str(finding.line), quoted)

    def advice(finding: Finding) -> Markup:
        parameter = Markup("Parameter: <code>{}</code>.").format(finding.parameter)
        return join(finding.advice, soft(parameter) if finding.parameter else "")

    fields: list[Field[Finding]] = [
        Field("Finding", what),
        Field(Column("Line of the template", css="place"), place),
        Field(Column("Advice", css="idea"), advice),
    ]
    label = f"Findings for {name} on {profiled.workload.replace(',', ' ')}"
    return list_table(label, profiled.findings, fields)
