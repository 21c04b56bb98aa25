"""The first line of a report: what was achieved, in words that the intervals allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tuner.report.data import ReportData
from tuner.report.trust import accusation
from tuner.report.wording import ratio, significance
from tuner.statistics import geometric_mean
from tuner.trial import Result, Status

Tone = Literal["faster", "same", "slower", "none", "failed"]


# A larger speedup over the baseline is told with a warning.
BELIEVABLE = 10


@dataclass(frozen=True, slots=True)
class Verdict:
    """One sentence on the tuned workloads, one on the held-out ones, and where they come from."""

    origin: str
    headline: str
    held_out: str
    tone: Tone

    def __str__(self) -> str:
        return " ".join(part for part in (self.origin, self.headline, self.held_out) if part)


def verdict(data: ReportData) -> Verdict:
    """Judge a run by its final comparison, never by the search's own minimum.

    Where a winner failed a check, nothing is said of its speed.
    """
    if not data.results:
        return Verdict(_origin(data), _without_result(data), "", "none")
    if accused := accusation(data):
        return Verdict(_origin(data), accused, "", "failed")
    judged = data.tuned or data.results
    tone, headline = _judge(judged, "tuned" if data.tuned else "held-out")
    held_out = _held_out(data.held_out) if data.tuned and data.held_out else ""
    if data.on_cpu:
        return Verdict(_origin(data), f"On the CPU: {headline}", held_out, "same")
    headline += _isolated(judged) + _second_look(data.results)
    return Verdict(_origin(data), headline, held_out, tone)


def _origin(data: ReportData) -> str:
    date = f", {data.measured_on}" if data.measured_on else ""
    if data.on_cpu:
        return f"Run on the CPU, {data.device}{date}: no time here says anything of a GPU."
    return f"{'RECORDED on' if data.recorded else 'Measured on'} {data.device}{date}."


def _without_result(data: ReportData) -> str:
    counts = data.counts()
    total = sum(counts.values())
    if total == 0:
        return "No result: no config was tried."
    if counts[Status.CORRECT] == 0:
        return f"No result: none of {total:,} trials was correct."
    if data.finished:
        return "No result: the finalists were not compared with the baseline."
    return "No result yet: the run ended before the finalists were compared with the baseline."


def _judge(results: Sequence[Result], kind: str) -> tuple[Tone, str]:
    labels = [significance(result) for result in results]
    count, faster, slower = len(labels), labels.count("faster"), labels.count("slower")
    mean = geometric_mean([result.speedup for result in results])
    scope = f"{count} {kind} workload{'s' if count != 1 else ''}"
    average = f"geometric mean over {scope}" if count > 1 else f"on {scope}"
    if faster == slower == 0:
        return "same", (
            "No difference from the baseline: "
            f"no 95 % interval excludes 1 ({average}: {ratio(mean)})."
        )
    if 2 * faster > count and mean > 1.0:
        also = f", slower on {slower}" if slower else ""
        return "faster", (
            f"{ratio(mean)} faster than the baseline ({average}); "
            f"95 % intervals exclude 1 on {faster} of {count}{also}."
        )
    if faster and slower:
        tone: Tone = "faster" if faster > slower and mean > 1.0 else "slower"
        return tone, (
            f"Mixed: faster on {faster}, slower on {slower} of {scope}; {average}: {ratio(mean)}."
        )
    word: Tone = "faster" if faster else "slower"
    return word, f"{word.capitalize()} on {faster or slower} of {scope}; {average}: {ratio(mean)}."


def _isolated(results: Sequence[Result]) -> str:
    """Where calls overlap their neighbours, say what is left when they don't."""
    overlapping = [result for result in results if result.isolated_speedup is not None]
    if not overlapping:
        return ""
    mean = geometric_mean([result.isolated_speedup or result.speedup for result in results])
    return f" Without overlapping the calls before and after: {ratio(mean)}."


def _second_look(results: Sequence[Result]) -> str:
    beyond = [str(result.workload) for result in results if result.speedup > BELIEVABLE]
    if not beyond:
        return ""
    return (
        f" LOOK TWICE at {', '.join(beyond)}: over {BELIEVABLE}x is more often a slip in the "
        "baseline, its launch or the reference than a better kernel."
    )


def _held_out(results: Sequence[Result]) -> str:
    count = len(results)
    mean = geometric_mean([result.speedup for result in results])
    labels = [significance(result) for result in results]
    faster, slower = labels.count("faster"), labels.count("slower")
    text = f"Held-out: {ratio(mean)} over {count} workload{'s' if count != 1 else ''}, "
    text += f"faster on {faster} of {count}"
    return f"{text}, slower on {slower}." if slower else f"{text}."
