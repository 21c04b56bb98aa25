"""How a run went: where its time went, and which of several devices timed which workload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from markupsafe import Markup

from tuner.model.trial import Result
from tuner.report import charts
from tuner.report.data import ReportData
from tuner.report.formatting import percent
from tuner.report.serial import pick, plain
from tuner.report.tables import Column, soft, write_table
from tuner.tuning.device_queues import name_slower_devices

_N = TypeVar("_N", int, float)

# What a phase does, by its name.
MEANING: Mapping[str, str] = {
    "opening": "starting processes and reading files",
    "baseline": "verifying and timing the untouched kernel",
    "search": "searching",
    "agent": "waiting for the agent",
    "candidate": "checking what the agent wrote",
    "profile": "profiling",
    "energy": "measuring energy",
    "finals": "verifying and comparing the finalists",
    "checks": "running the winners under further checks",
}
# What the seconds inside a phase went to, by the words that `spent_on` is given.
PARTS: Mapping[str, str] = {
    "memory": "opening memory",
    "verifier": "inputs, references and verdicts",
    "runs": "verified runs",
    "timing": "timed runs",
    "verdicts": "verdicts on them",
    "compiling": "waiting for the compiler",
    "importing": "waiting for what a Python kernel imports",
    "choosing": "choosing finalists",
    "finalists": "verifying finalists",
}
# Of the whole: a part that took less is not shown.
LEAST_SHOWN = 0.01


@dataclass(frozen=True, slots=True)
class TimeTable:
    """The seconds of all of a session's runs: by phase, and of the search by what was waited for.

    A search has a lane for each device; `device_s`, `compiler_s` and `proposals_s` are those of all
    lanes together. `starts` counts the processes that were started in each phase, by their names;
    None where nobody counted. `inside_s` says what the seconds of a phase went to, of all threads
    together.
    """

    phases_s: Mapping[str, float]
    device_s: float
    compiler_s: float
    proposals_s: float
    starts: Mapping[str, Mapping[str, int]] | None = None
    inside_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def rows(self) -> Iterator[tuple[str, float, float]]:
        """Give what was done, its seconds and their share of the whole."""
        whole_s = sum(self.phases_s.values()) or 1.0
        for name, seconds in self.phases_s.items():
            yield MEANING.get(name, name), seconds, seconds / whole_s

    def parts(self) -> Mapping[str, list[tuple[str, float, float]]]:
        """Give by what was done what that consisted of, as `rows` does, the longest first."""
        whole_s = sum(self.phases_s.values()) or 1.0
        return {
            MEANING.get(name, name): [
                (": ".join(PARTS.get(word, word) for word in what.split("/")), seconds, share)
                for what, seconds in Counter(inside).most_common()
                if (share := seconds / whole_s) >= LEAST_SHOWN
            ]
            for name, inside in self.inside_s.items()
        }

    def started(self) -> Mapping[str, str]:
        """Name the processes that were started while something was done, where any were."""
        return {
            MEANING.get(name, name): ", ".join(
                f"{count} {what}" for what, count in sorted(counts.items())
            )
            for name, counts in (self.starts or {}).items()
        }

    def search_rows(self) -> Iterator[tuple[str, float, float]]:
        """The same of the lanes of the search."""
        lanes_s = self.device_s + self.compiler_s + self.proposals_s
        named = {
            "verifying and timing": self.device_s,
            "waiting for the compiler": self.compiler_s,
            "waiting for a proposal": self.proposals_s,
        }
        for name, seconds in named.items() if lanes_s else ():
            yield name, seconds, seconds / lanes_s


def time_spent(data: ReportData) -> TimeTable | None:
    """Add the runs of a session up; None where nobody kept the time."""
    if not data.time_spent:
        return None
    phases_s: Counter[str] = Counter()
    for one in data.time_spent:
        phases_s.update(one.phases_s)
    device_s = sum(one.device_s for one in data.time_spent)
    compiler_s = sum(one.compiler_s for one in data.time_spent)
    lanes_s = sum(one.lanes * one.phases_s.get("search", 0.0) for one in data.time_spent)
    left_s = max(0.0, lanes_s - device_s - compiler_s)
    inside_s = _add_up(one.inside_s for one in data.time_spent)
    counts = [spent.starts for spent in data.time_spent]
    starts = None if None in counts else _add_up(one or {} for one in counts)
    return TimeTable(dict(phases_s), device_s, compiler_s, left_s, starts, inside_s)


def _add_up(runs: Iterable[Mapping[str, Mapping[str, _N]]]) -> dict[str, dict[str, _N]]:
    """Add up what several runs say of each phase."""
    added: dict[str, dict[str, _N]] = {}
    for phase, said in (item for run in runs for item in run.items()):
        of_phase = added.setdefault(phase, {})
        for name, number in said.items():
            of_phase[name] = of_phase.get(name, 0) + number
    return added


def device_of(data: ReportData, result: Result) -> str:
    """Name the device that timed a workload, of several; "" where there was one."""
    return data.homes[-1].homes.get(result.workload.key, "") if data.homes else ""


def homes_lines(data: ReportData) -> tuple[str, ...]:
    """Say how the devices compared, and which were lost; nothing where there was one."""
    if not data.homes:
        return ()
    members = dict.fromkeys(name for home in data.homes for name in home.members)
    lines = [f"Each workload was timed on one device of {len(members)}: {', '.join(members)}."]
    if data.reference_us:
        times = ", ".join(f"{name} {us:.4g} us" for name, us in data.reference_us.items())
        lines.append(
            f"All timed the same kernel first, the baseline on {data.reference_workload}: {times}."
        )
    if not data.on_cpu and (differ := name_slower_devices(data.reference_us)):
        lines.append(f"{differ[:1].upper()}{differ[1:]}.")
    lines += [f"{name} was lost: {reason}." for name, reason in _collect_losses(data).items()]
    lines += [
        f"{key} was begun on another device: what {member} took was multiplied by {factor:.4f}."
        for key, (member, factor) in _factors(data).items()
    ]
    return tuple(lines)


def _collect_losses(data: ReportData) -> dict[str, str]:
    return {name: reason for home in data.homes for name, reason in home.lost.items()}


def _factors(data: ReportData) -> dict[str, tuple[str, float]]:
    """Tell by workload which device took it over, and what its times were multiplied by.

    Edge cases have homes too, but no times.
    """
    return {
        key: (home.homes[key], factor)
        for home in data.homes
        for key, factor in home.factors.items()
        if key in data.baselines_us
    }


def course_json(data: ReportData) -> dict[str, object]:
    """Make what `--json` has of it; only a run on several devices says anything of them."""
    made: dict[str, object] = {}
    if (spent := time_spent(data)) is not None:
        counted = {} if spent.starts is None else {"starts": spent.starts}
        search = pick(spent, "device=device_s compiler=compiler_s proposals=proposals_s")
        made["time"] = pick(spent, "phases_s inside_s", search_s=search, **counted)
    if data.homes:
        made["gpus"] = {
            "members": list(data.homes[-1].members),
            "reference": data.reference_workload or None,
            "reference_us": plain(data.reference_us),
            "differ": bool(name_slower_devices(data.reference_us)) and not data.on_cpu,
            "lost": _collect_losses(data),
            "factors": plain({key: factor for key, (_, factor) in _factors(data).items()}),
        }
    return made


def time_chart(spent: TimeTable) -> Markup:
    """Draw the seconds of each thing that was done, the longest first."""
    rows = sorted(spent.rows(), key=lambda row: -row[1])
    bars = [
        charts.Bar(name, seconds, f"{seconds:.1f} s, {percent(share)}")
        for name, seconds, share in rows
        if share >= LEAST_SHOWN
    ]
    return charts.bars("Seconds by what was done", bars)


def time_table(spent: TimeTable) -> Markup:
    """Lay out where the time went, with the parts of what was done."""
    started, parts = spent.started(), spent.parts()
    rows: list[tuple[str, str, str, str]] = []
    for name, seconds, share in spent.rows():
        rows.append((name, f"{seconds:.1f}", percent(share), started.get(name, "none")))
        rows += [
            (soft(f"of that, {part}"), f"{seconds:.1f}", percent(share), "")
            for part, seconds, share in parts.get(name, ())
        ]
    rows += [
        (soft(f"of the search, {name}"), f"{seconds:.1f}", percent(share), "")
        for name, seconds, share in spent.search_rows()
    ]
    columns = ("What", Column("Seconds", numeric=True), Column("Share", numeric=True))
    if spent.starts is None:
        return write_table("Where the time went", columns, [row[:3] for row in rows])
    return write_table("Where the time went", (*columns, "Processes started"), rows)
