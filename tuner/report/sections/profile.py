"""The section on the profiles: what bounds each candidate, and what was found in its code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.analysis.base import METRICS, Degree, Kind
from tuner.model.config import Config
from tuner.model.trial import Finding
from tuner.report.data import ReportData
from tuner.session.events import Profiled

LONGEST_LINE = 100
_DEGREES: Mapping[Degree, str] = {
    Degree.COUNTERS: "Nsight Compute's counters were read, beside times on a GPU, the machine code "
    "and the compiler's report: what is said below was measured.",
    Degree.TIMING: "There are times on a GPU, the machine code and the compiler's report, but no "
    "counters: what is said below of caches, stalls and conflicts is reasoned from the code, not "
    "measured.",
    Degree.STATIC: "There are only the machine code for a GPU and the compiler's report: nothing "
    "was run on a GPU for it, so what is said below of speed is reasoned from the code.",
}
_KINDS: Mapping[Kind, str] = {
    Kind.MEMORY: "bound by memory",
    Kind.COMPUTE: "bound by arithmetic",
    Kind.LATENCY: "bound by latency: neither memory nor arithmetic is near its limit",
    Kind.LAUNCH: "bound by the launch: too short for anything else to count",
    Kind.TAIL: "bound by its last wave of blocks, which leaves multiprocessors idle",
}
_UNTIMED_LATENCY = "bound by latency, or by what cannot be told without a time"


@dataclass(frozen=True, slots=True)
class Noticed:
    """A finding with the line of the template that it comes from; "" where it names none."""

    finding: Finding
    code: str


@dataclass(frozen=True, slots=True)
class ProfileOf:
    """What one profile says; `numbers` are its metrics with their meaning."""

    workload: str
    kind: str
    degree: str
    config: Config
    noticed: tuple[Noticed, ...]
    numbers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class CandidateProfiles:
    """The profiles of one candidate; `wins` counts the workloads that it serves."""

    name: str
    wins: int
    profiles: tuple[ProfileOf, ...]


def profiled(data: ReportData) -> tuple[CandidateProfiles, ...]:
    """Group the profiles by candidate, those that serve most workloads first."""
    wins = data.wins()
    lines = {one.name: one.template.splitlines() for one in data.candidates}
    groups = {name: [p for p in data.profiles if p.candidate == name] for name in data.ranking()}
    return tuple(
        CandidateProfiles(
            name,
            wins.get(name, 0),
            tuple(_profile(one, lines.get(name, [])) for one in found),
        )
        for name, found in groups.items()
        if found
    )


def degrees(data: ReportData) -> tuple[tuple[str, str], ...]:
    """Say what each degree of the profiles means, and why there are no counters."""
    seen = dict.fromkeys((one.degree, one.reason) for one in data.profiles)
    return tuple(
        (degree.value, _DEGREES[degree] + (f" Why: {reason.rstrip('.')}." if reason else ""))
        for degree, reason in seen
    )


def _profile(one: Profiled, lines: list[str]) -> ProfileOf:
    untimed = one.degree is Degree.STATIC and one.kind is Kind.LATENCY
    return ProfileOf(
        workload=one.workload.replace(",", " "),
        kind=_UNTIMED_LATENCY if untimed else _KINDS[one.kind],
        degree=one.degree.value,
        config=Config.of(one.config),
        noticed=tuple(Noticed(finding, _code(finding, lines)) for finding in one.findings),
        numbers=tuple((_meaning(name), _number(value)) for name, value in one.metrics.items()),
    )


def _meaning(metric: str) -> str:
    return METRICS[metric][1] if metric in METRICS else metric.replace("_", " ")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _code(finding: Finding, lines: list[str]) -> str:
    if finding.line is None or not 0 < finding.line <= len(lines):
        return ""
    code = lines[finding.line - 1].strip()
    return code if len(code) <= LONGEST_LINE else code[:LONGEST_LINE] + " …"
