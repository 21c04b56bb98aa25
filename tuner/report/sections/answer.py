"""The first screen of a report: how much faster, how sure, how far from the roofline, what next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from statistics import median

from tuner.model.config import Config
from tuner.model.trial import Status
from tuner.report import formatting
from tuner.report.data import ReportData, roofline_of
from tuner.report.formatting import percent, ratio, significance
from tuner.report.sections.search import SourceDiff, code_diff, describe_refused, refused_trials
from tuner.report.sections.summary import Headline, Tone, failures, of_winners

# Where the middle workload reaches more of the streaming rate, little is left to gain.
NEAR_ROOFLINE = 0.9
STEPS = 3


@dataclass(frozen=True, slots=True)
class Card:
    """One question, its answer in a few characters, and what that is based on."""

    question: str
    figure: str
    text: str
    tone: Tone = "none"


@dataclass(frozen=True, slots=True)
class WinningChange:
    """The winner that serves most workloads: its config, and its difference to the baseline."""

    served: int
    config: Config
    diff: SourceDiff


def cards(data: ReportData, headline: Headline) -> tuple[Card, ...]:
    """Answer a reader's four questions; nothing where there is no result."""
    judged = data.tuned or data.results
    if not judged:
        return ()
    return (_speed(data, headline), _certainty(data), *(() if data.on_cpu else (_distance(data),)))


def _speed(data: ReportData, headline: Headline) -> Card:
    question, judged = "How much faster?", data.tuned or data.results
    if data.on_cpu:
        return Card(
            question, "not timed", "Run on a CPU: which config is fastest, a GPU has to say."
        )
    if headline.tone == "failed":
        return Card(question, "not to be trusted", "A winner failed a check.", "failed")
    speedups = [result.speedup for result in judged]
    low, high = ratio(min(speedups)), ratio(max(speedups))
    over = f"{low} to {high} over {len(judged)} workloads" if len(judged) > 1 else "one workload"
    return Card(question, ratio(data.average(judged)), f"{over}.", headline.tone)


def _certainty(data: ReportData) -> Card:
    checks = of_winners(data)
    passed, failed = (sum(check.passed is verdict for check in checks) for verdict in (True, False))
    told = (
        f"{passed} checks of the winners passed, {failed} failed" if checks else "no check was run"
    )
    if data.on_cpu:
        return Card("How sure?", "verified", f"{told[:1].upper()}{told[1:]}.")
    judged = data.tuned or data.results
    labels = [significance(result) for result in judged]
    others = [
        f"{labels.count(label)} {label}"
        for label in ("slower", "no difference", "too noisy to say")
        if label in labels
    ]
    rest = f"{', '.join(others)}; " if others else ""
    figure = f"{labels.count('faster')} of {len(judged)} proved"
    tone: Tone = (
        "failed" if failed else "faster" if 2 * labels.count("faster") > len(judged) else "same"
    )
    return Card("How sure?", figure, f"By 95 % intervals; {rest}{told}.", tone)


def _distance(data: ReportData) -> Card:
    shares, question = _roofline_shares(data), "How far from the roofline?"
    if not shares:
        return Card(question, "not known", "The traffic or the streaming rate is not known.")
    around = " alone" if any(result.surroundings for result in data.results) else ""
    low, high = percent(min(shares)), percent(max(shares))
    text = f"Of the streaming rate{around}, by the middle workload; {low} to {high}."
    return Card(question, percent(median(shares)), text)


def _roofline_shares(data: ReportData) -> list[float]:
    return [share for result in data.results if (share := roofline_of(result)) is not None]


def next_steps(data: ReportData) -> list[tuple[str, str]]:
    """Say what to do with a result, the most pressing first, each with its command or none."""
    return [*islice(_steps(data), STEPS)]


def _steps(data: ReportData) -> Iterator[tuple[str, str]]:
    session = shlex.quote(data.session or "SESSION")
    if failures(data):
        yield "Use nothing of this: see what failed, and verify again:", f"tune verify {session}"
        return
    if data.on_cpu:
        yield "Run the same command on a GPU, which times the configs.", ""
        return
    labels = [significance(result) for result in data.tuned or data.results]
    for trial, _ in islice(refused_trials(data), 1):
        yield f"Mend what is faster: {describe_refused(trial)}, as Search says.", ""
    if "faster" in labels:
        yield "Put it to use:", f"tune export {session} --to DIR"
    if "too noisy to say" in labels:
        yield "Measure again on a quieter GPU what is too noisy to say.", ""
    if data.recorded:
        yield "Run the same command on a GPU of your own: a recording checks no edge cases.", ""
    shares = _roofline_shares(data)
    if shares and median(shares) > NEAR_ROOFLINE:
        yield "Little is left to gain in this kernel: fuse it with its neighbours.", ""
    elif not data.rounds:
        yield "Let an agent write another template:", "--agent"
    if any(trial.status is Status.CORRECT for trial in data.trials) and "faster" not in labels:
        yield "Try more configs, or a wider search space:", "--trials"


def winning_change(data: ReportData, diffs: tuple[SourceDiff, ...]) -> WinningChange | None:
    """Find the source that serves most workloads, of those that are not the baseline's own."""
    shown = [source_diff for source_diff in diffs if source_diff.blocks]
    if not shown:
        return None
    diff = max(shown, key=lambda source_diff: len(source_diff.workloads))
    code = code_diff(data, diff.workloads)
    result = next(
        (r for r in data.results if formatting.pairs(r.workload.values) in diff.workloads), None
    )
    if result is None or code is None:
        return None
    return WinningChange(len(diff.workloads), result.config, code)
