"""The section on the dispatch: which variant serves which shape, and what its rule is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.dispatch.of_session import SessionDispatch
from tuner.dispatch.table import Choice, Entry, HeldOut, Table
from tuner.model.config import Config
from tuner.model.errors import InputError
from tuner.model.kernel import Workload
from tuner.model.trial import Variant
from tuner.report.formatting import interval, joined, microseconds, ratio
from tuner.session.session import Session

WANTED_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A table with the measurements that might shrink it."""

    table: Table
    wanted: tuple[tuple[Workload, Variant], ...] = ()


@dataclass(frozen=True, slots=True)
class Served:
    """One tuned workload: who serves it, and at what price against its own best."""

    workload: str
    by: str
    time: str
    speedup: str
    slowdown: str
    reason: str


@dataclass(frozen=True, slots=True)
class Chosen:
    """One variant with the workloads that it serves."""

    number: int
    candidate: str
    config: Config
    serves: str


@dataclass(frozen=True, slots=True)
class Checked:
    """What the rule chooses on a held-out workload."""

    workload: str
    nearest: str
    by: str
    speedup: str
    verdict: str


def dispatch_of(session: Session) -> Dispatch | None:
    """Make the table of a session as `tune export` does; None where there is none."""
    if not session.comparisons():
        return None
    try:
        config = session.manifest.config
        choice = Choice(config.variants_within, config.max_variants)
        made = SessionDispatch(session, choice)
    except InputError:
        return None
    return Dispatch(made.table, made.wanted)


def summary(dispatch: Dispatch) -> str:
    """Say in a sentence how many variants serve how many workloads."""
    table = dispatch.table
    count, total = len(table.kernels), len(table.entries)
    served = sum(entry.kernel is not None for entry in table.entries)
    if not count:
        return f"The baseline serves all of {_workloads(total)}: no variant is proved faster."
    rest = total - served
    baseline = f", the baseline {rest}" if rest else ""
    return (
        f"{count} variant{'s' * (count != 1)} serve{'s' * (count == 1)} {served} of "
        f"{_workloads(total)}, {table.choice}{baseline}."
    )


def chosen(dispatch: Dispatch) -> Sequence[Chosen]:
    """List the variants by number."""
    table = dispatch.table
    return [
        Chosen(
            number,
            kernel.variant.candidate,
            kernel.variant.config,
            joined([str(one.workload) for one in table.entries if one.kernel == kernel]),
        )
        for number, kernel in enumerate(table.kernels, start=1)
    ]


def served(dispatch: Dispatch) -> Sequence[Served]:
    """List the tuned workloads."""
    return [_served(entry, dispatch.table) for entry in dispatch.table.entries]


def checked(dispatch: Dispatch) -> Sequence[Checked]:
    """List the held-out workloads."""
    return [_checked(one, dispatch.table) for one in dispatch.table.held_out]


def wanted(dispatch: Dispatch) -> tuple[Sequence[tuple[str, Config]], int]:
    """List the first measurements that might shrink the set, and count the others."""
    pairs = [(str(workload), variant.config) for workload, variant in dispatch.wanted]
    return pairs[:WANTED_SHOWN], max(len(pairs) - WANTED_SHOWN, 0)


def _served(entry: Entry, table: Table) -> Served:
    one = entry.compared
    return Served(
        workload=str(entry.workload),
        by=_by(table.number(entry.kernel)),
        time=microseconds(one.time_us) if one else "-",
        speedup=f"{ratio(one.speedup)} {interval(one.interval)}" if one else "-",
        slowdown="-" if entry.slowdown is None else f"{entry.slowdown:.3f}x",
        reason=entry.reason,
    )


def _checked(one: HeldOut, table: Table) -> Checked:
    compared = one.compared
    verdict = one.verdict + ("; the baseline serves" if one.refuted else "")
    return Checked(
        workload=str(one.workload),
        nearest=str(one.nearest) if one.nearest else "-",
        by=_by(table.number(one.kernel)),
        speedup=f"{ratio(compared.speedup)} {interval(compared.interval)}" if compared else "-",
        verdict=verdict,
    )


def _by(number: int) -> str:
    return f"v{number}" if number else "baseline"


def _workloads(count: int) -> str:
    return f"{count} tuned workload{'s' * (count != 1)}"
