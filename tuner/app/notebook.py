"""What a notebook shows: a bar for each workload while a run goes on, and what came of it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from tuner.app.progress_lines import PhaseThrottle
from tuner.model.errors import InputError
from tuner.model.progress import PHASES, Progress, WorkloadProgress
from tuner.report import formatting
from tuner.report.pages import fragment

if TYPE_CHECKING:
    from tuner.report.data import ReportData

BARS_SHOWN = 12
_BAR = Markup(
    '<tr><th scope="row">{}</th><td><progress max="{}" value="{}"></progress></td>'
    '<td class="n">{}</td><td class="n">{}</td><td class="n">{}</td></tr>'
)


@dataclass(frozen=True, slots=True)
class Bars:
    """A snapshot of a run."""

    progress: Progress

    def __repr__(self) -> str:
        shown = self.progress
        done = sum(workload.done for workload in shown.workloads)
        budget = sum(workload.budget for workload in shown.workloads)
        return f"{shown.kernel}: {PHASES[shown.phase]}, {done:,} of {budget:,} trials"

    def _repr_html_(self) -> str:
        shown = self.progress
        left_s, more = shown.remaining_s, len(shown.workloads) - BARS_SHOWN
        left = "" if left_s is None else f", {formatting.seconds(left_s)} left"
        bars = Markup("").join(map(_bar, shown.workloads[:BARS_SHOWN]))
        rest = f"{more} more workloads" if more > 0 else ""
        return fragment(
            Markup(
                '<p>{}, {}{}</p><table style="width: auto">{}</table><p class="note">{}</p>'
            ).format(repr(self), formatting.seconds(shown.seconds), left, bars, rest)
        )


def _bar(progress: WorkloadProgress) -> Markup:
    best = "" if progress.best_us is None else f"{formatting.microseconds(progress.best_us)} us"
    speedup = "" if progress.speedup is None else formatting.ratio(progress.speedup)
    most = max(progress.budget, 1)
    trials = f"{progress.done:,} of {progress.budget:,}"
    return _BAR.format(progress.workload, most, min(progress.done, most), trials, best, speedup)


class NotebookProgress:
    """Show bars under a notebook's cell, redrawn as often as anybody looks."""

    def __init__(self, display: Any) -> None:
        self._display, self._throttle = display, PhaseThrottle()
        self._shown: Any = None

    def __call__(self, progress: Progress) -> None:
        if not self._throttle.lets_pass(progress):
            return
        if self._shown is None:
            self._shown = self._display(Bars(progress), display_id=True)
        else:
            self._shown.update(Bars(progress))


def notebook_progress() -> NotebookProgress | None:
    """Make bars where a notebook's kernel runs this; None elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if getattr(shell, "kernel", None) is None:
        return None
    from importlib import import_module

    return NotebookProgress(import_module("IPython.display").display)


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot of a report, with its question and caption, which a notebook draws."""

    name: str
    html: str

    def __repr__(self) -> str:
        return f"<plot {self.name!r}: a notebook draws it>"

    def _repr_html_(self) -> str:
        return self.html


def draw(data: ReportData, name: str) -> Picture:
    """Draw one of a report's plots; raise `InputError` for one that this run does not have."""
    from tuner.report.html import render_plots

    drawn = render_plots(data)
    if name not in drawn:
        raise InputError(f"no plot {name!r}", remedy=f"plots: {', '.join(drawn) or 'none'}")
    return Picture(name, fragment(drawn[name]))


def show(data: ReportData) -> str:
    """Write the verdict and the table of results as the report has them."""
    from tuner.report.sections.results import results_table
    from tuner.report.sections.summary import headline

    said = headline(data)
    table = results_table(data, sorts=False) if data.results else ""
    told = Markup('<p class="origin{}">{}</p><p class="verdict {}">{}</p><p>{}</p>{}')
    recorded = " cpu" if data.on_cpu else " recorded" if data.recorded else ""
    return fragment(
        told.format(recorded, said.origin, said.tone, said.headline, said.held_out, table)
    )
