"""How far to trust a result: what was checked of the winners, and what could not be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.model.trial import Check, Variant
from tuner.report import formatting
from tuner.report.data import ReportData

REASONS_SHOWN = 20
REASON_LENGTH = 400
MEANING: Mapping[str, str] = {
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
        return MEANING.get(self.kind, "")


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


def facts(data: ReportData) -> tuple[tuple[str, str], ...]:
    """Say in pairs what was checked besides: inputs, determinism, workloads, tools, mutants."""
    return (
        ("Inputs of finalists and baseline", _fills(data)),
        ("Equal bits in two runs", _determinism(data)),
        ("Boundary workloads", _boundary(data)),
        ("Tools that watched the winners", _tools(data)),
        ("Mutation score", mutation(data)),
    )


def notes(data: ReportData) -> tuple[str, ...]:
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
    rank = {kind: place for place, kind in enumerate(MEANING)}
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
    if not data.declared.edge_cases:
        return "the search space declares none (`workloads: edge_cases:`)"
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
    known = data.declared.edge_cases if data.declared is not None else ()
    listed = "; ".join(map(str, known)) or "none declared"
    return f"{listed} (not run)" if known and "boundary" not in _kinds(data) else listed


def _tools(data: ReportData) -> str:
    tools = [] if _watched_by(data) == "nothing" else _watched_by(data).split(", ")
    tools += [kind for kind in MEANING if kind in TOOLS & _kinds(data) - {*tools}]
    return f"{', '.join(tools)}; very large workloads are left out" if tools else "none"


def _kinds(data: ReportData) -> set[str]:
    return {check.kind for check in of_winners(data)}


def _watched_by(data: ReportData) -> str:
    return data.environment.get("watched_by", "nothing") or "nothing"


def _shortened(reason: str) -> str:
    text = reason.strip() or "no reason recorded"
    return text if len(text) <= REASON_LENGTH else text[:REASON_LENGTH].rstrip() + " …"
