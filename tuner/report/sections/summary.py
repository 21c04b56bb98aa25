"""What a report says first, and how far to trust it: the headline and the checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from tuner.model.trial import NOISY, Check, Result, Status
from tuner.report import formatting
from tuner.report.data import Declared, ReportData
from tuner.report.formatting import ratio, significance
from tuner.report.mutation_score import share_text
from tuner.report.pages import mark_code, write_pairs
from tuner.report.sections.dispatch import AS_FAST, over_best_peers, peers_on
from tuner.report.serial import pick
from tuner.report.tables import Cell, Column, Field, join, list_table, tag, write_table

# A larger speedup over the baseline comes with a warning.
BELIEVABLE = 10
CHECKS_SHOWN = 20
REASON_LENGTH = 400
CHECK_MEANING: Mapping[str, str] = {
    "verify": "verified again: every kind of input, and twice for equal bits",
    "edge_cases": "verified on edge cases, which are never timed",
    "bits": "the bits that are kept, with every kind of input",
    "machine_code": "machine code: programmatic launches touch no memory before their wait",
    "compare": "timed results of the final comparison, on new inputs",
    "sanitizers": "address and undefined-behaviour sanitizers, on the CPU",
    "memcheck": "compute-sanitizer: accesses out of bounds or misaligned",
    "racecheck": "compute-sanitizer: races in shared memory",
    "synccheck": "compute-sanitizer: barriers used wrongly",
    "initcheck": "compute-sanitizer: memory read before it is written",
}
TOOLS = frozenset({"sanitizers", "memcheck", "racecheck", "synccheck", "initcheck"})

# What a terminal leaves to the report.
ON_THE_CPU = "other code on the CPU"

Tone = Literal["faster", "same", "slower", "none", "failed"]


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
    date = f", {data.measured_on}" if data.measured_on else ""
    origin = f"{'RECORDED on' if data.recorded else 'Measured on'} {data.device}{date}."
    if data.on_cpu:
        origin = f"Run on the CPU, {data.device}{date}: no time here says anything of a GPU."
    if data.evaluator:
        origin = f"Timed on {data.device}{date} by {data.evaluator}, not by tune. {verdict(data)}"
    if not data.results:
        return Headline(origin, _without_result(data), "", "none")
    if accused := accusation(data):
        return Headline(origin, accused, "", "failed")
    judged = data.tuned or data.results
    tone, text = _judge(data, judged, "tuned" if data.tuned else "held-out")
    held_out = _held_out(data) if data.tuned and data.held_out else ""
    if data.on_cpu:
        count = f"{len(judged)} workload{'s' if len(judged) > 1 else ''}"
        text, held_out = f"Verified on {count}; which config is fastest, a GPU has to say.", ""
        tone = "same"
    elif any(result.isolated_speedup is not None for result in judged):
        # Where calls overlap their neighbours, what is left when they don't.
        isolated = [result.isolated_speedup or result.speedup for result in judged]
        mean = data.average(judged, isolated)
        text += f" Without overlapping the calls before and after: {ratio(mean)}."
    if not data.on_cpu and data.peers and (over := over_best_peers(peers_on(data))) is not None:
        than = f"{ratio(over)} over" if over >= 1.0 else f"{ratio(1 / over)} slower than"
        than = "as fast as" if abs(over - 1.0) < AS_FAST else than
        text = f"{than} the best peer of each workload. {text}"
    if beyond := [str(result.workload) for result in data.results if result.speedup > BELIEVABLE]:
        text += (
            f" LOOK TWICE at {', '.join(beyond)}: over {BELIEVABLE}x is more often a slip in the "
            "baseline, its launch or the reference than a better kernel."
        )
    return Headline(origin, text, held_out, tone)


def _without_result(data: ReportData) -> str:
    counts = data.counts()
    total = sum(counts.values())
    if total == 0:
        return "No result: no config was tried."
    if counts[Status.CORRECT] == 0:
        return f"No result: none of {total:,} trials was correct."
    wrong = {t.variant: t.reason for t in data.finals if t.status is not Status.CORRECT}
    wrong |= {check.variant: check.reason for check in data.checks if check.passed is False}
    if data.finished and wrong:
        who = "the only finalist" if len(wrong) == 1 else f"all {len(wrong)} finalists"
        *_, last = wrong.values()
        return f"No result: {who} failed a check that comes after the search; the last: {last}"
    if data.finished:
        return "No result: the finalists were not compared with the baseline."
    return "No result yet: the run ended before the finalists were compared with the baseline."


def _judge(data: ReportData, results: Sequence[Result], kind: str) -> tuple[Tone, str]:
    labels = [significance(result) for result in results]
    count, faster, slower = len(labels), labels.count("faster"), labels.count("slower")
    mean = data.average(results)
    scope = f"{count} {kind} workload{'s' if count != 1 else ''}"
    average = f"geometric mean over {scope}" if count > 1 else f"on {scope}"
    most = 2 * faster > count
    if data.mix and count > 1:
        average = f"time in all of a mix of {scope}"
        # Of a mix it is the time that is proved to be less: with all at the low end.
        most = data.average(results, [result.interval[0] for result in results]) > 1.0
    tone: Tone = "faster" if faster > slower else "slower"
    if faster == slower == 0:
        tone, text = (
            "same",
            f"No difference from the baseline is proved ({average}: {ratio(mean)}).",
        )
    elif most and mean > 1.0:
        also = f", slower on {slower}" if slower else ""
        tone, text = "faster", f"{ratio(mean)} faster than the baseline ({average}); "
        text += f"proved on {faster} of {count}{also}."
    elif faster and slower:
        tone = tone if mean > 1.0 else "slower"
        text = (
            f"Mixed: faster on {faster}, slower on {slower} of {scope}; {average}: {ratio(mean)}."
        )
    else:
        text = f"{tone.capitalize()} on {faster or slower} of {scope}; {average}: {ratio(mean)}."
    if noisy := labels.count(NOISY):
        text += f" {NOISY.capitalize()} on {noisy} of {count}: measure again on a quieter GPU."
    return tone, text


def _held_out(data: ReportData) -> str:
    results, count = data.held_out, len(data.held_out)
    mean = data.average(results)
    labels = [significance(result) for result in results]
    faster, slower = labels.count("faster"), labels.count("slower")
    text = f"Held-out: {ratio(mean)} over {count} workload{'s' if count != 1 else ''}, "
    text += f"faster on {faster} of {count}"
    return f"{text}, slower on {slower}." if slower else f"{text}."


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
        return CHECK_MEANING.get(self.kind, "")


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


def of_winners(data: ReportData) -> tuple[Check, ...]:
    """List the last verdicts on configs that results are reported for."""
    chosen = {result.variant for result in data.results}
    return tuple(check for check in latest(data.checks) if check.variant in chosen)


def failures(data: ReportData) -> tuple[Check, ...]:
    """List the checks that a winner failed: such a config is wrong on every workload."""
    return tuple(check for check in of_winners(data) if check.passed is False)


def counts_by_kind(data: ReportData) -> dict[str, dict[str, int]]:
    """Count the verdicts on the winners as `--json` prints them."""
    counted: dict[str, dict[str, int]] = {}
    for row in _count_by_kind(of_winners(data)):
        of_kind = counted.setdefault(row.kind, dict.fromkeys(("passed", "failed", "not_run"), 0))
        for verdict in of_kind:
            of_kind[verdict] += getattr(row, verdict)
    return counted


def check_rows(data: ReportData) -> tuple[CheckRow, ...]:
    """Lay out the checks by kind and device; what should have been checked and was not, too."""
    if not data.results:
        return ()
    rows = _count_by_kind(of_winners(data))
    present = {row.kind for row in rows}
    if "edge_cases" not in present:
        rows.append(CheckRow("edge_cases", note=_why_no_edge_cases(data)))
    if data.of_cuda and not present & TOOLS:
        tools = "sanitizers" if data.on_cpu else "compute-sanitizer"
        rows.append(CheckRow(tools, note=_why_no_tools(data)))
    return tuple(rows)


def open_checks(data: ReportData) -> tuple[Check, ...]:
    """List the checks of winners without a pass, the failed first."""
    checks = [check for check in of_winners(data) if check.passed is not True]
    return tuple(sorted(checks, key=lambda check: check.passed is None))


def reason_of(check: Check) -> str:
    return formatting.shorten_text(check.reason, REASON_LENGTH) or "no reason recorded"


def verdict(data: ReportData) -> str:
    """Name the program that verified what an evaluator timed."""
    if data.verified_by:
        return f"Verified by {data.verified_by}, not by tune."
    return "NOT VERIFIED: nobody has compared all results with the reference."


def accusation(data: ReportData) -> str:
    """Say which winners failed a check, for the place where a speedup would stand; else nothing."""
    failed = failures(data)
    if not failed:
        return ""
    wrong = {check.variant for check in failed}
    where = [str(result.workload) for result in data.results if result.variant in wrong]
    first = failed[0]
    more = f" ({len(failed) - 1} more failed)" if len(failed) > 1 else ""
    reason = " ".join(reason_of(first).split())
    return (
        f"NOT TO BE TRUSTED: what was tuned for {formatting.join_names(where)} failed a check. "
        f"{first.kind} on {first.workload}: {reason.rstrip('.')}{more}."
    )


def verification_facts(data: ReportData) -> tuple[tuple[str, str], ...]:
    """Say in pairs what was checked besides: inputs, determinism, workloads, tools, mutants."""
    determinism = "required of every output"
    if data.evaluator:
        determinism = f"left to {data.evaluator}"
    elif data.declared is None:
        determinism = "not known: the search space cannot be read any more, or has changed"
    elif data.declared.varying:
        names = ", ".join(data.declared.varying)
        determinism = f"required, but for {names}: declared `deterministic: false`"
    kinds = {check.kind for check in of_winners(data)}
    workloads = data.declared.edge_cases if data.declared is not None else ()
    if not workloads:  # those near the tuned sizes, say
        edges = (check.workload for check in of_winners(data) if check.kind == "edge_cases")
        workloads = tuple(dict.fromkeys(edges))
    listed = "; ".join(map(str, workloads)) or "none declared"
    tools = _watching(data)
    tools += [kind for kind in CHECK_MEANING if kind in TOOLS & kinds - {*tools}]
    return (
        ("Inputs of finalists and baseline", _input_kinds(data)),
        *((name[:1].upper() + name[1:], text) for name, text in facts(data)),
        ("Equal bits in two runs", determinism),
        (
            "Edge cases",
            f"{listed} (not run)" if workloads and "edge_cases" not in kinds else listed,
        ),
        (
            "Tools that watched the winners",
            f"{', '.join(tools)}; very large workloads are left out" if tools else "none",
        ),
        ("Mutation score", mutation(data)),
    )


def facts(data: ReportData) -> Iterator[tuple[str, str]]:
    """Say by name what was left out of the verification, and how far it went; what there is."""
    declared = data.declared or Declared()
    if (known := roundings(data)) is not None:
        off = f"winners are off by up to {known[0]:.2g} roundings, the baseline by {known[1]:.2g}"
        yield "accuracy", off
    if less := "; ".join(f"{name}: {limit}" for name, limit in declared.extremes.items()):
        yield "extremes", f"left out: {less}"
    if held := ", ".join(declared.constants):
        running = "nothing that may still run when the kernel begins may write them"
        yield "constants", f"{held}: {running}"
    if asking := ", ".join(declared.asking):
        said = "what passes on one of the two says nothing of the other's code"
        yield ON_THE_CPU, f"{asking}: {said}"
    if same := formatting.join_names(unvaried_workloads(data)):
        yield (
            "timed calls",
            f"met the same inputs all the time on {same}, whose numbers cannot change one by one: "
            "a kernel that keeps results of inputs would not be seen",
        )


def roundings(data: ReportData) -> tuple[float, float] | None:
    """Give how many roundings winners and baseline are off by, where the tolerance is measured."""
    won = {(result.workload, result.variant) for result in data.results}
    verdicts = [t.correctness for t in data.finals if (t.workload, t.variant) in won]
    found = [accuracy.block for verdict in verdicts if verdict for _, accuracy in verdict.accuracy]
    if not found or not data.baseline_accuracy:
        return None
    return max(found), max(accuracy.block for accuracy in data.baseline_accuracy)


def unvaried_workloads(data: ReportData) -> list[str]:
    """List the workloads on which timed calls met the same inputs all the time."""
    return [*dict.fromkeys(str(c.workload) for c in data.comparisons if c.unvaried)]


def verification_notes(data: ReportData) -> tuple[str, ...]:
    said = []
    if data.evaluator:
        said.append(f"{verdict(data)} {_remedy(data)} verifies CUDA here.")
    if data.recorded and data.results and not of_winners(data):
        said.append(
            "Edge cases and the tools that watch every access were not run: a recording "
            f"cannot run a kernel. {_remedy(data)} does."
        )
    # Finalists that failed a check won nothing.
    failed = {check.variant for check in latest(data.checks) if check.passed is False}
    if count := len(failed - {result.variant for result in data.results}):
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
    if score.ways is not None:
        missed = f"; not caught: {'; '.join(score.places)}" if score.places else ""
        return (
            f"verification {score.caught_text} of the baseline (on the {score.device} device, "
            f"{score.date}; `tune mutate` tries all {score.mutants:,}){missed}"
        )
    if score.share is None:
        return f"no mutant of {score.subject} could be counted ({score.date})"
    tried = f", {score.examined:,} of {score.mutants:,} mutants tried"
    sample = "" if score.examined == score.mutants else tried
    return (
        f"{share_text(score)} of {score.killed + score.survived:,} broken kernels caught, "
        f"{score.survived:,} not ({score.subject}, on the {score.device} device, "
        f"{score.date}{sample})"
    )


def strength_lines(data: ReportData) -> Iterator[str]:
    """Say how many broken versions a run's verification catches, and where the others are."""
    if data.mutation is not None and data.mutation.ways is not None:
        yield f"verification   {data.mutation.caught_text}"
        yield from (f"not caught     {place}" for place in data.mutation.places)


def mutants_json(data: ReportData) -> dict[str, object]:
    """Make what `--json` says of broken versions; nothing where a run has tried none."""
    score = data.mutation
    if score is None or score.ways is None:
        return {}
    told = pick(score, "caught=killed", broken=score.killed + score.survived)
    names = "of=ways equivalent stillborn device seconds survivors=places"
    return {"mutants": {**told, **pick(score, names)}}


def _count_by_kind(checks: Sequence[Check]) -> list[CheckRow]:
    groups: dict[tuple[str, str], list[bool | None]] = {}
    for check in checks:
        groups.setdefault((check.kind, check.device), []).append(check.passed)
    rank = {kind: place for place, kind in enumerate(CHECK_MEANING)}
    rows = []
    for kind, device in sorted(groups, key=lambda group: rank.get(group[0], len(rank))):
        passed, failed, not_run = (groups[kind, device].count(one) for one in (True, False, None))
        rows.append(CheckRow(kind, device, passed, failed, not_run))
    return rows


def _why_no_edge_cases(data: ReportData) -> str:
    if data.evaluator and not data.verified_by:
        return f"{data.evaluator} does not verify"
    if data.recorded:
        return f"a recording cannot run a kernel; {_remedy(data)} runs them"
    if data.declared is None:
        return "the search space cannot be read any more, or has changed"
    if not data.declared.edge_cases:
        return "the search space declares none (`workloads: edge_cases:`), or none near is right"
    return "the run did not come to them, or none is valid for a winner"


def _why_no_tools(data: ReportData) -> str:
    if data.evaluator:
        return f"{data.evaluator} runs the kernels, out of reach of any tool here"
    if data.recorded:
        return f"a recording cannot run a kernel; {_remedy(data)} runs them"
    if _watching(data):
        return "the run did not come to them, or the workloads are too large for them"
    if data.on_cpu:
        return "the compiler's sanitizers are not installed where this was run"
    return "compute-sanitizer is not installed where this was measured"


def _remedy(data: ReportData) -> str:
    return f"`tune verify {data.session or 'SESSION'}`, on a GPU or with --device host,"


def _input_kinds(data: ReportData) -> str:
    if data.recorded:
        unpaired = any(not result.paired for result in data.results)
        less = " where the result is paired, two kinds where it is unpaired" if unpaired else ""
        return f"when the recording was made: every kind{less}"
    passed = [t.correctness for t in data.finals if t.correctness and t.correctness.passed]
    kinds = dict.fromkeys(kind for correctness in passed for kind in correctness.input_kinds)
    if data.evaluator and kinds:
        return f"those of {data.evaluator}, which tune has not seen"
    return ", ".join(sorted(kinds, key=lambda kind: kind != "normal")) or "no finalist was verified"


def _watching(data: ReportData) -> list[str]:
    named = data.environment.get("watched_by", "")
    return [] if named in ("", "nothing") else named.split(", ")


def checks_table(data: ReportData) -> Markup:
    """Lay out the checks of the winners; nothing where there is no winner."""
    rows: list[Sequence[Cell | str | int]] = []
    ran = any(not row.note for row in check_rows(data))
    for row in check_rows(data):
        if row.note:
            note = join(row.meaning, tag("not run"), mark_code(row.note))
            rows.append((row.kind, Cell(note, wide=ran)))
            continue
        failed = Cell(str(row.failed), css="bad" if row.failed else "")
        rows.append((row.kind, row.meaning, row.passed, failed, row.not_run, row.device))
    counts = (Column(name, numeric=True) for name in ("Passed", "Failed", "Not run"))
    columns: list[Column | str] = ["Check of the winners", "What"]
    if ran:
        columns += [*counts, "On"]
    return write_table("Checks of the winners", columns, rows) if rows else Markup("")


def open_checks_table(data: ReportData) -> Markup:
    """Lay out the checks of winners that were not passed, the first ones; else nothing."""
    common = formatting.common(data.results)

    def verdict(check: Check) -> Markup:
        failed = check.passed is False
        return join(tag("failed" if failed else "not run", bad=failed), reason_of(check))

    def config(check: Check) -> Markup:
        own = f"{check.candidate}:" if data.several else ""
        return join(own, write_pairs(formatting.without(check.config, common)))

    fields: list[Field[Check]] = [
        Field("Check", lambda check: check.kind),
        Field("Workload", lambda check: str(check.workload)),
        Field(Column("Verdict and reason", css="reason"), verdict),
        Field(Column("Config", css="config"), config),
    ]
    return list_table("Checks that were not passed", open_checks(data)[:CHECKS_SHOWN], fields)
