"""What a run prints at its end: the results on one screen, where everything is, the verdict."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from tuner.app.environment import program_name
from tuner.cli.console import Console, is_wide
from tuner.model.errors import AgentError, SessionError, TunerError
from tuner.model.trial import Status
from tuner.report import formatting
from tuner.report.sections.summary import headline
from tuner.report.serial import pick
from tuner.report.terminal import best_so_far, config_lines, results_table, so_far_table

if TYPE_CHECKING:
    from rich.table import Table

    from tuner.report.data import ReportData
    from tuner.report.rounds import RoundData, Spent
    from tuner.report.sections.dispatch import PeersOn

REPORT = "report.html"
# Of why there is no result: the report has the others.
REASONS = 5
# Of a change or a refusal, in one line.
MOST_CHARS = 100
# Of a result, at least; on a screen of so few lines no more, unless they are all.
FEWEST_ROWS = 8
LOW_SCREEN = 24


def round_lines(data: ReportData) -> Iterator[str]:
    """Write one line for every round, and one for what a model's replies took."""
    for ended in data.rounds:
        parts = [f"on {ended.record.base}"] if ended.record.base else []
        parts += [_short(ended.record.idea.change)] if ended.record.idea else []
        about = f"{', '.join(parts)}: " if parts else ""
        yield f"{f'round {ended.label}':15}{about}{_end(ended, comparable=not data.on_cpu)}"
    spent = _sum_spending(data)
    if spent is not None:
        cost = "" if spent.cost is None else f", cost {spent.cost:.4g}"
        cached = f" ({spent.cached:,} of them cached)" if spent.cached else ""
        yield f"tokens         {spent.input:,} read{cached}, {spent.output:,} written{cost}"


def agent_object(data: ReportData, failure: AgentError | None) -> dict[str, object]:
    """Make what `--json` says of the agent beside its rounds; `failure` is what ended them."""
    assert data.author is not None
    spent = _sum_spending(data)
    read = pick(spent, "read=input cached written=output") if spent else None
    return {
        **pick(data.author, "name=agent models policy"),
        "tokens": read,
        "cost": None if spent is None else spent.cost,
        "failure": None if failure is None else str(failure),
    }


def _end(round_data: RoundData, *, comparable: bool) -> str:
    problems = round_data.record.problems
    if round_data.end == "searched" and not comparable:
        return "ran correctly"
    if round_data.end == "searched":
        assert round_data.speedup is not None
        return f"{formatting.ratio(round_data.speedup)} over the baseline"
    if round_data.end == "refused":
        times = "" if len(problems) == 1 else f" {len(problems)} times, at last"
        return f"refused{times}: {_short(problems[-1])}"
    if round_data.end == "slow" and round_data.record.timed is not None:
        return (
            f"not searched: its default takes x{round_data.record.timed.factor:.2f} its base's best"
        )
    return {"incorrect": "no config ran correctly", "idle": "nothing left to try"}.get(
        round_data.end, "not ended"
    )


def _sum_spending(data: ReportData) -> Spent | None:
    if not data.rounds:
        return None
    from tuner.report.sections.rounds import total

    spent = total(data)
    return spent if spent.replies else None


def _short(text: str) -> str:
    line = (text.splitlines() or [""])[0].strip()
    return line if len(line) <= MOST_CHARS else f"{line[: MOST_CHARS - 3]}..."


def write_report(data: ReportData, folder: Path) -> None:
    """Write the report of a session; raise `SessionError` where that cannot be done."""
    from tuner.report import html

    try:
        html.write_report(data, folder / REPORT)
    except OSError as error:
        again = shlex.join([program_name(), "report", str(folder)])
        raise SessionError(
            f"the report cannot be written: {error.strerror or error}",
            path=folder / REPORT,
            remedy=f"the results are kept; once the cause is gone, write it with `{again}`",
        ) from error


def _describe_gaps(data: ReportData) -> str:
    """Say how many trials nothing is known of; where there is no recording, what they lack."""
    missing = [trial for trial in data.trials if trial.status is Status.NOT_RECORDED]
    if not missing:
        return ""
    trials = "1 trial" if len(missing) == 1 else f"{len(missing)} trials"
    if data.recorded:
        return f"{trials} had no answer in the recording"
    lacking = [_short(reason) for reason in dict.fromkeys(trial.reason for trial in missing)]
    return f"{trials} could not run here: {formatting.join_names(lacking)}"


def print_end(
    data: ReportData,
    folder: Path,
    console: Console,
    *,
    resumable: bool = False,
    following: Sequence[str] = (),
    whole: bool = False,
) -> None:
    """Print the results, what an agent tried, where everything is, what to do, the verdict last.

    On a terminal that is as high as the screen, unless the `whole` is wanted: of more workloads,
    and of what is said of them, `tune show` has the rest.
    """
    peers: tuple[PeersOn, ...] = ()
    if data.peers:
        from tuner.report.sections.dispatch import peers_on

        peers = peers_on(data)
    best = [] if data.results else best_so_far(data)
    count = len(data.results or best)

    def draw(most: int | None) -> Table:
        if data.results:
            return results_table(data.results, peers, width=console.width, most=most)
        return so_far_table(best, width=console.width, most=most)

    notes = _notes(data, peers)
    end = [
        f"session        {_from_here(folder)}",
        f"tuned kernels  {_from_here(folder / 'tuned')}" if data.results else "",
        f"report         {_from_here(folder / REPORT)}" if (folder / REPORT).exists() else "",
        f"to go on       {shlex.join([program_name(), '--resume', str(folder)])}"
        if resumable
        else "",
        *following,
        headline(data).headline,
    ]
    is_screen = console.is_terminal or bool(os.environ.get("LINES"))
    if whole or not is_screen:
        table = draw(None)
        if count:
            console.print(table)
        if data.results and "config" not in [column.header for column in table.columns]:
            _print_lines(console, config_lines(data.results))
        _print_lines(console, [*notes, *end])
        return
    # One line stays for what is left out, and one for the shell.
    left = console.height - 2 - _count_rows(console, end)
    shown = min(count, FEWEST_ROWS)
    # Long names of workloads take several lines each.
    while (
        shown > len(("best", "worst", "median")) and len(console.render_lines(draw(shown))) > left
    ):
        shown -= 1
    kept: list[str] = []
    rows = len(console.render_lines(draw(shown))) if count else 0
    room = min(left - rows, console.height // 4)
    for note in notes:
        if _count_rows(console, [*kept, note]) <= room:
            kept.append(note)
    left -= _count_rows(console, kept)
    while shown < count and len(console.render_lines(draw(shown + 1))) <= left:
        shown += 1
    if shown < count and console.height <= LOW_SCREEN:
        shown = min(shown, FEWEST_ROWS)
    if count:
        console.print(draw(shown))
    hidden = [f"{count - shown} more"] if count > shown else []
    unsaid = len(notes) - len(kept)
    hidden += [f"{unsaid} more note{'s' * (unsaid != 1)}"] if unsaid else []
    show = shlex.join([program_name(), "show", _from_here(folder)])
    rest = [f"{' and '.join(hidden)}: `{show}`"] if hidden else []
    _print_lines(console, [*rest, *kept, *end])


def print_so_far(folder: Path, console: Console) -> None:
    """Write the report of a run that was interrupted, and print the best that it has found."""
    from tuner.report.data import load

    with suppress(TunerError, KeyboardInterrupt):
        data = load(folder)
        if data.results or data.records:
            write_report(data, folder)
            print_end(data, folder, console)


def _count_rows(console: Console, lines: Sequence[str]) -> int:
    return sum(len(Text(line).wrap(console, console.width)) for line in lines if line)


def _print_lines(console: Console, lines: Sequence[str]) -> None:
    """Print lines that break between words; in a file they break nowhere."""
    for line in filter(None, lines):
        console.print(line, soft_wrap=is_wide(console))


def _from_here(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_absolute() and path.is_relative_to(here) else path)


def _notes(data: ReportData, peers: Sequence[PeersOn]) -> list[str]:
    """List what is to be said of a result besides its table."""
    from tuner.report.sections import search, summary
    from tuner.report.sections.bits import bits_lines
    from tuner.report.sections.surroundings import disagreements, surroundings_lines

    others: list[str] = []
    if data.objective != "time":
        from tuner.report.sections.energy import energy_lines

        others += energy_lines(data.energies, data.results, data.objective)
    if peers:
        from tuner.report.sections.dispatch import peers_lines

        others += peers_lines(peers, recorded=data.recorded)
    reasons = Counter(f"{t.status}: {t.reason}" for t in data.trials if t.reason)
    keeps_bits = data.keep_bits or data.kept_rows
    why_none = [f"  {count} x {reason}" for reason, count in reasons.most_common(REASONS)]
    lines = [
        _describe_gaps(data),
        *(() if data.results else why_none),
        *search.undecided_lines(data),
        *(f"refused        {line}" for line in search.refused_lines(data)),
        f"verification   {summary.verdict(data)}" if data.evaluator and data.results else "",
        *summary.strength_lines(data),
        *(f"{name:14} {text}" for name, text in summary.facts(data) if name != summary.ON_THE_CPU),
        *search.protocol_lines(data),
        *search.space_lines(data),
        *search.never_worked_lines(data),
        *search.early_end_lines(data),
        *(f"bits           {line}" for line in (bits_lines(data) if keeps_bits else ())),
        *(f"surroundings   {line}" for line in surroundings_lines(data)),
        # What is proved; the report has them all.
        *(f"{'':15}{disagreement}" for disagreement in disagreements(data) if disagreement.clear),
        *round_lines(data),
        *others,
    ]
    return [line for line in lines if line]
