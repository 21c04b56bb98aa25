"""How far to trust a result: what was checked of the winners, and what could not be."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tuner.model.config import Config, format_value
from tuner.model.kernel import Workload
from tuner.model.statistics import geometric_mean
from tuner.model.trial import Check, Result, Stage, Status, Trial, Variant
from tuner.report import formatting
from tuner.report.data import ReportData, fastest
from tuner.report.formatting import ratio, significance

CHECKS_SHOWN = 20
CHECK_REASON_LENGTH = 400
CHECK_MEANING: Mapping[str, str] = {
    "verify": "verified again: every kind of input, and twice for equal bits",
    "boundary": "verified on boundary workloads, which are never timed",
    "compare": "judged once more after the final comparison",
    "sanitizers": "address and undefined-behaviour sanitizers, on the CPU",
    "memcheck": "compute-sanitizer: accesses out of bounds or misaligned",
    "racecheck": "compute-sanitizer: races in shared memory",
    "synccheck": "compute-sanitizer: barriers used wrongly",
    "initcheck": "compute-sanitizer: memory read before it is written",
}
TOOLS = frozenset({"sanitizers", "memcheck", "racecheck", "synccheck", "initcheck"})


@dataclass(frozen=True, slots=True)
class CheckRow:
    """The checks of one kind on one device; `note` says why none of them could be run."""

    kind: str
    device: str = ""
    passed: int = 0
    failed: int = 0
    not_run: int = 0
    note: str = ""

    @property
    def meaning(self) -> str:
        """The kind in words, empty where the name says it all."""
        return CHECK_MEANING.get(self.kind, "")


@dataclass(frozen=True, slots=True)
class Blame:
    """Why a check of a winner failed or could not be run."""

    check: Check
    reason: str

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        return "failed" if self.check.passed is False else "not run"


def latest(checks: Sequence[Check]) -> tuple[Check, ...]:
    """Keep the last verdict per kind, workload, config and device.

    What could not be run takes no verdict back, and what passed on one device says nothing of a
    failure on another.
    """
    kept: dict[tuple[object, ...], Check] = {}
    for check in checks:
        key = check.kind, check.workload, check.variant, check.device
        if check.passed is not None or key not in kept:
            kept[key] = check
    return tuple(kept.values())


def winners(data: ReportData) -> frozenset[Variant]:
    """Collect the variants that results are reported for."""
    return frozenset(result.variant for result in data.results)


def of_winners(data: ReportData) -> tuple[Check, ...]:
    """List the last verdicts on configs that results are reported for."""
    chosen = winners(data)
    return tuple(check for check in latest(data.checks) if check.variant in chosen)


def failures(data: ReportData) -> tuple[Check, ...]:
    """List the checks that a winner failed: such a config is wrong on every workload."""
    return tuple(check for check in of_winners(data) if check.passed is False)


def left_out(data: ReportData) -> int:
    """Count the finalists that failed a check, and so won nothing."""
    failed = {check.variant for check in latest(data.checks) if check.passed is False}
    return len(failed - winners(data))


def counts_by_kind(data: ReportData) -> dict[str, dict[str, int]]:
    """Count the verdicts on the winners as `--json` prints them."""
    counted: dict[str, dict[str, int]] = {}
    for row in _counted(of_winners(data)):
        of_kind = counted.setdefault(row.kind, {"passed": 0, "failed": 0, "not_run": 0})
        of_kind["passed"] += row.passed
        of_kind["failed"] += row.failed
        of_kind["not_run"] += row.not_run
    return counted


def check_rows(data: ReportData) -> tuple[CheckRow, ...]:
    """Lay out the checks by kind and device; what should have been checked and was not, too."""
    if not data.results:
        return ()
    rows = _counted(of_winners(data))
    return (*rows, *_absent(data, {row.kind for row in rows}))


def blames(data: ReportData) -> tuple[Blame, ...]:
    """List the checks of winners without a pass with their reasons, the failed first."""
    open_ones = [check for check in of_winners(data) if check.passed is not True]
    open_ones.sort(key=lambda check: check.passed is None)
    return tuple(Blame(check, _shortened(check.reason)) for check in open_ones)


def accusation(data: ReportData) -> str:
    """Say which winners failed a check, for the place where a speedup would stand; else nothing."""
    failed = failures(data)
    if not failed:
        return ""
    variants = {check.variant for check in failed}
    out = [str(result.workload) for result in data.results if result.variant in variants]
    first = failed[0]
    more = f" ({len(failed) - 1} more failed)" if len(failed) > 1 else ""
    reason = " ".join(_shortened(first.reason).split())
    where = formatting.joined(out)
    return (
        f"NOT TO BE TRUSTED: what was tuned for {where} failed a check. "
        f"{first.kind} on {first.workload}: {reason.rstrip('.')}{more}."
    )


def verification_facts(data: ReportData) -> tuple[tuple[str, str], ...]:
    """Say in pairs what was checked besides: inputs, determinism, workloads, tools, mutants."""
    return (
        ("Inputs of finalists and baseline", _fills(data)),
        ("Equal bits in two runs", _determinism(data)),
        ("Boundary workloads", _boundary(data)),
        ("Tools that watched the winners", _tools(data)),
        ("Mutation score", mutation(data)),
    )


def verification_notes(data: ReportData) -> tuple[str, ...]:
    """Say what a reader has to know of the table of checks."""
    said = []
    if data.recorded and data.results and not of_winners(data):
        said.append(
            "Boundary workloads and the tools that watch every access were not run: a recording "
            f"cannot run a kernel. {_remedy(data)} does."
        )
    if count := left_out(data):
        one = count == 1
        said.append(
            f"{count} other finalist{'' if one else 's'} failed a check and "
            f"{'was' if one else 'were'} left out of the comparison."
        )
    return tuple(said)


def mutation(data: ReportData) -> str:
    """Say what share of deliberately broken kernels the verification catches."""
    score = data.mutation
    if score is None:
        return (
            "not measured: run `tune mutate SPACE.yaml --session SESSION` to see how many broken "
            "kernels the verification catches"
        )
    if score.share is None:
        return f"no mutant of {score.subject} could be counted ({score.date})"
    # Never 100 % where one survived.
    share = min(100 * score.share, 99.9) if score.survived else 100.0
    tried = f", {score.examined:,} of {score.mutants:,} mutants tried"
    sample = "" if score.examined == score.mutants else tried
    return (
        f"{share:.1f} % of {score.killed + score.survived:,} broken kernels caught, "
        f"{score.survived:,} not ({score.subject}, on the {score.device} device, "
        f"{score.date}{sample})"
    )


def _counted(checks: Sequence[Check]) -> tuple[CheckRow, ...]:
    groups: dict[tuple[str, str], list[bool | None]] = {}
    for check in checks:
        groups.setdefault((check.kind, check.device), []).append(check.passed)
    rank = {kind: place for place, kind in enumerate(CHECK_MEANING)}
    rows = []
    for kind, device in sorted(groups, key=lambda group: rank.get(group[0], len(rank))):
        verdicts = groups[kind, device]
        passed, failed, not_run = (verdicts.count(one) for one in (True, False, None))
        rows.append(CheckRow(kind, device, passed, failed, not_run))
    return tuple(rows)


def _absent(data: ReportData, present: set[str]) -> tuple[CheckRow, ...]:
    """Name the kinds that no winner was checked with, and why."""
    rows = []
    if "boundary" not in present and (why := _why_no_boundary(data)):
        rows.append(CheckRow("boundary", note=why))
    if not present & TOOLS:
        tools = "sanitizers" if data.on_cpu else "compute-sanitizer"
        rows.append(CheckRow(tools, note=_why_no_tools(data)))
    return tuple(rows)


def _why_no_boundary(data: ReportData) -> str:
    if data.recorded:
        return f"a recording cannot run a kernel; {_remedy(data)} runs them"
    if data.declared is None:
        return "the search space cannot be read any more, or has changed"
    if not data.declared.boundary:
        return "the search space declares none (`workloads: boundary:`)"
    return "the run did not come to them, or none is valid for a winner"


def _why_no_tools(data: ReportData) -> str:
    if data.recorded:
        return f"a recording cannot run a kernel; {_remedy(data)} runs them"
    if _watched_by(data) != "nothing":
        return "the run did not come to them, or the workloads are too large for them"
    if data.on_cpu:
        return "the compiler's sanitizers are not installed where this was run"
    return "compute-sanitizer is not installed where this was measured"


def _remedy(data: ReportData) -> str:
    return f"`tune verify {data.session or 'SESSION'}`, on a GPU or with --device host,"


def _fills(data: ReportData) -> str:
    if data.recorded:
        unpaired = any(not result.paired for result in data.results)
        less = " where the result is paired, two kinds where it is unpaired" if unpaired else ""
        return f"when the recording was made: every kind{less}"
    fills: dict[str, None] = {}
    for trial in data.finals:
        if trial.correctness is not None and trial.correctness.passed:
            fills |= dict.fromkeys(trial.correctness.fills)
    if not fills:
        return "no finalist was verified"
    return ", ".join(sorted(fills, key=lambda fill: fill != "normal"))


def _determinism(data: ReportData) -> str:
    if data.declared is None:
        return "not known: the search space cannot be read any more, or has changed"
    if data.declared.varying:
        names = ", ".join(data.declared.varying)
        return f"required, but for {names}: declared `deterministic: false`"
    return "required of every output"


def _boundary(data: ReportData) -> str:
    known = data.declared.boundary if data.declared is not None else ()
    listed = "; ".join(map(str, known)) or "none declared"
    return f"{listed} (not run)" if known and "boundary" not in _kinds(data) else listed


def _tools(data: ReportData) -> str:
    tools = [] if _watched_by(data) == "nothing" else _watched_by(data).split(", ")
    tools += [kind for kind in CHECK_MEANING if kind in TOOLS & _kinds(data) - {*tools}]
    return f"{', '.join(tools)}; very large workloads are left out" if tools else "none"


def _kinds(data: ReportData) -> set[str]:
    return {check.kind for check in of_winners(data)}


def _watched_by(data: ReportData) -> str:
    return data.environment.get("watched_by", "nothing") or "nothing"


def _shortened(reason: str) -> str:
    text = reason.strip() or "no reason recorded"
    return text if len(text) <= CHECK_REASON_LENGTH else text[:CHECK_REASON_LENGTH].rstrip() + " …"


TOP_CONFIGS = 10
REASONS_SHOWN = 15
REASON_LENGTH = 400
DIFF_LINES = 1500
DIFF_LINES_IN_ALL = 6000
# A parameter that a candidate does not have.
ABSENT = "-"

MEANING: dict[Status, str] = {
    Status.CORRECT: "correct",
    Status.CONSTRAINT: "breaks a constraint",
    Status.COMPILE: "does not compile",
    Status.RESOURCE_LIMIT: "over a resource limit",
    Status.LAUNCH: "launch refused or crashed",
    Status.INCORRECT: "wrong result",
    Status.TIMEOUT: "timed out",
    Status.NOT_RECORDED: "not in the recording",
}


@dataclass(frozen=True, slots=True)
class Rejection:
    """Trials that failed alike: reasons that differ in their numbers only are one kind."""

    status: Status
    stage: Stage
    trials: int
    configs: int
    example: str
    candidate: str
    config: Config
    workload: Workload

    @property
    def meaning(self) -> str:
        """The status in words, and the stage where it was not the search."""
        words = MEANING[self.status]
        return words if self.stage == "search" else f"{words}, as a finalist"


@dataclass(frozen=True, slots=True)
class TopConfig:
    """One of the fastest configs; `differs` marks the values that the first has not."""

    rank: int
    trial: Trial
    values: tuple[str, ...]
    differs: tuple[bool, ...]
    ratio: float | None
    shared_bytes: int | None


@dataclass(frozen=True, slots=True)
class TopTable:
    """The fastest configs of one workload, one column per parameter."""

    workload: Workload
    names: tuple[str, ...]
    rows: tuple[TopConfig, ...]


@dataclass(frozen=True, slots=True)
class DiffBlock:
    """Consecutive lines of a diff of one kind: `add`, `remove`, `same` or `place`."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class SourceDiff:
    """One tuned source, the workloads that it serves and its difference from the baseline."""

    workloads: tuple[str, ...]
    blocks: tuple[DiffBlock, ...]
    added: int
    removed: int
    omitted: int


def rejections(data: ReportData) -> tuple[Rejection, ...]:
    """Group the trials that are not correct by status and kind of reason.

    Finalists that failed come first, for they looked fast; then the most frequent.
    """
    groups: dict[tuple[Status, Stage, str], list[Trial]] = {}
    for trial in (*data.trials, *data.finals):
        if trial.status is not Status.CORRECT:
            kind = trial.status, trial.stage, _kind(trial.reason)
            groups.setdefault(kind, []).append(trial)
    found = [_rejection(trials) for trials in groups.values()]
    return tuple(sorted(found, key=lambda one: (one.stage == "search", -one.trials)))


def top_tables(data: ReportData) -> tuple[TopTable, ...]:
    """List the fastest configs of every workload that has any, but for finalists that failed."""
    failed = {
        (trial.workload, trial.variant)
        for trial in data.finals
        if trial.status is not Status.CORRECT
    }
    tables = []
    for workload, trials in data.by_workload().items():
        passed = tuple(t for t in trials if (workload, t.variant) not in failed)
        if best := fastest(passed, TOP_CONFIGS):
            tables.append(_top_table(data, workload, best))
    return tuple(tables)


def source_diffs(data: ReportData) -> tuple[SourceDiff, ...]:
    """Compare every different tuned source with the baseline, within a total length."""
    if not data.baseline_source:
        return ()
    served: dict[str, list[str]] = {}
    for workload, source in data.tuned_sources.items():
        served.setdefault(source, []).append(workload.replace(",", " "))
    left = DIFF_LINES_IN_ALL
    found = []
    for source, workloads in served.items():
        variant, used = _variant(data.baseline_source, source, workloads, min(DIFF_LINES, left))
        found.append(variant)
        left -= used
    return tuple(found)


def _kind(reason: str) -> str:
    first = reason.strip().splitlines()[0] if reason.strip() else ""
    return re.sub(r"\d+(?:\.\d+)?", "#", first)


def _rejection(trials: Sequence[Trial]) -> Rejection:
    first = trials[0]
    example = first.reason.strip() or "no reason recorded"
    if len(example) > REASON_LENGTH:
        example = example[:REASON_LENGTH].rstrip() + " …"
    configs = len({(trial.candidate, trial.config.key) for trial in trials})
    return Rejection(
        status=first.status,
        stage=first.stage,
        trials=len(trials),
        configs=configs,
        example=example,
        candidate=first.candidate,
        config=first.config,
        workload=first.workload,
    )


def _top_table(data: ReportData, workload: Workload, trials: Sequence[Trial]) -> TopTable:
    names = tuple(dict.fromkeys(name for trial in trials for name in trial.config))
    baseline_us = data.baseline_us(workload)
    texts = [tuple(_value(trial.config, name) for name in names) for trial in trials]
    rows = (
        TopConfig(
            rank=rank,
            trial=trial,
            values=values,
            differs=tuple(a not in (b, ABSENT) for a, b in zip(values, texts[0], strict=True)),
            ratio=baseline_us / trial.time_us if baseline_us and trial.time_us else None,
            shared_bytes=data.shared_bytes(trial),
        )
        for rank, (trial, values) in enumerate(zip(trials, texts, strict=True), start=1)
    )
    return TopTable(workload, names, tuple(rows))


def _value(config: Config, name: str) -> str:
    return format_value(config[name]) if name in config else ABSENT


def _variant(
    baseline: str, source: str, workloads: Sequence[str], budget: int
) -> tuple[SourceDiff, int]:
    lines = list(
        difflib.unified_diff(
            baseline.splitlines(), source.splitlines(), "baseline", "tuned", lineterm=""
        )
    )[2:]  # without the two file names
    kinds = [_line_kind(line) for line in lines]
    shown = min(len(lines), budget)
    variant = SourceDiff(
        workloads=tuple(workloads),
        blocks=_blocks(lines[:shown], kinds[:shown]),
        added=kinds.count("add"),
        removed=kinds.count("remove"),
        omitted=len(lines) - shown,
    )
    return variant, shown


def _line_kind(line: str) -> str:
    return {"+": "add", "-": "remove", "@": "place"}.get(line[:1], "same")


def _blocks(lines: Sequence[str], kinds: Sequence[str]) -> tuple[DiffBlock, ...]:
    blocks: list[tuple[str, list[str]]] = []
    for line, kind in zip(lines, kinds, strict=True):
        if not blocks or blocks[-1][0] != kind:
            blocks.append((kind, []))
        blocks[-1][1].append(line)
    return tuple(DiffBlock(kind, "\n".join(content)) for kind, content in blocks)


Tone = Literal["faster", "same", "slower", "none", "failed"]


# A larger speedup over the baseline is told with a warning.
BELIEVABLE = 10


@dataclass(frozen=True, slots=True)
class Headline:
    """One sentence on the tuned workloads, one on the held-out ones, and where they come from."""

    origin: str
    headline: str
    held_out: str
    tone: Tone

    def __str__(self) -> str:
        return " ".join(part for part in (self.origin, self.headline, self.held_out) if part)


def headline(data: ReportData) -> Headline:
    """Judge a run by its final comparison, never by the search's own minimum.

    Where a winner failed a check, nothing is said of its speed.
    """
    if not data.results:
        return Headline(_origin(data), _without_result(data), "", "none")
    if accused := accusation(data):
        return Headline(_origin(data), accused, "", "failed")
    judged = data.tuned or data.results
    tone, headline = _judge(judged, "tuned" if data.tuned else "held-out")
    held_out = _held_out(data.held_out) if data.tuned and data.held_out else ""
    if data.on_cpu:
        return Headline(_origin(data), f"On the CPU: {headline}", held_out, "same")
    headline += _isolated(judged) + _second_look(data.results)
    return Headline(_origin(data), headline, held_out, tone)


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
